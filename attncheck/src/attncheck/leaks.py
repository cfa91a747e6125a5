"""A leak in words: which positions read which, and the first module that lets them.

Letters: B batch, T time, C channels.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .calls import module_of, named_tensors
from .outcomes import REFUSALS, cause_from, in_words
from .subject import Subject, relative

SHAPES = (
    "look for a mask, a window or blocks of another shape, finite blocked scores, heads that are "
    "split or merged without a transpose, or a choice or statistic over time"
)
FEW = 4  # positions at an end of a sequence


class Description(NamedTuple):
    """What reads what, which module lets it, and where to look."""

    what: str
    place: str
    look: str


def explain_map(reads: Tensor) -> Description | None:
    """What reads what, and the likely causes, from a map (T, T) bool with readers in rows; None if
    nothing reads ahead."""
    T = len(reads)
    i = torch.arange(T)
    distance = i - i[:, None]  # of the reader to what it reads, positive ahead
    future = distance > 0
    ahead = reads & future
    if not ahead.any():
        return None
    if not (reads & (distance < 0)).any() and ahead.sum() > T:
        what = "positions read later ones, never earlier ones"
        return Description(what, "", "look for a mask turned around")
    if torch.equal(ahead, future):
        look = "a mask that is missing or has no effect, or a mean, norm or filter over time"
        return Description(f"every position reads all {T} positions", "", f"look for {look}")
    if T > 2 * FEW and not ahead[:, : T - FEW].any() and bool(ahead[: T - FEW, -1].all()):
        what = f"every position reads the last of {T} inputs"
        return Description(what, "", "look for torch.roll, which wraps around, or an index of -1")
    if T > 2 * FEW and not ahead[FEW:].any():
        readers = ahead.any(1).nonzero().flatten().tolist()
        what = f"later inputs are read at {in_words('position', readers)} only"
        look = "look for torch.roll, which wraps around, or a query whose keys are all blocked"
        return Description(what, "", look)
    furthest = int(distance[ahead].max())
    if torch.equal(ahead, future & (distance <= furthest)):
        look = "look for a mask's diagonal that is off, a window, a convolution, or a shift"
        return Description(f"position t reads up to t + {furthest}", "", look)
    for size in range(2, T // 2 + 1):
        block = i // size
        if torch.equal(ahead, future & (block == block[:, None])):
            what = f"positions read all of their own block of {size}, also what is later"
            return Description(what, "", SHAPES)
    pairs = ahead.nonzero().tolist()
    some = "; ".join(f"{t} reads {j}" for t, j in pairs[:6])
    what = f"positions read later ones in {len(pairs)} of {int(future.sum())} pairs ({some})"
    return Description(what, "", SHAPES)


def place_of_leak(tried: Subject, x: Tensor, changed: Tensor, cut: int) -> str:
    """The innermost module whose outputs before the cut change although its inputs do not."""
    module = module_of(tried.model)
    if module is None:
        return "give a torch module to learn where"
    pair: list[tuple[Tensor, Recorded]] = cause_from(
        lambda: [record_modules(tried, module, each, 0, cut) for each in (x, changed)], []
    )
    if not pair:
        return "hooks on its modules fail, so the place is unknown"
    (y, before), (new_y, after) = pair
    if not any_differ([y], [new_y]):
        return "the leak vanishes while hooks are on the modules, as if they turn off a fast path"
    names = {part: name for name, part in module.named_modules()}
    for key, (inputs, outputs) in before.items():
        new_inputs, new_outputs = after.get(key, (inputs, outputs))  # experts may not run
        if any_differ(outputs, new_outputs) and not any_differ(inputs, new_inputs):
            kind = type(key[0]).__name__
            return f"the first module that reads ahead is {names[key[0]] or 'the model'} ({kind})"
    return "no single module reads ahead"


ModuleCall = tuple[nn.Module, int]  # a module and the number of its call
Recorded = dict[ModuleCall, tuple[list[Tensor], list[Tensor]]]
Shape = tuple[int, ...]


def record_modules(
    tried: Subject, module: nn.Module, x: Tensor, begin: int, end: int
) -> tuple[Tensor, Recorded]:
    """The outputs from begin to end, and there the inputs and outputs of each module, by module
    and number of its call, as the calls end."""
    recorded: Recorded = {}
    shorter: dict[ModuleCall, tuple[list[Shape], list[Shape]]] = {}
    T = len(x)

    def keep_shapes(call: ModuleCall, given: object, returned: object) -> None:
        shorter[call] = _shapes_in(given), _shapes_in(returned)

    def keep_parts(call: ModuleCall, given: object, returned: object) -> None:
        of_given, of_returned = shorter.get(call, ([], []))
        recorded[call] = part_of(given, of_given), part_of(returned, of_returned)

    def part_of(value: object, shapes: list[Shape]) -> list[Tensor]:
        """The part of each tensor that has time; `shapes` are theirs in the shorter text."""
        tensors = [x for _, x in named_tensors(value)]
        known: list[Shape] | list[None] = shapes
        if len(shapes) != len(tensors):  # a module may be called in another way then
            known = [None] * len(tensors)
        parts = []
        for x, shape in zip(tensors, known, strict=True):
            axis = _axis_of_time(tuple(x.shape), shape, T)
            if axis is not None:
                parts.append(x.detach().narrow(axis, begin, end - begin).clone())
        return parts

    try:
        _hooked(tried, module, x[: max(1, T // 2)], keep_shapes)
    except REFUSALS:  # as of a model of one length
        shorter.clear()
    return _hooked(tried, module, x, keep_parts)[:, begin:end], recorded


def _hooked(
    tried: Subject,
    module: nn.Module,
    x: Tensor,
    keep: Callable[[ModuleCall, object, object], None],
) -> Tensor:
    """The outputs for x (T, ...), while what each module takes and returns is handed over."""
    calls: Counter[nn.Module] = Counter()

    def hook(part: nn.Module, args: tuple, named: dict[str, object], output: object) -> None:
        keep((part, calls[part]), (args, named), output)
        calls[part] += 1

    with ExitStack() as handles:
        for part in module.modules():
            handles.enter_context(part.register_forward_hook(hook, with_kwargs=True))
        return tried(x[None])


def _shapes_in(value: object) -> list[Shape]:
    """The shapes of the tensors in a value."""
    return [tuple(x.shape) for _, x in named_tensors(value)]


def _axis_of_time(shape: Shape, shorter: Shape | None, T: int) -> int | None:
    """The axis of a tensor that is time, of T inputs, if there is just one. A width may be T, too,
    but it is the same in a shorter text."""
    axes = [axis for axis, size in enumerate(shape) if size == T]
    if shorter is not None and len(shorter) == len(shape):
        axes = [axis for axis in axes if shorter[axis] != T]
    if len(axes) == 1 or (len(shape) == 3 and axes == [1, 2]):  # (B, T, C), or (B, T, T)
        return axes[0]
    return None


def any_differ(before: list[Tensor], after: list[Tensor], by: float = 1e-7) -> bool:
    """Whether any of the tensors moved by more than a share of its standard deviation."""
    pairs = zip(before, after, strict=False)
    return any(a.shape == b.shape and relative(a.double(), b.double()) > by for a, b in pairs)
