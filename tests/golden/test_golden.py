"""Compare current results with the recorded ones; `record.py` says how to record them again."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.golden import record
from tests.marks import sampled

RECORDED = record.read("runs")["machines"]
# On a recorded machine every bit is compared. Elsewhere, losses after 4 steps; rounding grows with
# these large learning rates: after 8 steps, the two recorded machines differ by up to 9e-4 nats.
NATS_EARLY, NATS_LATE = 1e-4, 2e-3
# One run for each way through the code; `make test-all` compares all of them.
COMPARED = {
    "sdpa", "manual, dropout", "torch_mha", "flipped", "strict_flip", "gqa", "additive",
    "unscaled, init gpt2", "seed 1, two batches a step", "fast",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded() -> tuple[dict[str, Any], bool]:
    """The recorded runs, and whether this machine recorded them, so that bits can be compared."""
    now = record.fingerprint()
    for machine in RECORDED:
        if machine["fingerprint"] == now:
            return machine["runs"], True
    told = f"no runs are recorded on this machine ({now})"
    warnings.warn(f"{told}: losses are compared, weights are not", stacklevel=1)
    return RECORDED[0]["runs"], False


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the baseline, by the command line."""
    return record.command_line(tmp_path_factory.mktemp("outputs"))


def close(now: Any, then: Any, tolerance: float) -> bool:
    """Whether two JSON documents are equal, numbers to a tolerance."""
    if isinstance(now, dict) and isinstance(then, dict):
        return now.keys() == then.keys() and all(close(now[k], then[k], tolerance) for k in now)
    if isinstance(now, list) and isinstance(then, list):
        pairs = zip(now, then, strict=False)
        return len(now) == len(then) and all(close(n, t, tolerance) for n, t in pairs)
    if isinstance(now, float) and isinstance(then, float):
        return abs(now - then) <= tolerance
    return bool(now == then)


def agree(now: dict[str, Any], then: dict[str, Any], same_machine: bool) -> None:
    """Compare what two runs left."""
    told = f"{now}\nbut recorded was\n{then}"
    if same_machine:
        assert now == then, told
        return
    assert close(now["val_losses"][:1], then["val_losses"][:1], NATS_EARLY), told
    assert close(now | {"weights": ""}, then | {"weights": ""}, NATS_LATE), told
    assert (now["weights"] is None) == (then["weights"] is None), told


def test_every_run_is_recorded() -> None:
    assert all(machine["runs"].keys() == record.RUNS.keys() for machine in RECORDED)


@pytest.mark.parametrize("name", sampled(record.RUNS, lambda name: name in COMPARED))
def test_a_run_gives_the_same_losses_and_weights(
    name: str, recorded: tuple[dict[str, Any], bool], tmp_path: Path
) -> None:
    folder = record.train(record.RUNS[name], tmp_path / "run")
    runs, same_machine = recorded
    agree(record.outcome(folder), runs[name], same_machine)


def test_the_command_line_gives_the_same_losses_and_weights(
    recorded: tuple[dict[str, Any], bool], watched: Path
) -> None:
    runs, same_machine = recorded
    agree(record.outcome(watched), runs["sdpa"], same_machine)


def test_an_imported_gpt2_gives_the_same_logits() -> None:
    now, then = record.gpt2(), record.read("gpt2")
    assert close(now, then, 1e-8), f"{now}\nbut recorded was\n{then}"
