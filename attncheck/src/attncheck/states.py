"""The states in which a model is examined. All is as before afterward, also after an error."""

import pickle
import random
import sys
from collections import deque
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

    training: bool = False
    grad: bool = False  # with gradients enabled, as a training step
    dropout: bool = True  # False: dropout does nothing
    own_dtype: bool = False  # in the precision of its weights, not in the best one
    weights: Weights = Weights.OWN
    given: str = ""  # the optional tensors, see `Subject.optional`

    def __str__(self) -> str:
        said = ["in training mode" if self.training else "in evaluation mode"]
        if self.grad and not self.training:
            said.append("with gradients")
        if self.training and not self.grad:
            said.append("without gradients")
        if self.own_dtype:
            said.append("in its own precision")
        if self.weights is not Weights.OWN:
            said.append(self.weights.value)
        if self.given:
            said.append(f"with {self.given}")
        return ", ".join(said)


EVALUATION = State()
TRAINING = State(training=True, grad=True, dropout=False)


def seen_in(state: State, *, held: bool) -> str:
    """A line of a message: in which state a fault was seen and, if the property held in a plainer
    one, in which not; "" of plain evaluation mode, which is tried first."""
    if not held:
        return "" if replace(state, grad=False, own_dtype=False) == EVALUATION else f"seen {state}"
    if state.training:
        otherwise = "in evaluation mode"
    elif state.given:
        otherwise = "without it"
    elif state.weights is not Weights.OWN:
        otherwise = "with its own"
    elif state.own_dtype:
        otherwise = "in a higher one"
    else:
        otherwise = "without them"  # gradients
    return f"seen {state}, not {otherwise}"


def root_mean_square(weight: Tensor) -> float:
    """The usual size of a weight's numbers."""
    if weight.numel() < LARGE:
        return float(weight.float().square().mean().sqrt())
    norm = torch.linalg.vector_norm(weight, dtype=torch.float64)  # in one pass, without a copy
    return float(norm) / weight.numel() ** 0.5


def noise_for(weight: Tensor, rng: torch.Generator) -> Tensor:
    """Normal numbers of the shape and dtype of a weight. For a large one a tile (N,) of them, see
    `with_repeated`: to draw as many as a large model has takes longer than to call it."""
    shape = weight.shape if weight.numel() < LARGE else (TILE,)
    return torch.randn(shape, generator=rng).to(weight)


def with_repeated(function: Callable[..., Tensor], weight: Tensor, numbers: Tensor) -> Tensor:
    """A function, such as torch.add, of a weight and numbers of its shape, or of a tile of them
    that is repeated along the weight."""
    if numbers.shape == weight.shape:
        return function(weight, numbers)
    new = torch.empty_like(weight, memory_format=torch.contiguous_format)
    flat = weight.reshape(-1)
    flat_new = new.view(-1)
    whole = len(flat) // len(numbers) * len(numbers)
    tiled = (-1, len(numbers))
    function(flat[:whole].view(tiled), numbers, out=flat_new[:whole].view(tiled))
    function(flat[whole:], numbers[: len(flat) - whole], out=flat_new[whole:])
    return new


def with_noise(weight: Tensor, rng: torch.Generator) -> Tensor:
    """A weight with noise."""
    size = 0.1 * root_mean_square(weight) + 0.01
    return with_repeated(torch.add, weight, size * noise_for(weight, rng))


def of_trained_size(weight: Tensor, rng: torch.Generator) -> Tensor:
    """A matrix whose entries are at least about as large as those of a trained model."""
    if weight.ndim < 2:
        return weight
    usual = weight.shape[-1] ** -0.5  # keeps the size of what it multiplies
    size = root_mean_square(weight)
    return weight * max(1.0, 2 * usual / size) if size else weight


def slightly_other(weight: Tensor, rng: torch.Generator, *, share: float = 0.01) -> Tensor:
    """A weight that is larger or smaller by about a share in each element."""
    return with_repeated(torch.mul, weight, 1 + share * noise_for(weight, rng))


def ten_thousandfold(weight: Tensor, rng: torch.Generator, *, tables: set[torch.Size]) -> Tensor:
    """A matrix that is 10,000 times as large, so that scores reach any finite fill of a mask; of
    an embedding, at most so much that its numbers are about 1."""
    if weight.shape in tables:
        return weight / weight.square().mean().sqrt().clamp(1e-4, 1)
    return weight * 1e4 if weight.ndim > 1 else weight


def change_of(weights: Weights, model: object) -> Change | None:
    """The function that makes these weights of a model's own."""
    if weights is Weights.NOISE:
        return with_noise
    if weights is Weights.LARGER:
        return of_trained_size
    if weights is Weights.HUGE:
        tables = {p.weight.shape for p in parts_below(model) if isinstance(p, nn.Embedding)}
        return partial(ten_thousandfold, tables=tables)
    return None


class WithoutDropout(TorchFunctionMode):
    """Dropout does nothing, neither of its own functions nor as an argument of others."""

    def __torch_function__(
        self,
        function: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        named: dict[str, object] | None = None,
    ) -> object:
        """The result of a function of torch that is called inside, without dropout."""
        name = getattr(function, "__name__", "")
        named = dict(named or {})
        if name in RECURRENT:  # the probability of dropout is their only float
            args = tuple(0.0 if isinstance(x, float) else x for x in args)
        elif name in WITH_DROPOUT:
            place = WITH_DROPOUT[name]
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            elif "dropout_p" in named:
                named["dropout_p"] = 0.0
        elif "dropout" in name and not name.startswith("native"):  # that returns its mask, too
            return args[0] if args else named["input"]
        return function(*args, **named)


RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Functions with an argument dropout_p, and its place.
WITH_DROPOUT = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}


def without_probabilities(model: object) -> bool:
    """Set the probabilities of dropout that modules hold to 0, and say whether there are any.

    Inside `changed`, which restores them. Unlike `WithoutDropout` it holds in a backward pass.
    """
    any_set = False
    for part in parts_below(model):
        for key, value in list(vars(part).items()):
            named = "drop" in key or (key == "p" and "Dropout" in type(part).__name__)
            if named and isinstance(value, float) and 0 < value < 1:
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
    spared: frozenset[int] = frozenset(),
    copies: dict[int, Tensor] | None = None,
) -> Iterator[None]:
    """Run a model in evaluation or training mode (None: as it is), with other weights; afterward
    all is as before, also after an error.

    `spared` are the ids of weights that no call writes into. They stay where they are, unless
    they get another dtype or other values. `copies` keeps those of them that got another dtype,
    always the same one, for the next time.

    The weights and buffers that the model had are put aside, not overwritten, so they come back to
    the last bit, together with attributes that the model has set meanwhile. Weights that are not
    trained while others are keep their values.
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
        held: dict[int, Tensor] = {}
        contents: list[tuple[Container, Any]] = []
        for part in module.modules():
            _note_contents(vars(part), contents, held)
        undo.callback(_refill_all, contents)
        weights = list(module.parameters())
        frozen = not any(w.requires_grad for w in weights)
        trained = {id(w) for w in weights if w.requires_grad or frozen}
        for key, x in held.items():
            own = new = x.data
            if x.is_floating_point():
                new = own
                if dtype is not None and dtype != own.dtype:
                    kept = copies if copies is not None and key in spared else {}
                    if key not in kept:
                        kept[key] = own.to(dtype)
                    new = kept[key]
                if change is not None and key in trained:
                    new = change(new, rng)
            if new is own and key in spared:
                continue
            undo.callback(setattr, x, "data", own)
            x.data = own.clone() if new is own else new
        if training is not None:
            module.train(training)
        yield


def _note_contents(
    value: object,
    contents: list[tuple[Container, Any]],
    held: dict[int, Tensor],
    depth: int = DEEPEST,
) -> None:
    """Note what a container and those in it hold, and collect the tensors in them, each once, by
    id."""
    if isinstance(value, Tensor):
        if not value.is_inference() and value.layout == torch.strided and not value.is_meta:
            held.setdefault(id(value), value)
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
                _note_contents(part, contents, held, depth - 1)


def _refill_all(contents: list[tuple[Container, Any]]) -> None:
    """Give containers back what was noted of them, the last noted first."""
    errors: list[Exception] = []
    for value, parts in reversed(contents):
        try:
            value.clear()
            if isinstance(value, list | deque):
                value.extend(parts)
            else:
                value.update(parts)
        except Exception as error:  # of a class of the user's; the others are refilled, too
            errors.append(error)
    if errors:
        raise errors[0]


def loaded_numpy() -> ModuleType | None:
    """NumPy, from which a model may draw random numbers, if the process has it."""
    return sys.modules.get("numpy")


def random_states() -> bytes:
    """The states of what a model on the CPU may draw from, which drawing changes."""
    states: list[object] = [torch.get_rng_state().tolist(), random.getstate()]
    if numpy := loaded_numpy():
        states.append(numpy.random.get_state())
    return pickle.dumps(states)


def seed_all(seed: int, device: torch.device) -> None:
    """Seed what a model on a device may draw from."""
    if device.type == "cpu":  # torch.manual_seed also notes a traceback for each absent device
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
    """The numbers and tensors that modules hold, copied, with their names."""
    for path, part in module.named_modules():
        own: Mapping[str, object] = {**part._buffers, **part._parameters, **vars(part)}
        for key, value in own.items():
            if isinstance(value, Tensor):
                yield f"{path}.{key}".lstrip("."), value.detach().clone()
            elif isinstance(value, bool | int | float):
                yield f"{path}.{key}".lstrip("."), value


def _same(a: object, b: object) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)
