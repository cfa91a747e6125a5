"""Weights, losses and names of parameters equal those of the code before the reduction."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnlab.training.lightning_module as lightning_module
from attnlab.files import read_json
from attnlab.rng import stream_seed
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.conftest import SMALL, settings
from tests.old import old_code

RUNS = {
    "sdpa": ["model.dropout=0.1"],
    "unscaled": ["model.init=gpt2", "model.bias=true"],
    "manual": ["model.dropout=0.1", "trainer.accumulate_grad_batches=2"],
    "rotary": ["optim=muon", "optim.min_lr=0", "model.norm=rms_norm"],
    "latent": ["trainer.precision=64-true"],
    "differential": ["trainer.precision=bf16-mixed", "model.n_layer=3"],
    "forgetting": ["data=induction", "data.length=16", "probes=default"],
    "gated_delta_net": [],
}
SHARED = [*SMALL, "data=plays", "data.length=5000", "optim.lr=2e-2", "checkpoint_every=7"]
SCRIPT = """
import sys
from pathlib import Path
from hydra import compose, initialize_config_dir
import torch
from attnlab.training.config import read_config
from attnlab.training.run import run
torch.set_num_threads(1)
for line in Path(sys.argv[2]).read_text().splitlines():
    variant, *overrides = line.split()
    with initialize_config_dir(sys.argv[1] + "/conf", version_base="1.3"):
        cfg = compose("train", [f"attn={variant}", *overrides])
    run(read_config(cfg), Path(sys.argv[2]).parent / variant, variant=variant)
"""
LOSSES = ("val_loss", "best_val_loss", "train_loss", "tokens", "parameters", "status")


def overrides_of(variant: str, steps: int) -> list[str]:
    lengths = [f"trainer.max_steps={steps}", f"trainer.val_check_interval={steps // 2}"]
    return [*SHARED, *lengths, *RUNS[variant]]


def trained_before(folder: Path, steps: int) -> None:
    """Train all variants with the old code, each in the directory of its name."""
    old = old_code()
    lines = (" ".join([variant, *overrides_of(variant, steps)]) for variant in RUNS)
    (folder / "runs.txt").write_text("\n".join(lines))
    environment = os.environ | {"PYTHONPATH": str(old / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(old), str(folder / "runs.txt")]
    subprocess.run(command, env=environment, check=True, cwd=folder, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module", params=[20, pytest.param(200, marks=pytest.mark.slow)])
def steps(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def before(steps: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("before")
    trained_before(folder, steps)
    return folder


def left(folder: Path) -> dict[str, Any]:
    """Losses, and the weights of both checkpoints by name, as bytes."""
    metrics = read_json(folder / "metrics.json")
    found: dict[str, Any] = {key: metrics[key] for key in LOSSES}
    for name in ("last", "best"):
        checkpoint = torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
        weights = checkpoint["state_dict"].items()
        found[name] = {key: (str(x.dtype), x.numpy().tobytes()) for key, x in weights}
    return found


def trained_now(variant: str, steps: int, folder: Path) -> dict[str, Any]:
    config = read_config(settings(f"attn={variant}", *overrides_of(variant, steps)))
    return left(run(config, folder, variant=variant).folder)


@pytest.mark.parametrize("variant", RUNS)
def test_a_variant_trains_to_the_same_bits(
    variant: str, steps: int, before: Path, tmp_path: Path
) -> None:
    assert trained_now(variant, steps, tmp_path) == left(before / variant)


def planted_seed(seed: int, stream: str, step: int = 0) -> int:
    return stream_seed(seed, stream, step + (step > 10))


def planted_loss(loss: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return lambda *a, **options: loss(*a, **options) * (1 + 2**-22)


@pytest.mark.parametrize("fault", ["dropout of one step", "a loss in its last digit"])
def test_a_small_error_is_seen(
    fault: str, steps: int, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "dropout of one step":
        monkeypatch.setattr(lightning_module, "stream_seed", planted_seed)
    else:
        entropy = lightning_module.F.cross_entropy
        monkeypatch.setattr(lightning_module.F, "cross_entropy", planted_loss(entropy))
    assert trained_now("sdpa", steps, tmp_path) != left(before / "sdpa")
