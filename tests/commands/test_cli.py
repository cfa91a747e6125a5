"""The command line: every verb works, bad input is one sentence, and help fits one screen."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnlab.commands import claims
from tests.cli import Done, attnlab, train_py
from tests.conftest import CONF, SMALL
from tests.data.test_corpus import bpe
from tests.invented import write_run

SHOWING = "sample look explore evaluate export board".split()
VERBS = ["train", "runs", "compare", "judge", *SHOWING, "checkup", "reproduce", "rank"]
MADE = ("probes=default", "logger=tensorboard")  # instead of none
TRAINING = [x for x in SMALL if x.split("=")[0] not in ("probes", "logger")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """A directory with a trained run, `run`, and invented ones, `lab`."""
    root = tmp_path_factory.mktemp("commands")
    done = train_py(*TRAINING, *MADE, f"data.path={text_file}", f"outputs={root}", "name=one")
    assert done.code == 0, done.err
    (folder,) = (file.parent for file in (root / "one").rglob("metrics.json"))
    (root / "run").symlink_to(folder)
    for seed in (0, 1):
        write_run(root / "lab", "sdpa", seed, 2.0)
        write_run(root / "lab", "unscaled", seed, 2.1 + seed / 100, curves={"val/loss": [3.0]})
    (root / "not_a_run").mkdir()
    return root


@pytest.fixture
def call(place: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Done]:
    monkeypatch.chdir(place)
    return lambda line: attnlab(*line.split())


@pytest.mark.parametrize(
    ("line", "words", "files"),
    [
        ("runs lab", "unscaled 1 finished 8", ""),
        ("runs lab --where seed=1 --columns optim.lr --csv a.csv", "sdpa 1 finished 8", "a.csv"),
        ("compare lab", "unscaled ends 0.105 nats worse than sdpa", ""),
        ("compare lab --baseline unscaled", "sdpa ends 0.105 nats better than unscaled", ""),
        ("compare lab --csv b.csv --html b.html --figure b.pdf", "0.105", "b.csv b.html b.pdf"),
        ("sample run --chars 20 --prompt fox", "fox", ""),
        ("look run --text quick --out c.png", "L1H1", "c.png"),
        ("look run --text quick --layer 1 --head 0", "L1H0", ""),
        ("explore run -o d.html", "d.html", "d.html"),
        ("explore run run --text fox -o e.html", "e.html", "e.html"),
        ("evaluate run --trust", "loss", ""),
        ("checkup run", "healthy", ""),
    ],
)
def test_a_verb_works(call: Callable[[str], Done], line: str, words: str, files: str) -> None:
    done = call(line)
    assert done.code == 0 and done.err == "", done
    assert words in " ".join(done.out.split()), done.out
    assert all(Path(file).stat().st_size > 50 for file in files.split())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("runs nowhere", "no runs"),
        ("runs lab --where seed", "KEY=VALUE"),
        ("runs lab --where optim.rate=1", "a setting or a metric"),
        ("runs lab --where seed=7", "none of 4 runs"),
        ("runs lab --where attn<sdpa", "needs a number"),
        ("runs lab --columns optim.rate", "optim.rate"),
        ("runs lab --csv nowhere/a.csv", "nowhere"),
        ("compare not_a_run", "no runs"),
        ("compare lab --baseline linear", "matches none"),
        ("compare lab --baseline lr=0.001", "its own baseline"),
        ("compare lab --best lr", "only one optim.lr"),
        ("compare lab --best rate", "not a setting"),
        ("compare lab --where attn=linear", "none of 4 runs"),
        ("compare lab --columns nothing", "nothing"),
        ("compare lab --figure a.gif", ".png, .svg or .pdf"),
        ("compare lab --html not_a_run", "not_a_run"),
        ("sample not_a_run", "no checkpoint"),
        ("sample one", "such as one/attn=sdpa"),
        ("sample run --prompt ?", "'?'"),
        ("sample run --temperature -1", "temperature"),
        ("sample run --chars -1", "chars"),
        ("look not_a_run", "no checkpoint"),
        ("look run --text x", "takes 2 to 16"),
        ("look run --text quick --layer 2", "0 to 1"),
        ("look run --text quick --head 2", "0 to 1"),
        ("look run --text quick --out a.txt", ".png, .svg or .pdf"),
        ("explore not_a_run", "no checkpoint"),
        ("explore run --text =", "'='"),
        ("explore run -o not_a_run", "not_a_run"),
        ("evaluate run", "--trust"),
        ("evaluate run --trust --length 0", "length"),
        ("evaluate run --trust --length 64", "positions"),
        ("evaluate run --file nowhere.txt", "nowhere.txt"),
        ("evaluate lab/attn=sdpa/seed=0", "no checkpoint"),
        ("checkup nowhere", "nowhere"),
        ("checkup", "RUN"),
        ("checkup run --strickt", "--strickt"),
        ("checkup run --rows two", "--rows"),
        ("checkup run --accept padding", "padding"),
        ("reproduce nothing", "nothing"),
        ("rank attn=nothing --plan", "nothing"),
        ("runs lab --sort seed", "--sort"),
        ("plot lab", "plot"),
    ],
)
def test_bad_input_is_one_sentence(call: Callable[[str], Done], line: str, words: str) -> None:
    done = call(line)
    assert done.code == 2 and words in done.err and "Traceback" not in done.err, done
    if not done.err.startswith("Usage"):
        assert done.err.startswith("error: ") and len(done.err.strip().split("\n")) == 1, done.err


@pytest.mark.parametrize("verb", ["", *VERBS[1:]])
def test_help_fits_one_screen(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = attnlab(*verb.split(), "--help")
    lines = done.out.rstrip().split("\n")
    assert done.code == 0 and len(lines) <= 40 and max(map(len, lines)) <= 80
    if not verb:
        shown = [line.split()[1] for line in lines if line.startswith("│ ") and line[2] != " "]
        assert [x for x in shown if x[0] != "-"] == VERBS


def test_help_of_train_lists_the_groups_of_settings_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = attnlab("train", "--help")
    assert done.code == 0
    for group in CONF.iterdir():
        choices = sorted(file.stem for file in group.glob("*.yaml"))
        if group.is_dir() and choices:  # those of Hydra's own have folders
            assert f"{group.name}: {', '.join(choices)}" in done.out.splitlines()
    logging.getLogger("a library").warning("said where there is no sweep")
    assert not [*tmp_path.iterdir()]


def test_train_is_train_py(tmp_path: Path, text_file: Path) -> None:
    arguments = [*SMALL, f"data.path={text_file}", f"outputs={tmp_path}", "attn=unscaled"]
    done = attnlab("train", *arguments)
    assert done.code == 0 and [*tmp_path.rglob("metrics.json")], done


def test_a_setting_of_train_keeps_the_message_of_hydra(tmp_path: Path) -> None:
    done = attnlab("train", "optim.rate=1", f"outputs={tmp_path}")
    assert done.code == 2 and "optim.rate" in done.err and not [*tmp_path.iterdir()]


def test_the_csv_of_runs_has_every_setting_and_metric(place: Path) -> None:
    assert attnlab("runs", str(place / "one"), "--csv", str(place / "f.csv")).code == 0
    (row,) = pd.read_csv(place / "f.csv").to_dict("records")
    metrics = json.loads((place / "run" / "metrics.json").read_text())
    assert row["val_loss"] == pytest.approx(metrics["val_loss"], rel=1e-12)
    assert row["attn/entropy"] == metrics["probes"]["attn/entropy"]
    assert (row["run"], row["seed"], row["model.n_head"]) == ("sdpa", 0, 2)


def test_a_run_without_a_result_has_blanks_and_the_csv_its_whole_reason(tmp_path: Path) -> None:
    write_run(tmp_path, "sdpa", 0, 2.0)
    failed = write_run(tmp_path, "unscaled", 0, 2.0, status="failed")
    (failed / "error.txt").write_text(f"ValueError: {'word ' * 50}end")
    done = attnlab("runs", str(tmp_path), "--csv", str(tmp_path / "f.csv"))
    assert done.code == 0 and "failed" in done.out and "NA" not in done.out, done.out
    assert "end" not in done.out and pd.read_csv(tmp_path / "f.csv").reason[1].endswith("end")


def test_tensorboard_shows_losses_first_eleven_measures_and_the_settings(place: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    log = EventAccumulator(str(place / "run")).Reload()
    tags = sorted(log.Tags()["scalars"])
    assert tags[:2] == ["Loss/train", "Loss/validation"]
    assert sum(tag.startswith("attn/") for tag in tags) == 11
    content = log.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = HParamsPluginData.FromString(content).session_start_info.hparams
    assert (given["attn"].string_value, given["lr"].number_value) == ("sdpa", 1e-3)
    metrics = json.loads((place / "run" / "metrics.json").read_text())
    assert {"seed", "n_layer", "n_head", "n_embd"} <= given.keys()
    assert given["max_steps"].number_value == metrics["steps"]
    points = {tag: [x.step for x in log.Scalars(tag)] for tag in tags}
    assert all(len({*steps}) == len(steps) for steps in points.values()), points
    at_end = log.Scalars("Loss/validation")[-1]
    assert (at_end.step, at_end.value) == (metrics["steps"], pytest.approx(metrics["val_loss"]))


@pytest.mark.parametrize("data", ["digits", "tokens", "copy"])
def test_look_and_explore_find_a_text_that_the_model_knows(
    data: str, train: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "digits.txt").write_text("0123456789" * 200)
    bpe().save(str(tmp_path / "bpe.json"))
    path = f"data.path={tmp_path / 'digits.txt'}"
    overrides = ["data=copy", "data.length=16"] if data == "copy" else ["data=text", path]
    if data == "tokens":
        overrides.append(f"data.tokenizer={tmp_path / 'bpe.json'}")
    folder = str(train(*overrides).folder)
    done = attnlab("look", folder)
    assert done.code == 0 and "L1H1" in done.out, done
    assert attnlab("explore", folder, "-o", str(tmp_path / "x.html")).code == 0


@pytest.mark.parametrize("length", [16, 8, 1])
def test_evaluate_measures_what_the_run_measured(
    place: Path, text_file: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnlab.trained.evaluation import evaluate

    metrics = json.loads((place / "run" / "metrics.json").read_text())
    own, other = (evaluate(place / "run", file, length, trust=True) for file in (None, text_file))
    assert own == other
    assert (own["length"], own["trained_length"]) == (length, 16)
    if length == 16:
        assert own["loss"] == pytest.approx(metrics["val_loss"], rel=1e-6)
    else:  # with less context it is another number
        assert own["loss"] != pytest.approx(metrics["val_loss"], rel=1e-6)
    assert own["bits_per_byte"] == pytest.approx(own["loss"] / 0.6931472)  # 7-bit characters
    mean = sum(own["by_position"]) / length
    assert mean == pytest.approx(own["loss"], rel=1e-2)


def test_evaluate_needs_the_symbols_of_the_model(place: Path, tmp_path: Path) -> None:
    (tmp_path / "digits.txt").write_text("0123456789" * 200)
    done = attnlab("evaluate", str(place / "run"), "--file", str(tmp_path / "digits.txt"))
    assert done.code == 2 and "other symbols" in done.err


def test_a_report_is_whole_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(claims, "train_missing", lambda *_: True)
    condition = " ".join(f"word{n}" for n in range(40))
    work: Any = None  # is only given to train_missing
    claims.carry_out(work, lambda: f"- True: {condition}", None, None)
    printed = capsys.readouterr().out
    assert condition in " ".join(printed.split())
    assert max(map(len, printed.split("\n"))) <= 80
