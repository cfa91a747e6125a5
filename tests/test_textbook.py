"""Facts of docs/textbook.md that no claim measures, and the form of its sources.

The last column of the page names the tests.
"""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnlab.attention import AttentionConfig, SelfAttention, attention, bidirectional, causal
from attnlab.attention.scores import additive
from attnlab.claims.work import composed
from scripts.fill_pages import statements

ROOT = Path(__file__).parents[1]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_gap_of_ten_makes_softmax_one_hot_to_three_decimals():
    pattern = torch.tensor([10.0, 0.0, 0.0]).softmax(0)
    assert pattern[0] == pytest.approx(1 / (1 + 2 * math.exp(-10)))
    assert 0.9999 < pattern[0] < 1
    assert pattern.mul(1000).round().tolist() == [1000.0, 0.0, 0.0]


def test_scores_spread_by_the_root_of_the_width_at_unit_variance_and_not_in_gpt2():
    for D in (16, 128, 512):
        assert (normal(400, D) @ normal(D, 400, seed=1)).std() == pytest.approx(D**0.5, rel=0.1)
    w = 0.02 * normal(2, 128, 128, seed=2)  # GPT-2's initialization, C = D = 128
    q, k = (normal(400, 128) @ w[0]), (normal(400, 128, seed=3) @ w[1])
    assert (q @ k.T).std() == pytest.approx(0.58, rel=0.1)


def test_large_scores_are_spiky_and_never_flat():
    rows = (math.sqrt(512) * normal(2000, 64)).softmax(-1)
    assert rows.amax(-1).mean() > 0.9
    assert torch.special.entr(rows).sum(-1).max() < 0.6 * math.log(64)  # of every single row


def test_at_width_512_the_largest_weight_is_near_1_in_the_median_row_only():
    q, few, many = normal(1000, 1, 512), normal(1000, 512, 10, seed=1), normal(500, 512, 256)
    of_ten = (q @ few).softmax(-1).amax(-1)
    assert of_ten.median() > 0.999 and 0.93 < of_ten.mean() < 0.97
    assert 0.88 < (q[:500] @ many).softmax(-1).amax(-1).mean() < 0.94


def test_without_the_scale_gradients_vanish_in_most_rows_and_not_in_the_weights():
    D, found = 512, []
    x, above = normal(64, D).double(), normal(64, D, seed=9).double()
    w_q, w_k, w_v = (normal(D, D, seed=s).double() / D**0.5 for s in (1, 2, 3))
    for scale in (1.0, D**-0.5):
        w = w_q.clone().requires_grad_()
        bias = torch.zeros(64, 64, dtype=torch.float64, requires_grad=True)
        output, _ = attention(x @ w, x @ w_k, x @ w_v, bias=bias, scale=scale)
        (output * above).sum().backward()
        found.append((w.grad.norm(), bias.grad.norm(), bias.grad.norm(dim=-1).median()))
    of_weights, of_scores, of_median_row = (a / b for a, b in zip(*found, strict=True))
    assert of_weights > 5 and 0.5 < of_scores < 1.5 and of_median_row < 0.1


def test_heads_of_an_untrained_model_look_at_the_right_word_by_chance():
    words, share = 12, []
    for model in range(
        300
    ):  # 16 heads of 16 each; does "it" look at "animal" more than elsewhere?
        x, w = normal(words, 256, seed=model), normal(2, 256, 256, seed=1000 + model) / 16
        q, k = ((x @ each).unflatten(-1, (16, 16)).transpose(0, 1) for each in w)
        share.append(float(((q @ k.mT)[:, 7].argmax(-1) == 2).float().mean()))
    assert sum(share) / 300 == pytest.approx(1 / words, abs=0.02)
    assert sum(s > 0 for s in share) / 300 == pytest.approx(1 - (1 - 1 / words) ** 16, abs=0.1)


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
    q, k, v = normal(1, 5, 8), normal(1, 7, 8, seed=1), normal(8, seed=2)
    alone = torch.cat([additive(q[:, i : i + 1], k, v) for i in range(5)], dim=1)
    assert alone.shape == (1, 5, 7)
    assert torch.allclose(additive(q, k, v), alone, atol=1e-6)


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


def test_true_means_blocked_in_one_module_of_pytorch_and_allowed_in_another():
    x, eye = normal(1, 4, 8), torch.eye(4, dtype=torch.bool)
    itself = F.scaled_dot_product_attention(x, x, x, attn_mask=eye)
    assert torch.allclose(itself, x)  # True: allowed
    _, pattern = torch.nn.MultiheadAttention(8, 1, batch_first=True)(x, x, x, attn_mask=eye)
    assert (pattern.diagonal(dim1=-2, dim2=-1) == 0).all()  # True: blocked


def test_a_mask_after_the_softmax_lets_blocked_keys_change_the_weights():
    scores, mask = normal(6, 6), torch.ones(6, 6).tril().bool()
    changed = scores.clone()
    changed[:, -1] += 3.0  # blocked for all queries but the last
    before, after = (s.softmax(-1).masked_fill(~mask, 0) for s in (scores, changed))
    assert before[0].sum() < 1 and not torch.allclose(before[0], after[0])


def test_flash_attention_is_part_of_pytorch_on_a_cpu_too():
    x = normal(1, 4, 64, 32)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        y = F.scaled_dot_product_attention(x, x, x, is_causal=True)
    by_hand = attention(x, x, x, may_attend=torch.ones(64, 64).tril().bool())[0]
    assert torch.allclose(y, by_hand, atol=1e-6)


def test_flops_below_the_width():
    n, d = 32, 512
    projections, attending = 4 * 2 * n * d * d, 2 * 2 * n * n * d
    recurrent = 2 * 2 * n * d * d  # input and hidden state
    assert attending < recurrent < projections + attending < 3 * recurrent  # 3: a GRU
    assert [round(x / 1e6) for x in (attending, recurrent, projections + attending)] == [2, 34, 69]


def test_the_pattern_of_a_long_text():
    assert 10_000**2 * 4 == 400e6 and 100_000**2 * 4 == 40e9  # bytes in fp32


def test_more_heads_have_no_more_parameters_unless_their_width_is_kept():
    C, D = 16, 4
    for heads in (1, 2, 8):
        config = AttentionConfig(C, heads, block_size=4, bias=False)
        for width, expected in ((None, 4 * C**2), (D, 4 * C * D * heads)):
            layer = SelfAttention(config, head_size=width)
            assert sum(p.numel() for p in layer.parameters()) == expected


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
        layer = SelfAttention(AttentionConfig(16, 2, block_size=6), may_attend=may_attend)
        assert torch.allclose(layer(x)[:, order], layer(x[:, order]), atol=1e-5) == blind


@pytest.mark.parametrize(("layers", "window"), [(1, 4), (2, 4), (2, 5), (3, 4)])
def test_windows_reach_as_far_as_all_layers_together_and_no_further(layers, window):
    x = torch.randint(0, 30, (64, 16), generator=torch.Generator().manual_seed(0))

    def moved(*overrides):
        """How far back a changed token moves the last output of an untrained model."""
        settings = ["preset=tasks", "data=copy", "model.block_size=16", f"model.n_layer={layers}"]
        config, _ = composed([*settings, *overrides], ROOT / "experiments")
        net = config.model(len(config.data().alphabet)).eval()
        changed = [
            torch.where(torch.arange(16) == 15 - back, (x + 1) % 30, x) for back in range(16)
        ]
        with torch.no_grad():
            last = net(x)[:, -1]
            return [back for back, y in enumerate(changed) if not torch.equal(net(y)[:, -1], last)]

    assert moved("attn=sliding_window", f"attn.window={window}") == [
        *range(layers * (window - 1) + 1)
    ]
    assert moved("attn=sdpa") == [*range(16)]


def test_a_pattern_of_4k_and_of_128k_tokens_in_bytes():
    assert 4096**2 * 4 == 64 * 2**20  # MiB
    assert pytest.approx(65.5, abs=0.05) == 128_000**2 * 4 / 1e9
    assert pytest.approx(61.0, abs=0.05) == 128_000**2 * 4 / 2**30


def test_generation_needs_the_mask_below_the_last_layer_without_a_cache():
    x = normal(1, 6, 16)
    last = {}
    for may_attend in (causal, bidirectional):
        torch.manual_seed(0)
        below = SelfAttention(AttentionConfig(16, 2, block_size=6), may_attend=may_attend)
        above = SelfAttention(AttentionConfig(16, 2, block_size=6), may_attend=may_attend)
        middle = x + below(x)
        last[may_attend] = middle[:, -1], above(middle)[:, -1]
    one_layer, two_layers = (
        (a - b).abs().max() for a, b in zip(last[causal], last[bidirectional], strict=True)
    )
    assert one_layer < 1e-5 < 0.01 < two_layers
    # With a cache each position is computed when it is the last one. `below` and `above` have no
    # mask here.
    prefixes = [x[:, :n] for n in range(1, 7)]
    cached = torch.cat([(prefix + below(prefix))[:, -1:] for prefix in prefixes], 1)
    assert torch.allclose(above(cached)[:, -1], last[causal][1], atol=1e-5)


def test_biases_of_queries_keys_and_values():
    q, k, v = (normal(2, 5, 8, seed=s) for s in range(3))
    b = normal(8, seed=3)
    output, pattern = attention(q, k, v)
    assert torch.allclose(attention(q, k + b, v)[1], pattern, atol=1e-6)
    assert torch.allclose(attention(q, k, v + b)[0], output + b, atol=1e-5)
    assert not torch.allclose(attention(q + b, k, v)[1], pattern, atol=0.01)


def test_dropout_on_the_weights_leaves_the_sum_of_a_row_on_average_only():
    torch.manual_seed(0)
    pattern = normal(1, 16).softmax(-1).expand(20_000, 16)
    sums = F.dropout(pattern, 0.2).sum(-1)
    assert (sums - 1).abs().mean() > 0.05
    assert sums.mean() == pytest.approx(1, abs=0.01)


def test_fused_projections_give_the_same_queries_keys_and_values():
    x = normal(4, 10, 32)
    weights = [normal(32, 32, seed=s) for s in (1, 2, 3)]
    fused = F.linear(x, torch.cat(weights)).chunk(3, -1)
    for together, weight in zip(fused, weights, strict=True):
        assert torch.allclose(together, F.linear(x, weight), atol=1e-4)


def test_the_cosine_of_input_and_output_is_that_of_unrelated_vectors():
    sizes = []
    x = normal(1, 50, 64)
    for seed in range(20):
        torch.manual_seed(seed)
        layer = torch.nn.MultiheadAttention(64, 4, batch_first=True)
        output, _ = layer(x, x, x)
        sizes.append(F.cosine_similarity(x, output, dim=-1).abs().mean().detach())
    unrelated = F.cosine_similarity(normal(20_000, 64, seed=1), normal(20_000, 64, seed=2), dim=-1)
    assert unrelated.abs().mean() == pytest.approx(0.10, abs=0.005)
    assert torch.stack(sizes).mean() == pytest.approx(float(unrelated.abs().mean()), abs=0.02)


def test_learned_positions_end_at_the_block_size_and_serve_shorter_texts():
    config, _ = composed(["preset=micro", "model.block_size=8"], ROOT / "experiments")
    net = config.model(5).eval()
    assert net.wpe.weight.shape[0] == 8
    ids = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2]])
    assert torch.allclose(net(ids[:, :5]), net(ids)[:, :5], atol=1e-6)
    with pytest.raises(ValueError, match="9 positions do not fit"):
        net(torch.zeros(1, 9, dtype=torch.int64))


def test_a_mask_after_the_softmax_and_a_division_are_a_mask_before_it():
    scores, mask = normal(6, 6), torch.ones(6, 6).tril().bool()
    before = scores.masked_fill(~mask, -math.inf).softmax(-1)
    after = scores.softmax(-1).masked_fill(~mask, 0)
    assert torch.allclose(after / after.sum(-1, keepdim=True), before, atol=1e-6)


@pytest.mark.parametrize(("heads", "redundant"), [(1, True), (4, False)])
def test_the_output_projection_is_redundant_for_one_head_only(heads, redundant):
    """One head: its values may be W_v W_o. Of several, each would write to its own channels."""
    torch.manual_seed(0)
    layer = SelfAttention(AttentionConfig(16, heads, block_size=6, bias=False))
    x = normal(2, 6, 16)
    pattern = layer.pattern(x)  # (B, H, T, T)
    values = (x @ (layer.W_v @ layer.W_o)).unflatten(-1, (heads, -1)).transpose(1, 2)
    without = (pattern @ values).transpose(1, 2).flatten(2)
    assert torch.allclose(without, layer(x), atol=1e-5) == redundant


def test_without_residual_connections_positions_become_alike():
    """Layers of unmasked attention, untrained (Dong et al. 2021)."""
    x = normal(1, 32, 64)
    alike = {}
    for residual in (False, True):
        y = x
        for seed in range(6):
            torch.manual_seed(seed)
            layer = SelfAttention(AttentionConfig(64, 4, block_size=32), may_attend=bidirectional)
            out = layer(F.layer_norm(y, (64,)))
            y = y + out if residual else out
        y = F.normalize(y[0], dim=-1)
        alike[residual] = (y @ y.T).mean().item()
    assert alike[False] > 0.99 and alike[True] < 0.5


def test_how_much_of_the_original_position_is_left_without_residual_connections():
    """UvA tutorial 6: an output at position i "has no relation to its original input"."""
    torch.manual_seed(0)
    x = normal(1, 32, 64)
    layer = SelfAttention(AttentionConfig(64, 4, block_size=32), may_attend=bidirectional)
    with torch.no_grad():
        alone = F.cosine_similarity(layer(x), x, dim=-1).abs().mean()
        kept = F.cosine_similarity(x + layer(x), x, dim=-1).mean()
    assert alone < 0.2 and kept > 0.9


SOURCED = [row for name, rows in statements().items() if name != "unsourced" for row in rows]


@pytest.mark.parametrize("row", SOURCED, ids=lambda row: row.get("claim") or row["says"])
def test_a_source_has_words_an_address_and_a_place(row):
    for source in row["sources"]:
        assert set(source) - {"condition"} == {"quote", "who", "address", "where", "fares"}
        assert all(source.values())
        assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w./~-]*)?(#[\w-]+)?", source["address"])


def test_a_sentence_without_a_source_is_listed_as_one():
    assert not [row for row in statements()["unsourced"] if "sources" in row]


def test_every_test_that_the_page_names_is_there():
    page = (ROOT / "docs" / "textbook.md").read_text(encoding="utf-8")
    named = re.findall(r"pytest (tests/\S+\.py) -k (\w+)", page)
    assert len(named) > 15
    for file, words in named:
        tests = re.findall(r"^def (test_\w+)", (ROOT / file).read_text(), flags=re.MULTILINE)
        assert [test for test in tests if words in test], f"{file} -k {words}"


# What the course must have, and code that is there only if it has it.
SEEDS = {
    "weights of a BERT": ("docs/chapters/4_heads.py", "BertModel("),
    "heatmaps with the text on both axes": ("docs/chapters/6_inside.py", "set_xticks(range(T)"),
    "additive against dot product": ("docs/chapters/7_scores.py", "additive("),
    "additive against dot product, trained": ("experiments/bahdanau/train.py", "additive"),
    "entropy over the width": ("docs/chapters/2_scale.py", 'found["entropy"]'),
    "a computation by hand": ("docs/chapters/1_equation.py", "Fraction("),
    "a comparison of data types": ("docs/chapters/8_precision.py", "torch.bfloat16"),
    "a flipped mask": ("docs/chapters/3_masks.py", "flipped"),
    "identical heads": ("docs/chapters/4_heads.py", "identical_qkv"),
    "memory from 32 to 4,096": ("docs/chapters/5_cost.py", "FURTHER = (32, *LENGTHS, 4096)"),
    "grouped queries": ("docs/chapters/5_cost.py", '("gqa", 2)'),
    "grouped queries, written": ("docs/exercises/sheets/3_heads.py", "grouped"),
    "cross-attention": ("docs/chapters/7_scores.py", "## Cross-attention"),
    "arrays of NumPy in exercise 1": ("docs/exercises/comparison.py", "x.numpy()"),
    "temperature": ("tests/test_textbook.py", "def test_the_scale_is_a_temperature"),
    "seven mistakes of masks": ("docs/chapters/3_masks.py", "## The seven mistakes"),
}


@pytest.mark.parametrize("seed", SEEDS)
def test_the_course_has_it(seed):
    file, code = SEEDS[seed]
    assert code in (ROOT / file).read_text(encoding="utf-8")
