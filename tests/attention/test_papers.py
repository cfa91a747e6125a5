"""The three layers of papers in docs/own.md, each against its formula in NumPy, one query at a
time, and what is measured of them against what happens inside the forward pass."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from attnlab.attention.core import manual
from attnlab.model import GPT
from attnlab.probes.capture import View, attention_layers, costs, scalars, views
from attnlab.probes.measures import MEASURES
from tests.attention.formulas import Array, heads_of, linear_map, projected, sigmoid, softmax
from tests.attention.layers import C, D, H, T, randomized
from tests.attention.test_own import blocks

PAPERS: dict[str, Any] = {}
exec(blocks("own.md")[1], PAPERS)
WEIGHTS = 4 * C * C  # of queries, keys, values and output


class Found(NamedTuple):
    """What a formula gives for a layer and one text."""

    scores: Array  # (H, T, T)
    values: Array  # (H, T, D)
    handed_on: Any = None  # to the next layer


Formula = Callable[..., Found]  # of weights by name, x (T, C), and what the layer before handed on


def path(w: dict[str, Array], x: Array, before: Any, size: float = 2.0) -> Found:
    """Each key goes through the positions up to the query, one after the other."""
    q, k, v = projected(w, x, H)
    rows = x @ w["down.weight"].T @ w["up.weight"].T
    summed = np.zeros_like(rows)
    for t in range(T):
        for m in range(min(3, t + 1)):
            summed[t] += w["taps"][m] * rows[t - m]
    directions = [
        each / np.linalg.norm(each, axis=1, keepdims=True) for each in heads_of(summed, H)
    ]
    b = size * sigmoid(linear_map(w, "size", x))  # (T, H)
    s = np.zeros((H, T, T))
    for h, i, j in np.ndindex(s.shape):
        key = k[h][j]
        for t in range(j + 1, i + 1):
            step = directions[h][t]
            key = key - b[t, h] * step * (step @ key)
        s[h, i, j] = q[h][i] @ key / np.sqrt(D)
    return Found(s, np.array(v))


def multi_token(w: dict[str, Array], x: Array, before: Any, late: int = 0) -> Found:
    """theta_(a, b) weighs query i - a and key j - b. A score is 0 where the key is more than
    `late` positions after that query."""
    q, k, v = projected(w, x, H)
    queries, keys = w["taps"].shape[2:]
    s = np.zeros((H, T, T))
    for h, i, j, a, n in np.ndindex(H, T, T, queries, keys):
        query, key = i - a, j + n - keys // 2
        if query >= 0 and 0 <= key <= min(query + late, T - 1):
            theta = w["taps"][h, 0, queries - 1 - a, n]
            s[h, i, j] += theta * (q[h][query] @ k[h][key]) / np.sqrt(D)
    return Found(s, np.array(v))


def shared_keys(w: dict[str, Array], x: Array, before: Any, stale: float = 1.0) -> Found:
    """The second layer has queries alone; `stale` multiplies the keys that it is handed."""
    if before is None:
        q, k, v = projected(w, x, H)
    else:
        q, (k, v) = heads_of(linear_map(w, "qkv", x), H), before
    s = np.array([q[h] @ k[h].T / np.sqrt(D) for h in range(H)])
    return Found(s, np.array(v), ([stale * key for key in k], v))


class Case(NamedTuple):
    layer: str
    settings: dict[str, Any]
    formula: Formula
    wrong: dict[str, Any]  # a wrong constant of the formula
    flops: list[int]  # of one position with T keys, of each layer
    cached: list[int]  # numbers that generation keeps of T positions


USUAL = 2 * WEIGHTS + 4 * C * T
SMALL = 2 * 2 * C * C + 4 * C * T  # queries and output
CASES = [
    Case(
        "PaTH",
        {"rank": 3},
        path,
        {"size": 1.0},
        2 * [2 * (WEIGHTS + C * 3 + 3 * C + C * H + 3 * C) + 8 * C * T],
        2 * [2 * C * T + 2 * C],
    ),
    Case(
        "MultiToken",
        {"queries": 3, "keys": 5},
        multi_token,
        {"late": 1},
        2 * [USUAL + 2 * H * 3 * 5 * T],
        2 * [2 * C * T + 2 * C],
    ),
    Case("SharedKeys", {}, shared_keys, {"stale": 1.1}, [USUAL, SMALL], [2 * C * T, 0]),
]
EACH = pytest.mark.parametrize("case", CASES, ids=[case.layer for case in CASES])


def model_of(case: Case) -> Any:
    """Two layers with large random weights, in fp64."""
    attn = partial(PAPERS[case.layer], **case.settings, kernel=manual)
    net = GPT(attn, 7, block_size=T, n_layer=2, n_head=H, n_embd=C)
    return randomized(net).double().eval()


class Seen(NamedTuple):
    """What a layer got and gave inside a forward pass."""

    x: Tensor
    y: Tensor


def seen_inside(net: Any, ids: Tensor) -> list[Seen]:
    """What each attention layer gets and gives, by hooks."""
    seen: list[Seen] = []
    hooks = [
        layer.register_forward_hook(lambda _, args, y: seen.append(Seen(args[0], y)))
        for layer in attention_layers(net)
    ]
    with torch.no_grad():
        net(ids)
    for hook in hooks:
        hook.remove()
    return seen


def by_formula(case: Case, net: Any, seen: list[Seen], **wrong: Any) -> list[list[Found]]:
    """What the formula gives for each layer, and for each text."""
    found: list[list[Found]] = []
    handed = [None] * len(seen[0].x)
    for layer, at in zip(attention_layers(net), seen, strict=True):
        w = weights_of(layer)
        texts = zip(at.x.numpy(), handed, strict=True)
        found.append([case.formula(w, x, before, **wrong) for x, before in texts])
        handed = [of_text.handed_on for of_text in found[-1]]
    return found


def weights_of(layer: Any) -> dict[str, Array]:
    return {name: weight.detach().numpy() for name, weight in layer.named_parameters()}


def pattern_of(found: Found) -> Array:
    """Row by row, of the keys up to the query."""
    p = np.zeros_like(found.scores)
    for h, i in np.ndindex(H, T):
        p[h, i, : i + 1] = softmax(found.scores[h, i, : i + 1])
    return p


def output_of(found: Found, layer: Any) -> Array:
    mixed = np.hstack(list(pattern_of(found) @ found.values))
    return linear_map(weights_of(layer), "proj", mixed)


def stacked(arrays: list[Array]) -> Tensor:
    return torch.tensor(np.array(arrays)).float()


@EACH
def test_each_measure_is_that_of_the_formula_inside_the_forward_pass(case: Case) -> None:
    net = model_of(case)
    ids = torch.randint(7, (2, T), generator=torch.Generator().manual_seed(0))
    seen = seen_inside(net, ids)
    formula = by_formula(case, net, seen)
    planted = by_formula(case, net, seen, **case.wrong)
    past = torch.ones(T, T).tril().bool()
    expected = []
    for n, view in enumerate(views(net, ids)):
        outputs = np.array([output_of(found, view.attn) for found in formula[n]])
        np.testing.assert_allclose(seen[n].y, outputs, rtol=1e-9, atol=1e-9)
        wrong = np.array([output_of(found, view.attn) for found in planted[n]])
        # The first layer of `SharedKeys` reads its own keys.
        unharmed = case.layer == "SharedKeys" and n == 0
        assert (np.abs(outputs - wrong).max() > 1e-3 * np.abs(outputs).max()) != unharmed
        assert view.scores is not None and torch.equal(view.mask, past)
        scores = stacked([found.scores for found in formula[n]])
        scores = torch.where(past, scores, view.scores)  # what is blocked is not measured
        pattern = stacked([pattern_of(found) for found in formula[n]])
        values = stacked([found.values for found in formula[n]])
        torch.testing.assert_close(view.scores, scores, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(view.pattern, pattern, rtol=1e-4, atol=1e-6)
        expected.append(View(n, view.attn, pattern, past, scores, values, ids))
    measured, by_hand = scalars(views(net, ids)), scalars(expected)
    assert measured == pytest.approx(by_hand, rel=1e-3, abs=1e-5)
    assert {f"attn/{measure.name}" for measure in MEASURES} <= measured.keys()


@EACH
def test_costs_are_those_of_the_algorithm(case: Case) -> None:
    net = model_of(case)
    layers: list[Any] = attention_layers(net)
    assert [layer.flops(T) for layer in layers] == case.flops
    assert [layer.state(T) for layer in layers] == case.cached
    told = costs(net)
    assert (told["flops"], told["cached"]) == (sum(case.flops), sum(case.cached))
    memo: dict[str, Any] = {"ids": torch.zeros(1, T, dtype=torch.long)}
    given = [memo] if case.layer == "SharedKeys" else []
    for layer, flops in zip(layers, case.flops, strict=True):
        with FlopCounterMode(display=False) as counter:
            layer(torch.randn(1, T, C, dtype=torch.float64), *given)
        counted = counter.get_total_flops()
        if case.layer == "PaTH":
            # The taps are no product of matrices. Keys up to the query alone are moved and read,
            # its own is not moved, and zeros are averaged, too.
            once = flops - 2 * 3 * C - 8 * C * T
            keys = T * (T + 1) // 2
            moved = 4 * C * (keys - T)
            assert counted == T * once + moved + 2 * C * keys + 2 * C * T * T
        else:
            assert counted == T * flops
