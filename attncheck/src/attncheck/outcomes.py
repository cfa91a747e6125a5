"""What a property says of a model: it holds, it fails, or it cannot be tried."""

import functools
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

# What a model raises when it is called in a way that it does not support.
REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)

# What a model may raise in a call that only asks whether it can be called so: anything.
PROBE_ERRORS = (Exception,)

# The functions of the checkup that call a model, which may be built-in and leave no frame.
CALL_A_MODEL = ("raw", "plainly", "with_targets", "loss", "cache_step_of", "__call__")


class CheckFailed(AssertionError):
    """A model lacks a property.

    `map` is (T, T), by how much the output at t depends on the input at j, or None. `grave` is
    False for what is sometimes meant, such as a finite fill or statistics of the batch. `state`
    says in which state the model was.
    """

    def __init__(
        self, *lines: str, map: Tensor | None = None, grave: bool = True, state: str = ""
    ) -> None:
        super().__init__("\n".join(filter(None, lines)))
        self.map = map
        self.grave = grave
        self.state = state


class CannotCheck(ValueError):
    """The model cannot be called as described, or the property does not apply to it."""


@dataclass(frozen=True)
class Passed:
    """What was tried of a property that holds."""

    said: str
    remarks: tuple[str, ...] = ()  # what is no fault, and may not be meant
    states: tuple[str, ...] = ()  # in which the model was tried
    not_tried: tuple[str, ...] = ()
    crashed: str = ""  # a state in which the model itself raised an error

    def __str__(self) -> str:
        remarks = [f"remark: {each}" for each in self.remarks]
        missing = [f"not tried: {each}" for each in self.not_tried]
        return "; ".join([self.said, *remarks, *missing])


def in_words(noun: str, numbers: list[int], link: str = " ") -> str:
    """Numbered things in words, such as "input 3", "inputs 3 to 8" or "labels at 3, 5"."""
    first = numbers[0]
    last = numbers[-1]
    if first == last:
        return f"{noun}{link}{first}"
    if len(numbers) == last - first + 1:
        return f"{noun}s{link}{first} to {last}"
    others = " and others" if len(numbers) > 6 else ""
    return f"{noun}s{link}{', '.join(map(str, numbers[:6]))}{others}"


def in_one_line(error: BaseException) -> str:
    """An error of the model in one line, with the place in the model's code."""
    frames = traceback.extract_tb(error.__traceback__)
    here = str(Path(__file__).parent)
    own = [frame for frame in frames if not _is_library(frame.filename, here)]
    name = type(error).__name__
    said = f"{name}: {str(error).strip()}" if str(error).strip() else name
    said = said.splitlines()[0][:200]
    if not own:
        return said
    return f"{said} ({Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name})"


def is_deliberate(error: BaseException) -> bool:
    """Whether the model's own code has raised an error, as for inputs that it does not support,
    and not an operation inside of it."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    says = re.search(r"\b(raise|assert)\b", last.line or "") is not None
    return says and not _is_library(last.filename, str(Path(__file__).parent))


def cause_from(search: Callable[[], R], unknown: R) -> R:
    """What a search for the cause of a fault finds. It calls the model in other ways than the
    property does; if the model refuses them, the fault stays and its cause is unknown."""
    try:
        return search()
    except CannotCheck:
        return unknown
    except PROBE_ERRORS as error:
        if is_own_error(error):
            raise
        return unknown


@contextmanager
def not_applicable_if_refused(what: str) -> Iterator[None]:
    """CannotCheck if the model refuses what is tried inside; if it crashes, that is raised."""
    try:
        yield
    except PROBE_ERRORS as error:
        if isinstance(error, CheckFailed | CannotCheck) or not is_deliberate(error):
            raise
        raise CannotCheck(f"{what} is refused: {in_one_line(error)}") from error


def ranges_in_words(numbers: list[int]) -> str:
    """Numbers in words, such as "1 to 7, 12"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]} to {p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def as_assertion(function: Callable[P, R]) -> Callable[P, R]:
    """An assertion whose failure shows the caller's line and the message, without the frames of
    this package between them."""

    @functools.wraps(function)
    def assertion(*args: P.args, **named: P.kwargs) -> R:
        __tracebackhide__ = True  # of pytest
        try:
            return function(*args, **named)
        except (CheckFailed, CannotCheck) as error:
            raise error.with_traceback(None) from None

    return assertion


def _is_library(file: str, here: str) -> bool:
    """Whether a file is one of the checkup or of torch, or code without a file, as "<string>"."""
    return file.startswith((here, "<")) or "torch" in Path(file).parts


def is_own_error(error: BaseException) -> bool:
    """Whether the checkup itself raised an error, and not a model that it has called."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    is_here = last.filename.startswith(str(Path(__file__).parent))
    return is_here and last.name not in CALL_A_MODEL
