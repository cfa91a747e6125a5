"""What a run tells its loggers: settings, results, and the layout of TensorBoard."""

import csv
import math
import time
from functools import cache
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.loggers import CSVLogger, MLFlowLogger, WandbLogger
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2
from tensorboard.plugins.hparams.summary_v2 import hparams_pb

from attnlab.errors import BadInput, first_line
from attnlab.files import read_file, read_yaml, write_json
from attnlab.probes.base import log_scalars, tensorboards
from attnlab.runs.settings import Settings, flat
from attnlab.training.factories import ENTRIES


@cache
def shown() -> dict[str, Any]:
    """What TensorBoard shows: columns and results of HParams, and charts."""
    return dict(read_yaml(Path(__file__).with_name("tensorboard.yaml")))


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
        lines = list(csv.DictReader(read_file(source).decode().splitlines()))
        if lines and None in lines[-1].values():  # cut off by a kill, after the checkpoint
            lines.pop()
        steps = [int(row.pop("step")) for row in lines]
        rows: Any = [{key: float(x) for key, x in row.items() if x} for row in lines]
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
    """Finish the run of Weights & Biases, so that this process can start another one; as failed if
    the training did not end."""
    if any(isinstance(logger, WandbLogger) for logger in trainer.loggers):
        import wandb

        wandb.finish(exit_code=int(trainer.interrupted))


def log_results(trainer: L.Trainer, record: dict[str, Any]) -> None:
    """Log the final results, the content of metrics.json, in the columns for results."""
    diverged = record["status"] == "diverged"
    figures = record | record["probes"] | {"diverged": float(diverged)}
    values = {_tag(name): figures[name] for name in shown()["results"] if name in figures}
    log_scalars(trainer, values, record["steps"])
    status = api_pb2.STATUS_FAILURE if diverged else api_pb2.STATUS_SUCCESS
    end = plugin_data_pb2.SessionEndInfo(status=status, end_time_secs=time.time())
    content = plugin_data_pb2.HParamsPluginData(session_end_info=end)
    for logger in tensorboards(trainer):
        summary = _summary(metadata.SESSION_END_INFO_TAG, content)
        logger.experiment._get_file_writer().add_summary(summary)
        logger.experiment.close()


def hyperparameters(settings: Settings, variant: str) -> dict[str, float | str]:
    """The columns of HParams, the same for every run: its attention, the numbers that sweeps
    change, and the other settings except the seed as text."""
    apart = ("seed", "outputs", "force")  # grouped, or not worth a column
    rest = flat({key: x for key, x in settings.items() if key not in apart})
    row: dict[str, float | str] = {"attn": variant}
    for heading, key in shown()["columns"].items():
        value = rest.pop(key, None)
        row[heading] = float(value) if isinstance(value, int | float) else math.nan
    return row | {"other": " ".join(f"{key}={value}" for key, value in rest.items())}


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
