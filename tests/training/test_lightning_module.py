"""The module of a GPT by itself."""

import math

import torch

from attnlab.training.config import read_config
from attnlab.training.lightning_module import GPTModule
from attnlab.training.run import make_module
from tests.conftest import settings


def test_the_accuracy_of_a_diverged_model_is_nan() -> None:
    config = read_config(settings("preset=tasks", "data=induction", "model.block_size=16"))
    module = make_module(config, config.data())
    assert isinstance(module, GPTModule)
    assert 0 <= module.accuracy() < 0.2
    with torch.no_grad():
        module.net.wte.weight[3] = math.nan
    assert math.isnan(module.accuracy())
