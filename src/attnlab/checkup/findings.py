"""What a checkup says: findings of single detectors, and a report that tells each cause once."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from attnlab.checkup.diagnoses import CAUSES, Cause


class Status(str, Enum):
    """How a detector's examination ended."""

    OK = "ok"
    SUSPICIOUS = "suspicious"
    FAULT = "fault"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """What one detector found.

    Args:
        detector: its name, as the table in docs/checkup.md has it.
        status: how the examination ended.
        headline: one sentence with the positions, layers and numbers it is about.
        cause: a key of `attnlab.checkup.diagnoses.CAUSES`; "" where nothing is wrong.
        numbers: what was measured, by name.
        evidence: further sentences on how it is known.
        maps: (T, T) pictures by title, for the HTML page.
    """

    detector: str
    status: Status
    headline: str
    cause: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    evidence: tuple[str, ...] = ()
    maps: Mapping[str, Tensor] = field(default_factory=dict)


def attempt(
    detector: str, examine: Callable[[], Finding], refusals: tuple[type[Exception], ...]
) -> Finding:
    """Run a detector that asks a model for unusual things, which the model may refuse.

    Args:
        refusals: the errors that count as a refusal, told as not applicable with their reason.
    """
    try:
        return examine()
    except refusals as error:
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
        headline = f"the model refuses what is asked here ({reason})"
        return Finding(detector, Status.NOT_APPLICABLE, headline)


@dataclass(frozen=True)
class Diagnosis:
    """One cause, with every finding that it explains."""

    cause: str
    status: Status
    headline: str
    advice: str
    detectors: tuple[str, ...]
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """All findings on one model.

    Args:
        subject: what was examined, in words.
        settings: sizes, dtype and the like, in words.
        findings: one per detector at least, in the order in which they ran.
        seconds: how long it took.
    """

    subject: str
    settings: Mapping[str, str]
    findings: tuple[Finding, ...]
    seconds: float = 0.0

    @property
    def healthy(self) -> bool:
        """Whether no detector found a fault; what is merely suspicious does not count."""
        return not any(f.status is Status.FAULT for f in self.findings)

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 a fault."""
        return 0 if self.healthy else 1

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes by name, faults first: keys of `attnlab.checkup.diagnoses.CAUSES`."""
        return tuple(d.cause for d in self.diagnoses)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """The findings that are not ok, merged by cause, faults first."""
        return diagnose(self.findings)

    def finding(self, detector: str) -> Finding:
        """The gravest finding of one detector.

        Raises:
            KeyError: no detector of that name has run.
        """
        found = [f for f in self.findings if f.detector == detector]
        if not found:
            raise KeyError(
                f"no detector {detector!r}; there are {[f.detector for f in self.findings]}"
            )
        return min(found, key=lambda f: _GRAVITY.index(f.status))

    def to_json(self) -> str:
        """The whole report but for its pictures, as a JSON document."""
        return json.dumps(
            {
                "subject": self.subject,
                "healthy": self.healthy,
                "seconds": round(self.seconds, 3),
                "settings": dict(self.settings),
                "diagnoses": [_plain(d) for d in self.diagnoses],
                "findings": [_plain(f) for f in self.findings],
            },
            indent=2,
            ensure_ascii=False,
        )

    def to_html(self) -> str:
        """One self-contained page with the maps drawn."""
        from attnlab.checkup.html import page

        return page(self)

    def print(self) -> None:
        """Write tables to the terminal."""
        from attnlab.checkup.terminal import show

        show(self)


_GRAVITY = [Status.FAULT, Status.SUSPICIOUS, Status.OK, Status.NOT_APPLICABLE]


def diagnose(findings: tuple[Finding, ...]) -> tuple[Diagnosis, ...]:
    """Tell several findings of one cause as one.

    A finding joins the first other cause that explains its own (`Cause.explains`), so that a mask
    that is off by one does not appear as five separate troubles.
    """
    wrong = [f for f in findings if f.status in (Status.FAULT, Status.SUSPICIOUS)]
    present = [f.cause for f in sorted(wrong, key=lambda f: _GRAVITY.index(f.status))]
    groups: dict[str, list[Finding]] = {}
    for finding in wrong:
        groups.setdefault(_root(finding.cause, present), []).append(finding)
    merged = [_merge(cause, group) for cause, group in groups.items()]
    return tuple(sorted(merged, key=lambda d: (_GRAVITY.index(d.status), CAUSES[d.cause].rank)))


def _root(cause: str, present: list[str]) -> str:
    """Go from symptom to cause; ranks fall on the way, so it ends."""
    for other in sorted(set(present), key=lambda name: CAUSES[name].rank):
        if CAUSES[other].rank < CAUSES[cause].rank and cause in CAUSES[other].explains:
            return _root(other, present)
    return cause


def _merge(cause: str, group: list[Finding]) -> Diagnosis:
    own = [f for f in group if f.cause == cause]
    others = [f for f in group if f.cause != cause]
    evidence = [
        sentence
        for f in own
        for sentence in (*([f.headline] if f is not own[0] else []), *f.evidence)
    ]
    evidence += [f.headline for f in others]
    entry: Cause = CAUSES[cause]
    return Diagnosis(
        cause=cause,
        status=min((f.status for f in group), key=_GRAVITY.index),
        headline=own[0].headline,
        advice=entry.advice,
        detectors=tuple(dict.fromkeys(f.detector for f in own + others)),
        evidence=tuple(dict.fromkeys(evidence)),
    )


def _plain(item: Finding | Diagnosis) -> dict[str, object]:
    plain: dict[str, object] = {"status": item.status.value, "headline": item.headline}
    if isinstance(item, Diagnosis):
        return {
            "cause": item.cause,
            **plain,
            "advice": item.advice,
            "detectors": list(item.detectors),
            "evidence": list(item.evidence),
        }
    numbers = {name: _json_number(value) for name, value in item.numbers.items()}
    found = {"detector": item.detector, **plain, "cause": item.cause}
    return {**found, "numbers": numbers, "evidence": list(item.evidence)}


def _json_number(value: float) -> float | str:
    """JSON has no NaN and no infinity, so they are written as words."""
    finite = value == value and abs(value) != float("inf")
    return value if finite else str(value)
