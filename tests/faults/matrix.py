"""The detector x fault matrix: `python -m tests.faults.matrix` writes it into docs/checkup.md.

Plants every fault in two models, examines them, and replaces the table between the two markers in
the page.
"""

import sys
from pathlib import Path

import torch

from attnlab.checkup.diagnoses import causes
from attnlab.checkup.findings import Report, Status
from attnlab.checkup.runner import checkup
from tests.faults import in_gpt, in_llama
from tests.faults.planted import FAULTS, PlantedFault

BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
DETECTORS = (
    "finite", "same twice", "batch", "future", "disturbed", "past", "gradient", "prefixes",
    "stress", "trained", "rows", "mask", "scale", "heads", "grouped heads", "targets",
)  # fmt: skip
_SIGNS = {Status.FAULT: "**x**", Status.SUSPICIOUS: "s", Status.OK: "", Status.NOT_APPLICABLE: ""}


def examined(fault: PlantedFault, model: str) -> Report:
    """The checkup of one fault in one model."""
    return checkup(
        fault.build(model), vocab_size=29, block_size=fault.block_size, batch=fault.batch()
    )


def row(fault: PlantedFault, reports: dict[str, Report]) -> str:
    """One row of the table: what each detector found in both models, and the diagnosis."""
    signs = [
        "/".join(_sign(report, detector) for report in reports.values()).strip("/")
        for detector in DETECTORS
    ]
    told = {d.cause: causes()[d.cause].title for r in reports.values() for d in r.diagnoses}
    right = all(set(fault.causes) & set(report.causes) for report in reports.values())
    name = f"`attn={fault.conf}`" if fault.conf else fault.name.replace("_", " ")
    named = ", ".join(told.values()) if right else "MISSED: " + (", ".join(told.values()) or "-")
    return f"| {name} | {named} | {' | '.join(signs)} |"


def _sign(report: Report, detector: str) -> str:
    ran = [f for f in report.findings if f.detector == detector]
    return _SIGNS[report.finding(detector).status] if ran else ""


def table() -> tuple[str, int]:
    """The whole table as Markdown, and how many faults were missed."""
    lines = [
        f"| fault | diagnosis | {' | '.join(DETECTORS)} |",
        f"|{'---|' * (len(DETECTORS) + 2)}",
    ]
    for fault in FAULTS:
        reports = {model: examined(fault, model) for model in ("ours", "other")}
        lines.append(row(fault, reports))
    for kind in ("sdpa", "manual", "torch_mha", "single_head", "other"):
        model = in_llama.build("healthy", 2, 4) if kind == "other" else in_gpt.healthy(kind)
        report = checkup(model, vocab_size=29, block_size=37)
        verdict = "healthy" if not report.diagnoses else "FALSE ALARM: MISSED"
        signs = " | ".join(_sign(report, detector) for detector in DETECTORS)
        lines.append(f"| *none: {kind}* | {verdict} | {signs} |")
    missed = sum("MISSED" in line for line in lines)
    counted = (
        f"{len(FAULTS)} faults, each planted in two models; {missed} missed. Before the slash: "
        f"our GPT; after it: the other model. **x** = fault, s = suspicious."
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
    print(f"{page}: {len(FAULTS)} faults, {missed} missed")
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
