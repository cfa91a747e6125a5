"""--json: one shape for all commands, nothing else on the terminal, and the table's numbers."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from attnlab.runs.document import json_value
from attnlab.runs.frame import read_runs
from tests.cli import attnlab
from tests.invented import write_run
from tests.runs.cases import CASES

Number = float | str | None  # null: not known; "inf" or "-inf": diverged
STRICT = ConfigDict(strict=True, extra="forbid")


class Head(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    schema: int
    attnlab: str
    command: str
    exit_code: int


class Difference(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    median: Number
    low: Number
    high: Number
    worse: int
    better: int
    n: int


class Pair(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    seed: int
    loss: Number
    loss_base: Number
    difference: Number


class Forecast(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    seeds: int | None
    chance: float


class Within(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    verdict: str
    decided_by: int
    holm: str | None
    forecast: Forecast | None
    why_no_forecast: str


class Keeps(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    median: Number
    low: Number
    high: Number
    by_seed: list[float]
    why: str


class Setting(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    run: str
    baseline: str | None
    why: str
    verdict: str
    attn: str | None
    overrides: list[str]
    settings: dict[str, Any]
    val_loss: Number
    sd: Number
    n: int
    status: dict[str, int]
    folders: list[str]
    repeats: list[str]
    difference: Difference | None
    by_seed: list[Pair]
    decided_by: int
    holm: str | None
    forecast: Forecast | None
    why_no_forecast: str
    smallest_difference_of_ten: float | None
    within: Within | None
    keeps: Keeps | None
    columns: dict[str, Number]


class Compared(Head):
    settings: list[Setting]
    sentences: list[str]
    within: float | None
    unit: str
    chance_of_any_wrong_verdict: float
    best: list[str]


class Listed(Head):
    runs: list[dict[str, Any]]


class Failed(Head):
    error: str


def document_of(text: str) -> dict[str, Any]:
    """Read JSON as its standard has it, without NaN and Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(name)

    found: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return found


def is_same(value: Number, cell: object) -> bool:
    """Whether a number of the document is that of a cell in the CSV file."""
    if value is None or pd.isna(cell):
        return value is None and bool(pd.isna(cell))
    return float(value) == pytest.approx(float(str(cell)), rel=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_a_comparison_is_that_of_the_table(case: str, tmp_path: Path) -> None:
    CASES[case](tmp_path / "lab")
    asked = ("compare", str(tmp_path / "lab"), "--within", "0.05")
    plain = attnlab(*asked)
    done = attnlab(*asked, "--json", "--csv", str(tmp_path / "table.csv"))
    assert (done.code, done.err) == (0, "")
    found = document_of(done.out)
    TypeAdapter(Compared).validate_python(found)
    table = pd.read_csv(tmp_path / "table.csv", keep_default_na=False, na_values=[""])
    assert [x["run"] for x in found["settings"]] == table.run.tolist()
    for setting, (_, row) in zip(found["settings"], table.iterrows(), strict=True):
        assert is_same(setting["val_loss"], row.get("val_loss"))
        assert is_same(setting["sd"], row.get("sd", math.nan)) and setting["n"] == row.n
        assert setting["verdict"] == row.get("verdict", "") or not setting["verdict"]
        difference = setting["difference"] or {"median": None, "low": None, "high": None}
        assert is_same(difference["median"], row.get("difference", math.nan))
        assert is_same(difference["low"], row.get("low", math.nan))
        if setting["within"]:
            assert setting["within"]["verdict"] == row["within"]
        if setting["keeps"]:
            assert is_same(setting["keeps"]["median"], row.keeps)
    printed = " ".join(plain.out.split())
    assert all(" ".join(said.split()) in printed for said in found["sentences"])


@pytest.mark.parametrize("case", CASES)
def test_the_runs_are_those_of_the_frame(case: str, tmp_path: Path) -> None:
    CASES[case](tmp_path / "lab")
    done = attnlab("runs", str(tmp_path / "lab"), "--json")
    found = document_of(done.out)
    TypeAdapter(Listed).validate_python(found)
    frame = read_runs(tmp_path / "lab")
    for run, (_, row) in zip(found["runs"], frame.iterrows(), strict=True):
        for name in row.index.difference(["settings", "overrides"]):
            assert run.get(name) == json_value(row[name]), name
        if row.status != "damaged":
            assert run["settings"] == json.loads(row.settings)


@pytest.mark.parametrize(
    "line", ["runs nowhere", "compare nowhere", "compare . --baseline x", "runs . --where x"]
)
def test_bad_input_is_a_document_too(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "lab", "sdpa", 0, 2.0)
    monkeypatch.chdir(tmp_path)
    done = attnlab(*line.split(), "--json")
    found = document_of(done.out)
    TypeAdapter(Failed).validate_python(found)
    assert done.code == found["exit_code"] == 2 and done.err.startswith("error: ")
    assert found["error"] in done.err


def test_numbers_that_json_has_not() -> None:
    values = [math.nan, math.inf, -math.inf, pd.NA, None, 1, True, 0.5, "a"]
    assert json_value(values) == [None, "inf", "-inf", None, None, 1, True, 0.5, "a"]


class Examined(Head):
    subject: str
    verdict: str
    healthy: bool
    results: list[dict[str, Any]]
    not_tried: list[str]


@pytest.mark.parametrize(("attn", "code"), [("sdpa", 0), ("peek_one", 1), ("", 2)])
def test_a_checkup_is_a_document(
    attn: str, code: int, tmp_path: Path, train: Callable[..., Any]
) -> None:
    if attn:
        train(f"attn={attn}")
    asked = ("checkup", str(tmp_path / "run"))
    plain = attnlab(*asked)
    done = attnlab(*asked, "--json")
    found = document_of(done.out)
    assert plain.code == done.code == found["exit_code"] == code, (plain, done)
    if code == 2:
        TypeAdapter(Failed).validate_python(found)
        return
    TypeAdapter(Examined).validate_python(found)
    assert found["healthy"] == (code == 0)
    words = " ".join(plain.out.split())
    for result in found["results"]:
        assert all(" ".join(line.split()) in words for line in result["message"].split("\n"))
        assert f"{result['property']} {result['status']}" in words


class Judged(Head):
    claims: list[dict[str, Any]]


class Ahead(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    runs: int
    cpu_minutes: float


class Ranked(Head):
    cells: list[dict[str, Any]]
    exploratory: str
    missing: int
    ahead: Ahead | None


@pytest.mark.slow
@pytest.mark.parametrize("plan", [[], ["--plan"]])
def test_a_claim_is_a_document(
    plan: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its committed rows are complete, so nothing is trained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    done = attnlab("reproduce", "unscaled", *plan, "--json")
    found = document_of(done.out)
    TypeAdapter(Judged).validate_python(found)
    assert done.code == found["exit_code"] == 0
    (claim,) = found["claims"]
    assert claim["claim"] == "unscaled" and claim["missing"] == 0
    printed = " ".join(attnlab("reproduce", "unscaled").out.split())
    assert claim["says"] in printed
    for prediction in claim["predictions"]:
        assert prediction["says"] in printed
        assert f"{prediction['agree']} of {prediction['of']}" in printed
        values = list(prediction["by_seed"].values())[: prediction["of"]]
        if values and prediction["median"] is not None:
            assert prediction["median"] == pytest.approx(pd.Series(values).median())


@pytest.mark.slow
def test_a_rank_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")
    done = attnlab("rank", "attn=gate_head", "--quick", "--plan", "--json")
    found = document_of(done.out)
    TypeAdapter(Ranked).validate_python(found)
    assert done.code == 0 and {cell["variant"] for cell in found["cells"]} == {"gate_head"}
    printed = " ".join(attnlab("rank", "attn=gate_head", "--quick").out.split())
    for cell in found["cells"]:
        if cell["unit"] == "steps":
            assert f"{cell['verdict']}: {cell['median']:.0f} steps" in printed, (cell, printed)
            assert f"{cell['difference']['median']:+.0f} (" in printed
    assert any(cell["unit"] == "steps" for cell in found["cells"])
