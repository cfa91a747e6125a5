"""Claims and the ranking with their files: find, run, judge, and write their pages."""

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure

from attnlab.claims import ranking
from attnlab.claims.claims import (
    PILOTS,
    Claim,
    Part,
    function,
    judge_claim,
    judge_part,
    needed,
    parts_of,
    read_claim,
)
from attnlab.claims.page import all_claims, came_out, fill, page_block, prediction_table
from attnlab.claims.ranking_page import cell_table, draw, ranking_block
from attnlab.claims.reproduce import RANKING, Place, compose, run_missing, train_run
from attnlab.claims.rows import UNCHECKED, Rows, commit_of, read_renamed, undeclared
from attnlab.claims.trials import Run
from attnlab.errors import BadInput
from attnlab.installation import is_installed, lab_path
from attnlab.plotting.drawing import styled


def find_claims(names: Sequence[str]) -> list[Path]:
    """The claim.yaml of names or directories, in ./experiments before those of the lab; all of
    them without names. BadInput if there is none."""
    places = [Path("experiments"), lab_path("experiments")]
    if not names:
        place = places[0] if any(places[0].glob("*/claim.yaml")) else places[1]
        return sorted(place.glob("*/claim.yaml"), key=lambda file: (read_claim(file).order, file))
    found = []
    for name in names:
        files = [folder / "claim.yaml" for folder in (Path(name), *(p / name for p in places))]
        file = next((file for file in files if file.exists()), None)
        if file is None:
            known = ", ".join(
                sorted(f.parent.name for p in places for f in p.glob("*/claim.yaml"))
            )
            raise BadInput(f"there is no claim {name}; known are: {known}")
        found.append(file)
    return found


@dataclass(frozen=True)
class OpenClaim:
    """A claim with its rows, and where new ones are made."""

    claim: Claim
    rows: Rows
    place: Place
    committed: Rows  # those in its directory
    fresh: bool

    @property
    def exploratory(self) -> str:
        """Why new rows are not committed, in a sentence; empty if they may be."""
        if not self.place.commit:
            return UNCHECKED.format(why="this is not a git repository")
        if self.place.commit.endswith("+"):
            return "Exploratory: there are uncommitted changes, so rows go to outputs."
        return ""

    def needed(self, *, pilots: bool, long: bool) -> list[Run]:
        """The runs that can be made now."""
        return needed(self.claim, self.rows, pilots=pilots, long=long)

    def run(self, *, pilots: bool, long: bool, jobs: int, minutes: float | None) -> bool:
        """Run what is missing; False if the time was over."""
        return run_missing(
            partial(self.needed, pilots=pilots, long=long),
            self.rows,
            self.place,
            train=train_run,
            jobs=jobs,
            minutes=minutes,
        )

    def judged(self, rows: Rows | None = None) -> tuple[str, list[Part]]:
        """The verdict and its parts."""
        return judge_claim(self.claim, self.rows if rows is None else rows)

    def report(self, *, pilots: bool = False) -> str:
        """What came out, in Markdown."""
        if pilots:
            parts = [replace(part, seeds=PILOTS) for part in parts_of(self.claim)]
            return prediction_table([judge_part(part, self.rows) for part in parts])
        verdict, parts = self.judged()
        said = [came_out(self.claim, verdict, parts), prediction_table(parts)]
        said.append(undeclared(self.claim.file.resolve(), parts, self.rows.renamed))
        if self.fresh:
            said.append(self.agreement(parts))
        return "\n\n".join(filter(None, said))

    def agreement(self, parts: Sequence[Part]) -> str:
        """How far new values are from those of the committed rows."""
        then = {part.name: part.values for part in self.judged(self.committed)[1]}
        apart = [
            abs(new - old)
            for part in parts
            for new, old in zip(part.values, then[part.name], strict=False)
        ]
        equal = sum(each == 0 for each in apart)
        most = max(apart, default=0.0)
        said = f"{equal} of {len(apart)} values are those of the committed rows"
        return f"{said}; the most different one by {most:.2g}"


def open_claim(
    file: Path, outputs: Path, *, fresh: bool = False, config_dir: Path | None = None
) -> OpenClaim:
    """A claim; new rows are appended to its rows.jsonl if the tree is clean, otherwise to one in
    `outputs`. With `fresh`, committed rows choose learning rates, and the test is run again."""
    claim, folder = read_claim(file), file.parent
    here = [str(folder.resolve()), str(folder.resolve().parent)]  # modules of claims
    sys.path += [place for place in here if place not in sys.path]  # last: they replace no other
    commit, own = commit_of(folder), outputs / file.parent.name / "rows.jsonl"
    renamed = read_renamed(folder.parent)
    committed = Rows(file.with_name("rows.jsonl"), renamed=renamed)
    if fresh:
        rows = Rows(own.with_name("fresh.jsonl"), renamed=renamed)
        rows.update({run: row for run, row in committed.items() if run.seed >= 1000})
    elif commit and not commit.endswith("+") and not is_installed():
        rows = committed
    else:
        rows = Rows(committed.file, own, renamed=renamed)
    reads = {each.read: None for each in claim.predictions.values() if each.read}
    place = Place(folder.resolve(), own.parent.resolve(), commit, tuple(reads), config_dir)
    return OpenClaim(claim, rows, place, committed, fresh)


def publish(work: Sequence[OpenClaim]) -> list[Path]:
    """Write the figures and pages of claims from their committed rows, and the table of all;
    BadInput if rows are not those of a declared test."""
    written, judged = [], []
    for each in work:
        verdict, parts = each.judged(each.committed)
        file = each.claim.file
        if why := undeclared(file.resolve(), parts, each.committed.renamed):
            raise BadInput(f"{each.claim.name} cannot be published. {why}")
        if file.with_name("figure.py").exists():
            with styled():
                figure = function(file.parent.resolve(), "figure.draw")(each.claim, parts)
                save(figure, file.with_name("figure.svg"))
        fill(page := file.with_name("README.md"), page_block(each.claim, verdict, parts))
        written.append(page)
        judged.append((each.claim, verdict, parts))
    table = work[0].claim.file.parents[1] / "README.md"
    if len(work) == len(list(table.parent.glob("*/claim.yaml"))):
        fill(table, all_claims(judged))
        written.append(table)
    return written


def save(figure: Figure, file: Path) -> None:
    """Write an SVG whose content depends on the figure alone."""
    with rc_context({"svg.hashsalt": "attnlab", "svg.fonttype": "none"}):
        figure.savefig(file, metadata={"Date": None, "Creator": None})
    text = file.read_text(encoding="utf-8")
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    file.write_text(lines + "\n", encoding="utf-8")


@dataclass(frozen=True)
class OpenRanking:
    """The ranking with its rows, and where new ones are made."""

    protocol: ranking.Protocol
    names: tuple[str, ...]  # of the variants that are run
    rows: Rows
    place: Place

    def needed(self, *, quick: bool) -> list[Run]:
        """The runs that can be made now."""
        names = dict.fromkeys([*self.names, *map(self.protocol.partner, self.names)])
        return ranking.needed(self.protocol, self.rows, names, quick=quick)

    def run(self, *, quick: bool, jobs: int, minutes: float | None) -> bool:
        """Run what is missing; False if the time was over."""
        return run_missing(
            partial(self.needed, quick=quick),
            self.rows,
            self.place,
            train=train_run,
            jobs=jobs,
            minutes=minutes,
        )

    def report(self, *, quick: bool) -> str:
        """The cells of the variants that are run, in Markdown."""
        table = ranking.cells(self.protocol, self.rows, self.names)
        said = [cell_table(self.protocol, table, self.names, 1)]
        if not quick:
            said.append(cell_table(self.protocol, table, self.names, ranking.LONG))
        return "\n\n".join(said)

    def publish(self) -> list[Path]:
        """Write the page and its figure; BadInput if rows are not those that were declared."""
        folder = self.place.folder
        file = folder / "ranking.yaml"
        if why := ranking.undeclared(file, self.protocol, self.rows, self.rows.renamed):
            raise BadInput(f"the ranking cannot be published. {why}")
        with styled():
            save(draw(self.protocol, self.rows), folder / "figure.svg")
        fill(folder / "README.md", ranking_block(self.protocol, self.rows))
        return [folder / "figure.svg", folder / "README.md"]


def open_ranking(
    folder: Path, outputs: Path, overrides: Sequence[str], config_dir: Path | None = None
) -> OpenRanking:
    """The ranking of all variants or, with overrides, of the one that they describe, if it passes
    the checkup. Rows of a variant of one's own are kept in `outputs`, by its code."""
    protocol = ranking.read_protocol(folder / "ranking.yaml")
    files, commit, names = [folder / "rows.jsonl"], commit_of(folder), tuple(protocol.arms)
    if overrides:
        protocol, name = ranking.with_own(protocol, overrides)
        names, outputs = (
            (name,),
            outputs / f"{file_name(name)}~{checked(protocol, name, config_dir)}",
        )
    if overrides or not commit or commit.endswith("+") or is_installed():
        files.append(outputs / "rows.jsonl")
    rows = Rows(*files, renamed=read_renamed(folder.parent))
    place = Place(folder.resolve(), outputs.resolve(), commit, (RANKING,), config_dir)
    return OpenRanking(protocol, names, rows, place)


def checked(protocol: ranking.Protocol, name: str, config_dir: Path | None) -> str:
    """A digest of the settings and code of a variant; BadInput if it does not pass the checkup."""
    from attnlab.checkup import checkup
    from attnlab.training.config import read_config

    task = next(iter(protocol.tasks.values()))
    words = [*task.overrides, *protocol.overrides(name), "seed=0"]
    cfg, _ = compose(words, lab_path("experiments"), config_dir)
    config = read_config(cfg)
    report = checkup(config.model(len(config.data().alphabet)), name=name)
    if not report.healthy:
        raise BadInput(f"{name} does not pass the checkup and is not ranked:\n{report}")
    return hashlib.sha256(repr(config.settings["attn"]).encode()).hexdigest()[:8]


def file_name(name: str) -> str:
    """A name that a directory may have."""
    return re.sub(r"[^\w.=,-]+", "_", name)[:60]
