"""The user's own code in a configuration: which names may run it, and what its files hold."""

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from attnlab.errors import BadInput
from attnlab.runs.settings import MAIN, flat

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


def source_of(node: Node) -> str | None:
    """The SHA-256 of the user's own modules that a node names, None if it names none: of my_layers
    for attn._target_=my_layers.Layer. The object must have been built, so that they are loaded."""
    names = sorted(import_paths(node))
    of_main = [name for name in names if name.startswith(MAIN)]
    modules = sorted({name.rpartition(".")[0] for name in names if name not in of_main})
    files = [file_of_module(name) for name in modules]
    own = [file.read_bytes() for file in files if file is not None and is_users(file)]
    own += [source_text(resolve_name(name)).encode() for name in of_main]
    return hashlib.sha256(b"".join(own)).hexdigest() if own else None


def file_of_module(name: str) -> Path | None:
    """The file of a loaded module; None where there is none, as for `__main__` of a notebook."""
    module = sys.modules.get(name)
    file = None if module is None else vars(module).get("__file__")
    return None if file is None else Path(file)


def source_text(made: Callable[..., object]) -> str:
    """The source of a class or function of a notebook or script; of a class, with those from which
    it inherits there. BadInput if it cannot be read, as for what was typed into `python`."""
    parts: list[Callable[..., object]] = [made]
    if isinstance(made, type):
        parts = [cls for cls in made.__mro__ if cls.__module__ == "__main__"] or [made]
    try:
        return "\n".join(map(_source_of_one, parts))
    except (OSError, TypeError) as error:
        name = made.__qualname__
        raise BadInput(f"the source of {name} cannot be read; save it in a module") from error


def _source_of_one(made: Callable[..., object]) -> str:
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        # Python finds the lines of a function of a cell, but not those of a class.
        if not isinstance(made, type):
            raise
    parts = []
    for name, value in vars(made).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if inspect.isfunction(function):
            parts.append(inspect.getsource(function))
        elif not name.startswith("__"):
            parts.append(f"{name} = {value!r}")
    bases = ", ".join(base.__qualname__ for base in made.__bases__)
    return "\n".join([f"class {made.__qualname__}({bases}):", *parts])


def is_users_class(cls: type) -> bool:
    """Whether a class belongs neither to attnlab nor to an installed package."""
    file = file_of_module(cls.__module__)
    return file is None or is_users(file)


def is_users(file: Path) -> bool:
    """Whether a module's file belongs neither to attnlab nor to an installed package."""
    installed = {"site-packages", "dist-packages"} & {*file.parts}
    return not installed and not any(library in file.parents for library in LIBRARIES)
