"""Small models of public repositories, made from a checkout that is first on Python's path.

The factories are ours; the code of others stays in the checkouts. All weights are random.
"""

import importlib
import inspect
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Step = Callable[[Any, Tensor, Any], tuple[Tensor, Any]]
V, T = 29, 64


def without(*names: str) -> None:
    """Put empty modules in place of tokenizers that a model's file imports and does not use."""
    for name in names:
        sys.modules[name] = types.ModuleType(name)


def min_gpt() -> nn.Module:
    module = importlib.import_module("mingpt.model")
    config = module.GPT.get_default_config()
    config.model_type, config.n_layer, config.n_head, config.n_embd = None, 2, 2, 32
    config.vocab_size, config.block_size = V, T
    model: nn.Module = module.GPT(config)
    return model


def nano_gpt(dropout: float = 0.0) -> nn.Module:
    module = importlib.import_module("model")
    config = module.GPTConfig(
        block_size=T, vocab_size=V, n_layer=2, n_head=2, n_embd=32, dropout=dropout
    )
    model: nn.Module = module.GPT(config)
    return model


def nanochat(length: int = T, gate: float | None = None, summary: str = "") -> nn.Module:
    module = importlib.import_module("nanochat.gpt")
    config = module.GPTConfig(
        sequence_len=length, vocab_size=V, n_layer=4, n_head=2, n_kv_head=2, n_embd=64
    )
    model: nn.Module = module.GPT(config)
    model.init_weights()  # type: ignore[operator]
    with torch.no_grad():  # as if trained: the smear and the projections start at 0
        if hasattr(model, "smear_lambda"):
            model.smear_lambda.fill_(1.0)  # type: ignore[union-attr, operator]
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    for block in model.transformer.h if summary else ():  # type: ignore[union-attr]
        for name in ("c_q", "c_k", "c_v"):
            inner = getattr(block.attn, name)
            setattr(block.attn, name, Summarized(inner, summary, length, gate or 0.0))
    return model


class Summarized(nn.Module):
    """A projection (B, T, C) that adds what it gives at other positions, times a gate.

    Our versions of the three leaks that karpathy/nanochat#844 describes.
    """

    def __init__(self, inner: nn.Module, kind: str, length: int, gate: float) -> None:
        super().__init__()
        self.inner, self.kind = inner, kind
        self.gate = nn.Parameter(torch.tensor(gate))
        self.response = nn.Parameter(torch.randn(length + 1, 2) / 8)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        if self.kind == "spectrum":  # an arbitrary response wraps around, also with padding
            n = 2 * y.shape[1]
            response = torch.view_as_complex(self.response[: n // 2 + 1].contiguous())
            spectrum = torch.fft.rfft(y, n, dim=1) * response[:, None]
            return y + self.gate * torch.fft.irfft(spectrum, n, dim=1)[:, : y.shape[1]]
        size = {"blocks": 64, "recurrence": 16}[self.kind]
        whole = y.shape[1] // size * size
        means = y[:, :whole].unflatten(1, (-1, size)).mean(2)  # (B, n, C)
        if self.kind == "recurrence":  # from chunk to chunk
            places = torch.arange(means.shape[1])
            decay = 0.5 ** (places[:, None] - places).clamp(min=0)
            means = torch.tril(decay).to(means) @ means
        parts = means.repeat_interleave(size, 1)
        return y + self.gate * nn.functional.pad(parts, (0, 0, 0, y.shape[1] - whole))


def nanochat_step(model: Any, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    without("nanochat.checkpoint_manager")
    sys.modules["nanochat.checkpoint_manager"].__dict__["load_model"] = None
    c, engine = model.config, importlib.import_module("nanochat.engine")
    shape = len(ids), c.n_kv_head, c.sequence_len, c.n_embd // c.n_head, c.n_layer
    cache = cache or engine.KVCache(*shape, device=ids.device, dtype=torch.float32)
    return model(ids, kv_cache=cache), cache


def litgpt() -> nn.Module:
    package = types.ModuleType("litgpt")  # without the imports of its __init__
    package.__path__ = [str(Path(sys.path[0]) / "litgpt")]
    sys.modules["litgpt"] = package
    config = importlib.import_module("litgpt.config").Config(
        n_layer=2, n_head=2, n_embd=32, head_size=16, block_size=T, vocab_size=V,
        padded_vocab_size=V, sliding_window_size=16, sliding_window_indices=[1, 1],
    )  # fmt: skip
    model: nn.Module = importlib.import_module("litgpt.model").GPT(config)
    return model


def litgpt_step(model: Any, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    begin = cache or 0
    if not begin:
        model.set_kv_cache(batch_size=len(ids), dtype=model.lm_head.weight.dtype)
    end = begin + ids.shape[1]
    return model(ids, input_pos=torch.arange(begin, end)), end


def from_scratch(place: str) -> nn.Module:
    without("tiktoken")
    file = Path(sys.path[0], place)
    sys.path.insert(0, str(file.parent))
    model: nn.Module = importlib.import_module(file.stem).GPTModel({
        "vocab_size": V, "context_length": T, "emb_dim": 32, "n_heads": 2, "n_layers": 2,
        "drop_rate": 0.0, "qkv_bias": False, "sliding_window_size": 16,
        "sliding_window_stride": -1,
    })  # fmt: skip
    return model


def from_scratch_step(model: Any, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    if cache is None:
        model.reset_kv_cache()
    return model(ids, use_cache=True), True


def x_transformers(**settings: object) -> nn.Module:
    module = importlib.import_module("x_transformers.x_transformers")
    known = inspect.signature(module.Attention.__init__).parameters
    chosen = {f"attn_{name}": x for name, x in settings.items() if name in known}
    layers = module.Decoder(dim=32, depth=2, heads=2, attn_dim_head=16, **chosen)
    model: nn.Module = module.TransformerWrapper(num_tokens=V, max_seq_len=T, attn_layers=layers)
    return model


class OneLayer(nn.Module):
    """The attention of hyunwoongko/transformer with its causal mask, between two tables."""

    def __init__(self) -> None:
        super().__init__()
        place = "models.layers.multi_head_attention"
        self.embed, self.head = nn.Embedding(V, 32), nn.Linear(32, V)
        self.attend = importlib.import_module(place).MultiHeadAttention(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x, n = self.embed(ids), ids.shape[1]
        logits: Tensor = self.head(x + self.attend(x, x, x, torch.ones(n, n).tril()))
        return logits


def pico_gpt() -> Callable[[Any], Any]:
    module, draw = importlib.import_module("gpt2"), np.random.default_rng(0)

    def linear(n: int, m: int) -> dict[str, Any]:
        return {"w": draw.normal(size=(n, m)) / n**0.5, "b": np.zeros(m)}

    def block() -> dict[str, Any]:
        attn = {"c_attn": linear(32, 96), "c_proj": linear(32, 32)}
        mlp = {"c_fc": linear(32, 128), "c_proj": linear(128, 32)}
        return {"mlp": mlp, "attn": attn, "ln_1": norm, "ln_2": norm}

    norm = {"g": np.ones(32), "b": np.zeros(32)}
    wte, wpe, blocks = draw.normal(size=(V, 32)), draw.normal(size=(T, 32)), [block(), block()]
    rows = partial(module.gpt2, wte=wte, wpe=wpe, blocks=blocks, ln_f=norm, n_head=2)
    return lambda ids: np.stack([rows(row) for row in ids])


@dataclass(frozen=True)
class Entry:
    """A model of a repository at a commit."""

    repository: str
    commit: str
    about: str
    make: Callable[[], Any]
    step: Step | None = None  # to examine its cache instead
    block_size: int = T


def _pair(
    repository: str,
    before: str,
    after: str,
    about: str,
    make: Callable[[], Any],
    step: Step | None = None,
) -> list[Entry]:
    return [
        Entry(repository, before, f"{about}, before", make, step),
        Entry(repository, after, f"{about}, after", make, step),
    ]


_KV, _SWA = "ch04/03_kv-cache/gpt_with_kv_cache", "ch04/06_swa/gpt_with_kv_swa"
_NANOCHAT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
ENTRIES = [
    Entry("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", "model", min_gpt),
    Entry("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", "model", nano_gpt),
    Entry("karpathy/nanochat", _NANOCHAT, "model", nanochat),
    Entry("jaymody/picoGPT", "817292baea75f194fb0bb8ba2aa5f947af4e45ee", "NumPy model", pico_gpt),
    Entry("karpathy/nanochat", _NANOCHAT, "cache", nanochat, nanochat_step),
    *_pair(
        "karpathy/nanoGPT", "a82b33b525ca9855d705656387698e13eb8e8d4b",
        "7399dfe39d24579cc1fb391475864ad28f19f6f7", "dropout in eval mode", partial(nano_gpt, 0.2),
    ),
    *_pair(
        "karpathy/nanochat", "ace6740bdd392de4710f054afa7dc9368a076606",
        "3ba42e8135bc88283004fc8d803a1eb00879a738", "cache, #456", nanochat, nanochat_step,
    ),
    *_pair(
        "Lightning-AI/litgpt", "20af91c84696f90998ea03bd7c236981a1f887a2",
        "3023ca8845119b21281f465ea9448eabc9ea8224", "cache, #2153", litgpt, litgpt_step,
    ),
    *_pair(
        "rasbt/LLMs-from-scratch", "37b26c2e04fa6681a98f2ddd2a379a4875c40551",
        "6522be94beb2640ae2a811249c73c67d0845567c", "cache, #697", partial(from_scratch, _KV),
        from_scratch_step,
    ),
    *_pair(
        "rasbt/LLMs-from-scratch", "59709e27296522c9bde5bbb132d7b132b5fef907",
        "28c65cdfbc3338e2e040016eea4b7fdf556e4d57", "cache, #1013", partial(from_scratch, _SWA),
        from_scratch_step,
    ),
    *_pair(
        "lucidrains/x-transformers", "af345a3b3ad297d3b22fd6d97025765f6971dc90",
        "907861187a1fa55fa2708e841845add0e78b67a8", "softclamp",
        partial(x_transformers, softclamp_logits=True, logit_softclamp_value=30.0),
    ),
    *_pair(
        "lucidrains/x-transformers", "aaccc9e4631d75373ac60126f24e266f10142e73",
        "d1f5d6b7d2f05e48077c5047a259fc532a3a03a0", "sparse top-k",
        partial(x_transformers, sparse_topk=4),
    ),
    *_pair(
        "hyunwoongko/transformer", "4351995d113b3cd742eb83438730231641fe2169",
        "9c5515deafd0b224b50ea7500d38f6c370682633", "mask, #10", OneLayer,
    ),
    *[
        Entry(
            "karpathy/nanochat", _NANOCHAT, f"leak of #844, {kind}, gate {gate:g}",
            partial(nanochat, 256, gate, kind), block_size=256,
        )
        for kind in ("blocks", "recurrence", "spectrum")
        for gate in (1.0, 0.0)
    ],
]  # fmt: skip
