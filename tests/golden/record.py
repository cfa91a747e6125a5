"""Record results, so that a redesign can show that it computes the same.

    python -m tests.golden.record        # everything, about a minute
    python -m tests.golden.record runs   # one of the files

Record only when a change of the numbers is meant, or to add another machine's runs by an unchanged
commit; `test_golden.py` compares. Whatever moves when modules are renamed
is in the first section: imports, the checkpoint's layout, and the names of weights.
"""

import hashlib
import json
import math
import platform
import re
import runpy
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir

# --- What a redesign adapts: from here to the next line of dashes. ------------------------------
from attnlab.attention import SelfAttention, TorchMHA, Variant, kernels
from attnlab.interop import attention_from_gpt2, block_from_gpt2, from_gpt2
from attnlab.training.checkpoints import read_checkpoint
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.forked import ended

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CONF = ROOT / "conf"

# Regular expressions on the names in a checkpoint that give the names under which weights are
# hashed. A parameter that is renamed gets a line here, so that its hash stays.
CANONICAL = [(r"^net\.", "")]


def train(settings: Mapping[str, object], folder: Path) -> Path:
    """Do a run in this process, as `train.py` does it; returns its folder."""
    overrides = [f"{key}={value}" for key, value in settings.items()]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("train", overrides)
    variant = str(settings["attn"]).replace("/", "-")
    with one_thread():
        run(read_config(cfg), folder, variant=variant, overrides=overrides)
    return folder


def checkpoint(folder: Path) -> tuple[dict[str, torch.Tensor], dict[int, float]]:
    """Weights and validation losses (step -> nats) of last.ckpt; empty where a run diverged."""
    file = folder / "checkpoints" / "last.ckpt"
    if not file.exists():
        return {}, {}
    content = read_checkpoint(file)
    return content["state_dict"], content["attnlab"]["val_losses"]


GPT2_VARIANTS: dict[str, Any] = {
    "own": None,
    "manual": Variant(SelfAttention, {"kernel": kernels.manual}),
    "torch_mha": TorchMHA,
    "scale_2": Variant(SelfAttention, {"scale": 2.0}),
}
# ------------------------------------------------------------------------------------------------

# Everything is spelled out, so that no default of the configuration matters. The runs are short,
# so queries and keys of unit variance and a high rate make them differ.
GPT: dict[str, object] = {
    "preset": "micro",
    "attn": "sdpa",
    "model": "gpt",
    "model.n_layer": 2,
    "model.n_head": 4,
    "model.n_embd": 32,
    "model.block_size": 24,
    "model.dropout": 0.0,
    "model.bias": "false",
    "model.learned_positions": "true",
    "model.smear": 0,
    "model.init": "unit",
    "model.qk_std": "null",
    "data": "plays",
    "data.length": 5000,
    "data.seed": 0,
    "data.batch_size": 8,
    "optim": "adamw",
    "optim.lr": 3e-2,
    "optim.min_lr": 3e-3,
    "optim.warmup_steps": 2,
    "optim.betas": "[0.9,0.99]",
    "optim.weight_decay": 0.1,
    "trainer.max_steps": 8,
    "trainer.val_check_interval": 4,
    "trainer.accelerator": "cpu",
    "trainer.precision": "32-true",
    "trainer.gradient_clip_val": 1.0,
    "trainer.accumulate_grad_batches": 1,
    "probes": "none",
    "logger": "none",
    "seed": 0,
    "checkpoint_every": 100,
}
MUON = {
    "optim": "muon",
    "optim.lr": 1.1e-2,
    "optim.min_lr": 0.0,
    "optim.adamw_lr": 3e-2,
    "optim.momentum": 0.75,
    "optim.ns_steps": 5,
    "optim.betas": "[0.8,0.95]",
}
# The preset says these itself.
OF_FAST = ("model.learned_positions", "model.smear")
VARIANTS = (
    "sdpa manual torch_mha unscaled inverse_scale cosine flipped bidirectional peek_one "
    "strict_flip zero_fill finite_fill post_softmax_mask softmax_over_queries unmerged_heads "
    "identical_heads identical_qkv single_head gqa mqa rotary additive general"
).split()
OTHERWISE: dict[str, dict[str, object]] = {
    "bias": {"model.bias": "true"},
    "smear": {"model.smear": 2},
    "qk_std": {"model.qk_std": 0.3},
    "rotary alone": {"attn": "rotary", "model.learned_positions": "false"},
    "muon": MUON,
    "64-true": {"trainer.precision": "64-true"},
    "seed 1, two batches a step": {"seed": 1, "trainer.accumulate_grad_batches": 2},
}
FAST = {key: GPT[key] for key in GPT if key not in OF_FAST} | MUON
FAST |= {"preset": "fast", "train_loss": "true"}
RUNS: dict[str, dict[str, object]] = {
    **{variant: GPT | {"attn": variant} for variant in VARIANTS},
    **{
        f"{variant}, init gpt2": GPT | {"attn": variant, "model.init": "gpt2"}
        for variant in ("sdpa", "unscaled", "identical_heads", "cosine")
    },
    **{
        f"{variant}, dropout": GPT | {"attn": variant, "model.dropout": 0.1}
        for variant in ("sdpa", "manual", "torch_mha")
    },
    **{name: GPT | changed for name, changed in OTHERWISE.items()},
    "fast": FAST,
}
# Looked at by everything there is; it must not change a bit.
WATCHED = {
    "logger": "tensorboard",
    "probes": "heads",
    "probes.patterns.every": 4,
    "probes.gradients.every": 4,
    "probes.predictions.train_windows": 4,
    "probes.predictions.sample_chars": 10,
}


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread, so that sums have one order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fingerprint() -> dict[str, object]:
    """What bits depend on besides the code: processor, PyTorch, threads."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    told: dict[str, str] = {}
    for name, _, value in (line.partition(":") for line in lines):
        told.setdefault(name.strip(), value.strip())
    names = ("model name", "cpu family", "model", "stepping")
    processor = ", ".join(told[name] for name in names if name in told)
    with one_thread():
        threads = torch.get_num_threads()
    return {
        "processor": processor or platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "threads": threads,
    }


def number(value: float) -> float | None:
    """A number for JSON, which has no NaN."""
    return value if math.isfinite(value) else None


def digest(weights: Mapping[str, torch.Tensor]) -> str | None:
    """SHA-256 over all weights, in the order of their canonical names; None where none are."""
    named = {}
    for name, weight in weights.items():
        for pattern, replacement in CANONICAL:
            name = re.sub(pattern, replacement, name)
        named[name] = weight.detach().cpu().contiguous()
    total = hashlib.sha256()
    for name, weight in sorted(named.items()):
        total.update(f"{name} {weight.dtype} {list(weight.shape)}\n".encode())
        total.update(weight.numpy().tobytes())
    return total.hexdigest() if named else None


def outcome(folder: Path) -> dict[str, Any]:
    """What a run left: status, losses, and the hash of its weights."""
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    weights, val_losses = checkpoint(folder)
    return {
        "status": metrics["status"],
        "val_loss": number(float(metrics["val_loss"])),
        "train_loss": number(float(metrics["train_loss"])),
        "val_losses": [number(val_losses[step]) for step in sorted(val_losses)],
        "weights": digest(weights),
    }


def command_line(outputs: Path) -> Path:
    """The baseline by `train.py` with all instruments, in a forked process; returns its folder."""
    settings = GPT | WATCHED | {"outputs": outputs, "name": "golden"}
    overrides = [f"{key}={value}" for key, value in settings.items()]
    code, said = ended(overrides, outputs, lambda: torch.set_num_threads(1))
    assert code == 0, said
    (metrics,) = outputs.rglob("metrics.json")
    return metrics.parent


def attnlab(*arguments: str) -> str:
    """What `python -m attnlab ...` prints, in this process."""
    before = sys.argv, list(sys.path)
    said = StringIO()
    sys.argv = ["attnlab", *arguments]
    try:
        with one_thread(), redirect_stdout(said):
            runpy.run_module("attnlab", run_name="__main__")
    except SystemExit as end:
        assert end.code in (0, 1, None), said.getvalue()
    finally:
        sys.argv, sys.path[:] = before
    return said.getvalue()


def gpt2() -> dict[str, Any]:
    """Logits of a small GPT-2 in our classes, in fp64, with weights drawn here by name."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=61, n_positions=24, n_embd=32, n_layer=2, n_head=4,
        bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval().double()
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(model.transformer.named_parameters()):
            drawn = torch.randn(weight.shape, generator=stream, dtype=torch.float64)
            weight.copy_(0.3 * drawn + (1 if "ln_" in name and name.endswith("weight") else 0))
    ids = torch.randint(61, (3, 24), generator=stream)
    x = torch.randn(2, 24, 32, generator=stream, dtype=torch.float64)
    first = model.transformer.h[0]
    with torch.no_grad(), one_thread():
        outputs = {f"logits, {n}": from_gpt2(model, a)(ids) for n, a in GPT2_VARIANTS.items()}
        outputs["logits, theirs"] = model(ids).logits
        outputs["block"] = block_from_gpt2(first)(x)
        outputs["attention"] = attention_from_gpt2(first.attn)(x)
    return {
        name: {"sum": float(y.sum()), "slice": y[-1, -1, :8].tolist()}
        for name, y in outputs.items()
    }


def all_runs(scratch: Path) -> dict[str, Any]:
    """The content of runs.json with this machine added, except the run of `command_line`."""
    done = {name: outcome(train(s, scratch / str(i))) for i, (name, s) in enumerate(RUNS.items())}
    here = fingerprint()
    others = [each for each in read("runs")["machines"] if each["fingerprint"] != here]
    return {"machines": [*others, {"fingerprint": here, "runs": done}]}


def read(name: str) -> Any:
    """The recorded content of a file."""
    return json.loads((HERE / f"{name}.json").read_text(encoding="utf-8"))


def main() -> None:
    """Write the files that are named, or all."""
    with tempfile.TemporaryDirectory() as place:
        scratch = Path(place)
        watched: list[Path] = []

        def the_watched() -> Path:
            if not watched:
                watched.append(command_line(scratch / "outputs"))
            return watched[0]

        recorders: dict[str, Callable[[], Any]] = {
            "runs": lambda: all_runs(scratch / "runs"),
            "gpt2": gpt2,
        }
        for name in sys.argv[1:] or recorders:
            content = recorders[name]()
            text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
            (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
            print(f"{name}.json is written")


if __name__ == "__main__":
    main()
