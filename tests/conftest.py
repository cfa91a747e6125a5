"""Shared by the tests: one thread, fixed seeds, a small text, and short runs."""

import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import HealthCheck
from hypothesis import settings as examples
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attnlab.rng import seed_default

ROOT = Path(__file__).parents[1]
CONF = ROOT / "conf"
VARIANTS = sorted(file.stem for file in (CONF / "attn").glob("*.yaml"))  # with hybrid
SMALL = (
    "model.n_layer=2 model.n_head=2 model.n_embd=16 model.block_size=16 data=text "
    "data.batch_size=4 probes=none logger=none optim.warmup_steps=2 trainer.max_steps=4 "
    "trainer.val_check_interval=2 trainer.accelerator=cpu"
).split()

# No test is timed, and every run of the tests tries the same examples.
examples.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
examples.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose name another process cannot repeat: CI calls slow tests by name."""
    for item in items:
        if re.search(r"0x[0-9a-f]{6}", item.nodeid) or str(ROOT) in item.name:
            raise pytest.UsageError(
                f"{item.nodeid}: pass `ids=`; this name differs in each process"
            )


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Tests run in parallel processes, so more threads would compete for the cores."""
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"  # of subprocesses


@pytest.fixture(autouse=True, scope="session")
def hears_ctrl_c() -> None:
    """A shell starts what runs in its background without SIGINT, and programs inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    """The same random numbers in every test; no determinism is left behind by a Trainer."""
    seed_default(0, torch.device("cpu"))
    yield
    torch.use_deterministic_algorithms(False)


@cache
def composed(groups: tuple[str, ...]) -> DictConfig:
    """Hydra's composition of conf/train.yaml, which takes a tenth of a second."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("train", overrides=list(groups))


def settings(*overrides: str) -> DictConfig:
    """What Hydra composes from the overrides: files once for all tests, then values."""
    kept = [o for o in overrides if o[0] in "+~" or "@" in o or (CONF / o.split("=")[0]).is_dir()]
    cfg = deepcopy(composed(tuple(kept)))
    values = [override for override in overrides if override not in kept]
    try:
        for value in OverridesParser.create().parse_overrides(values):
            OmegaConf.update(cfg, value.key_or_group, value.value(), merge=True)
    except OmegaConfBaseException:
        return deepcopy(composed(overrides))  # or Hydra's own error
    return cfg


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text of 4,000 characters over 29 symbols."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "sphinx", "\n"]
    picks = torch.randint(len(words), (1200,), generator=torch.Generator().manual_seed(0))
    file.write_text(" ".join(words[i] for i in picks)[:4000])
    return file


def on_text(text: Path, overrides: Sequence[str]) -> list[str]:
    """The settings of a short run on a text, unless the overrides choose other data."""
    own = any(override.startswith("data=") for override in overrides)
    return [*SMALL, *([] if own else [f"data.path={text}"])]


@pytest.fixture
def small(text_file: Path) -> Callable[..., DictConfig]:
    """Compose a configuration that trains in a fraction of a second: small("attn=manual")."""
    return lambda *overrides: settings(*on_text(text_file, overrides), *overrides)


@pytest.fixture
def train(small: Callable[..., DictConfig], tmp_path: Path) -> Callable[..., Any]:
    """Train it, and return its RunOutcome: train("attn=manual", folder="a")."""

    def go(*overrides: str, folder: str = "run") -> Any:
        from attnlab.training.config import read_config
        from attnlab.training.run import run

        chosen = [o.removeprefix("attn=") for o in overrides if o.startswith("attn=")]
        variant = chosen[0] if chosen else "sdpa"
        config = read_config(small(*overrides))
        return run(config, tmp_path / folder, variant=variant, overrides=overrides)

    return go
