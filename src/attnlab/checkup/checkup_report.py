"""The report of a checkup: its diagnoses, as text, JSON and HTML."""

import json
import math
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files
from shutil import get_terminal_size

from torch import Tensor

from attnlab.checkup.findings import (
    FAULT,
    NOT_APPLICABLE,
    OK,
    SEVERITY,
    SUSPICIOUS,
    Finding,
    Status,
    causes,
)  # fmt: skip
from attnlab.errors import printable

_COLOR = {OK: "32", FAULT: "1;31", SUSPICIOUS: "33", NOT_APPLICABLE: "2"}  # of terminals


@dataclass(frozen=True)
class Diagnosis:
    """One cause with all findings that it explains."""

    cause: str
    status: Status
    headline: str
    advice: str
    detectors: tuple[str, ...]
    evidence: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Report:
    """All findings on one model."""

    subject: str  # the name of what was examined
    settings: Mapping[str, str]  # sizes, dtype and the like, as text
    findings: tuple[Finding, ...]  # one per detector at least, in the order in which they ran
    seconds: float = 0.0
    error: str = ""  # the traceback if the model raised an error during the examination
    unseen: tuple[str, ...] = ()  # what was not looked at, for lack of time or knowledge
    severity: Mapping[str, str] = field(default_factory=dict)  # of causes, instead of the usual

    @property
    def healthy(self) -> bool:
        """Whether the examination was completed and found no fault; suspicions do not count."""
        return not self.error and not any(d.status is FAULT for d in self.diagnoses)

    def __repr__(self) -> str:
        return f"Report({self.subject}: {self.verdict})"

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
        merged = [replace(d, status=Status(self.severity.get(d.cause, d.status))) for d in merged]
        merged = [d for d in merged if d.status is not OK]
        merged.sort(key=lambda d: (SEVERITY.index(d.status), causes()[d.cause].rank))
        return tuple(merged)

    def finding(self, detector: str) -> Finding:
        """The most severe finding of a detector; KeyError if no detector of that name has run."""
        found = [f for f in self.findings if f.detector == detector]
        if not found:
            known = [f.detector for f in self.findings]
            raise KeyError(f"no detector {detector!r}; there are {known}")
        return min(found, key=lambda f: SEVERITY.index(f.status))

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
            "verdict": self.verdict,
            "unseen": list(self.unseen),
            "seconds": round(self.seconds, 3),
            "error": self.error,
            "settings": dict(self.settings),
            "diagnoses": [vars(d) for d in self.diagnoses],
            "findings": findings,
        }
        return json.dumps(report, indent=2, ensure_ascii=False)

    def to_html(self) -> str:
        """A self-contained page with drawings of the maps."""
        from jinja2 import Environment

        text = files("attnlab.checkup").joinpath("report.html.j2").read_text(encoding="utf-8")
        named = {title: map_ for f in self.findings for title, map_ in f.maps.items()}
        pictures = [{"title": title, "svg": _draw_map(m, title)} for title, m in named.items()]
        titles = {name: cause.title for name, cause in causes().items()}
        template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        return template.from_string(text).render(report=self, pictures=pictures, titles=titles)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        if not self.healthy:
            return "The examination failed" if self.error else "Faulty"
        blind = any(f.detector == "inside" for f in self.findings)
        where = " from outside; inside not examined" if blind else ""
        return f"Healthy{where}{', with suspicions' if self.diagnoses else ''}"

    def summary(self, diagnoses: Sequence[Diagnosis] | None = None, width: int = 100) -> str:
        """The gravest diagnoses, or of those given, what was not looked at, and the verdict."""
        lines, told = [], self.diagnoses if diagnoses is None else diagnoses
        for number, d in enumerate(told[:3], 1):
            lines += [f"{number}. {causes()[d.cause].title} [{d.status.value}]: {d.headline}"]
            lines += [f"   evidence: {sentence}" for sentence in d.evidence[:1]]
            lines += [f"   cause: {d.cause}, seen by {', '.join(d.detectors)}"]
            lines += [f"   fix: {d.advice}"]
        lines += [f"{len(told) - 3} more are in the report"] * (len(told) > 3)
        lines += self.error.splitlines()[-8:]
        if self.unseen:
            lines.append(f"Not looked at: {'; '.join(self.unseen)}.")
        lines.append(f"{self.verdict}; examined in {self.seconds:.1f} s.")
        return "\n".join(_wrapped(line, 3, width) for line in lines)

    def to_text(self, *, color: bool = False, width: int = 100) -> str:
        """The report as it is printed, in `width` columns: every detector, then the summary."""
        settings = ", ".join(f"{name} {value}" for name, value in self.settings.items())
        lines = [_wrapped(f"{printable(self.subject)}  ({settings})", 0, width)]
        number = {name: str(n) for n, d in enumerate(self.diagnoses, 1) for name in d.detectors}
        for f in self.findings:
            status = f"{f.status.value:15}"
            said = f"see {number[f.detector]}" if f.cause and f.detector in number else f.headline
            line = _wrapped(f"{f.detector:14}{status} {said}", 30, width)
            shown = f"\x1b[{_COLOR[f.status]}m{status}\x1b[0m"
            lines.append(line.replace(status, shown, 1) if color else line)
        return "\n".join([*lines, "", self.summary(width=width)])

    def print(self) -> None:
        """Print the report in the width of the terminal, at most 100 columns."""
        width = min(get_terminal_size((100, 24)).columns, 100)
        print(self.to_text(color=sys.stdout.isatty(), width=width))


def _wrapped(line: str, indent: int, width: int) -> str:
    return textwrap.fill(line, width, subsequent_indent=" " * indent, break_on_hyphens=False)


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
        status=min((f.status for f in group), key=SEVERITY.index),
        headline=headline,
        advice=causes()[cause].advice,
        detectors=tuple(dict.fromkeys(f.detector for f in own + others)),
        evidence=tuple(dict.fromkeys(evidence)),
    )


def _draw_map(map_: Tensor, title: str) -> str:
    """Draw a (T, T) map of shares from 0 to 1 as SVG text, on a logarithmic scale.

    Blue and orange are those of the explorer: orange entries are above the diagonal, where a
    causal model has nothing. NaN is gray.
    """
    from matplotlib.colors import LogNorm

    from attnlab.plotting.drawing import panels, styled, svg

    values, least = map_.detach().cpu().double(), 1e-8  # shares below it are drawn as nothing
    future = values.new_ones(values.shape).triu(1).bool()
    with styled():
        figure, (axes,) = panels(1, width=5.2, height=3.8)
        axes.set_facecolor("#dddddd")
        for part, colors, name in ((future, "Oranges", "later"), (~future, "Blues", "earlier")):
            shown = values.clamp_min(least).masked_fill(~part, math.nan).numpy()
            drawn = axes.imshow(shown, cmap=colors, norm=LogNorm(least, 1), interpolation="none")
            bar = figure.colorbar(drawn, shrink=0.8, pad=0.02)
            bar.ax.set_title(name, fontsize=9)
        axes.set(xlabel="key: position that is read", ylabel="query: position that reads")
        axes.grid(visible=False)
        return svg(figure, title)
