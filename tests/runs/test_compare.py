"""What comparisons show, and what they refuse."""

import math
from pathlib import Path

import numpy as np
import pytest
import yaml

from attnlab.errors import BadInput
from attnlab.runs.best_rate import at_best
from attnlab.runs.compare import compare
from attnlab.runs.compared_runs import compared_runs
from attnlab.runs.figure import draw_comparison
from attnlab.runs.frame import read_runs
from attnlab.runs.report import all_sentences, unchecked_sentence
from attnlab.runs.tables import as_text, comparison_table, run_table
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
    rows = comparison_table(compare(read_runs(two))).set_index("run")
    assert rows.verdict.to_dict() == {"sdpa": "baseline", "unscaled": "open", "flipped": "leak"}
    assert rows.difference.isna().to_dict() == {"sdpa": True, "unscaled": False, "flipped": True}
    assert run_table(read_runs(two)).set_index("run").leak.max() == pytest.approx(0.9)


def test_what_was_not_checked_of_a_layer_is_said(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "sdpa", seed, 2.0, future_mass=0.0)
        write_run(tmp_path, "recurrence", seed, 2.1, future_mass=math.nan)
        unchecked = {"check_layer": seed != 1}
        write_run(tmp_path, "mine", seed, 2.1, settings=unchecked, future_mass=0.0)
    compared = compare(read_runs(tmp_path))
    said = {c.label: unchecked_sentence(c) for c in compared}
    assert "check_layer=false" in said["mine"] and "no pattern" in said["recurrence"]
    assert said["sdpa"] == ""
    assert {said["mine"], said["recurrence"]} <= {*all_sentences(compared)}


def test_a_setting_with_one_rate_twice_is_refused(tmp_path: Path) -> None:
    for low in (1e-4, 1e-5):
        for rate in (1e-3, 1e-2):
            typed = f"optim.lr={rate:g}", f"optim.min_lr={low:g}"
            write_run(tmp_path, "sdpa", 0, 2.0, *typed)
    with pytest.raises(BadInput, match="have the same"):
        at_best(read_runs(tmp_path), "lr")


def in_other_order(folder: Path) -> None:
    """Write the settings of a run with all keys in another order."""

    def turned(settings: object) -> object:
        if not isinstance(settings, dict):
            return settings
        return {key: turned(value) for key, value in reversed(settings.items())}

    file = folder / ".hydra/config.yaml"
    settings = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(turned(settings), sort_keys=False))


def test_settings_in_another_order_of_keys_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    in_other_order(write_run(tmp_path, "unscaled", 0, 2.1))
    (base, other) = compare(read_runs(tmp_path))
    assert base.is_baseline and other.baseline is base.group
    assert other.differences.tolist() == pytest.approx([0.1])


# How the runs of one setting are repeated: the overrides of the first, and of the second ones.
REPEATED = {
    "in a single command": (["optim.lr=0.01"], ["optim.lr=1.0e-2"], {}),
    "with a whole number": (["model.dropout=0.0"], ["model.dropout=0"], {}),
    "with a default typed": ([], ["optim.lr=0.001"], {}),
    "with what is only shown": ([], ["checkpoint_every=7"], {}),
    "with another path of the text": (["data.path=a.txt"], ["data.path=/home/a.txt"], {}),
    "with null typed": ([], [], {"init_from": None}),
    "in another order": ([], [], {}),
}


@pytest.mark.parametrize("way", REPEATED)
@pytest.mark.parametrize("place", ["here", "there"])
def test_one_seed_counts_once(tmp_path: Path, way: str, place: str) -> None:
    first, second, settings = REPEATED[way]
    for seed in range(3):
        for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1 + seed / 100)):
            write_run(tmp_path / "here", variant, seed, loss, *first)
            again = tmp_path / place / f"again {variant}" / f"seed={seed}"
            folder = write_run(
                tmp_path / place, variant, seed, loss, *second, folder=again, settings=settings
            )
            if way == "in another order":
                in_other_order(folder)
    frame = read_runs(tmp_path)
    base, other = compare(frame)
    assert len(frame) == 12 and len(base.runs) == len(other.runs) == len(other.pairs) == 3
    assert other.interval.median == pytest.approx(0.11) and len(other.group.repeats) == 3
    table = comparison_table([base, other]).set_index("run")
    assert table.n.tolist() == [3, 3] and table.seeds[other.label] == "3 of 3 worse"
    (said,) = [x for x in all_sentences([base, other]) if "repeat" in x]
    assert said.startswith("6 runs") and "losses differ" not in said
    assert run_table(frame).run.str.contains("(repeated)", regex=False).sum() == 6


def test_a_variant_by_its_name_and_by_its_setting_is_one(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "sdpa", seed, 2.0)
        write_run(tmp_path, "sdpa", seed, 2.1, "attn.scale=1.0")
        write_run(tmp_path, "unscaled", seed, 2.1)
    by_label = {c.label: c for c in compare(read_runs(tmp_path))}
    assert {*by_label} == {"sdpa", "unscaled"} and by_label["sdpa"].is_baseline
    assert len(by_label["unscaled"].pairs) == 2


def test_ten_verdicts_need_ten_seeds(tmp_path: Path) -> None:
    """Four seeds, each run in three sweeps, are no twelve seeds."""
    for sweep in "abc":
        for seed in range(4):
            write_run(tmp_path / sweep, "sdpa", seed, 2.0)
            write_run(tmp_path / sweep, "unscaled", seed, 2.1)
    _, other = compare(read_runs(tmp_path))
    assert other.decision() == ("open", 0) and len(other.pairs) == 4


def test_which_of_two_runs_counts_and_that_they_differ(tmp_path: Path) -> None:
    """The one with a result, then that of the larger sweep."""
    write_run(tmp_path / "a", "sdpa", 0, 1.5, status="interrupted")
    write_run(tmp_path / "a", "unscaled", 0, 2.5)
    for seed in range(2):
        write_run(tmp_path / "b", "sdpa", seed, 2.0)
        write_run(tmp_path / "b", "unscaled", seed, 2.1)
    base, other = compare(read_runs(tmp_path))
    assert base.runs.loss.tolist() == [2.0, 2.0] and other.runs.loss.tolist() == [2.1, 2.1]
    (said,) = [x for x in all_sentences([base, other]) if "repeats" in x]
    assert said.startswith("One run") and "0.4" in said.replace("4e-01", "0.4")


@pytest.mark.parametrize(
    ("named", "compared"), [(None, False), ("attn=sdpa", True), ("scale=0.3", True)]
)
def test_changed_settings_of_a_variant_are_a_baseline_if_they_are_named(
    tmp_path: Path, named: str | None, compared: bool
) -> None:
    """Then the other settings of the attention may differ, too."""
    write_run(tmp_path, "sdpa", 0, 2.0, "attn.scale=0.3")
    write_run(tmp_path, "flipped", 0, 2.1)
    by_label = {c.label.split()[0]: c for c in compare(read_runs(tmp_path), named)}
    assert by_label["flipped"].baseline is (by_label["sdpa"].group if compared else None)


@pytest.mark.parametrize(("best", "edge"), [(0.001, True), (0.003, False), (0.01, True)])
def test_a_best_rate_at_the_edge_is_said(tmp_path: Path, best: float, edge: bool) -> None:
    for rate in (0.001, 0.003, 0.01):
        loss = 2.0 if rate == best else 2.5
        write_run(tmp_path, "sdpa", 0, loss, f"optim.lr={rate:g}")
    assert at_best(read_runs(tmp_path), "lr").grids[0].is_at_edge == edge


def test_a_best_rate_is_compared_on_seeds_that_did_not_choose_it(tmp_path: Path) -> None:
    for rate, loss in ((1e-3, 2.5), (1e-2, 2.0)):
        for seed in (0, 1) if rate == 1e-3 else (0, 1, 2, 3):
            write_run(tmp_path, "sdpa", seed, loss, f"optim.lr={rate:g}")
    frame = at_best(read_runs(tmp_path), "lr").runs
    assert sorted(frame["seed"]) == [2, 3]


def test_a_best_rate_is_chosen_from_seeds_that_count_once(tmp_path: Path) -> None:
    for place in "ab":
        for rate, loss in ((1e-3, 2.5), (1e-2, 2.0)):
            write_run(tmp_path / place, "sdpa", 0, loss, f"optim.lr={rate:g}")
    frame = at_best(read_runs(tmp_path), "lr").runs
    (only,) = compare(frame)
    assert len(frame) == 2 and len(only.runs) == 1 and len(only.group.repeats) == 1


@pytest.mark.parametrize(("loss", "drawn"), [(2.0, ["sdpa"]), (math.nan, [])])
def test_a_run_that_has_logged_nothing_hides_no_curve(
    tmp_path: Path, loss: float, drawn: list[str]
) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0, curves={"train/loss": [loss] * 3}, status="interrupted")
    write_run(tmp_path, "sdpa", 1, 2.0, status="interrupted")
    (axes,) = draw_comparison(compare(read_runs(tmp_path))).axes
    lines, labels = axes.get_legend_handles_labels()
    finite = [np.isfinite(line.get_ydata()).any() for line in lines]
    assert [label for label, seen in zip(labels, finite, strict=True) if seen] == drawn


def test_runs_of_several_sweeps_are_told_apart_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What differs between sweeps is no part of a label, and a repeated run is marked."""
    monkeypatch.setenv("COLUMNS", "80")
    for sweep, typed in (
        ("masks", ["preset=micro", "trainer.val_check_interval=300"]),
        ("rates", ["preset=micro", "data.batch_size=64", "trainer.gradient_clip_val=0.5"]),
        ("again", ["preset=micro", "trainer.val_check_interval=300"]),
    ):
        for variant in ("sdpa", "unscaled"):
            for seed in range(2):
                write_run(tmp_path / sweep, variant, seed, 2.0, *typed)
    frame = read_runs(tmp_path)
    table = run_table(frame)
    assert {*table.sweep} == {"masks", "rates", "again"}
    names = table.run.str.replace(" (repeated)", "", regex=False)
    assert {*names} == {"sdpa", "unscaled"} and (names != table.run).sum() == 4
    assert not table[["run", "sweep", "seed"]].duplicated().any()
    rows = as_text(table).split("\n")
    assert max(map(len, rows)) <= 80 and len({*rows}) == len(rows)
    assert "sweep" not in run_table(read_runs(tmp_path / "masks"))


@pytest.mark.parametrize(
    ("others", "code"),
    [
        ({"unscaled": -0.1}, 0),
        ({"unscaled": -0.1, "none": 0.5}, 0),  # none is there for the share
        ({"none": 0.5}, 1),
        ({"unscaled": -0.1, "linear": 0.1}, 1),
        ({"unscaled": -0.1, "linear": 0.0}, 3),
    ],
)
def test_the_exit_code_is_the_decision_on_what_is_asked(
    others: dict[str, float], code: int, tmp_path: Path
) -> None:
    for variant, difference in {"sdpa": 0.0, **others}.items():
        for seed in range(10):
            write_run(tmp_path, variant, seed, 2.0 + seed / 100 + difference)
    assert compared_runs(read_runs(tmp_path)).exit_code == code


@pytest.mark.parametrize(
    ("settings", "pairs", "said"),
    [
        ({"documents": True, "source": "a"}, 2, ""),  # the same predictions
        ({"documents": True, "source": "b"}, 0, "other predictions"),
        ({"documents": True, "source": "a", "batch_size": 3}, 0, "other settings"),
    ],
)
def test_losses_of_other_predictions_are_not_compared(
    tmp_path: Path, settings: dict[str, object], pairs: int, said: str
) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "sdpa", seed, 2.0, settings={"data": {"source": "a"}})
        write_run(tmp_path, "sdpa", seed, 1.9, "data.documents=true", settings={"data": settings})
    compared = compare(read_runs(tmp_path), baseline="documents=null", may_differ=[])
    (other,) = [c for c in compared if not c.is_baseline]
    assert len(other.pairs) == pairs and said in other.why


@pytest.mark.parametrize(
    ("masses", "masses_base", "leaks"),
    [
        ((0.5, 0.5, 0.5), (0.0, 0.0, 0.0), "unscaled"),
        ((0.5, 0.0, 0.0), (0.0, 0.0, 0.0), "unscaled"),  # one seed of three
        ((0.0, 0.0, 0.0), (0.0, 0.5, 0.0), "sdpa"),
    ],
)
def test_the_model_that_reads_the_future_is_named(
    masses: tuple[float, ...], masses_base: tuple[float, ...], leaks: str, tmp_path: Path
) -> None:
    for seed in range(3):
        write_run(tmp_path, "sdpa", seed, 2.0, future_mass=masses_base[seed])
        write_run(tmp_path, "unscaled", seed, 1.0, future_mass=masses[seed])
    said = compared_runs(read_runs(tmp_path)).sentences[0]
    assert said.startswith(f"{leaks} reads the future (weight 0.5 ")
