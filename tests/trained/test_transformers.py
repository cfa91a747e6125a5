"""Models of transformers with small random weights: nothing is downloaded."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from attnlab.attention import (  # noqa: F401 for the cell of chapter 4
    AttentionConfig,
    ForgettingAttention,
    SelfAttention,
    bidirectional,
    causal,
)
from attnlab.errors import BadInput
from attnlab.probes.capture import views
from attnlab.trained.transformers import from_gpt2, views_of_transformers
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
