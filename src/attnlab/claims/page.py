"""What claims and the ranking came out as, in Markdown, and the figure of a claim."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from attnlab.claims.claims import Claim, Part, verdicts
from attnlab.claims.judge import FEWEST
from attnlab.claims.ranking import LONG, VERDICTS, Cell, Protocol, Table
from attnlab.claims.reproduce import composed
from attnlab.claims.trials import Row
from attnlab.errors import BadInput
from attnlab.plotting.drawing import BLACK, BLUE, GREEN
from attnlab.runs.settings import flat, last_of

BEGIN, END = "<!-- results -->", "<!-- /results -->"
DRAWN = ("for", "against", "control")
COSTS = {"parameters": "parameters", "flops": "FLOPs per position", "cached": "state at T"}


def fill(page: Path, block: str) -> None:
    """Put generated text between the two marks of a page; all other text is written by hand."""
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise BadInput(f"{page} must contain {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n{block.strip()}\n{END}{after}", encoding="utf-8")


def page_block(claim: Claim, verdict: str, parts: Sequence[Part]) -> str:
    """The generated part of a claim's page: what came out, how to repeat it, and the details."""
    rows = {(*row["overrides"], row["seed"]): row for part in parts for of in part.rows.values()
            for row in of}  # fmt: skip
    minutes = max(1, round(sum(row["cpu_seconds"] or 0 for row in rows.values()) / 60))
    return "\n\n".join([
        came_out(claim, verdict, parts),
        "![The values of each prediction by seed, and its threshold](figure.svg)",
        f"## Repeat it\n\n`attnlab reproduce {claim.folder.name} --fresh --long` trains all of it "
        f"again and compares: {len(rows)} runs, {minutes} CPU minutes.",
        f"## Predictions\n\nHow they are judged: docs/claims.md.\n\n{prediction_table(parts)}",
        f"## Arms\n\nAn arm is one side of a comparison.\n\n{arm_table(claim, parts)}",
        f"<details><summary>Every seed</summary>\n\n{seed_tables(parts)}\n\n</details>",
        f"<details><summary>Settings of all arms</summary>\n\n{settings_of(claim)}\n\n</details>",
    ])  # fmt: skip


def draw(claim: Claim, parts: Sequence[Part]) -> Figure:
    """The value of each seed as a dot, beside the threshold of its prediction, for those that
    decide and controls; what agrees lies in the shaded range."""
    judged = [part for part in parts if part.values and part.prediction.role in DRAWN]
    figure = Figure(figsize=(7, 0.9 + 0.75 * len(judged)), layout="constrained")
    for axes, part in zip(figure.subplots(len(judged), squeeze=False)[:, 0], judged, strict=True):
        low, high = part.prediction.above, part.prediction.below
        axes.plot(part.values, [0] * len(part.values), "o", color=BLUE, alpha=0.6)
        for bound in filter(math.isfinite, {low, high}):
            axes.axvline(bound, color=BLACK, lw=1)
        left, right = axes.get_xlim()
        axes.axvspan(max(low, left), min(high, right), color=GREEN, alpha=0.1)
        axes.set_xlim(left, right)
        axes.set_yticks([])
        axes.tick_params(labelsize=9)
        after = f" ({part.steps:,} steps)" if part.steps else ""
        axes.set_title(part.prediction.says + after, loc="left", fontsize=10)
        axes.set_xlabel(part.prediction.unit, fontsize=10)
    return figure


def came_out(claim: Claim, verdict: str, parts: Sequence[Part]) -> str:
    """The verdict, and where the sentence is true, false and undecided, in the author's words."""
    lines = [f"**“{claim.says}” {verdict_in_words(claim, verdict)}.**", ""]
    found: dict[str, list[str]] = {"True": [], "False": [], "Undecided": []}
    for prediction, decided in verdicts(parts):
        role = prediction.role
        if role in ("for", "against"):
            true = (decided == "confirmed") == (role == "for")
            key = "Undecided" if decided == "open" else "True" if true else "False"
            found[key].append(prediction.where or prediction.says.rstrip("."))
        elif role == "control" and decided != "confirmed":
            found["Undecided"].append(f"nothing follows: {prediction.says.rstrip('.')}: {decided}")
    return "\n".join([*lines, *(f"- {key}: {x}" for key, of in found.items() for x in of)])


def verdict_in_words(claim: Claim, verdict: str) -> str:
    """The verdict on the sentence; for one that does not hold, what was shown instead."""
    if verdict == "does not hold" and claim.otherwise:
        return f"was not found: {claim.otherwise}"
    return {"open": "is undecided", "holds only if": "holds only in part"}.get(verdict, verdict)


def prediction_table(parts: Sequence[Part]) -> str:
    """One line a prediction: its sentence, verdict, seeds that agree, and median with interval."""
    roles = {"for": "", "shown": "", "against": "against the sentence: "}
    lines = []
    for part in parts:
        role = roles.get(part.prediction.role, f"{part.prediction.role}: ")
        after = f" After {part.steps:,} steps." if part.steps else ""
        agree = f"{part.outcome.yes} of {part.outcome.n}" if part.values else ""
        lines.append([f"{role}{part.prediction.says}{after}", part.verdict, agree, measured(part)])
    return as_table(["prediction", "verdict", "seeds that agree", "median (95 %)"], lines)


def measured(part: Part) -> str:
    """The median with its interval; the digits follow the spread."""
    if math.isnan(part.outcome.median):
        return ""
    middle, low, high = part.outcome.median, part.outcome.low, part.outcome.high
    spread = high - low if high > low else max(part.values) - min(part.values) or abs(middle)
    said = f"{in_digits(middle, spread)} {part.prediction.unit}".strip()
    if math.isnan(low):
        return said
    return f"{said} ({in_digits(low, spread)} to {in_digits(high, spread)})"


def in_digits(value: float, spread: float) -> str:
    """A number with two digits of its spread."""
    if not (math.isfinite(spread) and spread > 0):
        return f"{value:g}"
    digits = max(0, 1 - math.floor(math.log10(spread)))
    return f"{value:.{digits}f}" if digits <= 6 else f"{value:.1e}"


def arm_table(claim: Claim, parts: Sequence[Part]) -> str:
    """One line an arm and length: what it changes, learning rate, parameters, CPU time, metric."""
    found: dict[tuple[str, int | None], list[Row]] = {}
    for part in parts:
        for name, rows in part.rows.items():
            found.setdefault((name, part.steps), rows)
    lines = []
    for (name, _), rows in found.items():
        values = rows[0]["values"]
        lines.append([
            name,
            " ".join(f"`{word}`" for word in claim.arms[name]),
            f"{values['steps']:,}" if "steps" in values else "",
            last_of(rows[0]["overrides"]).get("optim.lr", "=").split("=")[1],
            f"{values['parameters']:,}" if "parameters" in values else "",
            f"{median(row['cpu_seconds'] or 0 for row in rows):.0f}",
        ])  # fmt: skip
    heads = ["arm", "overrides", "steps", "best rate", "parameters", "CPU seconds"]
    return as_table(heads, lines)


def seed_tables(parts: Sequence[Part]) -> str:
    """The metric of every arm and the value that is judged, by seed."""
    blocks = []
    for part in parts:
        columns = [*part.scores.values(), part.values]
        spreads = [max(x) - min(x) for x in columns if x]
        spread = min((x for x in spreads if x > 0), default=0.0)
        of_seeds = zip(part.seeds, *columns, strict=False)
        lines = [[f"{seed}", *(in_digits(x, spread) for x in of)] for seed, *of in of_seeds]
        title = f"`{part.name}`: {part.prediction.metric}"
        blocks.append(f"{title}\n\n{as_table(['seed', *part.scores, 'judged'], lines)}")
    return "\n\n".join(blocks)


def settings_of(claim: Claim) -> str:
    """The settings that all arms share, as today's conf resolves them."""
    config, _ = composed(claim.base, claim.folder.parent)
    settings = {x: flat(config.settings.plain()[x]) for x in ("model", "data", "optim", "trainer")}
    settings["data"] |= {"SHA-256": config.data().sha256}
    lines = ([x, ", ".join(f"{k} {v}" for k, v in of.items())] for x, of in settings.items())
    return as_table(["group", "settings"], lines)


def as_table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |".replace("  ", " ") for row in rows)


def all_claims(judged: Sequence[tuple[Claim, str, Sequence[Part]]]) -> str:
    """The table of all claims: the sentence, its verdict, and its first prediction."""
    lines = []
    for claim, verdict, parts in sorted(judged, key=lambda each: each[0].order):
        first = parts[0]
        said = f"{first.prediction.says} {measured(first)}"
        link = f"[{claim.folder.name}]({claim.folder.name}/README.md)"
        lines.append([link, claim.says, f"**{verdict_in_words(claim, verdict)}**", said])
    return as_table(["claim", "sentence", "verdict", "its first prediction, measured"], lines)


def ranking_block(protocol: Protocol, table: Table) -> str:
    """The generated part of the page, of all variants that were run."""
    run = list(dict.fromkeys(name for (name, *_), cell in table.items() if cell.unit))
    costs = [[n, *costs_of(table[n, next(iter(protocol.tasks)), LONG].rows)] for n in run]
    said = {n: f" Its paper claims: {x.claims}." for n, x in protocol.arms.items() if x.claims}
    variants = [f"- **{n}**: {protocol.arms[n].says}.{said.get(n, '')}" for n in run]
    tasks = [f"- **{n}**: {task.says}; n = {task.steps}" for n, task in protocol.tasks.items()]
    return "\n\n".join([
        f"## After n steps\n\n{cell_table(protocol, table, run, 1)}",
        f"## After {LONG} n steps\n\n{cell_table(protocol, table, run, LONG)}",
        "\n".join(f"- {note}" for note in notes(protocol, table, run)),
        f"## Costs\n\n{as_table(['variant', *COSTS.values(), 'CPU ms a step'], costs)}",
        "\n".join(["## Variants\n", *variants]),
        "\n".join(["## Tasks\n", *tasks]),
    ])  # fmt: skip


def cell_table(protocol: Protocol, table: Table, names: Iterable[str], times: int) -> str:
    """The cells of some variants at one length."""
    heads = [f"{name}, {times * task.steps:,}" for name, task in protocol.tasks.items()]
    lines = [[n, *(words(table[n, t, times]) for t in protocol.tasks)] for n in names]
    return as_table(["variant", *heads], lines)


def words(cell: Cell) -> str:
    """A cell: the verdict, the median, and the difference with its interval."""
    if not cell.unit:
        return cell.verdict
    digits = {"nats": 3, "steps": 0}.get(cell.unit, 1)
    said = f"{cell.value:,.{digits}f} {cell.unit}"
    if not math.isfinite(cell.value):
        said = f"{cell.diverged} diverged" if cell.diverged else "90 % not reached"
    if cell.at_edge:
        said += " (best rate is the last one tried)"
    if math.isnan(cell.difference[1]):
        return said
    a, b, c = (f"{x:+,.{digits}f}".replace("inf", "∞") for x in cell.difference)
    return f"**{cell.verdict}**: {said}<br>{a} ({b} to {c})".replace("+nan", "unknown")


def notes(protocol: Protocol, table: Table, run: Sequence[str]) -> list[str]:
    """What may be wrong with the table."""
    judged = {k: c for k, c in table.items() if c.verdict in VERDICTS.values()}
    chance = f"{len(judged) * 2 * 0.5**FEWEST:.1f}"
    found = [f"{len(judged)} verdicts; by chance alone, about {chance} would be better or worse"]
    for name in run:
        if must := protocol.arms[name].control:
            bad = [f"{t} at {n} n" for (a, t, n), c in judged.items()
                   if a == name and c.verdict != must]  # fmt: skip
            said = f"it is not on {', '.join(bad)}" if bad else "it is, in every cell"
            found.append(f"control “{name}” must be {must}: {said}")
    if absent := [name for name in protocol.arms if name not in run]:
        found.append(f"not run: {', '.join(absent)}")
    return found


def costs_of(rows: Sequence[Row]) -> list[str]:
    """Sizes of a variant's model, and its CPU time."""
    if not rows:
        return [""] * (len(COSTS) + 1)
    values = rows[0]["values"]
    known = values["costs"] | {"parameters": values["parameters"]}
    milliseconds = median(1000 * row["cpu_seconds"] / row["values"]["steps"] for row in rows)
    return [*(f"{known[key]:,.0f}" for key in COSTS), f"{milliseconds:.0f}"]
