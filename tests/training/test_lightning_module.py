"""The LightningModule of a GPT."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.errors import BadInput
from attnlab.training.config import read_config
from attnlab.training.eval_lengths import by_position
from attnlab.training.lightning_module import GPTModule
from attnlab.training.run import make_module
from tests.conftest import settings
from tests.security import hostile


class Refusing(GPTModule):
    """A user's module that raises an error."""

    def __init__(self, *args: Any, **options: Any) -> None:
        raise ValueError("my own check")


def test_the_accuracy_of_a_diverged_model_is_nan() -> None:
    config = read_config(settings("preset=tasks", "data=induction", "model.block_size=16"))
    module = make_module(config, config.data())
    assert isinstance(module, GPTModule)
    T = module.net.block_size

    def accuracy() -> float:
        return float(by_position(module.net, module.held_out("val"), T)["accuracy"])

    assert 0 <= accuracy() < 0.2
    with torch.no_grad():
        module.net.wte.weight[3] = math.nan
    assert math.isnan(accuracy())


def test_loading_distinguishes_a_missing_setting_from_an_error_in_a_module(tmp_path: Path) -> None:
    content = hostile.checkpoint()
    run = hostile.run(tmp_path / "whole", hostile.saved(content))
    with pytest.raises(ValueError, match="my own check"):
        Refusing.load_from_checkpoint(run)
    del content["attnlab"]["recipe"]["config"]["seed"]
    run = hostile.run(tmp_path / "seedless", hostile.saved(content))
    with pytest.raises(BadInput, match="does not say its batch_size and seed"):
        Refusing.load_from_checkpoint(run)
