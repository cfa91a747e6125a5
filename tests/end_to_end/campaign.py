"""Seeded faults over train, sweep, reproduce, export and sample.

    python -m tests.end_to_end.campaign 0 250     # or: make faults FIRST=0 COUNT=250
    python -m tests.end_to_end.campaign again     # or: make faults FIRST=again

Fault n is the same in every call. Each fault hits a small command in a forked process. The
command is then repeated without a fault, and its output must be bit-identical to that of an
undisturbed run. A command may also refuse a damaged file with a one-sentence message; the command
that the message names (or the repaired file) must then give the same bits. Prints the outcomes by
kind of fault, and adds them to the table of docs/survival.md. The second line repeats the faults
with another outcome, and replaces their outcomes.
"""

import contextlib
import errno
import hashlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnlab import workers
from attnlab.runs.reading import read_curves
from attnlab.training.checkpoints import read_checkpoint
from tests.claims import own_claim
from tests.conftest import ROOT
from tests.forked import Command, begin, forked_worker, is_one_sentence

# One file, as Hydra composes a configuration for each group that the command line chooses.
EXPERIMENT = """\
# @package _global_
defaults:
  - override /data: text
  - override /probes: none
data: {path: TEXT, batch_size: 4}
model: {n_layer: 1, n_head: 2, n_embd: 16, block_size: 16, dropout: 0.1}
optim: {warmup_steps: 2}
trainer: {max_steps: 8, val_check_interval: 4, log_every_n_steps: 1}
checkpoint_every: 2
"""
TIMES = {"tokens_per_second", "wall_seconds", "git"}  # somebody may commit meanwhile
HANGS = 1200.0  # seconds; a machine may be busy
YEAR = 365 * 86_400
IDENTICAL, SENTENCE, OTHERWISE = "bit-identical", "refused", "other"
PAGE = ROOT / "docs" / "survival.md"
BEGIN, END = "<!-- campaign -->", "<!-- /campaign -->"


class Wrong(Exception):
    """The outcome of a fault is neither bit-identical nor a one-sentence refusal."""


def digest(content: object) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()


def left_by_run(folder: Path, *, curves: bool = True) -> dict[str, Any]:
    """What a run left: weights, figures, and the curves of its logger."""
    checkpoint = read_checkpoint(folder / "checkpoints" / "last.ckpt")
    best = read_checkpoint(folder / "checkpoints" / "best.ckpt")
    metrics = json.loads((folder / "metrics.json").read_text())
    left = {
        name: digest(sorted((k, x.numpy().tobytes()) for k, x in each["state_dict"].items()))
        for name, each in (("last.ckpt", checkpoint), ("best.ckpt", best))
    }
    left["losses"] = checkpoint["attnlab"]["val_losses"]
    left["metrics"] = {name: x for name, x in metrics.items() if name not in TIMES}
    left["status"] = json.loads((folder / "status.json").read_text())["status"]
    left["temporary files"] = [f.name for f in folder.rglob(".*.tmp")]
    if curves:
        found = read_curves(folder, "train/loss|val/loss")
        left["curves"] = {tag: [(s, round(x, 6)) for s, x in found[tag]] for tag in sorted(found)}
    return left


BASIC = "hydra/launcher=basic"  # one process, which a fault hits


@dataclass
class Trial:
    """One command in a folder of its own.

    Args:
        verb: train, sweep, reproduce, export or sample.
        folder: for its files.
        disk: where its outputs go, below the folder.
        bench: what all trials share.
    """

    verb: str
    folder: Path
    disk: Path
    bench: "Bench"
    curves: bool = True
    commands: list[Command] = field(default_factory=list)

    @property
    def script(self) -> str:
        return "train.py" if self.verb in ("train", "sweep") else "attnlab"

    @property
    def arguments(self) -> list[str]:
        if self.script == "train.py":
            chosen = ["--config-dir", f"{self.bench.folder}/conf", "experiment=small"]
            chosen.append(f"outputs={self.disk}/o")
            return chosen if self.verb == "train" else ["-m", *chosen, "seed=0,1", BASIC]
        if self.verb == "reproduce":
            places = [f"--{x}={self.folder / 'project' / x}" for x in ("experiments", "conf")]
            places += [f"--outputs={self.disk}/o", "--jobs=1", "--seeds=1"]
            return ["reproduce", "mine", *places]
        run = str(self.folder / "run")
        if self.verb == "export":
            return ["export", run, "--out", str(self.disk / "exported")]
        return ["sample", run, "--chars=20"]

    def prepare(self) -> None:
        """The files that the command reads."""
        self.disk.mkdir(parents=True, exist_ok=True)
        if self.verb in ("export", "sample"):
            shutil.copytree(self.bench.finished, self.folder / "run")
        if self.verb == "reproduce":
            shutil.copytree(self.bench.project, self.folder / "project")

    def begin(self, before: Callable[[], object] = lambda: None, *extra: str) -> Command:
        def prepared() -> None:
            if self.verb == "reproduce":
                workers.make_worker = forked_worker
            before()

        arguments = [*self.arguments, *extra]
        self.commands.append(begin(arguments, self.folder, prepared, script=self.script))
        return self.commands[-1]

    def end(self, command: Command) -> tuple[int, str]:
        """Wait for the end of a command, which must be a plain one."""
        command.process.join(HANGS)
        code, said = command.process.exitcode, command.said.read_text()
        if code is None:
            command.process.kill()
            raise Wrong(f"hangs\n{said}")
        if "Traceback" in said:
            raise Wrong(f"traceback, code {code}\n{said}")
        if code == 2 and not is_one_sentence(said):
            raise Wrong(f"code 2 without one sentence\n{said}")
        return code, said

    def files(self) -> dict[str, bytes]:
        """The files that a command must not change where it refuses."""
        places = [self.disk, self.folder / "run", self.folder / "project"]
        return {
            str(file): file.read_bytes()
            for place in places
            for file in sorted(place.rglob("*"))
            if file.is_file()
            and not file.name.startswith(("said-", ".lock"))
            and ".sweep" not in file.parts
        }

    def result(self, said: str) -> Any:
        """What the command left."""
        if self.verb == "sample":
            return said
        if self.verb == "export":
            return {f.name: digest(f.read_bytes()) for f in self.disk.glob("exported/*")}
        if self.verb == "reproduce":
            verdicts = json.loads((self.disk / "o" / "quick" / "verdicts.json").read_text())
            return verdicts["claims"]
        runs = sorted(file.parent for file in (self.disk / "o").rglob("metrics.json"))
        return [left_by_run(run, curves=self.curves) for run in runs]

    def repeat(self, *extra: str) -> tuple[int, str]:
        """The command once more. A worker whose parent was killed may still be ending."""
        for _ in range(20):
            code, said = self.end(self.begin(lambda: None, *extra))
            busy = "another process is training" in said or "another call is running" in said
            if not (code and busy):
                return code, said
            time.sleep(0.5)
        raise Wrong(f"the folder stays busy\n{said}")

    def must_be_identical(self, *extra: str) -> None:
        """Repeat the command, and compare what is left."""
        if self.verb == "export" and (self.disk / "exported").exists():
            self._compare("")  # it was written as a whole, and would not be written over
            shutil.rmtree(self.disk / "exported")
        code, said = self.repeat(*extra)
        if code:
            raise Wrong(f"the repeated command ends with {code}\n{said}")
        self._compare(said)

    def _compare(self, said: str) -> None:
        expected, found = self.bench.reference(self.verb), self.result(said)
        if not self.curves and isinstance(expected, list):  # runs, and no text or exported files
            expected = [{k: x for k, x in run.items() if k != "curves"} for run in expected]
        if found != expected:
            raise Wrong(f"another result\n{found}\nwhere nothing happens:\n{expected}\n{said}")


class Bench:
    """What all trials share: the text, a finished run, a project, and results without faults."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = "the quick brown fox jumps over a lazy dog sphinx\n".split(" ")
        text = folder / "text.txt"
        text.write_text(" ".join(random.Random(0).choices(words, k=400)))
        experiment = folder / "conf" / "experiment" / "small.yaml"
        experiment.parent.mkdir(parents=True)
        experiment.write_text(EXPERIMENT.replace("TEXT", str(text)))
        self.project = own_claim.write(folder / "project", steps=4)
        claim = self.project / "experiments" / "mine" / "claim.py"
        claim.write_text(claim.read_text().replace("seeds=2", "seeds=1"))
        self.results: dict[str, Any] = {}
        self.seconds: dict[str, float] = {}
        self.reference("train")
        (status,) = (folder / "train").rglob("status.json")
        self.finished = status.parent

    def trial(self, verb: str, folder: Path) -> Trial:
        folder.mkdir()
        return Trial(verb, folder, folder / "disk", self)

    def reference(self, verb: str) -> Any:
        """What a command leaves where nothing happens to it."""
        if verb not in self.results:
            trial = self.trial(verb, self.folder / verb)
            trial.prepare()
            began, children = time.monotonic(), _seconds_of_children()
            code, said = trial.end(trial.begin())
            if code:
                raise Wrong(f"{verb} fails where nothing happens to it\n{said}")
            # A process idles while the workers of `reproduce` compute.
            wall, used = time.monotonic() - began, _seconds_of_children() - children
            self.seconds[verb] = wall if verb == "reproduce" else used
            self.results[verb] = trial.result(said)
        return self.results[verb]

    def duration(self, verb: str) -> float:
        """Seconds of the processor, or for `reproduce` of the clock."""
        self.reference(verb)
        return self.seconds[verb]


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def strike(trial: Trial, command: Command, blows: Iterable[tuple[float, signal.Signals]]) -> None:
    """Send signals when a command has used this many seconds."""
    pid, began = command.process.pid, time.monotonic()
    assert pid is not None
    for moment, sent in blows:
        while command.process.is_alive():
            used = time.monotonic() - began
            if trial.verb != "reproduce":
                with contextlib.suppress(OSError):  # it has ended
                    used = time.clock_gettime((~pid << 3) | 2)  # the processor's time of a process
            if used >= moment:
                os.kill(pid, sent)
                break
            time.sleep(0.002)


# --- Kinds of faults: each is given a trial that is prepared, and a stream of random numbers. ---


def kill_between(first: float, last: float) -> Callable[[Trial, random.Random], None]:
    """SIGKILL at a random instant of a part of the command."""

    def fault(trial: Trial, stream: random.Random) -> None:
        moment = trial.bench.duration(trial.verb) * stream.uniform(first, last)
        command = trial.begin()
        strike(trial, command, [(moment, signal.SIGKILL)])
        trial.end(command)

    return fault


def signals_in_pairs(trial: Trial, stream: random.Random) -> None:
    """Two of SIGINT, SIGTERM and SIGKILL within a tenth of a second."""
    kinds = (signal.SIGINT, signal.SIGTERM)
    sent = (stream.choice(kinds), stream.choice((*kinds, signal.SIGKILL)))
    # Before a command has begun to read its arguments, Python's own answers apply.
    moment = max(0.1, trial.bench.duration(trial.verb) * stream.uniform(0.1, 1.0))
    command = trial.begin()
    strike(trial, command, [(moment, sent[0]), (moment + stream.uniform(0, 0.1), sent[1])])
    trial.end(command)


# As in a job of one process; Lightning reads the last three.
JOB = {"SLURM_JOB_ID": "1", "SLURM_JOB_NAME": "train", "SLURM_NTASKS": "1"}
JOB |= {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}


def signals_of_slurm(trial: Trial, stream: random.Random) -> None:
    """One or two signals that Slurm sends, in a job of it, then SIGKILL half of the time."""
    kinds = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
    sent = [stream.choice(kinds) for _ in range(stream.choice((1, 2)))]
    sent += [signal.SIGKILL] * (stream.random() < 0.5)
    moment = max(0.1, trial.bench.duration(trial.verb) * stream.uniform(0.1, 1.0))
    command = trial.begin(lambda: os.environ.update(JOB))
    strike(trial, command, [(moment + stream.uniform(0, 0.3) * n, x) for n, x in enumerate(sent)])
    trial.end(command)


def at_call(
    module: Any, names: tuple[str, ...], number: int, act: Callable[[], object], late: bool = False
) -> Callable[[], None]:
    """Act before (or after) the n-th call of any of these functions."""

    def prepare() -> None:
        calls: list[str] = []

        def counted(function: Callable[..., Any], name: str) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                calls.append(name)
                if len(calls) == number and not late:
                    act()
                found = function(*arguments, **named)
                if len(calls) == number and late:
                    act()
                return found

            return call

        for name in names:
            setattr(module, name, counted(vars(module)[name], name))

    return prepare


RENAMES = ("replace", "rename")


def kill_in_a_rename(trial: Trial, stream: random.Random) -> None:
    """SIGKILL right before or after a file is put in its place."""

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    number, late = stream.randint(1, 12), stream.random() < 0.5
    trial.end(trial.begin(at_call(os, RENAMES, number, die, late)))


def failing(names: tuple[str, ...]) -> Callable[[Trial, random.Random], None]:
    """A call of the operating system fails once."""

    def fault(trial: Trial, stream: random.Random) -> None:
        code = stream.choice((errno.EIO, errno.ENOSPC))

        def fail() -> None:
            raise OSError(code, os.strerror(code))

        trial.end(trial.begin(at_call(os, names, stream.randint(1, 12), fail)))

    return fault


def full_disk(trial: Trial, stream: random.Random) -> None:
    """The outputs are on a disk that is full after a random number of pages."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={4 * stream.randint(1, 60)}k", "tmpfs"]
    if subprocess.run([*mount, str(trial.disk)], capture_output=True).returncode:
        limited_file_size(trial, stream)  # mounting is not permitted here
        return
    trial.end(trial.begin())
    remount = ["mount", "-o", "remount,size=64m", str(trial.disk)]
    subprocess.run(remount, check=True)


def limited_file_size(trial: Trial, stream: random.Random) -> None:
    """No file may be longer than a random number of bytes."""
    most = int(10 ** stream.uniform(2, 5))
    trial.end(trial.begin(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))))


def clock_steps(trial: Trial, stream: random.Random) -> None:
    """The clock is set anew again and again, by up to a year in either direction."""

    def prepare() -> None:
        clock, offset = time.time, [0.0]

        def stepping() -> float:
            if stream.random() < 0.1:
                offset[0] = stream.uniform(-YEAR, YEAR)
            return clock() + offset[0]

        time.time = stepping

    if stream.random() < 0.5:  # between two calls, too
        command = trial.begin(prepare)
        moment = trial.bench.duration(trial.verb) * stream.random()
        strike(trial, command, [(moment, signal.SIGKILL)])
        trial.end(command)
    trial.end(trial.begin(prepare))


def several_processes(trial: Trial, stream: random.Random) -> None:
    """Two to eight processes do the same at once."""
    together = []
    for _ in range(stream.choice((2, 2, 2, 3, 3, 4, 8))):
        together.append(trial.begin())
        time.sleep(stream.uniform(0, 0.2))
    ended = [trial.end(command) for command in together]
    if not any(code == 0 for code, _ in ended):
        raise Wrong(f"none of several processes succeeds\n{ended}")


def damaged(change: Callable[[bytes, random.Random], bytes]) -> Callable[..., bool]:
    """A file that the command reads is changed."""

    def fault(trial: Trial, stream: random.Random) -> bool:
        if trial.verb in ("train", "sweep", "reproduce"):
            kill_between(0.3, 1.0)(trial, stream)
            place = trial.disk / "o"
        else:
            place = trial.folder / "run"
        # What metrics.json says is not protected by a digest, as it is read by people.
        files = sorted(
            file
            for file in place.rglob("*")
            if file.is_file() and file.stat().st_size and file.name not in UNPROTECTED
        )
        if not files:
            return False
        # Half of the time the file that matters most, if there is one yet.
        kept = [file for file in files if file.name == "last.ckpt"]
        file = stream.choice(kept if kept and stream.random() < 0.5 else files)
        whole = file.read_bytes()
        file.write_bytes(change(whole, stream))
        trial.curves = not file.name.startswith("events")
        before = trial.files()
        code, said = trial.repeat()
        if not code:
            return False
        if code != 2 and trial.verb not in ("sweep", "reproduce"):  # these name what failed
            raise Wrong(f"a damaged {file.name} ends with {code}\n{said}")
        if trial.verb not in ("sweep", "reproduce") and trial.files() != before:
            raise Wrong(f"files were changed, though {file.name} was refused\n{said}")
        if trial.script == "train.py":
            trial.curves = True
            trial.must_be_identical("force=true")
        else:
            file.write_bytes(whole)
            trial.must_be_identical()
        return True

    return fault


UNPROTECTED = {"metrics.json", ".lock", "verdicts.json", "report.html", "mine.jsonl"}


def cut(content: bytes, stream: random.Random) -> bytes:
    return content[: stream.randrange(len(content))]


def flip(content: bytes, stream: random.Random) -> bytes:
    place = stream.randrange(len(content))
    changed = bytearray(content)
    changed[place] ^= 1 << stream.randrange(8)
    return bytes(changed)


KINDS: dict[str, tuple[Callable[[Trial, random.Random], bool | None], str]] = {
    "killed at a random instant": (kill_between(0.0, 1.1), "all"),
    "killed in the first tenth": (kill_between(0.0, 0.1), "all"),
    "killed in the last tenth": (kill_between(0.9, 1.0), "all"),
    "killed in a rename": (kill_in_a_rename, "writing"),
    "two signals": (signals_in_pairs, "all"),
    "full disk": (full_disk, "writing"),
    "limited file size": (limited_file_size, "writing"),
    "failing fsync": (failing(("fsync",)), "writing"),
    "failing rename": (failing(RENAMES), "writing"),
    "truncated file": (damaged(cut), "all"),
    "flipped bit": (damaged(flip), "all"),
    "clock steps": (clock_steps, "all"),
    "two to eight processes": (several_processes, "all"),
    "signals in a job of Slurm": (signals_of_slurm, "all"),
}
WITHOUT_SLURM = 1040  # the first faults, which were drawn from the kinds before the last one
VERBS = {
    "all": ["train"] * 5 + ["sweep"] * 2 + ["reproduce"] + ["export"] * 2 + ["sample"] * 2,
    "writing": ["train"] * 5 + ["sweep"] * 2 + ["reproduce"] + ["export"] * 2,
}


@dataclass(frozen=True)
class Outcome:
    """How a fault ended.

    Args:
        number: of the fault.
        kind: a key of KINDS.
        verb: the command.
        ended: bit-identical, refused, or other.
        told: what went wrong.
    """

    number: int
    kind: str
    verb: str
    ended: str
    told: str = ""


def run_fault(number: int, bench: Bench, scratch: Path) -> Outcome:
    """Do one fault, and see what is left."""
    stream = random.Random(f"fault {number}")
    kinds = list(KINDS)[: -1 if number < WITHOUT_SLURM else None]
    kind = kinds[number % len(kinds)]
    act, verbs = KINDS[kind]
    verb = stream.choice(VERBS[verbs])
    bench.reference(verb)
    with _folder(scratch / str(number)) as folder:
        trial = bench.trial(verb, folder)
        trial.prepare()
        try:
            refused = act(trial, stream)
            if not refused:
                trial.must_be_identical()
        except (Wrong, OSError, ValueError) as wrong:  # or what is left cannot be read
            return Outcome(number, kind, verb, OTHERWISE, str(wrong))
        finally:
            for command in trial.commands:
                if command.process.is_alive():
                    command.process.kill()
    return Outcome(number, kind, verb, SENTENCE if refused else IDENTICAL)


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        unmount = ["umount", "--quiet", str(folder / "disk")]
        stack.callback(subprocess.run, unmount, capture_output=True)
        yield folder


def run_faults(numbers: Iterable[int]) -> Iterator[Outcome]:
    """Do these faults, and print how each ended."""
    with tempfile.TemporaryDirectory() as place:
        bench = Bench(Path(place))
        for number in numbers:
            done = run_fault(number, bench, Path(place))
            line = f"fault {number}: {done.verb}, {done.kind}: {done.ended}"
            print(line if not done.told else f"{line}: {done.told}", flush=True)
            yield done


def counts(outcomes: Iterable[Outcome]) -> dict[str, list[int]]:
    """Kind -> how many outcomes are bit-identical, refused, or other."""
    found = {kind: [0, 0, 0] for kind in KINDS}
    for outcome in outcomes:
        found[outcome.kind][(IDENTICAL, SENTENCE, OTHERWISE).index(outcome.ended)] += 1
    return found


def table(found: dict[str, list[int]]) -> list[str]:
    """The counts as lines of Markdown."""
    rows = [*found.items(), ("all", [sum(column) for column in zip(*found.values(), strict=True)])]
    return [
        f"| fault | times | {IDENTICAL} | {SENTENCE} | {OTHERWISE} |",
        "|---|---|---|---|---|",
        *(f"| {kind} | {sum(n)} | {n[0]} | {n[1]} | {n[2]} |" for kind, n in rows),
    ]


FAULTS = re.compile(r"Faults (\d+) to (\d+) at commit ")
WRONG = "Other outcomes: "


def ended_otherwise(page: Path) -> list[int]:
    """The faults whose last outcome was neither bit-identical nor refused."""
    lines = page.read_text(encoding="utf-8").splitlines()
    wrong = "".join(line.removeprefix(WRONG) for line in lines if line.startswith(WRONG))
    return [int(number) for number in re.findall(r"\d+", wrong)]


def add_to_page(page: Path, outcomes: list[Outcome], commit: str) -> None:
    """Add the outcomes of a call to the table of docs/survival.md.

    A fault is counted once. If its outcome was "other", the new outcome replaces it; the other
    faults in the table are not counted again.
    """
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    old, _, after = rest.partition(END)
    wrong = ended_otherwise(page)
    counted = {n for a, b in FAULTS.findall(old) for n in range(int(a), int(b) + 1)}
    again = [each for each in outcomes if each.number in wrong]
    new = [each for each in outcomes if each.number not in counted]
    total = counts(again + new)
    for line in old.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 5 and cells[0] in total:
            total[cells[0]] = [x + int(y) for x, y in zip(total[cells[0]], cells[2:], strict=True)]
    for each in again:
        total[each.kind][2] -= 1
    calls = [line for line in old.splitlines() if line.startswith("Faults ")]
    if new:
        calls.append(f"Faults {new[0].number} to {new[-1].number} at commit {commit}.")
    if again:
        numbers = ", ".join(str(each.number) for each in again)
        calls.append(f"Faults {numbers} again at commit {commit}, in place of their last outcome.")
    done = {each.number for each in again + new}
    wrong = [n for n in wrong if n not in done]
    wrong += [each.number for each in again + new if each.ended == OTHERWISE]
    if wrong:
        calls.append(WRONG + ", ".join(map(str, sorted(wrong))) + ".")
    text = "\n".join([BEGIN, "", *table(total), "", *calls, "", END])
    page.write_text(before + text + after, encoding="utf-8")


def main() -> None:
    """Run the faults that the command line names."""
    numbers = ended_otherwise(PAGE)
    if sys.argv[1] != "again":
        first, count = (int(word) for word in sys.argv[1:3])
        numbers = list(range(first, first + count))
    describe = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip() or "unknown"
    outcomes: list[Outcome] = []
    try:
        for outcome in run_faults(numbers):
            outcomes.append(outcome)
    finally:  # also after an interruption; the next call continues with the next number
        if outcomes:
            print("\n".join(table(counts(outcomes))))
            add_to_page(PAGE, outcomes, commit)
    raise SystemExit(any(outcome.ended == OTHERWISE for outcome in outcomes))


if __name__ == "__main__":
    main()
