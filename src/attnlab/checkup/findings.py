"""The result of a checkup: one finding or more per detector, and a report that merges them."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from attnlab.checkup.diagnoses import CAUSES
from attnlab.errors import first_line


class Status(str, Enum):
    """The result of a detector."""

    OK = "ok"
    SUSPICIOUS = "suspicious"
    FAULT = "fault"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True)
class Finding:
    """What one detector found.

    Args:
        detector: its name, as in the table in docs/checkup.md.
        status: the result.
        headline: one sentence that names positions, layers and numbers.
        cause: a key of `attnlab.checkup.diagnoses.CAUSES`; "" if nothing is wrong.
        numbers: the measurements, by name.
        evidence: further sentences that say how it is known.
        maps: (T, T) maps by title, for the HTML page.
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
    """Run a detector that calls a model in an unusual way, which the model may not support.

    Args:
        refusals: errors that mean so; the finding is then "not applicable" with the reason.
    """
    try:
        return examine()
    except refusals as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        headline = f"the model does not support this ({reason})"
        return Finding(detector, Status.NOT_APPLICABLE, headline)


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
    """All findings on one model.

    Args:
        subject: the name of what was examined.
        settings: sizes, dtype and the like, as text.
        findings: one per detector at least, in the order in which they ran.
        seconds: how long it took.
        error: if the model raised an error during the examination, its traceback; otherwise "".
    """

    subject: str
    settings: Mapping[str, str]
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    error: str = ""

    @property
    def healthy(self) -> bool:
        """Whether the examination was completed and found no fault; suspicions do not count."""
        return not self.error and not any(f.status is Status.FAULT for f in self.findings)

    @property
    def exit_code(self) -> int:
        """0: healthy, 1: a fault was found, 3: the examination itself failed."""
        if self.error:
            return 3
        return 0 if self.healthy else 1

    @property
    def causes(self) -> tuple[str, ...]:
        """The names of the causes, faults first: keys of `attnlab.checkup.diagnoses.CAUSES`."""
        return tuple(d.cause for d in self.diagnoses)

    @property
    def diagnoses(self) -> tuple[Diagnosis, ...]:
        """All faults and suspicions, merged by cause, faults first."""
        return diagnose(self.findings)

    def finding(self, detector: str) -> Finding:
        """The most severe finding of a detector.

        Raises:
            KeyError: no detector of that name has run.
        """
        found = [f for f in self.findings if f.detector == detector]
        if not found:
            raise KeyError(
                f"no detector {detector!r}; there are {[f.detector for f in self.findings]}"
            )
        return min(found, key=lambda f: _SEVERITY.index(f.status))

    def to_json(self) -> str:
        """The whole report except the maps, as a JSON document."""
        return json.dumps(
            {
                "subject": self.subject,
                "healthy": self.healthy,
                "seconds": round(self.seconds, 3),
                "error": self.error,
                "settings": dict(self.settings),
                "diagnoses": [_plain(d) for d in self.diagnoses],
                "findings": [_plain(f) for f in self.findings],
            },
            indent=2,
            ensure_ascii=False,
        )

    def to_html(self) -> str:
        """A self-contained page with drawings of the maps."""
        from attnlab.checkup.html import page

        return page(self)

    def print(self) -> None:
        """Print the report to the terminal."""
        from attnlab.checkup.terminal import show

        show(self)


_SEVERITY = [Status.FAULT, Status.SUSPICIOUS, Status.OK, Status.NOT_APPLICABLE]


def diagnose(findings: tuple[Finding, ...]) -> tuple[Diagnosis, ...]:
    """Merge findings with a common cause.

    A finding is assigned to the most specific cause present that explains its own
    (`Cause.explains`), so that a mask that is off by one is one diagnosis, not five.
    """
    wrong = [f for f in findings if f.status in (Status.FAULT, Status.SUSPICIOUS)]
    present = [f.cause for f in sorted(wrong, key=lambda f: _SEVERITY.index(f.status))]
    groups: dict[str, list[Finding]] = {}
    for finding in wrong:
        groups.setdefault(_root(finding.cause, present), []).append(finding)
    merged = [_merge(cause, group) for cause, group in groups.items()]
    return tuple(sorted(merged, key=lambda d: (_SEVERITY.index(d.status), CAUSES[d.cause].rank)))


def _root(cause: str, present: list[str]) -> str:
    """Follow a symptom to its cause. Ranks decrease on the way, so this ends."""
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
    return Diagnosis(
        cause=cause,
        status=min((f.status for f in group), key=_SEVERITY.index),
        headline=own[0].headline,
        advice=CAUSES[cause].advice,
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
    # JSON has no NaN and no infinity, so they are written as text.
    numbers = {
        n: value if math.isfinite(value) else str(value) for n, value in item.numbers.items()
    }
    found = {"detector": item.detector, **plain, "cause": item.cause}
    return {**found, "numbers": numbers, "evidence": list(item.evidence)}
