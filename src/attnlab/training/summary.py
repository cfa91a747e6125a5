"""What is printed after a run or a sweep: results, paired differences, and next commands."""

import json
import math
import os
import shlex
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE, SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnlab.files import read_yaml
from attnlab.installation import training_command
from attnlab.runs.run_directory import RunDirectory
from attnlab.runs.settings import identity, last_of, settings_with

if TYPE_CHECKING:
    from attnlab.training.run import Result

READS_AHEAD = 1e-3  # weight on later positions; with more, the validation loss means nothing
EQUAL_HEADS = 0.9995


def show(result: "Result", overrides: Sequence[str]) -> None:
    """Print the result of a run and suggest the next commands."""
    table = Table(show_header=False, box=SIMPLE, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _rows(result).items():
        table.add_row(name, text)
    print(f"\n run directory     {result.folder}")  # never broken, so that it can be copied
    Console(highlight=False, markup=False).print(table)
    print("Next:")  # in plain lines, which can be copied however narrow the terminal is
    for command in _next_commands(result, overrides):
        print(f"  {command}")


def _rows(result: "Result") -> dict[str, str]:
    metrics, module = result.metrics, result.module
    loss = f"{metrics['val_loss']:.4f} nats per {metrics['unit']} over all validation data"
    if "val_bits_per_byte" in metrics:
        loss += f" ({metrics['val_bits_per_byte']:.4f} bits per byte)"
    if "val_floor" in metrics:
        loss += f"; the text's exact entropy is {metrics['val_floor']:.4f}"
    speed = f"{metrics['tokens_per_second']:,.0f} tokens/s on {metrics['device']}"
    if metrics["precision"] != "32-true":
        speed += f", {metrics['precision']}"
    rows = {"status": outcome_in_words(result)}
    if metrics["status"] == "diverged":
        rows["reason"] = RunDirectory(result.folder).status()["reason"]
    rows |= {"corpus": metrics["corpus"]["name"], "validation loss": loss}
    rows |= module.summary_rows(metrics) | compare(result.folder)
    return rows | remarks(metrics) | {"speed": speed}


def _next_commands(result: "Result", overrides: Sequence[str]) -> Iterator[str]:
    module, folder = result.module, result.folder
    root = folder.parent.parent
    outputs = root.parent if folder.name.startswith("seed=") else folder  # of hydra.run.dir
    if any(folder.glob("events.out.tfevents.*")):
        yield f"{_command('tensorboard')} --logdir {shlex.quote(str(outputs))}"
    yield f"{_command('attnlab')} runs {shlex.quote(str(root))}"
    last = folder / "checkpoints" / "last.ckpt"
    if last.exists() and "val_accuracy" not in result.metrics:  # a task's symbols are not a text
        named = [x for group in ("model", "attn") for x in result.settings[group].values()]
        own = any("." in x and not x.startswith("torch.") for x in named if isinstance(x, str))
        for verb in module.verbs:
            trust = " --trust" if own else ""  # the model has parts of the user's own
            yield f"{_command('attnlab')} {verb} {shlex.quote(str(folder))}{trust}"
    # The baseline, or for the baseline a common ablation.
    settings = last_of(overrides)
    attn = [o for key, o in settings.items() if key.split(".")[0] == "attn"]
    once = settings_with("once")
    other = [module.baseline if set(attn) - {module.baseline} else module.contrast]
    other += [o for key, o in settings.items() if o not in attn and key not in once]
    other.sort(key=lambda word: not word.startswith("--"))  # as Hydra parses
    program, first = training_command().split()
    yield f"{_command(program)} {first} {shlex.join(other)}"


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


@dataclass(frozen=True)
class FinishedRun:
    """What a comparison needs to know about a run."""

    folder: Path
    variant: str  # the file of conf/attn
    seed: int
    metrics: dict[str, Any]  # the content of metrics.json
    loss: float  # on the validation data; infinite if the run diverged
    attention: str  # the settings of attn, as JSON
    rest: str  # all other settings that can change the result, and the corpus, as JSON

    @property
    def label(self) -> str:
        """The name of its directory without the seed, such as attn=unscaled,model.n_head=1."""
        return self.folder.parent.name


def read_finished(root: Path) -> list[FinishedRun]:
    """The undamaged runs `<root>/<settings>/seed=<n>` that ended with a result, in order."""
    runs = []
    for folder in sorted(file.parent for file in root.glob("*/seed=*/metrics.json")):
        try:
            directory = RunDirectory(folder)
            if not directory.is_done():
                continue
            metrics = directory.metrics()
            settings = read_yaml(folder / ".hydra" / "config.yaml")
            attention = json.dumps(settings.pop("attn"), sort_keys=True)
            rest = identity(settings)
            seed, variant = int(rest.pop("seed")), str(metrics["variant"])
            rest["corpus"] = metrics["corpus"]["sha256"]
            loss = math.inf if metrics["status"] == "diverged" else float(metrics["val_loss"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # it is damaged
            continue
        whole = json.dumps(rest, sort_keys=True)
        runs.append(FinishedRun(folder, variant, seed, metrics, loss, attention, whole))
    return runs


def compare(folder: Path) -> dict[str, str]:
    """Paired differences between the run in `<root>/<settings>/seed=<n>` and the baseline, or for
    the baseline every other variant, as rows for its table: name -> text."""
    rows = {}
    for group in pair(folder.parent.parent):
        for reference, run in zip(group.at_baseline, group.runs, strict=True):
            if folder not in (run.folder, reference.folder):
                continue
            diverged = [x.label for x in (reference, run) if math.isinf(x.loss)]
            text = f"{run.loss - reference.loss:+.4f} nats"
            if diverged:
                text = f"{' and '.join(diverged)} diverged"
            elif reads_ahead(run.metrics):
                text += ", not comparable"
            versus = f"vs attn={reference.variant}"
            name = versus if folder == run.folder else run.label.split(",")[0]
            rows[f"{name}, seed {run.seed}"] = text
    return rows


def reads_ahead(metrics: dict[str, Any]) -> bool:
    """Whether the model puts weight on the future, as far as its probes measured that."""
    return bool(metrics["probes"].get("attn/future_mass", 0.0) > READS_AHEAD)


def remarks(metrics: dict[str, Any]) -> dict[str, str]:
    """Rows on measurements of the probes that change what the loss means."""
    probes, rows = metrics["probes"], {}
    if reads_ahead(metrics):
        rows["future mass"] = (
            f"{probes['attn/future_mass']:.2f}: this model reads ahead, so its loss does not "
            "measure prediction"
        )
    if probes.get("attn/head_similarity", 0.0) > EQUAL_HEADS:
        rows["head similarity"] = f"{probes['attn/head_similarity']:.3f}: the heads are one"
    return rows


@dataclass(frozen=True)
class PairedRuns:
    """Runs of one attention, each beside the baseline's run of its seed and its other settings."""

    label: str  # the name of their directories, such as attn=unscaled,model.n_head=1
    shared: tuple[str, ...]  # the overrides in it that the baseline has too, not about attention
    runs: tuple[FinishedRun, ...]  # one per seed
    at_baseline: tuple[FinishedRun, ...]  # the baseline's, in the same order

    @property
    def attention(self) -> str:
        """The name of the attention, such as unscaled or sdpa,attn.scale=0.5."""
        parts = [part for part in self.label.split(",") if part not in self.shared]
        return ",".join(parts).removeprefix("attn=")

    @property
    def differences(self) -> list[float]:
        """Validation loss minus the baseline's, of the seeds at which neither diverged."""
        pairs = zip(self.runs, self.at_baseline, strict=True)
        return [a.loss - b.loss for a, b in pairs if math.isfinite(a.loss + b.loss)]


def pair(root: Path) -> list[PairedRuns]:
    """Pair every other attention in outputs/<name> with the baseline, over all seeds that both
    have, separately for other settings that differ, such as the initialization."""
    runs = read_finished(root)
    plain = [
        run
        for run in runs
        if run.variant == run.metrics.get("baseline", "sdpa") and ",attn." not in run.label
    ]
    base = {(x.seed, x.rest): x for x in runs if plain and x.attention == plain[0].attention}
    groups: dict[tuple[str, str], list[FinishedRun]] = {}
    for run in runs:
        reference = base.get((run.seed, run.rest))
        if reference is not None and run.attention != reference.attention:
            groups.setdefault((run.rest, run.label), []).append(run)
    paired = []
    for (_, label), group in sorted(groups.items()):
        group = sorted(group, key=lambda run: run.seed)
        shared = tuple(x for x in label.split(",")[1:] if not x.startswith("attn."))
        others = tuple(base[run.seed, run.rest] for run in group)
        paired.append(PairedRuns(label, shared, tuple(group), others))
    return paired


def own_settings(groups: Sequence[PairedRuns]) -> list[list[str]]:
    """The settings of each group that not all groups share; none if only the attention differs
    (names of directories that were cut differ even then)."""
    apart = len({group.runs[0].rest for group in groups}) > 1
    shared = set.intersection(*(set(group.shared) for group in groups)) if groups else set()
    return [[part for part in group.shared if apart and part not in shared] for group in groups]


def paired_table(groups: Sequence[PairedRuns]) -> Group:
    """The paired differences, the baseline above the variants of its settings, with notes."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("validation loss, paired by seed", overflow="fold")
    for column in ("n", "mean", "median diff", "lowest", "highest"):
        table.add_column(column, justify="right", no_wrap=True)
    notes: dict[str, None] = {}
    above: tuple[str, tuple[FinishedRun, ...]] | None = None
    for group, settings in zip(groups, own_settings(groups), strict=True):
        section = (group.runs[0].rest, group.at_baseline)
        if section != above:
            if above is not None:
                table.add_section()
            if settings:
                table.add_row(escape(", ".join(settings)))
            table.add_row(group.at_baseline[0].variant, *_loss_cells(group.at_baseline))
            above = section
        differences = group.differences
        cells = ["-"] * 3
        if differences:
            middle = statistics.median(differences)
            cells = [f"{x:+.4f}" for x in (middle, min(differences), max(differences))]
        table.add_row(escape(group.attention), *_loss_cells(group.runs), *cells)
        if lost := len(group.runs) - len(differences):
            notes[f"{group.attention}: {lost} of {len(group.runs)} pairs diverged"] = None
        for name, text in remarks(group.runs[0].metrics).items():
            notes[f"{group.attention}: {name} {text}"] = None
    return Group(table, *(Text(note) for note in notes))


def _loss_cells(runs: Sequence[FinishedRun]) -> list[str]:
    finite = [run.loss for run in runs if math.isfinite(run.loss)]
    return [str(len(runs)), f"{statistics.fmean(finite):.4f}" if finite else "-"]
