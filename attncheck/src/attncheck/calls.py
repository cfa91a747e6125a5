"""How a model is called, and what it returns. B batch, T time, V symbols."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MethodType
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from .outcomes import CannotCheck

Model = Callable[..., object]
# What a function of the user's gets or carries on: its own class of model, or of cache.
Own = Any
# The model and inputs (B, T, ...), perhaps with optional tensors by name -> what it returns.
Call = Callable[..., object]
TARGETS = ("targets", "target", "labels", "label", "y")
# A document's number for each token (B, T).
DOCUMENTS = (
    "document", "documents", "document_id", "document_ids", "document_idx", "document_index",
    "doc_id", "doc_ids", "doc_idx", "seq_idx", "sequence_id", "sequence_ids",
)  # fmt: skip


@runtime_checkable
class Array(Protocol):
    """An array of another library, such as NumPy."""

    def __array__(self) -> object: ...


@runtime_checkable
class WithLogits(Protocol):
    """An output with logits, which may be a property."""

    @property
    def logits(self) -> object: ...


def named_tensors(value: object, name: str = "", depth: int = 3) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a value, in its containers and attributes up to a depth, with names such as
    "cache.0.k"; arrays of other libraries as tensors."""
    if isinstance(value, Tensor):
        yield name, value
    elif value is None:
        return
    elif not isinstance(value, tuple | list | dict) and isinstance(value, Array):
        yield name, torch.as_tensor(value)
    elif depth:
        for key, part in parts_of(value).items():
            yield from named_tensors(part, f"{name}.{key}" if name else key, depth - 1)


def parts_of(returned: object) -> dict[str, object]:
    """The parts of what a model returns: those of a tuple or list by number, or name in a named
    tuple, of a mapping by key, and the attributes of anything else."""
    if isinstance(returned, tuple | list):
        names = names_of_parts(returned) or [str(n) for n in range(len(returned))]
        return dict(zip(names, returned, strict=True))
    if isinstance(returned, Mapping):
        return {str(key): part for key, part in returned.items()}
    parts: dict[str, object] = {}
    if isinstance(returned, WithLogits):
        parts["logits"] = returned.logits
    return parts | attributes_of(returned)


def names_of_parts(returned: object) -> tuple[str, ...]:
    """The names in a named tuple; none of any other value."""
    return getattr(returned, "_fields", ()) if isinstance(returned, tuple) else ()


def attributes_of(value: object) -> dict[str, object]:
    """The attributes that an object itself holds, by name; {} for one without, such as a
    number."""
    return dict(getattr(value, "__dict__", {}))


def floats_of(returned: object, shape: tuple[int, ...]) -> dict[str, Tensor]:
    """The tensors of floats in what a model returns that begin with a shape (B, T), by name or
    number, each as (B, T, V): `logits` first, those of more or fewer axes last. CannotCheck if
    there are none."""
    outputs: dict[str, Tensor] = {}
    for name, x in named_tensors(returned):
        if x.is_floating_point() and x.shape[:2] == shape:
            outputs[name or "0"] = x
    if not outputs:
        raise CannotCheck(
            f"for inputs {shape} the model returned no numbers (B, T, V); give call, such as "
            "call=lambda model, ids: model(ids).logits"
        )
    names = sorted(outputs, key=lambda name: (outputs[name].ndim != 3, name != "logits"))
    return {name: _with_channels(outputs[name]) for name in names}


def _with_channels(x: Tensor) -> Tensor:
    """(B, T) -> (B, T, 1), and (B, T, ...) -> (B, T, V) of all that is at a position."""
    return x[..., None] if x.ndim == 2 else x.flatten(2)


def outputs_of(returned: object, shape: tuple[int, ...]) -> Tensor:
    """The outputs (B, T, V) in what a model returns for inputs of a shape (B, T): `logits`, or the
    first other floats, see `floats_of`; CannotCheck if there are none."""
    return next(iter(floats_of(returned, shape).values()))


def loss_of(returned: object) -> Tensor:
    """The loss in what a model returns, a scalar: the first single float whose name has "loss" in
    it, else the first single float; CannotCheck if there is none."""
    parts = dict(named_tensors(returned, depth=1))
    named = [x for name, x in parts.items() if "loss" in name]
    numbers = [x for x in parts.values() if x.numel() == 1]
    for x in [*named, *numbers]:
        if x.is_floating_point() and x.numel() == 1:
            return x.reshape(())
    raise CannotCheck("with labels the model returns no loss that is one number")


def module_of(model: object) -> nn.Module | None:
    """The module behind a model: itself, the owner of a bound method, or what a function, a
    partial or an object holds, several as one ModuleList; None if there is none. A scripted one
    counts as a function, whose weights stay as they are."""
    held: list[object] = [model]
    if isinstance(model, MethodType):
        held.append(model.__self__)
    elif isinstance(model, partial):
        held += [model.func, *model.args, *model.keywords.values()]
    elif inspect.isfunction(model):
        names = inspect.getclosurevars(model)
        held += [*names.nonlocals.values(), *names.globals.values()]
    elif not isinstance(model, nn.Module):
        held += attributes_of(model).values()
    modules: list[nn.Module] = []
    for each in held:
        known = any(each is other for other in modules)
        scripted = isinstance(each, torch.jit.ScriptModule)
        if isinstance(each, nn.Module) and not known and not scripted:
            modules.append(each)
    if len(modules) > 1:
        return nn.ModuleList(modules)
    return modules[0] if modules else None


def parts_below(model: object) -> list[nn.Module]:
    """The module behind a model and all inside of it; none if no module is known."""
    module = module_of(model)
    return [] if module is None else list(module.modules())


def arguments_of(model: object) -> dict[str, inspect.Parameter]:
    """The parameters of a model's `forward`, or of the function that it is, by name and in order,
    the inputs first; {} if they are unknown."""
    function = model
    if isinstance(model, nn.Module):
        function = getattr(model, "_orig_mod", model).forward  # of a compiled module
    try:
        return dict(inspect.signature(function).parameters)  # type: ignore[arg-type]  # or none
    except (TypeError, ValueError):
        return {}


def missing_arguments(model: object) -> list[str]:
    """The names of the arguments without a default, beside the inputs."""
    takes = list(arguments_of(model).values())
    needed = [p.name for p in takes if p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD]
    keyword = [p.name for p in takes if p.default is p.empty and p.kind is p.KEYWORD_ONLY]
    return [*needed, *keyword][1:]  # the first takes the inputs


def inputs_argument(model: object) -> str:
    """The name of the first argument, which takes the inputs, if it can only be given by name;
    otherwise ""."""
    first = next(iter(arguments_of(model).values()), None)
    return first.name if first is not None and first.kind is first.KEYWORD_ONLY else ""


def plainly(model: Model, x: Tensor, **more: object) -> object:
    """The usual call of a model: with its inputs (B, T, ...) first, or by name if it takes them
    by name alone, and more arguments by name."""
    name = inputs_argument(model)
    return model(**{name: x}, **more) if name else model(x, **more)


def with_targets(model: Model, x: Tensor, **more: object) -> object:
    """The call of a model that returns all logits only if it gets targets: the inputs as both."""
    return model(x, x, **more)


def ways_to_call(model: object) -> list[Call]:
    """The calls of a model to try, in order: `plainly` and, if the second argument is named as
    targets are, `with_targets`."""
    names = list(arguments_of(model))
    if len(names) > 1 and names[1] in TARGETS:
        return [plainly, with_targets]
    return [plainly]
