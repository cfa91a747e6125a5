"""The base class of all probes, and functions that log what they measure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor, nn

from attnlab.errors import BadInput, with_location
from attnlab.model import GPT
from attnlab.plotting.drawing import Pixels, png
from attnlab.probes.layer_check import users_layers

# TensorBoard sorts groups of charts by name and opens the first two. A capital letter comes first.
SHOWN_FIRST = {"train/loss": "Loss/train", "val/loss": "Loss/validation"}
# What a user's layer may raise.
LAYER_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Probe(L.Callback):
    """A callback that changes neither the weights nor the random state.

    It reads `net`, `corpus` and `val_losses` (step -> nats per prediction) of the LightningModule.
    `record` holds its last measurement for metrics.json. Checkpoints contain it, because a run
    that is killed after its last step measures nothing when it resumes.
    """

    subject: type[nn.Module] = GPT  # the models that it can measure

    def __init__(self) -> None:
        self.record: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return {"record": json.dumps(self.record)}  # a checkpoint loads plain values only

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.record = json.loads(state_dict["record"])

    def try_on(self, net: GPT) -> None:
        """Measure an untrained model once; any error leaves the probe out of the run."""

    def check(self, net: nn.Module) -> None:
        """Raise BadInput for a model that is not a `subject`."""
        if not isinstance(net, self.subject):
            raise BadInput(
                f"the probe {type(self).__name__} measures a {self.subject.__name__}, not a "
                f"{type(net).__name__}; choose other probes, or probes=none"
            )


def measurable(callbacks: list[L.Callback], net: nn.Module) -> list[L.Callback]:
    """The callbacks without the probes that cannot measure a model with a user's own layers, which
    are named in a line each. Raises BadInput if a probe is for another class of models."""
    kept = []
    for callback in callbacks:
        if isinstance(callback, Probe):
            callback.check(net)
            if isinstance(net, GPT) and users_layers(net):
                try:
                    callback.try_on(net)
                except LAYER_ERRORS as error:
                    name = type(callback).__name__
                    print(f"the probe {name} is left out: {with_location(error)}")
                    continue
        kept.append(callback)
    return kept


def run_directory(trainer: L.Trainer) -> Path:
    """The directory of a run: `default_root_dir` is an empty place in it, so that Lightning reads
    no checkpoint that it finds."""
    return Path(trainer.default_root_dir).parent


def at_least(name: str, value: int | None, least: int) -> None:
    """Raise BadInput for a setting below `least`."""
    if value is not None and value < least:
        raise BadInput(f"{name} = {value} must be at least {least}")


def log_scalars(trainer: L.Trainer, values: Mapping[str, float], step: int) -> None:
    """Log numbers to every logger, NaN as NaN, from the first process.

    TensorBoard gets all of them in one event; one event each would add seconds to a run. It also
    gets the losses under names that it shows before all others.
    """
    if not trainer.is_global_zero:
        return
    first = {name: values[tag] for tag, name in SHOWN_FIRST.items() if tag in values}
    tags = (first | dict(values)).items()
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=x) for tag, x in tags])
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment._get_file_writer().add_summary(summary, step)
        else:
            logger.log_metrics(dict(values), step=step)


def log_image(trainer: L.Trainer, tag: str, picture: Pixels, step: int) -> None:
    """Log a picture to TensorBoard, Weights & Biases and MLflow."""
    for logger in trainer.loggers if trainer.is_global_zero else ():
        if isinstance(logger, TensorBoardLogger):
            (height, width, _), content = picture.shape, png(picture)  # faster than `add_image`
            encoded = Summary.Image(
                height=height, width=width, colorspace=3, encoded_image_string=content
            )
            summary = Summary(value=[Summary.Value(tag=tag, image=encoded)])
            logger.experiment._get_file_writer().add_summary(summary, step)
        elif isinstance(logger, WandbLogger):
            logger.log_image(tag, [picture], step)
        elif isinstance(logger, MLFlowLogger):
            logger.experiment.log_image(logger.run_id, picture, key=tag, step=step)


def log_text(trainer: L.Trainer, tag: str, text: str, step: int) -> None:
    """Log a text to TensorBoard, as preformatted Markdown."""
    for logger in tensorboards(trainer):
        indented = "\n".join(f"    {line}" for line in text.split("\n"))
        logger.experiment.add_text(tag, indented, step)


def log_histogram(trainer: L.Trainer, tag: str, values: Tensor, step: int) -> None:
    """Log the finite values to TensorBoard, whose histograms refuse NaN."""
    finite = values[values.isfinite()]
    if len(finite):
        for logger in tensorboards(trainer):
            logger.experiment.add_histogram(tag, finite.cpu(), step, bins="auto")


def tensorboards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """The TensorBoard loggers, which take texts and histograms."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
