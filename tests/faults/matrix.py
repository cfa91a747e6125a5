"""The detector x fault matrix: `python -m tests.faults.matrix` writes it into docs/checkup.md.

Plants every fault in its models, examines them, and replaces the table between the two markers in
the page.
"""

import sys
from pathlib import Path

import torch

from attnlab.checkup.checkup_report import Report
from attnlab.checkup.findings import Status, causes
from attnlab.checkup.runner import checkup
from tests.faults import in_gpt, in_llama, served
from tests.faults.planted import FAULTS, PlantedFault

BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
DETECTORS = (
    "finite", "same twice", "batch", "future", "disturbed", "past", "gradient", "prefixes",
    "tokens", "stress", "values", "dropout", "trained", "training mode", "cache", "padding",
    "rows", "mask", "scale", "heads", "grouped heads", "weights", "tied", "targets",
)  # fmt: skip
_SIGNS = {Status.FAULT: "**x**", Status.SUSPICIOUS: "s", Status.OK: "", Status.NOT_APPLICABLE: ""}


def examined(fault: PlantedFault, model: str) -> Report:
    """Examine one fault in one model."""
    return checkup(
        fault.build(model), vocab_size=29, block_size=fault.block_size, batch=fault.batch()
    )


def tally(reports: list[tuple[PlantedFault, Report]]) -> str:
    """The number of faults found, diagnosed correctly, and given a second diagnosis."""
    found = sum(bool(report.diagnoses) for _, report in reports)
    right = sum(bool(set(fault.causes) & set(report.causes)) for fault, report in reports)
    second = sum(len(report.diagnoses) > 1 for _, report in reports)
    n = len(reports)
    return (
        f"planted {n} times: {found} found ({found / n:.0%}), {right} with the correct cause "
        f"({right / n:.0%}), {second} with a second diagnosis"
    )


def row(fault: PlantedFault, reports: dict[str, Report]) -> str:
    """One row of the table: what each detector found in every model, and the diagnosis."""
    signs = {d: "/".join(_sign(report, d) for report in reports.values()) for d in DETECTORS}
    seen = ", ".join(f"{d} {sign}" for d, sign in signs.items() if sign.strip("/"))
    titles = {d.cause: causes()[d.cause].title for r in reports.values() for d in r.diagnoses}
    right = all(set(fault.causes) & set(report.causes) for report in reports.values())
    name = f"`attn={fault.conf}`" if fault.conf else fault.name.replace("_", " ")
    if fault.published:
        place, number = fault.published.split("#")
        name += f" ([{fault.published}](https://github.com/{place}/issues/{number}))"
    named = (
        ", ".join(titles.values()) if right else "MISSED: " + (", ".join(titles.values()) or "-")
    )
    return f"| {name} | {named} | {seen} |"


def _sign(report: Report, detector: str) -> str:
    ran = [f for f in report.findings if f.detector == detector]
    return _SIGNS[report.finding(detector).status] if ran else ""


def table() -> tuple[str, int]:
    """The whole table as Markdown, and how many faults were missed."""
    lines = ["| fault | diagnosis | detectors |", "|---|---|---|"]
    planted = []
    for fault in FAULTS:
        reports = {model: examined(fault, model) for model in fault.models}
        planted += [(fault, report) for report in reports.values()]
        lines.append(row(fault, reports))
        print(lines[-1], flush=True)
    others = {"other": lambda: in_llama.build("healthy", 2, 4), "served": lambda: served.build("")}
    for kind in ("sdpa", "manual", "torch_mha", "single_head", *others):
        model = others[kind]() if kind in others else in_gpt.healthy(kind)
        report = checkup(model, vocab_size=29, block_size=37)
        verdict = "healthy" if not report.diagnoses else "FALSE ALARM: MISSED"
        lines.append(f"| *none: {kind}* | {verdict} | |")
    missed = sum("MISSED" in line for line in lines)
    counted = (
        f"{len(FAULTS)} faults in up to two models each, {tally(planted)}; {missed} rows with a "
        f"miss. Before the slash: our GPT; after the slash: the other model. **x** = fault, s = "
        f"suspicious. Links lead to published code with the fault."
    )
    return "\n".join([counted, "", *lines]), missed


def main() -> None:
    """Replace the table in docs/checkup.md, or in the page named on the command line."""
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/checkup.md")
    text = page.read_text(encoding="utf-8")
    torch.set_num_threads(1)
    new, missed = table()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{new}\n{END}{after}", encoding="utf-8")
    print(f"{page}: {new.partition('.')[0]}")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
