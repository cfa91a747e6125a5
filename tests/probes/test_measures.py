"""Every measure, compared with known answers and a slow loop."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnlab.attention.masks import bidirectional, build_mask, causal, flipped
from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.variant import AttentionConfig
from attnlab.probes import measures as m
from attnlab.probes.measures import random_energy


def causal_mask(T: int) -> Tensor:
    return build_mask(causal, T)


def even(mask: Tensor, H: int = 2) -> Tensor:
    return (mask / mask.sum(-1, keepdim=True)).expand(1, H, *mask.shape)


def one_hot(back: int, T: int) -> Tensor:
    """Every query attends to the key `back` positions back, or to the first key."""
    keys = (torch.arange(T) - back).clamp(min=0)
    return torch.eye(T)[keys].expand(1, 1, T, T)


def random_pattern(seed: int, B: int = 2, H: int = 3, T: int = 11) -> Tensor:
    scores = 3 * torch.randn(B, H, T, T, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~causal_mask(T), -torch.inf).softmax(-1)


def choosing(mask: Tensor) -> list[int]:
    keys = [int(row.sum()) for row in mask]
    least = max(2, min(8, max(keys)))
    return [i for i, n in enumerate(keys) if n >= least]


# ---- the rows that count


def test_rows_with_few_keys_do_not_count() -> None:
    assert m.rows_with_choice(causal_mask(10)).tolist() == [False] * 7 + [True] * 3
    assert m.rows_with_choice(causal_mask(3)).tolist() == [False, False, True]
    assert m.rows_with_choice(build_mask(flipped, 9)).tolist() == [True] * 2 + [False] * 7
    assert m.rows_with_choice(build_mask(bidirectional, 4)).all()
    assert not m.rows_with_choice(causal_mask(1)).any()


# ---- known answers


def test_one_key() -> None:
    mask, pattern = causal_mask(12), one_hot(2, 12)
    assert m.entropy(pattern, mask).tolist() == [0]
    assert m.entropy_nats(pattern, mask).tolist() == [0]
    assert m.effective_keys(pattern, mask).tolist() == [1]
    assert m.largest_weight(pattern, mask).tolist() == [1]
    assert m.saturated_rows(pattern, mask).tolist() == [1]
    assert m.jacobian_trace(pattern, mask).tolist() == [0]
    assert m.distance_back(pattern, mask).tolist() == [2]


def test_equal_weights_on_all_keys() -> None:
    mask = causal_mask(12)
    pattern = even(mask)
    assert m.entropy(pattern, mask).tolist() == pytest.approx([1, 1])
    assert m.effective_keys(pattern, mask).tolist() == pytest.approx([10, 10])  # of rows 8 to 12
    assert m.saturated_rows(pattern, mask).tolist() == [0, 0]
    assert m.jacobian_trace(pattern, mask)[0] == pytest.approx(
        sum(1 - 1 / n for n in range(8, 13)) / 5
    )


@pytest.mark.parametrize(
    ("measure", "back"), [(m.self_mass, 0), (m.previous_mass, 1), (m.first_mass, 99)]
)
def test_mass_on_positions_and_mean_distance(
    measure: Callable[[Tensor, Tensor], Tensor], back: int
) -> None:
    mask = causal_mask(12)
    assert measure(one_hot(back, 12), mask).tolist() == [1]
    assert measure(one_hot(5, 12), mask).tolist() == [0]


def test_future_mass() -> None:
    T = 9
    assert m.future_mass(even(causal_mask(T))).tolist() == [0, 0]
    assert m.future_mass(one_hot(0, T).roll(1, -1)).tolist() == [1]  # each looks one ahead
    assert m.future_mass(even(build_mask(flipped, 2))).tolist() == [0.5, 0.5]
    assert m.distance_back(one_hot(0, T).roll(1, -1), build_mask(flipped, T)).tolist() == [-1]


def test_row_sums() -> None:
    pattern = even(causal_mask(5)).clone()
    assert m.row_sum_error(pattern).max() < 1e-6
    pattern[0, 1, 3] *= 0.5
    assert m.row_sum_error(pattern).tolist() == pytest.approx([0, 0.5], abs=1e-6)


def test_scores() -> None:
    mask = causal_mask(8)
    scores = torch.full((1, 1, 8, 8), 1e6).masked_fill(mask, 2.0)  # what is blocked is not seen
    assert m.score_std(scores, mask).tolist() == [0]
    assert m.largest_score(scores, mask).tolist() == [2]
    scores[0, 0, 7] = torch.tensor([1.0, -1.0] * 4)
    assert m.score_std(scores, mask).item() == pytest.approx(math.sqrt(8 / 7))
    assert m.largest_score(-5 * scores, mask).tolist() == [10]


def test_equal_heads() -> None:
    mask = causal_mask(10)
    pattern = random_pattern(0, H=1, T=10).expand(-1, 3, -1, -1)
    assert torch.allclose(m.pattern_similarity(pattern, mask), torch.ones(3, 3))
    assert (m.js_divergence(pattern, mask) == 0).all()
    assert m.largest_difference(pattern, dim=1) == 0
    assert m.with_others(m.pattern_similarity(pattern, mask)).tolist() == pytest.approx([1] * 3)
    assert m.effective_heads(torch.randn(2, 1, 9, 4).expand(-1, 3, -1, -1)) == pytest.approx(1)


def test_heads_that_differ() -> None:
    mask = causal_mask(10)
    apart = torch.cat([one_hot(0, 10), one_hot(3, 10)], dim=1)
    assert m.js_divergence(apart, mask)[0, 1] == pytest.approx(math.log(2))
    assert m.pattern_similarity(apart, mask)[0, 1] < 0
    assert m.largest_difference(apart, dim=1) == 1
    outputs = torch.zeros(1, 4, 64, 4)
    for head in range(4):  # orthogonal, centerd, of equal size
        outputs[0, head, :, 0] = torch.sin(2 * math.pi * (head + 1) * torch.arange(64) / 64)
    assert m.effective_heads(outputs) == pytest.approx(4)
    assert m.effective_heads(outputs[:, :1]) == pytest.approx(1)


def test_uniform_heads_are_similar_only_to_each_other() -> None:
    mask = causal_mask(10)
    heads = torch.cat([even(mask), one_hot(1, 10)], dim=1)
    heads[0, 1] *= 1 + 1e-6 * torch.randn(10, 10, generator=torch.Generator().manual_seed(0))
    similarity = m.pattern_similarity(heads, mask)
    assert similarity[0].tolist() == [1, 1, 0]
    assert similarity[1].tolist() == [1, 1, 0]  # even up to rounding


def test_heads_without_a_row_that_counts_are_not_compared() -> None:
    """Each query sees itself only, as with a window of 1."""
    mask = torch.eye(4, dtype=torch.bool)
    pattern = mask.float().expand(1, 2, 4, 4)
    assert m.pattern_similarity(pattern, mask).isnan().all()
    assert m.js_divergence(pattern, mask)[0, 1].isnan()
    assert m.entropy(pattern, mask).isnan().all()


def test_a_single_head_has_no_others() -> None:
    assert m.with_others(torch.ones(1, 1)).isnan().all()


def test_forms_do_not_depend_on_the_basis_inside_a_head() -> None:
    H, D, C = 2, 3, 6
    stream = torch.Generator().manual_seed(0)
    qkv, proj = torch.randn(3 * C, C, generator=stream), torch.randn(C, C, generator=stream)
    turn = torch.randn(D, D, generator=stream) + 3 * torch.eye(D)
    q, k, v = (w.clone() for w in qkv.unflatten(0, (3, H, D)))
    out = proj.unflatten(1, (H, D)).clone()
    q[1], k[1] = turn @ q[0], torch.linalg.inv(turn).mT @ k[0]
    v[1], out[:, 1] = turn @ v[0], out[:, 0] @ torch.linalg.inv(turn)
    turned = torch.stack([q, k, v]).flatten(0, 2)
    assert torch.allclose(m.qk_similarity(turned, H), torch.ones(2, 2), atol=1e-5)
    assert torch.allclose(m.ov_similarity(turned, out.flatten(1), H), torch.ones(2, 2), atol=1e-5)
    assert m.qk_similarity(qkv, H)[0, 1].abs() < 0.9


def test_updates_and_losses() -> None:
    assert m.update_ratio(torch.tensor([3.0, 4.0]), torch.tensor([3.0, 4.5])) == pytest.approx(0.1)
    logits = torch.zeros(2, 3, 5)
    logits[:, 2, 1] = 100.0
    losses = m.cross_entropies(logits, torch.ones(2, 3, dtype=torch.long)).mean(0)
    assert losses.tolist() == pytest.approx([math.log(5), math.log(5), 0])


# ---- slow loops


def loop_entropy(pattern: Tensor, mask: Tensor, head: int) -> float:
    values = []
    for batch in range(len(pattern)):
        for i in choosing(mask):
            row = pattern[batch, head, i].tolist()
            nats = -sum(p * math.log(p) for p in row if p > 0)
            values.append(nats / math.log(int(mask[i].sum())))
    return sum(values) / len(values)


def loop_future(pattern: Tensor, mask: Tensor, head: int) -> float:
    B, _, T, _ = pattern.shape
    mass = [
        float(pattern[b, head, i, j]) for b in range(B) for i in range(T) for j in range(i + 1, T)
    ]
    return sum(mass) / (B * (T - 1))


def loop_previous(pattern: Tensor, mask: Tensor, head: int) -> float:
    values = [float(p[head, i, i - 1]) for p in pattern for i in choosing(mask) if i > 0]
    return sum(values) / len(values)


def loop_distance(pattern: Tensor, mask: Tensor, head: int) -> float:
    T = pattern.shape[-1]
    values = [
        sum(float(p[head, i, j]) * (i - j) for j in range(T))
        for p in pattern
        for i in choosing(mask)
    ]
    return sum(values) / len(values)


def loop_trace(pattern: Tensor, mask: Tensor, head: int) -> float:
    values = []
    for p in pattern:
        for i in choosing(mask):
            jacobian = p[head, i].diag() - torch.outer(p[head, i], p[head, i])
            values.append(float(jacobian.trace()))
    return sum(values) / len(values)


@pytest.mark.parametrize("predicate", [causal, flipped, bidirectional])
@pytest.mark.parametrize(
    ("measure", "loop"),
    [
        (m.entropy, loop_entropy),
        (lambda pattern, mask: m.future_mass(pattern), loop_future),
        (m.previous_mass, loop_previous),
        (m.distance_back, loop_distance),
        (m.jacobian_trace, loop_trace),
    ],
)
def test_measure_equals_its_loop(
    measure: Callable[[Tensor, Tensor], Tensor],
    loop: Callable[[Tensor, Tensor, int], float],
    predicate: Callable[[Tensor, Tensor], Tensor],
) -> None:
    T = 11
    mask = build_mask(predicate, T)
    scores = 2 * torch.randn(2, 3, T, T, generator=torch.Generator().manual_seed(1))
    pattern = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    expected = [loop(pattern, mask, head) for head in range(3)]
    assert measure(pattern, mask).tolist() == pytest.approx(expected, abs=1e-6)


def test_score_std_equals_its_loop() -> None:
    mask = causal_mask(11)
    scores = torch.randn(2, 2, 11, 11, generator=torch.Generator().manual_seed(2))
    for head in range(2):
        variances = [
            torch.var(batch[head, i, : i + 1]).item() for batch in scores for i in choosing(mask)
        ]
        expected = math.sqrt(sum(variances) / len(variances))
        assert m.score_std(scores, mask)[head].item() == pytest.approx(expected, rel=1e-5)


def test_js_divergence_equals_its_loop() -> None:
    mask, pattern = causal_mask(11), random_pattern(3)
    values = []
    for batch in pattern:
        for i in choosing(mask):
            p, q = batch[0, i, : i + 1], batch[2, i, : i + 1]
            middle = (p + q) / 2
            values.append(float((p * (p / middle).log() + q * (q / middle).log()).sum() / 2))
    found = m.js_divergence(pattern, mask)[0, 2].item()
    assert found == pytest.approx(sum(values) / len(values), rel=1e-4)


def test_induction_mass_equals_its_loop() -> None:
    """Keys that follow an earlier occurrence of the query's symbol, the query itself included."""
    pattern = random_pattern(5)
    ids = torch.randint(4, (2, 11), generator=torch.Generator().manual_seed(6))
    ids[0, 3] = ids[0, 4]  # the query at 4 follows an occurrence of its own symbol
    for head in range(3):
        values = []
        for row, weights in zip(ids.tolist(), pattern[:, head], strict=True):
            for i in range(11):
                keys = [j for j in range(1, i + 1) if row[j - 1] == row[i]]
                values += [float(weights[i, keys].sum())] if keys else []
        expected = sum(values) / len(values)
        assert m.induction_mass(pattern, ids)[head].item() == pytest.approx(expected, abs=1e-6)
    assert m.induction_mass(pattern[:1], torch.arange(11)[None]).isnan().all()


def test_effective_heads_is_the_participation_ratio_of_the_eigenvalues() -> None:
    outputs = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(7)) + 2
    rows = outputs.permute(1, 0, 2, 3).reshape(3, 10, 4)
    flat = (rows - rows.mean(1, keepdim=True)).flatten(1)  # the mean over batch and positions
    values = torch.linalg.eigvalsh(flat @ flat.mT)
    expected = values.sum().square() / values.square().sum()
    assert m.effective_heads(outputs).item() == pytest.approx(expected.item(), rel=1e-5)


def test_similarities_equal_their_loops() -> None:
    mask, pattern = causal_mask(10), random_pattern(4, T=10)
    chosen = choosing(mask)
    flat = [
        torch.cat([(b[h, i] - mask[i] / mask[i].sum()) for b in pattern for i in chosen])
        for h in range(3)
    ]
    expected = torch.cosine_similarity(flat[0], flat[1], dim=0).item()
    assert m.pattern_similarity(pattern, mask)[0, 1].item() == pytest.approx(expected, rel=1e-5)

    H, D, C = 3, 2, 6
    qkv = torch.randn(3 * C, C, generator=torch.Generator().manual_seed(5))
    proj = torch.randn(C, C, generator=torch.Generator().manual_seed(6))
    q, k, v = qkv.unflatten(0, (3, H, D))
    forms = [(q[h].mT @ k[h]).flatten() for h in range(H)]
    expected = torch.cosine_similarity(forms[0], forms[2], dim=0).item()
    assert m.qk_similarity(qkv, H)[0, 2].item() == pytest.approx(expected, abs=1e-6)
    forms = [(proj[:, h * D : (h + 1) * D] @ v[h]).flatten() for h in range(H)]
    expected = torch.cosine_similarity(forms[1], forms[2], dim=0).item()
    assert m.ov_similarity(qkv, proj, H)[1, 2].item() == pytest.approx(expected, abs=1e-6)


# ---- properties

patterns = st.builds(
    random_pattern,
    st.integers(0, 2**31),
    B=st.integers(1, 3),
    H=st.integers(1, 4),
    T=st.integers(2, 13),
)


@settings(max_examples=40)
@given(patterns)
def test_ranges(pattern: Tensor) -> None:
    H, T = pattern.shape[1:3]
    mask, eps = causal_mask(T), 1e-5
    for measure in (m.entropy, m.largest_weight, m.jacobian_trace, m.self_mass, m.previous_mass):
        value = measure(pattern, mask)
        assert value.shape == (H,) and (value >= -eps).all() and (value <= 1 + eps).all()
    assert (m.effective_keys(pattern, mask) <= T + eps).all()
    assert (m.future_mass(pattern) == 0).all()
    assert (m.distance_back(pattern, mask) >= -eps).all()
    divergence = m.js_divergence(pattern, mask)
    assert (divergence >= -eps).all() and (divergence <= math.log(2) + eps).all()
    assert torch.equal(divergence, divergence.mT)
    assert 1 - eps <= m.effective_heads(pattern) <= H + eps


@settings(max_examples=20)
@given(patterns, st.integers(0, 2**31))
def test_heads_and_batch_may_be_shuffled(pattern: Tensor, seed: int) -> None:
    mask = causal_mask(pattern.shape[-1])
    stream = torch.Generator().manual_seed(seed)
    heads = torch.randperm(pattern.shape[1], generator=stream)
    rows = torch.randperm(len(pattern), generator=stream)
    shuffled = pattern[rows][:, heads]
    for measure in (m.entropy, m.distance_back, m.largest_weight):
        assert torch.allclose(measure(shuffled, mask), measure(pattern, mask)[heads], atol=1e-5)


@pytest.mark.parametrize("row", [0, 11])
def test_nan_stays_nan(row: int) -> None:
    mask, pattern = causal_mask(12), random_pattern(7, T=12)
    pattern[0, 1, row] = torch.nan
    for measure in (
        m.entropy,
        m.entropy_nats,
        m.effective_keys,
        m.largest_weight,
        m.saturated_rows,
        m.jacobian_trace,
        m.self_mass,
        m.first_mass,
        m.distance_back,
    ):
        assert measure(pattern, mask).isnan().tolist() == [False, True, False], measure.__name__
    assert m.future_mass(pattern).isnan().tolist() == [False, True, False]
    assert m.row_sum_error(pattern).isnan().tolist() == [False, True, False]
    assert m.largest_difference(pattern, dim=1).isnan()


# ---- the random energy model, against its Monte Carlo and a fresh layer


@pytest.mark.parametrize("std", [0.15, 1.23, 3.33, 8.0, 16.0, 40.0])
def test_random_energy_equals_monte_carlo(std: float) -> None:
    n = 64
    scores = std * torch.randn(
        20000, n, dtype=torch.float64, generator=torch.Generator().manual_seed(8)
    )
    p = scores.softmax(-1)
    entropy, trace = random_energy(std, torch.tensor([n]))
    assert entropy.item() == pytest.approx(torch.special.entr(p).sum(-1).mean().item(), rel=0.05)
    assert trace.item() == pytest.approx((1 - p.square().sum(-1)).mean().item(), rel=0.05)


def test_random_energy_at_its_ends() -> None:
    n = torch.tensor([1, 2, 7, 2])
    entropy, trace = random_energy(0.0, n)
    assert entropy.tolist() == pytest.approx([0, math.log(2), math.log(7), math.log(2)])
    assert trace.tolist() == pytest.approx([0, 1 / 2, 6 / 7, 1 / 2])
    one_key, _ = random_energy(3.0, torch.tensor([1]))
    assert one_key.item() == pytest.approx(0, abs=1e-6)
    assert random_energy(math.nan, n)[0].isnan().all()


@pytest.mark.parametrize("D", [16, 32, 64, 128, 384])
def test_a_fresh_unscaled_layer_is_a_random_energy_model(D: int) -> None:
    """With weights N(0, 0.02^2) on inputs of unit variance: std of scores sqrt(D) * 0.02^2 * C."""
    C, T = 384, 256
    stream = torch.Generator().manual_seed(9)
    layer = SelfAttention(AttentionConfig(C, C // D, block_size=T, bias=False, scale=1.0))
    with torch.no_grad():
        layer.qkv.weight.normal_(0, 0.02, generator=stream)
        x = torch.nn.functional.layer_norm(torch.randn(4, T, C, generator=stream), (C,))
        std = m.score_std(layer.scores(x), layer.mask(x)).square().mean().sqrt().item()
        entropy = m.entropy_nats(layer.pattern(x), layer.mask(x)).mean().item()
    predicted = math.sqrt(D) * 0.02**2 * C
    assert std == pytest.approx(predicted, rel=0.10)
    table, _ = random_energy(predicted, torch.arange(1, T + 1))
    assert entropy == pytest.approx(table[7:].mean().item(), rel=0.05)
