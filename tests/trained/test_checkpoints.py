"""A trained model is opened in one reading, with all that its checkpoint holds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from attnlab.data.alphabets import to_plain
from attnlab.trained.checkpoints import open_model
from tests.cli import attnlab


def test_an_opened_model_is_the_trained_one(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train("attn=unscaled", "model.n_layer=1")
    opened = open_model(run.folder)
    assert isinstance(opened.net, nn.Module) and not opened.net.training
    assert opened.settings["variant"] == "unscaled" and opened.settings["model"]["n_layer"] == 1
    content = torch.load(run.folder / "checkpoints/last.ckpt", weights_only=True)
    assert to_plain(opened.alphabet) == content["attnlab"]["alphabet"]
    assert opened.text == content["attnlab"]["text"]
    for name, weight in opened.net.state_dict().items():
        assert weight.equal(content["state_dict"][f"net.{name}"])


@pytest.mark.parametrize("verb", ["sample", "look", "evaluate", "checkup"])
def test_a_verb_reads_the_checkpoint_once(
    verb: str, train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = train().folder
    read = []
    load = torch.load

    def counted(file: object, **options: Any) -> object:
        read.append(file)
        return load(file, **options)

    monkeypatch.setattr(torch, "load", counted)
    assert attnlab(verb, str(folder), "--trust").code == 0
    assert len(read) == 1
