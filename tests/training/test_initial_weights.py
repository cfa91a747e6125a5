"""A new run starts from the weights of a run or of a GPT-2; mismatches are named."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

from attnlab.data.batches import TrainBatches, ValidationBatches
from attnlab.errors import BadInput
from attnlab.runs.reading import read_curves
from attnlab.training.callbacks import RunCheckpoints
from attnlab.training.checkpoints import load_model
from attnlab.training.config import read_config
from tests.conftest import settings, weights_of
from tests.forked import same_weights
from tests.interop import folders
from tests.training.test_resume import rewrite

Train = Callable[..., Any]
# With such a small learning rate, the weights hardly change.
STILL = ("optim.lr=1e-12", "optim.min_lr=0", "optim.weight_decay=0")
LOGGED = ("logger=tensorboard", "trainer.log_every_n_steps=1")
FITS = ("model.bias=true", "model.activation=gelu_tanh")


def gpt2_folder(folder: Path, **changed: Any) -> Path:
    """A random GPT-2 of the size of SMALL for the 28 symbols of the text, without a tokenizer."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 28, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(**(sizes | dropout | changed), bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config)
    folders.shaken(model)
    model.save_pretrained(folder)
    return folder


def test_a_gpt2_starts_at_the_loss_of_transformers(
    train: Train, small: Callable[..., Any], tmp_path: Path
) -> None:
    folder = gpt2_folder(tmp_path / "gpt2")
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    run = train(f"init_from=hf:{folder}", *FITS, *STILL, *LOGGED)
    corpus = read_config(small()).data()

    def loss(x: torch.Tensor, y: torch.Tensor, reduction: str = "mean") -> float:
        with torch.no_grad():
            logits = theirs(x).logits.flatten(0, 1)
        return float(F.cross_entropy(logits, y.flatten(), reduction=reduction))

    draw = corpus.train_draw(16)
    (first,) = TrainBatches(draw, batch_size=4, seed=0, steps=1, start=0, rank=0, world_size=1)
    logged = dict(read_curves(run.folder, "train/loss")["train/loss"])
    assert logged[1] == pytest.approx(loss(*first), abs=1e-5)
    batches = corpus.held_out("val", 16)
    assert isinstance(batches, ValidationBatches)
    whole = sum(loss(x, y, "sum") for x, y in batches) / sum(y.numel() for _, y in batches)
    assert run.metrics["val_loss"] == pytest.approx(whole, abs=1e-5)
    assert run.metrics["init_from"]["source"] == f"hf:{folder}"


def test_a_gpt2_reads_a_text_with_its_own_tokenizer(train: Train, tmp_path: Path) -> None:
    folder = folders.gpt2_folder(tmp_path / "gpt2")
    sizes = ("model.n_layer=3", "model.n_head=4", "model.n_embd=32", "model.block_size=48")
    text = tmp_path / "lines.txt"
    text.write_text("\n".join(folders.LINES * 60))
    data = (f"data.path={text}", f"data.tokenizer={folder}")
    run = train(f"init_from=hf:{folder}", *sizes, *data, *FITS, *STILL)
    theirs = GPT2LMHeadModel.from_pretrained(folder).eval()
    corpus = read_config(settings("data=text", *data)).data()
    words = AutoTokenizer.from_pretrained(folder)(text.read_text())["input_ids"]
    assert words == [*corpus.train.tolist(), *corpus.val.tolist()]
    losses, count = 0.0, 0
    for x, y in corpus.held_out("val", 48):
        with torch.no_grad():
            logits = theirs(x).logits.flatten(0, 1)
        losses += float(F.cross_entropy(logits, y.flatten(), reduction="sum"))
        count += y.numel()
    assert run.metrics["val_loss"] == pytest.approx(losses / count, abs=1e-5)
    assert run.metrics["unit"] == "token"


def test_a_run_starts_from_the_weights_of_another_and_trains_on(train: Train) -> None:
    first = train(folder="first")
    still = train(f"init_from={first.folder}", *STILL, folder="still")
    assert still.metrics["val_loss"] == pytest.approx(first.metrics["val_loss"], abs=1e-6)
    assert still.metrics["steps"] == 4  # its own, from 0
    more = train(f"init_from={first.folder}", "trainer.max_steps=40", "optim.lr=1e-2")
    assert more.metrics["val_loss"] < first.metrics["val_loss"] - 0.1
    assert not same_weights(first.folder, more.folder)
    last = first.folder / "checkpoints" / "last.ckpt"
    same = train(f"init_from={last}", *STILL, folder="same")
    assert same_weights(still.folder, same.folder)


def test_one_thing_about_attention_changes_under_trained_weights(train: Train) -> None:
    first = train(folder="first")
    other = train(f"init_from={first.folder}", "attn=unscaled", *STILL, folder="other")
    assert other.metrics["val_loss"] != pytest.approx(first.metrics["val_loss"], abs=1e-6)
    net, _ = load_model(other.folder)
    assert net.blocks[0].attn.scale == 1.0
    ours, theirs = weights_of(other.folder), weights_of(first.folder)
    assert all(torch.allclose(ours[key], theirs[key], atol=1e-8) for key in ours)


def test_an_interrupted_run_resumes_and_its_weights_belong_to_its_identity(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = train(folder="first")
    begun = (f"init_from={first.folder}", "trainer.max_steps=8", "checkpoint_every=2")
    whole = train(*begun, folder="whole")

    def ended(self: Any, trainer: Any, *_: Any) -> None:
        if trainer.global_step == 5:
            raise SystemExit(143)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr("attnlab.training.callbacks.Scalars.on_train_batch_end", ended)
        train(*begun)
    run = train(*begun)
    assert same_weights(run.folder, whole.folder)
    assert not train(*begun).fresh
    last = first.folder / "checkpoints" / "last.ckpt"
    rewrite(last, lambda checkpoint: checkpoint["state_dict"]["net.wte.weight"].mul_(2))
    with pytest.raises(BadInput, match="other weights"):
        train(*begun)


def test_a_run_that_started_from_weights_can_be_continued(train: Train) -> None:
    constant = ("optim.min_lr=1e-3", "optim.warmup_steps=0")
    first = train(folder="first")
    whole = train(*constant, f"init_from={first.folder}", "trainer.max_steps=8", folder="whole")
    half = train(*constant, f"init_from={first.folder}", folder="half")
    run = train(*constant, f"continue_from={half.folder}", "trainer.max_steps=8")
    assert same_weights(run.folder, whole.folder)
    with pytest.raises(BadInput, match="use either"):
        train(f"continue_from={half.folder}", f"init_from={half.folder}", folder="both")


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        (("model.n_layer=1",), "needs model.n_layer=2"),
        (("model.n_head=4",), "needs model.n_head=2"),
        (("model.bias=true", "model.norm=rms_norm"), "needs model.bias=false model.norm=layer_n"),
        (("data.path={other}",), "was trained on other symbols than those of other.txt"),
        (
            ("attn=gqa", "attn.n_kv_head=1"),
            "does not fit: size mismatch for blocks.0.attn.qkv",
        ),
    ],
)
def test_mismatched_weights_are_refused(
    changed: tuple[str, ...], sentence: str, train: Train, tmp_path: Path
) -> None:
    first = train(folder="first")
    other = tmp_path / "other.txt"
    other.write_text("0123456789, and so on. " * 200)
    with pytest.raises(BadInput) as refused:
        train(f"init_from={first.folder}", *(each.format(other=other) for each in changed))
    assert sentence in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("saved", "changed", "sentence"),
    [
        ({}, (), "needs model.bias=true model.activation=gelu_tanh"),
        ({"n_head": 4}, FITS, "needs model.n_head=4"),
        ({"activation_function": "silu"}, FITS, "activation=torch.nn.functional.silu"),
        ({"vocab_size": 31}, FITS, "has 31 symbols, and text.txt has 28; set data.tokenizer"),
        ({"n_inner": 5}, FITS, "n_inner = 5 must be 4 * n_embd = 64"),
    ],
)
def test_a_gpt2_that_does_not_fit_is_refused(
    saved: dict[str, Any], changed: tuple[str, ...], sentence: str, train: Train, tmp_path: Path
) -> None:
    folder = gpt2_folder(tmp_path / "gpt2", **saved)
    with pytest.raises(BadInput) as refused:
        train(f"init_from=hf:{folder}", *changed)
    assert sentence in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_only_a_run_with_a_checkpoint_has_weights(
    train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(RunCheckpoints, "on_train_batch_end", ended)
        train(folder="interrupted")
    for name, why in (("interrupted", "has no checkpoint yet"), ("none", "no run directory")):
        with pytest.raises(BadInput, match=why):
            train(f"init_from={tmp_path / name}", folder="new")
