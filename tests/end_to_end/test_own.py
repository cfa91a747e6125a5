"""The example of docs/own.md: a user's own mask, kernel and layer, outside the repository."""

import hashlib
import math
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnlab.attention import AttentionConfig, KVCache, SelfAttention
from attnlab.files import read_json
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes.capture import scalars, views
from attnlab.probes.layer_check import check_layer
from attnlab.training.checkpoints import load_model
from tests.command_line import attnlab
from tests.conftest import ROOT, SMALL

PAGE = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The files that the page prints."""
    blocks = re.findall(r"`([\w/]+\.(?:py|yaml))`:\n\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    for name, content in blocks:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert len(blocks) == 5
    return tmp_path


@pytest.mark.slow
def test_own_code_trains_and_its_probes_know_its_mask(project: Path, text_file: Path) -> None:
    small = [o for o in SMALL if o != "probes=none"] + [f"data.path={text_file}"]
    seen = {}
    for variant in ("strided", "smooth", "local"):
        command = ["--config-dir", "conf", *small, "probes=light", f"attn={variant}"]
        ended = attnlab("train", *command, folder=project)
        assert ended.code == 0, ended.error
        folder = next((project / "outputs" / "lab").glob(f"attn={variant}*/seed=0"))
        assert read_json(folder / "metrics.json")["probes"]["attn/future_mass"] == 0
        net, _ = load_model(folder, trust=True)
        seen[variant] = next(views(net, torch.arange(16)[None] % 29))
    i = torch.arange(16)
    back = i[:, None] - i
    causal = back >= 0
    assert torch.equal(seen["strided"].mask, causal & (back % 4 == 0))
    assert torch.equal(seen["smooth"].mask, causal)
    assert torch.equal(seen["local"].mask, causal & (back < 8))
    # Equal scores over the 8 keys of the window have the largest possible entropy.
    assert math.isclose(float(seen["local"].mask.sum(-1).max()), 8)


def test_a_module_in_the_current_directory(project: Path, text_file: Path) -> None:
    own = ["attn.may_attend=my_attention.strided", "logger=none", f"data.path={text_file}"]
    ended = attnlab("train", *SMALL, *own, folder=project)
    assert ended.code == 0, ended.error
    assert "attnlab train" not in ended.error


C, H, T, D = 24, 3, 12, 8


@pytest.fixture
def layers(project: Path) -> dict[str, Any]:
    """The names of my_layers.py."""
    return runpy.run_path(str(project / "my_layers.py"), run_name="my_layers")


def drawn(layer: Any) -> Any:
    stream = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=stream) * 0.3
    return layer.eval()


def x_of(length: int = T) -> torch.Tensor:
    return torch.randn(2, length, C, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", ["Gate", "Forget", "DeltaRule", "Latent"])
@torch.no_grad()
def test_the_complete_layers_pass_the_check_and_their_cache_gives_the_same(
    name: str, layers: dict[str, Any]
) -> None:
    layer, x = drawn(layers[name](AttentionConfig(C, H, T))), x_of()
    assert layer.cacheable
    check_layer(layer, n_embd=C, block_size=T)
    cache = KVCache(T)
    pieces = [layer.extend(piece, cache) for piece in x.split([3, 1, 6, 2], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), layer(x), rtol=0, atol=1e-5)
    net = GPT(layers[name], 7, block_size=T, n_layer=2, n_head=H, n_embd=C)
    init_weights(net, 0)
    assert all(x == x for x in scalars(views(net, torch.arange(T)[None] % 7)).values())


@torch.no_grad()
def test_the_complete_layers_compute_what_their_docstrings_say(layers: dict[str, Any]) -> None:
    config, x = AttentionConfig(C, H, T), x_of()
    gate, forget = (drawn(layers[name](config)) for name in ("Gate", "Forget"))
    for layer, ours, old, new in (
        (gate, SelfAttention(replace(config, gate="head")), "of_head.", "gate."),
        (forget, SelfAttention(replace(config, forget=0.0)), "gates.", "forget."),
    ):
        ours.load_state_dict({k.replace(old, new): w for k, w in layer.state_dict().items()})
        torch.testing.assert_close(layer(x), ours(x), rtol=0, atol=1e-6)
    latent, usual = drawn(layers["Latent"](replace(config, bias=False))), SelfAttention(config)
    weights = {"qkv.weight": latent.qkv_of_heads(), "proj.weight": latent.proj.weight}
    usual.load_state_dict(weights | {"qkv.bias": torch.zeros(3 * C), "proj.bias": torch.zeros(C)})
    torch.testing.assert_close(latent(x), usual(x), rtol=0, atol=1e-5)
    cache = KVCache(T)
    latent.extend(x, cache)
    assert cache.numbers() == 2 * T * 16


@torch.no_grad()
def test_the_delta_rule_of_the_page_is_its_recurrence(layers: dict[str, Any]) -> None:
    layer, x = drawn(layers["DeltaRule"](AttentionConfig(C, H, T))).double(), x_of().double()
    q, k, v = (part.numpy() for part in layer.split(x))
    b = 1 / (1 + np.exp(-(x.numpy() @ layer.strength.weight.numpy().T)))  # (B, T, H)
    heads = np.zeros((2, T, H, D))
    for n, h in np.ndindex(2, H):
        state = np.zeros((D, D))
        for t in range(T):
            key = k[n, h, t] / np.linalg.norm(k[n, h, t])
            state += b[n, t, h] * np.outer(key, v[n, h, t] - state.T @ key)
            heads[n, t, h] = state.T @ q[n, h, t] / np.sqrt(D)
    expected = layer.proj(torch.from_numpy(heads).flatten(2))
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_complete_layer_trains_from_the_command_line(project: Path, text_file: Path) -> None:
    own = ["attn._target_=my_layers.DeltaRule", "logger=none", f"data.path={text_file}"]
    ended = attnlab("train", *SMALL, *own, folder=project)
    assert ended.code == 0, ended.error
    metrics = read_json(next((project / "outputs").rglob("metrics.json")))
    # 2 layers, 2 heads of 8: the state, of which the formula is the layer's own.
    assert metrics["costs"]["cached"] == 2 * 2 * 8 * 8
    assert metrics["costs"]["flops"] == 2 * (2 * (4 * 16 * 16 + 2 * 16) + 6 * 2 * 8 * 8)
    digest = hashlib.sha256((project / "my_layers.py").read_bytes()).hexdigest()
    assert metrics["own_code"] == {"my_layers": {"sha256": digest, "git": None}}
