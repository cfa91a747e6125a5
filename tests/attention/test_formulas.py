"""Every variant of conf/attn against its formula in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from attnlab.attention import delta, entmax15, sparsemax
from tests.attention.formulas import CASES, Array
from tests.attention.layers import DELTA, B, H, layer_of, memo_of, x_of

PLANTED = [(name, planted) for name, case in CASES.items() for planted in case.planted]


def both(variant: str, planted: dict[str, Any]) -> tuple[Array, Array]:
    """The outputs (B, T, C) of a layer, and of its formula with the planted error."""
    layer, case = layer_of(variant), CASES[variant]
    x, memo = case.size * x_of(), memo_of(layer)
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    outputs = []
    for b in range(B):
        given = w | {name: value[b].numpy() for shared in memo for name, value in shared.items()}
        outputs.append(
            case.formula(given, x[b].numpy(), case.heads or H, **(case.given | planted))
        )
    return layer(x, *memo).detach().numpy(), np.array(outputs)


@pytest.mark.parametrize("variant", CASES)  # test_lists.py names a variant without a formula
def test_the_output_equals_the_formula(variant: str) -> None:
    ours, formula = both(variant, {})
    np.testing.assert_allclose(ours, formula, rtol=1e-10, atol=1e-10)
    assert np.isnan(ours).any() == (variant == "strict_flip")


@pytest.mark.parametrize("variant", DELTA)
def test_chunks_hand_on_their_state(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "CHUNK", 4)  # T = 11
    test_the_output_equals_the_formula(variant)


@pytest.mark.parametrize(("variant", "planted"), PLANTED)
def test_a_planted_error_shows(variant: str, planted: dict[str, Any]) -> None:
    ours, formula = both(variant, planted)
    wrong = np.abs(ours - formula).max() > 1e-3 * np.abs(np.nan_to_num(ours)).max()
    assert wrong or (np.isnan(ours) != np.isnan(formula)).any()


@pytest.mark.parametrize("kernel", [sparsemax, entmax15])
def test_a_sorting_kernel_takes_fewer_queries_than_keys(kernel: Any) -> None:
    q, k, v = torch.randn(3, 1, 1, 9, 4)
    mask, given = torch.ones(9, 9).tril().bool(), {"scale": 1.0, "dropout": 0.0}
    some, whole = (kernel(q[:, :, n:], k, v, mask=mask[n:], **given) for n in (6, 0))
    torch.testing.assert_close(some, whole[:, :, 6:])
