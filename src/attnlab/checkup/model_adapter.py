"""The model under examination, as a plain function from ids to logits.

Letters: B batch, T time, V symbols.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab.errors import BadInput

# What a model raises when it is given something it was not made for.
REFUSALS = (
    RuntimeError,
    TypeError,
    ValueError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
)


@dataclass(frozen=True)
class ModelAdapter:
    """A model behind one signature.

    Args:
        model: any callable from ids (B, T) to logits (B, T, V), or to something that holds them.
        vocab_size: ids are drawn from 0 to vocab_size - 1.
        block_size: the largest T.
        convention: "torch" hands over tensors, "numpy" arrays, "targets" hands the ids over twice
            (models that give all logits only beside targets).
        rows: how many sequences one call may hold; 1 where rows mix.
        seeded: seed torch's stream before each call, so that a model that draws random numbers
            draws the same ones.
        copies: whether the module can be copied, to be disturbed and trained.
    """

    model: Callable[..., object]
    vocab_size: int
    block_size: int
    convention: str = "torch"
    rows: int = 64
    seeded: bool = False
    copies: bool = True

    @property
    def module(self) -> nn.Module | None:
        """The model as a torch module, or None."""
        return self.model if isinstance(self.model, nn.Module) else None

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the module's weights, or None."""
        floats = [p.dtype for p in self.parameters() if p.is_floating_point()]
        return floats[0] if floats else None

    @property
    def device(self) -> torch.device:
        """Where the module's weights are; the CPU without a module."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def parameters(self) -> list[Tensor]:
        """The weights of the module, if it is one."""
        return list(self.module.parameters()) if self.module is not None else []

    def replaced(self, model: Callable[..., object]) -> "ModelAdapter":
        """The same way of asking another model."""
        return replace(self, model=model)

    def tokens(self, generator: torch.Generator, *shape: int) -> Tensor:
        """Uniform ids on the CPU."""
        return torch.randint(self.vocab_size, shape, generator=generator)

    def logits(self, ids: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, V) fp64 on the CPU, without gradients.

        Raises:
            BadInput: the model gives nothing that could be the logits.
        """
        with torch.no_grad():
            parts = [
                self.raw(part).detach().to("cpu", torch.float64) for part in ids.split(self.rows)
            ]
        return torch.cat(parts)

    def raw(self, ids: Tensor) -> Tensor:
        """One call as it is, gradients and dtype kept: (B, T) -> (B, T, V)."""
        if self.seeded:
            torch.manual_seed(0)
        output = self._call(ids.to(self.device).clone())  # a model may write into its input
        return find_logits(output, tuple(ids.shape), self.vocab_size)

    def _call(self, ids: Tensor) -> object:
        if self.convention == "numpy":
            return self.model(ids.numpy())
        if self.convention == "targets":
            return self.model(ids, ids.clone())
        return self.model(ids)


def find_logits(output: object, shape: tuple[int, ...], vocab_size: int) -> Tensor:
    """The logits within whatever a model returns.

    Raises:
        BadInput: nothing in it has the shape (B, T, V).
    """
    arrays = [a for a in (as_tensor(part) for part in _parts(output)) if a is not None]
    fitting = [a for a in arrays if a.ndim == 3 and a.shape[:2] == shape and a.is_floating_point()]
    exact = [a for a in fitting if a.shape[2] == vocab_size]
    if exact or fitting:
        return (exact or fitting)[0]
    shapes = ", ".join(str(tuple(a.shape)) for a in arrays) or type(output).__name__
    raise BadInput(
        f"for ids of shape {shape} the model gave {shapes}; "
        f"it must give logits of shape {(*shape, vocab_size)}, or something that holds them"
    )


def _parts(output: object) -> list[object]:
    if isinstance(output, Mapping):
        return [output["logits"]] if "logits" in output else list(output.values())
    if hasattr(output, "logits"):
        return [output.logits]
    if isinstance(output, Sequence) and not isinstance(output, str):
        return [part for item in output for part in _parts(item)]
    return [output]


def as_tensor(value: object) -> Tensor | None:
    """A tensor of any array-like, or None for what is none."""
    if isinstance(value, Tensor):
        return value
    if hasattr(value, "__array__"):  # NumPy, and JAX by way of it
        import numpy

        return torch.from_numpy(numpy.array(value))
    return None


def adapt(
    model: Callable[..., object], vocab_size: int | None, block_size: int | None
) -> ModelAdapter:
    """Find out how a model wants to be asked, and what it can be asked.

    Args:
        model: see `ModelAdapter`.
        vocab_size: None where the model or its config says it.
        block_size: likewise; where nobody says it, 64 is tried.

    Raises:
        BadInput: a size is missing or impossible, or no way of asking gives logits.
    """
    if not callable(model):
        raise BadInput(
            f"a model must be callable, from ids to logits; this is a {type(model).__name__}"
        )
    V = vocab_size if vocab_size is not None else _said(model, _VOCAB_NAMES)
    T = block_size if block_size is not None else _said(model, _BLOCK_NAMES)
    if V is None:
        raise BadInput("the model does not say its vocabulary; give vocab_size (--vocab-size)")
    if V < 2:
        raise BadInput(f"vocab_size = {V} must be at least 2")
    if T is None:
        T = 64
    elif block_size is None:
        T = min(T, 256)
    if T < 3:
        raise BadInput(f"block_size = {T} must be at least 3")
    return _first_that_answers(model, V, T)


_VOCAB_NAMES = ("vocab_size", "n_vocab", "n_tokens", "num_embeddings")
_BLOCK_NAMES = (
    "block_size",
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_seq_length",
    "context_length",
    "seq_len",
)


def _said(model: object, names: tuple[str, ...]) -> int | None:
    """The first of the names that the model or its config has as a whole number."""
    configs = [getattr(model, name) for name in ("config", "cfg", "args") if hasattr(model, name)]
    for place in (model, *configs):
        for name in names:
            if hasattr(place, name) and isinstance(getattr(place, name), int):
                return int(getattr(place, name))
    return None


def _first_that_answers(model: Callable[..., object], V: int, T: int) -> ModelAdapter:
    ids = torch.arange(2 * T).reshape(2, T) % V
    reasons: list[str] = []
    for convention in _conventions(model):
        for rows in (64, 1):
            adapter = ModelAdapter(model, V, T, convention=convention, rows=rows)
            try:
                adapter.logits(ids)
            except REFUSALS as error:
                reasons.append(_first_line(error))
            else:
                return adapter
    raise BadInput(
        f"the model does not answer ids of shape (2, {T}) below {V}: {reasons[0]}; give the "
        f"vocab_size and block_size that it was made for, and a model from ids to logits"
    )


def _conventions(model: Callable[..., object]) -> list[str]:
    if not isinstance(model, nn.Module):
        return ["torch", "numpy"]
    parameters = list(inspect.signature(model.forward).parameters)
    named = len(parameters) > 1 and parameters[1] in ("targets", "labels", "target", "y")
    return ["torch", "targets"] if named else ["torch"]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
