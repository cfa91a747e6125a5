"""Models of other libraries raise no alarm but where one is meant."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attncheck import checkup
from examined import families
from examined.families import (
    CONFIGURATIONS,
    KINDS,
    MEANT,
    of_transformers,
    of_x_transformers,
)
from examined.small import LM, Does

pytestmark = pytest.mark.slow
V, T, C = 29, 24, 32


def wrong(model: Any, **sizes: int) -> str:
    """What a checkup of a model accuses it of, or ""."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = checkup(model, **sizes).results
    found = [r for r in results if r.status in ("fault", "suspicious", "failed", "error")]
    return "\n".join(f"{r.check}: {r.message}" for r in found)


# ---- x-transformers


@pytest.mark.parametrize("option", ["", *CONFIGURATIONS])
def test_no_configuration_of_x_transformers_is_accused(option: str) -> None:
    assert wrong(of_x_transformers(option), vocab_size=families.V, block_size=T) == ""


# ---- transformers


@pytest.mark.parametrize("kind", [*KINDS, *MEANT])
def test_architectures_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    said = wrong(of_transformers(kind), vocab_size=families.V, block_size=T)
    assert re.search(MEANT.get(kind, r"\A\Z"), said), said


# ---- plain torch


class Encoder(nn.Module):
    """torch's encoder with a causal mask."""

    vocab_size, block_size = V, T

    def __init__(self, **given: Any) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, 4, 64, batch_first=True, **given)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.wte, self.wpe, self.head = nn.Embedding(V, C), nn.Embedding(T, C), nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        blocked = torch.ones(n, n, dtype=torch.bool).triu(1)
        x = self.wte(ids) + self.wpe(torch.arange(n))
        return self.head(self.body(x, mask=blocked, is_causal=True))


class Decoder(Encoder):
    """torch's decoder, which also attends to its own input, with the same mask."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(C, 4, 64, batch_first=True)
        self.body = nn.TransformerDecoder(layer, 2)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        blocked = torch.ones(n, n, dtype=torch.bool).triu(1)
        x = self.wte(ids) + self.wpe(torch.arange(n))
        return self.head(self.body(x, x, tgt_mask=blocked, memory_mask=blocked))


class Carried(nn.Module):
    """A recurrence that takes and returns its state."""

    vocab_size, block_size = V, T

    def __init__(self, made: Callable[..., nn.Module], **given: Any) -> None:
        super().__init__()
        self.wte = nn.Embedding(V, C)
        self.body = made(C, C, 2, batch_first=True, **given)
        self.head = nn.Linear(given.get("proj_size", C), V)

    def forward(self, ids: Tensor, hidden: Any = None) -> tuple[Tensor, Any]:
        y, state = self.body(self.wte(ids), hidden)
        return self.head(y), state


class Recomputed(LM):
    """Blocks are computed again in the backward pass."""

    def forward(self, ids: Tensor, *args: Any) -> Tensor:
        x = self.embedded(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.training else block(x)
        return self.head(self.norm(x))


def beside(function: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> LM:
    """A model with a function of (module, x) beside its blocks."""
    return LM(beside=Does(function, **parts), length=T)


TORCH: dict[str, Callable[[], nn.Module]] = {
    "encoder": Encoder,
    "encoder, norm first": lambda: Encoder(norm_first=True, activation="gelu"),
    "encoder without dropout": lambda: Encoder(dropout=0.0, bias=False),
    "decoder": Decoder,
    "RNN": lambda: Carried(nn.RNN, nonlinearity="relu"),
    "GRU with dropout": lambda: Carried(nn.GRU, dropout=0.3),
    "LSTM with dropout": lambda: Carried(nn.LSTM, dropout=0.3),
    "LSTM with a projection": lambda: Carried(nn.LSTM, proj_size=16),
    "recomputed": lambda: Recomputed(length=T),
    "convolution": lambda: beside(
        lambda m, x: m.conv(F.pad(x.mT, (3, 0))).mT, conv=nn.Conv1d(C, C, 4, groups=C)
    ),
    "weight norm": lambda: beside(
        lambda m, x: m.up(x).relu(), up=nn.utils.parametrizations.weight_norm(nn.Linear(C, C))
    ),
    "spectral norm": lambda: beside(
        lambda m, x: m.up(x), up=nn.utils.parametrizations.spectral_norm(nn.Linear(C, C))
    ),
    "largest so far": lambda: beside(lambda m, x: x.cummax(1).values),
    "norm of channels": lambda: beside(
        lambda m, x: m.norm(x.flatten(0, 1)).view_as(x), norm=nn.GroupNorm(4, C)
    ),
    "dropout of channels": lambda: beside(
        lambda m, x: m.drop(x), drop=nn.FeatureAlphaDropout(0.1)
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_models_of_plain_torch(name: str) -> None:
    torch.manual_seed(0)
    said = wrong(TORCH[name]())
    # The vectors of the power iteration are other ones after each call in training mode.
    meant = {"spectral norm": "they depend on the number of earlier calls"}
    assert re.search(meant.get(name, r"\A\Z"), said), said
