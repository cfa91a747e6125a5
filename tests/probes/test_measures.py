"""Every measure against a slow formula in NumPy, and each formula against one planted error."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from attnlab.attention.core import bidirectional, build_mask, causal, flipped
from attnlab.probes import measures
from attnlab.probes.measures import Measure

Array = NDArray[np.float64]
B, H, T, D = 2, 3, 13, 4
MASKS = {f.__name__: build_mask(f, T) for f in (causal, bidirectional, flipped)}
MASKS["window"] = build_mask(causal, T, window=3)
INPUTS = torch.randn(B, H, T, T, generator=torch.Generator().manual_seed(0)).double()


def pattern_of(mask: Tensor, size: float = 3.0) -> Tensor:
    return (size * INPUTS).masked_fill(~mask, -torch.inf).softmax(-1)


# ---- measures of a head: the mean over texts and queries of a number of each row of weights

Row = Callable[[Array, int, int], float]  # weights p (T,), position of the query, visible keys


def nats(p: Array) -> float:
    return -sum(float(x) * math.log(x) for x in p if x > 0)


ROWS: dict[str, tuple[Row, Row]] = {  # name -> formula, and the formula with an error
    "entropy": (lambda p, t, n: nats(p) / math.log(n), lambda p, t, n: nats(p) / math.log(T)),
    "entropy_nats": (lambda p, t, n: nats(p), lambda p, t, n: nats(p) / math.log(2)),
    "effective_keys": (lambda p, t, n: math.exp(nats(p)), lambda p, t, n: 1 / float(p @ p)),
    "largest_weight": (lambda p, t, n: max(p), lambda p, t, n: p[t]),
    "saturated_rows": (lambda p, t, n: max(p) > 0.99, lambda p, t, n: max(p) > 0.9),
    "jacobian_trace": (lambda p, t, n: sum(p * (1 - p)), lambda p, t, n: 1 - max(p) ** 2),
    "self_mass": (lambda p, t, n: p[t], lambda p, t, n: p[t - 1]),
    "first_mass": (lambda p, t, n: p[0], lambda p, t, n: p[min(1, t)]),
    "distance_back": (
        lambda p, t, n: sum(p[k] * (t - k) for k in range(T)),
        lambda p, t, n: sum(p[k] * abs(t - k - 1) for k in range(T)),
    ),
}


def counted(mask: Tensor) -> list[int]:
    """Queries with at least 8 keys, or as many as any has."""
    keys = [int(row.sum()) for row in mask]
    return [t for t in range(T) if keys[t] >= max(2, min(8, *[max(keys)] * 2))]


def over_rows(row: Row, pattern: Tensor, mask: Tensor, rows: list[int]) -> list[float]:
    found = []
    for h in range(H):
        each = [(pattern[b, h, t].numpy(), t, int(mask[t].sum())) for b in range(B) for t in rows]
        found.append(sum(float(row(*x)) for x in each) / len(each))
    return found


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ROWS)
def test_a_measure_of_a_head(name: str, kind: str) -> None:
    mask, (formula, wrong) = MASKS[kind], ROWS[name]
    pattern = pattern_of(mask, 9.0 if name == "saturated_rows" else 3.0)
    ours, rows = getattr(measures, name)(pattern, mask).tolist(), counted(mask)
    assert ours == pytest.approx(over_rows(formula, pattern, mask, rows), abs=1e-7)
    if kind == "causal":  # planted errors: of the formula, and of the choice of the queries
        assert ours != pytest.approx(over_rows(wrong, pattern, mask, rows), abs=1e-3)
        every = over_rows(formula, pattern, mask, list(range(1, T)))
        assert ours != pytest.approx(every, abs=1e-3)


# ---- measures of a whole pattern, of scores, of two heads, and of outputs

CAUSAL, SEEING = MASKS["causal"], MASKS["bidirectional"]
LEAKING, PAST = pattern_of(SEEING), pattern_of(CAUSAL)
SIGNED = INPUTS / 5
IDS = torch.tensor([[0, 1, 2, 0, 1, 2, 0, 3, 1, 2, 2, 0, 1], [4] * T])
OUTPUTS = torch.randn(B, H, T, D, generator=torch.Generator().manual_seed(1)).double()


def future_mass(pattern: Tensor, first: int = 1) -> Any:
    """The absolute weight on later positions, of queries that have some."""
    return np.abs(np.triu(pattern, first)).sum(-1)[..., :-1].mean((0, 2))


def previous_mass(pattern: Tensor, mask: Tensor, back: int = 1) -> list[float]:
    rows = [t for t in counted(mask) if t >= 1]
    return over_rows(lambda p, t, n: p[t - back], pattern, mask, rows)


def induction_mass(pattern: Tensor, ids: Tensor, off: int = 1) -> Any:
    """Weight on keys that follow an earlier occurrence of the query's symbol, where there is one
    (Olsson et al. 2022)."""
    found = []
    for b, t in np.ndindex(B, T):
        keys = [min(j + off, t) for j in range(t) if ids[b, j] == ids[b, t]]
        if keys:
            found.append(sum(pattern[b, :, t, j].numpy() for j in keys))
    return np.mean(found, axis=0)


def score_std(scores: Tensor, mask: Tensor, less: int = 1) -> Any:
    rows = [(b, t) for b in range(B) for t in counted(mask)]
    variances = [scores[b, :, t, mask[t]].numpy().var(1, ddof=less) for b, t in rows]
    return np.sqrt(np.mean(variances, axis=0))


def max_score(scores: Tensor, mask: Tensor, unseen: bool = False) -> list[float]:
    """The largest score of a head among those of visible keys."""
    found = []
    for h in range(H):
        found.append(
            max(
                float(scores[b, h, t, j])
                for b, t, j in np.ndindex(B, T, T)
                if mask[t, j] or unseen
            )
        )
    return found


def max_logit(logits: Tensor, least: float = 0.0) -> float:
    """The largest absolute number."""
    return max(abs(x) for x in logits.flatten().tolist()) + least


def pattern_similarity(pattern: Tensor, mask: Tensor, even: float = 1.0) -> Any:
    """Cosines between heads, without the weights that a blind head would give."""
    rows = counted(mask)
    blind = even * (mask / mask.sum(-1, keepdim=True)).double().numpy()
    flat = [(pattern[:, h].numpy() - blind)[:, rows].ravel() for h in range(H)]
    return [[a @ b / np.linalg.norm(a) / np.linalg.norm(b) for b in flat] for a in flat]


def js_divergence(pattern: Tensor, mask: Tensor, most: float = 1.0) -> Any:
    """Entropy of the mean of two heads' weights minus their mean entropy, over the rows."""
    p = pattern.numpy()[:, :, counted(mask)]
    one, both = (np.apply_along_axis(nats, -1, x) for x in (p, (p[:, :, None] + p[:, None]) / 2))
    return (both - most * (one[:, :, None] + one[:, None]) / 2).mean((0, -1))


def effective_heads(outputs: Tensor, center: float = 1.0) -> float:
    """(sum l)^2 / sum l^2 of the eigenvalues of the heads' inner products."""
    x = outputs.numpy()
    flat = (x - center * x.mean((0, 2), keepdims=True)).transpose(1, 0, 2, 3).reshape(H, -1)
    eigenvalues = np.linalg.eigvalsh(flat @ flat.T)
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


def cross_entropies(logits: Tensor, targets: Tensor, unit: float = 1.0) -> Any:
    z, y = logits.numpy(), targets.numpy()
    right = np.take_along_axis(z, np.maximum(y, 0)[..., None], -1)[..., 0]
    return np.where(y == -100, 0.0, np.log(np.exp(z).sum(-1)) - right) / unit


def sums_are_one(pattern: Tensor, one: float = 1.0) -> Any:
    return np.abs(pattern.numpy().sum(-1) - one).max((0, 2))


def with_others(matrix: Tensor, itself: bool = False) -> Any:
    kept = ~np.eye(H, dtype=bool) | itself
    return (matrix.numpy() * kept).sum(1) / kept.sum(1)


def largest_difference(heads: Tensor, dim: int, power: int = 1) -> Any:
    x = heads.numpy()
    return max((np.abs(x[:, a] - x[:, b]) ** power).max() for a in range(H) for b in range(a))


def head_difference(pattern: Tensor, power: int = 1) -> Any:
    return largest_difference(pattern, 1, power)


def head_similarity(pattern: Tensor, mask: Tensor, itself: bool = False) -> Any:
    return with_others(torch.tensor(pattern_similarity(pattern, mask)), itself)


TARGETS = IDS.where(IDS != 1, -100)
LOGITS = torch.randn(B, T, 5, generator=torch.Generator().manual_seed(2)).double()
WHOLE: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Any]] = {
    # name -> formula, its arguments, and the value of its last argument that is an error
    "future_mass": (future_mass, (LEAKING,), 0),
    "future_mass of signed weights": (future_mass, (SIGNED,), 2),
    "previous_mass": (previous_mass, (PAST, CAUSAL), 2),
    "induction_mass": (induction_mass, (PAST, IDS), 0),
    "row_sum_error": (sums_are_one, (SIGNED,), 0.0),
    "score_std": (score_std, (INPUTS, CAUSAL), 0),
    "max_score": (max_score, (INPUTS, CAUSAL), True),
    "max_logit": (max_logit, (LOGITS,), 0.1),
    "pattern_similarity": (pattern_similarity, (PAST, CAUSAL), 0.0),
    "js_divergence": (js_divergence, (PAST, CAUSAL), 0.5),
    "effective_heads": (effective_heads, (OUTPUTS + 2,), 0.0),
    "cross_entropies": (cross_entropies, (LOGITS, TARGETS), math.log(2)),
    "with_others": (with_others, (INPUTS[0, :, :H, 0],), True),
    "largest_difference": (largest_difference, (PAST, 1), 2),
    "head_difference": (head_difference, (PAST,), 2),
    "head_similarity": (head_similarity, (PAST, CAUSAL), True),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_measure_of_whole_tensors(name: str) -> None:
    formula, given, error = WHOLE[name]
    ours = getattr(measures, name.split(" of ")[0])(*given)
    size = 1e-6 if name == "cross_entropies" else 1e-10  # in fp32
    np.testing.assert_allclose(ours, formula(*given), rtol=size, atol=size)
    assert np.abs(ours.numpy() - formula(*given, error)).max() > 1e-3


@pytest.mark.parametrize("measure", measures.MEASURES, ids=lambda measure: measure.name)
def test_every_measure_of_runs_has_a_formula_and_reads_what_it_says(measure: Measure) -> None:
    assert measure.name in ROWS | WHOLE, (
        f"add {measure.name} to ROWS or WHOLE of {__file__}: its formula in NumPy, and one error"
    )
    assert tuple(inspect.signature(measure.function).parameters) == measure.reads


VIEW = {"pattern": PAST, "mask": CAUSAL, "scores": INPUTS, "outputs": OUTPUTS, "ids": IDS}


@pytest.mark.parametrize("measure", measures.MEASURES, ids=lambda measure: measure.name)
def test_a_measure_has_the_shape_and_the_values_of_its_row(measure: Measure) -> None:
    def value(**changed: Tensor) -> Tensor:
        return measure.function(*((VIEW | changed)[name] for name in measure.reads))

    assert value().shape == ((H,) if measure.of == "head" else ())
    if measure.even:
        expected = {"0": 0, "1": 1, "n": T, "1/n": 1 / T, "1 - 1/n": 1 - 1 / T}[measure.even]
        even = torch.full_like(PAST, 1 / T)
        assert float(value(pattern=even, mask=SEEING).mean()) == pytest.approx(expected)
    if measure.one_key:
        one = F.one_hot(IDS[:1], T).double().expand(B, H, -1, -1)
        assert float(value(pattern=one).mean()) == pytest.approx(float(measure.one_key))


# ---- limits


def test_heads_that_are_equal_or_even() -> None:
    same = PAST[:, :1].expand(-1, H, -1, -1)
    assert measures.largest_difference(same, dim=1) == 0
    assert measures.pattern_similarity(same, CAUSAL).numpy() == pytest.approx(np.ones((H, H)))
    scaled = OUTPUTS[:, :1] * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    assert float(measures.effective_heads(scaled)) == pytest.approx(1)
    even = CAUSAL / CAUSAL.sum(-1, keepdim=True)
    heads = torch.stack([even * (1 + 1e-7 * INPUTS[0, 0].float()), even, PAST[0, 0].float()])
    found = measures.pattern_similarity(heads[None], CAUSAL)
    assert found.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, pytest.approx(1)]]
    assert measures.with_others(torch.ones(1, 1)).isnan().all()


@pytest.mark.parametrize("name", [*ROWS, "previous_mass", "future_mass", "row_sum_error"])
def test_a_nan_is_never_averaged_away(name: str) -> None:
    pattern = PAST.clone()
    pattern[0, 1, 1] = torch.nan  # all keys of query 1, in a row that does not count
    given = (pattern,) if name in {"future_mass", "row_sum_error"} else (pattern, CAUSAL)
    assert getattr(measures, name)(*given).isnan().tolist() == [False, True, False]
