"""Find the module that first lets the future through. Letters: B batch, T time, C channels."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnlab.checkup.dependence import slopes
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, hooked
from attnlab.checkup.outputs import tensors_in
from attnlab.checkup.trace import SeenOperations, ranks_along


@dataclass(frozen=True)
class Place:
    """A module, by its name ("" for the model itself), and two sequences that show its leak."""

    name: str
    module: nn.Module
    ids: Tensor  # (1, T)
    changed: Tensor  # (1, T), other ids from the cut on
    cut: int

    @property
    def sentence(self) -> str:
        """The place in words, for the report."""
        kind = type(self.module).__name__
        if not self.name:
            return f"the future enters in {kind}.forward itself, outside its modules"
        return f"the first module whose output depends on later tokens is {self.name} ({kind})"

    @property
    def is_of_torch(self) -> bool:
        """Whether it is a layer of torch.nn without parts, which cannot hold attention."""
        own = type(self.module).__module__.startswith("torch.nn.modules")
        return own and not list(self.module.children())


def first_leak(adapter: ModelAdapter, T: int) -> Place | None:
    """The innermost module whose output at early positions changes, but whose inputs do not.

    None if the model is no module, or if nothing changes early for a few changed suffixes.
    """
    if not adapter.is_module:
        return None
    names = {module: name for name, module in adapter.module.named_modules()}
    cuts = dict.fromkeys((T // 2, 1, T - 1, T // 4, 3 * T // 4, 6, 11))
    for cut in [cut for cut in cuts if 0 < cut < T] * 4:  # routers leak for some tokens only
        ids = adapter.tokens(1, T)
        changed = torch.where(torch.arange(T) >= cut, adapter.other_ids(ids), ids)
        try:
            before, after = _record(adapter, ids, cut), _record(adapter, changed, cut)
        except REFUSALS:
            return None
        for (module, n), (inputs, outputs) in before.items():
            # Experts run only if a token needs them.
            new_inputs, new_outputs = after.get((module, n), (inputs, outputs))
            if _differ(outputs, new_outputs) and not _differ(inputs, new_inputs):
                return Place(names[module], module, ids, changed, cut)
    return None


def reads_of(place: Place, adapter: ModelAdapter) -> Tensor | None:
    """(T, T) bool: what each output of this one module reads, by gradients; None if they fail."""
    try:
        with torch.enable_grad():
            args, named, output = _first_call(place, adapter, place.ids)
            ends = [list(tensors_in(end)) for end in ([*args, *named.values()], output)]
            x, y = (next(t for t in end if t.shape[:2] == place.ids.shape) for end in ends)
            sizes = slopes(y[0] * adapter.random_like(y[0]), [x])  # (T, T)
    except REFUSALS:
        return None
    return sizes > 1e-10 * sizes.max()


def choices_in(place: Place, adapter: ModelAdapter) -> str:
    """Operations in this one module that rank positions, as expert choice and hashing do.

    They are named if the leak closes once they return what they do without the changed tokens.
    """
    T, cut = place.ids.shape[1], place.cut
    found = []
    try:
        with torch.no_grad():
            calls = [_first_call(place, adapter, ids) for ids in (place.ids, place.changed)]
            seen = SeenOperations(lambda func, x: ranks_along(func, x, T))
            for args, named, _ in calls:
                seen = SeenOperations(seen.wanted, seen.outputs)
                with seen:
                    found.append(_early(place.module(*args, **named), T, cut))
    except REFUSALS:  # of being called alone
        return ""
    leaks = _differ(*(_early(output, T, cut) for _, _, output in calls))
    return " and ".join(sorted(seen.names)) if leaks and not _differ(*found) else ""


def _first_call(place: Place, adapter: ModelAdapter, ids: Tensor) -> tuple[tuple, dict, object]:
    """The arguments and the output of this one module for a sequence."""
    seen: list[tuple[tuple, dict, object]] = []
    with hooked([place.module], lambda _, *call: seen.append(call)):
        adapter.raw(ids)
    return seen[0]


Recorded = tuple[list[Tensor], list[Tensor]]  # inputs and outputs before the cut


def _record(adapter: ModelAdapter, ids: Tensor, cut: int) -> dict[tuple[nn.Module, int], Recorded]:
    """The inputs and outputs of all calls, by module and its number, in the order they end."""
    T = ids.shape[1]
    found: dict[tuple[nn.Module, int], Recorded] = {}
    count: Counter[nn.Module] = Counter()

    def keep(module: nn.Module, args: tuple, named: dict[str, object], output: object) -> None:
        count[module] += 1
        both = _early([*args, *named.values()], T, cut), _early(output, T, cut)
        found[module, count[module]] = both

    with hooked(adapter.module.modules(), keep), torch.no_grad():
        adapter.raw(ids)
    return found


def _early(values: object, T: int, cut: int) -> list[Tensor]:
    """Copies of the positions before the cut, of all tensors with one axis along time."""
    early = []
    for x in tensors_in(values):
        axes = [axis for axis in range(x.ndim) if x.shape[axis] == T]
        if axes == [1, 2] and x.ndim == 3:  # (B, T, C) with C = T
            axes = [1]
        if len(axes) == 1:
            early.append(x.detach().narrow(axes[0], 0, cut).clone())
    return early


def _differ(before: list[Tensor], after: list[Tensor]) -> bool:
    pairs = [(a.double(), b.double()) for a, b in zip(before, after, strict=False)]
    return any(
        bool((a - b).abs().max() > 1e-7 * a.abs().max() + 1e-30)
        for a, b in pairs
        if a.shape == b.shape and a.numel()
    )
