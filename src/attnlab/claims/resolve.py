"""From an arm's overrides to a resolved configuration and the folder of its run."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import BadInput
from attnlab.files import make_importable, read_json, write_json
from attnlab.training.run_directory import folder_for, variant_of

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


def config_of(
    overrides: Sequence[str], seed: int, experiments: Path | None = None
) -> tuple[DictConfig, str]:
    """The composed configuration of one run, and its variant.

    Args:
        overrides: as an arm has them, `experiment=<claim>` among them.
        seed: of the run.
        experiments: the folder of the claims; `<claim>/conf` there adds files of its own.

    Raises:
        BadInput: Hydra cannot compose it.
    """
    claims = [o.removeprefix("experiment=") for o in overrides if o.startswith("experiment=")]
    own = [experiments / claim / "conf" for claim in claims] if experiments else []
    added = [f"hydra.searchpath=['{conf.resolve()}']" for conf in own if conf.is_dir()]
    for conf in own:
        if conf.is_dir():
            make_importable(conf)
    try:
        chosen = [*added, *overrides, f"seed={seed}"]
        cfg = compose("train", chosen, return_hydra_config=True)
        variant = variant_of(str(cfg.hydra.runtime.choices.attn))
        OmegaConf.set_struct(cfg, False)
        del cfg["hydra"]
        OmegaConf.set_struct(cfg, True)
    except (HydraException, OmegaConfBaseException) as error:
        sentence = " ".join(str(error).split())
        raise BadInput(f"{' '.join(overrides)} cannot be composed: {sentence}") from error
    return cfg, variant


def cell_of(overrides: Sequence[str], experiments: Path | None = None) -> Cell:
    """Resolve overrides.

    Raises:
        BadInput: Hydra cannot compose them, or they set what names a run.
    """
    for override in overrides:
        if override.partition("=")[0] in NOT_OF_THE_CONTENT:
            raise BadInput(f"an arm cannot set {override}: reproduce names and seeds its runs")
    cfg, variant = config_of(overrides, 0, experiments)
    settings = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(settings, dict)
    content = {str(k): v for k, v in settings.items() if k not in NOT_OF_THE_CONTENT}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
    return Cell(tuple(overrides), digest, variant, content)


class Cells:
    """Resolves overrides, and keeps what it resolved: Hydra takes a tenth of a second for each.

    Args:
        conf: Hydra's folder; whatever changes in it empties the file.
        file: where cells are kept between calls.
        experiments: the folder of the claims, which may have configuration files of their own.
    """

    def __init__(self, conf: Path, file: Path, experiments: Path) -> None:
        self.file = file
        self.experiments = experiments
        content = hashlib.sha256()
        for part in sorted([*conf.rglob("*.yaml"), *experiments.glob("*/conf/**/*.yaml")]):
            content.update(str(part).encode() + b"\0" + part.read_bytes())
        self.conf = content.hexdigest()
        self.kept: dict[str, dict[str, Any]] = {}
        self.corpora: dict[str, str] = {}
        self.fresh = False
        try:
            stored = read_json(file)
            if stored["conf"] == self.conf:
                self.kept = stored["cells"]
        except (OSError, ValueError, KeyError):
            pass  # nothing kept, or nothing that can be read: everything is resolved again

    def __call__(self, overrides: tuple[str, ...]) -> Cell:
        """The cell of overrides, as `cell_of` has it."""
        key = " ".join(overrides)
        if key not in self.kept:
            cell = cell_of(overrides, self.experiments)
            content = {"digest": cell.digest, "variant": cell.variant, "settings": cell.settings}
            self.kept[key] = content
            self.fresh = True
        cell = Cell(overrides, **self.kept[key])
        # A text file may hold another text now: a run belongs to the text that it reads.
        content_of_both = cell.digest + self._corpus(cell.settings["data"])
        return replace(cell, digest=hashlib.sha256(content_of_both.encode()).hexdigest()[:12])

    def _corpus(self, data: dict[str, Any]) -> str:
        from attnlab.training.config import data_factory

        key = json.dumps(data, sort_keys=True)
        if key not in self.corpora:
            self.corpora[key] = data_factory(OmegaConf.create(data))().sha256
        return self.corpora[key]

    def save(self) -> None:
        """Write what was resolved since the file was read."""
        if self.fresh:
            write_json(self.file, {"conf": self.conf, "cells": self.kept})


def setting(settings: dict[str, Any], dotted: str) -> Any:
    """A value under a dotted key; None where there is none."""
    node: Any = settings
    for key in dotted.split("."):
        if not isinstance(node, dict) or key not in node:
            return None
        node = node[key]
    return node
