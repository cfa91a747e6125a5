"""The engine of lab/engine against PyTorch, in Node: weights, batches, gradients, training."""

import base64
import json
import lzma
import math
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from attnlab.data.corpus import Corpus, TrainBatches, tinyshakespeare
from attnlab.probes.capture import scalars, views
from attnlab.training.config import read_config
from scripts.lab import ENGINE, TEXT, engine_settings, read_entries, runs_of
from tests.conftest import settings

JOBS = ENGINE.parent / "tests" / "jobs.js"
TEXTS = ENGINE.parent / "page" / "texts.js"
NODE = shutil.which("node")
ASSEMBLER = shutil.which("wat2wasm")
pytestmark = pytest.mark.skipif(NODE is None, reason="there is no Node")

TINY = (
    "model.n_layer=2 model.n_head=2 model.n_embd=64 model.block_size=32 data.batch_size=4 "
    "optim.lr=0.001 optim.min_lr=0.0001 optim.warmup_steps=4 optim.weight_decay=1.0"
).split()
VARIANTS = [
    *("sdpa", "unscaled", "flipped", "peek_one", "bidirectional", "zero_fill"),
    *("identical_heads", "none", "single_head", "model_scale", "inverse_scale"),
    *("sdpa model.init=gpt2", "unscaled model.init=gpt2"),
]
# Largest differences from PyTorch. Gradients and losses are sums in fp32 in another order.
LIMITS = {
    "names": 0.0,
    "batches": 0.0,
    "weights": 3e-7,
    "measures": 3e-7,
    "first loss": 1e-6,
    "gradients": 1e-6,
    "losses": 3e-6,
    "norms": 1e-5,
}
STEPS = 10


@cache
def shakespeare() -> Corpus:
    return tinyshakespeare()


@cache
def tiny_reference(variant: str) -> "Reference":
    return Reference(tiny(variant), 7, STEPS)


def tiny(variant: str) -> list[str]:
    """The words of a run; a variant may have further ones behind it."""
    return ["preset=micro", *TINY, *f"attn={variant}".split()]


class Reference:
    """A run in PyTorch: initial weights, measures, gradients of step 0, and losses.

    With `moved`, each initial weight is the next number of fp32, up or down: what changes then is
    what rounding alone may change.
    """

    def __init__(
        self, overrides: Sequence[str], seed: int, steps: int, *, moved: bool = False
    ) -> None:
        cfg = settings(*overrides, f"seed={seed}", "trainer.accelerator=cpu")
        config = read_config(cfg)
        text = shakespeare()
        T = cfg.model.block_size
        B = cfg.data.batch_size
        self.net = config.model(len(text.alphabet))
        if moved:
            move_by_one_rounding(self.net)
        named = list(self.net.named_parameters())
        self.names = [[name, *([1] if p.dim() == 1 else []), *p.shape] for name, p in named]
        self.weights = flat_numbers([p for _, p in named])
        self.measures = scalars(list(views(self.net.eval(), text.windows("val", T, 2)[0])))
        self.net.train()
        draw = text.train_draw(T)
        self.batches = [next(iter(TrainBatches(draw, B, seed, n + 1, n))) for n in (0, 1, 299)]
        optimizer, schedule = config.optimizer(self.net, cfg.trainer.max_steps)
        self.losses: list[float] = []
        self.norms: list[float] = []
        for step, (x, y) in enumerate(TrainBatches(draw, B, seed, steps)):
            loss = cross_entropy(self.net(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            if step == 0:
                self.gradients = flat_numbers([p.grad for p in self.net.parameters()])
            norm = torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            self.losses.append(float(loss.detach()))
            self.norms.append(float(norm))

    @torch.no_grad()
    def validation_loss(self) -> float:
        """The mean loss on all of the validation text, in windows that do not overlap."""
        batches = shakespeare().held_out("val", self.net.block_size)
        losses = [cross_entropy(self.net(x).mT, y, reduction="sum") for x, y in batches]
        return float(sum(losses)) / sum(y.numel() for _, y in batches)


@torch.no_grad()
def move_by_one_rounding(net: torch.nn.Module) -> None:
    for weight in net.parameters():
        direction = torch.where(torch.rand_like(weight) < 0.5, -math.inf, math.inf)
        weight.copy_(weight.nextafter(direction))


def flat_numbers(tensors: Sequence[Tensor | None]) -> np.ndarray:
    """Tensors as one row of numbers."""
    return np.concatenate([t.detach().numpy().copy().ravel() for t in tensors if t is not None])


@pytest.fixture(scope="session")
def text_of_shakespeare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("lab") / "text.txt"
    file.write_bytes(lzma.decompress(TEXT.read_bytes()))
    return file


def job(overrides: Sequence[str], seed: int, steps: int, **options: Any) -> dict[str, Any]:
    """What jobs.js needs for a run."""
    own = engine_settings(tuple(overrides)) | {"seed": seed}
    return {"settings": own, "steps": steps, "wasm": True, "validate": False} | options


def run_jobs(jobs: list[dict[str, Any]], text: Path, folder: Path, engine: Path = ENGINE) -> Any:
    """What the engine in a folder computes."""
    for i, each in enumerate(jobs):
        each["name"] = str(folder / str(i))
    command = [str(NODE), str(JOBS), str(engine), str(text)]
    done = subprocess.run(command, input=json.dumps(jobs), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rounding_of(run: Any, steps: int, reference: Reference) -> dict[str, float]:
    """The largest difference that moving each initial weight by one rounding makes in PyTorch."""
    moved = Reference(run.overrides, run.seed, steps, moved=True)
    return {
        "gradients": largest(moved.gradients, reference.gradients),
        "losses": largest(moved.losses, reference.losses),
        "norms": largest(moved.norms, reference.norms),
    }


def differences(found: dict[str, Any], reference: Reference) -> dict[str, float]:
    """The largest difference between an engine's run and PyTorch's, for each of LIMITS."""
    files = {part: np.fromfile(f"{found['name']}.{part}", "<f4") for part in ("weights", "grads")}
    batches = [[x.flatten().tolist(), y.flatten().tolist()] for x, y in reference.batches]
    tags = {"entropy": "attn/entropy", "future": "attn/future_mass"}
    if "attn/head_similarity" in reference.measures:
        tags["similarity"] = "attn/head_similarity"
    measured = [
        (found["measures"][name], reference.measures[tag])
        for name, tag in tags.items()
        if not math.isnan(reference.measures[tag])
    ]
    return {
        "names": float(found["parameters"] != reference.names),
        "batches": float(found["batches"] != batches),
        "weights": largest(files["weights"], reference.weights),
        "measures": largest(*zip(*measured, strict=True)),
        "first loss": abs(found["losses"][0] - reference.losses[0]),
        "gradients": largest(files["grads"], reference.gradients),
        "losses": largest(found["losses"], reference.losses[: len(found["losses"])]),
        "norms": largest(found["norms"], reference.norms[: len(found["norms"])]),
    }


def largest(a: Any, b: Any) -> float:
    """The largest difference of two rows of numbers; infinite where one is not a number."""
    apart = np.abs(np.asarray(a, float) - np.asarray(b, float))
    return float(np.where(np.isnan(apart), np.inf, apart).max())


def too_large(
    apart: dict[str, float], rounding: dict[str, float] | None = None
) -> dict[str, float]:
    """The differences beyond LIMITS and beyond 8 times what rounding makes in PyTorch: it moves
    the initial weights once, and an engine rounds in each operation (5 times as much was seen)."""
    limits = dict(LIMITS)
    for name, value in (rounding or {}).items():
        limits[name] = max(limits[name], 8 * value)
    return {name: value for name, value in apart.items() if not value <= limits[name]}


@pytest.mark.parametrize("wasm", [True, False])
def test_a_tiny_model_trains_as_in_pytorch(
    wasm: bool, text_of_shakespeare: Path, tmp_path: Path
) -> None:
    jobs = [job(tiny(variant), 7, STEPS, wasm=wasm) for variant in VARIANTS]
    found = run_jobs(jobs, text_of_shakespeare, tmp_path)
    assert {each["operations"] for each in found} == {"WebAssembly" if wasm else "JavaScript"}
    wrong = {}
    for variant, each in zip(VARIANTS, found, strict=True):
        wrong[variant] = too_large(differences(each, tiny_reference(variant)))
    assert wrong == {variant: {} for variant in VARIANTS}


@pytest.mark.parametrize("variant", ["zero_fill"])
def test_the_validation_loss_is_that_of_all_of_the_text(
    variant: str, text_of_shakespeare: Path, tmp_path: Path
) -> None:
    jobs = [job(tiny(variant), 7, STEPS, validate=True)]  # the last window is shorter
    (found,) = run_jobs(jobs, text_of_shakespeare, tmp_path)
    expected = tiny_reference(variant).validation_loss()
    assert found["val_loss"] == pytest.approx(expected, abs=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", read_entries())
def test_a_lesson_trains_as_in_pytorch(
    lesson: str, text_of_shakespeare: Path, tmp_path: Path
) -> None:
    for run in runs_of(lesson):
        (found,) = run_jobs([job(run.overrides, run.seed, 40)], text_of_shakespeare, tmp_path)
        reference = Reference(run.overrides, run.seed, 40)
        apart = differences(found, reference)
        rounding = rounding_of(run, 40, reference)
        assert too_large(apart, rounding) == {}, (run, apart, rounding)


# A fault in the engine: the file, what stands there, what is written instead, and the variant
# that shows it.
FAULTS = {
    "mask": ("attention.js", "causal: (q, k) => k <= q,", "causal: (q, k) => k <= q + 1,", "sdpa"),
    "mask of the gradient": ("attention.js", "dScores.data[place] = 0;", ";", "zero_fill"),
    "scale": ("attention.js", "return 1 / Math.sqrt(D)", "return 1 / D", "sdpa"),
    "scale by name": ("attention.js", '"1/sqrt(C)": 1 / Math.sqrt(C)', '"1/sqrt(C)": 1 / C',
                      "model_scale"),
    "scale of the gradient": (
        *("operations.js", "dp.data[dAt + j] = scale * p.data", "dp.data[dAt + j] = p.data"),
        "sdpa",
    ),
    "heads": ("attention.js", "columns[first(i)] / Math.sqrt(H)", "columns[first(i)]",
              "identical_heads"),
    "AdamW": ("operations.js", "kept * value[i]", "value[i]", "sdpa"),
    "AdamW of norms": ("training.js", "M > 1 ? 1 - lr * weight_decay : 1", "1 - lr * weight_decay",
                       "sdpa"),
    "bias correction": ("training.js", "Math.sqrt(1 - beta2 ** updates)", "1", "sdpa"),
    "clipping": ("training.js", "Math.min(1, 1 / (norm + 1e-6))", "1", "sdpa"),
    "LayerNorm": ("operations.js", "squares / C + 1e-5", "squares / (C - 1) + 1e-5", "sdpa"),
    "LayerNorm's gradient": ("operations.js", "dUnit - mean - along", "dUnit - along", "sdpa"),
    "GELU": ("operations.js", "1.061405429", "1.06", "sdpa"),
    "schedule": ("training.js", "(warmup_steps + 1)", "warmup_steps", "sdpa"),
    "data": ("training.js", "train.length - T)", "train.length - T - 1)", "sdpa"),
    "tied head": ("layers.js", "add(C, this.symbols.grad", "add(0, this.symbols.grad", "sdpa"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_engine_is_noticed(
    name: str, text_of_shakespeare: Path, tmp_path: Path
) -> None:
    file, right, wrong, variant = FAULTS[name]
    engine = tmp_path / "engine"
    shutil.copytree(ENGINE, engine)
    source = (engine / file).read_text()
    assert source.count(right) == 1
    (engine / file).write_text(source.replace(right, wrong))
    jobs = [job(tiny(variant), 7, 4, wasm=False)]
    (found,) = run_jobs(jobs, text_of_shakespeare, tmp_path, engine)
    assert too_large(differences(found, tiny_reference(variant)))


@pytest.mark.skipif(ASSEMBLER is None, reason="there is no wat2wasm")
def test_the_stored_bytes_are_those_of_the_source(tmp_path: Path) -> None:
    out = tmp_path / "operations.wasm"
    subprocess.run([str(ASSEMBLER), str(ENGINE / "operations.wat"), "-o", str(out)], check=True)
    stored = (ENGINE / "operations.wasm.base64").read_text()
    assert out.read_bytes() == base64.b64decode(stored)


def test_a_text_of_ones_own_has_the_ids_of_train_py() -> None:
    # Code points above and below the surrogates, which JavaScript sorts otherwise.
    text = "The \U0001f600 cat \uffee sat.\r\nä\t" * 40
    script = f"""
        const {{ corpusOf }} = await import({json.dumps(TEXTS.as_uri())});
        const {{ alphabet, train, val }} = corpusOf(JSON.parse(process.argv[1]));
        console.log(JSON.stringify([alphabet, [...train], [...val]]));
    """
    command = [str(NODE), "--input-type=module", "-e", script, json.dumps(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    expected = Corpus.of("own", text, "characters")
    alphabet = [expected.alphabet.decode([i]) for i in range(len(expected.alphabet))]
    assert json.loads(done.stdout) == [alphabet, expected.train.tolist(), expected.val.tolist()]
