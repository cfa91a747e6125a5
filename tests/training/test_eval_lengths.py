"""Evaluation at other lengths: the same weights, other windows, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention import SelfAttention
from attnlab.attention.variant import AttentionConfig
from attnlab.commands.evaluation import evaluate
from attnlab.data.batches import IGNORED
from attnlab.data.corpora import Corpus
from attnlab.data.sequences import induction
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.training.config import read_config
from attnlab.training.eval_lengths import at_length, by_position, data_at
from attnlab.training.factories import model_factory
from attnlab.training.lightning_module import GPTModule
from attnlab.training.run import run
from tests.conftest import plain, settings

TINY = ("preset=micro", "model.n_layer=2", "model.n_embd=16", "model.block_size=16")
ROTARY = ("attn=rotary", "model.learned_positions=false")


class OneBiasAPosition(SelfAttention):
    """A layer whose weights depend on the largest length."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.bias = nn.Parameter(torch.zeros(config.block_size))


class WithoutLengths(GPTModule):
    """A task that does not support `data.eval_lengths`."""

    takes_lengths = False


def built(*overrides: str) -> tuple[GPT, dict[str, Any]]:
    cfg = settings(*TINY, *overrides)
    net = model_factory(cfg.model, cfg.attn)(20)
    assert isinstance(net, GPT)
    return net.eval(), plain(cfg)


@pytest.mark.parametrize(
    "variant", ["sdpa", "rotary", "alibi", "linear", "log_length", "softmax1"]
)
def test_the_first_positions_of_a_longer_text_have_the_same_logits(variant: str) -> None:
    net, config = built(f"attn={variant}", "model.learned_positions=false", "model.smear=1")
    ids = torch.randint(20, (3, 40))
    with torch.no_grad():
        longer = at_length(net, config, 40)(ids)
        torch.testing.assert_close(longer[:, :16], net(ids[:, :16]))
    assert longer.shape == (3, 40, 20)


@pytest.mark.parametrize("rotary", ["null", "10000"])
def test_a_window_moves_over_a_longer_text(rotary: str) -> None:
    """Two layers of windows of 8 see 15 positions; only distances count, wherever they are."""
    overrides = (f"attn.rotary={rotary}", "model.learned_positions=false")
    net, config = built("attn=sliding_window", *overrides)
    ids = torch.randint(20, (3, 100))
    with torch.no_grad():
        torch.testing.assert_close(
            at_length(net, config, 100)(ids)[:, -1], net(ids[:, -16:])[:, -1]
        )


def test_shorter_lengths_need_nothing() -> None:
    net, config = built()
    assert at_length(net, config, 16) is net and at_length(net, config, 3) is net


@pytest.mark.parametrize(
    ("overrides", "length", "sentence"),
    [
        ((), 17, r"length = 17 is beyond model\.block_size = 16, and the model has learned no"),
        ((), 0, r"length = 0 must be from 1 to 16,384"),
        (ROTARY, 2**14 + 1, r"length = 16385 must be from 1"),
        (
            (*ROTARY, f"attn._target_={__name__}.OneBiasAPosition"),
            17,
            r"length = 17 is beyond .* on which the shapes of its weights depend",
        ),
    ],
)
def test_models_that_cannot_be_longer_say_why(
    overrides: tuple[str, ...], length: int, sentence: str
) -> None:
    net, config = built(*overrides)
    with pytest.raises(BadInput, match=sentence):
        at_length(net, config, length)


def test_the_data_of_another_length() -> None:
    text = Corpus.from_pieces("t", ["ab" * 100])
    assert data_at(text, {}, 9) is text
    with pytest.raises(BadInput, match="too few for windows of block_size = 20"):
        data_at(text, {}, 20)
    stored = {"_target_": "attnlab.data.sequences.induction", "length": 16, "batch_size": 4}
    longer = data_at(induction(16), stored, 40)
    assert torch.equal(longer.val, induction(40).val)
    with pytest.raises(BadInput, match=r"data\.symbols = 32 must be from 33"):
        data_at(induction(16), stored, 66)


def test_loss_and_accuracy_by_position() -> None:
    net, _ = built()
    batches = [(torch.randint(20, (n, T)), torch.randint(20, (n, T))) for n, T in ((5, 6), (2, 4))]
    batches[0][1][:, 1] = batches[1][1][:, 1] = IGNORED
    result = by_position(net, batches, 6)
    with torch.no_grad():
        for t in range(6):
            logits = torch.cat([net(x)[:, t] for x, _ in batches if t < x.shape[1]])
            answers = torch.cat([y[:, t] for _, y in batches if t < y.shape[1]])
            got = result["by_position"][t], result["accuracy_by_position"][t]
            if t == 1:
                assert got[0] != got[0] and got[1] != got[1]  # NaN: nothing is predicted
                continue
            right = float((logits.argmax(-1) == answers).double().mean())
            assert got == pytest.approx((float(F.cross_entropy(logits, answers)), right))
    assert result["predictions"] == 5 * 5 + 2 * 3


def test_symbols_with_other_ids_and_weights_that_are_not_finite() -> None:
    net, _ = built()
    x, y = torch.randint(20, (2, 5, 6))
    ids = torch.randperm(20)
    assert by_position(net, [(x, y)], 6, ids) == by_position(net, [(ids[x], ids[y])], 6)
    net.wte.weight.data[3, 0] = torch.nan
    assert str(by_position(net, [(x, y)], 6)["accuracy"]) == "nan"


def test_a_run_measures_its_lengths_at_the_end(train: Callable[..., Any]) -> None:
    result = train(*ROTARY, "data.eval_lengths=[8,16,40]")
    by_length = result.metrics["by_length"]
    assert list(by_length) == ["8", "16", "40"]
    assert by_length["16"]["loss"] == pytest.approx(result.metrics["val_loss"], abs=1e-6)
    assert {entry["predictions"] for entry in by_length.values()} == {399}
    later = evaluate(result.folder, ["length=40"], trust=True)
    assert {key: later[key] for key in by_length["40"]} == by_length["40"]


def test_a_task_is_measured_on_longer_sequences(tmp_path: Path) -> None:
    cfg = settings(
        *TINY, *ROTARY, "data=induction", "data.eval_lengths=[32]", "probes=none",
        "trainer.max_steps=2", "trainer.val_check_interval=2",
    )  # fmt: skip
    result = run(read_config(cfg), tmp_path / "run", variant="rotary")
    longer = result.metrics["by_length"]["32"]
    answers = sum(int((y != IGNORED).sum()) for _, y in induction(32).held_out("val", 32))
    assert longer["predictions"] == answers
    assert longer["accuracy"] == evaluate(result.folder, ["length=32"])["accuracy"]


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["data.eval_lengths=[8,17]"], r"length = 17 is beyond model\.block_size = 16"),
        (["data.eval_lengths=64"], r"data\.eval_lengths = 64 must be lengths"),
        (["data.eval_lengths=[a]"], r"must be lengths, such as \[64,128\]"),
        (
            ["data.eval_lengths=[8]", f"module={__name__}.WithoutLengths"],
            r"data\.eval_lengths is not for module = .*WithoutLengths",
        ),
    ],
)
def test_lengths_are_refused_before_training(
    train: Callable[..., Any], tmp_path: Path, overrides: list[str], sentence: str
) -> None:
    with pytest.raises(BadInput, match=sentence):
        train(*overrides)
    assert not (tmp_path / "run").exists()
