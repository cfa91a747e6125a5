"""Claims and the ranking with their files: find, open, report, and write their pages."""

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure

from attnlab.claims import ranking
from attnlab.claims.claims import (
    PILOTS,
    Claim,
    Part,
    function,
    judge_claim,
    judge_part,
    parts_of,
    read_claim,
    read_declared,
)
from attnlab.claims.page import all_claims, came_out, draw, fill, page_block, prediction_table
from attnlab.claims.ranking_page import cell_table, ranking_block
from attnlab.claims.reproduce import Place, compose, without_rate
from attnlab.claims.rows import Rows, commit_of, of_prediction, read_renamed, undeclared
from attnlab.errors import BadInput
from attnlab.installation import is_installed, lab_path
from attnlab.plotting.drawing import as_svg, styled


def find_claims(names: Sequence[str]) -> list[Path]:
    """The claim.yaml of names or directories, in ./experiments before those of the lab; all of
    them without names. BadInput if there is none."""
    places = [lab_path("experiments"), Path("experiments")]
    known = {f.parent.name: f for place in places for f in sorted(place.glob("*/claim.yaml"))}
    if not names:
        own = sorted(places[1].glob("*/claim.yaml"))
        return sorted(own or known.values(), key=lambda file: read_claim(file).order)
    found = [Path(name, "claim.yaml") for name in names]
    found = [x if x.exists() else known.get(str(x.parent), x) for x in found]
    if lacking := [str(file.parent) for file in found if not file.exists()]:
        raise BadInput(f"there is no claim {lacking[0]}; known are: {', '.join(sorted(known))}")
    return found


def open_rows(folder: Path, own: Path, *, apart: bool = False) -> tuple[Rows, str]:
    """The rows of a claim or the ranking, and the commit of new ones. They are appended to its
    rows.jsonl, or to `own` if they are kept apart, or are not those of a clean commit."""
    commit, files = commit_of(folder), [folder / "rows.jsonl"]
    if apart or not commit or commit.endswith("+") or is_installed():
        files.append(own)
    return Rows(*files, renamed=read_renamed(folder.parent)), commit


@dataclass(frozen=True)
class OpenClaim:
    """A claim with its rows, and where new ones are made."""

    claim: Claim
    rows: Rows
    place: Place
    committed: Rows  # those in its directory

    def undeclared(self, parts: Sequence[Part]) -> str:
        """Why the rows of predictions are not a declared test, in a sentence; or nothing."""
        made = {(row["commit"], part.of) for part in parts for of_arm in part.rows.values()
                for row in of_arm}  # fmt: skip
        declared = partial(of_prediction, renamed=self.rows.renamed)
        return undeclared(self.place.folder / "claim.yaml", sorted(made), declared)

    def report(self, *, pilots: bool = False, fresh: bool = False) -> str:
        """What came out, in Markdown; with `fresh`, also how far it is from committed rows."""
        if pilots:
            parts = [replace(part, seeds=PILOTS) for part in parts_of(self.claim)]
            return prediction_table([judge_part(part, self.rows) for part in parts])
        verdict, parts = judge_claim(self.claim, self.rows)
        said = [came_out(self.claim, verdict, parts), prediction_table(parts)]
        said += filter(None, [self.undeclared(parts)])
        if fresh:
            then = judge_claim(self.claim, self.committed)[1]
            apart = [0.0 if x == y else abs(x - y) for a, b in zip(parts, then, strict=True)
                     for x, y in zip(a.values, b.values, strict=False)]  # fmt: skip
            equal = f"{apart.count(0)} of {len(apart)} values are those of the committed rows"
            said.append(f"{equal}; the most different one by {max(apart, default=0):.2g}")
        return "\n\n".join(said)


def open_claim(file: Path, outputs: Path, *, fresh: bool = False) -> OpenClaim:
    """A claim with its rows. With `fresh`, committed ones choose the learning rates, and the test
    is run again."""
    claim, folder = read_claim(file), file.parent.resolve()
    if str(folder.parents[1]) not in sys.path:
        sys.path.append(str(folder.parents[1]))  # of experiments.NAME; last: it replaces no other
    own = outputs.resolve() / folder.name / ("fresh.jsonl" if fresh else "rows.jsonl")
    rows, commit = open_rows(folder, own)
    committed = Rows(folder / "rows.jsonl", renamed=rows.renamed)
    if fresh:
        rows = Rows(own, renamed=rows.renamed)
        rows.update({run: row for run, row in committed.items() if run.seed >= PILOTS[0]})
    reads: dict[tuple[str, ...], set[str]] = {}
    for part in parts_of(claim):
        for arm in part.arms if part.prediction.read else ():
            reads.setdefault(without_rate(arm.overrides), set()).add(part.prediction.read)
    return OpenClaim(claim, rows, Place(folder, own.parent, commit, reads), committed)


def publish(work: Sequence[OpenClaim]) -> list[Path]:
    """Write the figures and pages of claims from their committed rows, and the table of all;
    BadInput if rows are not those of a declared test."""
    written, judged = [], []
    for each in work:
        verdict, parts = judge_claim(each.claim, each.committed)
        folder = each.place.folder
        if why := each.undeclared(parts):
            raise BadInput(f"{each.claim.name} cannot be published. {why}")
        save(figure_of(each, parts), folder / "figure.svg")
        fill(folder / "README.md", page_block(each.claim, verdict, parts))
        written += [folder / "figure.svg", folder / "README.md"]
        judged.append((each.claim, verdict, parts))
    table = work[0].place.folder.parent / "README.md"
    if len(work) == len(list(table.parent.glob("*/claim.yaml"))):
        fill(table, all_claims(judged))
        written.append(table)
    return written


def figure_of(each: OpenClaim, parts: Sequence[Part]) -> Figure:
    """The figure of a claim: that of its own figure.py, if it has one."""
    own = (each.place.folder / "figure.py").exists()
    make = function(each.place.folder, "figure.draw") if own else draw
    with styled():
        return make(each.claim, parts)


def save(figure: Figure, file: Path) -> None:
    """Write an SVG whose content depends on the figure alone."""
    lines = "\n".join(line.rstrip() for line in as_svg(figure).splitlines())
    file.write_text(lines + "\n", encoding="utf-8")


@dataclass(frozen=True)
class OpenRanking:
    """The ranking with its rows, and where new ones are made."""

    protocol: ranking.Protocol
    names: tuple[str, ...]  # of the variants that are run
    rows: Rows
    place: Place

    def report(self, *, quick: bool) -> str:
        """The cells of the variants that are run, in Markdown."""
        table = ranking.cells(self.protocol, self.rows, self.names)
        lengths = (1,) if quick else (1, ranking.LONG)
        return "\n\n".join(cell_table(self.protocol, table, self.names, n) for n in lengths)

    def publish(self) -> Path:
        """Write the page; BadInput if rows are not those that were declared."""
        made = ranking.made(self.protocol, self.rows)
        declared = partial(ranking.of_cell, renamed=self.rows.renamed)
        if why := undeclared(self.place.folder / "ranking.yaml", made, declared):
            raise BadInput(f"the ranking cannot be published. {why}")
        fill(self.place.folder / "README.md", ranking_block(self.protocol, self.rows))
        return self.place.folder / "README.md"


def open_ranking(folder: Path, outputs: Path, overrides: Sequence[str]) -> OpenRanking:
    """The ranking of all variants or, with overrides, of the one that they describe, if it passes
    the checkup. Rows of a variant of one's own are kept in `outputs`, by its settings and code."""
    folder, outputs = folder.resolve(), outputs.resolve()
    protocol = read_declared(folder / "ranking.yaml", ranking.Protocol)
    names = tuple(protocol.arms)
    if overrides:
        protocol, name = ranking.with_own(protocol, overrides)
        outputs /= f"{re.sub(r'[^a-zA-Z0-9_.=,-]+', '_', name)[:60]}~{checked(protocol, name)}"
        names = (name,)
    rows, commit = open_rows(folder, outputs / "rows.jsonl", apart=bool(overrides))
    return OpenRanking(protocol, names, rows, Place(folder, outputs, commit))


def checked(protocol: ranking.Protocol, name: str) -> str:
    """A digest of the settings and code of a variant; BadInput if it does not pass the checkup."""
    from attnlab.checkup import checkup
    from attnlab.training.config import read_config

    task = next(iter(protocol.tasks.values()))
    words = [*task.overrides, *protocol.overrides(name), "seed=0"]
    config = read_config(compose(words, lab_path("experiments"))[0])
    report = checkup(config.model(len(config.data().alphabet)), name=name)
    if not report.healthy:
        raise BadInput(f"{name} does not pass the checkup and is not ranked:\n{report}")
    return hashlib.sha256(repr(config.settings["attn"]).encode()).hexdigest()[:8]
