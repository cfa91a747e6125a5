"""Today's results against the recorded ones; `record.py` says how to record them anew."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.golden import record
from tests.marks import sampled

NATS = 1e-4  # between machines; on the recording one every bit of the weights must be equal
RECORDED = record.read("runs")
# One run for each way through the code; `make test-all` compares all of them.
COMPARED = {
    "sdpa", "manual, dropout", "torch_mha", "flipped", "strict_flip", "gqa", "additive",
    "unscaled, init gpt2", "seed 1, two batches a step", "fast", "translation, additive",
}  # fmt: skip


@pytest.fixture(scope="module")
def same_machine() -> bool:
    """Whether bits can be compared."""
    now = record.fingerprint()
    if now != RECORDED["fingerprint"]:
        told = f"recorded on another machine ({RECORDED['fingerprint']}, this is {now})"
        warnings.warn(f"{told}: losses are compared, weights are not", stacklevel=1)
    return bool(now == RECORDED["fingerprint"])


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the baseline, by the real command line."""
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


def agree(now: dict[str, Any], then: dict[str, Any], bits: bool) -> None:
    """Compare what two runs left."""
    told = f"{now}\nbut recorded was\n{then}"
    assert close(now | {"weights": ""}, then | {"weights": ""}, NATS), told
    assert (now["weights"] is None) == (then["weights"] is None), told
    if bits:
        assert now["weights"] == then["weights"], told


def test_every_run_is_recorded() -> None:
    assert RECORDED["runs"].keys() == record.RUNS.keys()


@pytest.mark.parametrize("name", sampled(record.RUNS, lambda name: name in COMPARED))
def test_a_run_gives_the_same_losses_and_weights(
    name: str, same_machine: bool, tmp_path: Path
) -> None:
    folder = record.train(record.RUNS[name], tmp_path / "run")
    agree(record.outcome(folder), RECORDED["runs"][name], same_machine)


def test_the_command_line_gives_the_same_losses_and_weights(
    same_machine: bool, watched: Path
) -> None:
    agree(record.outcome(watched), RECORDED["runs"]["sdpa"], same_machine)


def test_an_imported_gpt2_gives_the_same_logits() -> None:
    now, then = record.gpt2(), record.read("gpt2")
    assert close(now, then, 1e-8), f"{now}\nbut recorded was\n{then}"


def test_every_plant_is_recorded() -> None:
    assert list(record.read("checkup")) == record.EXAMINED


@pytest.mark.long  # tests/faults asserts the diagnosis of every planted fault
@pytest.mark.parametrize("name", record.EXAMINED)
def test_the_checkup_says_the_same(name: str) -> None:
    assert record.examined(name) == record.read("checkup")[name]


def test_no_tag_of_tensorboard_is_lost(watched: Path, tmp_path: Path) -> None:
    now = record.all_tags(watched, tmp_path)
    for run, kinds in record.read("tags").items():
        for kind, tags in kinds.items():
            assert set(tags) <= set(now[run].get(kind, ())), (run, kind)


@pytest.mark.parametrize("name", record.read("public"))
def test_a_public_name_can_be_imported(name: str) -> None:
    assert record.imported(name, record.PUBLIC[name]) is not None


def test_what_the_documents_import_is_there() -> None:
    for name, where in record.documented().items():
        assert record.imported(name, where["module"]) is not None


@pytest.mark.long
def test_no_key_of_the_json_is_lost(watched: Path, tmp_path: Path) -> None:
    now = record.json_keys(watched, tmp_path)
    for name, keys in record.read("json_keys").items():
        assert set(keys) <= set(now[name]), name
