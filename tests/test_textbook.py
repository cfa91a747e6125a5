"""Facts of docs/textbook.md that no claim and no other test measures."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.attention import AttentionConfig, SelfAttention, attention, scores
from attnlab.attention.masks import bidirectional, causal
from docs.textbook import CELL, PAGE, ROOT, fill, judge_all


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_gap_of_ten_makes_softmax_one_hot_to_four_digits():
    pattern = torch.tensor([10.0, 0.0, 0.0]).softmax(0)
    assert pattern[0] == pytest.approx(1 / (1 + 2 * math.exp(-10)))
    assert 0.9999 < pattern[0] < 1


def test_large_scores_are_spiky_and_never_flat():
    rows = (math.sqrt(512) * normal(2000, 64)).softmax(-1)
    assert rows.amax(-1).mean() > 0.9
    assert torch.special.entr(rows).sum(-1).max() < 0.6 * math.log(64)  # of every single row


def test_a_demo_with_weights_of_variance_1_is_not_at_unit_variance():
    x, w_q, w_k = normal(512, 16), normal(16, 16, seed=1), normal(16, 16, seed=2)
    scaled = (x @ w_q) @ (x @ w_k).T / 4  # 1/sqrt(16)
    assert scaled.std() > 8


def test_the_scale_is_a_temperature_of_the_queries():
    q, k, v = (normal(1, 2, 8, 16, seed=s) for s in range(3))
    halved = attention(q, k, v, scale=0.125)[1]
    assert torch.equal(halved, attention(q / 2, k, v, scale=0.25)[1])


def test_values_and_keys_may_have_other_shapes_than_queries():
    output, pattern = attention(normal(1, 5, 8), normal(1, 7, 8), normal(1, 7, 3))
    assert output.shape == (1, 5, 3) and pattern.shape == (1, 5, 7)


def test_attention_after_the_projections_is_two_matrix_products():
    q, k, v = (normal(1, 4, 6, 8, seed=s) for s in range(3))
    pattern = (q @ k.mT / math.sqrt(8)).softmax(-1)
    assert torch.allclose(pattern @ v, F.scaled_dot_product_attention(q, k, v), atol=1e-6)


def test_additive_attention_scores_all_pairs_at_once():
    score = scores.Additive(8, 8, 16)
    q, k = normal(1, 5, 8), normal(1, 7, 8, seed=1)
    alone = torch.cat([score(q[:, i : i + 1], k) for i in range(5)], dim=1)
    assert score(q, k).shape == (1, 5, 7)
    assert torch.allclose(score(q, k), alone, atol=1e-6)


def test_minus_1e9_overflows_in_fp16():
    with pytest.raises(RuntimeError, match="overflow"):
        torch.zeros(2).half().masked_fill(torch.tensor([True, False]), -1e9)


def test_minus_1e9_makes_a_blocked_row_look_everywhere():
    assert torch.full((4,), -1e9).softmax(0).tolist() == [0.25] * 4
    assert torch.full((4,), -math.inf).softmax(0).isnan().all()


def test_sdpa_answers_a_query_without_keys_by_zeros():
    x = normal(1, 1, 3, 4)
    mask = torch.ones(3, 3, dtype=torch.bool)
    mask[1] = False
    assert (F.scaled_dot_product_attention(x, x, x, attn_mask=mask)[0, 0, 1] == 0).all()


def test_is_causal_beside_a_mask_is_the_intersection_or_an_error():
    mask = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) < 0.7
    mask |= torch.eye(4, dtype=torch.bool)
    x = normal(1, 1, 4, 8)
    both = F.scaled_dot_product_attention(x, x, x, attn_mask=mask, is_causal=True)
    once = F.scaled_dot_product_attention(x, x, x, attn_mask=mask.tril())
    assert torch.allclose(both, once, atol=1e-6)
    with pytest.raises(RuntimeError, match="is_causal"):
        F.scaled_dot_product_attention(x[0], x[0], x[0], attn_mask=mask, is_causal=True)


def test_flash_attention_is_part_of_pytorch_on_a_cpu_too():
    x = normal(1, 4, 64, 32)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    assert torch.allclose(
        y, attention(x, x, x, may_attend=torch.ones(64, 64).tril().bool())[0], atol=1e-6
    )


def test_flops_below_the_width():
    n, d = 32, 512
    projections, attending = 4 * 2 * n * d * d, 2 * 2 * n * n * d
    recurrent = 2 * 2 * n * d * d  # input and hidden state
    assert attending < recurrent < projections + attending < 3 * recurrent  # 3: a GRU
    assert [round(x / 1e6) for x in (attending, recurrent, projections + attending)] == [2, 34, 69]


def test_the_pattern_of_a_long_text():
    assert 10_000**2 * 4 == 400e6 and 100_000**2 * 4 == 40e9  # bytes in fp32


def test_bert_has_three_separate_matrices():
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    config = bert.BertConfig(hidden_size=16, num_attention_heads=2)
    names = {name for name, _ in bert.BertSelfAttention(config).named_parameters()}
    assert {"query.weight", "key.weight", "value.weight"} <= names


def test_a_causal_mask_tells_positions_apart():
    x = normal(1, 6, 16)
    order = torch.tensor([1, 0, 2, 3, 4, 5])
    for may_attend, blind in ((bidirectional, True), (causal, False)):
        torch.manual_seed(0)
        layer = SelfAttention(AttentionConfig(16, 2, block_size=6, may_attend=may_attend))
        assert torch.allclose(layer(x)[:, order], layer(x[:, order]), atol=1e-5) == blind


def test_the_page_is_filled_from_the_rows():
    page, judged = PAGE.read_text(encoding="utf-8"), judge_all(ROOT / "experiments")
    assert len(CELL.findall(page)) > 30
    assert fill(page, judged) == page
    verdict, parts = judged["flipped_mask"]
    other = {**judged, "flipped_mask": (verdict + "!", parts)}
    assert fill(page, other) != page  # a changed verdict shows
    with pytest.raises(KeyError):
        fill("<!-- flipped_mask.nothing --><!-- / -->", judged)


def test_every_test_that_the_page_names_is_there():
    page = PAGE.read_text(encoding="utf-8")
    named = re.findall(r"pytest (tests/\S+\.py) -k (\w+)", page)
    assert len(named) > 15
    for file, words in named:
        tests = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), flags=re.MULTILINE)
        assert [test for test in tests if words in test], f"{file} -k {words}"
