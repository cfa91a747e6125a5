"""`attn=[a,b]`: different variants in turn over the layers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import Callback

from attnlab.attention import AttentionConfig, SelfAttention, Variant
from attnlab.attention.variant import PerLayer
from attnlab.errors import BadInput
from attnlab.files import read_yaml
from attnlab.probes.capture import views
from attnlab.runs.run_directory import variant_of
from attnlab.training.checkpoints import load_model
from attnlab.training.config import read_config
from attnlab.training.main import variants_in_turn
from tests.conftest import settings, weights_of

Train = Callable[..., Any]
LISTED = "attn=sliding_window+sdpa"
SIZES = ("model.n_layer=3", "model.n_head=2", "model.n_embd=16", "model.block_size=16")


def test_layers_take_the_variants_in_turn() -> None:
    """Layer 0 sees a window, layer 1 everything before it, layer 2 a window again."""
    net = read_config(settings(*SIZES, LISTED)).model(11)
    seen = [view.pattern[0, 0, -1] > 0 for view in views(net, torch.arange(16)[None] % 11)]
    assert [int(keys.sum()) for keys in seen] == [8, 16, 8]


def test_a_factory_of_python_does_the_same() -> None:
    make = PerLayer([Variant(SelfAttention, {"window": 2}), SelfAttention])
    layers = [make(AttentionConfig(8, 2, 4, layer=number)) for number in range(3)]
    assert [layer.window for layer in layers] == [2, None, 2]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["attn=[a,b]", "seed=0"], ["attn=a+b", "seed=0"]),
        (["attn=sdpa,[a, b]"], ["attn=sdpa,a+b"]),
        (["attn=[a,b]", "attn.window=4,8"], ["attn=a+b", "++attn.window=4,8"]),
        (["attn=[a,b]", "attn.layers.1.window=4"], ["attn=a+b", "attn.layers.1.window=4"]),
        (["attn=sdpa", "attn.window=4"], ["attn=sdpa", "attn.window=4"]),
    ],
)
def test_a_list_on_the_command_line(words: list[str], expected: list[str]) -> None:
    assert variants_in_turn(words) == expected


def test_a_key_beside_a_list_goes_to_every_layer_that_has_it() -> None:
    config = read_config(settings(*SIZES, LISTED, "++attn.window=4"))
    layers = config.settings["attn"]["layers"]
    assert [layers[number]["window"] for number in ("0", "1")] == [4, 4]
    assert list(config.settings["attn"]) == ["layers"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["++attn.nope=1"], "attn.nope is not a setting of any of the variants in attn"),
        (["model.n_layer=1"], "attn lists 2 variants for model.n_layer = 1 layers; list at most"),
        (["++attn.scale=abc"], "attn.layers.0.scale = abc must be a number"),
    ],
)
def test_what_no_layer_can_use_is_refused(overrides: list[str], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        read_config(settings(*SIZES, LISTED, *overrides))


def test_the_run_directory_names_the_list() -> None:
    assert variant_of("sliding_window+sdpa") == "sliding_window+sdpa"


def test_a_run_with_a_list_resumes_to_the_same_bits_and_loads(
    train: Train, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    length = (LISTED, "checkpoint_every=1")
    train(*length, folder="whole")

    def stop(self: Callback, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr("attnlab.training.callbacks.Clock.on_train_batch_end", stop)
        train(*length, folder="broken")
    resumed = train(*length, folder="broken")
    assert resumed.metrics["status"] == "finished"
    whole, broken = (weights_of(tmp_path / name) for name in ("whole", "broken"))
    assert all(torch.equal(whole[name], broken[name]) for name in whole)
    stored = read_yaml(resumed.folder / ".hydra" / "config.yaml")["attn"]
    assert [layer["window"] for layer in stored["layers"].values()] == [8, None]
    net, _ = load_model(resumed.folder)
    assert [block.attn.window for block in net.blocks] == [8, None]
    begun = train(LISTED, f"init_from={resumed.folder}", folder="begun")
    assert begun.metrics["status"] == "finished"


def test_the_kernels_of_all_layers_are_recorded(train: Train) -> None:
    assert train("attn=sdpa+linear").metrics["attention"] == "sdpa, linear"
