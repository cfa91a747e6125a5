"""Sampling speed with and without the KV cache, by the length of the text.

    python benchmarks/sampling.py

Generates characters one at a time with models of block_size = 1,280 (untrained: speed does not
depend on the weights), after 100, 300, and 1,000 characters, alternating between cache and no
cache. For comparison, `generate` of transformers runs on the same exported model with its own
cache. The times do not include processing the prompt. Writes benchmarks/sampling.json.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from attnlab.attention import SelfAttention
from attnlab.init import init_weights
from attnlab.interop import to_gpt2
from attnlab.model import GPT
from attnlab.sampling import sample
from attnlab.training.metrics import git_state

V, BLOCK = 65, 1280
SHAPES = {
    "tiny": {"n_layer": 4, "n_head": 4, "n_embd": 128},
    "baby": {"n_layer": 6, "n_head": 6, "n_embd": 384},
}


def milliseconds(drawn: Iterator[int], chars: int) -> float:
    """Milliseconds per character after the first one, which includes processing the prompt."""
    next(drawn)
    began = time.perf_counter()
    for _ in range(chars):
        next(drawn)
    return (time.perf_counter() - began) / chars * 1000


@torch.inference_mode()
def of_transformers(net: GPT, prompt: torch.Tensor, chars: int) -> float:
    """Milliseconds per character of greedy `generate` after the first one."""
    model, times = to_gpt2(net), []
    for length in (1, 1 + chars):
        began = time.perf_counter()
        model.generate(
            prompt[None],
            attention_mask=torch.ones_like(prompt[None]),
            min_new_tokens=length,
            max_new_tokens=length,
            do_sample=False,
        )
        times.append(time.perf_counter() - began)
    return (times[1] - times[0]) / chars * 1000


def measure(net: GPT, context: int, chars: int, rounds: int) -> dict[str, float]:
    """Median milliseconds per character over rounds, after about `context` characters."""
    prompt = torch.randint(V, (context,), generator=torch.Generator().manual_seed(0))
    times: dict[str, list[float]] = {"cached": [], "uncached": [], "transformers": []}
    for _ in range(rounds):
        times["cached"].append(milliseconds(sample(net, prompt, chars + 1), chars))
        few = max(1, chars // 8)
        uncached = sample(net, prompt, few + 1, cache=False)
        times["uncached"].append(milliseconds(uncached, few))
        times["transformers"].append(of_transformers(net, prompt, chars))
    result = {name: statistics.median(values) for name, values in times.items()}
    paired = zip(times["uncached"], times["cached"], strict=True)
    return result | {"speedup": statistics.median(u / c for u, c in paired)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed of sampling.")
    parser.add_argument("--chars", type=int, default=64, help="characters per measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    rows = []
    for name, shape in SHAPES.items():
        net = GPT(SelfAttention, V, block_size=BLOCK, **shape)
        init_weights(net, 0)
        for context in (100, 300, 1000):
            row = measure(net.eval(), context, options.chars, options.rounds)
            rows.append({"model": name, "context": context, **row})
            shown = ", ".join(f"{key} {row[key]:.2f} ms" for key in row if key != "speedup")
            print(f"{name}, {context} characters: {shown}; {row['speedup']:.1f} times", flush=True)
    result = {
        "rows": rows,
        "unit": "milliseconds per character",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "git": git_state(),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
