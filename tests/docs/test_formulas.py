"""Formulas of docs/variants.md, computed as they are written there."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.attention import AttentionConfig, ScalableSoftmax, SelfAttention, weights
from attnlab.attention.core import Kernel, alibi, build_mask, causal, log_length
from tests.conftest import ROOT

T, H = 7, 4
LEARNED = torch.tensor([0.5, 1.0, -2.0, 3.0])  # of each head
PAGE = (ROOT / "docs/variants.md").read_text(encoding="utf-8")
# How a formula of the page is written in NumPy. `s` and `n` are arrays, i and j positions, h a
# head from 1, and a a number of each head.
SPELLED = (
    (r"Σ exp\(s\)", "total(exp(s))"),
    (r"\bln n", "log(n)"),
    (r"\bln\(", "log("),
    (r"2\^\(-8h/H\)", "2.0 ** (-8 * h / H)"),
    (r"\) \(", ") * ("),
    (r"\bs a\b", "s * a"),
    (r"\b([as\d]) (?=log|tanh)", r"\1 * "),
)


def formula_of(variant: str) -> str:
    """The fourth cell of the row of a variant, up to a comma."""
    (cell,) = re.findall(rf"^\| [^|]*`{variant}`[^|]*\|(?:[^|]*\|){{2}} ([^|,]*)", PAGE, re.M)
    return cell.strip()


def as_written(variant: str, s: np.ndarray) -> np.ndarray:
    """A formula of the page, for visible scores (H, T, T); 0 where a key is blocked."""
    code = formula_of(variant)
    for written, spelled in SPELLED:
        code = re.sub(written, spelled, code)
    i, j = np.arange(T)[:, None], np.arange(T)[None, :]
    may = j <= i
    names: dict[str, Any] = {
        "s": s, "i": i, "j": j, "h": np.arange(1, H + 1)[:, None, None], "H": H, "n": i + 1,
        "a": LEARNED.double().numpy()[:, None, None],
        "exp": np.exp, "log": np.log, "tanh": np.tanh,
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "total": lambda x: (x * may).sum(-1, keepdims=True),
    }  # fmt: skip
    found: np.ndarray = eval(code, {"__builtins__": {}}, names)
    return found * may


def by_kernel(kernel: Kernel) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a kernel makes of scores: the weights, as the average of the identity."""

    def of_scores(s: torch.Tensor) -> torch.Tensor:
        one_hot = torch.eye(T, dtype=s.dtype).expand(1, H, T, T)
        mask = build_mask(causal, T)
        return kernel(s[None], one_hot, one_hot, mask=mask, scale=1.0, dropout=0.0)[0]

    return of_scores


def by_mod(mod: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a score_mod makes of scores."""
    at = torch.arange(T)
    return lambda s: mod(s[None], at[:, None], at[None, :])[0]


def by_layer(layer: SelfAttention) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a layer makes of scores, in `modify`."""
    return lambda s: layer.modify(s[None], torch.zeros(1, T, H))[0]


def scalable() -> SelfAttention:
    """A layer that has learned numbers."""
    layer = ScalableSoftmax(SIZES)
    with torch.no_grad():
        layer.sharpness.copy_(LEARNED)
    return layer


SIZES = AttentionConfig(H, H, T)
LAYERS = {
    "softmax1": by_kernel(weights.softmax1),
    "sigmoid": by_kernel(weights.sigmoid),
    "alibi": by_mod(alibi),
    "log_length": by_mod(log_length),
    "softcap": by_layer(SelfAttention(SIZES, softcap=5.0)),
    "scalable_softmax": by_layer(scalable()),
}


@pytest.mark.parametrize("variant", LAYERS)
def test_a_formula_of_the_page_is_what_is_computed(variant: str) -> None:
    s = torch.randn(H, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    computed = LAYERS[variant](s).detach().numpy() * np.tri(T)
    np.testing.assert_allclose(as_written(variant, s.numpy()), computed, atol=1e-12)


def test_stick_breaking_gives_the_query_the_rest() -> None:
    cell = formula_of("stick_breaking")
    assert cell == "j < i: sigmoid(s_ij) Π (1 - sigmoid(s_il))"
    s = torch.randn(H, T, T, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    share = 1 / (1 + np.exp(-s.numpy()))
    expected = np.zeros((H, T, T))
    for i in range(T):
        for j in range(i):
            expected[:, i, j] = share[:, i, j] * (1 - share[:, i, j + 1 : i]).prod(-1)
        expected[:, i, i] = (1 - share[:, i, :i]).prod(-1)
    computed = by_kernel(weights.stick_breaking)(s).numpy()
    np.testing.assert_allclose(computed, expected, atol=1e-12)
    assert math.isclose(expected.sum(), H * T)
