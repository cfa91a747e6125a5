"""docs/own.md: its code runs as printed, from a file of a user's; combinations; the walk."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attnlab
from attnlab.attention import AttentionConfig, ExclusiveAttention, GatedAttention, SelfAttention
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.probes.capture import future_mass
from attnlab.training.build import attention, build
from tests.attention.layers import C, H, T, randomized, settings, x_of
from tests.old import ROOT

PAGE = (ROOT / "docs" / "own.md").read_text()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "my_attention.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_attention", raising=False)


CHANGES: list[dict[str, Any]] = [
    {"may_attend": "my_attention.strided"},
    {"kernel": "my_attention.softpick"},
    {"_target_": "my_attention.TalkingHeads"},
    {"_target_": "my_attention.Both", "conv": 3, "gate": "channel"},
    {"_target_": ["GatedAttention", "ShortConvolution"], "conv": 3},
    {"_target_": ["my_attention.TalkingHeads", "ForgettingAttention", "ValueResidual"]},
]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
@pytest.mark.usefixtures("own")
def test_an_own_part_trains_and_does_not_read_ahead(changes: dict[str, Any]) -> None:
    attn = attention(settings("sdpa") | changes)
    net = GPT(attn, 7, block_size=T, n_head=H, n_embd=C, n_layer=2)
    init_weights(net, 0)
    ids = torch.randint(7, (4, T), generator=torch.Generator().manual_seed(0))
    optimizer, losses = torch.optim.AdamW(net.parameters(), lr=1e-2), []
    for _ in range(30):
        loss = F.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3 and all(p.grad is not None for p in net.parameters())
    other = torch.cat([ids[:, :5], (ids[:, 5:] + 1) % 7], dim=1)
    torch.testing.assert_close(net(other)[:, :5], net(ids)[:, :5], rtol=0, atol=1e-5)
    assert future_mass(net, ids) == 0


def test_a_layer_of_its_own_does_not_get_the_defaults_of_another_class() -> None:
    node = settings("sdpa") | {"_target_": "tests.attention.researchers.FoX"}
    assert build(node, "attn", "config").keywords == {}
    with pytest.raises(BadInput):
        build(node | {"scale": 1.0}, "attn", "config")


def test_the_first_class_of_a_list_acts_first() -> None:
    node = settings("sdpa") | {"_target_": ["ExclusiveAttention", "GatedAttention"]}
    layer: Any = randomized(build(node, "attn", "config")(AttentionConfig(C, H, T))).double()
    x = x_of()
    _, _, v = layer.split(x)
    mixed = layer.pattern(x) @ v
    gate = layer.gate(x).sigmoid().mT[..., None]
    left = mixed - (mixed * v).sum(-1, True) / v.square().sum(-1, True) * v
    expected = (left * gate).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer.merge(mixed, x, v), expected)
    assert isinstance(layer, ExclusiveAttention) and isinstance(layer, GatedAttention)


def files_of(action: Any) -> set[str]:
    """The files of attnlab in which functions run."""
    source, seen = str(Path(attnlab.__file__).parent), set()

    def watch(frame: Any, event: str, _: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(source):
            seen.add(name.removeprefix(source))

    sys.setprofile(watch)
    try:
        action()
    finally:
        sys.setprofile(None)
    return seen


def test_unscaled_is_made_by_four_files_and_runs_in_one() -> None:
    attn, x = partial(SelfAttention, scale=1.0), x_of(torch.float32)
    layer = attn(AttentionConfig(C, H, T))
    made = files_of(lambda: init_weights(GPT(attn, 7, block_size=T), 0))
    assert made == {"/attention/core.py", "/model.py", "/init.py", "/rng.py"}
    assert files_of(lambda: layer(x)) == {"/attention/core.py"}


def test_the_code_of_the_page_on_the_library_runs() -> None:
    page = (ROOT / "docs" / "library.md").read_text()
    scope: dict[str, Any] = {"torch": torch, "C": 128}
    scope |= {name: torch.randn(2, 3, 5, 4) for name in ("q", "k", "v")}
    scope |= {"mask": torch.eye(5) == 1, "numbers": torch.randn(5, 5), "x": torch.randn(2, 9, 128)}
    scope |= {"padding": torch.arange(5).expand(2, 5) > 3, "q_proj": nn.Linear(128, 128)}
    scope |= {"W_q": torch.randn(128, 128), "b_q": torch.randn(128)}
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, scope)
    layer, weight = scope["layer"], scope["q_proj"].weight
    assert torch.equal(layer.W_q.T, weight) and torch.equal(layer.qkv.bias[:128], scope["b_q"])
    assert scope["net"](torch.zeros(1, 4, dtype=torch.long)).shape == (1, 4, 65)
    assert scope["net"].blocks[0].attn.scale == 1.0 and scope["pattern"].shape == (2, 4, 9, 9)
