"""The same weights at other lengths, and as the start of another run."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attnlab.attention import AttentionConfig
from attnlab.data.sequences import induction
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.trained.evaluation import at_length, by_position
from attnlab.training.config import read_config
from tests.conftest import settings

Train = Callable[..., Any]
TINY = ("preset=micro", "model.n_embd=16", "model.block_size=16", "model.positions=none")
STILL = ("optim.lr=1e-12", "optim.min_lr=0", "optim.weight_decay=0")


def state(run: Any) -> dict[str, torch.Tensor]:
    file = run.folder / "checkpoints/last.ckpt"
    weights: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["state_dict"]
    return weights


@pytest.mark.parametrize(
    "words",
    [
        *("attn=sdpa", "attn=rotary", "attn=alibi", "attn=linear", "attn=gated_delta_net"),
        *("attn=relative_bias", "model.positions=sinusoidal"),
    ],
)
def test_the_first_positions_of_a_longer_text_have_the_same_logits(words: str) -> None:
    config = read_config(settings(*TINY, words))
    net = config.model(20).eval()
    ids = torch.randint(20, (3, 40))
    with torch.no_grad():
        longer = at_length(net, config.settings.model, config.settings.attn, 40)
        torch.testing.assert_close(longer(ids)[:, :16], net(ids[:, :16]))
    assert at_length(net, config.settings.model, config.settings.attn, 16) is net


class Gated(nn.Module):
    """A user's layer that forgot the initial values of both parameters."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.n_embd, config.n_embd)
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x) + self.shift


def test_all_parameters_without_initial_values_are_named() -> None:
    net = GPT(Gated, 7, block_size=8, n_layer=2, n_head=2, n_embd=8)
    with pytest.raises(ValueError, match=r"\"shift\".*\"gate.weight\"") as error:
        init_weights(net, 0)
    assert "gate.bias" not in str(error.value) and str(error.value).count("shift") == 2


def test_a_length_without_positions_is_refused() -> None:
    config = read_config(settings(*TINY, "model.positions=learned"))
    with pytest.raises(BadInput, match="positions=none"):
        at_length(config.model(20), config.settings.model, config.settings.attn, 17)


def test_loss_and_accuracy_by_position_are_those_of_a_loop() -> None:
    net = read_config(settings(*TINY)).model(8).eval()
    batches = induction(16, symbols=8).held_out("val", 16)[:2]
    found = by_position(net, batches, 16)
    losses, right, counts = torch.zeros(3, 16, dtype=torch.float64)
    for x, y in batches:
        for ids, targets in zip(x, y, strict=True):
            logits = net(ids[None])[0].detach()
            for t in (targets >= 0).nonzero().flatten().tolist():
                losses[t] += F.cross_entropy(logits[t], targets[t])
                right[t] += logits[t].argmax() == targets[t]
                counts[t] += 1
    assert found["predictions"] == counts.sum()
    assert found["loss"] == pytest.approx(float(losses.sum() / counts.sum()), rel=1e-6)
    assert found["accuracy"] == pytest.approx(float(right.sum() / counts.sum()))
    torch.testing.assert_close(
        torch.tensor(found["by_position"], dtype=torch.float64), losses / counts, equal_nan=True,
        rtol=1e-6, atol=0,
    )  # fmt: skip


def test_a_run_measures_at_the_lengths_it_is_told(train: Train) -> None:
    overrides = ("model.positions=none", "attn=rotary", "data.eval_lengths=[8,16,24]")
    metrics = train(*overrides).metrics
    assert [len(x["by_position"]) for x in metrics["by_length"].values()] == [8, 16, 24]
    assert metrics["by_length"]["16"]["loss"] == pytest.approx(metrics["val_loss"], rel=1e-5)


def test_a_run_starts_from_the_weights_of_another(train: Train) -> None:
    first = train(folder="first")
    still = train(f"init_from={first.folder}", *STILL, folder="still")
    assert still.metrics["val_loss"] == pytest.approx(first.metrics["val_loss"], abs=1e-6)
    assert still.metrics["steps"] == 4  # its own, from 0
    other = train(f"init_from={first.folder}", "attn=unscaled", *STILL, folder="other")
    assert other.metrics["val_loss"] != pytest.approx(first.metrics["val_loss"], abs=1e-6)
    assert all(
        torch.allclose(x, state(other)[name], atol=1e-8) for name, x in state(first).items()
    )


def test_other_weights_under_the_same_name_are_another_run(train: Train) -> None:
    first = train(folder="first")
    train(f"init_from={first.folder}", folder="next")
    train("seed=1", "force=true", folder="first")
    with pytest.raises(BadInput, match="init_source"):
        train(f"init_from={first.folder}", folder="next")


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("model.n_embd=32", "n_embd"),
        ("model.activation=relu_squared", "activation"),
        ("attn=latent", "attn"),
        ("data.tokenizer=bytes", "symbols"),
    ],
)
def test_weights_of_another_model_are_refused(override: str, named: str, train: Train) -> None:
    first = train(folder="first")
    with pytest.raises(BadInput, match=named):
        train(f"init_from={first.folder}", override, folder="next")


def test_a_gpt2_starts_at_the_loss_of_transformers(train: Train, tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 12}
    torch.manual_seed(1)
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes)).eval()
    theirs.save_pretrained(tmp_path / "gpt2")
    text = tmp_path / "digits.txt"
    text.write_text("".join(str(i * i) for i in range(1000)) + ",.")
    run = train(
        f"init_from=hf:{tmp_path / 'gpt2'}", "model.bias=true", "model.activation=gelu_tanh",
        f"data.path={text}", *STILL,
    )  # fmt: skip
    corpus = read_config(settings("data=text", f"data.path={text}")).data()
    with torch.no_grad():
        sums = [
            (float(F.cross_entropy(theirs(x).logits.flatten(0, 1), y.flatten(), reduction="sum")),
             y.numel())
            for x, y in corpus.held_out("val", 16)
        ]  # fmt: skip
    mean = sum(x for x, _ in sums) / sum(n for _, n in sums)
    assert run.metrics["val_loss"] == pytest.approx(mean, abs=1e-5)
