"""What metrics.json says of a run: the losses, and what the probes measured."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from attnlab.data.batches import ValidationBatches
from attnlab.training.callbacks import Clock
from attnlab.training.checkpoints import load_model
from attnlab.training.config import read_config
from attnlab.training.lightning_module import GPTModule
from attnlab.training.metrics import measured
from attnlab.training.run import make_module

Train = Callable[..., Any]


def test_a_loss_in_bf16_is_summed_in_fp32(train: Train, small: Callable[..., Any]) -> None:
    run = train("trainer.precision=bf16-true")
    net = load_model(run.folder)[0].bfloat16()
    losses = []
    for x, y in ValidationBatches(read_config(small()).data().val, net.block_size):
        with torch.no_grad():
            log_p = net(x).double().log_softmax(-1)
        losses.append(-log_p.gather(-1, y[..., None]).flatten())
    assert run.metrics["val_loss"] == pytest.approx(float(torch.cat(losses).mean()), rel=1e-5)


@pytest.mark.parametrize("probes", ["default", "checkup"])
def test_a_run_killed_before_its_metrics_keeps_the_measurements_of_its_probes(
    probes: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(f"probes={probes}", folder="whole")

    def killed(*_: Any) -> None:
        raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("attnlab.training.run.measured", killed)
        train(f"probes={probes}")
    run = train(f"probes={probes}")
    assert run.metrics["probes"] == whole.metrics["probes"] != {}


def test_a_task_is_measured_on_the_device_of_the_training(
    small: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lightning moves the module to the CPU after a fit on a GPU; meta stands for the GPU."""
    config = read_config(small("train_loss=false"))
    module = make_module(config, config.data())
    module.val_losses[0], clock = 2.0, Clock()
    clock.batches, clock.seconds = 1, 1.0

    def devices(self: GPTModule, seconds_a_batch: float) -> dict[str, Any]:
        return {"devices": {self.device.type, *(p.device.type for p in self.net.parameters())}}

    monkeypatch.setattr(GPTModule, "extra_metrics", devices)
    monkeypatch.setattr("attnlab.training.metrics.costs", lambda net: {})  # copies to the CPU
    trainer: Any = SimpleNamespace(
        strategy=SimpleNamespace(root_device=torch.device("meta")),
        precision_plugin=SimpleNamespace(forward_context=torch.no_grad),
        callbacks=[],
        global_step=0,
        accumulate_grad_batches=1,
    )
    assert measured(trainer, module, clock)["devices"] == {"meta"}


def test_the_file_of_the_users_schedule_is_recorded(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "decay_of_user.py").write_text("def falling(progress):\n    return 1 - progress\n")
    run = train("optim.decay=decay_of_user.falling")
    sys.modules.pop("decay_of_user")
    assert list(run.metrics["own_code"]) == ["decay_of_user"]
