"""The states in which a model is examined. All is as before afterward, also after an error."""

import pickle
import random
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .calls import module_of, parts_below

Change = Callable[[Tensor, torch.Generator], Tensor]  # a weight -> another, at random or not
Container = dict[Any, Any] | list[Any] | deque[Any] | set[Any]
DEEPEST = 4  # containers inside containers, such as a list of dicts of tensors
LARGE = 2**20  # numbers of a weight; a copy of it takes as long as a short call
TILE = 65_537  # random numbers that are repeated along a large weight; a prime, so no row is twice


class Weights(Enum):
    """Which weights a model has."""

    OWN = ""
    NOISE = "with noise on the weights"  # opens gates that start at 0
    LARGER = "with larger weights"  # scores are not all near 0, as with fresh weights
    HUGE = "with weights 10,000 times as large"  # scores exceed a finite fill of a mask


@dataclass(frozen=True)
class State:
    """How a model is examined."""

    training: bool = False  # in training mode, not in evaluation mode
    grad: bool = False  # with gradients enabled, as a training step
    dropout_off: bool = False  # dropout does nothing, also where the mode would have it
    in_own_dtype: bool = False  # in the precision of its weights, not in `Subject.best_dtype`
    weights: Weights = Weights.OWN
    given_tensor: str = ""  # a key of `Subject.optional_tensors`, which is given in each call

    def __str__(self) -> str:
        """The state in words, for a report. That dropout is off is not said."""
        said = ["in training mode" if self.training else "in evaluation mode"]
        if self.grad and not self.training:
            said.append("with gradients")
        if self.training and not self.grad:
            said.append("without gradients")
        if self.in_own_dtype:
            said.append("in its own precision")
        if self.weights is not Weights.OWN:
            said.append(self.weights.value)
        if self.given_tensor:
            said.append(f"with {self.given_tensor}")
        return ", ".join(said)


EVALUATION = State()
TRAINING = State(training=True, grad=True, dropout_off=True)


def seen_in(state: State, *, held_before: bool) -> str:
    """A line of a message: in which state a fault was seen and, if the property held in a plainer
    state before, what that state has instead. "" if plain evaluation mode is the first state, with
    or without gradients and in any precision."""
    if not held_before:
        is_plain = replace(state, grad=False, in_own_dtype=False) == EVALUATION
        return "" if is_plain else f"seen {state}"
    if state.training:
        otherwise = "in evaluation mode"
    elif state.given_tensor:
        otherwise = "without it"
    elif state.weights is not Weights.OWN:
        otherwise = "with its own"
    elif state.in_own_dtype:
        otherwise = "in a higher one"
    else:
        otherwise = "without them"  # gradients
    return f"seen {state}, not {otherwise}"


def root_mean_square(weight: Tensor) -> float:
    """The root of the mean of the squares of a weight's numbers."""
    if weight.numel() < LARGE:
        return float(weight.float().square().mean().sqrt())
    norm = torch.linalg.vector_norm(weight, dtype=torch.float64)  # in one pass, without a copy
    return float(norm) / weight.numel() ** 0.5


def noise_for(weight: Tensor, rng: torch.Generator) -> Tensor:
    """Normal numbers of the shape and dtype of a weight; for a large one only a tile (N,) of them,
    which `combined` repeats: to draw as many as a large model has takes longer than to call it."""
    shape = weight.shape if weight.numel() < LARGE else (TILE,)
    return torch.randn(shape, generator=rng).to(weight)


def combined(function: Callable[..., Tensor], weight: Tensor, noise: Tensor) -> Tensor:
    """function(weight, noise), such as torch.add of both, for the noise of `noise_for`: of the
    shape of the weight, or a tile (N,) that is repeated along the flat weight."""
    if noise.shape == weight.shape:
        return function(weight, noise)
    new = torch.empty_like(weight, memory_format=torch.contiguous_format)
    flat = weight.reshape(-1)
    flat_new = new.view(-1)
    whole = len(flat) // len(noise) * len(noise)  # of so many numbers, all tiles are whole
    tiled = (-1, len(noise))
    function(flat[:whole].view(tiled), noise, out=flat_new[:whole].view(tiled))
    function(flat[whole:], noise[: len(flat) - whole], out=flat_new[whole:])
    return new


def with_noise(weight: Tensor, rng: torch.Generator) -> Tensor:
    """A weight plus normal noise of a tenth of its size, and a little also on a weight of 0."""
    size = 0.1 * root_mean_square(weight) + 0.01
    noise = noise_for(weight, rng)  # of a large weight shorter; `combined` repeats it
    return combined(torch.add, weight, size * noise)


def of_trained_size(weight: Tensor, rng: torch.Generator) -> Tensor:
    """A matrix, enlarged to about the size of a trained one if it is smaller; any other weight,
    and a matrix of 0, as it is. Nothing is drawn: `rng` is there for the type `Change`."""
    if weight.ndim < 2:
        return weight
    # Numbers of this size keep the size of what the matrix multiplies. Those of trained matrices
    # are larger: twice that is taken for them.
    keeps_size = weight.shape[-1] ** -0.5
    size = root_mean_square(weight)
    return weight * max(1.0, 2 * keeps_size / size) if size else weight


def slightly_other(weight: Tensor, rng: torch.Generator, *, share: float = 0.01) -> Tensor:
    """A weight, each number w of which becomes w * (1 + share * normal number)."""
    noise = noise_for(weight, rng)  # of a large weight shorter; `combined` repeats it
    return combined(torch.mul, weight, 1 + share * noise)


def ten_thousandfold(weight: Tensor, rng: torch.Generator, *, tables: set[torch.Size]) -> Tensor:
    """A matrix that is 10,000 times as large, so that scores reach any finite fill of a mask; one
    that has the shape of an embedding (`tables`) is enlarged until its numbers are about 1, at
    most 10,000 times; any other weight as it is."""
    if weight.shape in tables:
        return weight / weight.square().mean().sqrt().clamp(1e-4, 1)
    return weight * 1e4 if weight.ndim > 1 else weight


def change_of(weights: Weights, model: object) -> Change | None:
    """The function that makes such weights of the model's own ones; None if those are meant."""
    if weights is Weights.NOISE:
        return with_noise
    if weights is Weights.LARGER:
        return of_trained_size
    if weights is Weights.HUGE:
        # A change gets a weight without its module, so it tells an embedding by its shape.
        tables = {p.weight.shape for p in parts_below(model) if isinstance(p, nn.Embedding)}
        return partial(ten_thousandfold, tables=tables)
    return None


class WithoutDropout(TorchFunctionMode):
    """Inside, dropout does nothing, neither its own functions nor as an argument of others."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        named: dict[str, object] | None = None,
    ) -> object:
        """What a function of torch that is called inside returns without dropout: its input, if
        the function is dropout itself, else its result with a probability of 0."""
        name = getattr(function, "__name__", "")
        named = dict(named or {})
        if name in RECURRENT:  # the probability of dropout is their only float
            args = tuple(0.0 if isinstance(x, float) else x for x in args)
        elif name in PLACE_OF_DROPOUT:
            place = PLACE_OF_DROPOUT[name]
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in named:
                named["dropout_p"] = 0.0
        elif "dropout" in name and not name.startswith("native"):  # which returns its mask, too
            return args[0] if args else named["input"]
        return function(*args, **named)


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Functions with an argument dropout_p, and its place.
PLACE_OF_DROPOUT = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}


def set_dropout_to_0(model: object) -> bool:
    """Set the probabilities of dropout that modules hold, such as `p` of nn.Dropout, to 0; whether
    there are any.

    For use inside `changed`, which restores them. Unlike `WithoutDropout` it holds in a backward
    pass, too.
    """
    any_set = False
    for part in parts_below(model):
        for key, value in list(vars(part).items()):
            is_dropout = "drop" in key or (key == "p" and "Dropout" in type(part).__name__)
            if is_dropout and isinstance(value, float) and 0 < value < 1:
                setattr(part, key, 0.0)
                any_set = True
    return any_set


@contextmanager
def changed(
    model: object,
    *,
    dtype: torch.dtype | None = None,
    change: Change | None = None,
    training: bool | None = False,
    unwritten: frozenset[int] = frozenset(),
    copies: dict[int, Tensor] | None = None,
) -> Iterator[None]:
    """Run a model in another mode and with other weights; afterward all is as before, also after
    an error.

    The weights and buffers that the model had are put aside, not overwritten, so they come back to
    the last bit, together with the attributes of its modules and the states of random numbers.

    Args:
        dtype: of all weights and buffers of floats; None: their own.
        change: from a weight to the one that takes its place. Only weights that are trained are
            changed, or all if none is.
        training: whether the model is in training mode; None: as it is.
        unwritten: the ids (of Python) of weights that no call writes into. These are not copied,
            unless they get another dtype or other values.
        copies: keeps the copies of these weights in another dtype, by id, for the next time, which
            must ask for the same dtype.
    """
    module = module_of(model)
    if module is None:
        module = nn.Module()
    rng = torch.Generator().manual_seed(0)
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices), ExitStack() as undo:
        undo.callback(random.setstate, random.getstate())
        if numpy := loaded_numpy():
            undo.callback(numpy.random.set_state, numpy.random.get_state())
        # What modules hold, by which they also get back their mode.
        tensors: dict[int, Tensor] = {}  # by id
        contents: list[tuple[Container, Any]] = []
        for part in module.modules():
            _note_contents(vars(part), contents, tensors)
        undo.callback(_refill_all, contents)
        for part in module.modules():
            for value in vars(part).values():
                _restore_generator(value, undo)
        weights = list(module.parameters())
        all_frozen = not any(w.requires_grad for w in weights)
        trained = {id(w) for w in weights if w.requires_grad or all_frozen}
        for key, x in tensors.items():
            own = new = x.data
            if x.is_floating_point() and dtype is not None and dtype != own.dtype:
                kept = copies if copies is not None and key in unwritten else {}
                if key not in kept:
                    kept[key] = own.to(dtype)
                new = kept[key]
            if x.is_floating_point() and change is not None and key in trained:
                new = change(new, rng)
            if new is own and key in unwritten:
                continue
            undo.callback(setattr, x, "data", own)
            x.data = own.clone() if new is own else new  # a call may write into it
        if training is not None:
            module.train(training)
        yield


def _restore_generator(value: object, undo: ExitStack) -> None:
    """Let `undo` give a generator of random numbers the state that it has now; anything else is
    left alone."""
    if isinstance(value, torch.Generator):
        undo.callback(value.set_state, value.get_state())
    elif isinstance(value, random.Random):
        undo.callback(value.setstate, value.getstate())
    elif (numpy := loaded_numpy()) and isinstance(value, numpy.random.Generator):
        undo.callback(setattr, value.bit_generator, "state", value.bit_generator.state)


def _note_contents(
    value: object,
    contents: list[tuple[Container, Any]],
    tensors: dict[int, Tensor],
    depth: int = DEEPEST,
) -> None:
    """Add to `contents` what a container and those in it hold, each with a shallow copy, and to
    `tensors`, by id, the tensors in them whose data can be exchanged."""
    if isinstance(value, Tensor):
        if not value.is_inference() and value.layout == torch.strided and not value.is_meta:
            tensors.setdefault(id(value), value)
        return
    parts: list[object] = []
    if isinstance(value, dict):
        contents.append((value, dict(value)))
        parts = list(value.values())
    elif isinstance(value, list | deque | set):
        contents.append((value, list(value)))
        parts = list(value)
    elif isinstance(value, tuple):
        parts = list(value)
    if depth:
        for part in parts:
            if isinstance(part, Tensor | dict | list | deque | set | tuple):
                _note_contents(part, contents, tensors, depth - 1)


def _refill_all(contents: list[tuple[Container, Any]]) -> None:
    """Give containers back what `_note_contents` has noted of them, the last noted first. Those
    that still hold it are left alone: a class of the user's may refuse changes."""
    for value, parts in reversed(contents):
        if _holds(value, parts):
            continue
        # By the methods of the builtin class, since those of a subclass may refuse or do more.
        base = next(cls for cls in REFILLED if isinstance(value, cls))
        base.clear(value)
        if isinstance(value, dict):
            for key, part in parts.items():  # OrderedDict.update would call the subclass
                base.__setitem__(value, key, part)
        elif isinstance(value, set):
            base.update(value, parts)
        else:
            base.extend(value, parts)


def _holds(value: Container, parts: Any) -> bool:
    """Whether a container has the very parts that were noted of it, in their order."""
    if isinstance(value, dict):
        now, then = [*value.keys(), *value.values()], [*parts.keys(), *parts.values()]
    else:
        now, then = list(value), list(parts)
    return len(now) == len(then) and all(a is b for a, b in zip(now, then, strict=True))


# The classes of containers that are refilled, a subclass before its base.
REFILLED: tuple[Any, ...] = (OrderedDict, dict, list, deque, set)


def loaded_numpy() -> ModuleType | None:
    """NumPy, from which a model may draw random numbers, if the process has it."""
    return sys.modules.get("numpy")


def random_states() -> bytes:
    """The states of the generators that a model on the CPU may draw from, as bytes to compare:
    drawing changes them."""
    states: list[object] = [torch.get_rng_state().tolist(), random.getstate()]
    if numpy := loaded_numpy():
        states.append(numpy.random.get_state())
    return pickle.dumps(states)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed the generators of torch, Python and NumPy, which a model on a device may draw from."""
    if device.type == "cpu":  # torch.manual_seed is slow: it notes a traceback for other devices
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)
    random.seed(seed)
    if numpy := loaded_numpy():
        numpy.random.seed(seed)


def changed_by_a_call(model: object, call: Callable[[], object]) -> list[str]:
    """The names of the numbers and tensors of a model's modules that a call leaves changed."""
    module = module_of(model)
    if module is None:
        return []
    before = dict(_attributes(module))
    call()
    after = dict(_attributes(module))
    return [name for name in after if not _same(before.get(name), after[name])]


def _attributes(module: nn.Module) -> Iterator[tuple[str, object]]:
    """The numbers and tensors that modules hold, by name, such as "blocks.0.norm.weight"; tensors
    are copied."""
    for path, part in module.named_modules():
        own: Mapping[str, object] = {**part._buffers, **part._parameters, **vars(part)}
        for key, value in own.items():
            if isinstance(value, Tensor):
                yield f"{path}.{key}".lstrip("."), value.detach().clone()
            elif isinstance(value, bool | int | float):
                yield f"{path}.{key}".lstrip("."), value


def _same(a: object, b: object) -> bool:
    """Whether two attributes are equal, tensors in each element, others also in their type."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)
