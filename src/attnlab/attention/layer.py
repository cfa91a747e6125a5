"""What attnlab asks of an attention layer, yours included.

A layer is an `nn.Module` with `forward`. Everything else is optional, and what a layer does not
have is not measured. `isinstance(layer, HasPattern)` asks whether it has a part, and tells mypy.

Letters: B batch, T positions, C channels, H heads.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from attnlab.rng import Rule

Sets = Tensor | tuple[Tensor, ...]  # one set of keys or values, or several
# What the layers of one forward pass share: "ids", the symbols (B, T), and what layers add:
# tensors, or tuples, lists and dicts of them.
Memo = dict[str, Any]


class Layer(Protocol):
    """An attention layer: what every one has."""

    def forward(self, x: Tensor, *memo: Memo) -> Tensor:
        """(B, T, C) -> (B, T, C); the memo is given only with `uses_memo`."""


@runtime_checkable
class UsesMemo(Protocol):
    """A layer that is called as layer(x, memo) if `uses_memo` is True."""

    uses_memo: bool


@runtime_checkable
class HasPattern(Protocol):
    """A layer that tells how it averages its values; without it, nothing is measured."""

    def pattern(self, x: Tensor, *memo: Memo) -> Tensor:
        """(B, T, C) -> (B, H, T, T)."""


@runtime_checkable
class HasMask(Protocol):
    """A layer that may read other positions than the past; without it, a layer must be causal."""

    def mask(self, x: Tensor) -> Tensor:
        """(B, T, C) -> (T, T) bool, True = may attend."""


@runtime_checkable
class HasScores(Protocol):
    """A layer with scores before mask and softmax."""

    def scores(self, x: Tensor, *memo: Memo) -> Tensor:
        """(B, T, C) -> (B, H, T, T)."""


@runtime_checkable
class HasValues(Protocol):
    """A layer with queries, keys and values."""

    def split(self, x: Tensor, *memo: Memo) -> tuple[Tensor, Sets, Sets]:
        """(B, T, C) -> queries, keys and values (B, H, T, D); or a tuple of each of the last two,
        with as many sets of keys and values."""


@runtime_checkable
class HasFlops(Protocol):
    """A layer that tells the cost of its algorithm."""

    def flops(self, T: int) -> int:
        """FLOPs of one position of a text of T, forward."""


@runtime_checkable
class HasState(Protocol):
    """A layer that tells what generation must keep."""

    def state(self, T: int) -> int:
        """How many numbers generation keeps of T positions."""


@runtime_checkable
class AddsLoss(Protocol):
    """A layer whose last forward pass left a loss, a mean over the batch, that training adds."""

    added_loss: Tensor | None


@runtime_checkable
class HasInitRules(Protocol):
    """A module with initial values of its own, by parameter name: a method or a dict."""

    init_rules: Callable[[float], Mapping[str, Rule]] | Mapping[str, Rule]


def uses_memo(layer: nn.Module) -> bool:
    """Whether a layer is called as layer(x, memo), not as layer(x)."""
    return isinstance(layer, UsesMemo) and layer.uses_memo


def symbols_from(x: Tensor, vocab_size: int) -> Tensor:
    """Symbols for inputs that come from no text: (B, T, C) -> (B, T), each a function of the
    channels of its position, so that a change of an input also changes its symbol."""
    # The factor is so large that a small change of an input changes its symbol.
    return (x.detach().double().sum(-1).abs() * 271_828.18).long() % vocab_size


def own_init_rules(module: nn.Module, qk_std: float) -> Mapping[str, Rule]:
    """The rules of a module for its own parameters; none for most modules."""
    if not isinstance(module, HasInitRules):
        return {}
    rules = module.init_rules
    return rules(qk_std) if callable(rules) else rules
