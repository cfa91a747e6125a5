"""Compare a run with runs of the same settings and seed that differ in their attention alone."""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from attnlab.errors import BadInput
from attnlab.files import read_yaml
from attnlab.training.run_directory import RunDirectory, identity

READS_AHEAD = 1e-3  # weight on later positions above which a validation loss is no longer one
EQUAL_HEADS = 0.9995
# What the files of a damaged run raise when they are read.
UNREADABLE = (BadInput, OSError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class FinishedRun:
    """What a comparison needs to know about a run.

    Args:
        folder: the run directory.
        variant: the file of conf/attn.
        seed: of the run.
        metrics: the content of metrics.json.
        attention: the settings of attn, as JSON.
        rest: all other settings that can change the result, and the corpus, as JSON.
    """

    folder: Path
    variant: str
    seed: int
    metrics: dict[str, Any]
    attention: str
    rest: str

    @property
    def loss(self) -> float:
        """Validation loss; infinite if the run diverged."""
        return math.inf if self.metrics["status"] == "diverged" else self.metrics["val_loss"]

    @property
    def label(self) -> str:
        """The name of its directory without the seed, such as attn=unscaled,model.n_head=1."""
        return self.folder.parent.name


def read_finished(root: Path) -> list[FinishedRun]:
    """The runs of `<root>/<settings>/seed=<n>` that ended with a result, sorted by directory.

    Runs that are unfinished or unreadable are left out.
    """
    runs = []
    for file in sorted(root.glob("*/seed=*/metrics.json")):
        try:
            directory = RunDirectory(file.parent)
            if not directory.is_done():
                continue
            metrics = directory.metrics()
            settings = read_yaml(file.parent / ".hydra" / "config.yaml")
            attention = json.dumps(settings.pop("attn"), sort_keys=True)
            rest = identity(settings)
            seed = int(rest.pop("seed"))
            rest["corpus"] = metrics["corpus"]["sha256"]
            variant, _ = str(metrics["variant"]), float(metrics["val_loss"])
        except UNREADABLE:
            continue  # `attnlab runs` lists damaged runs
        rest_json = json.dumps(rest, sort_keys=True)
        runs.append(FinishedRun(file.parent, variant, seed, metrics, attention, rest_json))
    return runs


def compare(folder: Path, baseline: str = "sdpa") -> dict[str, str]:
    """Paired differences between one run and the others of its settings and seed.

    Args:
        folder: the directory of a finished run, `<root>/<settings>/seed=<n>`.
        baseline: the variant that the others are compared with.

    Returns:
        rows for the table of a run, name -> text. For the baseline, one row for every other
        variant; for another variant, the row against the baseline.
    """
    rows = {}
    for group in pair(folder.parent.parent, baseline):
        for reference, run in zip(group.at_baseline, group.runs, strict=True):
            if folder == run.folder:
                rows[f"vs attn={baseline}, seed {run.seed}"] = difference(reference, run)
            elif folder == reference.folder:
                variant = run.label.split(",")[0]
                rows[f"{variant}, seed {run.seed}"] = difference(reference, run)
    return rows


def difference(first: FinishedRun, second: FinishedRun) -> str:
    """Validation loss of the second run minus that of the first, in words."""
    if math.isinf(first.loss) or math.isinf(second.loss):
        diverged = [run.label for run in (first, second) if math.isinf(run.loss)]
        return f"{' and '.join(diverged)} diverged"
    text = f"{second.loss - first.loss:+.4f} nats"
    return f"{text}, not comparable" if reads_ahead(second.metrics) else text


def reads_ahead(metrics: dict[str, Any]) -> bool:
    """Whether the model puts weight on the future, as far as its probes measured that."""
    mass = metrics["probes"].get("attn/future_mass", 0.0)
    return bool(mass > READS_AHEAD)


def remarks(metrics: dict[str, Any]) -> dict[str, str]:
    """Rows on what the probes saw that a reader of the loss must know."""
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
    """Runs of one attention, each beside the baseline's run of its seed and its other settings.

    Args:
        label: the name of their directories, such as attn=unscaled,model.n_head=1.
        shared: the overrides in it that are not about attention, which the baseline has too.
        runs: one per seed.
        at_baseline: the baseline's, in the same order.
    """

    label: str
    shared: tuple[str, ...]
    runs: tuple[FinishedRun, ...]
    at_baseline: tuple[FinishedRun, ...]

    @property
    def attention(self) -> str:
        """What is special about their attention, such as unscaled or sdpa,attn.scale=0.5."""
        parts = [part for part in self.label.split(",") if part not in self.shared]
        return ",".join(parts).removeprefix("attn=")

    @property
    def differences(self) -> list[float]:
        """Validation loss minus the baseline's, of the seeds at which neither diverged."""
        pairs = zip(self.runs, self.at_baseline, strict=True)
        found = [a.loss - b.loss for a, b in pairs if not math.isinf(b.loss)]
        return [x for x in found if math.isfinite(x)]


def pair(root: Path, baseline: str = "sdpa") -> list[PairedRuns]:
    """Pair every other attention with the baseline, over all seeds that both have.

    Runs are paired within their other settings: those of two initializations stay apart.

    Args:
        root: a directory of runs, outputs/<name>.
        baseline: the variant that the others are compared with.
    """
    runs = read_finished(root)
    plain = [run for run in runs if run.variant == baseline and ",attn." not in run.label]
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
    """The settings of each group that not all groups share; none if only the attention differs.

    Names of directories that were cut differ even then.
    """
    apart = len({group.runs[0].rest for group in groups}) > 1
    shared = set.intersection(*(set(group.shared) for group in groups)) if groups else set()
    return [[part for part in group.shared if apart and part not in shared] for group in groups]


def paired_table(groups: Sequence[PairedRuns], baseline: str = "sdpa") -> Group:
    """The paired differences as a table, the baseline above the variants of its settings.

    Args:
        groups: as `pair` returns them.
        baseline: the variant that the others are compared with.

    Returns:
        the table, and below it what a reader of the losses must know.
    """
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
            table.add_row(baseline, *_loss_cells(group.at_baseline))
            above = section
        differences = group.differences
        cells = ["-"] * 3
        if differences:
            middle = statistics.median(differences)
            cells = [f"{x:+.4f}" for x in (middle, min(differences), max(differences))]
        table.add_row(escape(group.attention), *_loss_cells(group.runs), *cells)
        notes |= dict.fromkeys(f"{group.attention}: {text}" for text in _notes(group))
    return Group(table, *(Text(note) for note in notes))


def _loss_cells(runs: Sequence[FinishedRun]) -> list[str]:
    finite = [run.loss for run in runs if math.isfinite(run.loss)]
    return [str(len(runs)), f"{statistics.fmean(finite):.4f}" if finite else "-"]


def _notes(group: PairedRuns) -> list[str]:
    lost = len(group.runs) - len(group.differences)
    notes = [f"{lost} of {len(group.runs)} pairs diverged"] if lost else []
    for name, text in remarks(group.runs[0].metrics).items():
        notes.append(f"{name} {text}")
    return notes
