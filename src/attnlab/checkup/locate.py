"""Find the module that first lets the future through. Letters: B batch, T time, C channels."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab.checkup.attention_calls import AttentionCall
from attnlab.checkup.dependence import finite_map, slopes
from attnlab.checkup.findings import FAULT, Finding
from attnlab.checkup.model_adapter import REFUSALS, ModelAdapter, hooked
from attnlab.checkup.outputs import tensors_in
from attnlab.checkup.recognize import explain_scramble
from attnlab.checkup.trace import SeenOperations, ranks_along

# Causes that are inferred from a map alone, without a look at the model's operations.
_CAUSES_OF_MAPS = {
    "flipped_mask", "inverted_mask", "late_leak", "no_mask", "off_by_one", "reads_ahead",
    "reads_some_ahead", "single_leaks",
}  # fmt: skip


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


def located(
    finding: Finding,
    model: ModelAdapter,
    *,
    calls: Sequence[AttentionCall],
    inside: Sequence[Finding],
    T: int,
    seconds: float,
) -> Finding:
    """Add to a leak the first module that leaks, and refine a cause inferred from its map.

    Args:
        calls, inside: the attention calls that were recorded, and what was found in them.
        T: the length of the map.
        seconds: for another map, at the length of the calls.
    """
    if finding.status is not FAULT or finding.cause == "not_finite":
        return finding
    place = first_leak(model, T)
    if place is not None:
        finding = replace(finding, evidence=(place.sentence, *finding.evidence))
    if finding.cause not in _CAUSES_OF_MAPS:
        return finding
    what = finding.headline.split(": ")[0]
    if not calls and place is not None and place.is_of_torch:  # a convolution or a normalization
        return replace(finding, cause="outside", headline=what)
    if not calls or any(f.cause and f.detector in ("mask", "rows") for f in inside):
        return finding
    reads = None if place is None else reads_of(place, model)
    if place is not None and reads is not None:
        # A reshape that the map of the model hides shows in the first module that leaks.
        every = torch.ones(len(reads), dtype=torch.bool)
        scramble = explain_scramble(reads, every, [(len(calls[0].raw), range(1, 2))])
        if scramble is not None:
            headline = f"{place.name or 'the model'}: {scramble[1]}"
            return replace(finding, cause=scramble[0], headline=headline)
    map_ = finite_map(model, calls[0].length, rounds=2, seconds=seconds)
    if map_ is not None and not bool(map_.ahead.any()):
        return finding
    chosen = choices_in(place, model) if place is not None else ""
    named = f": {chosen} over the positions makes tokens compete" if chosen else ""
    headline = f"{what}, though every attention pattern is causal{named}"
    within = place is not None and place.name in {call.module for call in calls} - {""}
    return replace(finding, cause="beside_mask" if within else "outside", headline=headline)


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
    T, cut, held = place.ids.shape[1], place.cut, []
    seen = SeenOperations(lambda func, x: ranks_along(func, x, T))
    try:
        with torch.no_grad():
            calls = [_first_call(place, adapter, ids) for ids in (place.ids, place.changed)]
            for args, named, _ in calls:
                seen = SeenOperations(seen.wanted, seen.outputs)
                with seen:
                    held.append(_early(place.module(*args, **named), T, cut))
    except REFUSALS:  # of being called alone
        return ""
    leaks = _differ(*(_early(output, T, cut) for _, _, output in calls))
    return " and ".join(sorted(seen.names)) if leaks and not _differ(*held) else ""


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
