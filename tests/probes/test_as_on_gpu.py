"""Models, the loss, measures, probes and whole runs on a device that behaves as a GPU: no tensor
stays on the CPU, and no operation lacks a deterministic implementation on CUDA."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn

from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.probes import measures
from attnlab.probes.base import Probe
from attnlab.probes.capture import first_nonfinite, mean_future_mass, scalars, views
from attnlab.training.config import RunConfig, read_config
from attnlab.training.run import run
from tests.attention.layers import VARIANTS
from tests.gpu import META, AsOnCuda, as_on_gpu
from tests.probes.test_capture import IDS, gpt
from tests.probes.test_measures import CAUSAL, PAST, ROWS, WHOLE


def trains_and_is_measured(net: nn.Module, device: torch.device) -> None:
    """A forward and a backward pass with the loss, and all measures of all layers."""
    net.to(device).train()
    ids = IDS.to(device)
    F.cross_entropy(net(ids).flatten(0, 1), ids.flatten()).backward()
    scalars(views(net, ids))
    mean_future_mass(net, ids)
    assert first_nonfinite(net, ids) is None


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_model_trains_and_is_measured(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = gpt(variant)
    with as_on_gpu(monkeypatch):
        trains_and_is_measured(net, META)
    for name, parameter in net.named_parameters():
        assert parameter.grad is not None and parameter.grad.device == META, name


@pytest.mark.parametrize("positions", ["sinusoidal", "none"])
def test_a_model_trains_with_other_positions(
    positions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = gpt("sdpa", positions=positions)
    with as_on_gpu(monkeypatch):
        trains_and_is_measured(net, META)


# ---- planted errors in a layer


class WithTensorOfCPU(SelfAttention):
    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.factors = torch.ones(config.n_embd)  # no buffer: it stays when the model moves

    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return super().forward(x * self.factors, *memo)


class WithRangeOfCPU(SelfAttention):
    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return super().forward(x + torch.arange(x.shape[1])[:, None], *memo)


class WithCumsum(SelfAttention):
    def forward(self, x: Tensor, *memo: Any) -> Tensor:
        return super().forward(x.cumsum(1), *memo)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (WithTensorOfCPU, "mixes tensors"),
        (WithRangeOfCPU, "mixes tensors"),
        (WithCumsum, "cumsum has no deterministic"),
    ],
)
def test_a_planted_error_in_a_layer_fails(
    layer: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = gpt(layer)
    with as_on_gpu(monkeypatch), pytest.raises(RuntimeError, match=message):
        trains_and_is_measured(net, META)


# ---- measures

GIVEN: dict[str, tuple[Any, ...]] = {name: (PAST, CAUSAL) for name in ROWS} | {
    name.split(" of ")[0]: given for name, (_, given, _) in WHOLE.items()
}


def moved(given: tuple[Any, ...]) -> list[Any]:
    return [x.to(META) if isinstance(x, Tensor) else x for x in given]


@pytest.mark.parametrize("name", GIVEN)
def test_a_measure_runs_as_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = getattr(measures, name)
    with AsOnCuda():
        shape = function(*GIVEN[name]).shape
    with as_on_gpu(monkeypatch):
        found = function(*moved(GIVEN[name]))
    assert found.device == META and found.shape == shape


def keys_for_half(pattern: Tensor, mask: Tensor) -> Tensor:
    """A measure with an error: `cumsum` raises on CUDA."""
    weights = pattern.sort(descending=True).values
    return ((weights.cumsum(-1) < 0.5).sum(-1) + 1.0).mean((0, 2))


def future_by_mask_of_cpu(pattern: Tensor, mask: Tensor) -> Tensor:
    later = torch.ones(*mask.shape).triu(1)
    return (pattern * later).sum((0, 2, 3))


@pytest.mark.parametrize("function", [keys_for_half, future_by_mask_of_cpu])
def test_a_planted_error_in_a_measure_fails(
    function: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    function(PAST, CAUSAL)
    planted = measures.Measure(function, ("pattern", "mask"), "planted")
    monkeypatch.setattr("attnlab.probes.capture.MEASURES", (*measures.MEASURES, planted))
    net = gpt("sdpa")
    with as_on_gpu(monkeypatch), pytest.raises(RuntimeError):
        trains_and_is_measured(net, META)


# ---- runs


class OnMeta(CPUAccelerator):
    def setup_device(self, device: torch.device) -> None:
        """The meta device needs no preparation."""


def on_gpu(config: RunConfig) -> RunConfig:
    """The configuration with a Trainer on the meta device. Its optimizer does not use AdamW's
    fused kernel, which PyTorch has for real devices only."""

    def optimizer(net: nn.Module, steps: int) -> Any:
        made, schedule = config.optimizer(net, steps)
        for group in made.param_groups:
            group["fused"] = False
        return made, schedule

    strategy: Any = SingleDeviceStrategy(device=META, accelerator=OnMeta())
    trainer = functools.partial(config.trainer, accelerator="auto", strategy=strategy)
    return dataclasses.replace(config, trainer=trainer, optimizer=optimizer)


SHORT = (
    "model.n_layer=1 model.block_size=8 trainer.max_steps=2 trainer.val_check_interval=2 "
    "optim.warmup_steps=1"
)
PROBES = (
    "probes.patterns.heads=true probes.gradients.every=1 probes.history.chars=6 "
    "probes.history.steps=2 probes.history.windows=2 probes.predictions.sample_chars=2"
)
RUNS = {
    "default": f"probes=default {PROBES} logger=tensorboard model.dropout=0.1",
    "muon": "optim=muon model.n_layer=2",
    "task": "data=copy data.symbols=2 probes=curve probes.curve.every=1 probes.curve.sequences=2",
}


@pytest.mark.parametrize("overrides", RUNS.values(), ids=RUNS.keys())
def test_a_run_trains_as_on_a_gpu(
    overrides: str, small: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = on_gpu(read_config(small(*SHORT.split(), *overrides.split())))
    with as_on_gpu(monkeypatch):
        result = run(config, tmp_path / "run", variant="sdpa")
    assert result.metrics["status"] == "finished" and result.metrics["steps"] == 2


class CountsByCumsum(Probe):
    def on_train_batch_end(self, trainer: Any, lit: Any, *_: Any) -> None:
        float(lit.net.wte.weight.detach().cumsum(0)[-1].sum())


class KeepsOnCPU(Probe):
    def on_train_batch_end(self, trainer: Any, lit: Any, *_: Any) -> None:
        float((lit.net.wte.weight.detach() * torch.ones(lit.net.wte.embedding_dim)).sum())


@pytest.mark.parametrize("probe", [CountsByCumsum, KeepsOnCPU])
def test_a_planted_error_in_a_probe_fails(
    probe: Any, small: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = on_gpu(read_config(small(*SHORT.split())))
    config = dataclasses.replace(config, callbacks=[functools.partial(probe)])
    with as_on_gpu(monkeypatch), pytest.raises(RuntimeError, match=r"cumsum|mixes"):
        run(config, tmp_path / "run", variant="sdpa")
