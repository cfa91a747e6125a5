"""Models for the live page, and what PyTorch computes for its switches."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import DictConfig
from torch import Tensor

from attnlab.attention import kernels, masks
from attnlab.data.corpora import decode
from attnlab.model import GPT
from attnlab.pages.explorer import filled
from attnlab.pages.live import exported
from attnlab.probes.capture import attention_layers
from attnlab.training.config import model_factory
from tests.conftest import CONF

ALPHABET = "\n !'.:ABCDEFGHIJabcdefghijklm"
T = 24
SIZES = ["n_layer=2", "n_head=4", "n_embd=32", f"block_size={T}", "dropout=0.0"]
# Variants that the page computes; the others are refused.
SUPPORTED = (
    "alibi bidirectional cosine flex flipped gate_channel gate_head gqa identical_heads "
    "identical_qkv inverse_scale linear log_length manual mqa peek_one rotary sdpa shared_qk "
    "shared_qkv sigmoid single_head sliding_window softcap softmax1 unscaled"
).split()
REFUSED = (
    "additive decay delta_net delta_net_negative differential differential_v2 entmax exclusive "
    "finite_fill forgetting gated_delta_net gated_linear general kda "
    "latent partial_rotary post_softmax_mask retention scalable_softmax short_conv sink "
    "softmax_over_queries softpick sparsemax stick_breaking strict_flip top_k torch_mha "
    "unmerged_heads value_embeddings value_residual zero_fill "
).split()
# Settings of the model, each with the variant sdpa.
MODELS = {
    "bias": ["model.bias=true"],
    "RMSNorm": ["model.norm=rms_norm"],
    "ReLU squared": ["model.activation=relu_squared"],
    "tanh GELU": ["model.activation=gelu_tanh"],
    "no positions": ["model.learned_positions=false"],
    "a gate with a bias": ["model.bias=true", "attn.gate=head", "attn.gate_bias=4.0"],
    "as preset=fast": [
        *("model.norm=rms_norm", "model.activation=relu_squared", "model.smear=3"),
        *("model.learned_positions=false", "attn.qk_norm=true", "attn.rotary=30.0"),
    ],
}


def net_of(variant: str = "sdpa", *overrides: str, sizes: Sequence[str] = SIZES) -> GPT:
    """A model of a variant with random weights, small enough for eps to matter."""
    attn, model = _node("attn", variant), _node("model", "gpt")
    for override in [*(f"model.{size}" for size in sizes), *overrides]:
        key, _, value = override.partition("=")
        (attn if key.startswith("attn.") else model)[key.split(".")[1]] = yaml.safe_load(value)
    net = model_factory(DictConfig(model), DictConfig(attn))(len(ALPHABET))
    assert isinstance(net, GPT)
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in net.named_parameters():
            noise = torch.randn(weight.shape, generator=stream)
            embedding = name in ("wte.weight", "wpe.weight")
            weight.copy_(0.05 * noise if embedding else weight + 0.15 * noise)
    layers: list[Any] = attention_layers(net)
    for layer in layers:
        layer.head_init(layer)  # as at the start of training: equal heads
    return net.eval()


def _node(group: str, name: str) -> dict[str, Any]:
    """A file of conf with its defaults; Hydra takes a hundred times as long."""
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text(encoding="utf-8"))
    base: dict[str, Any] = {}
    for default in content.pop("defaults", []):
        base |= _node(group, default)
    return base | content


def write_page(
    file: Path, nets: Mapping[str, GPT], *, alphabet: str = ALPHABET, reads: int = T,
    windows: tuple[Tensor, Tensor] | None = None, fp16: bool = False, text: str = "Abba: Be.",
) -> Path:  # fmt: skip
    """The live page of models that no run directory holds."""
    x, y = windows or torch.zeros(2, 0, reads, dtype=torch.long)
    dtype = torch.float16 if fp16 else torch.float32
    models = [exported(n, x, y, dtype, "no") | {"name": k, "note": ""} for k, n in nets.items()]
    shown = [decode(row, alphabet) for row in torch.cat([x, y[:, -1:]], dim=1)]
    content = {"text": text, "alphabet": alphabet, "reads": reads, "windows": shown}
    filled("live.html", "live", content | {"models": models}).save(file)
    return file


def switched(
    net: GPT, power: int = 0, mask: str | None = None, heads: Mapping[str, str] | None = None
) -> GPT:
    """A copy of a model with the switches of the page, for PyTorch."""
    named = {"causal": masks.causal, "none": masks.bidirectional, "flipped": masks.flipped}
    net = deepcopy(net)
    layers: list[Any] = attention_layers(net)
    for n, layer in enumerate(layers):
        layer.scale *= layer.head_size ** (power / 4)
        layer.may_attend = named[mask] if mask else layer.may_attend
        layer.kernel = _with_heads(
            layer.kernel, [(heads or {}).get(f"L{n}H{h}", str(h)) for h in range(layer.n_head)]
        )
    return net


def _with_heads(kernel: Any, heads: Sequence[str]) -> kernels.Kernel:
    """A kernel whose heads are "even" or "cut", or take the pattern of the head with a number."""

    def attend(
        q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor, scale: float, dropout: float,
        mod: kernels.Mod = None,
    ) -> Tensor:  # fmt: skip
        options: dict[str, Any] = {} if mod is None else {"mod": mod}
        one_hot = torch.eye(k.shape[2]).expand(*k.shape[:3], k.shape[2])
        trained = kernel(q, k, one_hot, mask=mask, scale=scale, dropout=dropout, **options)
        fixed = {"even": mask / mask.sum(-1, keepdim=True), "cut": torch.zeros(mask.shape)}
        pattern = [
            fixed[what].expand(trained[:, 0].shape) if what in fixed else trained[:, int(what)]
            for what in heads
        ]
        return torch.stack(pattern, dim=1) @ v

    return attend


def content_of(page: str) -> dict[str, Any]:
    """The JSON in a page."""
    text = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found
