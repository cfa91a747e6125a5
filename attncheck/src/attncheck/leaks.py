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
    """What reads what and where to look, from a map (T, T) bool of which output t reads which
    input j, without a place; None if no output reads ahead."""
    T = len(reads)
    i = torch.arange(T)
    distance = i - i[:, None]  # of the reader to what it reads, positive ahead
    future = distance > 0
    ahead = reads & future
    if not ahead.any():
        return None
    reads_earlier = bool((reads & (distance < 0)).any())
    if not reads_earlier and ahead.sum() > T:  # more than a shift, which reads one input each
        what = "positions read later ones, never earlier ones"
        return Description(what, "", "look for a mask turned around")
    if torch.equal(ahead, future):  # each reads all that is later
        look = "a mask that is missing or has no effect, or a mean, norm or filter over time"
        return Description(f"every position reads all {T} positions", "", f"look for {look}")
    ends_are_few = T > 2 * FEW
    if ends_are_few and not ahead[:, : T - FEW].any() and bool(ahead[: T - FEW, -1].all()):
        what = f"every position reads the last of {T} inputs"
        return Description(what, "", "look for torch.roll, which wraps around, or an index of -1")
    if ends_are_few and not ahead[FEW:].any():
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
    """A sentence that names the first module whose outputs before the cut change although its
    inputs there do not, as the inputs x (T, ...) are changed from the cut on; or why none is
    known."""
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
    # In the order in which calls end, so an inner module comes before the one around it.
    for call, (inputs, outputs) in before.items():
        new_inputs, new_outputs = after.get(call, (inputs, outputs))  # experts may not run
        if any_differ(outputs, new_outputs) and not any_differ(inputs, new_inputs):
            part, _ = call
            name = names[part] or "the model"
            return f"the first module that reads ahead is {name} ({type(part).__name__})"
    return "no single module reads ahead"


ModuleCall = tuple[nn.Module, int]  # a module and the number of its call
Recorded = dict[ModuleCall, tuple[list[Tensor], list[Tensor]]]
Shape = tuple[int, ...]


def record_modules(
    tried: Subject, module: nn.Module, x: Tensor, begin: int, end: int
) -> tuple[Tensor, Recorded]:
    """The outputs for x (T, ...) at the positions from begin to end (1, end - begin, V), and the
    inputs and outputs of each call of a module there, in the order in which the calls end.

    A shorter text shows first which axis of each tensor is time.
    """
    recorded: Recorded = {}
    shapes_of: dict[ModuleCall, tuple[list[Shape], list[Shape]]] = {}  # in the shorter text
    T = len(x)

    def keep_shapes(call: ModuleCall, given: object, returned: object) -> None:
        shapes_of[call] = _shapes_in(given), _shapes_in(returned)

    def keep_parts(call: ModuleCall, given: object, returned: object) -> None:
        of_given, of_returned = shapes_of.get(call, ([], []))
        recorded[call] = parts_of_time(given, of_given), parts_of_time(returned, of_returned)

    def parts_of_time(value: object, shapes: list[Shape]) -> list[Tensor]:
        """The part from begin to end of each tensor in a value that has an axis of time; `shapes`
        are those of the tensors in the shorter text."""
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
        _outputs_with_hooks(tried, module, x[: max(1, T // 2)], keep_shapes)
    except REFUSALS:  # as of a model of one length
        shapes_of.clear()
    return _outputs_with_hooks(tried, module, x, keep_parts)[:, begin:end], recorded


def _outputs_with_hooks(
    tried: Subject,
    module: nn.Module,
    x: Tensor,
    keep: Callable[[ModuleCall, object, object], None],
) -> Tensor:
    """The outputs for x (T, ...), (1, T, V). As each call of a module ends, `keep` gets which call
    it was, what the module took, and what it returned."""
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
    """The axis of a tensor of this shape that is time, of T inputs; None if there is none, or if
    it is not clear which. `shorter` is the shape in a shorter text, where a width that is T by
    chance stays the same."""
    axes = [axis for axis, size in enumerate(shape) if size == T]
    if shorter is not None and len(shorter) == len(shape):
        axes = [axis for axis in axes if shorter[axis] != T]
    if len(axes) == 1 or (len(shape) == 3 and axes == [1, 2]):  # (B, T, C), or (B, T, T)
        return axes[0]
    return None


def any_differ(before: list[Tensor], after: list[Tensor], by: float = 1e-7) -> bool:
    """Whether any of the tensors moved by more than a share of its standard deviation; those whose
    shapes differ are left out."""
    pairs = zip(before, after, strict=False)
    return any(a.shape == b.shape and relative(a.double(), b.double()) > by for a, b in pairs)
