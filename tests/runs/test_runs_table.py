"""What cells and headings of the tables say."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from attnlab.runs.pairing import pairs
from attnlab.runs.plain_rows import rows
from attnlab.runs.printing import note_on_costs, print_table
from attnlab.runs.reading import read_runs
from attnlab.runs.runs_table import (
    COMPARED,
    COSTS,
    USUAL,
    cell,
    table,
    usual,
)
from tests.runs.invented import write_run


def printed(root: Path) -> str:
    output = io.StringIO()
    shown = table(pairs(read_runs(root)), COMPARED, each=False)
    Console(file=output, width=120).print(shown)
    return output.getvalue()


def test_a_leak_is_not_called_better(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "sdpa", seed, 2.0, future_mass=0.0)
        write_run(tmp_path, "flipped", seed, 0.1, future_mass=0.94)
    (leak,) = [c for c in pairs(read_runs(tmp_path)) if c.reads_ahead and not c.is_baseline]
    assert [cell(leak, key) for key in ("difference", "interval", "better")] == ["leak", "-", "-"]
    (row,) = rows([leak], [], each=False)
    assert (row["better"], row["worse"], row["verdict"]) == (None, None, None)


def test_diverged_seeds_count_in_the_difference_and_the_range(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path, "sdpa", seed, 2.0)
        write_run(tmp_path, "unscaled", seed, 2.1, status="finished" if seed else "diverged")
    of = {c.setting.label: c for c in pairs(read_runs(tmp_path))}
    assert cell(of["unscaled"], "interval") == "+0.100 to +inf"
    of = {c.setting.label: c for c in pairs(read_runs(tmp_path), "unscaled")}
    assert cell(of["sdpa"], "interval") == "-inf to -0.100"
    alone = pairs([run for run in read_runs(tmp_path) if run.seed == 0], "unscaled")
    assert [cell(c, "difference") for c in alone] == ["baseline", "baseline\ndiverged"]


def test_a_mean_is_as_exact_as_its_deviation(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "sdpa", seed, 1.2345 + 5e-5 * seed)
    (c,) = pairs(read_runs(tmp_path))
    assert cell(c, "val_loss") == "1.23453±4e-05"


@pytest.mark.parametrize(
    ("seeds", "heading"),
    [((2, 2), "lowest to"), ((6, 6), "95 %  "), ((6, 2), "95 % (n > 5)")],
)
def test_the_interval_is_named_by_what_the_cells_show(
    tmp_path: Path, seeds: tuple[int, int], heading: str
) -> None:
    for variant, of_variant in zip(("unscaled", "cosine"), seeds, strict=True):
        for seed in range(of_variant):
            write_run(tmp_path, variant, seed, 2.1 + seed / 100)
    for seed in range(max(seeds)):
        write_run(tmp_path, "sdpa", seed, 2.0)
    assert heading in printed(tmp_path)


@pytest.mark.parametrize("width", [30, 60, 80, 200])
def test_no_number_and_no_word_is_cut_however_narrow_the_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variant in ("sdpa", "scalable_softmax"):
        for seed in range(3):
            write_run(tmp_path, variant, seed, 2 + seed / 100, "optim.lr=0.0003", entropy=0.1234)
    monkeypatch.setenv("COLUMNS", str(width))
    compared = pairs(read_runs(tmp_path))
    columns = usual(compared, USUAL)
    print_table(compared, columns)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= width
    words = said.split("too narrow")[0].split()
    assert {"sdpa", "3"} <= set(words) and {"scalable_", "scalable_softmax"} & set(words)
    number = {"0.1234": width > 30, "2.010±0.010": width > 30}
    assert all((text in words) == shown for text, shown in number.items())
    assert ("narrow for val_loss" in " ".join(said.split())) == (width == 30)


def test_a_label_is_broken_at_spaces_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "identical_heads", 0, 2.0)
    (compared,) = pairs(read_runs(folder))
    label = replace(compared.setting, label="identical_heads max_steps=200 path=/tmp/walk/my.txt")
    output = io.StringIO()
    shown = table([replace(compared, setting=label)], (), each=False, room=16)
    Console(file=output, width=80).print(shown)
    words = output.getvalue().split()
    assert [word for word in words if word not in {"run", "n", "1"} and "─" not in word] == [
        "identical_heads",
        "max_steps=200",
        "path=/tmp/walk/",
        "my.txt",
    ]


def test_costs_are_plain_numbers_and_the_note_says_what_they_count(tmp_path: Path) -> None:
    of_layers = {"length": 64, "parameters": 4096, "flops": None, "flops_counted": 16384}
    for variant, missed in (("sdpa", ""), ("entmax", "cumsum, sort")):
        file = write_run(tmp_path, variant, 0, 2.0) / "metrics.json"
        metrics = json.loads(file.read_text())
        metrics["costs"] = of_layers | {"not_counted": missed, "cached": 4096}
        file.write_text(json.dumps(metrics))
    compared = pairs(read_runs(tmp_path))
    assert usual(compared, COSTS) == [key for key in COSTS if key != "costs.flops"]
    shown = [cell(compared[0], key) for key in COSTS]
    assert shown == ["4,096", "1,000", "-", "16,384", "4,096", "8"]
    note = note_on_costs(compared)
    assert "at T = 64." in note and "Not counted: elementwise operators, cumsum, sort." in note


def test_earlier_runs_have_no_note_on_costs(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    assert note_on_costs(pairs(read_runs(tmp_path))) == ""
