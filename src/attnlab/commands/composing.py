"""Compose a configuration outside of train.py."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from attnlab.errors import BadInput
from attnlab.imports import make_importable
from attnlab.runs.run_directory import variant_of
from attnlab.training.main import in_a_sentence


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
