"""The user's own code in a configuration: which names may run it, and what its files hold."""

import hashlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnlab.runs.settings import flat

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
    names: list[Any] = []
    for value in flat(dict(node)).values():
        names += value if isinstance(value, list) else [value]
    return {name for name in names if isinstance(name, str) and "." in name} - ACTIVATIONS


def source_of(node: Node) -> str | None:
    """The SHA-256 of the user's own modules that a node names, None if it names none: of my_layers
    for attn._target_=my_layers.Layer. The object must have been built, so that they are loaded."""
    modules = sorted({name.rpartition(".")[0] for name in import_paths(node)})
    files = [getattr(sys.modules.get(name), "__file__", None) for name in modules]
    own = [Path(file) for file in files if file and is_users(Path(file))]
    if not own:
        return None
    return hashlib.sha256(b"".join(file.read_bytes() for file in own)).hexdigest()


def is_users(file: Path) -> bool:
    """Whether a module's file belongs neither to attnlab nor to an installed package."""
    installed = {"site-packages", "dist-packages"} & {*file.parts}
    return not installed and not any(library in file.parents for library in LIBRARIES)
