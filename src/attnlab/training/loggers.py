"""The results of a run: its loggers, with HParams and charts of TensorBoard, and its metrics."""

import csv
import inspect
import json
import math
import platform
import subprocess
import time
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.fabric.utilities.apply_func import move_data_to_device
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, WandbLogger
from omegaconf import DictConfig
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb

from attnlab.data.batches import TaskData
from attnlab.errors import BadInput, first_line
from attnlab.files import read_file, read_json, read_yaml, write_json
from attnlab.probes.base import Probe, log_scalars, tensorboards
from attnlab.probes.capture import eval_mode
from attnlab.runs.run_directory import Settings, variant_of
from attnlab.training.callbacks import Clock, RunCheckpoints
from attnlab.training.instantiate import build, locate
from attnlab.training.lightning_module import TaskModule

# Loggers of services, and their arguments for the name and the id of a run.
SERVICES: dict[Any, Any] = {WandbLogger: ("name", "id"), MLFlowLogger: ("run_name", "run_id")}
ENTRIES = "loggers.json"  # class of a logger -> id of the run


@cache
def shown() -> dict[str, Any]:
    """What TensorBoard shows: columns and results of HParams, and charts."""
    return dict(read_yaml(Path(__file__).with_name("tensorboard.yaml")))


def make_logger(node: DictConfig, path: str, folder: Path, resume_step: int | None) -> Logger:
    """A logger that writes into the run directory by default; BadInput if it cannot be made."""
    target = locate(str(node._target_), f"{path}._target_")
    given: dict[str, Any] = {}
    if target in SERVICES:
        name, id_ = SERVICES[target]
        given[name] = f"{folder.parent.name}/{folder.name}"
        if resume_step is not None and (folder / ENTRIES).exists():
            given[id_] = read_json(folder / ENTRIES).get(target.__name__)
        given = {key: value for key, value in given.items() if node.get(key) is None}
    if "save_dir" in inspect.signature(target).parameters and "save_dir" not in node:
        given["save_dir"] = str(folder)
    if target is L.loggers.TensorBoardLogger and resume_step is not None:
        # TensorBoard drops what the interrupted part logged after its checkpoint.
        given["purge_step"] = resume_step + 1
    try:
        logger: Logger = build(node, path, given=given)(**given)
    except ModuleNotFoundError as error:
        extra = path.rpartition(".")[2]
        raise BadInput(
            f"{path} needs a package that is missing; install it with: pip install -e '.[{extra}]'"
        ) from error
    return logger


def log_settings(
    trainer: L.Trainer, settings: Settings, folder: Path, variant: str, resume_step: int | None
) -> None:
    """Write settings, columns and layout when a run starts or resumes."""
    for logger in trainer.loggers:
        if isinstance(logger, CSVLogger) and resume_step is not None:
            _restore_csv_rows(logger, resume_step)
    _open_services(trainer, folder)
    row = hyperparameters(settings, variant)
    layout = {
        category: {x: ["Multiline", [f"^{tag}$" for tag in tags]] for x, tags in charts.items()}
        for category, charts in shown()["charts"].items()
    }
    group = f"{folder.parent.parent.name}/{folder.parent.name}"  # all but the seed
    for logger in tensorboards(trainer):
        writer = logger.experiment._get_file_writer()
        writer.add_summary(_columns(row))
        writer.add_summary(hparams_pb(row, group))
        logger.experiment.add_custom_scalars(layout)


def _restore_csv_rows(logger: CSVLogger, resume_step: int) -> None:
    """Log the rows up to the checkpoint again, because a CSVLogger deletes metrics.csv."""
    file = Path(logger.log_dir) / "metrics.csv"
    # Keeps the rows until they are written again, so that none is lost if the process is killed.
    kept = file.with_name("metrics.csv.kept")
    source = kept if kept.exists() else file
    if not source.exists():
        return
    try:
        found = list(csv.DictReader(read_file(source).decode().splitlines()))
        if found and None in found[-1].values():  # cut off by a kill, after the checkpoint
            found.pop()
        steps = [int(row.pop("step")) for row in found]
        rows: Any = [{key: float(x) for key, x in row.items() if x} for row in found]
    except (csv.Error, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{source} is damaged ({first_line(error)}); delete it") from error
    source.replace(kept)
    for step, row in zip(steps, rows, strict=True):
        if step <= resume_step:
            logger.log_metrics(row, step)
    logger.save()
    kept.unlink()


def _open_services(trainer: L.Trainer, folder: Path) -> None:
    """Start the runs of services, record the run directory there, and keep their ids."""
    ids = {}
    for logger in trainer.loggers:
        try:
            if isinstance(logger, WandbLogger):
                where = {"run_directory": str(folder)}
                logger.experiment.config.update(where, allow_val_change=True)
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.set_tag(logger.run_id, "run_directory", str(folder))
            else:
                continue
        except Exception as error:  # of the service, whose errors have no common class
            raise BadInput(f"{type(logger).__name__} cannot start: {first_line(error)}") from error
        ids[type(logger).__name__] = logger.version
    if ids:
        write_json(folder / ENTRIES, ids)


def close_services(trainer: L.Trainer) -> None:
    """Finish the run of Weights & Biases, so that this process can start another one."""
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish()


def log_results(trainer: L.Trainer, record: dict[str, Any]) -> None:
    """Log the final results, the content of metrics.json, in the columns for results."""
    diverged = record["status"] == "diverged"
    found = record | record["probes"] | {"diverged": float(diverged)}
    values = {_tag(name): found[name] for name in shown()["results"] if name in found}
    log_scalars(trainer, values, record["steps"])
    status = api_pb2.STATUS_FAILURE if diverged else api_pb2.STATUS_SUCCESS
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(session_end_info=end)
    for logger in tensorboards(trainer):
        summary = _summary(metadata.SESSION_END_INFO_TAG, content)
        logger.experiment._get_file_writer().add_summary(summary)
        logger.experiment.close()


def hyperparameters(settings: Settings, variant: str) -> dict[str, float | str]:
    """The configuration without the seed under dotted keys, the same keys for every run."""
    rest = {key: x for key, x in settings.items() if key not in ("seed", "outputs", "force")}
    row: dict[str, float | str] = {"attn": variant}
    for group, keys in shown()["columns"].items():
        node = dict(rest.pop(group))
        row |= {f"{group}.{k}": _value(f"{group}.{k}", node.pop(k, "-")) for k in keys}
        row[f"{group}.other"] = json.dumps(node)
    return row | {"other": json.dumps(rest)}


def _value(key: str, value: Any) -> float | str:
    if key in shown()["numbers"]:
        return float(value) if isinstance(value, int | float) else math.nan
    return "null" if value is None else str(value)


def _columns(row: dict[str, float | str]) -> Summary:
    """The columns with their types, without which TensorBoard cannot filter."""
    types = {str: api_pb2.DATA_TYPE_STRING, float: api_pb2.DATA_TYPE_FLOAT64}
    hparams = [api_pb2.HParamInfo(name=name, type=types[type(x)]) for name, x in row.items()]
    metrics = [
        api_pb2.MetricInfo(name=api_pb2.MetricName(tag=_tag(name)), display_name=heading)
        for name, heading in shown()["results"].items()
    ]
    experiment = api_pb2.Experiment(hparam_infos=hparams, metric_infos=metrics)
    content = plugin_data_pb2.HParamsPluginData(experiment=experiment)
    return _summary(metadata.EXPERIMENT_TAG, content)


def _summary(tag: str, content: Any) -> Summary:
    """As `tensorboard.plugins.hparams.summary` makes it, which needs TensorFlow."""
    about = metadata.create_summary_metadata(content)
    return Summary(value=[Summary.Value(tag=tag, tensor=metadata.NULL_TENSOR, metadata=about)])


def _tag(name: str) -> str:
    return f"hp/{name.removeprefix('attn/')}"


def ending(trainer: L.Trainer, checkpoints: RunCheckpoints) -> tuple[Settings, Settings]:
    """How a run that returned ended, for metrics.json and for status.json."""
    step, divergence, stopped = trainer.global_step, checkpoints.divergence, checkpoints.stopped
    if divergence.step is not None:
        last = {"last_finite_loss": divergence.last_finite_loss}
        metrics = {"status": "diverged", "diverged_at_step": divergence.step} | last
        status = {"step": divergence.step, "reason": divergence.reason} | last
        return metrics | {"first_nonfinite": divergence.first}, status
    if stopped and step < trainer.max_steps:  # trainer.min_steps may overrule a callback
        metrics = {"status": "stopped", "stopped_because": stopped}
        return metrics, {"step": step, "reason": stopped, "max_steps": trainer.max_steps}
    return {"status": "finished"}, {"step": step}


def measured(trainer: L.Trainer, lit: TaskModule, clock: Clock) -> dict[str, Any]:
    """Losses in nats per prediction, the metrics of the task, the speed, and those of probes."""
    lit.to(trainer.strategy.root_device)  # Lightning leaves it on the CPU
    batches = trainer.global_step * trainer.accumulate_grad_batches
    finite = [x for x in lit.val_losses.values() if math.isfinite(x)]
    figures: dict[str, Any] = {"seed": lit.seed, "unit": lit.unit}
    figures |= {"baseline": variant_of(lit.baseline), "compiled": lit.recipe["config"]["compile"]}
    figures["val_loss"] = lit.val_losses[trainer.global_step]
    if lit.recipe["config"]["train_loss"]:
        figures["train_loss"] = _mean_loss(trainer, lit, lit.train_piece())
    figures["best_val_loss"] = min(finite, default=math.nan)
    with eval_mode(lit.net), trainer.precision_plugin.forward_context():
        figures |= lit.extra_metrics(clock.seconds_a_batch)
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    records = [callback.record for callback in callbacks if isinstance(callback, Probe)]
    return figures | {
        "steps": trainer.global_step,
        "tokens": lit.tokens(batches),
        "tokens_per_second": lit.tokens(batches) / max(1, batches) / clock.seconds_a_batch,
        "wall_seconds": clock.seconds,
        "parameters": sum(p.numel() for p in lit.net.parameters()),
        "probes": {key: x for record in records for key, x in record.items()},
    }


def _mean_loss(trainer: L.Trainer, lit: TaskModule, batches: Sequence[Any]) -> float:
    """The mean loss over batches, in the precision of the training."""
    total, count = 0.0, 0
    with eval_mode(lit.net), trainer.precision_plugin.forward_context():
        for batch in batches:
            count += lit.predictions(batch)
            total += float(lit.batch_loss(move_data_to_device(batch, lit.device), "sum"))
    return total / count


def provenance(trainer: L.Trainer, corpus: TaskData) -> dict[str, Any]:
    """Corpus, code, versions, precision and device that the metrics come from."""
    device = trainer.strategy.root_device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    packages = ("attnlab", "torch", "lightning", "hydra-core", "numpy")
    return {
        "corpus": corpus.record,
        "git": git_state(),
        "versions": {"python": platform.python_version()} | {p: version(p) for p in packages},
        "precision": str(trainer.precision),
        "device": device.type,
        "device_name": name or platform.machine(),
        "devices": trainer.world_size,
        "threads": torch.get_num_threads(),
    }


def git_state() -> dict[str, Any] | None:
    """The commit of the source tree and whether files differ from it; None without a clone."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10)
        return done.stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        if not git("ls-files", "--", __file__):
            return None  # an installed package below somebody else's repository
        rows = ":(top,exclude)experiments/*/rows.jsonl"  # appended while claims run
        return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--", ":/", rows))}
    except (OSError, subprocess.SubprocessError):
        return None
