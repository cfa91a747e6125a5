"""Fill the numbers of README.md, docs/ and the pages of claims from the rows of the claims.

    python scripts/fill_pages.py

    <!-- claim.says -->...<!-- / -->               the claim's sentence
    <!-- claim -->...<!-- / -->                    the verdict on it, with what limits its reach
    <!-- claim.reach -->...<!-- / -->              on which models, steps, rates and processors
    <!-- claim.risk -->...<!-- / -->               how many of what decides was at risk
    <!-- claim.withdrawn -->...<!-- / -->          why that was withdrawn
    <!-- claim.prediction -->...<!-- / -->         median of its values, with an interval
    <!-- claim.prediction@arm -->...<!-- / -->     median of the metric of one of its arms
    <!-- claim.prediction# -->...<!-- / -->        how many seeds agree
    <!-- claim.prediction+ -->...<!-- / -->        in how many seeds its value is above 0
    <!-- claim.prediction% -->...<!-- / -->        share of what attention gives; the arms are
                                                   [X, none, softmax]

    <!-- number.variants -->...<!-- / -->          how many there are; also .ranked and .statements
    <!-- table.measures -->...<!-- /table -->      the rows of `attnlab.probes.measures.MEASURES`
    <!-- table.ranking.gate_head -->...<!-- /table -->   the cells of a variant in the ranking
    <!-- table.trainer -->...<!-- /table -->       the arguments of Lightning's Trainer
    <!-- table.floors -->...<!-- /table -->        accuracies without attention, `FLOOR_SETTINGS`
    <!-- floor.64 -->...<!-- / -->                 that of `LONGER` at this length
    <!-- table.textbook.masks -->...<!-- /table -->   a section of docs/textbook.yaml
    <!-- sentence.side@other -->...<!-- / -->      by how much the loss of a side of
                                                   experiments/sentences exceeds that of another
    <!-- sentence.side@value -->...<!-- / -->      a value that is measured of a side there

A prediction with several lengths is named with the steps: gpt2_start_1200.
"""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from attnlab.claims.claim import Claim
from attnlab.claims.claim_page import median_in_words, share_in_words
from attnlab.claims.finding import Finding
from attnlab.claims.judged_claim import JudgedClaim, judge_files
from attnlab.claims.ranking_page import cells_of_variant, variant_table
from attnlab.claims.reach import limits_of, reach_line, risk_in_words
from attnlab.claims.rows import read_rows
from attnlab.claims.trials import Run
from attnlab.errors import BadInput
from attnlab.probes.measures import MEASURES
from attnlab.settings.trainer_arguments import table_of_arguments

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))),
    *sorted(ROOT.glob("experiments/*/README.md")),
]
TABLE = re.compile(r"(<!-- table\.([\w.]+) -->).*?(<!-- /table -->)", re.DOTALL)
CELL = re.compile(r"(<!-- (\w+)(?:\.(\w+)([%#+]|@[^>]+?)?)? -->).*?(<!-- / -->)")

# The models without attention of docs/tasks.md; `python -m scripts.task_floors` trains them.
FLOORS = ROOT / "experiments" / "ranking" / "rows-floors.jsonl"
WITHOUT_ATTENTION = (
    *("preset=tasks", "optim.lr=3e-3", "trainer.max_steps=500", "trainer.val_check_interval=500"),
    "attn=none",
)
FLOOR_SETTINGS = (
    "data=mqar model.block_size=64 model.smear=1",
    "data=noisy_recall model.block_size=64 model.smear=1",
    "data=parity",
    "data=induction data.symbols=128 model.learned_positions=false data.eval_lengths=[128]",
    "data=copy",
    "data=induction",
    "data=permutations",
    "data=induction data.symbols=128",
    "data=mqar data.pairs=16 data.symbols=128 model.block_size=64 model.smear=1",
    "data=mqar model.block_size=64",
)
# In the table of lengths, the other models have this seed.
LONGER = "data=induction data.symbols=128 model.learned_positions=false data.eval_lengths=[64,128]"
SEED_OF_LONGER = 1000


# Sentences that three seeds show; `python -m experiments.sentences.train` trains the sides.
SENTENCES = ROOT / "experiments" / "sentences"


@cache
def judged(name: str) -> JudgedClaim:
    """A claim with the verdict on it."""
    return judge_files(Claim.read(ROOT / "experiments" / name / "claim.yaml"))


def finding_of(name: str, prediction: str) -> Finding:
    """What the rows say of a prediction; KeyError if the claim does not have it."""
    return {finding.name: finding for finding in judged(name).findings}[prediction]


def count_of(of: str) -> int:
    """How many variants, ranked variants, or statements of textbooks there are."""
    if of == "variants":
        return len({file.stem for file in ROOT.glob("conf/attn/*.yaml")} - {"hybrid"})
    if of == "ranked":
        ranking = (ROOT / "experiments/ranking/ranking.yaml").read_text(encoding="utf-8")
        return sum("control" not in arm for arm in yaml.safe_load(ranking)["arms"].values())
    assert of == "statements"
    return sum(map(len, statements().values()))


def cell(name: str, prediction: str | None, kind: str | None) -> str:
    """The content of a cell; KeyError for what the claim does not have."""
    if name == "number":
        return str(count_of(prediction))
    if name == "floor":
        return floor_of_longer(prediction)
    if name == "sentence" and prediction and kind:
        return of_three_seeds(prediction, kind[1:])
    claim = judged(name).claim
    if prediction is None:
        verdict = f"**{judged(name).verdict}**"
        if claim.withdrawn:
            return f"{verdict}, withdrawn"
        return f"{verdict} {limits_of(judged(name))}".strip()
    if prediction == "reach":
        return reach_line(judged(name))
    if prediction == "risk":
        return risk_in_words(judged(name))
    if prediction == "says":
        return claim.says
    if prediction == "withdrawn" and claim.withdrawn:
        return claim.withdrawn
    finding = finding_of(name, prediction)
    if kind == "%":
        number, _, rest = share_in_words(finding).partition(" (")
        return f"**{number}** ({rest}"
    if kind == "#":
        return f"**{finding.tally.agree} of {finding.tally.n}**"
    if kind == "+":
        return f"**{sum(x > 0 for x in finding.values)} of {len(finding.values)}**"
    if kind:
        return f"{median(finding.scores[kind[1:]]):.2f}"
    number, space, rest = median_in_words(finding).partition(" ")
    return f"**{number}**{space}{rest}"


def table_of_measures() -> str:
    """The table of docs/measuring.md, a row for each measure."""
    lines = [
        "| tag | in TensorBoard | meaning | even weights on n keys | one key |",
        "|---|---|---|---|---|",
    ]
    for measure in MEASURES:
        logged = "yes" if measure.logged else ""
        cells = [f"`attn/{measure.name}`", logged, measure.means, measure.even, measure.one_key]
        lines.append("".join(f"| {cell} " if cell else "| " for cell in cells) + "|")
    return "\n".join(lines)


def floor_run(setting: str, seed: int = 0) -> Run:
    """The run without attention of a setting."""
    return Run((*WITHOUT_ATTENTION, *setting.split()), seed)


def floor_runs() -> Iterator[Run]:
    """All runs without attention that docs/tasks.md needs."""
    yield floor_run(LONGER, SEED_OF_LONGER)
    for setting in FLOOR_SETTINGS:
        yield floor_run(setting)


@cache
def row_values(run: Run) -> dict[str, Any]:
    """The accuracies of a run without attention; BadInput if it has no row."""
    rows = read_rows(FLOORS)
    if run not in rows:
        raise BadInput(f"{FLOORS} has no row of {run}; commit, and python -m scripts.task_floors")
    return rows[run]["values"]


def guessing(setting: str) -> float:
    """The accuracy of guessing among all answers of a task."""
    given = dict(word.split("=") for word in setting.split())
    task = yaml.safe_load((ROOT / f"conf/data/{given['data']}.yaml").read_text(encoding="utf-8"))
    if "size" in task:  # of permutations
        return 1 / math.factorial(task["size"])
    return 1 / int(given.get("data.symbols", task["symbols"]))


def in_percent(share: float) -> str:
    """A share with one decimal of a percent."""
    return f"{100 * share:.1f} %"


def floor_of_longer(length: str | None) -> str:
    """The accuracy of `LONGER` at a length; 32 is that of its training."""
    values = row_values(floor_run(LONGER, SEED_OF_LONGER))
    return in_percent(values["val_accuracy" if length == "32" else f"accuracy_at_{length}"])


def table_of_floors() -> str:
    """The table of docs/tasks.md of models without attention; KeyError if a setting has no row."""
    lines = ["| setting | accuracy, seed 0 | guessing |", "|---|---|---|"]
    for setting in FLOOR_SETTINGS:
        values = row_values(floor_run(setting))
        reached = in_percent(values["val_accuracy"])
        if "accuracy_at_128" in values:
            reached += f" (T = 32), {in_percent(values['accuracy_at_128'])} (T = 128)"
        lines.append(f"| `{setting}` | {reached} | {in_percent(guessing(setting))} |")
    return "\n".join(lines)


@cache
def sentences() -> dict[str, Any]:
    """What experiments/sentences/sentences.yaml says."""
    return yaml.safe_load((SENTENCES / "sentences.yaml").read_text(encoding="utf-8"))


def side_run(side: str, seed: int) -> Run:
    """The run of a side of `sentences` with a seed."""
    return Run((*sentences()["base"], *sentences()["sides"][side].get("overrides", [])), seed)


def side_values(side: str, value: str) -> list[float]:
    """What the seeds of a side gave; KeyError if one has no row."""
    rows = read_rows(SENTENCES / "rows.jsonl")
    return [rows[side_run(side, seed)]["values"][value] for seed in sentences()["seeds"]]


def of_three_seeds(side: str, of: str) -> str:
    """The median and each seed, of losses minus those of another side, or of a measured value."""
    if of in sentences()["sides"]:
        pairs = zip(side_values(side, "val_loss"), side_values(of, "val_loss"), strict=True)
        return in_each([f"{one - other:+.3f}" for one, other in pairs], " nats")
    return in_each([f"{x:.2f}" for x in side_values(side, of)], "")


def in_each(numbers: list[str], unit: str) -> str:
    """Numbers of the seeds behind their median."""
    in_order = sorted(numbers, key=float)
    return f"**{in_order[len(numbers) // 2]}**{unit} ({len(numbers)} seeds: {', '.join(in_order)})"


@cache
def statements() -> dict[str, list[dict[str, Any]]]:
    """Name of a table of docs/textbook.md -> its rows, from docs/textbook.yaml."""
    return yaml.safe_load((ROOT / "docs/textbook.yaml").read_text(encoding="utf-8"))


def table_of_statements(section: str) -> str:
    """A table of docs/textbook.md; its cells may have marks."""
    head = "| what is taught, and where | verdict | what we found, and its condition | shown by |"
    return "\n".join([head, "|---|---|---|---|", *map(statement_line, statements()[section])])


def statement_line(row: Mapping[str, Any]) -> str:
    """A sentence with its sources below it, the verdict, what we found, and what shows it."""
    claim = row.get("claim")
    says = f"<!-- {claim}.says --><!-- / -->" if claim else row["says"]
    verdict = verdict_of_claim(claim) if claim else f"**{row['verdict']}**"
    taught = "<br>".join([says, *map(quotation, row.get("sources", []))])
    shown = row.get("shown", f"`attnlab reproduce {claim}`")
    return f"| {taught} | {verdict} | {row['found']} | {shown} |"


def verdict_of_claim(claim: str) -> str:
    """The marks of a verdict, of its reach, and of how many predictions could surprise."""
    marks = (f"<!-- {claim}{of} --><!-- / -->" for of in ("", ".reach", ".risk"))
    verdict, reach, risk = marks
    return f"{verdict}<br>{reach}<br>at risk: {risk}"


def quotation(source: Mapping[str, str]) -> str:
    """The words of a source, its address, its own condition, and how they fare."""
    told = f"— [{source['who']}]({source['address']}), {source['where']}: “{source['quote']}”"
    if condition := source.get("condition"):
        told += f" *Its condition:* {condition}."
    return f"{told} *As quoted:* {source['fares']}."


@cache
def table_of_variant(name: str) -> str:
    """The verdicts on a variant of the ranking, a row for each task."""
    return variant_table(*cells_of_variant(ROOT / "experiments" / "ranking", name), name)


def filled_table(name: str) -> str:
    """The content of a table; KeyError for a variant that is not ranked."""
    kind, _, of = name.partition(".")
    if kind == "ranking":
        return table_of_variant(of)
    if kind == "textbook":
        return table_of_statements(of)
    tables = {
        "measures": table_of_measures,
        "floors": table_of_floors,
        "trainer": table_of_arguments,
    }
    return tables[kind]()


def filled(page: str) -> str:
    """A page with every table and every cell filled."""
    page = TABLE.sub(lambda match: f"{match[1]}\n\n{filled_table(match[2])}\n\n{match[3]}", page)
    return CELL.sub(lambda m: f"{m[1]}{cell(m[2], m[3], m[4])}{m[5]}", page)


if __name__ == "__main__":
    for file in PAGES:
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")
