"""The detector x fault matrix: `python -m attnlab.checkup.matrix` writes it into docs/checkup.md.

Every fault of the bench is planted in two models, every detector says what it sees, and the table
between two marks in the page is replaced.
"""

import sys
from pathlib import Path

import torch

from attnlab.checkup.bench import other, ours
from attnlab.checkup.bench.plants import PLANTS, Plant
from attnlab.checkup.diagnoses import CAUSES
from attnlab.checkup.examine import checkup
from attnlab.checkup.findings import Report, Status

BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
DETECTORS = (
    "finite", "same twice", "batch", "future", "disturbed", "past", "gradient", "prefixes",
    "stress", "trained", "rows", "mask", "scale", "heads", "grouped heads", "targets",
)  # fmt: skip
_SIGNS = {Status.FAULT: "**x**", Status.SUSPICIOUS: "s", Status.OK: "", Status.NOT_APPLICABLE: ""}


def examined(plant: Plant, bench: str) -> Report:
    """The checkup of one fault in one model."""
    return checkup(
        plant.build(bench), vocab_size=29, block_size=plant.block_size, batch=plant.batch()
    )


def row(plant: Plant, reports: dict[str, Report]) -> str:
    """One line of the table: the detectors' signs in the first model, both diagnoses."""
    signs = [
        "/".join(_sign(report, detector) for report in reports.values()).strip("/")
        for detector in DETECTORS
    ]
    told = {d.cause: CAUSES[d.cause].title for r in reports.values() for d in r.diagnoses}
    right = all(set(plant.causes) & set(report.causes) for report in reports.values())
    name = f"`attn={plant.conf}`" if plant.conf else plant.fault.replace("_", " ")
    named = ", ".join(told.values()) if right else "MISSED: " + (", ".join(told.values()) or "-")
    return f"| {name} | {named} | {' | '.join(signs)} |"


def _sign(report: Report, detector: str) -> str:
    ran = [f for f in report.findings if f.detector == detector]
    return _SIGNS[report.finding(detector).status] if ran else ""


def table() -> tuple[str, int]:
    """The whole table as Markdown, and how many faults were missed."""
    lines = [
        f"| fault | told as | {' | '.join(DETECTORS)} |",
        f"|{'---|' * (len(DETECTORS) + 2)}",
    ]
    for plant in PLANTS:
        reports = {bench: examined(plant, bench) for bench in ("ours", "other")}
        lines.append(row(plant, reports))
    for kind in ("sdpa", "manual", "torch_mha", "single_head", "other"):
        model = other.build("healthy", 2, 4) if kind == "other" else ours.healthy(kind)
        report = checkup(model, vocab_size=29, block_size=37)
        verdict = "healthy" if not report.diagnoses else "FALSE ALARM: MISSED"
        signs = " | ".join(_sign(report, detector) for detector in DETECTORS)
        lines.append(f"| *none: {kind}* | {verdict} | {signs} |")
    missed = sum("MISSED" in line for line in lines)
    counted = (
        f"{len(PLANTS)} faults, each in two models; {missed} missed. A sign before the stroke is "
        f"our GPT's, behind it the other model's; **x** fault, s suspicious."
    )
    return "\n".join([counted, "", *lines]), missed


def main() -> None:
    """Replace the table in a page, docs/checkup.md or the one that is named."""
    page = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/checkup.md")
    text = page.read_text(encoding="utf-8")
    torch.set_num_threads(1)
    new, missed = table()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    page.write_text(f"{before}{BEGIN}\n{new}\n{END}{after}", encoding="utf-8")
    print(f"{page}: {len(PLANTS)} faults, {missed} missed")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
