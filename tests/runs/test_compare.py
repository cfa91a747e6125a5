"""What comparisons show, and what they refuse."""

from pathlib import Path

import pytest

from attnlab.errors import BadInput
from attnlab.runs.compare import at_best, compare
from attnlab.runs.frame import read_runs
from attnlab.runs.report import listing, table
from tests.invented import write_run


@pytest.fixture
def two(tmp_path: Path) -> Path:
    for seed in range(3):
        write_run(tmp_path, "sdpa", seed, 2.0, future_mass=0.0)
        write_run(tmp_path, "unscaled", seed, 2.1, future_mass=0.0)
        write_run(tmp_path, "flipped", seed, 0.1, future_mass=0.9)
    return tmp_path


@pytest.mark.parametrize(
    ("where", "shown", "n"), [("attn=unscaled", 3, 3), ("attn=sdpa", 3, 0), ("seed<2", 2, 2)]
)
def test_where_keeps_the_baseline(two: Path, where: str, shown: int, n: int) -> None:
    by_label = {c.label: c for c in compare(read_runs(two), where=[where])}
    assert len(by_label["sdpa"].runs) == shown
    assert len(by_label["unscaled"].pairs if n else []) == n
    assert ("flipped" in by_label) == (where == "seed<2")


def test_a_baseline_that_every_setting_is_its_own(two: Path) -> None:
    with pytest.raises(BadInput, match="its own baseline"):
        compare(read_runs(two), "lr=0.001")


def test_a_leak_has_a_verdict_and_no_difference(two: Path) -> None:
    rows = table(compare(read_runs(two))).set_index("run")
    assert rows.verdict.to_dict() == {"sdpa": "baseline", "unscaled": "open", "flipped": "leak"}
    assert rows.difference.isna().to_dict() == {"sdpa": True, "unscaled": False, "flipped": True}
    assert listing(read_runs(two)).set_index("run").leak.max() == pytest.approx(0.9)


def test_a_run_that_stands_twice_is_refused(tmp_path: Path) -> None:
    for place in "ab":
        for rate in (1e-3, 1e-2):
            write_run(tmp_path / place, "sdpa", 0, 2.0, f"optim.lr={rate:g}")
    with pytest.raises(BadInput, match="have the same"):
        at_best(read_runs(tmp_path), "lr")
