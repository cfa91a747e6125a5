"""--json: one shape for all commands, nothing else on the terminal, and the table's numbers."""

import html
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

from attnlab.claims import claim_page, ranking_page
from attnlab.runs.document import json_value
from attnlab.runs.frame import read_runs
from tests.cli import attnlab
from tests.conftest import ROOT, on_text
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


class Value(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    value: float
    mean: Number
    by_seed: dict[str, Number]


class Tried(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    run: str
    setting: str
    best: float
    at_edge: bool
    values: list[Value]


class Compared(Head):
    settings: list[Setting]
    sentences: list[str]
    within: float | None
    unit: str
    chance_of_any_wrong_verdict: float
    best: list[str]
    tried: list[Tried]


class Refused(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    command: str
    reason: str
    sweep: str


class Listed(Head):
    runs: list[dict[str, Any]]
    refused: list[Refused]


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


@pytest.mark.parametrize(
    ("shift", "seeds", "code"), [(-0.1, 10, 0), (0.1, 10, 1), (-0.1, 1, 3), (math.nan, 10, 1)]
)
def test_judged_losses_are_a_document(
    shift: float, seeds: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a clone: a table of another script, and the decision as exit code."""
    monkeypatch.chdir(tmp_path)
    lines = ["run,seed,value"]
    for seed in range(seeds):
        lines += [f"base,{seed},{2 + seed / 100}", f"own,{seed},{2 + seed / 100 + shift}"]
    Path("losses.csv").write_text("\n".join(lines))
    asked = ("judge", "losses.csv", "--within", "0.05")
    done = attnlab(*asked, "--exit-code", "--json", "--csv", "table.csv", "--html", "page.html")
    found = document_of(done.out)
    TypeAdapter(Compared).validate_python(found)
    assert done.code == found["exit_code"] == code and found["command"] == "judge"
    assert attnlab(*asked).code == 0  # as for compare, a verdict is no error
    assert pd.read_csv("table.csv").run.tolist() == ["base", "own"]
    assert all(html.escape(said) in Path("page.html").read_text() for said in found["sentences"])


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


@pytest.mark.parametrize("line", ["reproduce --publish", "rank --publish"])
def test_what_publishes_has_no_document(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_page, "publish_claims", lambda claims: [Path("page")])
    monkeypatch.setattr(ranking_page, "publish_ranking", lambda protocol: Path("page"))
    done = attnlab(*line.split(), "--json")
    found = document_of(done.out)
    assert done.code == found["exit_code"] == 2 and "--publish" in found["error"]


@pytest.mark.parametrize(
    "line", ["compare", "runs --wher x .", "compare . --within much", "nothing", "", "train -m"]
)
def test_a_wrong_option_is_a_document_too(line: str) -> None:
    done = attnlab(*line.split(), "--json")
    found = document_of(done.out)
    TypeAdapter(Failed).validate_python(found)
    assert done.code == found["exit_code"] == 2 and found["error"] in done.err
    assert found["command"] == line.partition(" ")[0]


def test_a_refused_run_is_listed_until_it_is_run(tmp_path: Path) -> None:
    write_run(tmp_path / "lab", "sdpa", 0, 2.0)
    for number, word in enumerate(("attn=sdpa", "attn=leaks")):
        note = {"command": f"python train.py {word} seed=0", "reason": "it reads ahead"}
        file = tmp_path / f".sweep/then/failed_{number:06}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(note))
    found = document_of(attnlab("runs", str(tmp_path), "--json").out)
    TypeAdapter(Listed).validate_python(found)
    (refused,) = found["refused"]
    assert "attn=leaks" in refused["command"] and refused["reason"] == "it reads ahead"
    assert "not run: python train.py attn=leaks" in attnlab("runs", str(tmp_path)).out


class Trained(Head):
    folder: str
    fresh: bool
    metrics: dict[str, Any]


class Evaluated(Head):
    data: str
    length: int
    trained_length: int
    loss: Number
    accuracy: Number
    bits_per_byte: Number
    predictions: int
    by_position: list[Number]
    accuracy_by_position: list[Number]


def test_a_training_and_an_evaluation_are_documents(tmp_path: Path, text_file: Path) -> None:
    words = [*on_text(text_file, ()), f"outputs={tmp_path}"]
    for fresh in (True, False):
        done = attnlab("train", *words, "--json")
        found = document_of(done.out)
        TypeAdapter(Trained).validate_python(found)
        assert (done.code, found["fresh"]) == (0, fresh), done
    metrics = json.loads((Path(found["folder"]) / "metrics.json").read_text())
    assert found["metrics"] == json_value(metrics)
    done = attnlab("evaluate", found["folder"], "--trust", "--json")
    measured = document_of(done.out)
    TypeAdapter(Evaluated).validate_python(measured)
    assert measured["loss"] == pytest.approx(metrics["val_loss"], rel=1e-4)


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


class Prediction(TypedDict):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    name: str
    says: str
    role: str
    at_risk: bool | None
    steps: int | None
    verdict: str
    agree: int
    of: int
    median: Number
    low: Number
    high: Number
    unit: str
    above: Number
    below: Number
    by_seed: dict[str, Number]


class Claim(TypedDict):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    claim: str
    says: str
    verdict: str
    in_words: str
    withdrawn: str
    exploratory: str
    missing: int
    predictions: list[Prediction]
    again: dict[str, Prediction]


class Judged(Head):
    claims: list[Claim]


class Ahead(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    runs: int
    cpu_minutes: float


class Middle(TypedDict):
    __pydantic_config__ = STRICT  # type: ignore[misc]
    median: Number
    low: Number
    high: Number


class Cell(TypedDict):
    __pydantic_config__ = ConfigDict(strict=True)  # type: ignore[misc]
    variant: str
    task: str
    steps: int
    verdict: str
    unit: str
    median: Number
    difference: Middle
    at_edge: bool
    diverged: int
    failed: int
    n: int
    agree: int
    again: str | None
    holm: str | None


class Ranked(Head):
    cells: list[Cell]
    chance_of_any_wrong_verdict: float
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
    assert all(cell["verdict"] != "not finished" for cell in found["cells"])  # --quick runs them
    printed = " ".join(attnlab("rank", "attn=gate_head", "--quick").out.split())
    for cell in found["cells"]:
        if cell["unit"] == "steps":
            assert f"{cell['verdict']}: {cell['median']:.0f} steps" in printed, (cell, printed)
            assert f"{cell['difference']['median']:+.0f} (" in printed
    assert any(cell["unit"] == "steps" for cell in found["cells"])


SHAPES: dict[str, list[Any]] = {
    "The head": [Head],
    "compare": [Compared, Setting, Difference, Forecast, Within, Keeps, Tried, Value],
    "runs": [Listed, Refused],
    "train and evaluate": [Trained, Evaluated],
    "reproduce": [Judged, Claim, Prediction],
    "rank": [Ranked, Cell, Ahead],
    "checkup": [Examined],
}


@pytest.mark.parametrize("heading", SHAPES)
def test_each_key_of_a_shape_is_documented(heading: str) -> None:
    text = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    named = {*re.findall(r'[`"]([a-z_]+)[`"]', sections[heading])}
    keys = {key for shape in SHAPES[heading] for key in shape.__annotations__}
    assert keys - named - (set() if heading == "The head" else {*Head.__annotations__}) == set()
