"""One way to call any model: from ids to logits.

Letters: B batch, T time, V symbols.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from attnlab.errors import BadInput, first_line

# What a model raises when it is called in a way that it does not support.
REFUSALS = (
    RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError,
)  # fmt: skip


@dataclass(frozen=True)
class ModelAdapter:
    """A model behind a common signature.

    Args:
        model: any callable from ids (B, T) to logits (B, T, V), or to something that holds them.
        vocab_size: ids are drawn from 0 to vocab_size - 1.
        block_size: the largest T.
        convention: "torch" passes tensors, "numpy" arrays, "targets" passes the ids twice (for
            models that return all logits only if they get targets).
        rows: how many sequences one call may hold; 1 if rows mix.
        seeded: seed torch before each call, so that dropout drops the same entries.
        copies: whether the module can be copied, to add noise or train.
        size_note: block_size in words for the report, if it is not the model's own.
    """

    model: Callable[..., object]
    vocab_size: int
    block_size: int
    convention: str = "torch"
    rows: int = 64
    seeded: bool = False
    copies: bool = True
    size_note: str = ""

    @property
    def module(self) -> nn.Module | None:
        """The model as a torch module, or None."""
        return self.model if isinstance(self.model, nn.Module) else None

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the module's weights, or None."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), None)

    @property
    def device(self) -> torch.device:
        """The device of the module's weights; the CPU without a module."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def parameters(self) -> list[Tensor]:
        """The parameters of the module, if it is one."""
        return list(self.module.parameters()) if self.module is not None else []

    def tokens(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Uniform ids on the CPU."""
        return torch.randint(self.vocab_size, shape, generator=generator)

    def logits(self, ids: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, V) fp64 on the CPU, without gradients.

        Raises:
            BadInput: nothing in the output can be the logits.
        """
        with torch.no_grad():
            parts = [self.raw(part).to("cpu", torch.float64) for part in ids.split(self.rows)]
        return torch.cat(parts).detach()

    def raw(self, ids: Tensor) -> Tensor:
        """One call that keeps gradients and dtype: (B, T) -> (B, T, V)."""
        if self.seeded:
            torch.manual_seed(0)
        own = ids.to(self.device).clone()  # a model may write into its input
        if self.convention == "numpy":
            output = self.model(own.numpy())
        elif self.convention == "targets":
            output = self.model(own, own.clone())
        else:
            output = self.model(own)
        return find_logits(output, tuple(ids.shape), self.vocab_size)


def find_logits(output: object, shape: tuple[int, ...], vocab_size: int) -> Tensor:
    """Find the logits in what a model returns.

    Raises:
        BadInput: nothing in it has the shape (B, T, V).
    """
    arrays = list(_tensors(output))
    fitting = [a for a in arrays if a.ndim == 3 and a.shape[:2] == shape and a.is_floating_point()]
    if fitting:
        return next((a for a in fitting if a.shape[2] == vocab_size), fitting[0])
    shapes = ", ".join(str(tuple(a.shape)) for a in arrays) or type(output).__name__
    raise BadInput(
        f"for ids of shape {shape} the model returned {shapes}; "
        f"it must give logits of shape {(*shape, vocab_size)}, or something that holds them"
    )


def _tensors(output: object) -> Iterator[Tensor]:
    """The tensors in what a model returns; arrays of NumPy and JAX become tensors."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for part in [output["logits"]] if "logits" in output else output.values():
            yield from _tensors(part)
    elif hasattr(output, "logits"):
        yield from _tensors(output.logits)
    elif isinstance(output, Sequence) and not isinstance(output, str):
        for part in output:
            yield from _tensors(part)
    elif hasattr(output, "__array__"):  # NumPy, and JAX by way of it
        import numpy

        yield torch.from_numpy(numpy.array(output))


def adapt(
    model: Callable[..., object], vocab_size: int | None, block_size: int | None
) -> ModelAdapter:
    """Find out how to call a model and with which sizes.

    Args:
        model: see `ModelAdapter`.
        vocab_size: None if the model or its config has it.
        block_size: likewise; 64 if neither has it. A size found there is capped at 256.

    Raises:
        BadInput: a size is missing or impossible, or no way of calling gives logits.
    """
    if not callable(model):
        kind = type(model).__name__
        raise BadInput(f"a model must be callable, from ids to logits; this is a {kind}")
    V = vocab_size if vocab_size is not None else size_from(model, _VOCAB_NAMES)
    T = block_size if block_size is not None else size_from(model, _BLOCK_NAMES)
    if V is None:
        raise BadInput("the model has no vocabulary size; give vocab_size (--vocab-size)")
    if V < 2:
        raise BadInput(f"vocab_size = {V} must be at least 2")
    note = ""
    if T is None:
        T, note = 64, "64 (the model has none; give block_size to examine more)"
    elif block_size is None and T > 256:
        T, note = 256, f"256 of the model's {T} positions (give block_size to examine more)"
    if T < 3:
        raise BadInput(f"block_size = {T} must be at least 3")
    return replace(_first_working_call(model, V, T), size_note=note)


_VOCAB_NAMES = ("vocab_size", "n_vocab", "n_tokens", "num_embeddings")
_BLOCK_NAMES = (
    "block_size", "max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length",
    "context_length", "seq_len",
)  # fmt: skip


def size_from(model: object, names: tuple[str, ...]) -> int | None:
    """The first of these attributes of the model or its config that is an integer."""
    configs = [getattr(model, name) for name in ("config", "cfg", "args") if hasattr(model, name)]
    for place in (model, *configs):
        for name in names:
            if hasattr(place, name) and isinstance(getattr(place, name), int):
                return int(getattr(place, name))
    return None


def _first_working_call(model: Callable[..., object], V: int, T: int) -> ModelAdapter:
    conventions = ["torch", "numpy"]
    if isinstance(model, nn.Module):
        second = list(inspect.signature(model.forward).parameters)[1:2]
        takes_targets = second and second[0] in ("targets", "labels", "target", "y")
        conventions = ["torch", "targets"] if takes_targets else ["torch"]
    ids = torch.arange(2 * T).reshape(2, T) % V
    reasons: list[str] = []
    for convention, rows in product(conventions, (64, 1)):
        adapter = ModelAdapter(model, V, T, convention=convention, rows=rows)
        try:
            adapter.logits(ids)
        except REFUSALS as error:
            reasons.append(first_line(error, with_class=True))
        else:
            return adapter
    raise BadInput(
        f"the model fails on ids of shape (2, {T}) below {V}: {reasons[0]}; give the vocab_size "
        f"and block_size that it was built with, and a model from ids to logits"
    )
