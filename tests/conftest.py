"""Shared by the tests: one thread per process, small texts, and short runs."""

import os
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hypothesis import HealthCheck
from hypothesis import settings as examples
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.rng import seed_default

ROOT = Path(__file__).parent.parent
CONF = ROOT / "conf"
VARIANTS = sorted(file.stem for file in (CONF / "attn").glob("*.yaml"))
TRAINABLE = [variant for variant in VARIANTS if variant != "flex"]  # on a CPU
VALUE = re.compile(r"(?!hydra\.)[a-z]\w*(\.\w+)*=")  # an override that adds or removes nothing
SMALL = [
    "model.n_layer=2",
    "model.n_head=2",
    "model.n_embd=16",
    "model.block_size=16",
    "data=text",
    "data.batch_size=4",
    "probes=none",
    "trainer.max_steps=4",
    "trainer.val_check_interval=2",
    "optim.warmup_steps=2",
]

# No test is timed, and a machine may stand still for a moment. The same examples every time, so
# that a failure is the change's; `make test-all` searches on, with --hypothesis-profile=search.
examples.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
examples.register_profile("repeatable", examples.get_profile("search"), derandomize=True)
examples.load_profile("repeatable")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests run in parallel processes, so more threads would compete for the cores."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def seeded() -> None:
    """PyTorch uses a different seed in every process, but a failure must be reproducible."""
    seed_default(0, torch.device("cpu"))


@pytest.fixture(autouse=True)
def no_determinism_left() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


def settings(*overrides: str) -> DictConfig:
    """The composed configuration of conf/train.yaml.

    Composing takes a tenth of a second, so it is done once for each choice of files. A file of
    conf/attn changes nothing outside of `attn`, so these are merged here; tests/contracts/
    test_conf.py compares them with Hydra's. Values are set afterwards, as Hydra does.
    """
    values = [o for o in overrides if VALUE.match(o) and not (CONF / o.partition("=")[0]).is_dir()]
    files = tuple(o for o in overrides if o not in values)
    variants = [o for o in files if o.removeprefix("attn=") in VARIANTS]
    others = tuple(o for o in files if o not in variants)
    if len(variants) == 1 and not any("attn" in o for o in others):
        cfg = deepcopy(_composed(others))
        cfg.attn = deepcopy(of_variant(variants[0].removeprefix("attn=")))
        OmegaConf.set_struct(cfg.attn, None)  # as the whole
    else:
        cfg = deepcopy(_composed(files))
    try:
        for value in map(_parsed, values):
            OmegaConf.update(cfg, value.key_or_group, value.value(), merge=True)
    except OmegaConfBaseException:
        return deepcopy(_composed(overrides))  # or Hydra's own error
    return cfg


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A configuration as the resolved values that a run stores."""
    values = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


@cache
def _parsed(override: str) -> Override:
    return OverridesParser.create().parse_override(override)


@cache
def of_variant(name: str) -> DictConfig:
    """A file of conf/attn, merged with the files that it names."""
    own = OmegaConf.load(CONF / "attn" / f"{name}.yaml")
    assert isinstance(own, DictConfig)
    bases = own.pop("defaults", [])
    merged = {str(key): value for base in bases for key, value in of_variant(base).items()}
    cfg = OmegaConf.create(merged | {str(key): value for key, value in own.items()})
    OmegaConf.set_struct(cfg, True)
    return cfg


@lru_cache(maxsize=256)
def _composed(overrides: tuple[str, ...]) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=list(overrides))


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 4,000 characters over 29 symbols."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    g = torch.Generator().manual_seed(0)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "sphinx", "\n"]
    picks = torch.randint(len(words), (1200,), generator=g)
    file.write_text(" ".join(words[i] for i in picks)[:4000])
    return file


@pytest.fixture
def small(text_file: Path) -> Callable[..., DictConfig]:
    """Compose a configuration that trains in a fraction of a second."""
    return lambda *overrides: settings(*SMALL, f"data.path={text_file}", *overrides)


@pytest.fixture
def train(small: Callable[..., DictConfig], tmp_path: Path) -> Callable[..., Any]:
    """Run a small configuration in a folder of its own: train("attn=manual", folder="a")."""

    def go(*overrides: str, folder: str = "run") -> Any:
        from attnlab.training.config import read_config
        from attnlab.training.run import run

        variants = [o.removeprefix("attn=") for o in overrides if o.startswith("attn=")]
        variant = variants[0] if variants else "sdpa"
        return run(
            read_config(small(*overrides)), tmp_path / folder, variant=variant, overrides=overrides
        )

    return go


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """The parameters in a run's last checkpoint."""
    file = folder / "checkpoints" / "last.ckpt"
    weights: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return weights
