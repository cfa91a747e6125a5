"""The causes that a checkup can name, and the findings of its detectors."""

import json
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from torch import Tensor

from attnlab.errors import BadInput


@dataclass(frozen=True)
class Cause:
    """One cause, an entry of causes.json."""

    title: str  # a few words, for tables
    advice: str  # how to fix it
    explains: frozenset[str] = frozenset()  # causes whose findings are then only symptoms
    rank: int = 1  # smaller is more specific; symptoms go to the most specific cause


@cache
def read_causes() -> dict[str, Any]:
    """The content of causes.json."""
    text = files("attnlab.checkup").joinpath("causes.json").read_text(encoding="utf-8")
    read: dict[str, Any] = json.loads(text)
    return read


@cache
def causes() -> dict[str, Cause]:
    """All causes by name."""
    groups: dict[str, list[str]] = read_causes()["groups"]
    found = {}
    for name, entry in read_causes()["causes"].items():
        members = [groups.get(other, [other]) for other in entry.get("explains", [])]
        found[name] = Cause(**entry | {"explains": frozenset().union(*members)})
    return found


class Status(str, Enum):
    """The result of a detector."""

    OK = "ok"
    SUSPICIOUS = "suspicious"
    FAULT = "fault"
    NOT_APPLICABLE = "not applicable"


OK, SUSPICIOUS, FAULT, NOT_APPLICABLE = Status
SEVERITY = [FAULT, SUSPICIOUS, OK, NOT_APPLICABLE]


@dataclass(frozen=True)
class Finding:
    """The result of one detector, with its evidence."""

    detector: str  # its name, as in the table in docs/checkup.md
    status: Status
    headline: str  # one sentence that names positions, layers and numbers
    cause: str = ""  # a key of `causes()`; "" if nothing is wrong
    numbers: Mapping[str, float] = field(default_factory=dict)  # the measurements, by name
    evidence: tuple[str, ...] = ()  # further sentences that say how it is known
    maps: Mapping[str, Tensor] = field(default_factory=dict)  # (T, T) by title, for the HTML page


def passed(detector: str, headline: str, numbers: Mapping[str, float] | None = None) -> Finding:
    """Nothing is wrong."""
    return Finding(detector, OK, headline, "", numbers or {})


def skipped(detector: str, reason: str, numbers: Mapping[str, float] | None = None) -> Finding:
    """The detector does not apply."""
    return Finding(detector, NOT_APPLICABLE, reason, "", numbers or {})


def number_of(n: int, noun: str) -> str:
    """ "1 step", "2 steps"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def span(noun: str, places: list[int]) -> str:
    """ "row 3", "rows 3 to 5", "rows 3, 5, 8", of places in order."""
    first, last = places[0], places[-1]
    if first == last:
        return f"{noun} {first}"
    if len(places) == last - first + 1:
        return f"{noun}s {first} to {last}"
    return f"{noun}s {', '.join(map(str, places[:6]))}{', ...' * (len(places) > 6)}"


def collect(findings: list[Finding], detectors: Iterable[Finding]) -> str:
    """Add what is found until an error; returns its traceback from the user's code on, or ""."""
    try:
        for finding in detectors:
            findings.append(finding)
    except BadInput:
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        package = Path(__file__).parents[1]
        last = max(i for i, frame in enumerate(frames) if package in Path(frame.filename).parents)
        lines = traceback.format_list(frames[last + 1 :] or frames)
        return "".join([*lines, *traceback.format_exception_only(error)]).rstrip()
    return ""
