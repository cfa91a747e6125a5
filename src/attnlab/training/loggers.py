"""Loggers of a run: made with an advice where one is not installed, and continued by a repeat."""

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor

from attnlab.errors import BadInput, first_line
from attnlab.probes.base import SHOWN_FIRST
from attnlab.settings.roles import Settings, attention_name, flat, last_of, told_apart
from attnlab.settings.types import RunSettings

EVENTS = "events.out.tfevents."  # how TensorBoard's files begin; the seconds of their start follow
EXTRAS = ("wandb", "mlflow")  # loggers that an extra of attnlab installs


def make_loggers(factories: Mapping[str, Callable[..., Logger]], folder: Path) -> list[Logger]:
    """A logger of each factory, whose key is its name in the group `logger`. BadInput, with the
    way to install it, for one that is not installed."""
    loggers = []
    for name, make in factories.items():
        try:
            loggers.append(make(save_dir=str(folder)))
        except ImportError as error:
            advice = first_line(error)
            if name in EXTRAS:
                advice = f"pip install -e '.[{name}]'"
            raise BadInput(f"logger={name} is not installed; {advice}") from error
    return loggers


def telling_settings(settings: RunSettings, overrides: Sequence[str]) -> Settings:
    """The settings by which loggers tell runs apart, under the last part of their keys: the
    variant, seed, sizes, steps and learning rate, and what else was typed that can change the
    result. What is no plain value becomes a text."""
    every = flat(settings.plain())
    told: Settings = {"attn": attention_name(every, last_of(overrides))}
    sizes = ("model.n_layer", "model.n_head", "model.n_embd")
    for key in ("seed", *sizes, "optim.lr", "trainer.max_steps"):
        if key in every:  # an optimizer of the user's may have no learning rate
            told[key.rpartition(".")[2]] = every[key]
    for key, override in told_apart(overrides).items():  # key, "key=value"
        # The choice of a group, such as preset=micro, is no setting.
        value = every.get(key, override.partition("=")[2])
        is_plain = isinstance(value, bool | int | float | str)
        told.setdefault(key.rpartition(".")[2], value if is_plain else str(value))
    return told


@rank_zero_only
def log_settings(loggers: list[Logger], told: Settings) -> None:
    """Give the loggers the settings of a run. TensorBoard shows them under HParams, and both
    losses in one chart under Custom Scalars."""
    for logger in loggers:
        logger.log_hyperparams(told)
        if isinstance(logger, TensorBoardLogger):
            from torch.utils.tensorboard.summary import hparams

            # `add_hparams` would also write a list of columns, and TensorBoard would use the list
            # of one run for all runs. Without a list it shows the columns of all, and first the
            # settings that differ.
            _experiment, start, _end = hparams(told, {})
            logger.experiment.file_writer.add_summary(start)
            losses = ["Multiline", [*SHOWN_FIRST.values()]]
            logger.experiment.add_custom_scalars({"Loss": {"train and validation": losses}})


@rank_zero_only
def continue_loggers(loggers: list[Logger], step: int) -> None:
    """Let the loggers of a run that resumes after `step` go on: what was logged up to this step
    stays, and later rows go, since they are logged again. Nothing happens if nothing was logged.
    """
    for logger in loggers:
        if isinstance(logger, CSVLogger):
            keep_rows(logger, step)
        elif isinstance(logger, TensorBoardLogger):
            mark_restart(logger, step)


def keep_rows(logger: CSVLogger, step: int) -> None:
    """Log the rows of an earlier metrics.csv up to `step` again, because a CSVLogger deletes the
    file when it begins. Until this is done, they are in metrics.kept.csv."""
    file = Path(logger.log_dir) / "metrics.csv"
    kept = file.with_name("metrics.kept.csv")
    if file.exists() and not kept.exists():  # otherwise, this was interrupted before
        file.replace(kept)
    if not kept.exists():
        return
    with kept.open(newline="", encoding="utf-8") as stream:
        rows = [row for row in csv.DictReader(stream) if int(row["step"]) <= step]
    for row in rows:
        values: dict[str, Tensor | float] = {
            key: float(value) for key, value in row.items() if key != "step" and value
        }
        logger.log_metrics(values, step=int(row["step"]))
    logger.save()
    kept.unlink()


def mark_restart(logger: TensorBoardLogger, step: int) -> None:
    """Tell TensorBoard to leave out what earlier files say of steps after `step`; these are the
    events that PyTorch's SummaryWriter writes for its argument `purge_step`."""
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    earlier = sorted(Path(logger.log_dir).glob(f"{EVENTS}*"))
    if not earlier:
        return
    date_before_now(earlier)
    writer = logger.experiment.file_writer
    start = SessionLog(status=SessionLog.START)
    writer.add_event(Event(step=step + 1, file_version="brain.Event:2"))
    writer.add_event(Event(step=step + 1, session_log=start))


def date_before_now(files: Sequence[Path]) -> None:
    """Rename event files that were begun later than now, by a clock that was ahead. TensorBoard
    reads files in the order of their names, which begin with the time, and never goes back: it
    would not see what a run that resumes logs."""
    now = int(time.time())
    later = []  # with the rest of the name: host and process
    for file in files:
        seconds, _, rest = file.name.removeprefix(EVENTS).partition(".")
        if int(seconds) >= now:
            later.append((file, rest))
    # In their order, a second apart, the last one a second ago.
    for second, (file, rest) in enumerate(later, start=now - len(later)):
        file.rename(file.with_name(f"{EVENTS}{second:010}.{rest}"))
