"""What the ranking came out as, in Markdown: for the terminal and for its page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

from attnlab.claims.judge import FEWEST_JUDGED
from attnlab.claims.markdown import fill_page, markdown_table
from attnlab.claims.ranking import (
    LONG,
    Cell,
    CellKey,
    Protocol,
    Table,
    ranking_table,
    why_exploratory_cells,
)
from attnlab.claims.rows import COMMITTED, COMMITTED_AGAIN, Rows, refuse_lost_rows
from attnlab.claims.trials import Row, Run
from attnlab.errors import BadInput
from attnlab.runs.family import LEVEL, Family, family_of_answers
from attnlab.runs.seed_statistics import chance_of_wrong_verdict

COST_NAMES = {"parameters": "parameters", "flops": "FLOPs per position", "cached": "state at T"}


def ranking_report(
    protocol: Protocol,
    rows: Mapping[Run, Row],
    names: Sequence[str],
    again: Mapping[Run, Row] | None = None,
    *,
    quick: bool,
    patternless: Sequence[str] = (),
) -> str:
    """What the terminal shows of some variants: their cells, after n steps alone with `quick`; how
    likely a verdict is wrong; which were repeated, whose rows are `again`; and that nothing was
    measured of variants without an attention pattern, `patternless`."""
    table = ranking_table(protocol, rows, names, again)
    lengths = (1,) if quick else (1, LONG)
    paragraphs = [cell_table(protocol, table, names, times) for times in lengths]
    shown = cells_with_verdict({key: cell for key, cell in table.items() if key.times in lengths})
    if shown:
        paragraphs += [f"{family_in_words(shown)}.", f"{repeated_in_words(shown)}."]
    for name in patternless:
        paragraphs.append(f"{name} has no pattern, so what it reads was not measured.")
    if any(cell.other_processor for cell in shown.values()):
        paragraphs.append(
            "Some runs of the baseline are from another model of processor, whose rounding may "
            "differ; --again trains both sides on this one."
        )
    return "\n\n".join(paragraphs)


def publish_ranking(protocol: Protocol) -> Path:
    """Write the page of the ranking by its committed rows, and return it; BadInput if some were
    lost, or are not of the declared protocol."""
    refuse_lost_rows(protocol.folder)
    rows = Rows(protocol.folder / COMMITTED)
    again = Rows(protocol.folder / COMMITTED_AGAIN)
    table = ranking_table(protocol, rows, protocol.arms, again)
    if why := why_exploratory_cells(protocol, table):
        raise BadInput(f"the ranking cannot be published. {why}")
    page = protocol.folder / "README.md"
    fill_page(page, ranking_block(protocol, table))
    return page


def ranking_block(protocol: Protocol, table: Table) -> str:
    """The generated part of the page: the cells of all variants that have one that is finished,
    what may be wrong with them, costs, and what variants and tasks are."""
    # Only a finished cell has a unit.
    ranked = list(dict.fromkeys(key.variant for key, cell in table.items() if cell.unit))
    first_task = next(iter(protocol.tasks))
    costs = []
    for name in ranked:
        costs.append([name, *costs_of(table[CellKey(name, first_task, LONG)].rows)])
    variants = []
    for name in ranked:
        variant = protocol.arms[name]
        claims = f" Its paper claims: {variant.claims}." if variant.claims else ""
        variants.append(f"- **{name}**: {variant.says}.{claims}")
    tasks = [
        f"- **{name}**: {task.says}; n = {task.steps}" for name, task in protocol.tasks.items()
    ]
    return "\n\n".join([
        f"## After n steps\n\n{cell_table(protocol, table, ranked, 1)}",
        f"## After {LONG} n steps\n\n{cell_table(protocol, table, ranked, LONG)}",
        "\n".join(f"- {note}" for note in notes_on(protocol, table, ranked)),
        f"## Costs\n\n{markdown_table(['variant', *COST_NAMES.values(), 'CPU ms a step'], costs)}",
        "\n".join(["## Variants\n", *variants]),
        "\n".join(["## Tasks\n", *tasks]),
    ])  # fmt: skip


def cell_table(protocol: Protocol, table: Table, names: Iterable[str], times: int) -> str:
    """A table with a line for each variant and a column for each task: the cells after n steps
    with `times` = 1, after 4 n with 4."""
    heads = [f"{name}, {times * task.steps:,}" for name, task in protocol.tasks.items()]
    lines = []
    for name in names:
        cells = [table[CellKey(name, task, times)] for task in protocol.tasks]
        lines.append([name, *map(cell_in_words, cells)])
    return markdown_table(["variant", *heads], lines)


def cells_of_variant(folder: Path, name: str) -> tuple[Protocol, Table]:
    """The protocol of the ranking in a directory, and the cells of one of its variants by the
    committed rows and those of the repetition."""
    protocol = Protocol.read(folder / "ranking.yaml")
    again = Rows(folder / COMMITTED_AGAIN)
    return protocol, ranking_table(protocol, Rows(folder / COMMITTED), [name], again)


def variant_table(protocol: Protocol, table: Table, name: str) -> str:
    """A table with a line for each task: the cells of one variant after n and after 4 n steps."""
    lines = []
    for task in protocol.tasks:
        steps = protocol.tasks[task].steps
        cells = [table[CellKey(name, task, times)] for times in (1, LONG)]
        about = f"{task}, {steps:,} and {LONG * steps:,} steps"
        lines.append([about, *map(cell_in_words, cells)])
    return markdown_table(["task", "after n steps", f"after {LONG} n steps"], lines)


def cell_in_words(cell: Cell) -> str:
    """A cell: its verdict and median, and the difference from the partner with its interval; with
    runs that failed, a best rate at the end of the grid, another verdict of the repetition, and a
    rate that differs from the partner's, where there are any. A baseline has the median alone."""
    if not cell.unit:  # not finished
        return cell.verdict
    digits = {"nats": 3, "steps": 0, "points": 1}[cell.unit]
    if math.isfinite(cell.value):
        median_and_unit = f"{cell.value:,.{digits}f} {cell.unit}"
    elif cell.diverged:
        median_and_unit = f"{cell.diverged} diverged"
    else:
        median_and_unit = "90 % not reached"
    if cell.failed and math.isfinite(cell.value):
        median_and_unit += f", {cell.failed} of {len(cell.rows)} failed"
    if cell.at_edge:
        median_and_unit += " (best rate is the last one tried)"
    if math.isnan(cell.difference.low):  # the baseline, which is compared with nothing
        return median_and_unit
    middle, low, high = (f"{x:+,.{digits}f}".replace("inf", "∞") for x in cell.difference)
    difference = f"{middle} ({low} to {high})".replace("+nan", "unknown")
    if cell.again and cell.again.verdict != cell.first_verdict:
        both = f"{cell.first_verdict}, {cell.again.verdict}"
        difference += f"<br>not the same on two processors: {both}"
    if cell.rate != cell.partner_rate:
        difference += f"<br>rates {cell.rate:g}, {cell.partner_rate:g}"
    return f"**{cell.verdict}**: {median_and_unit}<br>{difference}"


def cells_with_verdict(table: Table) -> Table:
    """The cells of a table that have a verdict: they are finished, and not of the baseline."""
    return {key: cell for key, cell in table.items() if cell.has_verdict}


def family_of_cells(cells: Table) -> Family[CellKey]:
    """The verdicts of cells as one family, which is asked how likely any of them is wrong; each is
    by ten seeds."""
    return family_of_answers({key: (cell.verdict, FEWEST_JUDGED) for key, cell in cells.items()})


def family_in_words(cells: Table) -> str:
    """How likely any of the verdicts is wrong by chance, and whether those that are better or
    worse stand after Holm's correction. Each is by ten seeds, so all are as sure: all stand, or
    none."""
    family = family_of_cells(cells)
    one = chance_of_wrong_verdict(FEWEST_JUDGED)
    said = (
        f"{len(cells)} verdicts: by chance alone, about {len(cells) * one:.1f} would be better "
        f"or worse, and the chance that any is wrong is at most {100 * family.any_wrong:.2g} %"
    )
    holm = f"Holm's correction ({100 * LEVEL:.0f} % in all)"
    if any(family.stands.values()):
        return f"{said}; after {holm}, all that are better or worse stand"
    most_verdicts = int(LEVEL / one)  # among which Holm's correction lets one of ten seeds stand
    return f"{said}; after {holm}, none stands, as ten seeds do among {most_verdicts} at most"


def repeated_in_words(cells: Table) -> str:
    """How many verdicts were repeated with another instruction set, which one, and which verdicts
    changed."""
    used = set()
    changed = []
    repeated = 0
    for (name, task, times), cell in cells.items():
        if cell.again is None:
            continue
        repeated += 1
        used |= {row["instruction_set"] for row in cell.again.rows}
        if cell.again.verdict != cell.first_verdict:
            then = cell.again.verdict
            changed.append(f"{name} on {task} at {times} n was {cell.first_verdict}, then {then}")
    if not repeated:
        return (
            "no verdict was repeated with another instruction set, so rounding may decide one at "
            "9 or 10 of 10 seeds"
        )
    names = " and ".join(sorted(used))
    result = f"open, as they changed: {'; '.join(changed)}" if changed else "all are the same"
    return f"{repeated} of {len(cells)} verdicts were repeated on {names}: {result}"


def notes_on(protocol: Protocol, table: Table, ranked: Sequence[str]) -> list[str]:
    """What may be wrong with the table, a sentence each: chance, rates that were chosen apart,
    rounding, controls that came out otherwise than they must, and variants that were not run."""
    cells = cells_with_verdict(table)
    notes = [family_in_words(cells)]
    at_two_rates = sum(cell.rate != cell.partner_rate for cell in cells.values())
    numbers = {cell.pilots for cell in cells.values()}
    pilots = " or ".join(map(str, sorted(numbers)))
    notes.append(
        f"{at_two_rates} of them compare different learning rates, which the cell states, that of "
        f"the partner last; {pilots} pilots chose each rate, so part of a difference may be theirs"
    )
    notes.append(repeated_in_words(cells))
    if on_two_processors := sum(cell.other_processor > 0 for cell in cells.values()):
        notes.append(
            f"{on_two_processors} of them compare runs of two models of processors, whose "
            "rounding may differ, in at least one seed"
        )
    for name in ranked:
        known_verdict = protocol.arms[name].control
        if not known_verdict:  # it is no control
            continue
        wrong = []
        for key, cell in cells.items():
            if key.variant == name and cell.verdict != known_verdict:
                wrong.append(f"{key.task} at {key.times} n")
        result = f"it is not on {', '.join(wrong)}" if wrong else "it is, in every cell"
        notes.append(f"control “{name}” must be {known_verdict}: {result}")
    absent = [name for name in protocol.arms if name not in ranked]
    if absent:
        notes.append(f"not run: {', '.join(absent)}")
    return notes


def costs_of(rows: Sequence[Row]) -> list[str]:
    """The cells of a table of costs: the sizes of a variant's model, and the median of the CPU
    milliseconds of a training step; all empty if there are no rows."""
    if not rows:
        return [""] * (len(COST_NAMES) + 1)
    values = rows[0]["values"]
    sizes = values["costs"] | {"parameters": values["parameters"]}
    milliseconds = median(
        1000 * (row["cpu_seconds"] or 0) / row["values"]["steps"] for row in rows
    )
    return [*(f"{sizes[key]:,.0f}" for key in COST_NAMES), f"{milliseconds:.0f}"]
