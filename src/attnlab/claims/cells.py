"""From an arm's overrides to a resolved configuration and the folder of its run."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import BadInput
from attnlab.training.folder import folder_for

NOT_OF_THE_CONTENT = ("name", "outputs", "force", "seed")


@dataclass(frozen=True)
class Cell:
    """A configuration without its seed.

    Args:
        overrides: what Hydra composes it from.
        digest: of the resolved configuration; equal for equal cells of different claims.
        variant: the file of conf/attn.
        settings: the resolved configuration.
    """

    overrides: tuple[str, ...]
    digest: str
    variant: str
    settings: dict[str, Any]

    def folder(self, seed: int, runs: Path) -> Path:
        """Where the run of a seed goes: named by what was overridden, unique by the digest."""
        named = [o for o in self.overrides if not o.startswith(("experiment=", "attn="))]
        cfg = OmegaConf.create({"name": runs.name, "outputs": str(runs.parent), "seed": seed})
        plain = folder_for(cfg, self.variant, named)
        return runs / f"{plain.parent.name}~{self.digest[:8]}" / plain.name


@contextmanager
def hydra_conf(conf: Path) -> Iterator[None]:
    """Let `cell_of` and `config_of` compose from a folder."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
        yield


def config_of(overrides: Sequence[str], seed: int) -> tuple[DictConfig, str]:
    """The composed configuration of one run, and its variant.

    Raises:
        BadInput: Hydra cannot compose it.
    """
    try:
        cfg = compose("train", [*overrides, f"seed={seed}"], return_hydra_config=True)
        variant = str(cfg.hydra.runtime.choices.attn)
        OmegaConf.set_struct(cfg, False)
        del cfg["hydra"]
        OmegaConf.set_struct(cfg, True)
    except (HydraException, OmegaConfBaseException) as error:
        sentence = " ".join(str(error).split())
        raise BadInput(f"{' '.join(overrides)} cannot be composed: {sentence}") from error
    return cfg, variant


def cell_of(overrides: Sequence[str]) -> Cell:
    """Resolve overrides.

    Raises:
        BadInput: Hydra cannot compose them, or they set what names a run.
    """
    for override in overrides:
        if override.partition("=")[0] in NOT_OF_THE_CONTENT:
            raise BadInput(f"an arm cannot set {override}: reproduce names and seeds its runs")
    cfg, variant = config_of(overrides, seed=0)
    settings = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(settings, dict)
    content = {str(k): v for k, v in settings.items() if k not in NOT_OF_THE_CONTENT}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return Cell(tuple(overrides), digest, variant, content)


def setting(settings: dict[str, Any], dotted: str) -> Any:
    """A value under a dotted key; None where there is none."""
    node: Any = settings
    for key in dotted.split("."):
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    return node
