"""What claims came out as, in Markdown: the block of a claim's page, and the table of all."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from attnlab.claims.claims import Claim, Part, verdicts
from attnlab.claims.reproduce import compose
from attnlab.errors import BadInput
from attnlab.plotting.drawing import BLACK, BLUE, GREEN
from attnlab.runs.settings import flat, last_of

BEGIN, END = "<!-- results -->", "<!-- /results -->"
GROUPS = ("model", "data", "optim", "trainer")
DRAWN = ("for", "against", "control")


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
        f"## Repeat it\n\n`attnlab reproduce {claim.name} --fresh --long` trains all of it again "
        f"and compares: {len(rows)} runs, {minutes} CPU minutes.",
        f"## Predictions\n\nHow they are judged: docs/claims.md.\n\n{prediction_table(parts)}",
        f"## Arms\n\nAn arm is one side of a comparison.\n\n{arm_table(claim, parts)}",
        fold("Every seed", seed_tables(parts)),
        fold("Settings of all arms", settings_of(claim)),
    ])  # fmt: skip


def draw(claim: Claim, parts: Sequence[Part]) -> Figure:
    """The value of each seed as a dot, beside the threshold of its prediction, for those that
    decide and controls; what agrees lies in the shaded range."""
    judged = [part for part in parts if part.values and part.prediction.role in DRAWN]
    figure = Figure(figsize=(7, 0.9 + 0.75 * len(judged)), layout="constrained")
    for axes, part in zip(figure.subplots(len(judged), squeeze=False)[:, 0], judged, strict=True):
        low, high = part.prediction.criterion.low, part.prediction.criterion.high
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
    for name, role, decided in verdicts(parts):
        prediction = claim.predictions[name]
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
        agree = f"{part.outcome.yes} of {part.outcome.n}" if part.outcome else ""
        lines.append([f"{role}{part.prediction.says}{after}", part.verdict, agree, measured(part)])
    return as_table(["prediction", "verdict", "seeds that agree", "median (95 %)"], lines)


def measured(part: Part) -> str:
    """The median with its interval; the digits follow the spread."""
    if not part.outcome or math.isnan(part.outcome.median):
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
    found: dict[tuple[str, int | None], list[str]] = {}
    for part in parts:
        for name, rows in part.rows.items():
            if rows and (name, part.steps) not in found:
                values = rows[0]["values"]
                found[name, part.steps] = [
                    name,
                    " ".join(f"`{word}`" for word in claim.arms[name]),
                    f"{values['steps']:,}" if "steps" in values else "",
                    last_of(rows[0]["overrides"]).get("optim.lr", "=").split("=")[1],
                    f"{values['parameters']:,}" if "parameters" in values else "",
                    f"{median(row['cpu_seconds'] or 0 for row in rows):.0f}",
                ]
    heads = ["arm", "overrides", "steps", "best rate", "parameters", "CPU seconds"]
    return as_table(heads, found.values())


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
    from attnlab.training.config import read_config

    cfg, _ = compose([*claim.base, "seed=0"], claim.file.resolve().parents[1])
    config = read_config(cfg)
    settings = {group: flat(config.settings[group]) for group in GROUPS}
    settings["data"] |= {"SHA-256": config.data().sha256}
    lines = ([x, ", ".join(f"{k} {v}" for k, v in of.items())] for x, of in settings.items())
    return as_table(["group", "settings"], lines)


def fold(title: str, text: str) -> str:
    """A part of a page that a reader opens."""
    return f"<details><summary>{title}</summary>\n\n{text}\n\n</details>"


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
        link = f"[{claim.name}]({claim.name}/README.md)"
        lines.append([link, claim.says, f"**{verdict_in_words(claim, verdict)}**", said])
    return as_table(["claim", "sentence", "verdict", "its first prediction, measured"], lines)
