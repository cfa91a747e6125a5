"""The logits in what a model returns."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from attnlab.errors import BadInput


def find_logits(output: object, shape: tuple[int, ...], vocab_size: int) -> Tensor:
    """Find the logits (B, T, V) in what a model returns; BadInput if it has none."""
    return find_rows(output, shape, vocab_size, ("model", "logits"))


def find_rows(
    output: object, shape: tuple[int, ...], width: int, names: tuple[str, str]
) -> Tensor:
    """Find numbers of a shape (B, T) and another axis, of this width if there are any.

    BadInput if there are none, with the names of what returned the output and of the numbers.
    """
    arrays = list(tensors_in(output))
    fitting = [a for a in arrays if a.ndim == 3 and a.shape[:2] == shape and a.is_floating_point()]
    if fitting:
        return next((a for a in fitting if a.shape[2] == width), fitting[0])
    shapes = ", ".join(str(tuple(a.shape)) for a in arrays) or type(output).__name__
    who, what = names
    raise BadInput(
        f"for (B, T) = {shape} the {who} returned {shapes}; "
        f"it must give {what} of shape {(*shape, width)}, or something that holds them"
    )


def tensors_in(output: object) -> Iterator[Tensor]:
    """The tensors in what a model returns; arrays of NumPy and JAX become tensors."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in [output["logits"]] if "logits" in output else output.values():
            yield from tensors_in(part)
    elif hasattr(output, "logits"):
        yield from tensors_in(output.logits)
    elif isinstance(output, Sequence) and not isinstance(output, str):
        for part in output:
            yield from tensors_in(part)
    elif hasattr(output, "__array__"):  # NumPy, and JAX by way of it
        import numpy

        yield torch.from_numpy(numpy.array(output))
