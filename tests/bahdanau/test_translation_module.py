"""A translator meets the contracts of a run: determinism, resuming, metrics, and clear errors for
bad input."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import translation_measures as measures
from pair_batches import validation_batches
from sentence_pairs import PAD, pairs
from translator import load_translator

from attnlab.errors import BadInput
from attnlab.runs.reading import read_run, read_runs
from attnlab.training.checkpoints import load_model
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.bahdanau import project_settings
from tests.conftest import weights_of
from tests.marks import sampled
from tests.training.test_run import StopAt, figures, same_weights

Train = Callable[..., Any]
SMALL = [
    "preset=translation",
    "model.n_embd=8",
    "model.hidden_size=8",
    "attn.size=8",
    "data.train=60",
    "data.val=20",
    "data.batch_size=8",
    "probes=none",
    "trainer.max_steps=12",
    "trainer.val_check_interval=4",
    "checkpoint_every=3",
    "optim.warmup_steps=2",
]
TIMED = {"seconds_an_epoch"}


@pytest.fixture
def train(tmp_path: Path) -> Train:
    def go(*overrides: str, folder: str = "run") -> Any:
        cfg = project_settings(*SMALL, *overrides)
        return run(
            read_config(cfg), tmp_path / folder, variant="cross-additive", overrides=overrides
        )

    return go


def untimed(folder: Path) -> dict[str, Any]:
    return {name: x for name, x in figures(folder).items() if name not in TIMED}


@pytest.mark.parametrize("score", ["additive", "dot", "scaled_dot"])
def test_every_score_trains_and_is_recorded(score: str, train: Train) -> None:
    result = train(f"attn=cross/{score}")
    metrics = result.metrics
    assert metrics["status"] == "finished" and metrics["steps"] == 12
    assert metrics["corpus"] == {
        "name": "tavi",
        "sha256": pairs(train=60, val=20).sha256,
        "pairs": 80,
    }
    assert 0 < metrics["val_loss"] < math.log(len(pairs(train=60, val=20).alphabet)) + 0.5
    assert 0 <= metrics["bleu"] <= 100 and 0 <= metrics["exact_match"] <= 1
    assert 0 <= metrics["alignment_accuracy"] <= 1
    # 7 batches of 8 make an epoch of 60 pairs.
    per_batch = metrics["tokens"] / 12 / metrics["tokens_per_second"]
    assert metrics["seconds_an_epoch"] == pytest.approx(7 * per_batch)
    row = read_run(result.folder)
    assert row.status == "finished" and row.values["bleu"] == metrics["bleu"]


def test_metrics_cover_the_whole_validation_part(train: Train) -> None:
    result = train()
    net, alphabet = load_translator(result.folder)
    data = pairs(train=60, val=20)
    assert tuple(alphabet) == tuple(data.alphabet)
    total, count = 0.0, 0
    for batch in validation_batches(data.val, alphabet, batch_size=1):
        with torch.no_grad():
            log_p = net(batch.source, batch.given).double().log_softmax(-1)
        total -= float(log_p.gather(-1, batch.target[..., None]).sum())
        count += int((batch.target != PAD).sum())
    assert result.metrics["val_loss"] == pytest.approx(total / count, rel=1e-6)
    said = measures.translations(net, data.val, alphabet, batch_size=3)
    assert (
        measures.exact_match(said, [" ".join(p.target) for p in data.val])
        == (result.metrics["exact_match"])
    )


def test_the_same_command_twice_gives_the_same_bits(train: Train) -> None:
    a, b = (train("model.dropout=0.2", folder=name).folder for name in "ab")
    assert same_weights(a, b) and untimed(a) == untimed(b)
    assert not same_weights(a, train("model.dropout=0.2", "seed=1", folder="c").folder)


@pytest.mark.parametrize("stop", sampled([1, 3, 5, 8], lambda stop: stop == 5))
def test_an_interrupted_run_resumes_to_the_same_bits(
    stop: int, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train("model.dropout=0.1", "probes=alignments", folder="whole")
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="machine stopped"):
        patch.setattr("attnlab.training.callbacks.Lines", lambda: StopAt(stop))
        train("model.dropout=0.1", "probes=alignments", folder="broken")
    broken = train("model.dropout=0.1", "probes=alignments", folder="broken")
    assert broken.fresh
    assert same_weights(whole.folder, broken.folder)
    assert untimed(whole.folder) == untimed(broken.folder)


def test_a_finished_run_is_left_alone(train: Train) -> None:
    first = train()
    before = (first.folder / "metrics.json").read_bytes()
    assert not train().fresh
    assert (first.folder / "metrics.json").read_bytes() == before
    with pytest.raises(BadInput, match=r"another configuration \(attn\.score\)"):
        train("attn=cross/dot")


def test_the_probe_draws_and_changes_no_weight(train: Train) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    without, seen = train(folder="a"), train("probes=alignments", folder="b")
    assert same_weights(without.folder, seen.folder)
    events = EventAccumulator(str(seen.folder), size_guidance={"images": 0}).Reload()
    tags = events.Tags()
    assert {"alignment/0", "alignment/3"} <= set(tags["images"])
    assert len(events.Images("alignment/0")) == 4  # at the start, and at three validations
    last = events.Scalars("val/bleu")[-1]
    assert (last.step, last.value) == (12, pytest.approx(seen.metrics["bleu"], rel=1e-5))


def test_a_divergence_is_a_result(train: Train) -> None:
    result = train("optim.lr=1e30", "trainer.gradient_clip_val=null")
    status = json.loads((result.folder / "status.json").read_text())
    assert status["status"] == "diverged" and status["step"] >= 1
    assert math.isfinite(status["last_finite_loss"])
    assert result.metrics["first_nonfinite"] is not None


def test_a_users_pairs_train(train: Train, tmp_path: Path) -> None:
    file = tmp_path / "mine.tsv"
    file.write_text("".join(f"a{n} b{n % 3} c\tc b{n % 3} a{n}\n" for n in range(40)))
    metrics = train(f"data.path={file}").metrics
    assert metrics["corpus"]["name"] == "mine.tsv" and metrics["corpus"]["pairs"] == 40
    assert "bleu" in metrics and "alignment_accuracy" not in metrics


def test_runs_are_listed_by_their_variant(train: Train, tmp_path: Path) -> None:
    train(folder="bahdanau/attn=cross-additive/seed=0")
    (row,) = read_runs(tmp_path)
    assert row.values["attn"] == "cross-additive"


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["attn=sdpa"], r"attn\._target_ = .*SelfAttention is not for module = .*Transl"),
        (["data.path=nowhere.tsv"], r"data\.path = nowhere\.tsv cannot be read"),
        (["data.batch_size=64"], r"data\.batch_size = 64 is more than the 60 pairs"),
        (["probes=default"], "the probe Patterns measures a GPT, not a Translator"),
        (["attn.size=0"], r"attn\.size = 0 must be at least 1"),
        (["model.hidden_size=0"], "hidden_size = 0 must be at least 1"),
        (["attn.score=math.hypot"], "."),
    ],
)
def test_bad_input_is_one_sentence_and_nothing_is_written(
    overrides: list[str], sentence: str, train: Train, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence) as refused:
        train(*overrides)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["attn=cross/dot", "attn.size=8"], r"attn\._target_ = .*Aligner has no parameter config"),
        (["probes=alignments"], "the probe Alignments measures a Translator, not a GPT"),
    ],
)
def test_settings_of_a_translator_are_refused_for_a_gpt(
    overrides: list[str], sentence: str, tmp_path: Path
) -> None:
    cfg = project_settings("data=plays", "data.length=2000", *overrides)
    with pytest.raises(BadInput, match=sentence):
        run(read_config(cfg), tmp_path / "run", variant="sdpa", overrides=overrides)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "overrides", [["preset=translation", "data=plays", "data.length=2000"], ["data=pairs"]]
)
def test_a_model_and_data_of_two_tasks_are_one_sentence(
    overrides: list[str], tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=r"data\._target_ = .* is not for .*needs"):
        run(
            read_config(project_settings(*overrides)),
            tmp_path / "run",
            variant="sdpa",
            overrides=overrides,
        )
    assert not (tmp_path / "run").exists()


def test_without_sacrebleu_nothing_is_trained(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(BadInput, match=r"pip install sacrebleu"):
        train()
    assert not (tmp_path / "run").exists()


def test_commands_for_a_gpt_refuse_a_translator(train: Train) -> None:
    folder = train().folder
    with pytest.raises(BadInput, match="holds a Translator, and a GPT is needed"):
        load_model(folder, trust=True)
    with pytest.raises(BadInput, match=r"model\._target_ = translator\.Translator.*--trust"):
        load_model(folder)
    assert "net.attn.score.v" in weights_of(folder)
