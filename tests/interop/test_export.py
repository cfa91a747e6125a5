"""Exported GPTs load and generate in transformers without attnlab."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import GPT2LMHeadModel
from typer.testing import CliRunner

from attnlab.attention import SelfAttention, TorchMHA, Variant, faulty_kernels, kernels, masks
from attnlab.commands.cli import app
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.interop import export, to_gpt2, tokenizer_of
from attnlab.model import GPT, gelu_tanh, relu_squared, rms_norm
from attnlab.sampling import sample
from tests.conftest import weights_of

ALPHABET = "\n !\"'-.abcdefgé🙂"
T = 24


def gpt(attn: Any = SelfAttention, **settings: Any) -> GPT:
    net = GPT(
        attn, len(ALPHABET), block_size=T, **({"n_layer": 2, "n_head": 2, "n_embd": 16} | settings)
    )
    init_weights(net, 3)
    stream = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():  # so that the text does not repeat one character
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=stream))
    return net.eval()


def ids() -> Tensor:
    return torch.randint(len(ALPHABET), (3, T), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", [F.gelu, gelu_tanh, relu_squared, F.relu, F.silu])
@pytest.mark.parametrize(
    "attn",
    [
        SelfAttention,
        TorchMHA,
        Variant(SelfAttention, {"kernel": kernels.manual}),
        Variant(SelfAttention, {"scale": 1.0}),
        Variant(SelfAttention, {"heads": 1}),
    ],
    ids=["sdpa", "torch_mha", "manual", "unscaled", "single_head"],
)
@torch.no_grad()
def test_logits_are_equal(attn: Any, activation: Any, bias: bool) -> None:
    net = gpt(attn, bias=bias, activation=activation)
    theirs = to_gpt2(net)(ids()).logits
    torch.testing.assert_close(theirs, net(ids()), atol=1e-5, rtol=0)


@pytest.mark.long  # test_the_export_command loads the folder, too, in this process
def test_the_folder_generates_in_a_process_that_lacks_attnlab(tmp_path: Path) -> None:
    net = gpt()
    export(net, ALPHABET, tmp_path / "out")
    prompt = "a bad\n"
    ours = sample(net, torch.tensor([ALPHABET.index(c) for c in prompt]), 18, temperature=0)
    code = (
        "import sys; sys.modules['attnlab'] = None\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        f"tokenizer = AutoTokenizer.from_pretrained({str(tmp_path / 'out')!r})\n"
        f"model = AutoModelForCausalLM.from_pretrained({str(tmp_path / 'out')!r})\n"
        f"ids = tokenizer({prompt!r}, return_tensors='pt')\n"
        "drawn = model.generate(**ids, max_new_tokens=18, do_sample=False)[0]\n"
        "print(ascii(tokenizer.decode(drawn)), type(model).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text = prompt + "".join(ALPHABET[i] for i in ours)
    assert done.stdout == f"{text!a} GPT2LMHeadModel\n"
    assert len(set(text)) > 6


@given(st.text(ALPHABET, max_size=40))
def test_the_tokenizer_has_a_token_a_character(text: str) -> None:
    tokenizer = tokenizer_of(ALPHABET, T)
    encoded = tokenizer(text)["input_ids"]
    assert encoded == [ALPHABET.index(symbol) for symbol in text]
    assert tokenizer.decode(encoded) == text


def test_the_exported_tokenizer_refuses_unknown_characters() -> None:
    with pytest.raises(Exception, match="WordLevel error"):
        tokenizer_of(ALPHABET, T)("a Z")


def only_two(q: Tensor, k: Tensor) -> Tensor:
    return (k <= q) & (k > q - 2)


def causal_too(q: Tensor, k: Tensor) -> Tensor:
    return ~(k > q)


def cube(x: Tensor) -> Tensor:
    return x**3


class Other(SelfAttention):
    pass


class OtherGPT(GPT):
    pass


@pytest.mark.parametrize(
    ("net", "sentence"),
    [
        (lambda: gpt(learned_positions=False), "model.learned_positions = false"),
        (lambda: gpt(smear=2), "model.smear = 2"),
        (lambda: gpt(norm=rms_norm), "model.norm gives RMSNorm"),
        (lambda: gpt(activation=cube), "model.activation = cube: it must be one of gelu_new"),
        (lambda: gpt(Variant(SelfAttention, {"rotary": 1e4})), "attn.rotary = 10000: "),
        (lambda: gpt(Variant(SelfAttention, {"qk_norm": True})), "attn.qk_norm = true"),
        (lambda: gpt(Variant(SelfAttention, {"n_kv_head": 1})), "attn.n_kv_head = 1: "),
        (
            lambda: gpt(Variant(SelfAttention, {"scale": 0.3})),
            "attn.scale = 0.3: it must be 1/sqrt",
        ),
        (
            lambda: gpt(Variant(SelfAttention, {"may_attend": only_two})),
            "attn.may_attend = only_two",
        ),
        (
            lambda: gpt(Variant(TorchMHA, {"may_attend": masks.flipped})),
            "attn.may_attend = flipped",
        ),
        (
            lambda: gpt(Variant(SelfAttention, {"kernel": faulty_kernels.zero_fill})),
            "attn.kernel = zero_fill",
        ),
        (lambda: gpt(Other), "attn is Other"),
    ],
)
def test_models_that_gpt2_cannot_express_are_refused(
    net: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=sentence):
        export(net(), ALPHABET, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_model_of_another_class_is_refused() -> None:
    other = OtherGPT(SelfAttention, 5, block_size=T, n_layer=1, n_head=2, n_embd=16)
    with pytest.raises(BadInput, match="model = OtherGPT"):
        to_gpt2(other)


def test_a_causal_mask_under_another_name_is_exported() -> None:
    to_gpt2(gpt(Variant(SelfAttention, {"may_attend": causal_too})))


def test_an_unexpected_difference_in_logits_is_refused() -> None:
    net = gpt()
    net.blocks[1].register_forward_hook(lambda module, args, y: y + 1e-3 * y.roll(1, -1))
    with pytest.raises(BadInput, match="gives different logits"):
        to_gpt2(net)


def test_an_additional_parameter_and_nan_are_refused() -> None:
    net = gpt()
    net.blocks[0].attn.bonus = nn.Parameter(torch.ones(3))
    with pytest.raises(BadInput, match=r"no parameter .*bonus"):
        to_gpt2(net)
    net = gpt()
    torch.nn.init.constant_(net.wte.weight, torch.nan)
    with pytest.raises(BadInput, match="weight is not finite"):
        to_gpt2(net)


def test_a_full_disk_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(self: object, folder: Path) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(GPT2LMHeadModel, "save_pretrained", full)
    with pytest.raises(BadInput, match=r"cannot be written: .*No space left"):
        export(gpt(), ALPHABET, tmp_path / "out")
    assert not any(tmp_path.iterdir())


def test_the_export_command(train: Any, tmp_path: Path) -> None:
    folder = train().folder
    out = tmp_path / "for" / "others"
    done = CliRunner().invoke(app, ["export", str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert str(out) in done.output.replace("\n", "")
    model = GPT2LMHeadModel.from_pretrained(out)
    assert torch.equal(model.transformer.wte.weight, weights_of(folder)["net.wte.weight"])
    kept = sorted(file.name for file in out.iterdir())
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(kept)
    again = CliRunner().invoke(app, ["export", str(folder), "--out", str(out)])
    assert isinstance(again.exception, BadInput) and "not empty" in str(again.exception)
    assert sorted(file.name for file in out.iterdir()) == kept
    assert sorted(file.name for file in out.parent.iterdir()) == ["others"]
