"""From an arm's overrides to a resolved configuration and the directory of its runs."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnlab.claims.claim import Claim, Prediction, Trained
from attnlab.claims.paths import Paths
from attnlab.errors import BadInput
from attnlab.imports import make_importable
from attnlab.runs.run_directory import folder_for, variant_of
from attnlab.runs.settings import fingerprint, settings_with
from attnlab.training.main import in_a_sentence

NOT_AN_ARMS = [*settings_with("place"), "seed"]  # `reproduce` sets them


@dataclass(frozen=True)
class ResolvedConfig:
    """The configuration of an arm, without a seed."""

    overrides: tuple[str, ...]  # what Hydra composes it from
    digest: str  # of settings and corpus; equal arms of different claims have equal digests
    variant: str  # the file of conf/attn
    settings: dict[str, Any]
    corpus: str  # its name

    def run_directory(self, seed: int, runs: Path) -> Path:
        """The run directory of a seed, named by its overrides and made unique by the digest."""
        named = [o for o in self.overrides if not o.startswith(("experiment=", "attn="))]
        cfg = OmegaConf.create({"name": runs.name, "outputs": str(runs.parent), "seed": seed})
        plain = folder_for(cfg, self.variant, named)
        return runs / f"{plain.parent.name}~{self.digest[:8]}" / plain.name


@contextmanager
def hydra_conf(conf: Path) -> Iterator[None]:
    """Make a directory the one from which `compose_config` composes."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(conf.resolve()), version_base="1.3"):
        yield


def compose_config(
    overrides: Sequence[str], seed: int, experiments: Path, config_dir: Path | None = None
) -> tuple[DictConfig, str]:
    """The composed configuration of one run, and its variant; BadInput if Hydra cannot compose it.

    Files in `config_dir` are found too and, if the overrides include `experiment=<claim>`, those
    in `<claim>/conf`.
    """
    claims = [o.removeprefix("experiment=") for o in overrides if o.startswith("experiment=")]
    own = [conf for claim in claims if (conf := experiments / claim / "conf").is_dir()]
    own += [] if config_dir is None else [config_dir]
    listed = ",".join(f"'{conf.resolve()}'" for conf in own)
    added = [f"hydra.searchpath=['attnlab://periods',{listed}]"] if own else []
    for conf in own:
        make_importable(conf)
    try:
        chosen = [*added, *overrides, f"seed={seed}"]
        cfg = compose("train", chosen, return_hydra_config=True)
        variant = variant_of(str(cfg.hydra.runtime.choices.attn))
        with open_dict(cfg):
            del cfg["hydra"]
    except (HydraException, OmegaConfBaseException) as error:
        typed, said = " ".join(overrides), in_a_sentence(error)
        named = any(override in said for override in overrides)
        raise BadInput(said if named else f"{typed} cannot be composed: {said}") from error
    return cfg, variant


class ConfigResolver:
    """Resolves the overrides of arms and caches the results; `hydra_conf` must be open."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths
        self.resolved: dict[tuple[str, ...], ResolvedConfig] = {}
        self.corpora: dict[str, tuple[str, str]] = {}

    def __call__(self, overrides: tuple[str, ...]) -> ResolvedConfig:
        """Resolve overrides; BadInput if Hydra cannot compose them, or `reproduce` sets one of
        them."""
        if overrides in self.resolved:
            return self.resolved[overrides]
        for override in overrides:
            if override.partition("=")[0] in NOT_AN_ARMS:
                raise BadInput(f"an arm must not set {override}; attnlab reproduce sets it")
        cfg, variant = compose_config(overrides, 0, self.paths.experiments, self.paths.config_dir)
        settings = OmegaConf.to_container(cfg, resolve=True)
        assert isinstance(settings, dict)
        content = {str(key): x for key, x in settings.items() if key not in NOT_AN_ARMS}
        corpus, sha256 = self._corpus(content["data"])
        # The content of a text file may change, so the digest includes it.
        digest = fingerprint(content, sha256)[:12]
        self.resolved[overrides] = ResolvedConfig(overrides, digest, variant, content, corpus)
        return self.resolved[overrides]

    def arms(self, claim: Claim, *predictions: Prediction) -> dict[str, ResolvedConfig]:
        """The arms of a claim, or of some of its predictions: name -> configuration."""
        return {
            arm.name: self((f"experiment={claim.name}", *arm.overrides))
            for prediction in predictions or claim.predictions
            if isinstance(prediction, Trained)
            for arm in prediction.arms
        }

    def _corpus(self, data: dict[str, Any]) -> tuple[str, str]:
        from attnlab.training.factories import data_factory

        key = json.dumps(data, sort_keys=True)
        if key not in self.corpora:
            corpus = data_factory(OmegaConf.create(data))()
            self.corpora[key] = (str(corpus.record["name"]), corpus.sha256)
        return self.corpora[key]
