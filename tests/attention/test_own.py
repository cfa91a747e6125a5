"""Layers of users: those of docs/own.md and of researchers train, and leaky twins are refused."""

import json
import re
import sys
from cProfile import Profile
from functools import partial
from pathlib import Path
from pstats import Stats
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

import attnlab
from attnlab.attention import AttentionConfig, SelfAttention
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.settings.bind import bind
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.attention.layers import C, H, T, randomized, settings, x_of
from tests.attention.researchers import LAYERS, FoX
from tests.cli import small_run
from tests.conftest import ROOT


def blocks(page: str, language: str = "python") -> list[str]:
    """The code of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the files of docs/own.md, which can be imported."""
    for name, code in zip(("my_attention", "papers"), blocks("own.md"), strict=True):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


CHANGES: list[dict[str, Any]] = [
    {"may_attend": "my_attention.strided"},
    {"score_mod": "my_attention.recent"},
    {"kernel": "my_attention.softpick"},
    {"_target_": "my_attention.TalkingHeads"},
    {"_target_": "my_attention.Both", "conv": 3, "gate": "channel"},
    {"_target_": ["GatedAttention", "ShortConvolution"], "conv": 3},
    {"_target_": ["my_attention.TalkingHeads", "ForgettingAttention", "ValueResidual"]},
    {"_target_": "my_attention.Tempered"},
    {"_target_": "my_attention.EvenScores"},
    {"_target_": "my_attention.SymbolValues", "head_size": 10},
    {"_target_": "my_attention.CostlyGate"},
    {"_target_": "my_attention.NearAndFar"},
    {"_target_": "papers.PaTH"},
    {"_target_": "papers.MultiToken", "queries": 4, "keys": 5},
    {"_target_": "papers.SharedKeys"},
]


def trained(small: Any, folder: Path, attn: dict[str, Any]) -> Any:
    """The metrics of 20 steps of preset=micro."""
    given = "preset=micro probes=light optim.lr=0.02 trainer.max_steps=20"
    cfg = small(*given.split(), "trainer.val_check_interval=20")
    OmegaConf.set_struct(cfg, False)
    cfg.attn = attn
    metrics = run(read_config(cfg), folder, variant="mine").metrics
    assert metrics["status"] == "finished" and metrics["val_loss"] < 3.2
    return metrics


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.usefixtures("own")
def test_a_part_of_the_page_trains_and_does_not_read_ahead(
    changes: dict[str, Any], small: Any, tmp_path: Path
) -> None:
    metrics = trained(small, tmp_path / "run", settings("sdpa") | changes)
    assert metrics["probes"]["attn/future_mass"] == 0


def test_a_variant_is_one_function_and_three_lines(
    own: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    (own / "conf" / "attn").mkdir(parents=True)
    (own / "conf" / "attn" / "softpick.yaml").write_text(*blocks("own.md", "yaml"))
    given = ("--config-dir=conf", "attn=softpick", "probes=light")
    done = small_run(own / "outputs", text_file, *given)
    assert done.code == 0, done.err
    (metrics,) = own.rglob("metrics.json")
    found = json.loads(metrics.read_text())
    assert found["variant"] == "softpick" and found["probes"]["attn/row_sum_error"] > 0.01


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_a_layer_of_a_researcher_trains_and_its_leaky_twin_is_refused(
    layer: Any, small: Any, tmp_path: Path
) -> None:
    """The settings of a subclass of SelfAttention are those of attn=sdpa."""
    node = settings("sdpa") if issubclass(layer, SelfAttention) else {}
    target = f"{layer.__module__}.{layer.__name__}"
    metrics = trained(small, tmp_path / "run", node | {"_target_": target})
    measured = hasattr(layer, "pattern")
    assert metrics["probes"]["attn/future_mass"] == 0 or not measured
    assert ("attn/entropy" in metrics["probes"]) == measured
    twin = {"_target_": [f"{layer.__module__}.Ahead", target]}
    with pytest.raises(BadInput, match=rf"{layer.__name__}: its output at position .* depends on"):
        trained(small, tmp_path / "twin", node | twin)
    assert not (tmp_path / "twin" / "metrics.json").exists()


def test_a_layer_of_its_own_does_not_get_the_defaults_of_another_class() -> None:
    node = settings("sdpa") | {"_target_": f"{FoX.__module__}.FoX"}
    assert bind(node, "attn", supplied=["config"]).keywords == {}
    with pytest.raises(BadInput):
        bind(node | {"scale": 1.0}, "attn", supplied=["config"])


def test_the_first_class_of_a_list_acts_first() -> None:
    node = settings("sdpa") | {"_target_": ["ExclusiveAttention", "GatedAttention"]}
    layer: Any = randomized(
        bind(node, "attn", supplied=["config"])(AttentionConfig(C, H, T))
    ).double()
    x = x_of()
    _, _, v = layer.split(x)
    mixed = layer.pattern(x) @ v
    gate = layer.gate(x).sigmoid().mT[..., None]
    left = mixed - (mixed * v).sum(-1, True) / v.square().sum(-1, True) * v
    expected = (left * gate).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.merge(mixed, x, v), expected)


def files_of(action: Any) -> set[str]:
    """The files of attnlab in which functions run."""
    source, profile = str(Path(attnlab.__file__).parent), Profile()
    profile.runcall(action)
    files = {file for file, *_ in Stats(profile).stats}  # type: ignore[attr-defined]
    return {file.removeprefix(source) for file in files if file.startswith(source)}


def test_unscaled_is_made_by_few_files_and_runs_in_one() -> None:
    attn, x = partial(SelfAttention, scale=1.0), x_of(torch.float32)
    layer = attn(AttentionConfig(C, H, T))
    made = files_of(lambda: init_weights(GPT(attn, 7, block_size=T), 0))
    contract = "/attention/layer.py"  # which parts does a layer have?
    assert made == {"/attention/core.py", contract, "/model.py", "/init.py", "/rng.py"}
    assert files_of(lambda: layer(x)) == {"/attention/core.py"}


def test_the_code_of_the_page_on_the_library_runs() -> None:
    scope: dict[str, Any] = {"torch": torch, "C": 128}
    scope |= {name: torch.randn(2, 3, 5, 4) for name in ("q", "k", "v")}
    scope |= {"mask": torch.eye(5) == 1, "numbers": torch.randn(5, 5), "x": torch.randn(2, 9, 128)}
    scope |= {"padding": torch.arange(5).expand(2, 5) > 3, "q_proj": nn.Linear(128, 128)}
    scope |= {"W_q": torch.randn(128, 128), "b_q": torch.randn(128)}
    for block in blocks("library.md"):
        exec(block, scope)
    layer, weight = scope["layer"], scope["q_proj"].weight
    assert torch.equal(layer.W_q.T, weight) and torch.equal(layer.qkv.bias[:128], scope["b_q"])
    assert scope["net"](torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 65)
    assert scope["net"].blocks[0].attn.scale == 1.0 and scope["pattern"].shape == (2, 4, 9, 9)
