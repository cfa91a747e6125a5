"""Examine models of public repositories, and bugs of theirs before and after the fix.

python -m tests.checkup.gallery --checkouts DIR   # writes docs/checkup-gallery.md

DIR holds a clone of each repository as owner+name, with its history, or a folder of that name with
the git directory `repo`; what is missing there is listed on the page.
"""

import argparse
import inspect
import io
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import torch

from attnlab.checkup import CheckupFailed, Report, assert_cache_equal, checkup
from tests.checkup.repositories import ENTRIES, Entry, V

PAGE = Path("docs/checkup-gallery.md")
HEAD = """# Public repositories

`python -m tests.checkup.gallery --checkouts DIR` examines small models of public repositories at
the commits below with `checkup`, or their caches with `assert_cache_equal`, and writes this page.
Seconds are CPU seconds, with imports. Lines count our factory and the step of a cache, in
`tests/checkup/repositories.py`. All weights are random. "Before" and "after" are the commits
before and after a fix. karpathy/nanochat#844 describes leaks in words; we wrote them and added
them to the model at that commit. With gates at 0, they do not change a logit yet.

| repository | commit | examined | verdict | seconds | lines | diagnosis |
|---|---|---|---|---|---|---|
"""
FINDINGS = """
## Findings

- karpathy/nanochat: `GPT.forward` with a cache and more than one token adds no smear to the first
  of them, though `prev_embedding` holds its predecessor. Its own engine passes a prompt once and
  then single tokens, so it does not meet this.
- Lightning-AI/litgpt: before #2153, steps of one token are wrong beyond the window; after it, they
  are right. At that commit, steps of several tokens beyond the window still are not.
- rasbt/LLMs-from-scratch: before #697, a step of several tokens raises an error. The assertion
  passes and warns that it did not look at such steps.
"""


def examine(entry: Entry) -> tuple[str, str]:
    """The verdict and the diagnoses."""
    torch.manual_seed(0)
    model, T = entry.make(), entry.block_size
    if entry.step is None:
        return _told(checkup(model, vocab_size=V, block_size=T))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            assert_cache_equal(model, entry.step, vocab_size=V, block_size=T)
    except CheckupFailed as failed:
        return _told(failed.report)
    missed = [str(w.message).partition(": ")[2] for w in said if "not looked at" in str(w.message)]
    return "Healthy", "; ".join(missed)


def _told(report: Report) -> tuple[str, str]:
    said = "; ".join(f"{d.cause}: {d.headline}" for d in report.diagnoses)
    return report.verdict, report.error.splitlines()[-1] if report.error else said


def row(number: int, checkouts: Path) -> str:
    """The row of an entry, examined in a process of its own."""
    entry = ENTRIES[number]
    start = f"| [{entry.repository}](https://github.com/{entry.repository}) | {entry.commit[:7]} "
    start += f"| {entry.about} |"
    clone = checkouts / entry.repository.replace("/", "+")
    clone = clone / "repo" if (clone / "repo").is_dir() else clone
    archive = subprocess.run(
        ["git", "-C", clone, "archive", entry.commit, "--", "*.py"], capture_output=True
    )
    if archive.returncode:
        return f"{start} missing | | | |"
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        command = [sys.executable, "-m", "tests.checkup.gallery", "--one", str(number), folder]
        done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else "failed | | | |"
    return f"{start} {said}"


def main() -> None:
    """Write the page, or print the cells of one entry."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkouts", type=Path)
    parser.add_argument("--one", nargs=2)
    chosen = parser.parse_args()
    if chosen.one:
        entry = ENTRIES[int(chosen.one[0])]
        sys.path.insert(0, chosen.one[1])
        verdict, said = examine(entry)
        make = entry.make.func if isinstance(entry.make, partial) else entry.make
        adapters = [make] if entry.step is None else [make, entry.step]
        lines = sum(len(inspect.getsource(adapter).splitlines()) for adapter in adapters)
        print(f"{verdict} | {time.process_time():.0f} | {lines} | {said} |")
        return
    rows = []
    for number in range(len(ENTRIES)):
        rows.append(row(number, chosen.checkouts))
        print(rows[-1], flush=True)
        PAGE.write_text(HEAD + "\n".join(rows) + "\n" + FINDINGS, encoding="utf-8")


if __name__ == "__main__":
    main()
