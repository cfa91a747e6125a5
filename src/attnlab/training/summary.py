"""What is printed after a run: its result, what it means, and the next commands."""

import math
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from attnlab.installation import training_command
from attnlab.runs.pairing import Comparison, pairs
from attnlab.runs.printing import log_sentences, said_of, say
from attnlab.runs.reading import Run, read_neighbors, read_run
from attnlab.runs.run_directory import RunDirectory
from attnlab.runs.sentences import too_few
from attnlab.runs.settings import flat, last_of, settings_with

if TYPE_CHECKING:
    from attnlab.training.run import Result


def show(result: "Result", overrides: Sequence[str]) -> None:
    """Print the result of a run, what it means beside its baseline, and what to do next."""
    table = Table(show_header=False, box=SIMPLE, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(result).items():
        table.add_row(name, text)
    print(f"\n run directory     {result.folder}")  # never broken, so that it can be copied
    Console(highlight=False, markup=False).print(table)
    run = read_run(result.folder)
    # Only settings that differ in their attention, so that labels are short.
    like = pairs([other for other in read_neighbors(run.folder) if other.rest == run.rest])
    compared = [c for c in like if c.has(run)]
    if result.fresh:
        log_sentences([run], compared)
    say(*said_of(run, compared), too_few(compared))
    print("Next:")  # in plain lines, which can be copied however narrow the terminal is
    for command in _next_commands(result, run, compared, overrides):
        print(f"  {command}")


def _rows(result: "Result") -> dict[str, str]:
    metrics, module = result.metrics, result.module
    unit = "answer" if "val_accuracy" in metrics else metrics["unit"]
    loss = f"{metrics['val_loss']:.4f} nats per {unit} over all validation data"
    if "val_bits_per_byte" in metrics:
        loss += f" ({metrics['val_bits_per_byte']:.4f} bits per byte)"
    if metrics.get("val_floor"):  # that of a task is 0
        loss += f"; the text's exact entropy is {metrics['val_floor']:.4f}"
    speed = f"{metrics['tokens_per_second']:,.0f} tokens/s on {metrics['device']}"
    if metrics["precision"] != "32-true":
        speed += f", {metrics['precision']}"
    rows = {"status": outcome_in_words(result)}
    if metrics["status"] == "diverged":
        rows["reason"] = RunDirectory(result.folder).status()["reason"]
    rows |= {"corpus": metrics["corpus"]["name"], "validation loss": loss}
    if "val_accuracy" in metrics:
        rows["accuracy"] = f"{metrics['val_accuracy']:.2%} of the answers"
    if "attention" in metrics and metrics["precision"] != "32-true":
        rows["attention"] = f"computed by {metrics['attention']}"
    return rows | module.summary_rows(metrics) | {"speed": speed}


def _next_commands(
    result: "Result", run: Run, compared: Sequence[Comparison], overrides: Sequence[str]
) -> Iterator[str]:
    """Commands that were not run yet: the other arm, then both side by side, then compare."""
    module, folder = result.module, result.folder
    paired = [pair for c in compared for pair in c.pairs if run.folder in (x.folder for x in pair)]
    partners = [other if mine.folder == run.folder else mine for mine, other in paired]
    settings = last_of(overrides)
    attn = [text for key, text in settings.items() if key.split(".")[0] == "attn"]
    if not partners:  # the baseline or, for the baseline, a common ablation
        other_arm = [module.baseline if set(attn) - {module.baseline} else module.contrast]
        once = settings_with("once")
        other_arm += [o for key, o in settings.items() if o not in attn and key not in once]
        other_arm.sort(key=lambda word: not word.startswith("--"))  # as Hydra parses
        program, first = training_command().split()
        yield f"{_command(program)} {first} {shlex.join(other_arm)}"
    with_history = [other for other in partners if (other.folder / "history.json").exists()]
    if with_history and (folder / "history.json").exists():
        both = shlex.join([str(with_history[0].folder), str(folder)])
        yield f"{_command('attnlab')} explore {both}{_trust(result)}"
    if partners:
        yield f"{_command('attnlab')} compare {shlex.quote(str(run.place))}"
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists() and "val_accuracy" not in result.metrics:  # a task's symbols are not a text
        for verb in module.verbs:
            yield f"{_command('attnlab')} {verb} {shlex.quote(str(folder))}{_trust(result)}"
    if any(folder.glob("events.out.tfevents.*")):
        logs = run.place.parent if folder.name.startswith("seed=") else folder  # of hydra.run.dir
        yield f"{_command('tensorboard')} --logdir {shlex.quote(str(logs))}  # tab Time Series"


def _trust(result: "Result") -> str:
    """The option without which a model that has parts of the user's own is not opened."""
    named = [x for group in ("model", "attn") for x in flat(result.settings[group]).values()]
    own = any("." in x and not x.startswith("torch.") for x in named if isinstance(x, str))
    return " --trust" if own else ""


def _command(name: str) -> str:
    """A command of this environment; its path if the shell would not find it by name."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    if found is not None and Path(found).samefile(ours):
        return name
    return os.path.relpath(ours)


def outcome_in_words(result: "Result") -> str:
    """The status of the run, with the step and the reason if it did not finish."""
    outcome = str(result.metrics["status"])
    status = RunDirectory(result.folder).status() if outcome != "finished" else {}
    if outcome == "diverged":
        last = status["last_finite_loss"]
        since = f"last finite loss {last:.4f}" if math.isfinite(last) else "from the start"
        outcome += f" at step {status['step']}, {since}"
    if outcome == "stopped":
        outcome += f" at step {status['step']} of {status['max_steps']}, {status['reason']}"
    if not result.fresh:
        outcome += "; already done, use force=true to rerun"
    return outcome
