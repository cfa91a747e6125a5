"""Models of transformers with small random weights: nothing is downloaded."""

import json
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from attnlab.attention import (  # noqa: F401 for the cell of chapter 4
    AttentionConfig,
    ForgettingAttention,
    SelfAttention,
    bidirectional,
    causal,
)
from attnlab.data.alphabets import Bytes, Characters, Subwords
from attnlab.errors import BadInput
from attnlab.model import GPT, gelu_tanh, relu_squared, rms_norm
from attnlab.probes.capture import views
from attnlab.settings.bind import attention_factory
from attnlab.trained.checkpoints import open_model
from attnlab.trained.export import tokenizer_of
from attnlab.trained.transformers import from_gpt2, to_gpt2, views_of_transformers
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.attention.layers import settings as settings_of
from tests.cli import attnlab
from tests.conftest import ROOT

transformers: Any = pytest.importorskip("transformers")
SIZES = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 24, "vocab_size": 50}
TEXT = "to be or not to be"


@torch.no_grad()
def random(model: nn.Module) -> Any:
    """Large random weights, so that a mistake shows."""
    stream = torch.Generator().manual_seed(0)
    for p in model.parameters():
        p.add_(0.3 * torch.randn(p.shape, generator=stream))
    return model.eval()


def saved(model: nn.Module, folder: Path) -> Path:
    """The directory of a model, with a tokenizer of words."""
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(TEXT.split())}, "not"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="not")
    tokenizer.save_pretrained(folder)
    random(model).save_pretrained(folder)
    return folder


def gpt2(**settings: Any) -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES | settings))


def small(kind: str) -> Any:
    """A model of a kind of transformers."""
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 50}
    config = transformers.AutoConfig.for_model(kind, **sizes)
    return gpt2() if kind == "gpt2" else transformers.AutoModel.from_config(config)


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
def test_views_of_any_model(kind: str, tmp_path: Path) -> None:
    model = small(kind)
    seen, tokens = views_of_transformers(str(saved(model, tmp_path)), TEXT)
    assert tokens == TEXT.split() and [view.layer for view in seen] == [0, 1]
    for view in seen:
        assert view.pattern.shape == (1, 4, 6, 6)
        assert torch.allclose(view.pattern.sum(-1), torch.ones(1, 4, 6))
        past = torch.ones(6, 6).tril().bool()
        assert torch.equal(view.mask, torch.ones_like(past) if kind == "bert" else past)
    if kind == "gpt2":
        ids = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXT, return_tensors="pt")
        for ours, theirs in zip(views(from_gpt2(model), ids["input_ids"]), seen, strict=True):
            torch.testing.assert_close(ours.pattern, theirs.pattern, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{}, {"scale_attn_weights": False}, {"activation_function": "relu", "n_inner": 40}],
    ids=str,
)
def test_a_gpt2_has_the_same_logits_in_our_code(settings: dict[str, Any]) -> None:
    model = random(gpt2(**settings))
    ids = torch.randint(50, (3, 24), generator=torch.Generator().manual_seed(1))
    net = from_gpt2(model)
    assert not net.training
    with torch.no_grad():
        theirs = model(ids).logits
        torch.testing.assert_close(net(ids), theirs, rtol=1e-4, atol=1e-4)
        other = from_gpt2(model, lambda config: SelfAttention(config, scale=0.5))
        assert (other(ids) - theirs).abs().max() > 0.01  # a wrong scale shows
    assert other.get_parameter("wte.weight").equal(net.get_parameter("wte.weight"))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon = 1e-06"),
        ({"activation_function": "tanh"}, "activation_function"),
    ],
)
def test_a_gpt2_that_our_model_is_not(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        from_gpt2(gpt2(**settings))


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"forget\.weight"):
        from_gpt2(gpt2(), ForgettingAttention)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadInput, match=f"hf:{tmp_path} cannot be used"):
        views_of_transformers(str(tmp_path), TEXT)


def ours(variant: str, **settings: Any) -> GPT:
    """Our GPT with the attention of conf/attn, and large random weights."""
    sizes = {"block_size": 24, "n_layer": 2, "n_head": 4, "n_embd": 32}
    net: GPT = random(GPT(attention_factory(settings_of(variant)), 50, **sizes | settings))
    return net


@pytest.mark.parametrize(
    ("variant", "settings"),
    [
        ("sdpa", {}),
        ("manual", {"bias": True, "dropout": 0.1}),
        ("unscaled", {"activation": torch.nn.functional.silu}),
        ("inverse_scale", {"activation": relu_squared, "mlp_ratio": 1.5}),
        ("gqa", {"bias": True}),
        ("mqa", {"positions": "none"}),
        ("shared_qk", {"positions": "sinusoidal"}),
        ("shared_qkv", {"activation": gelu_tanh}),
        ("single_head", {"n_layer": 1}),
    ],
)
def test_our_gpt_has_the_same_logits_in_transformers(
    variant: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    net = ours(variant, **settings)
    to_gpt2(net).save_pretrained(tmp_path)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(model).__name__ == "GPT2LMHeadModel" and not model.training
    ids = torch.randint(50, (3, 24), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = net(ids)
        torch.testing.assert_close(model(ids).logits, logits, rtol=1e-4, atol=1e-4)
        model.transformer.h[0].attn.c_attn.weight[:, :32] *= 1.1  # the scale
        assert (model(ids).logits - logits).abs().max() > 0.01


@pytest.mark.parametrize(
    ("variant", "settings", "named"),
    [
        ("rotary", {}, "rotary positions"),
        ("sliding_window", {}, "mask that is not causal"),
        ("bidirectional", {}, "mask that is not causal"),
        ("cosine", {}, "norms of queries and keys"),
        ("alibi", {}, "changed scores"),
        ("softcap", {}, "changed scores"),
        ("softmax1", {}, "no softmax"),
        ("gate_head", {}, "attention of GatedAttention"),
        ("sdpa", {"norm": rms_norm}, "LayerNorm"),
        ("sdpa", {"smear": 1}, "smeared"),
        ("sdpa", {"wide_embedding": 8}, "second embedding"),
        ("sdpa", {"activation": torch.tanh}, "activation"),
    ],
)
def test_what_gpt2_lacks_is_named(variant: str, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(BadInput, match=named):
        to_gpt2(ours(variant, **settings))


def test_heads_of_a_width_of_their_own_are_named() -> None:
    with pytest.raises(BadInput, match="C / H wide"):
        to_gpt2(GPT(partial(SelfAttention, head_size=3), 50, n_embd=32))


TOKENIZER = Tokenizer(models.WordLevel({"to": 0, "be": 1, "?": 2}, "?"))
TOKENIZER.pre_tokenizer = pre_tokenizers.Whitespace()


@pytest.mark.parametrize(
    ("alphabet", "text"),
    [
        (Characters("\n abeot?"), "to be\n  at a boat?"),
        (Bytes(), "to be, \u00e9\n \U0001f600 \x00"),
        (Subwords(TOKENIZER.to_str()), "to be to"),
    ],
    ids=["characters", "bytes", "tokens"],
)
def test_an_alphabet_is_a_tokenizer(alphabet: Any, text: str, tmp_path: Path) -> None:
    tokenizer_of(alphabet).save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(text)["input_ids"]
    assert ids == alphabet.encode(text) and tokenizer.decode(ids) == text
    assert tokenizer.vocab_size == len(alphabet)


def test_a_run_is_exported(small: Any, tmp_path: Path) -> None:
    run(read_config(small("trainer.max_steps=4")), tmp_path / "run", variant="sdpa")
    opened = open_model(tmp_path / "run")
    for to in ("transformers", "safetensors"):
        done = attnlab("export", str(tmp_path / "run"), f"--to={to}", "-o", str(tmp_path / to))
        assert done.code == 0, done.err
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "transformers")
    text = opened.alphabet.decode(opened.text[:16])
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == opened.text[:16]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, opened.net(ids), rtol=1e-4, atol=1e-5)
    weights = load_file(tmp_path / "safetensors" / "model.safetensors")
    assert weights.keys() == opened.net.state_dict().keys()
    assert all(torch.equal(weights[name], x) for name, x in opened.net.state_dict().items())
    with safe_open(tmp_path / "safetensors" / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["settings"]) == opened.settings
    for to, out in (("transformers", "transformers"), ("onnx", "other")):
        done = attnlab("export", str(tmp_path / "run"), f"--to={to}", "-o", str(tmp_path / out))
        assert done.code == 2 and not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("", ""),
        ("may_attend=bidirectional", "may_attend=causal"),
        ("theirs.self.query, theirs.self.key", "theirs.self.key, theirs.self.query"),
        ("block_size=512)", "block_size=512), scale=0.3"),
        ("ours.proj.load_state_dict(theirs.output.dense.state_dict())", "pass"),
    ],
)
def test_chapter_4_loads_a_bert_into_our_layer_and_a_changed_text_fails(
    text: str, other: str
) -> None:
    chapter = (ROOT / "docs/chapters/4_heads.py").read_text(encoding="utf-8")
    (cell,) = [part for part in chapter.split("# %%") if part.startswith(' tags=["bert"]')]
    code = cell.partition("\n")[2]
    assert len(code.strip().splitlines()) <= 20 and text in code
    with pytest.raises(AssertionError) if text else nullcontext():
        exec(code.replace(text, other) if text else code, dict(globals()))
