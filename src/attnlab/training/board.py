"""What TensorBoard needs besides numbers: settings and results for HParams, a layout of charts.

All of it goes into each run's own events, so that it is found whichever folder TensorBoard is
given, and no folder and no run appears that is not one. Runs that differ by their seed alone form
one group, of which HParams shows the mean.
"""

import math
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from omegaconf import DictConfig, OmegaConf
from tensorboard.plugins.hparams import api_pb2, summary

from attnlab.probes.probe import log_scalars, tensorboards
from attnlab.training.folder import flat

# HParams takes its columns from one run, so every run has the settings of all option files.
ALL_KEYS = (
    *("attn.kernel", "data.path", "data.length", "data.seed"),
    *("logger.tensorboard._target_", "logger.tensorboard.name", "logger.tensorboard.version"),
    "logger.tensorboard.default_hp_metric",
    *(f"probes.patterns.{key}" for key in ("_target_", "every", "heads", "images", "windows")),
    *(f"probes.gradients.{key}" for key in ("_target_", "every")),
    *(f"probes.predictions.{key}" for key in ("_target_", "train_windows", "sample_chars")),
)
APART = {"seed", "outputs", "force"}
# The others can be null or a word, and a column of two types loses rows.
NUMBERS = ("optim.*lr", "optim.w*", "model.n_*", "model.block_size", "model.dropout")
NUMBERS = (*NUMBERS, "data.batch_size", "trainer.max_steps")

RESULTS = {
    "val_loss": "validation loss",
    "best_val_loss": "lowest validation loss",
    "train_loss": "training loss",
    "diverged": "diverged",
    "attn/entropy": "entropy",
    "attn/head_similarity": "head similarity",
    "attn/effective_heads": "effective heads",
    "attn/future_mass": "future mass",
    "attn/score_std": "score std",
    "tokens_per_second": "tokens/s",
}

CHARTS = {
    "training": {
        "validation loss": ["val/loss"],
        "training loss": ["train/loss"],
        "norm of the gradient": ["train/grad_norm"],
        "validation loss less training loss": ["val/gap"],
    },
    "attention": {
        "entropy (1: all visible keys alike)": ["attn/entropy"],
        "head similarity (1: collapsed)": ["attn/head_similarity"],
        "effective heads": ["attn/effective_heads"],
        "future mass (0: causal)": ["attn/future_mass"],
        "standard deviation of the scores": ["attn/score_std"],
        "gradient through the softmax, measured and predicted": [
            "attn/jacobian_trace",
            "attn/jacobian_trace_predicted",
        ],
    },
    "positions": {
        "loss at the last position": ["position/last"],
        "loss between first and last": ["position/between"],
    },
}


def begin(trainer: L.Trainer, cfg: DictConfig, folder: Path) -> None:
    """Write settings, columns and layout at the start of a run."""
    settings = hyperparameters(cfg, folder)
    layout = {
        category: {title: ["Multiline", [f"^{t}$" for t in tags]] for title, tags in charts.items()}
        for category, charts in CHARTS.items()
    }
    group = f"{folder.parent.parent.name}/{folder.parent.name}"  # all but the seed
    for logger in tensorboards(trainer):
        writer = logger.experiment._get_file_writer()
        writer.add_summary(summary.experiment_pb(_columns(settings), _metrics()))
        writer.add_summary(summary.session_start_pb(settings, group_name=group))
        logger.experiment.add_custom_scalars(layout)


def end(trainer: L.Trainer, record: dict[str, Any]) -> None:
    """Fill the columns of results, with what metrics.json says."""
    diverged = record["status"] == "diverged"
    found = record | record["probes"] | {"diverged": float(diverged)}
    values = {_tag(name): found[name] for name in RESULTS if name in found}
    log_scalars(trainer, values, record["steps"])
    status = api_pb2.STATUS_FAILURE if diverged else api_pb2.STATUS_SUCCESS
    for logger in tensorboards(trainer):
        logger.experiment._get_file_writer().add_summary(summary.session_end_pb(status))
        logger.experiment.close()


def hyperparameters(cfg: DictConfig, folder: Path) -> dict[str, float | str]:
    """The whole configuration but the seed under dotted keys, the same keys for every run."""
    config = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(config, dict)
    settings = flat({str(k): v for k, v in config.items() if k not in APART})
    settings = {key: value for key, value in settings.items() if value != {}}
    values = {key: _value(key, settings.get(key, "-")) for key in {*settings, *ALL_KEYS}}
    return {"run": folder.parent.name} | dict(sorted(values.items()))


def _value(key: str, value: Any) -> float | str:
    if any(fnmatchcase(key, glob) for glob in NUMBERS):
        return float(value) if isinstance(value, int | float) else math.nan
    return str(OmegaConf.to_yaml({"x": value}))[3:].split("\n")[0] if value is None else str(value)


def _columns(settings: dict[str, float | str]) -> list[Any]:
    return [
        api_pb2.HParamInfo(
            name=name,
            type=api_pb2.DATA_TYPE_STRING
            if isinstance(value, str)
            else api_pb2.DATA_TYPE_FLOAT64,
        )
        for name, value in settings.items()
    ]


def _metrics() -> list[Any]:
    return [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=_tag(name)), display_name=shown)
        for name, shown in RESULTS.items()
    ]


def _tag(name: str) -> str:
    return f"hp/{name.removeprefix('attn/')}"
