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

CHECKUP = str(Path(__file__).parent)  # how the names of the files of this package begin

# What a model raises when it is called in a way that it does not support.
REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)

# What a model may raise in a call that only asks whether it can be called so: anything.
PROBE_ERRORS = (Exception,)

# The functions of the checkup that call a model, which may be built-in and leave no frame.
CALL_A_MODEL = ("call_once", "plainly", "with_targets", "loss", "cache_step_of", "__call__")


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
    crashed: str = ""  # what the model raised in a state that it must support; "" if nothing

    def __str__(self) -> str:
        """What holds, the remarks and what was not tried, in one line."""
        remarks = [f"remark: {each}" for each in self.remarks]
        missing = [f"not tried: {each}" for each in self.not_tried]
        return "; ".join([self.said, *remarks, *missing])


def in_words(noun: str, numbers: list[int], link: str = " ") -> str:
    """Numbered things in words, the numbers of which are in order: "input 3", "inputs 3 to 8", or
    "inputs 3, 5 and others" after six of them. The link stands before the numbers."""
    first = numbers[0]
    last = numbers[-1]
    if first == last:
        return f"{noun}{link}{first}"
    if len(numbers) == last - first + 1:
        return f"{noun}s{link}{first} to {last}"
    others = " and others" if len(numbers) > 6 else ""
    return f"{noun}s{link}{', '.join(map(str, numbers[:6]))}{others}"


def in_one_line(error: BaseException) -> str:
    """An error in one line of at most 200 characters, and the file, line and function of the
    model's code that raised it, if there is such code."""
    frames = traceback.extract_tb(error.__traceback__)
    of_model = [frame for frame in frames if not _is_library(frame.filename)]
    name = type(error).__name__
    said = f"{name}: {str(error).strip()}" if str(error).strip() else name
    said = said.splitlines()[0][:200]
    if not of_model:
        return said
    last = of_model[-1]
    return f"{said} ({Path(last.filename).name}:{last.lineno} in {last.name})"


def is_deliberate(error: BaseException) -> bool:
    """Whether a statement `raise` or `assert` of the model's own code has raised an error, as for
    inputs that it does not support; False for a crash of an operation."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    raises = re.search(r"\b(raise|assert)\b", last.line or "") is not None
    return raises and not _is_library(last.filename)


def cause_from(search: Callable[[], R], unknown: R) -> R:
    """What a search for the cause of a fault returns; `unknown` if the model raises an error
    there, for the search calls it in other ways than the property does. An error of the checkup
    itself is raised."""
    try:
        return search()
    except CannotCheck:
        return unknown
    except PROBE_ERRORS as error:
        if is_own_error(error):
            raise
        return unknown


@contextmanager
def not_applicable_if_refused(said: str) -> Iterator[None]:
    """If the model deliberately refuses what is tried inside (see `is_deliberate`), CannotCheck is
    raised instead, which says so in these words, and why; a crash, CheckFailed and CannotCheck
    pass through."""
    try:
        yield
    except PROBE_ERRORS as error:
        if isinstance(error, CheckFailed | CannotCheck) or not is_deliberate(error):
            raise
        raise CannotCheck(f"{said}: {in_one_line(error)}") from error


def ranges_in_words(numbers: list[int]) -> str:
    """Numbers in any order in words, such as "1 to 7, 12", each once."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{p[0]} to {p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def as_assertion(function: Callable[P, R]) -> Callable[P, R]:
    """The function, whose CheckFailed and CannotCheck show the caller's line and the message in a
    traceback, without the frames of this package between them."""

    @functools.wraps(function)
    def assertion(*args: P.args, **named: P.kwargs) -> R:
        __tracebackhide__ = True  # of pytest
        try:
            return function(*args, **named)
        except (CheckFailed, CannotCheck) as error:
            raise error.with_traceback(None) from None

    return assertion


def _is_library(file: str) -> bool:
    """Whether a file is one of the checkup or of torch, or code without a file, as "<string>"."""
    return file.startswith((CHECKUP, "<")) or "torch" in Path(file).parts


def is_own_error(error: BaseException) -> bool:
    """Whether the checkup itself raised an error, and not a model that it has called: the last
    frame is of the checkup, and not of a function that calls a model, which may be built-in."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(CHECKUP) and last.name not in CALL_A_MODEL
