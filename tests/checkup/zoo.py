"""Examine a tiny random model of every causal architecture of transformers.

python -m tests.checkup.zoo            # writes docs/checkup-zoo.md; about ten minutes
python -m tests.checkup.zoo llama bert # replaces their rows in the page
python -m tests.checkup.zoo --from m   # replaces the rows of the names from m on
"""

import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

from attnlab.checkup import Report, Status, checkup
from attnlab.commands.checkup_target import tiny_transformer
from attnlab.errors import BadInput, printable
from tests.checkup.confirm import sentence

PAGE = Path("docs/checkup-zoo.md")
# Encoders without is_decoder, and XLNet, which predicts tokens in any order.
AHEAD_BY_DESIGN = {"cpmant", "xlm", "xlnet"}
LIMIT = 60  # CPU seconds for one architecture
MEMORY = 12 * 2**30  # address space for one architecture, bytes
HEAD = """# Every causal architecture of transformers

`python -m tests.checkup.zoo` builds a tiny version of each causal language model of transformers
{version} with random weights, examines 24 positions, and writes this page. Seconds are CPU
seconds on one core, without imports. A suspicious model does something unusual, which may be
intended. Each diagnosis is then confirmed by a second measurement in `tests/checkup/confirm.py`,
which shares no code with the detectors.

{counts}

| model | verdict | seconds | diagnosis | second measurement |
|---|---|---|---|---|
"""


class TooSlow(BaseException):
    """An architecture took longer than LIMIT. A checkup does not catch this."""


def examine(kind: str) -> str:
    """A row of the table; the CPU seconds do not include building the model."""

    def stop(*_: object) -> None:
        raise TooSlow(f"stopped after {LIMIT} s")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    begin = time.process_time()
    try:
        loaded = tiny_transformer(kind)
        begin = time.process_time()
        report = checkup(loaded.model, vocab_size=loaded.vocab_size, block_size=24)
    except (BadInput, TooSlow) as error:
        verdict = "too slow" if isinstance(error, TooSlow) else "not built"
        return f"| {kind} | {verdict} | | {printable(str(error))} | |"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    seconds = time.process_time() - begin
    answers = [sentence(d, loaded.model, loaded.vocab_size or 0) for d in report.diagnoses]
    return f"{row(kind, report, seconds)} {'; '.join(answers)} |"


def examine_alone(kind: str) -> str:
    """Call `examine` in a separate process with limited memory."""

    def work(end: Connection) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        warnings.simplefilter("ignore")
        end.send(examine(kind))

    fork = multiprocessing.get_context("fork")  # the imports are done once
    here, there = fork.Pipe(duplex=False)
    process = fork.Process(target=work, args=(there,))
    process.start()
    there.close()
    try:
        return str(here.recv())
    except EOFError:
        process.join()
        return f"| {kind} | failed | | the process ended with code {process.exitcode} | |"
    finally:
        process.join()


def row(kind: str, report: Report, seconds: float) -> str:
    """A line of the table."""
    said = [d.headline for d in report.diagnoses]
    if report.error:
        verdict, said = "failed", [report.error.splitlines()[-1]]
    elif not report.healthy:
        ahead = kind in AHEAD_BY_DESIGN and report.finding("future").status is Status.FAULT
        verdict = "reads ahead by design" if ahead else "**fault**"
    else:
        verdict = "suspicious" if said else "healthy"
    return f"| {kind} | {verdict} | {seconds:.1f} | {'; '.join(said)} |"


def write(rows: dict[str, str]) -> None:
    """Write the page, with the rows by model type."""
    cells = [[cell.strip() for cell in line.split("|")] for _, line in sorted(rows.items())]
    verdicts = sorted(cell[2].strip("*") for cell in cells)
    parts = [f"{verdicts.count(v)} {v}" for v in dict.fromkeys(verdicts)]
    middle = median([float(cell[3]) for cell in cells if cell[3]] or [0.0])
    said = "".join(rows.values())
    confirmed, not_confirmed = said.count("| confirmed:"), said.count("NOT CONFIRMED")
    confirmed += said.count("; confirmed:")
    counts = (
        f"{len(rows)} model types: {', '.join(parts)}. Median {middle:.1f} s. {confirmed} "
        f"diagnoses confirmed, {not_confirmed} not confirmed."
    )
    text = HEAD.format(version=version("transformers"), counts=counts)
    lines = [line for _, line in sorted(rows.items())]
    PAGE.write_text(text + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Examine the model types on the command line, or all, and write their rows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    torch.set_num_threads(1)
    os.environ["HF_HUB_OFFLINE"] = "1"
    rows = {}
    if sys.argv[1:] and PAGE.exists():
        _, table = PAGE.read_text(encoding="utf-8").split("|---|---|---|---|---|\n")
        rows = {line.split("|")[1].strip(): line for line in table.splitlines()}
    kinds = sys.argv[1:] or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    if kinds[0] == "--from":
        kinds = [kind for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) if kind >= kinds[1]]
    for kind in kinds:
        rows[kind] = examine_alone(kind)
        print(rows[kind], flush=True)
        write(rows)


if __name__ == "__main__":
    main()
