"""Variants, presets and combinations of commit b308e5e, now and then: bit for bit.

The file is also the program that both sides run, `python test_same_bits.py ROOT OUT KIND`: it
writes digests of tensors of the code in ROOT.
"""

import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hydra import compose, initialize_config_dir

from attnlab.training.config import read_config
from tests.old import ROOT, old_code

# All of the old code but six that were dropped, and two that are new here.
VARIANTS = sorted({file.stem for file in ROOT.glob("conf/attn/*.yaml")} - {"none", "hybrid"})
NO_DROPOUT = "delta_net delta_net_negative gated_delta_net kda decay retention gated_linear"
COMMON = "probes=none logger=none trainer.accelerator=cpu model.n_embd=32"
SHORT = "model.block_size=32 optim.lr=0.01 optim.min_lr=0.001 optim.warmup_steps=2"
KINDS = {  # settings of every variant; 72 positions are more than a chunk of the delta rule
    "long": "model.block_size=72 model.n_layer=3 model.bias=true model.init=gpt2",
    "adamw": SHORT,
    "muon": f"{SHORT} optim=muon",
    "bf16": SHORT,
}
SMALL = "model.n_layer=3 model.n_head=4 model.block_size=24 model.dropout=0.0"
PRESETS = "micro fast fox_pro gpt_oss tasks baby tiny".split()
# Combinations, as the old code and, in the next line, this one call them.
COMBINED = """
attn=gate_channel attn.conv=3
attn=gate_channel attn._target_=[GatedAttention,ShortConvolution] +attn.conv=3
attn=sink attn.exclusive=true
attn=sink attn._target_=[ExclusiveAttention,SinkAttention]
attn=sliding_window+sdpa
attn=hybrid
attn=value_residual+gated_delta_net+value_residual
attn=hybrid attn@attn.layers.0=value_residual attn@attn.layers.1=gated_delta_net \
    +attn@attn.layers.2=value_residual
"""


def models(kind: str, new: bool) -> dict[str, str]:
    """The name and the overrides of each model."""
    if kind == "others":
        calls = COMBINED.strip().splitlines()[new::2] + [f"preset={name}" for name in PRESETS]
        return {str(n): f"{call} {COMMON} {SMALL}" for n, call in enumerate(calls)}
    dropped = {name: kind == "long" and name not in NO_DROPOUT.split() for name in VARIANTS}
    given = f"preset=micro {COMMON} {KINDS[kind]}"
    return {name: f"{given} attn={name} model.dropout={0.1 * dropped[name]}" for name in VARIANTS}


def main(root: str, out: str, kind: str) -> None:
    """Write {name: {what: digest}} of the models of a kind of the code in `root`."""
    warnings.filterwarnings("ignore")
    steps: int = {"long": 0, "others": 2}.get(kind, 20)
    found: dict[str, Any] = {}
    with initialize_config_dir(f"{root}/conf", version_base="1.3"):
        for name, overrides in models(kind, new=root == str(ROOT)).items():
            cfg = compose("train", overrides.split())
            found[name] = digests(cfg)
            if steps:
                found[name] |= trained(cfg, steps, bf16=kind == "bf16")
    Path(out).write_text(json.dumps(found))


def sha(*tensors: Any) -> str:
    """One digest of tensors; all NaN are equal."""
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(x.detach().float().nan_to_num(7.0).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def loss_of(net: Any, ids: Any) -> Any:
    return F.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def digests(cfg: Any) -> dict[str, Any]:
    """Of a new model, and of one with enlarged weights, with a pass with dropout and gradients."""
    net: Any = read_config(cfg).model(65)
    stream, inputs = torch.Generator().manual_seed(0), []
    found = {"names": list(net.state_dict()), "first weights": sha(*net.state_dict().values())}
    with torch.no_grad():
        for p in net.parameters():
            p += 0.05 * torch.randn(p.shape, generator=stream)
    ids = torch.randint(65, (2, cfg.model.block_size), generator=stream)
    for block in net.blocks:
        block.attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    net.eval()
    found["logits"] = sha(net(ids))
    layers = [(block.attn, x) for block, x in zip(net.blocks, inputs, strict=True)]
    for what in ("pattern", "scores", "mask"):
        found[what] = sha(*(getattr(layer, what)(x) for layer, x in layers))
    net.train()
    torch.manual_seed(5)  # of dropout
    loss = loss_of(net, ids)
    loss.backward()
    grads = [torch.tensor(9.0) if p.grad is None else p.grad for p in net.parameters()]
    return found | {"loss": sha(loss), "gradients": sha(*grads)}


def trained(cfg: Any, steps: int, *, bf16: bool) -> dict[str, str]:
    """Losses and weights of some steps with the optimizer of the settings."""
    config, stream = read_config(cfg), torch.Generator().manual_seed(1)
    net, losses = config.model(65), []
    optimizer, schedule = config.optimizer(net, steps)
    for ids in torch.randint(65, (steps, 4, cfg.model.block_size), generator=stream):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = loss_of(net, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss)
    return {"losses": sha(*losses), "weights": sha(*net.state_dict().values())}


def differences(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    pairs = [(name, what) for name in before for what in before[name]]
    return {f"{n}: {what}" for n, what in pairs if before[n][what] != after[n][what]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["others", *KINDS])
def test_the_bits_are_those_of_the_old_code(kind: str, tmp_path: Path) -> None:
    found: list[dict[str, Any]] = []
    for root in (old_code(), ROOT):
        out = tmp_path / f"{len(found)}.json"
        environ = os.environ | {"PYTHONPATH": f"{root}/src:{ROOT}", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, str(root), str(out), kind]
        subprocess.run(command, env=environ, cwd=root, check=True)
        found.append(json.loads(out.read_text()))
    before, after = found
    assert len(before) == (11 if kind == "others" else 52)
    other = {"forgetting: losses", "forgetting: weights"}  # its gates are projected in fp32 now
    assert differences(before, after) == (other if kind == "bf16" else set())
    first, second, *_ = after
    planted = after | {first: after[second]}
    assert f"{first}: gradients" in differences(before, planted)


if __name__ == "__main__":
    main(*sys.argv[1:])
