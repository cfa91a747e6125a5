"""Every variant of commit b308e5e, now and then: first weights, training, patterns, bit for bit.

The file is also the program that both sides run, `python test_same_bits.py ROOT OUT SLOW`: it
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

SELF = Path(__file__).resolve()
DROPPED = {
    "flex", "differential_v2", "value_embeddings", "scalable_softmax", "partial_rotary",
    "softpick",
}  # fmt: skip
NO_DROPOUT = {
    "delta_net", "delta_net_negative", "gated_delta_net", "kda", "decay", "retention",
    "gated_linear",
}  # fmt: skip
# In bf16, the gates are now projected inside the kernel, where autocast is off.
OTHER_IN_BF16 = {"forgetting"}
# T = 72 is more than a chunk of the delta rule.
PLAIN = {"n_embd": 32, "block_size": 64}
OTHER = {"n_embd": 32, "block_size": 72, "n_layer": 3, "bias": True, "init": "gpt2"}
# Presets and combinations, as the old code and this one call them.
OTHERS = {name: (f"preset={name}", f"preset={name}") for name in (
    "micro", "fast", "fox_pro", "gpt_oss", "tasks", "baby", "tiny",
)} | {
    "gate and convolution": (
        "attn=gate_channel attn.conv=3",
        "attn=gate_channel attn._target_=[GatedAttention,ShortConvolution] +attn.conv=3",
    ),
    "exclusive sink": (
        "attn=sink attn.exclusive=true",
        "attn=sink attn._target_=[ExclusiveAttention,SinkAttention]",
    ),
    "hybrid": ("attn=sliding_window+sdpa", "attn=hybrid"),
    "three kinds of layers": (
        "attn=value_residual+gated_delta_net+value_residual",
        "attn=hybrid attn@attn.layers.0=value_residual attn@attn.layers.1=gated_delta_net "
        "+attn@attn.layers.2=value_residual",
    ),
}  # fmt: skip
SMALL = (
    "probes=none logger=none trainer.accelerator=cpu model.n_layer=3 model.n_head=4 "
    "model.n_embd=32 model.block_size=24 model.dropout=0.0"
).split()
COMMON = "preset=micro probes=none logger=none trainer.accelerator=cpu model.n_embd=32".split()
RATES = "model.block_size=32 optim.lr=0.01 optim.min_lr=0.001 optim.warmup_steps=2".split()


def main(root: str, out: str, kind: str) -> None:
    """Write {variant: {what: digest}} of the code in `root`; `kind` is fast or slow."""
    sys.path.insert(0, f"{root}/src")
    warnings.filterwarnings("ignore")
    from hydra import compose, initialize_config_dir

    found: dict[str, Any] = {}
    new = int(Path(root) == SELF.parents[2])
    with initialize_config_dir(f"{root}/conf", version_base="1.3"):
        for name, called in OTHERS.items() if kind == "others" else ():
            cfg = compose("train", [*called[new].split(), *SMALL])
            found[name] = digests(cfg) | trained(cfg, steps=2)
        for variant in sorted(kept()) if kind != "others" else ():
            mine = found[variant] = {}
            given = [*COMMON, f"attn={variant}"]
            if kind == "slow":
                for optim, bf16 in (("adamw", False), ("muon", False), ("adamw", True)):
                    cfg = compose("train", [*given, *RATES, f"optim={optim}"])
                    mine[f"{optim}, {bf16 = }"] = trained(cfg, bf16=bf16)
                continue
            cfg = compose("train", given)
            other = OTHER | {"dropout": 0.0 if variant in NO_DROPOUT else 0.1}
            for name, settings in (("plain", PLAIN), ("other", other)):
                cfg.model.update(settings)
                mine |= {f"{name}: {what}": digest for what, digest in digests(cfg).items()}
    Path(out).write_text(json.dumps(found))


def sha(*tensors: Any) -> str:
    """One digest of tensors; all NaN are equal."""
    digest = hashlib.sha256()
    for x in tensors:
        digest.update(x.detach().float().nan_to_num(7.0).contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def loss_of(net: Any, ids: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def digests(cfg: Any) -> dict[str, Any]:
    """Of a new model, of one with enlarged weights, and of three steps of training it."""
    import torch

    from attnlab.training.config import read_config

    net: Any = read_config(cfg).model(65)
    stream = torch.Generator().manual_seed(0)
    found: dict[str, Any] = {
        "names": list(net.state_dict()),
        "first weights": sha(*net.state_dict().values()),
    }
    with torch.no_grad():
        for p in net.parameters():
            p += 0.05 * torch.randn(p.shape, generator=stream)
    ids = torch.randint(65, (2, cfg.model.block_size), generator=stream)
    inputs: list[Any] = []
    for block in net.blocks:
        block.attn.register_forward_pre_hook(lambda _, args: inputs.append(args[0].detach()))
    net.eval()
    found["logits"] = sha(net(ids))
    layers = [(block.attn, x) for block, x in zip(net.blocks, inputs, strict=True)]
    found["patterns"] = sha(*(layer.pattern(x) for layer, x in layers))
    found["scores"] = sha(*(layer.scores(x) for layer, x in layers))
    found["masks"] = sha(*(layer.mask(x) for layer, x in layers))
    net.train()
    torch.manual_seed(5)  # of dropout
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(3):
        loss = loss_of(net, ids)
        optimizer.zero_grad()
        loss.backward()
        found[f"loss {step}"] = sha(loss)
        found[f"gradients {step}"] = {
            name: "none" if p.grad is None else sha(p.grad) for name, p in net.named_parameters()
        }
        optimizer.step()
    return found


def trained(cfg: Any, *, bf16: bool = False, steps: int = 20) -> dict[str, str]:
    """Losses and weights of some steps with the optimizer of the settings."""
    import torch

    from attnlab.training.config import read_config

    config, stream = read_config(cfg), torch.Generator().manual_seed(1)
    net, ids = (
        config.model(65),
        torch.randint(65, (steps, 4, cfg.model.block_size), generator=stream),
    )
    optimizer, schedule = config.optimizer(net, steps)
    losses = []
    for batch in ids:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = loss_of(net, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss)
    return {"losses": sha(*losses), "weights": sha(*net.state_dict().values())}


def kept() -> set[str]:
    """The variants of this tree that commit b308e5e has, too: all of its own but `DROPPED`."""
    new = {file.stem for file in SELF.parents[2].glob("conf/attn/*.yaml")}
    return new - {"none", "hybrid"}


if __name__ == "__main__":
    main(*sys.argv[1:])
else:
    import pytest

    from tests.old import ROOT, old_code

    def both(tmp_path: Path, kind: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for root in (old_code(), ROOT):
            out = tmp_path / f"{len(found)}.json"
            environ = os.environ | {"PYTHONPATH": f"{root}/src", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, str(SELF), str(root), str(out), kind]
            subprocess.run(command, env=environ, cwd=root, check=True)
            found.append(json.loads(out.read_text()))
        return found

    def differences(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
        return {
            f"{name}: {what}"
            for name in before
            for what in before[name]
            if before[name][what] != after[name][what]
        }

    @pytest.mark.parametrize("kind", ["fast", pytest.param("slow", marks=pytest.mark.slow)])
    def test_the_52_variants_of_the_old_code_have_its_bits(tmp_path: Path, kind: str) -> None:
        theirs = {file.stem for file in old_code().glob("conf/attn/*.yaml")}
        assert kept() == theirs - DROPPED and len(kept()) == 52
        other = {f"{variant}: adamw, bf16 = True" for variant in OTHER_IN_BF16}
        assert differences(*both(tmp_path, kind)) == (other if kind == "slow" else set())

    @pytest.mark.slow
    def test_presets_and_combinations_have_the_bits_of_the_old_code(tmp_path: Path) -> None:
        before, after = both(tmp_path, "others")
        assert before.keys() == after.keys() == OTHERS.keys()
        assert not differences(before, after)
        other = after | {"hybrid": after["micro"]}  # a planted difference
        assert "hybrid: logits" in differences(before, other)
