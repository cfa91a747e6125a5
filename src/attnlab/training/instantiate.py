"""From a node of the configuration to an object: checked against the signature first."""

import inspect
import logging
from collections.abc import Callable as AbstractCallable
from collections.abc import Collection
from difflib import get_close_matches
from functools import partial
from types import UnionType
from typing import Any, Literal, Protocol, Union, get_args, get_origin, get_type_hints

import hydra
from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, TypeAdapter, ValidationError

from attnlab.errors import BadInput, first_line

SPECIAL = {"_target_", "_partial_"}
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
CONFIG = ConfigDict(arbitrary_types_allowed=True, strict=True)


def build(
    node: DictConfig, path: str, *, apart: Collection[str] = (), given: Collection[str] = ()
) -> "partial[Any]":
    """A callable that makes what the node's `_target_` names, with the node's values.

    A string where the target asks for a function is the function's dotted path.

    Args:
        node: with `_target_`.
        path: of the node in the configuration, for messages.
        apart: keys of the node that are not the target's.
        given: what the caller of the callable adds, and a node may not.

    Raises:
        BadInput: the target cannot be imported, does not take a key, wants another type, or one
            that is missing.
    """
    target = locate(str(node._target_), f"{path}._target_")
    if node.get("_partial_", True) is not True:
        raise BadInput(f"{path}._partial_ = {node._partial_} must be true, or left out")
    taken = parameters(target, f"{path}._target_")
    if given and not taken.keys() & set(given):
        raise BadInput(f"{path}._target_ = {node._target_} takes none of {', '.join(given)}")
    hints = {name: hint for name, hint in taken.items() if name not in given}
    values: dict[str, Any] = {}
    for key, value in OmegaConf.to_container(node, resolve=True).items():  # type: ignore[union-attr]
        name = str(key)
        if name in SPECIAL or name in apart:
            continue
        if name not in hints:
            if _is_default_of_the_base(name, value, path):
                continue
            raise BadInput(unknown(f"{path}.{name}", f"{path}.", hints, of=str(node._target_)))
        values[name] = checked(value, hints[name], f"{path}.{name}")
    for name, parameter in inspect.signature(target).parameters.items():
        needed = parameter.default is parameter.empty and parameter.kind in NAMED
        if needed and name not in values and name not in given:
            raise BadInput(f"{path}.{name} must be given: {path}.{name}=...")
    return partial(target, **values)


def locate(dotted: str, path: str) -> Any:
    """Import what a dotted path names.

    Raises:
        BadInput: there is no such thing.
    """
    hydra_log = logging.getLogger("hydra.utils")  # says the same in three lines
    try:
        hydra_log.disabled = True
        found = hydra.utils.get_object(dotted)
    except Exception as error:  # Hydra raises whatever the import raised
        reason = first_line(error.__cause__ or error)
        raise BadInput(f"{path} = {dotted} cannot be imported: {reason}") from error
    finally:
        hydra_log.disabled = False
    if not callable(found):
        raise BadInput(f"{path} = {dotted} is no class or function")
    return found


def parameters(target: Any, path: str) -> dict[str, Any]:
    """Names of what a callable takes, with their annotations (Any where there is none).

    Raises:
        BadInput: the callable does not tell.
    """
    function = target.__init__ if inspect.isclass(target) else target
    try:
        hints = get_type_hints(function)
        signature = inspect.signature(target)
    except (TypeError, ValueError, NameError) as error:
        raise BadInput(f"{path} = {target} has no signature: {first_line(error)}") from error
    return {name: hints.get(name, Any) for name in signature.parameters}


def checked(value: Any, hint: Any, path: str) -> Any:
    """The value if it is what the annotation asks for; a dotted path becomes its function.

    Raises:
        BadInput: it is not.
    """
    if isinstance(value, str) and _wants_function(hint):
        return locate(value, path)
    try:
        TypeAdapter(hint, config=CONFIG).validate_python(value)
    except ValidationError:
        raise BadInput(f"{path} = {_shown(value)} must be {_described(hint)}") from None
    return value


def unknown(path: str, prefix: str, names: Collection[str], of: str = "") -> str:
    """The sentence for a key that nothing takes, with the nearest that is known.

    Args:
        path: of the key.
        prefix: of its group, dot included.
        names: the keys that are known.
        of: what does not take it, where that needs saying.
    """
    near = get_close_matches(path.removeprefix(prefix), [str(n) for n in names], n=1)
    hint = f"did you mean {prefix}{near[0]}?" if near else f"known are {', '.join(sorted(names))}"
    return f"{path} is not a setting{of and f' of {of}'}; {hint}"


def _is_default_of_the_base(name: str, value: Any, path: str) -> bool:
    """Whether a class of the user's merely inherits a line of sdpa.yaml that it has no use for."""
    if path != "attn":
        return False
    from attnlab.attention.layer import SelfAttention

    default = inspect.signature(SelfAttention).parameters.get(name)
    if default is None:
        return False
    if isinstance(value, str) and callable(default.default):
        return locate(value, f"attn.{name}") is default.default
    return bool(value == default.default)


def _wants_function(hint: Any) -> bool:
    options = get_args(hint) if get_origin(hint) is not AbstractCallable else (hint,)
    return any(
        get_origin(option) is AbstractCallable or _is_call_protocol(option)
        for option in options or (hint,)
    )


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _is_call_protocol(hint: Any) -> bool:
    return inspect.isclass(hint) and Protocol in hint.__mro__ and "__call__" in vars(hint)


NOUNS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    type(None): "null",
}


def _described(hint: Any) -> str:
    if hint in NOUNS:
        return NOUNS[hint]
    if get_origin(hint) is Literal:
        return " or ".join(str(option) for option in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(option) for option in get_args(hint))
    return str(hint).replace("typing.", "").replace("collections.abc.", "")
