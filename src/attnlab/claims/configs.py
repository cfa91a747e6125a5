"""From an arm's overrides to a resolved configuration and the directory of its runs."""

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

from attnlab.claims.claim import Claim, Prediction, Trained
from attnlab.claims.paths import Paths
from attnlab.errors import BadInput
from attnlab.files import make_importable, read_json, write_json
from attnlab.training.run_directory import fingerprint, folder_for, variant_of

NOT_AN_ARMS = ("name", "outputs", "force", "seed")  # `reproduce` sets them


@dataclass(frozen=True)
class ResolvedConfig:
    """The configuration of an arm, without a seed.

    Args:
        overrides: what Hydra composes it from.
        digest: of the resolved configuration and the corpus, as runs compute it; equal for equal
            arms of different claims.
        variant: the file of conf/attn.
        settings: the resolved configuration.
        corpus: name of the corpus.
    """

    overrides: tuple[str, ...]
    digest: str
    variant: str
    settings: dict[str, Any]
    corpus: str

    def run_directory(self, seed: int, runs: Path) -> Path:
        """Where the run of a seed goes: named by its overrides, made unique by the digest."""
        named = [o for o in self.overrides if not o.startswith(("experiment=", "attn="))]
        cfg = OmegaConf.create({"name": runs.name, "outputs": str(runs.parent), "seed": seed})
        plain = folder_for(cfg, self.variant, named)
        return runs / f"{plain.parent.name}~{self.digest[:8]}" / plain.name


@contextmanager
def hydra_conf(conf: Path) -> Iterator[None]:
    """Let `compose_config` compose from a directory."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
        yield


def compose_config(
    overrides: Sequence[str], seed: int, experiments: Path
) -> tuple[DictConfig, str]:
    """The composed configuration of one run, and its variant.

    Args:
        overrides: as an arm has them, `experiment=<claim>` among them.
        seed: of the run.
        experiments: the directory of the claims; `<claim>/conf` there adds files of its own.

    Raises:
        BadInput: Hydra cannot compose it.
    """
    claims = [o.removeprefix("experiment=") for o in overrides if o.startswith("experiment=")]
    own = [conf for claim in claims if (conf := experiments / claim / "conf").is_dir()]
    added = [f"hydra.searchpath=['{conf.resolve()}']" for conf in own]
    for conf in own:
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


class ConfigResolver:
    """Resolves the overrides of arms, and keeps the results: Hydra takes a tenth of a second each.

    Args:
        paths: the directories; any change of a configuration file there discards what was kept.
    """

    def __init__(self, paths: Paths) -> None:
        self.paths, self.file = paths, paths.outputs / "resolved_configs.json"
        digest = hashlib.sha256()
        own = paths.experiments.glob("*/conf/**/*.yaml")
        for file in sorted([*paths.conf.rglob("*.yaml"), *own]):
            digest.update(str(file).encode() + b"\0" + file.read_bytes())
        self.conf = digest.hexdigest()
        self.kept: dict[str, tuple[str, dict[str, Any]]] = {}  # overrides -> variant, settings
        self.resolved: dict[tuple[str, ...], ResolvedConfig] = {}
        self.corpora: dict[str, tuple[str, str]] = {}
        try:
            stored = read_json(self.file)
            if stored["conf"] == self.conf:
                self.kept = stored["kept"]
        except (OSError, ValueError, KeyError):
            pass  # nothing was kept, or it cannot be read: everything is resolved again

    def __call__(self, overrides: tuple[str, ...]) -> ResolvedConfig:
        """Resolve overrides.

        Raises:
            BadInput: Hydra cannot compose them, or they set what `reproduce` sets.
        """
        if overrides in self.resolved:
            return self.resolved[overrides]
        for override in overrides:
            if override.partition("=")[0] in NOT_AN_ARMS:
                raise BadInput(f"an arm cannot set {override}: reproduce names and seeds its runs")
        key = " ".join(overrides)
        if key not in self.kept:
            cfg, variant = compose_config(overrides, 0, self.paths.experiments)
            settings = OmegaConf.to_container(cfg, resolve=True)
            assert isinstance(settings, dict)
            self.kept[key] = (
                variant,
                {str(k): v for k, v in settings.items() if k not in NOT_AN_ARMS},
            )
        variant, content = self.kept[key]
        # A text file may hold another text now: a run belongs to the text that it reads.
        corpus, sha256 = self._corpus(content["data"])
        digest = fingerprint(OmegaConf.create(content), sha256)[:12]
        self.resolved[overrides] = ResolvedConfig(overrides, digest, variant, content, corpus)
        return self.resolved[overrides]

    def arms(self, claim: Claim, *predictions: Prediction) -> dict[str, ResolvedConfig]:
        """Name -> configuration of the arms of some predictions of a claim, by default of all."""
        return {
            arm.name: self((f"experiment={claim.name}", *arm.overrides))
            for prediction in predictions or claim.predictions
            if isinstance(prediction, Trained)
            for arm in prediction.arms
        }

    def save(self) -> None:
        """Keep what was resolved for the next call."""
        write_json(self.file, {"conf": self.conf, "kept": self.kept})

    def _corpus(self, data: dict[str, Any]) -> tuple[str, str]:
        from attnlab.training.config import data_factory

        key = json.dumps(data, sort_keys=True)
        if key not in self.corpora:
            corpus = data_factory(OmegaConf.create(data))()
            self.corpora[key] = (str(corpus.record["name"]), corpus.sha256)
        return self.corpora[key]
