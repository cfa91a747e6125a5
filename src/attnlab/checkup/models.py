"""Call any model, and put it into another state for a while. B batch, T time, V symbols."""

import copy
import inspect
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

# What a model raises when it is called in a way that it does not support.
REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError)
_MOST_NUMBERS = 2**25  # outputs of one call; a quarter of a gigabyte in fp64
_LONGEST = 4096  # attention needs memory that grows with the square
MOST_IDS = 300  # of a vocabulary whose ids all occur, and are tried one by one
UNDECLARED = 64  # the length of a model that declares none
Call = Callable[[Any, Tensor], object]  # the model and inputs (B, T, ...) -> what it returns
Change = Callable[[Tensor, torch.Generator], Tensor]  # a weight -> another, at random or not


class CheckFailed(AssertionError):
    """A model lacks a property.

    `map` is (T, T), by how much the output at t depends on the input at j, or None. `grave` is
    False for what is sometimes meant: a finite fill, padding that is read, targets not shifted.
    """

    def __init__(self, *lines: str, map: Tensor | None = None, grave: bool = True) -> None:
        super().__init__("\n".join(filter(None, lines)))
        self.map, self.grave = map, grave


class CannotCheck(ValueError):
    """The model cannot be called as described, or the property does not apply to it."""


def floats_of(returned: object, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The floats (B, T, V) in what a model returns, by name or number, `logits` first, those of
    other shapes (B, T, ...) last; CannotCheck if there are none."""
    floats = ((name, x) for name, x in tensors_of(returned) if x.is_floating_point())
    found = {name or "0": x for name, x in floats if x.shape[:2] == shape}
    if not found:
        raise CannotCheck(f"for inputs {shape} the model returned no numbers (B, T, V); give call")
    names = sorted(found, key=lambda name: (found[name].ndim != 3, name != "logits"))
    flat = {name: found[name] for name in names}
    return {name: x[..., None] if x.ndim == 2 else x.flatten(2) for name, x in flat.items()}


def tensors_of(value: Any, name: str = "", depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """The tensors and arrays in a value, in containers and attributes of it, with their names."""
    if hasattr(value, "__array__") and not isinstance(value, Tensor):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor):
        yield name, value
        return
    if isinstance(value, tuple | list):
        value = dict(enumerate(value))
    elif not isinstance(value, Mapping):
        own = {"logits": value.logits} if hasattr(value, "logits") else {}
        value = own | getattr(value, "__dict__", {})
    for key, part in value.items() if depth else ():
        yield from tensors_of(part, f"{name}.{key}" if name else str(key), depth - 1)


def outputs_of(returned: object, shape: tuple[int, ...]) -> Tensor:
    """The first of `floats_of`."""
    return next(iter(floats_of(returned, shape).values()))


def module_of(model: object) -> nn.Module | None:
    """The module behind a model: itself, the owner of a bound method, or what a function, a
    partial or an object holds. A scripted one counts as a function, whose weights stay."""
    held: list[object] = [model, getattr(model, "__self__", None)]
    if isinstance(model, partial):
        held += [model.func, *model.args, *model.keywords.values()]
    elif inspect.isfunction(model):
        names = inspect.getclosurevars(model)
        held += [*names.nonlocals.values(), *names.globals.values()]
    elif not isinstance(model, nn.Module):
        held += getattr(model, "__dict__", {}).values()
    found = [x for x in held if isinstance(x, nn.Module)]
    modules = [x for x in dict.fromkeys(found) if not isinstance(x, torch.jit.ScriptModule)]
    return nn.ModuleList(modules) if len(modules) > 1 else next(iter(modules), None)


@dataclass(frozen=True)
class Subject:
    """A model, how it is called, and inputs that show how its inputs look."""

    model: Any
    sample: Tensor  # (N, L) int64 ids, or (N, L, C) vectors
    call: Call
    rows: int  # most sequences in one call
    exact: bool = False  # whether each call must have so many
    seeded: bool = False  # seed before each call, so that dropout drops the same
    grad: bool = False  # call with gradients enabled, as a training step does
    declared: bool = True  # whether the length was given, or is the model's
    rng: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    @property
    def length(self) -> int:
        """L, the longest sequence."""
        return self.sample.shape[1]

    @cached_property
    def pool(self) -> Tensor:
        """The ids that may be used, in order."""
        return self.sample.unique()

    @cached_property
    def weights(self) -> list[Tensor]:
        """The parameters of the module, if it is one."""
        module = module_of(self.model)
        return [] if module is None else list(module.parameters())

    @property
    def tolerance(self) -> float:
        """The share of the largest change that counts as rounding."""
        dtype = next((w.dtype for w in self.weights if w.is_floating_point()), torch.float32)
        return {torch.float64: 1e-7, torch.float32: 1e-5, torch.float16: 2e-3}.get(dtype, 2e-2)

    def draw(self, n: int, T: int) -> Tensor:
        """n sequences of T inputs, windows of the sample."""
        row = torch.randint(len(self.sample), (n, 1), generator=self.rng)
        first = torch.randint(self.length - T + 1, (n, 1), generator=self.rng)
        return self.sample[row, first + torch.arange(T)]

    def other(self, x: Tensor) -> Tensor:
        """Other inputs at every position."""
        if x.is_floating_point():
            return torch.randn(x.shape, generator=self.rng).to(x) * x.std()
        by = torch.randint(1, len(self.pool), x.shape, generator=self.rng)
        return self.pool[(torch.searchsorted(self.pool, x) + by) % len(self.pool)]

    def __call__(self, x: Tensor) -> Tensor:
        """(B, T, ...) -> (B, T, V) fp64 on the CPU, in as many calls as fit."""
        parts = []
        for y in x.split(self.rows):
            n = len(y)
            if self.exact and n < self.rows:
                y = torch.cat([y, y[-1:].expand(self.rows - n, *y.shape[1:])])
            parts.append(outputs_of(self.raw(y), tuple(y.shape[:2])).detach()[:n])
        outputs = torch.cat(parts).to("cpu", torch.float64)
        blocked = outputs == -torch.inf  # the logit of a symbol that is never chosen
        return outputs.masked_fill(blocked & ~blocked.all(-1, keepdim=True), 0.0)

    def raw(self, x: Tensor) -> object:
        """What the model returns for x (B, T, ...) in one call."""
        if self.seeded:
            torch.manual_seed(0)
            random.seed(0)
        place = next(iter(self.weights), torch.empty(0))
        own = x.to(place) if x.is_floating_point() else x.to(place.device)
        if self.grad and x.is_floating_point():  # as the inputs of a layer do in training
            own = own.detach().requires_grad_()
        with torch.set_grad_enabled(self.grad):
            return self.call(self.model, own.clone())  # a model may write into its input

    def untried(self) -> str:
        """The flags of the model, and its outputs beside the first, which no check looks at."""
        module, x = module_of(self.model), self.draw(max(1, self.rows * self.exact), self.length)
        takes = inspect.signature(module.forward).parameters.values() if module else ()
        flags = (p for p in takes if isinstance(p.default, bool) or "bool" in str(p.annotation))
        outputs = list(floats_of(self.raw(x), tuple(x.shape[:2])))[1:]
        names = [*(p.name for p in flags), *(f"output {name}" for name in outputs)]
        return f"not tried (give call): {', '.join(names)}" if names else ""

    def fitting(self, T: int) -> int:
        """T, or the length of the sample if the model is of one length."""
        try:
            with state(self.model, training=None):
                self(self.draw(2, min(T, self.length)))
        except REFUSALS:
            return self.length
        return min(T, self.length)

    def moved(self, x: Tensor, changed: Tensor) -> Tensor:
        """x (T, ...) and (N, T, ...) -> (N, T): the largest change of any output at t.

        Every call also holds x, so that the same kernels compute both.
        """
        if self.rows == 1:
            return (self(changed) - self(x[None])).abs().amax(-1)
        with_x = [torch.cat([x[None], part]) for part in changed.split(self.rows - 1)]
        outputs = (self(part) for part in with_x)
        return torch.cat([(y[1:] - y[:1]).abs().amax(-1) for y in outputs])


def subject(
    model: Any,
    sample: Tensor | None,
    call: Call | None = None,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
) -> Subject:
    """A model with inputs: those given, or random ids below its vocabulary size.

    Without a sample, `vocab_size` and `block_size` are those of the model or its config, and the
    ids are random permutations of the vocabulary, so that every id of a small one occurs.
    """
    declared = sample is not None
    if not callable(model):
        raise CannotCheck(f"the model is a {type(model).__name__}, which cannot be called")
    if sample is None:
        V = vocab_size or _size_from(model, ("vocab_size", "n_vocab", "padded_vocab_size"))
        lengths = ("block_size", "max_position_embeddings", "n_ctx", "n_positions", "max_seq_len")
        L = block_size or _size_from(model, lengths)
        if V is None or V < 2:
            raise CannotCheck("the model has no vocab_size above 1: give --vocab-size, or ids")
        declared = L is not None
        rng, length = torch.Generator().manual_seed(0), min(L or UNDECLARED, _LONGEST)
        rows = max(8, -(-min(V, MOST_IDS) // length))
        rounds = -(-rows * length // V)
        ids = torch.cat([torch.randperm(V, generator=rng) for _ in range(rounds)])
        sample = ids[: rows * length].view(rows, length)
    if sample.ndim < 2 or sample.shape[1] < 3:
        raise CannotCheck(
            f"the sample {tuple(sample.shape)} must be (N, T) ids or (N, T, C), T > 2"
        )
    if not sample.is_floating_point() and len(sample.unique()) < 2:
        raise CannotCheck("the sample holds one id only; give two or more")
    # Some models return all logits only if they get targets; some take one sequence at a time, or
    # one size of a batch.
    calls = [call] if call else [lambda net, x: net(x), lambda net, x: net(x, x)]
    sizes = [(rows, False) for rows in (2, 1)] + [(rows, True) for rows in (4, 8, 16, 3, 32)]
    errors = []
    with state(model):
        for (rows, exact), each in product(sizes, calls):
            made = Subject(model, sample.cpu(), each, rows, exact, declared=declared)
            try:
                y = made(made.draw(2, made.length))
            except Exception as error:  # a model may raise anything
                errors.append(error)
            else:
                most = 2 * _MOST_NUMBERS // y.numel()
                free = rows > 1 and not exact
                return replace(made, rows=max(2, min(32, most)) if free else rows)
    said = f"the model fails on inputs {(2, *sample.shape[1:])}: {errors[0]!r:.300}"
    raise CannotCheck(said) from errors[0]


def _size_from(model: object, names: tuple[str, ...]) -> int | None:
    module = module_of(model)
    places = (model, getattr(model, "config", None), module, getattr(module, "config", None))
    found = (getattr(place, name, None) for place in places for name in names)
    return next((size for size in found if isinstance(size, int)), None)


@contextmanager
def state(
    model: object,
    *,
    dtype: torch.dtype | None = None,
    change: Change | None = None,
    training: bool | None = False,
) -> Iterator[None]:
    """Run a model in eval or training mode (None: as it is), with other weights; afterward all is
    as before, also after an error.

    The weights and buffers that the model had are put aside, not overwritten, so they come back to
    the last bit, together with attributes that the model has set meanwhile. Weights that are not
    trained while others are keep their values.
    """
    module, rng = module_of(model) or nn.Module(), torch.Generator().manual_seed(0)
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices), ExitStack() as undo:
        undo.callback(random.setstate, random.getstate())
        held: dict[int, Tensor] = {}
        for part in module.modules():
            _keep(vars(part), undo, held)
        weights = list(module.parameters())
        frozen = not any(w.requires_grad for w in weights)
        trained = {id(w) for w in weights if w.requires_grad or frozen}
        for x in held.values():
            undo.callback(setattr, x, "data", x.data)
            floats = x.is_floating_point()
            new = x.data.to(dtype, copy=True) if dtype and floats else x.data.clone()
            x.data = change(new, rng) if change and floats and id(x) in trained else new
        if training is not None:
            module.train(training)
        yield


def _keep(value: Any, undo: ExitStack, held: dict[int, Tensor], depth: int = 4) -> None:
    """Restore a container's contents later, and collect the tensors in it, of those not seen."""
    if isinstance(value, Tensor):
        if not value.is_inference() and value.layout == torch.strided and not value.is_meta:
            held.setdefault(id(value), value)
        return
    if isinstance(value, dict | list | deque | set):
        undo.callback(_refill, value, copy.copy(value))
    elif not isinstance(value, tuple):
        return
    for part in list(value.values() if isinstance(value, dict) else value) if depth else ():
        _keep(part, undo, held, depth - 1)


def _refill(value: Any, contents: Any) -> None:
    value.clear()
    (value.extend if isinstance(value, list | deque) else value.update)(contents)


def best_dtype(made: Subject) -> torch.dtype | None:
    """fp64 if the model runs in it with finite outputs, where leaks stand out from rounding, or
    fp32 for one of half precision; None for its own."""
    if not made.weights:
        return None
    half = any(w.dtype in (torch.float16, torch.bfloat16) for w in made.weights)
    for dtype in (torch.float64, torch.float32) if half else (torch.float64,):
        try:
            with state(made.model, dtype=dtype):
                if bool(made(made.draw(2, made.length)).isfinite().all()):
                    return dtype
        except REFUSALS:
            continue
    return None


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to b's standard deviation."""
    if not b.numel():
        return 0.0
    spread = float(b.std()) if b.numel() > 1 else 0.0
    return float((a - b).abs().max()) / (spread or float(b.abs().max()) or 1.0)


def slightly_other(weight: Tensor, rng: torch.Generator) -> Tensor:
    """A weight that is about 1 % larger or smaller in each element."""
    return weight * (1 + 0.01 * torch.randn(weight.shape, generator=rng).to(weight))


def is_rounding(tried: Subject, difference: Callable[[], Tensor]) -> bool:
    """Whether a small difference of outputs is rounding: with slightly other weights, it is then
    another one, while that of a model that reads something hardly changes."""
    if not tried.weights:
        return False
    before = difference().flatten()
    with state(tried.model, change=slightly_other, training=None):
        after = difference().flatten()
    alike = torch.nn.functional.cosine_similarity(before, after, dim=0)
    return not float(alike) > 0.8
