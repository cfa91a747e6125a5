"""The recurrences beside those of flash-linear-attention, a second judge: `pip install fla-core`.

The references are the package's own slow ones, `naive`, in fp32 on any device. Without the
package, which needs Triton, these tests are skipped.
"""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.attention.layers import D, layer_of, x_of

pytest.importorskip("fla", reason="needs flash-linear-attention: pip install fla-core")

# Variant -> the reference and, beside q, k and v, what it takes by name.
REFERENCES: dict[str, tuple[str, tuple[str, ...]]] = {
    "delta_net": ("delta_rule.naive:delta_rule_recurrence", ("beta",)),
    "delta_net_negative": ("delta_rule.naive:delta_rule_recurrence", ("beta",)),
    "gated_delta_net": (
        "gated_delta_rule.naive:naive_recurrent_gated_delta_rule",
        ("beta", "g"),
    ),
    "kda": ("kda.naive:naive_recurrent_kda", ("beta", "g")),
    "decay": ("simple_gla.naive:naive_recurrent_simple_gla", ("g",)),
    "gated_linear": ("gla.naive:naive_recurrent_gla", ("gk",)),
    "retention": ("retention.naive:naive_retention", ()),
}
HEADS_FIRST = ("delta_rule_recurrence", "naive_retention")  # (B, H, T, ...), not (B, T, H, ...)


def of_layer(layer: Any, x: Tensor) -> dict[str, Tensor]:
    """What a reference takes of a layer: q is multiplied by D^(-1/2) there."""
    q, k, v = layer.split(x)
    found = {"q": q * D**0.5, "k": k, "v": v}
    strength, decay = layer.strength(x), layer.log_decay(x)
    if strength is not None:
        found["beta"] = strength[..., 0]
    if decay is not None:
        found["g"] = found["gk"] = decay.squeeze(-1)  # (B, H, T) or, by channel, (B, H, T, D)
    return found


def by_reference(variant: str, given: dict[str, Tensor]) -> Tensor:
    """The mixed values (B, H, T, D) of the reference."""
    path, names = REFERENCES[variant]
    naive: Callable[..., Any] = resolve_name(f"fla.ops.{path}")
    taken = {name: given[name].float() for name in ("q", "k", "v", *names)}
    if naive.__name__ in HEADS_FIRST:
        y = naive(**taken)
        return y if isinstance(y, Tensor) else y[0]
    y, _ = naive(**{name: u.transpose(1, 2) for name, u in taken.items()})
    return y.transpose(1, 2)


@torch.no_grad()
@pytest.mark.parametrize("variant", REFERENCES)
def test_a_recurrence_is_that_of_flash_linear_attention(variant: str) -> None:
    layer, x = layer_of(variant), x_of()
    given = of_layer(layer, x)
    q, k, v = layer.split(x)
    ours = layer.attend(q, k, v, x).float()
    torch.testing.assert_close(ours, by_reference(variant, given), rtol=1e-4, atol=1e-5)
    for name in {"k", *REFERENCES[variant][1]} - {"gk"}:  # planted: that of the position before
        late = given | {name: given[name].roll(1, 2)}
        assert not torch.allclose(ours, by_reference(variant, late), rtol=1e-2, atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("decay", [None, "head"])
def test_a_product_of_writes_is_that_of_flash_linear_attention(decay: str | None) -> None:
    layer, x = layer_of("delta_product", decay=decay), x_of()
    q, k, v = layer.split(x)
    ours = layer.attend(q, k, v, x).float()
    naive = resolve_name("fla.ops.gated_delta_product.naive:naive_recurrent_gated_delta_product")

    def in_turn(writes: tuple[Tensor, ...]) -> Tensor:
        """The writes of a position one after the other: (B, T steps, H, D)."""
        return torch.stack(writes, 3).flatten(2, 3).transpose(1, 2).float()

    log_decay = layer.log_decay(x)
    y, _ = naive(
        q.transpose(1, 2).float(),  # here it is over sqrt(D) already
        in_turn(k),
        in_turn(v),
        None if log_decay is None else log_decay[..., 0].transpose(1, 2).float(),
        layer.strength(x)[..., 0].transpose(1, 2).float(),
        scale=1.0,
        cu_seqlens=None,
        num_householder=2,
    )
    torch.testing.assert_close(ours, y.transpose(1, 2), rtol=1e-4, atol=1e-5)
    swapped, _ = naive(
        q.transpose(1, 2).float(), in_turn(k[::-1]), in_turn(v), None,
        layer.strength(x)[..., 0].transpose(1, 2).float(),
        scale=1.0, cu_seqlens=None, num_householder=2,
    )  # fmt: skip
    assert not torch.allclose(ours, swapped.transpose(1, 2), rtol=1e-2, atol=1e-3)
