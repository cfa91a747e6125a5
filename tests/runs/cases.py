"""Invented directories of runs, one of each kind that a comparison meets."""

from collections.abc import Callable
from pathlib import Path

from tests.invented import write_run as w

CASES: dict[str, Callable[[Path], object]] = {}


def case(make: Callable[[Path], object]) -> Callable[[Path], object]:
    CASES[make.__name__] = make
    return make


def pair(root: Path, other: str, loss: float, seeds: int = 1, /, **measures: float) -> None:
    """Runs of sdpa with a loss of 2.0 beside those of another variant."""
    for seed in range(seeds):
        w(root, "sdpa", seed, 2.0, **{key: x / 2 for key, x in measures.items()})
        w(root, other, seed, loss, **measures)


def seeds(root: Path, *losses: float) -> None:
    for seed, loss in enumerate(losses):
        w(root, "sdpa", seed, 2.0)
        w(root, "unscaled", seed, loss)


@case
def one_diverged(root: Path) -> None:
    w(root, "unscaled", 0, 2.1, status="diverged", step=3)
    w(root, "unscaled", 1, 2.1)
    for seed in (0, 1):
        w(root, "sdpa", seed, 2.0)


@case
def any_side_diverged(root: Path) -> None:
    for seed, ends in enumerate(("fff", "dff", "fdd")):
        for variant, end in zip(("unscaled", "sdpa", "flipped"), ends, strict=True):
            w(root, variant, seed, 2.0, status="diverged" if end == "d" else "finished")


@case
def leak(root: Path) -> None:
    for seed in (0, 1):
        w(root, "sdpa", seed, 2.0 + seed / 5, future_mass=0.0)
        w(root, "flipped", seed, 0.1 + seed / 5, future_mass=0.94)


@case
def stopped(root: Path) -> None:
    w(root, "sdpa", 0, 2.0)
    w(root, "unscaled", 0, 2.005, status="stopped", step=4)


@case
def other_precision(root: Path) -> None:
    w(root, "sdpa", 0, 2.0)
    w(root, "unscaled", 0, 2.005, precision="bf16-mixed")


@case
def grid(root: Path) -> None:
    for heads in (1, 4):
        for seed in range(3):
            for n, variant in enumerate(("sdpa", "unscaled")):
                loss = 2.0 + n * 0.1 + heads / 100 + seed / 1000
                w(root, variant, seed, loss, "preset=micro", f"model.n_head={heads}")


@case
def scales(root: Path) -> None:
    for scale in (0.3, 1.0):
        w(root, "sdpa", 0, 2.0 + scale, f"attn.scale={scale}")


@case
def nothing_in_common(root: Path) -> None:
    w(root, "sdpa", 0, 2.0)
    w(root, "unscaled", 0, 2.1, "optim.lr=0.003")
    w(root, "flipped", 0, 2.1, sha256="1" * 64)
    w(root, "linear", 1, 2.1)


@case
def two_texts(root: Path) -> None:
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1)):
        w(root, variant, 0, loss)
        w(root, variant, 1, loss + 1, sha256="1" * 64)


@case
def any_directory(root: Path) -> None:
    for name, variant, seed in (("a", "sdpa", 0), ("b", "sdpa", 1), ("c", "unscaled", 1)):
        w(root, variant, seed, 2.0 + seed, folder=root / name)


@case
def repeated(root: Path) -> None:
    for place in "ab":
        w(root / place, "sdpa", 0, 2.0)
    w(root / "b", "unscaled", 0, 2.5)


@case
def short_names(root: Path) -> None:
    for n in (1, 2):
        w(root, "sdpa", 0, 2.0, f"optim.lr={n}", f"trainer.lr={3 - n}", f"model.n_head={n}")


@case
def untyped(root: Path) -> None:
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1)):
        w(root, variant, 0, loss)
        w(root, variant, 0, loss, "optim.lr=0.01")


@case
def unfinished(root: Path) -> None:
    w(root, "sdpa", 0, 2.0)
    w(root, "unscaled", 0, 2.1)
    w(root, "unscaled", 1, 2.1, status="interrupted")
    w(root, "sdpa", 1, 2.1, status="failed")
    w(root, "unscaled", 10, 2.2)


@case
def damaged(root: Path) -> None:
    pair(root, "unscaled", 2.1, 2)
    (root / "attn=sdpa" / "seed=1" / "metrics.json").write_text("[]")


CASES |= {
    "worse": lambda r: pair(r, "unscaled", 2.1223, entropy=0.2, head_similarity=0.2),
    "learned_little": lambda r: pair(r, "unscaled", 3.5),
    "learned_nothing": lambda r: pair(r, "unscaled", 4.1),
    "ten": lambda r: seeds(r, *(2.01 if seed == 7 else 1.9 - seed / 1000 for seed in range(10))),
    "first_ten_decide": lambda r: seeds(r, *(2.1 if seed < 10 else 1.9 for seed in range(20))),
    "seventeen_of_twenty": lambda r: seeds(r, *(2.1 if seed >= 3 else 1.9 for seed in range(20))),
    "median_of_zero": lambda r: seeds(r, 1.9, 2.0, 2.1),
    "nearly_equal": lambda r: pair(r, "manual", 2.0 + 1.2e-6, 2, entropy=0.5),
    "equal": lambda r: pair(r, "manual", 2.0, 2),
    "leak_alone": lambda r: w(r, "flipped", 0, 0.1, future_mass=0.94),
    "collapse": lambda r: pair(r, "identical_heads", 2.004, head_similarity=1.0),
}
