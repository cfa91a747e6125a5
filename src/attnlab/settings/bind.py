"""From the nodes of the configuration to the objects they name, checked against signatures.

It does what `hydra.utils.instantiate` does, and also checks each argument before anything is made,
and reads names without a dot as those of attnlab.
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol, get_args, get_origin, get_type_hints

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import nn

import attnlab.attention
import attnlab.model
from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT, AttentionFactory
from attnlab.settings.own_code import Node
from attnlab.settings.roles import MAIN, Settings
from attnlab.settings.trainer_arguments import OF_ATTNLAB, check_arguments
from attnlab.settings.types import ModelSettings, TrainerSettings

if TYPE_CHECKING:  # Lightning takes most of a start, and typos need none of it
    import lightning.pytorch as L

# A name without a dot is a public name of attnlab; any other name is an import path.
PUBLIC: dict[str, str] = {}  # name -> the module that has it
for _module in (attnlab.attention, attnlab.model):
    PUBLIC |= dict.fromkeys(_module.__all__, _module.__name__)
STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
# The defaults of SelfAttention as YAML has them: functions by name.
SELF_ATTENTION_DEFAULTS = {
    name: given.default.__name__ if callable(given.default) else given.default
    for name, given in inspect.signature(SelfAttention).parameters.items()
}
Factory = Callable[..., Any]  # a class or function that a node names


@dataclass(frozen=True)
class Parameters:
    """What a class or function takes by keyword."""

    hints: dict[str, Any]  # parameter -> annotation, Any where it has none
    # Without a default in its own signature: what a base class needs is not seen.
    required: set[str]
    takes_any: bool  # whether it has `**settings` for every other keyword


def bind(
    node: Node, path: str, *, supplied: Collection[str] = (), ignored: Collection[str] = ()
) -> partial[Any]:
    """Bind the node's values to its `_target_` as arguments; nothing is called yet.

    Raises BadInput for a key or a type that its signature does not have. A default of
    `SelfAttention` goes only to a class that takes it: attn._target_=my.Layer comes with those of
    conf/attn/sdpa.yaml.

    Args:
        node, path: the node and its place in the configuration, for messages. A list of classes
            as `_target_` is a class that inherits from all of them.
        supplied: parameters that the caller of the result gives.
        ignored: keys of the node that are not meant for the target.
    """
    target = target_of(node, path)
    parameters = keyword_parameters(target)
    known = parameters.hints.keys() - {*supplied}
    arguments: dict[str, object] = {}
    for name, value in node.items():
        if name in ("_target_", "_partial_") or name in ignored:
            continue
        if name in known:
            arguments[name] = checked(value, parameters.hints[name], f"{path}.{name}")
        elif parameters.takes_any and name not in supplied:
            arguments[name] = value
        elif name not in supplied and (name, value) in SELF_ATTENTION_DEFAULTS.items():
            pass  # a default of SelfAttention, which this class does not take
        else:
            near = get_close_matches(name, known, n=1)
            hint = f"; did you mean {path}.{near[0]}?" if near else ""
            raise BadInput(f"{path}.{name} is not a setting of {target.__name__}{hint}")
    if missing := parameters.required - arguments.keys() - {*supplied}:
        names = " and ".join(f"{path}.{name}" for name in sorted(missing))
        raise BadInput(f"{names} must be given, for {target.__name__}")
    return partial(target, **arguments)


def target_of(node: Node, path: str) -> Factory:
    """The class or function that a node names; of several classes, one that inherits from all."""
    names = node["_target_"]
    if isinstance(names, str):
        return locate(names, f"{path}._target_")
    if callable(names):  # given in Python
        target: Factory = names
        return target
    parents = []
    for name in names:
        parent = locate(name, f"{path}._target_")
        if not isinstance(parent, type):
            raise BadInput(f"{path}._target_ = {name} is not a class; only classes combine")
        parents.append(parent)
    return type("And".join(parent.__name__ for parent in parents), tuple(parents), {})


def locate(name: str, path: str) -> Factory:
    """What a name stands for; BadInput if there is no such class or function. An error in a
    module of the user's is raised as it is."""
    try:
        found: Factory = resolve_name(name if "." in name else f"{PUBLIC[name]}:{name}")
        return found
    except KeyError:
        near = get_close_matches(name, PUBLIC, n=1) or ["its import path"]
        raise BadInput(f"{path} = {name} is unknown; did you mean {near[0]}?") from None
    except (ModuleNotFoundError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and not name.startswith(str(error.name)):
            raise
        if name.startswith(MAIN):
            raise BadInput(
                f"{path} = {name} was defined in a notebook or script, which this is not; in "
                "Python, give the class: attnlab.load_model(RUN, attn=...)"
            ) from error
        raise BadInput(f"{path} = {name} cannot be imported: {error}") from error


def keyword_parameters(target: Factory) -> Parameters:
    """The parameters of a class or function. A class that hands on `**settings` also takes those
    of the next class in its order of inheritance."""
    functions: list[Factory] = [target]
    if isinstance(target, type):
        classes = [cls for cls in target.__mro__ if "__init__" in vars(cls) and cls is not object]
        functions = [vars(cls)["__init__"] for cls in classes]
    hints: dict[str, Any] = {}
    takes_any = bool(functions)
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        annotations = annotations_of(function)
        for p in parameters:
            if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self":
                hints.setdefault(p.name, annotations.get(p.name, Any))
        if all(p.kind != p.VAR_KEYWORD for p in parameters):
            takes_any = False
            break  # nothing is handed on to the next class
    required = {
        p.name
        for p in inspect.signature(target).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    return Parameters(hints, required, takes_any)


def annotations_of(function: Factory) -> dict[str, Any]:
    """Parameter -> annotation; empty where one is imported for type checkers only."""
    try:
        return get_type_hints(function, include_extras=True)
    except NameError:
        return {}


def checked(value: object, hint: Any, path: str) -> object:
    """The value if its annotation permits it; the name of a function becomes the function."""
    options = get_args(hint) or (hint,)
    if any(map(is_call, (hint, *options))):
        return locate(value, path) if isinstance(value, str) else value
    try:
        return TypeAdapter(hint, config=STRICT).validate_python(value)
    except ValidationError as error:
        raise BadInput(f"{path} = {value}: {error.errors()[0]['msg'].lower()}") from None


def is_call(hint: object) -> bool:
    """Whether a type asks for a function: `Callable[...]`, or a protocol with `__call__`."""
    protocol = inspect.isclass(hint) and Protocol in hint.__mro__ and "__call__" in vars(hint)
    return protocol or get_origin(hint) is Callable


def attention_factory(attn: Node) -> AttentionFactory:
    """The attention of a model: one variant, or `attn.layers`, several in turn."""
    attn = {key: value for key, value in attn.items() if key != "source"}
    if "layers" not in attn:
        return bind(attn, "attn", supplied=["config"])
    variants = [
        bind(node, f"attn.layers.{n}", supplied=["config"]) for n, node in attn["layers"].items()
    ]

    def in_turn(config: AttentionConfig) -> nn.Module:
        return variants[config.layer % len(variants)](config)

    return in_turn


def model_factory(model: ModelSettings, attn: Node, seed: int) -> Callable[[int], GPT]:
    """Makes the model with its initial weights from a vocabulary size; BadInput for settings that
    no class takes, and from the factory for those that do not fit together."""
    arguments = model.plain()
    make = bind(
        arguments,
        "model",
        supplied=["attn", "vocab_size"],
        ignored=["init", "qk_std", "source"],
    )
    make_attention = attention_factory(attn)

    def with_initial_weights(vocab_size: int) -> GPT:
        net: GPT = make(attn=make_attention, vocab_size=vocab_size)
        init_weights(net, seed, scheme=model.init, qk_std=model.qk_std)
        return net

    return with_initial_weights


def bound_trainer(trainer: TrainerSettings) -> "Callable[..., L.Trainer]":
    """Lightning's Trainer with its arguments; BadInput for one that a run cannot have."""
    check_arguments(trainer.plain())
    return bind(for_lightning(trainer), "trainer", supplied=OF_ATTNLAB)


def for_lightning(trainer: TrainerSettings) -> Settings:
    """The settings of the trainer in Lightning's terms: a precision, and batches for steps."""
    batches = trainer.val_check_interval * trainer.accumulate_grad_batches
    arguments = trainer.plain()
    precision: str = trainer.precision
    if precision == "auto":
        on_gpu = torch.cuda.is_available() and arguments["accelerator"] in ("auto", "gpu", "cuda")
        # Where it is emulated, as on a T4, bf16 is slower than fp32.
        fast = on_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16-mixed" if fast else "32-true"
    if arguments.get("min_steps"):
        # Lightning would also wait for the end of an epoch, and there is only one.
        arguments["min_epochs"] = 0
    return arguments | {"precision": precision, "val_check_interval": batches}
