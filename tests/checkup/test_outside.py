"""Models of other libraries and the variants of the lab raise no alarm but where one is meant."""

import contextlib
import warnings
from typing import Any

import pytest
import torch

from attnlab.checkup import assert_causal, checkup
from attnlab.init import init_weights
from attnlab.training.config import read_config
from tests.conftest import VARIANTS, settings

pytestmark = pytest.mark.slow
V, T = 29, 24
# What a layer of x-transformers' Decoder is given.
CONFIGURATIONS = """
    rotary_pos_emb rotary_xpos polar_pos_emb alibi_pos_bias rel_pos_bias dynamic_pos_bias
    attn_data_dependent_alibi attn_use_cope use_rmsnorm use_scalenorm use_dynamic_tanh
    pre_norm=False sandwich_norm attn_qk_norm attn_l2_distance attn_one_kv_head attn_kv_heads=2
    attn_flash attn_max_attend_past=7 attn_sparse_topk=4 attn_pre_talking_heads attn_head_scale
    attn_gate_values attn_num_mem_kv=3 attn_add_zero_kv attn_head_learned_sink attn_sigmoid
    attn_softclamp_logits attn_selective attn_laser ff_glu ff_relu_squared macaron sandwich_coef=1
    residual_attn gate_residual shift_tokens=1 add_value_residual num_residual_streams=2
    weight_tie_layers
""".split()
CAUSAL = """
    bloom codegen cohere falcon gemma gemma2 gpt2 gpt_bigcode gpt_neo gpt_neox gptj granite llama
    mistral mixtral mpt nemotron olmo2 opt persimmon phi qwen2 qwen3 stablelm starcoder2 xglm
""".split()
# Read by design, or a finite fill of -1e4 -> what the checkup says.
MEANT = {
    "mamba": "steps of several tokens are wrong, those of one token are right",
    "xlnet": "every position reads all",
    "prophetnet": "read",
    "openai-gpt": "finite -1e4",
    "bert": "every position reads all",
}


def wrong(model: Any, **sizes: int) -> list[str]:
    """What a checkup of a model accuses it of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = checkup(model, **sizes).results
    found = [r for r in results if r.status in ("fault", "suspicious", "failed")]
    return [f"{r.check}: {r.message}" for r in found]


@pytest.mark.parametrize("option", ["", *CONFIGURATIONS])
def test_no_configuration_of_x_transformers_is_accused(option: str) -> None:
    package = pytest.importorskip("x_transformers")
    name, _, value = option.partition("=")
    given = {name: eval(value or "True")} if name else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = package.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **given)
        model = package.TransformerWrapper(num_tokens=V, max_seq_len=T, attn_layers=layers)
    assert wrong(model, vocab_size=V, block_size=T) == []


def tiny(kind: str) -> Any:
    """A small random model of an architecture of transformers."""
    transformers = pytest.importorskip("transformers")
    sizes = {
        "hidden_size n_embd d_model dim word_embed_proj_dim": 32,
        "num_hidden_layers n_layer n_layers num_layers num_decoder_layers": 2,
        "num_attention_heads n_head n_heads num_decoder_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim rotary_dim": 8,
        "intermediate_size ffn_dim d_inner ffn_hidden_size decoder_ffn_dim": 64,
        "vocab_size": 61,
        "max_position_embeddings n_positions max_seq_len": 64,
        "num_local_experts": 4,
    }
    config = transformers.CONFIG_MAPPING[kind]()
    for names, size in sizes.items():
        for name in names.split():
            with contextlib.suppress(NotImplementedError, AttributeError):  # a derived size
                if hasattr(config, name):
                    setattr(config, name, size)
    if kind == "gpt_neo":
        config.attention_layers = ["global", "local"]
    config.pad_token_id = 0 if kind == "prophetnet" else None
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("kind", [*CAUSAL, *MEANT])
def test_architectures_of_transformers(kind: str) -> None:
    torch.manual_seed(0)
    said = "\n".join(wrong(tiny(kind), vocab_size=61, block_size=T))
    assert MEANT[kind] in said if kind in MEANT else said == ""


READ_AHEAD = "bidirectional flipped peek_one post_softmax_mask softmax_over_queries strict_flip"
READ_AHEAD += " unmerged_heads zero_fill"


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_the_lab_read_ahead_only_where_they_are_meant_to(name: str) -> None:
    small = ["preset=micro", "model.n_layer=2", "model.n_head=2", f"attn={name}"]
    small += ["model.n_embd=32", "model.block_size=32"]
    model = read_config(settings(*small)).model(V)
    init_weights(model, 0)
    try:
        assert_causal(model, vocab_size=V, block_size=32)
        leaks = False
    except AssertionError:
        leaks = True
    assert leaks == (name in READ_AHEAD.split())
