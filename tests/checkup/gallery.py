"""Examine models of public repositories, and bugs of theirs before and after the fix.

python -m tests.checkup.gallery --checkouts DIR   # writes docs/checkup-gallery.md

DIR holds a clone of each repository as owner+name, with its history; what is missing there is
listed on the page. The factories are ours; the code of others stays in the clones.
"""

import argparse
import importlib
import inspect
import io
import subprocess
import sys
import tarfile
import tempfile
import time
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.checkup import CheckupFailed, Report, assert_cache_equal, checkup

PAGE = Path("docs/checkup-gallery.md")
HEAD = """# Public repositories

`python -m tests.checkup.gallery --checkouts DIR` examines small models of public repositories at
the commits below with `checkup`, or their caches with `assert_cache_equal`, and writes this page.
Seconds are CPU seconds, with imports. Lines are those of our factory, and of the step of a cache,
in `tests/checkup/gallery.py`. All weights are random.

| repository | commit | examined | verdict | seconds | lines | diagnosis |
|---|---|---|---|---|---|---|
"""
FINDINGS = """
## Findings

- karpathy/nanochat: `GPT.forward` with a cache and more than one token adds no smear to the first
  of them, though `prev_embedding` holds its predecessor. Its own engine passes a prompt once and
  then single tokens, so it does not meet this.
- Lightning-AI/litgpt: before #2153, steps of one token are wrong beyond the window; after it, they
  are right. At that commit, steps of several tokens beyond the window still are not.
"""
Step = Callable[[Any, Tensor, Any], tuple[Tensor, Any]]


def without(*names: str) -> None:
    """Put empty modules in place of tokenizers that a model's file imports and does not use."""
    for name in names:
        sys.modules[name] = types.ModuleType(name)


def min_gpt() -> nn.Module:
    module = importlib.import_module("mingpt.model")
    config = module.GPT.get_default_config()
    config.model_type, config.n_layer, config.n_head, config.n_embd = None, 2, 2, 32
    config.vocab_size, config.block_size = 29, 32
    model: nn.Module = module.GPT(config)
    return model


def nano_gpt() -> nn.Module:
    module = importlib.import_module("model")
    config = module.GPTConfig(block_size=32, vocab_size=29, n_layer=2, n_head=2, n_embd=32)
    model: nn.Module = module.GPT(config)
    return model


def nanochat() -> nn.Module:
    module = importlib.import_module("nanochat.gpt")
    config = module.GPTConfig(
        sequence_len=64, vocab_size=64, n_layer=4, n_head=2, n_kv_head=2, n_embd=64
    )
    model: nn.Module = module.GPT(config)
    model.init_weights()  # type: ignore[operator]
    with torch.no_grad():  # as if trained: the smear and the projections start at 0
        model.smear_lambda.fill_(1.0)  # type: ignore[union-attr, operator]
        for p in model.parameters():
            p.add_(torch.randn_like(p), alpha=0.05)
    return model


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
        n_layer=2, n_head=2, n_embd=32, head_size=16, block_size=64, vocab_size=29,
        padded_vocab_size=29, sliding_window_size=16, sliding_window_indices=[1, 1],
    )  # fmt: skip
    model: nn.Module = importlib.import_module("litgpt.model").GPT(config)
    return model


def litgpt_step(model: Any, ids: Tensor, cache: Any) -> tuple[Tensor, Any]:
    begin = cache or 0
    if not begin:
        model.set_kv_cache(batch_size=len(ids), dtype=model.lm_head.weight.dtype)
    end = begin + ids.shape[1]
    return model(ids, input_pos=torch.arange(begin, end)), end


@dataclass(frozen=True)
class Entry:
    """A model of a repository at a commit."""

    repository: str
    commit: str
    make: Callable[[], nn.Module]
    about: str = "model"
    step: Step | None = None  # to examine its cache instead
    vocab_size: int = 29
    block_size: int = 32


ENTRIES = (
    Entry("karpathy/minGPT", "37baab71b9abea1b76ab957409a1cc2fbfba8a26", min_gpt),
    Entry("karpathy/nanoGPT", "3adf61e154c3fe3fca428ad6bc3818b27a3b8291", nano_gpt),
    Entry(
        "karpathy/nanochat", "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd", nanochat,
        vocab_size=64, block_size=64,
    ),
    Entry(
        "karpathy/nanochat", "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd", nanochat,
        "cache", nanochat_step, 64, 64,
    ),
    Entry(
        "Lightning-AI/litgpt", "20af91c84696f90998ea03bd7c236981a1f887a2", litgpt,
        "cache, before #2153", litgpt_step, block_size=64,
    ),
    Entry(
        "Lightning-AI/litgpt", "3023ca8845119b21281f465ea9448eabc9ea8224", litgpt,
        "cache, after #2153", litgpt_step, block_size=64,
    ),
)  # fmt: skip


def examine(entry: Entry) -> tuple[str, str]:
    """The verdict and the diagnoses."""
    torch.manual_seed(0)
    model, sizes = entry.make(), {"vocab_size": entry.vocab_size, "block_size": entry.block_size}
    if entry.step is None:
        return _told(checkup(model, **sizes))  # type: ignore[arg-type]
    try:
        assert_cache_equal(model, entry.step, **sizes)
    except CheckupFailed as failed:
        return _told(failed.report)
    return "Healthy", ""


def _told(report: Report) -> tuple[str, str]:
    said = "; ".join(f"{d.cause}: {d.headline}" for d in report.diagnoses)
    return report.verdict, said or report.error.splitlines()[-1] if report.error else said


def row(number: int, checkouts: Path) -> str:
    """The row of an entry, examined in a process of its own."""
    entry = ENTRIES[number]
    start = f"| [{entry.repository}](https://github.com/{entry.repository}) | {entry.commit[:7]} "
    start += f"| {entry.about} |"
    clone = checkouts / entry.repository.replace("/", "+")
    archive = subprocess.run(["git", "-C", clone, "archive", entry.commit], capture_output=True)
    if archive.returncode:
        return f"{start} missing | | | |"
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        command = [sys.executable, "-m", "tests.checkup.gallery", "--one", str(number), folder]
        done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else "failed | | | |"
    return f"{start} {said}"


def main() -> None:
    """Write the page, or print the cells of one entry."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkouts", type=Path)
    parser.add_argument("--one", nargs=2)
    chosen = parser.parse_args()
    if chosen.one:
        entry = ENTRIES[int(chosen.one[0])]
        sys.path.insert(0, chosen.one[1])
        verdict, said = examine(entry)
        adapters = [entry.make] + [entry.step] * (entry.step is not None)
        lines = sum(len(inspect.getsource(a).splitlines()) for a in adapters if a)
        print(f"{verdict} | {time.process_time():.0f} | {lines} | {said} |")
        return
    rows = []
    for number in range(len(ENTRIES)):
        rows.append(row(number, chosen.checkouts))
        print(rows[-1], flush=True)
    PAGE.write_text(HEAD + "\n".join(rows) + "\n" + FINDINGS, encoding="utf-8")


if __name__ == "__main__":
    main()
