"""The result of a checkup: the causes that it can name, its findings, and their report."""

import json
import math
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from attnlab.errors import BadInput


@dataclass(frozen=True)
class Cause:
    """One cause, an entry of causes.yaml."""

    title: str  # a few words, for tables
    advice: str  # how to fix it
    explains: frozenset[str] = frozenset()  # causes whose findings are then only symptoms
    rank: int = 1  # smaller is more specific; symptoms go to the most specific cause


@cache
def read_causes() -> dict[str, Any]:
    """The content of causes.yaml."""
    text = files("attnlab.checkup").joinpath("causes.yaml").read_text(encoding="utf-8")
    read: dict[str, Any] = yaml.safe_load(text)
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
_SEVERITY = [FAULT, SUSPICIOUS, OK, NOT_APPLICABLE]


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
    """ "row 3", "rows 3 to 5"."""
    first, last = places[0], places[-1]
    return f"{noun} {first}" if first == last else f"{noun}s {first} to {last}"


@dataclass(frozen=True)
class Diagnosis:
    """One cause with all findings that it explains."""

    cause: str
    status: Status
    headline: str
    advice: str
    detectors: tuple[str, ...]
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All findings on one model."""

    subject: str  # the name of what was examined
    settings: Mapping[str, str]  # sizes, dtype and the like, as text
    findings: tuple[Finding, ...]  # one per detector at least, in the order in which they ran
    seconds: float = 0.0
    error: str = ""  # the traceback if the model raised an error during the examination
    unseen: tuple[str, ...] = ()  # what was not looked at, for lack of time or knowledge

    @property
    def healthy(self) -> bool:
        """Whether the examination was completed and found no fault; suspicions do not count."""
        return not self.error and not any(f.status is Status.FAULT for f in self.findings)

    @property
    def exit_code(self) -> int:
        """0: healthy, 1: a fault was found, 3: the examination itself failed."""
        return 3 if self.error else int(not self.healthy)

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of the causes, faults first: keys of `attnlab.checkup.findings.causes()`."""
        return tuple(d.cause for d in self.diagnoses)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """All faults and suspicions, merged by cause, faults first."""
        wrong = [f for f in self.findings if f.status in (FAULT, SUSPICIOUS)]
        present = {f.cause for f in wrong}
        groups: dict[str, list[Finding]] = {}
        for finding in wrong:
            groups.setdefault(_root(finding.cause, present), []).append(finding)
        merged = [_merge(cause, group) for cause, group in groups.items()]
        merged.sort(key=lambda d: (_SEVERITY.index(d.status), causes()[d.cause].rank))
        return tuple(merged)

    def finding(self, detector: str) -> Finding:
        """The most severe finding of a detector; KeyError if no detector of that name has run."""
        found = [f for f in self.findings if f.detector == detector]
        if not found:
            known = [f.detector for f in self.findings]
            raise KeyError(f"no detector {detector!r}; there are {known}")
        return min(found, key=lambda f: _SEVERITY.index(f.status))

    def to_json(self) -> str:
        """The whole report except the maps, as a JSON document; NaN and infinity are text."""
        findings = []
        for f in self.findings:
            numbers = {n: x if math.isfinite(x) else str(x) for n, x in f.numbers.items()}
            shown = {name: x for name, x in vars(f).items() if name != "maps"}
            findings.append(shown | {"numbers": numbers})
        report = {
            "subject": self.subject,
            "healthy": self.healthy,
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "settings": dict(self.settings),
            "diagnoses": [vars(d) for d in self.diagnoses],
            "findings": findings,
        }
        return json.dumps(report, indent=2, ensure_ascii=False)

    def to_html(self) -> str:
        """A self-contained page with drawings of the maps."""
        from attnlab.checkup.rendering import page

        return page(self)

    def to_text(self) -> str:
        """The report as it is printed, in 100 columns without colors."""
        from rich.console import Console

        from attnlab.checkup.rendering import show

        console = Console(width=100, color_system=None)
        with console.capture() as captured:
            show(self, console)
        return captured.get()

    def print(self) -> None:
        """Print the report to the terminal."""
        from attnlab.checkup.rendering import show

        show(self)


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


def _root(cause: str, present: set[str]) -> str:
    """The most specific cause present of which a finding is a symptom (`Cause.explains`)."""
    for other in sorted(present, key=lambda name: (causes()[name].rank, name)):
        if causes()[other].rank < causes()[cause].rank and cause in causes()[other].explains:
            return _root(other, present)
    return cause


def _merge(cause: str, group: list[Finding]) -> Diagnosis:
    own = [f for f in group if f.cause == cause]
    others = [f for f in group if f.cause != cause]
    headline, *evidence = [sentence for f in own for sentence in (f.headline, *f.evidence)]
    evidence += [f.headline for f in others]
    return Diagnosis(
        cause=cause,
        status=min((f.status for f in group), key=_SEVERITY.index),
        headline=headline,
        advice=causes()[cause].advice,
        detectors=tuple(dict.fromkeys(f.detector for f in own + others)),
        evidence=tuple(dict.fromkeys(evidence)),
    )
