"""From a node of the configuration to an object, checked against the target's signature."""

import inspect
import json
import pkgutil
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import partial, reduce
from operator import or_
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from torch import nn

import attnlab.attention
import attnlab.model
from attnlab.attention.variant import SHAPE, AttentionConfig, Variant
from attnlab.errors import BadInput, first_line

SPECIAL = {"_target_", "_partial_"}
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
CONFIGS = (("config", AttentionConfig), ("config", Any))  # as the first parameter
STRICT = ConfigDict(arbitrary_types_allowed=True, strict=True)
NOUNS: Mapping[Any, str] = {
    **{int: "a whole number", float: "a number", str: "a text"},
    **{bool: "true or false", type(None): "null"},
}


def build(
    node: DictConfig, path: str, *, apart: Collection[str] = (), supplied: Collection[str] = ()
) -> "partial[Any]":
    """The node's `_target_` as a callable with the node's values as arguments; BadInput if there
    is no such target, or if it does not take these keys and values.

    For a parameter that is a function, a string is the name of a function. If the first parameter
    of the target is an `AttentionConfig` named `config`, the result makes a layer like a
    `Variant`: keys that are fields of `AttentionConfig` go into the config, others to the target.

    Args:
        node, path: the node and its place in the configuration, for messages.
        apart: keys of the node that are not arguments of the target.
        supplied: parameters that the caller of the result sets; a node may not set them.
    """
    target = locate(str(node._target_), f"{path}._target_")
    if node.get("_partial_", True) is not True:
        raise BadInput(f"{path}._partial_ = {node._partial_} must be true; remove it")
    hints = parameters(target, f"{path}._target_")
    takes_config = next(iter(hints.items()), None) in CONFIGS
    if supplied and not hints.keys() & set(supplied):
        raise BadInput(
            f"{path}._target_ = {node._target_} has no parameter {' or '.join(supplied)}"
        )
    if takes_config:
        settings = parameters(AttentionConfig, path)
        hints = {name: hint for name, hint in settings.items() if name not in SHAPE} | hints
        supplied = {"config", *supplied}
    accepted = {name: hint for name, hint in hints.items() if name not in {*supplied, *apart}}
    values: dict[str, Any] = {}
    given: Any = OmegaConf.to_container(node, resolve=True)
    for name, value in given.items():
        if name in accepted:
            values[name] = checked(value, accepted[name], f"{path}.{name}")
        elif name not in SPECIAL and name not in apart:
            raise BadInput(unknown(f"{path}.{name}", f"{path}.", accepted, of=str(node._target_)))
    for name, parameter in inspect.signature(target).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind in NAMED
        if needed and name not in values and name not in supplied:
            raise BadInput(f"{path}.{name} must be given: {path}.{name}=...")
    return partial(Variant(target, values)) if takes_config else partial(target, **values)


def locate(name: str, path: str, hint: Any = type) -> Any:
    """The class or function of a name; BadInput if there is none that fits.

    Args:
        name: an import path, or without a dot a public name of `attnlab.attention` or
            `attnlab.model`, or of only one of them if the path begins with `attn` or `model`.
        path: of the value in the configuration, for messages.
        hint: `type` for a class, or the type of the function, which is called.
    """
    if "." not in name:
        return _public(name, path, hint)
    try:
        target = pkgutil.resolve_name(name)
    except Exception as error:  # whatever the import raises
        raise BadInput(f"{path} = {name} cannot be imported: {first_line(error)}") from error
    if not callable(target):
        raise BadInput(f"{path} = {name} is not a class or function")
    if hint is not type and not _can_be(target, hint):
        raise BadInput(f"{path} = {name} must be called as {_call_of(hint)}")
    return target


def _public(name: str, path: str, hint: Any) -> Any:
    groups = {"attn": attnlab.attention, "model": attnlab.model}
    group = path.partition(".")[0]
    modules = [groups[group]] if group in groups else groups.values()
    names = {name: vars(module)[name] for module in modules for name in module.__all__}
    classes = {n: x for n, x in names.items() if inspect.isclass(x)}
    fitting = {n: x for n, x in classes.items() if issubclass(x, nn.Module)}
    if hint is not type:
        fitting = {n: x for n, x in names.items() if n not in classes and _can_be(x, hint)}
    if name in fitting:
        return fitting[name]
    near = get_close_matches(name, fitting, n=1)
    advice = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(fitting)}"
    if name in names:
        kind = "class" if hint is type else path.rpartition(".")[2]
        raise BadInput(f"{path} = {name} cannot be used as {kind}; {advice}")
    raise BadInput(f"{path} = {name} is unknown; {advice} (your own code needs its import path)")


def parameters(target: Any, path: str) -> dict[str, Any]:
    """The parameters of a callable: name -> type, or Any if the annotation is missing or imported
    for type checkers only. BadInput if it has no signature."""
    function = inspect.unwrap(target.__init__ if inspect.isclass(target) else target)
    module = inspect.getmodule(function)
    scope = vars(module) if module else {}
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError) as error:
        raise BadInput(f"{path} = {target} has no signature: {first_line(error)}") from error
    hints: dict[str, Any] = dict.fromkeys(signature.parameters, Any)
    for name, parameter in signature.parameters.items():
        if parameter.annotation is not parameter.empty:
            holder = type("_", (), {"__annotations__": {name: parameter.annotation}})
            with suppress(Exception):  # whatever evaluating somebody's string raises
                hints[name] = get_type_hints(holder, scope)[name]
    return hints


def checked(value: Any, hint: Any, path: str) -> Any:
    """The value if its annotation permits it; the name of a function becomes the function."""
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    calls = [option for option in options if _is_call(option)]
    if isinstance(value, str) and calls:
        return locate(value, path, calls[0])
    if calls == list(options):
        raise _must_be(path, value, hint)
    rest: Any = reduce(or_, (option for option in options if option not in calls))
    try:
        TypeAdapter(rest, config=STRICT).validate_python(value)
    except ValidationError:
        raise _must_be(path, value, hint) from None
    except PydanticUserError:  # pydantic cannot check such a type
        return value
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadInput(f"{path} = {value} must fit in 64 bits")
    return value


def unknown(path: str, prefix: str, names: Collection[str], of: str = "") -> str:
    """The message for a key that is not a setting, at all or of `of`, with the most similar known
    name of its group; `prefix` is the group with its dot."""
    near = get_close_matches(path.removeprefix(prefix), [str(n) for n in names], n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(sorted(names))}"
    return f"{path} is not a setting{of and f' of {of}'}; {hint}"


def _is_call(hint: Any) -> bool:
    """Whether a type asks for a function: `Callable[...]`, or a protocol with `__call__`."""
    protocol = inspect.isclass(hint) and Protocol in hint.__mro__ and "__call__" in vars(hint)
    return protocol or get_origin(hint) is Callable


def _arguments(hint: Any) -> tuple[list[str], list[str]] | None:
    """Names of the positional and the keyword arguments of a call; None if it takes any."""
    if get_origin(hint) is Callable:
        types = get_args(hint)[0]
        return None if types is ... else ([f"x{i}" for i in range(len(types))], [])
    found = list(inspect.signature(hint.__call__).parameters.values())[1:]
    keywords = [p.name for p in found if p.kind is p.KEYWORD_ONLY]
    return [p.name for p in found if p.name not in keywords], keywords


def _can_be(value: Any, hint: Any) -> bool:
    """Whether a callable takes the arguments of a function type."""
    positional, keywords = _arguments(hint) or (None, [])
    try:
        signature = inspect.signature(value)
        if positional is not None:
            signature.bind(*positional, **dict.fromkeys(keywords))
    except TypeError:
        return False
    except ValueError:  # some builtins have no signature, and take no keywords of ours
        return not keywords
    return True


def _call_of(hint: Any) -> str:
    positional, keywords = _arguments(hint) or (["..."], [])
    return f"({', '.join([*positional, *(f'{name}=' for name in keywords)])})"


def _must_be(path: str, value: Any, hint: Any) -> BadInput:
    shown = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
    return BadInput(f"{path} = {shown} must be {_described(hint)}")


def _described(hint: Any) -> str:
    if hint in NOUNS:
        return NOUNS[hint]
    if get_origin(hint) in (Literal, Union, UnionType):
        options = get_args(hint)
        return " or ".join(x if isinstance(x, str) else _described(x) for x in options)
    if _is_call(hint):
        return f"a function that is called as {_call_of(hint)}"
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
