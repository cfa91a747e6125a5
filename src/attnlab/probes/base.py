"""What every probe is: a callback that looks on, and writes what it sees to the loggers."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary
from torch import Tensor, nn

from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.plotting.heatmaps import png


class Probe(L.Callback):
    """A callback that changes neither weights nor random streams.

    What it saw last stays in `record`, which goes into metrics.json.
    """

    subject: type[nn.Module] = GPT  # what it can look at

    def __init__(self) -> None:
        self.record: dict[str, Any] = {}

    def check(self, net: nn.Module) -> None:
        """Refuse a model that it cannot look at.

        Raises:
            BadInput: it cannot.
        """
        if not isinstance(net, self.subject):
            raise BadInput(
                f"the probe {type(self).__name__} needs a {self.subject.__name__}, not a "
                f"{type(net).__name__}; choose other probes, or probes=none"
            )


def at_least(name: str, value: int | None, least: int) -> None:
    """Refuse a setting that is too small.

    Raises:
        BadInput: it is.
    """
    if value is not None and value < least:
        raise BadInput(f"{name} = {value} must be at least {least}")


def fixed_windows(ids: Tensor, block_size: int, count: int) -> tuple[Tensor, Tensor]:
    """Windows spread evenly over a text, the same at every call.

    Returns:
        x and y, (<= count, T) int64 each.
    """
    last = len(ids) - block_size - 1
    starts = torch.linspace(0, last, count).long().unique()
    windows = ids[starts[:, None] + torch.arange(block_size + 1)].long()
    return windows[:, :-1], windows[:, 1:]


def log_scalars(trainer: L.Trainer, values: Mapping[str, float], step: int) -> None:
    """Give numbers to every logger, NaN as NaN; of several processes the first one writes.

    TensorBoard gets them in one event; one each would be a matter of seconds in a run.
    """
    if not trainer.is_global_zero:
        return
    summary = Summary(value=[Summary.Value(tag=t, simple_value=x) for t, x in values.items()])
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            logger.experiment._get_file_writer().add_summary(summary, step)
        else:
            logger.log_metrics(dict(values), step=step)


def log_image(trainer: L.Trainer, tag: str, image: Image.Image, step: int) -> None:
    """Give an image to TensorBoard, encoded here since its own way is several times slower."""
    encoded = Summary.Image(
        height=image.height, width=image.width, colorspace=3, encoded_image_string=png(image)
    )
    for logger in tensorboards(trainer):
        summary = Summary(value=[Summary.Value(tag=tag, image=encoded)])
        logger.experiment._get_file_writer().add_summary(summary, step)


def log_text(trainer: L.Trainer, tag: str, text: str, step: int) -> None:
    """Give a text to TensorBoard, as it stands."""
    for logger in tensorboards(trainer):
        indented = "\n".join(f"    {line}" for line in text.split("\n"))  # Markdown for "as it is"
        logger.experiment.add_text(tag, indented, step)


def log_histogram(trainer: L.Trainer, tag: str, values: Tensor, step: int) -> None:
    """Give the finite ones of many numbers to TensorBoard, which knows no histogram of NaN."""
    finite = values[values.isfinite()]
    if len(finite):
        for logger in tensorboards(trainer):
            logger.experiment.add_histogram(tag, finite.cpu(), step, bins="auto")


def tensorboards(trainer: L.Trainer) -> list[TensorBoardLogger]:
    """The loggers that can show more than numbers."""
    return [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
