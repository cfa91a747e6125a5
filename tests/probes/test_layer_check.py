"""Layers whose output is not what their pattern and mask say are refused."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from attnlab import check_layer
from attnlab.attention import (
    AttentionConfig,
    KVCache,
    Properties,
    SelfAttention,
    TorchMHA,
    Variant,
    kernels,
)
from attnlab.attention.properties import SOFTMAX, declare
from attnlab.errors import BadInput
from attnlab.files import read_json
from attnlab.init import init_weights
from attnlab.model import GPT, AttentionFactory
from attnlab.probes.base import measurable
from attnlab.probes.capture import by_head, scalars, view_of, views
from attnlab.probes.layer_check import check_users_layers
from attnlab.probes.training_probes import Gradients, History, Patterns
from attnlab.rng import Rule, zeros

C, H, T = 24, 3, 20
CONFIG = AttentionConfig(C, H, T)


def relu(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float) -> Tensor:
    return kernels.mix(kernels.scores(q, k, scale=scale).relu() * mask, v, dropout=dropout)


def softmax(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    return kernels.manual(q, k, v, mask=mask, scale=scale, dropout=dropout)


def maskless(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    return kernels.manual(q, k, v, mask=mask | True, scale=scale, dropout=dropout)


def claims_softmax(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float
) -> Tensor:
    return relu(q, k, v, mask=mask, scale=scale, dropout=dropout)


declare(claims_softmax, SOFTMAX)


class MeanOfAll(SelfAttention):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x.mean(1, keepdim=True)


class Restarts(SelfAttention):
    """Its positions start again with each piece of a cached text."""

    properties = SOFTMAX

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(1, x.shape[1] + 1).to(mixed)[:, None]
        return super().merge(mixed / place, x, v)


class HiddenLeak(SelfAttention):
    """Its leak is multiplied by a gate that starts at 0."""

    init_rules: ClassVar[dict[str, Rule]] = {"gate": zeros}

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.gate * x.flip(1)


class LateLeak(SelfAttention):
    """It reads ahead only at positions from 16 on."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.cat([x[:, :16] * 0, x[:, 16:].flip(1)], dim=1)


class PatternOfAnother(SelfAttention):
    """Its forward pass forgets, its pattern does not."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        i = torch.arange(x.shape[1])
        scores = kernels.scores(q, k, scale=self.scale) - (i[:, None] - i)
        y = kernels.masked_softmax(scores, self.mask(x)) @ v
        return self.proj(self.merge(y, x, v))


class Gated(SelfAttention):
    """Honest: the gate acts in `merge`."""

    init_rules: ClassVar[dict[str, Rule]] = {"gate.weight": zeros}

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.gate = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def merge(self, mixed: Tensor, x: Tensor, v: Tensor) -> Tensor:
        return super().merge(mixed, x, v) * self.gate(x).sigmoid()


class EmptyRows(SelfAttention):
    def mask(self, x: Tensor) -> Tensor:
        return super().mask(x).tril(-1)


class FloatMask(SelfAttention):
    def mask(self, x: Tensor) -> Tensor:
        return super().mask(x).float()


class WithoutPattern(nn.Module):
    """Not an `Attention`: each output is the value `back` positions before it."""

    def __init__(self, config: AttentionConfig, back: int = 1) -> None:
        super().__init__()
        self.proj, self.back = nn.Linear(C, C), back

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x.roll(self.back, 1) * (torch.arange(x.shape[1]) >= self.back)[:, None])


class Neighbor(WithoutPattern):
    def pattern(self, x: Tensor) -> Tensor:
        before = torch.eye(x.shape[1]).roll(1, 0).tril()
        return before.expand(len(x), 1, -1, -1)


def made(attn: AttentionFactory) -> nn.Module:
    torch.manual_seed(0)
    return attn(CONFIG)


def check(attn: AttentionFactory) -> None:
    check_layer(made(attn), n_embd=C, block_size=T)


@pytest.mark.parametrize(
    ("attn", "sentence"),
    [
        (MeanOfAll, "MeanOfAll reads ahead: its output at position 0 depends on position 1"),
        (HiddenLeak, "HiddenLeak reads ahead"),
        (LateLeak, "LateLeak reads ahead: its output at position 16 depends on position 19"),
        (Variant(SelfAttention, {"kernel": maskless}), "SelfAttention with maskless reads ahead"),
        (PatternOfAnother, r"at position 1 is not proj\(merge\(pattern @ values\)\)"),
        (FloatMask, r"the mask of FloatMask is torch.float32; return bool, True = may attend"),
        (EmptyRows, "the mask of EmptyRows leaves query 0 of 20 without keys"),
        (
            Variant(Neighbor, {"back": 2}),
            "the output of Neighbor at position 2 depends on position 0, which has no weight",
        ),
        (
            Variant(WithoutPattern, {"back": -1}),
            "WithoutPattern reads ahead: its output at position 18 depends on position 19, which "
            "comes later; apply the mask, or train it knowingly with check_layer=false",
        ),
        (
            Variant(SelfAttention, {"kernel": claims_softmax}),
            "SelfAttention with claims_softmax declares rows_sum_to_1, which its pattern",
        ),
        (Restarts, "Restarts declares cacheable, but its `extend` does not give the outputs"),
    ],
)
def test_a_layer_that_its_instruments_would_misdescribe_is_refused(
    attn: AttentionFactory, sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        check(attn)


@pytest.mark.parametrize(
    "attn",
    [
        SelfAttention,
        TorchMHA,
        Gated,
        Neighbor,
        WithoutPattern,
        Variant(SelfAttention, {"kernel": relu}),
        Variant(SelfAttention, {"window": 3, "n_kv_head": 1, "qk_norm": True}),
    ],
)
def test_an_honest_layer_passes(attn: AttentionFactory) -> None:
    check(attn)


def test_the_check_changes_nothing() -> None:
    layer = made(Gated)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    state = torch.get_rng_state()
    check_layer(layer, n_embd=C, block_size=T)
    assert torch.equal(torch.get_rng_state(), state) and layer.training
    assert all(torch.equal(before[name], x) for name, x in layer.state_dict().items())


def gpt(attn: AttentionFactory) -> GPT:
    net = GPT(attn, 11, block_size=T, n_layer=2, n_head=H, n_embd=C)
    init_weights(net, 0)
    return net


@pytest.mark.parametrize(("kernel", "found"), [(relu, False), (softmax, True)])
def test_a_softmax_is_found_by_trying(
    kernel: Any, found: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    net = gpt(Variant(SelfAttention, {"kernel": kernel}))
    check_users_layers(net)
    told = "its pattern was found to be" if found else "measures that assume a softmax are left"
    assert capsys.readouterr().out.count(told) == 1
    values = scalars(views(net, torch.arange(T)[None] % 11))
    for name in ("jacobian_trace", "entropy_nats_predicted", "score_std", "qk_similarity"):
        assert (f"attn/{name}" in values) == found, name
    assert "attn/entropy" in values


def test_nothing_is_assumed_of_an_undeclared_layer() -> None:
    x = torch.randn(1, T, C, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        view = view_of(0, made(Variant(SelfAttention, {"kernel": softmax})), x)
    assert "jacobian_trace" not in by_head(view) and view.scores is None


class Latent(SelfAttention):
    """Its qkv has fewer rows than its heads need, which probes of the weights cannot use."""

    properties = Properties()

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.qkv = nn.Linear(C, C // 2, bias=False)
        self.up = nn.Linear(C // 2, 3 * C, bias=False)

    def split(self, x: Tensor, cache: KVCache | None = None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = map(self.to_heads, self.up(self.qkv(x)).chunk(3, dim=-1))
        return q, k, v


def test_a_probe_that_cannot_measure_a_layer_is_left_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = GPT(Latent, 11, block_size=T, n_layer=2, n_head=H, n_embd=C)
    probes: list[Any] = [
        Patterns(every=None, heads=False, images=False, windows=1),
        History(steps=2, chars=8, windows=1),
        Gradients(every=1),
    ]
    assert measurable(probes, net) == probes[1:]
    out = capsys.readouterr().out
    assert out.count("the probe Patterns is left out: ") == 1 and out.count("\n") == 1


def test_a_run_refuses_such_a_layer(train: Any, tmp_path: Path) -> None:
    leaky = f"attn._target_={__name__}.MeanOfAll"
    with pytest.raises(BadInput, match=r"MeanOfAll reads ahead.*check_layer=false"):
        train(leaky)
    knowingly = train(leaky, "check_layer=false", folder="leaky")
    assert read_json(knowingly.folder / "metrics.json")["check_layer"] is False
    assert read_json(train(folder="a").folder / "metrics.json")["check_layer"] is True
    honest = train(f"attn._target_={__name__}.Gated", folder="b")
    assert honest.metrics["status"] == "finished"
