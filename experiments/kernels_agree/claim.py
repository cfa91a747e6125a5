"""SDPA, the manual kernel, and nn.MultiheadAttention: one function, different rounding."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention import AttentionConfig, SelfAttention, TorchMHA, Variant, kernels
from attnlab.claims import Arm, Bound, Claim, Measured, Pilot, Trained, Within
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.rng import generator

LAYERS: dict[str, partial[nn.Module]] = {
    "sdpa": Variant(SelfAttention, {"kernel": kernels.sdpa}),
    "manual": Variant(SelfAttention, {"kernel": kernels.manual}),
    "torch_mha": TorchMHA,
}


def errors(seed: int) -> Mapping[str, Any]:
    """Largest error of outputs and gradients in fp32, relative to the manual kernel in fp64."""
    x = torch.randn(4, 61, 64, generator=generator(seed, "x"))
    exact = _forward_and_back("manual", x.double(), seed)
    found: dict[str, Any] = {}
    for name in LAYERS:
        ours = _forward_and_back(name, x, seed)
        found[name] = [
            float((a.double() - b).abs().max()) for a, b in zip(ours, exact, strict=True)
        ]
    # The rule of FlashAttention's tests: twice the error of the plain kernel, plus a little.
    found["excess"] = max(
        found[name][i] - 2 * found["manual"][i] - 1e-6
        for name in ("sdpa", "torch_mha")
        for i in (0, 1)
    )
    return found


def _forward_and_back(name: str, x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    layer = LAYERS[name](AttentionConfig(64, 4, block_size=61, bias=True)).to(x.dtype)
    stream = generator(seed, "layer")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=stream) / 8)
    inputs = x.clone().requires_grad_()
    y = layer(inputs)
    y.square().mean().backward()
    assert inputs.grad is not None
    return y.detach(), inputs.grad * y.numel()


def trajectories(seed: int) -> Mapping[str, Any]:
    """Losses of the three over 50 steps, in fp64 and fp32, and their largest differences."""
    found: dict[str, Any] = {}
    for dtype in (torch.float64, torch.float32):
        losses = {name: _losses(name, dtype, seed) for name in LAYERS}
        apart = [
            [abs(a - b) for a, b in zip(losses[name], losses["manual"], strict=True)]
            for name in ("sdpa", "torch_mha")
        ]
        found[str(dtype).removeprefix("torch.")] = [max(pair) for pair in zip(*apart, strict=True)]
    found["fp64"] = max(found["float64"])
    return found


def _losses(name: str, dtype: torch.dtype, seed: int) -> list[float]:
    net = GPT(LAYERS[name], 31, block_size=16, n_layer=2, n_head=4, n_embd=32, bias=False)
    init_weights(net, seed, "gpt2")
    net.to(dtype)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    stream, losses = generator(seed, "trajectory"), []
    for _ in range(50):
        ids = torch.randint(31, (4, 17), generator=stream)
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


CLAIM = Claim(
    says="SDPA, manual, and nn.MultiheadAttention are one function.",
    last_look=10,
    first_seed=300,
    headline="torch_mha",
    order=4,
    predictions=(
        Measured(
            "error",
            "In fp32, no kernel has more than twice the error of the plain one, relative to fp64.",
            Bound(0.0, unit="above twice the plain kernel's error"),
            where="outputs and gradients in fp32",
            measure=errors,
            value="excess",
        ),
        Measured(
            "trajectory",
            "In fp64, the losses of 50 training steps agree to 1e-10.",
            Bound(1e-10, unit="nats apart"),
            where="50 steps in fp64",
            measure=trajectories,
            value="fp64",
        ),
        Trained(
            "manual",
            "Manual and SDPA train to the same loss, within 0.005 nats.",
            Within(0.005),
            pilot=Pilot(0.0, 1e-6),
            where="training at one learning rate, manual",
            arms=(Arm("manual", ("attn=manual",)), Arm("sdpa", ("attn=sdpa",))),
        ),
        Trained(
            "torch_mha",
            "nn.MultiheadAttention and SDPA train to the same loss, within 0.005 nats.",
            Within(0.005),
            pilot=Pilot(0.0, 1e-6),
            where="training at one learning rate, nn.MultiheadAttention",
            arms=(Arm("torch_mha", ("attn=torch_mha",)), Arm("sdpa", ("attn=sdpa",))),
        ),
    ),
)
