"""Claims and the ranking with their files: find, open, report, and write their pages."""

import hashlib
import re
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from attnlab.claims import page, ranking
from attnlab.claims.claims import PILOTS, Claim, Part, function, judge_claim, needed, parts_of
from attnlab.claims.reproduce import Work, composed, without_rate
from attnlab.claims.rows import Rows, commit_of, of_prediction, undeclared
from attnlab.errors import BadInput
from attnlab.installation import is_installed, lab_path
from attnlab.plotting.drawing import as_svg, styled


def find_claims(names: Sequence[str]) -> list[Claim]:
    """The claims of names or directories, in ./experiments before those of the lab; without names
    all of them in order. Their modules can be imported. BadInput if there is none."""
    places = (lab_path("experiments"), Path("experiments"))
    lab, own = ({x.parent.name: x for x in place.glob("*/claim.yaml")} for place in places)
    known = lab | own
    files = [Path(name, "claim.yaml") for name in names]
    files = [x if x.exists() else known.get(str(x.parent), x) for x in files]
    if lacking := [str(file.parent) for file in files if not file.exists()]:
        raise BadInput(f"there is no claim {lacking[0]}; known are: {', '.join(sorted(known))}")
    claims = [Claim.read(file) for file in files or (own or lab).values()]
    sys.path += {str(claim.folder.parents[1]) for claim in claims} - {*sys.path}
    return claims if names else sorted(claims, key=lambda claim: (claim.order, claim.folder))


def open_rows(folder: Path, own: Path, *, apart: bool = False) -> tuple[Rows, str]:
    """The rows of a claim or the ranking, and the commit of new ones. They are appended to its
    rows.jsonl, or to `own` if they are kept apart, or are not those of a clean commit."""
    commit, files = commit_of(folder), [folder / "rows.jsonl"]
    if apart or not commit or commit.endswith("+") or is_installed():
        files.append(own)
    return Rows(*files), commit


def open_claim(
    claim: Claim, outputs: Path, *, pilots: bool = False, long: bool = False, fresh: bool = False
) -> Work:
    """What `attnlab reproduce` does for a claim. With `fresh`, committed rows choose the learning
    rates, and the test is run again."""
    outputs = outputs.resolve() / claim.folder.name
    rows, commit = open_rows(claim.folder, outputs / "rows.jsonl")
    if fresh:
        committed, rows = Rows(claim.folder / "rows.jsonl"), Rows(outputs / "fresh.jsonl")
        rows |= {run: row for run, row in committed.items() if run.seed >= PILOTS[0]}
    parts = [part for part in parts_of(claim, rows) if part.prediction.read]
    reads = {(without_rate(arm), part.prediction.read) for part in parts for arm in part.arms}
    missing = partial(needed, claim, rows, pilots=pilots, long=long)
    said = partial(report, claim, rows, pilots=pilots, fresh=fresh)
    return Work(claim.folder, outputs, rows, commit, missing, said, reads)


def report(claim: Claim, rows: Rows, *, pilots: bool = False, fresh: bool = False) -> str:
    """What came out, in Markdown; with `fresh`, also how far it is from committed rows."""
    if pilots:
        return page.prediction_table(parts_of(claim, rows, PILOTS))
    verdict, parts = judge_claim(claim, rows)
    said = [page.came_out(claim, verdict, parts), page.prediction_table(parts)]
    said.append(exploratory(claim, parts))
    if fresh:
        then = parts_of(claim, Rows(claim.folder / "rows.jsonl"))
        apart = [0.0 if x == y else abs(x - y) for a, b in zip(parts, then, strict=True)
                 for x, y in zip(a.values, b.values, strict=False)]  # fmt: skip
        equal = f"{apart.count(0)} of {len(apart)} values are those of the committed rows"
        said.append(f"{equal}; the most different one by {max(apart, default=0):.2g}")
    return "\n\n".join(filter(None, said))


def exploratory(claim: Claim, parts: Sequence[Part]) -> str:
    """Why the rows of predictions are not a declared test, in a sentence; or nothing."""
    made = {(row["commit"], part.of) for part in parts for of in part.rows.values() for row in of}
    return undeclared(claim.file, made, of_prediction)


def publish(claims: Sequence[Claim]) -> Iterator[Path]:
    """Write the figures and pages of claims from their committed rows, and the table of all;
    BadInput if rows are not those of a declared test."""
    judged = []
    for claim in claims:
        verdict, parts = judge_claim(claim, Rows(claim.folder / "rows.jsonl"))
        if why := exploratory(claim, parts):
            raise BadInput(f"{claim.folder.name} cannot be published. {why}")
        judged.append((claim, verdict, parts))
        figure, readme = claim.folder / "figure.svg", claim.folder / "README.md"
        figure.write_text(figure_of(claim, parts), encoding="utf-8")
        page.fill(readme, page.page_block(claim, verdict, parts))
        yield from (figure, readme)
    table = claims[0].folder.parent / "README.md"
    if len(claims) == len(list(table.parent.glob("*/claim.yaml"))):
        page.fill(table, page.all_claims(judged))
        yield table


def figure_of(claim: Claim, parts: Sequence[Part]) -> str:
    """The figure of a claim as SVG: that of its own figure.py, if it has one."""
    own = (claim.folder / "figure.py").exists()
    with styled():
        figure = (function(claim.folder, "figure.draw") if own else page.draw)(claim, parts)
    return "".join(f"{line.rstrip()}\n" for line in as_svg(figure).splitlines())


def find_ranking() -> ranking.Protocol:
    """The ranking in ./experiments, or that of the lab."""
    file = Path("experiments/ranking/ranking.yaml")
    return ranking.Protocol.read(file if file.exists() else lab_path(str(file)))


def open_ranking(
    protocol: ranking.Protocol, overrides: Sequence[str], outputs: Path, *, quick: bool = False
) -> Work:
    """What `attnlab rank` does for all variants or, with overrides, for the one of the command
    line, if it passes the checkup. Its rows are kept in `outputs`, by its settings and code."""
    names, outputs = tuple(protocol.arms), outputs.resolve()
    if overrides:
        protocol, name = ranking.with_own(protocol, overrides)
        outputs /= f"{re.sub(r'[^a-zA-Z0-9_.=,-]+', '_', name)[:60]}~{checked(protocol, name)}"
        names = (name,)
    rows, commit = open_rows(protocol.folder, outputs / "rows.jsonl", apart=bool(overrides))

    def tables() -> str:
        table = ranking.cells(protocol, rows, names)
        lengths = (1,) if quick else (1, ranking.LONG)
        return "\n\n".join(page.cell_table(protocol, table, names, times) for times in lengths)

    missing = partial(ranking.needed, protocol, rows, names, quick=quick)
    return Work(protocol.folder, outputs, rows, commit, missing, tables)


def checked(protocol: ranking.Protocol, name: str) -> str:
    """A digest of the settings and code of a variant; BadInput if it does not pass the checkup."""
    from attnlab.checkup import checkup

    task = next(iter(protocol.tasks.values()))
    config, _ = composed((*task.overrides, *protocol.overrides(name)), lab_path("experiments"))
    found = checkup(config.model(len(config.data().alphabet)), name=name)
    if not found.healthy:
        raise BadInput(f"{name} does not pass the checkup and is not ranked:\n{found}")
    return hashlib.sha256(repr(config.settings.attn).encode()).hexdigest()[:8]


def publish_ranking(protocol: ranking.Protocol) -> Path:
    """Write the page; BadInput if rows are not those that were declared."""
    table = ranking.cells(protocol, Rows(protocol.folder / "rows.jsonl"), protocol.arms)
    made = {(row["commit"], f"{name} on {task}") for (name, task, _), cell in table.items()
            for row in cell.rows}  # fmt: skip
    if why := undeclared(protocol.file, made, ranking.of_cell):
        raise BadInput(f"the ranking cannot be published. {why}")
    page.fill(protocol.folder / "README.md", page.ranking_block(protocol, table))
    return protocol.folder / "README.md"
