"""The user's own code in a configuration: which names may run it, and what its files hold."""

import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from types import FunctionType
from typing import Any

from attnlab.errors import BadInput
from attnlab.settings.roles import flat

Node = Mapping[str, Any]  # plain values; `_target_` names what they are arguments of
LIBRARIES = (Path(__file__).parents[2], Path(os.__file__).parent)  # attnlab, the standard library
# The import paths that need no trust. A prefix would not do:
# torch.nn.functional.torch.os.system can be resolved, too.
ACTIVATIONS = {
    f"torch.nn.functional.{name}"
    for name in (
        "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu "
        "sigmoid silu softplus softsign tanh tanhshrink"
    ).split()
}


def import_paths(node: Node) -> set[str]:
    """The import paths that a node names, which may run anybody's code."""
    names: list[object] = []
    for value in flat(dict(node)).values():
        names += value if isinstance(value, list) else [value]
    return {name for name in names if isinstance(name, str) and "." in name} - ACTIVATIONS


def names_other_code(node: Node) -> bool:
    """Whether a node names code that does not belong to attnlab."""
    return any(not name.startswith("attnlab.") for name in import_paths(node))


def file_of_module(name: str) -> Path | None:
    """The file of a loaded module; None where there is none, as for `__main__` of a notebook."""
    module = sys.modules.get(name)
    file = None if module is None else vars(module).get("__file__")
    return None if file is None else Path(file)


def source_text(defined: Callable[..., object]) -> str:
    """The source of a class or function of a notebook or script; of a class, with those from which
    it inherits there. BadInput if it cannot be read, as for what was typed into `python`."""
    try:
        if not inspect.isclass(defined):
            return inspect.getsource(defined)
        # A class of an own module that inherits from nothing in `__main__` is its own source.
        classes = [cls for cls in defined.__mro__ if cls.__module__ == "__main__"] or [defined]
        return "\n".join(_source_of_class(cls) for cls in classes)
    except (OSError, TypeError) as error:
        name = defined.__qualname__
        raise BadInput(f"the source of {name} cannot be read; save it in a module") from error


def _source_of_class(cls: type) -> str:
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        # Python finds the lines of a function of a cell, but not those of a class.
        return _source_of_members(cls)


def _source_of_members(cls: type) -> str:
    bases = ", ".join(base.__qualname__ for base in cls.__bases__)
    lines = [f"class {cls.__qualname__}({bases}):"]
    for name, value in vars(cls).items():
        functions = functions_of_member(value)
        if functions:
            lines += [inspect.getsource(function) for function in functions]
        elif inspect.isclass(value) and value.__qualname__ == f"{cls.__qualname__}.{name}":
            lines.append(_source_of_class(value))  # defined inside; others are only named
        elif not name.startswith("__"):
            # The address in the text of an object is another one in each process.
            lines.append(f"{name} = {re.sub(r' at 0x[0-9a-fA-F]+', '', repr(value))}")
    return "\n".join(lines)


def functions_of_member(value: object) -> list[FunctionType]:
    """The functions that a member of a class consists of; none for any other value."""
    parts = [value]
    if isinstance(value, property):
        parts = [value.fget, value.fset, value.fdel]
    elif isinstance(value, cached_property):
        parts = [value.func]
    elif isinstance(value, classmethod | staticmethod):
        parts = [value.__func__]
    return [part for part in parts if inspect.isfunction(part)]


def is_users_class(cls: type) -> bool:
    """Whether a class belongs neither to attnlab nor to an installed package."""
    file = file_of_module(cls.__module__)
    return file is None or is_users_file(file)


def is_users_file(file: Path) -> bool:
    """Whether a module's file belongs neither to attnlab nor to an installed package."""
    installed = {"site-packages", "dist-packages"} & {*file.parts}
    return not installed and not any(library in file.parents for library in LIBRARIES)
