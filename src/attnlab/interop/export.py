"""Export our GPT as a `GPT2LMHeadModel`, or as a directory that transformers loads."""

import copy
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from attnlab.attention.layer import Attention
from attnlab.attention.masks import build_mask, causal, name_of
from attnlab.attention.self_attention import SelfAttention
from attnlab.attention.torch_mha import TorchMHA
from attnlab.data.corpora import Alphabet
from attnlab.data.tokenizers import Bytes, Subwords
from attnlab.errors import BadInput, first_line
from attnlab.interop.gpt2 import ACTIVATIONS, EPS, THEIRS, renamed
from attnlab.interop.transformers_loading import transformers
from attnlab.model import GPT, Block
from attnlab.rng import generator

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel

TOLERANCE = 1e-9  # of logits in fp64, relative to their size: rounding only


def export(net: GPT, alphabet: Alphabet, folder: Path) -> None:
    """Write a directory from which transformers generates text: config, weights, tokenizer.

    A character model's tokenizer has one token per character, and it refuses text with an unknown
    character. The directory is written completely or not at all. Raises BadInput if GPT-2 cannot
    express the model, or if the directory exists and is not empty.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"out = {folder} already exists and is not empty; name a new directory")
    model = to_gpt2(net)
    tokenizer = tokenizer_of(alphabet, net.block_size)
    from safetensors import SafetensorError  # its own error where the disk is full

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as beside:
            whole = Path(beside, "whole")
            model.save_pretrained(whole)
            tokenizer.save_pretrained(whole)
            whole.replace(folder)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else first_line(error)
        raise BadInput(f"out = {folder} cannot be written: {reason}") from error


def tokenizer_of(alphabet: Alphabet, block_size: int) -> Any:
    """A `PreTrainedTokenizerFast` whose token i is the symbol alphabet[i]."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    if isinstance(alphabet, Subwords):
        tokenizer = Tokenizer.from_str(alphabet.stored)
    elif isinstance(alphabet, Bytes):  # a letter stands for each byte, and no pair is merged
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())  # of other bytes in order, from 256
        own = [ord(letter) for letter in letters if ord(letter) < 256]
        values = [*own, *(i for i in range(256) if i not in own)]
        tokenizer = Tokenizer(models.BPE(dict(zip(letters, values, strict=True)), []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        tokenizer = Tokenizer(models.WordLevel({symbol: i for i, symbol in enumerate(alphabet)}))
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        tokenizer.decoder = decoders.Fuse()
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=block_size, clean_up_tokenization_spaces=False
    )


def to_gpt2(net: GPT) -> "GPT2LMHeadModel":
    """Our GPT as a `GPT2LMHeadModel` with the same logits, in evaluation mode, on the CPU.

    Biases that our GPT lacks become zeros. The logits of both models are compared on a random
    text, so that no difference goes unnoticed. Raises BadInput if GPT-2 cannot express the model.
    """
    config = _config(net)
    model = transformers().GPT2LMHeadModel(config).to(net.wte.weight.dtype).eval()
    body = model.transformer
    zeros = {n: torch.zeros_like(p) for n, p in body.named_parameters() if n.endswith("bias")}
    weights = renamed(net.state_dict(), THEIRS)
    for name, weight in weights.items():
        if not weight.isfinite().all():
            raise BadInput(f"{name} is not finite: the training of this model diverged")
        if name not in body.state_dict() or body.state_dict()[name].shape != weight.shape:
            raise BadInput(f"GPT-2 has no parameter {name} of shape {tuple(weight.shape)}")
    body.load_state_dict(zeros | weights)
    ids = torch.randint(net.vocab_size, (1, net.block_size), generator=generator(0, "export"))
    with torch.no_grad():
        ours = copy.deepcopy(net).cpu().double().eval()(ids)
        theirs = copy.deepcopy(model).double()(ids).logits
    gap, size = float((ours - theirs).abs().max()), max(1.0, float(ours.abs().max()))
    if not gap <= TOLERANCE * size:
        raise BadInput(
            f"GPT-2 with these weights gives different logits, by {gap:.2g}; nothing was written"
        )
    return model


def _config(net: GPT) -> "GPT2Config":
    """The configuration of a GPT-2 that computes the same function; BadInput if there is none."""
    for obstacle in _obstacles(net):
        raise BadInput(obstacle)
    first: Any = net.blocks[0]
    activation = first.mlp.activation
    return transformers().GPT2Config(
        vocab_size=net.vocab_size,
        n_positions=net.block_size,
        n_embd=net.wte.embedding_dim,
        n_layer=len(net.blocks),
        n_head=first.attn.n_head,
        n_inner=first.mlp.fc.out_features,
        activation_function=next(name for name, x in ACTIVATIONS.items() if x is activation),
        scale_attn_weights=first.attn.scale != 1,
        resid_pdrop=first.dropout.p,
        embd_pdrop=net.dropout.p,
        attn_pdrop=first.attn.dropout,
        bos_token_id=None,  # a character model has no end-of-text symbol
        eos_token_id=None,
    )


def _obstacles(net: GPT) -> Iterator[str]:
    """What GPT-2 cannot express, in sentences."""
    blocks: Any = net.blocks
    if type(net) is not GPT or any(type(block) is not Block for block in blocks):
        yield f"model = {type(net).__name__}: only GPT with its own blocks can become a GPT-2"
    if net.wpe is None:
        yield "model.learned_positions = false: GPT-2 has learned positions"
    if len(net.smear):
        yield f"model.smear = {len(net.smear)}: GPT-2 has no smeared embeddings"
    for norm in (net.ln_f, *(norm for block in blocks for norm in (block.ln_1, block.ln_2))):
        if not isinstance(norm, nn.LayerNorm) or norm.eps != EPS:
            yield f"model.norm gives {norm}: GPT-2 has LayerNorms with eps = {EPS:g}"
    if (activation := blocks[0].mlp.activation) not in ACTIVATIONS.values():
        known = ", ".join(ACTIVATIONS)
        yield f"model.activation = {name_of(activation)}: it must be one of {known}"
    for block in blocks:
        yield from _of_layer(block.attn, net.block_size)


def _of_layer(attn: nn.Module, block_size: int) -> Iterator[str]:
    """What GPT-2 cannot express in an attention layer."""
    if type(attn) not in (SelfAttention, TorchMHA):
        yield f"attn is {type(attn).__name__}: GPT-2 has only scaled dot products"
    assert isinstance(attn, Attention)
    others: dict[str, Any] = {"shared": attn.shared}
    if attn.n_kv_head != attn.n_head:
        others["n_kv_head"] = attn.n_kv_head
    if isinstance(attn, SelfAttention):
        declared = attn.properties
        if declared is None or not declared.is_softmax or declared.scores is not None:
            yield f"attn.kernel = {name_of(attn.kernel)}: it must be sdpa or manual"
        others |= {"qk_norm": attn.gain is not None and "true", "rotary": attn.rotary}
        others |= {"softcap": attn.softcap, "score_mod": attn.score_mod}
    for name, value in others.items():
        if value:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            text = name_of(value) if callable(value) else text
            yield f"attn.{name} = {text}: GPT-2 has no such setting"
    if not torch.equal(build_mask(attn.may_attend, block_size), build_mask(causal, block_size)):
        yield f"attn.may_attend = {name_of(attn.may_attend)}: GPT-2 is causal"
    if attn.scale not in (usual := 1 / math.sqrt(attn.head_size), 1.0):
        yield f"attn.scale = {attn.scale:g}: it must be 1/sqrt(D) = {usual:g} or 1"
