"""One way to call any model: from ids to logits. Letters: B batch, T time, V symbols."""

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.checkup.embedded_layer import EmbeddedLayer, size_from
from attnlab.checkup.outputs import find_logits
from attnlab.errors import BadInput, first_line
from attnlab.rng import seed_all

# What a model raises when it is called in a way that it does not support, BadInput among them.
REFUSALS = (
    RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, AssertionError,
)  # fmt: skip


Model = Callable[..., object]


@dataclass(frozen=True)
class ModelAdapter:
    """A model behind a common signature, and the random tokens to examine it with."""

    model: Model  # from ids (B, T) to logits (B, T, V), or to something that holds them
    vocab_size: int  # ids are below it
    block_size: int  # the largest T
    generator: torch.Generator  # of the tokens
    # "torch" passes tensors, "numpy" arrays, "targets" the ids twice (for models that return all
    # logits only if they get targets); anything else is the keyword for the ids.
    convention: str = "torch"
    rows: int = 64  # how many sequences one call may hold; 1 if rows mix
    batch_size: int = 0  # how many sequences every call must hold; 0 for any number
    autocast: torch.dtype | None = None  # the dtype of torch.autocast, which is off without one
    seeded: bool = False  # seed torch before each call, so that dropout drops the same entries
    in_place: str = ""  # why a module cannot be copied, to add noise or train; "" if it can
    declared: int = 0  # the largest T by the model or its user, not only for maps; 0 if unknown
    text: Tensor | None = None  # (N, L) real ids, of which sequences are cut; None: uniform ones
    pad: int = -1  # the id for padding, which is never drawn; -1 if there is none
    extra: Mapping[str, object] = field(default_factory=dict)  # as many rows as the text or none

    @cached_property
    def pool(self) -> Tensor:
        """The ids that may be drawn, in order: those of the text, or all but the padding."""
        ids = torch.arange(self.vocab_size) if self.text is None else self.text.unique()
        return ids[ids != self.pad]

    @property
    def is_module(self) -> bool:
        """Whether the model is a torch module."""
        return isinstance(self.model, nn.Module)

    @property
    def module(self) -> nn.Module:
        """The model, if it is a torch module."""
        assert isinstance(self.model, nn.Module)
        return self.model

    @property
    def copies(self) -> bool:
        """Whether it is a module that can be copied."""
        return self.is_module and not self.in_place

    def copied(self) -> "ModelAdapter":
        """The same with a deep copy of the module."""
        return replace(self, model=copy.deepcopy(self.module))

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the module's weights, or None."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), None)

    @property
    def tolerance(self) -> float:
        """The share of the largest change that counts as rounding, in kernels that round."""
        half = {torch.bfloat16: 2e-2, torch.float16: 2e-3, torch.float64: 1e-8}
        return half.get(self.autocast or self.dtype or torch.float32, 1e-5)

    @property
    def device(self) -> torch.device:
        """The device of the module's weights; the CPU without a module."""
        return next((p.device for p in self.parameters()), torch.device("cpu"))

    def takes(self, *names: str) -> bool:
        """Whether the module's forward has these parameters."""
        return self.is_module and set(names) <= set(parameter_names(self.module.forward))

    def parameters(self) -> list[Tensor]:
        """The parameters of the module, if it is one."""
        return list(self.module.parameters()) if self.is_module else []

    def tokens(self, *shape: int) -> Tensor:
        """(..., T) ids on the CPU: uniform ones, or windows of the text."""
        if self.text is None:
            return self.pool[self._below(len(self.pool), *shape)]
        rows = self._below(len(self.text), *shape[:-1], 1)
        start = self._below(self.text.shape[1] - shape[-1] + 1, *shape[:-1], 1)
        return self.text[rows, start + torch.arange(shape[-1])]

    def next_ids(self, ids: Tensor, by: Tensor | int = 1) -> Tensor:
        """Another id at every position: the next one of the pool, or the one after `by` steps."""
        return self.pool[(torch.searchsorted(self.pool, ids) + by) % len(self.pool)]

    def other_ids(self, ids: Tensor) -> Tensor:
        """Another id at every position: a random one."""
        return self.next_ids(ids, 1 + self._below(len(self.pool) - 1, *ids.shape))

    def _below(self, n: int, *shape: int) -> Tensor:
        return torch.randint(n, shape, generator=self.generator)

    def random_like(self, x: Tensor) -> Tensor:
        """Standard normal numbers."""
        return torch.randn(x.shape, generator=self.generator).to(x)

    def logits(self, ids: Tensor) -> Tensor:
        """(B, T) int64 -> (B, T, V) fp64 on the CPU, without gradients."""
        with torch.no_grad():
            return torch.cat([self._in_parts(part) for part in ids.split(self.rows)])

    def _in_parts(self, ids: Tensor) -> Tensor:
        """The logits of one call, or of several if the model refuses so many sequences."""
        try:
            return self.raw(ids).detach().to("cpu", torch.float64)
        except REFUSALS:
            if len(ids) <= 2:
                raise
            return torch.cat([self._in_parts(part) for part in ids.split((len(ids) + 1) // 2)])

    def raw(self, ids: Tensor) -> Tensor:
        """One call that keeps gradients and dtype: (B, T) -> (B, T, V)."""
        if self.seeded:
            seed_all(0, self.device)
        own = ids.to(self.device).clone()  # a model may write into its input
        if len(ids) < self.batch_size:
            more = self.next_ids(ids[:1].contiguous()).expand(self.batch_size - len(ids), -1)
            own = torch.cat([own, more.to(self.device)])
        extra = {name: self.fitted(name, *own.shape) for name in self.extra}
        args: list[object] = [own]
        if self.convention == "numpy":
            args = [own.numpy()]
        elif self.convention == "targets":
            args.append(own.clone())
        elif self.convention != "torch":
            args, extra[self.convention] = [], own
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            output = self.model(*args, **extra)
        return find_logits(output, tuple(own.shape), self.vocab_size)[: len(ids)]

    def fitted(self, name: str, B: int, T: int) -> object:
        """A keyword input for B sequences of T tokens: its first row, cut along time."""
        value, text = self.extra[name], self.text
        if text is None or not isinstance(value, Tensor) or value.shape[:1] != text.shape[:1]:
            return value
        x = value[:1]
        for axis in range(1, x.ndim):
            if x.shape[axis] == text.shape[1]:
                x = x.narrow(axis, 0, T)
        if x.ndim == 1 and "len" in name:
            x = x.clamp(max=T)
        return x.expand(B, *x.shape[1:])


@contextmanager
def hooked(modules: Iterable[nn.Module], hook: Callable[..., None]) -> Iterator[None]:
    """Call hook(module, args, keywords, output) after each forward pass of these modules."""
    with ExitStack() as handles:
        for module in modules:
            handles.enter_context(module.register_forward_hook(hook, with_kwargs=True))
        yield


def parameter_names(function: Callable[..., object]) -> list[str]:
    """The names of a function's parameters; none for built-in and scripted functions."""
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):
        return []


def cast_weights(module: nn.Module, dtype: torch.dtype | None) -> None:
    """Change the dtype of all real weights and buffers; `Module.to` makes complex ones real."""
    for x in (*module.parameters(), *module.buffers()):
        if x.is_floating_point():
            x.data = x.data.to(dtype)


_VOCAB_NAMES = ("vocab_size", "n_vocab", "n_tokens", "num_embeddings")
TARGET_NAMES = ("labels", "targets", "target", "y")
_BLOCK_NAMES = (
    "block_size", "max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length",
    "context_length", "seq_len",
)  # fmt: skip
LONGEST_MAP = 256  # by default; `attnlab.checkup.lengths` looks at longer sequences
MOST_LOGITS = 2**26  # in one call, half a gigabyte in fp64


def adapt(
    model: Model,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ids: Tensor | None = None,
    example: Mapping[str, object] | None = None,
    seed: int = 0,
    batch_size: int = 0,
    autocast: torch.dtype | None = None,
) -> ModelAdapter:
    """Find out how to call a model; see `checkup`."""
    if not callable(model):
        raise BadInput(f"a model must be callable, from ids to logits; not {model!r:.50}")
    V = vocab_size if vocab_size is not None else size_from(model, _VOCAB_NAMES)
    declared = block_size if block_size is not None else size_from(model, _BLOCK_NAMES) or 0
    T = declared if block_size is not None else min(declared or 64, LONGEST_MAP)
    if V is None:
        raise BadInput("the model has no vocabulary size; give vocab_size (--vocab-size)")
    if V < 2:
        raise BadInput(f"vocab_size = {V} must be at least 2")
    modules = model.modules() if isinstance(model, nn.Module) else ()
    tables = [m for m in modules if isinstance(m, nn.Embedding) and m.num_embeddings == V]
    pads = [size_from(model, ("pad_token_id",)), *(table.padding_idx for table in tables)]
    pad = next((p for p in pads if p is not None and V >= 4), -1)
    extra, key = dict(example or {}), "torch"
    if ids is None and example is not None:
        key, ids = _ids_of(extra)
    if ids is not None:
        if not isinstance(ids, Tensor) or ids.ndim != 2 or ids.is_floating_point():
            raise BadInput("ids must be a tensor (N, L) int64")
        if len(ids[ids != pad].unique()) < 2 or ids.min() < 0 or ids.max() >= V:
            last = f"vocab_size - 1 = {V - 1}"
            raise BadInput(f"ids must have two values or more, from 0 to {last}")
        L, ids = ids.shape[1], ids.cpu()
        T, declared = min(T, L), min(declared or L, L)
    if T < 3:
        raise BadInput(f"block_size = {T} must be at least 3")
    adapter = ModelAdapter(
        model, V, T, torch.Generator().manual_seed(seed), key, batch_size=batch_size,
        autocast=autocast, declared=declared, text=ids, pad=pad, extra=extra,
    )  # fmt: skip
    return _first_working_call(adapter)


def _ids_of(example: dict[str, object]) -> tuple[str, Any]:
    """The token ids in an example, and their name there; they are removed from it."""
    longs = [k for k, v in example.items() if isinstance(v, Tensor) and v.dtype == torch.long]
    for name in ("input_ids", "ids", "tokens", *longs):
        if name in example:
            return name, example.pop(name)
    raise BadInput("example holds no token ids; give ids (N, L) int64")


def _first_working_call(adapter: ModelAdapter) -> ModelAdapter:
    V, T, conventions = adapter.vocab_size, adapter.block_size, [adapter.convention]
    if adapter.convention == "torch" and not adapter.is_module:
        conventions.append("numpy")
    elif adapter.convention == "torch":
        second = parameter_names(adapter.module.forward)[1:2]
        conventions += ["targets"] if set(TARGET_NAMES) & set(second) else []
    ids = adapter.pool[torch.arange(2 * T).reshape(2, T) % len(adapter.pool)]
    errors: list[Exception] = []
    most = adapter.batch_size or max(2, min(64, MOST_LOGITS // (T * V)))
    for convention, rows in product(conventions, (most, 1)):
        tried = replace(adapter, convention=convention, rows=rows)
        try:
            tried.logits(ids)
        except Exception as error:  # a model may raise anything
            errors.append(error)
        else:
            return tried
    if isinstance(errors[0], BadInput):
        raise errors[0]
    reason = first_line(errors[0], with_class=True)
    if isinstance(adapter.model, EmbeddedLayer):
        raise adapter.model.refused(2, T, reason) from errors[0]
    advice = "give a model from ids to logits, and its vocab_size and block_size"
    if re.search(r"\b(Long|long int)\b|to unpack", reason):  # numbers were expected, not ids
        advice += "; for a layer that takes (B, T, C), use checkup_attention (--layer)"
    elif "dtype" in reason or "scalar type" in reason:
        advice = "its dtypes differ; give autocast if it is meant to run under torch.autocast"
    elif "size" in reason:
        advice += ", and batch_size if it takes only one"
    said = f"the model fails on ids of shape (2, {T}) below {V}: {reason}; {advice}"
    raise BadInput(said) from errors[0]
