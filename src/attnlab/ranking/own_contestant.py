"""The contestant of the command line: a variant of the user's own, and what it is made of."""

import re
import sys
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig
from torch import nn

from attnlab.claims.paths import Paths
from attnlab.claims.provenance import sources_digest
from attnlab.errors import BadInput
from attnlab.imports import make_named_importable
from attnlab.ranking.protocol import NAME, Contestant, Protocol
from attnlab.training.main import variants_in_turn

LIBRARIES = ("attnlab", "torch")


def own_contestant(overrides: Sequence[str], protocol: Protocol) -> Contestant:
    """The contestant of the command line; BadInput if more than its attention differs."""
    words = variants_in_turn(list(overrides))
    attention = [word for word in words if word.lstrip("+").startswith(("attn=", "attn."))]
    rest = tuple(word for word in words if word not in attention)
    partners = {arm.overrides[1:]: arm for arm in [*protocol.arms.values()][::-1] if
                arm.overrides[0] == "attn=sdpa" and not arm.control}  # fmt: skip
    if rest not in partners or not attention:
        others = " or ".join(" ".join(key) for key in partners if key)
        raise BadInput(
            f"{' '.join(rest or overrides)} cannot be ranked: only settings of attn may change, "
            f"as in attn=gate_head{f', and {others}' if others else ''}"
        )
    make_named_importable(attention)
    given = any(word.startswith("attn=") for word in attention)
    return Contestant(
        name=" ".join(re.sub(r"^\+*attn(\._target_)?=", "", word) for word in words),
        says="yours",
        overrides=(*([] if given else ["attn=sdpa"]), *attention, *rest),
        partner=partners[rest].name,
        own=True,
    )


def code_of(attn: DictConfig, paths: Paths) -> str:
    """A digest of the files of a contestant without published rows, once its model was built.

    It covers the modules that its configuration names, what they import from the same directories,
    the files in and beside the user's configuration, and attnlab. If one of them changes, it is
    another contestant, whose runs are made again.
    """
    loaded = {n: Path(f) for n, m in sys.modules.items() if (f := vars(m).get("__file__"))}
    named = {name.partition(".")[0] for name in _dotted(attn)}
    files = {f for n, f in loaded.items() if n.partition(".")[0] in named.difference(LIBRARIES)}
    beside = {file.parent for file in files if "site-packages" not in file.parts}
    files |= {file for file in loaded.values() if file.parent in beside}
    if (conf := paths.config_dir) is not None:
        files |= {*conf.rglob("*.yaml"), *conf.rglob("*.py"), *conf.parent.glob("*.py")}
    content = [file.read_bytes() for file in sorted(files)]
    content.append(sources_digest(paths, NAME).encode())
    return sha256(b"\0".join(content)).hexdigest()[:8]


def _dotted(config: Any) -> Iterator[str]:
    """The strings of a configuration that may name something in a module."""
    if isinstance(config, str):
        parts = config.split(".")
        yield from [config] if parts[1:] and all(map(str.isidentifier, parts)) else []
    elif isinstance(config, ListConfig | DictConfig):
        for value in config.values() if isinstance(config, DictConfig) else config:
            yield from _dotted(value)


def has_convolution(net: nn.Module) -> bool:
    """Whether a layer has an `nn.Conv1d`, or weights that are named `conv` as in our layers."""
    names = {name.rpartition(".")[2] for name, _ in net.named_parameters()}
    return "conv" in names or any(isinstance(layer, nn.Conv1d) for layer in net.modules())
