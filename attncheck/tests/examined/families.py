"""Small random models of other libraries: the families that are installed."""

import warnings
from typing import Any

import pytest

C, T, V = 32, 24, 61

# ---- x-transformers

# What a layer of x-transformers' Decoder is given.
CONFIGURATIONS = """
    rotary_pos_emb rotary_xpos polar_pos_emb alibi_pos_bias rel_pos_bias dynamic_pos_bias
    attn_data_dependent_alibi attn_use_cope use_rmsnorm use_scalenorm use_dynamic_tanh
    pre_norm=False sandwich_norm attn_qk_norm attn_l2_distance attn_one_kv_head attn_kv_heads=2
    attn_flash attn_max_attend_past=7 attn_sparse_topk=4 attn_pre_talking_heads attn_head_scale
    attn_gate_values attn_num_mem_kv=3 attn_add_zero_kv attn_head_learned_sink attn_sigmoid
    attn_softclamp_logits attn_selective attn_laser ff_glu ff_relu_squared macaron sandwich_coef=1
    residual_attn gate_residual shift_tokens=1 add_value_residual num_residual_streams=2
    weight_tie_layers softclamp_output zero_init_branch_output integrate_layers
    reinject_input unet_skips attn_dropout=0.1 ff_dropout=0.1 attn_cog_signed shift_tokens=2
""".split()


def of_x_transformers(option: str) -> Any:
    """A decoder with an option of `CONFIGURATIONS`, or with none."""
    package = pytest.importorskip("x_transformers")
    name, _, value = option.partition("=")
    given = {name: eval(value or "True")} if name else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layers = package.Decoder(dim=C, depth=2, heads=4, attn_dim_head=8, **given)
        return package.TransformerWrapper(num_tokens=V, max_seq_len=T, attn_layers=layers)


# ---- transformers

# Sizes of a configuration, under all names.
SIZES = {
    "hidden_size n_embd d_model dim word_embed_proj_dim embedding_size": C,
    "num_hidden_layers n_layer n_layers num_layers num_decoder_layers decoder_layers": 2,
    "num_attention_heads n_head n_heads num_heads": 4,
    "num_decoder_attention_heads decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim rotary_dim qk_nope_head_dim qk_rope_head_dim v_head_dim": 8,
    "q_lora_rank kv_lora_rank": 16,
    "intermediate_size ffn_dim d_inner ffn_hidden_size decoder_ffn_dim dff": 64,
    "moe_intermediate_size shared_expert_intermediate_size": 64,
    "vocab_size": V,
    "max_position_embeddings n_positions max_seq_len": 64,
    "num_local_experts num_experts n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group topk_group first_k_dense_replace": 1,
}
LATENT = {"num_key_value_heads": 4}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    **{f"linear_num_{name}_heads": 2 for name in ("key", "value")},
    **{f"linear_{name}_head_dim": 8 for name in ("key", "value")},
}
NEEDS_PADDING = ("modernbert-decoder", "prophetnet")
# Architecture -> what else its configuration needs to be small.
MORE_SIZES: dict[str, dict[str, Any]] = {
    "bamba": {
        "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16,
        "attn_layer_indices": [1],
    },
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "minicpm3": LATENT,
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4},
    **{kind: {"is_decoder": True} for kind in ("roformer", "rembert", "megatron-bert")},
    "big_bird": {"is_decoder": True, "attention_type": "original_full"},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "modernbert-decoder": {
        "layer_types": ["sliding_attention", "full_attention"], "local_attention": 16,
        **{f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")},
    },
    "qwen3_next": LINEAR,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xlstm": {"hidden_size": 128},
}  # fmt: skip
# All of them are healthy.
KINDS = """
    apertus arcee biogpt bitnet bloom codegen cohere cohere2 ctrl diffllama doge ernie4_5 exaone4
    falcon gemma gemma2 gemma3_text glm glm4 gpt2 gpt_bigcode gpt_neox gpt_oss gptj
    granite granitemoe helium hunyuan_v1_dense jetmoe lfm2 llama mistral mixtral mpt nanochat
    nemotron olmo olmo2 olmo3 olmoe opt persimmon phi phi3 qwen2 qwen3 qwen3_moe seed_oss
    smollm3 stablelm starcoder2 xglm
""".split()
KINDS += ["bamba", "deepseek_v2", "deepseek_v3", "dots1", "gpt_neo", "minicpm3", "qwen3_next"]
KINDS += ["modernbert-decoder", "xlstm", "roformer", "big_bird", "rembert", "megatron-bert"]
# Of other architectures: what the checkup says, for the reason that is given.
MEANT = {
    # Steps of several tokens with the state of a convolution are not those of one pass.
    "mamba": "steps of several tokens are wrong, those of one token are right",
    "falcon_mamba": "steps of several tokens are wrong, those of one token are right",
    # `reorder_cache` of its cache leaves the states of linear attention as they are.
    "minimax": "a part of the cache is not reordered",
    # Both streams of these read the whole text, if no mask of permutations or no shift is given.
    "xlnet": "every position reads all",
    "prophetnet": "read",
    # Their recurrences do not look at the mask.
    "recurrent_gemma": "padding: with padding, left",
    "rwkv": "padding: with padding, left",
    # Blocked scores are filled with -1e4.
    "openai-gpt": "finite -1e4",
    # An encoder, unless its configuration says is_decoder.
    "bert": "every position reads all",
}


def of_transformers(kind: str) -> Any:
    """A small random model of an architecture of transformers."""
    transformers = pytest.importorskip("transformers")
    made = transformers.CONFIG_MAPPING[kind]
    given: dict[str, Any] = {}
    for names, size in SIZES.items():
        given |= {name: size for name in names.split() if name in made.__dataclass_fields__}
    if kind not in NEEDS_PADDING:  # whose embedding is 0
        given["pad_token_id"] = None
    config = made(**given | MORE_SIZES.get(kind, {}))
    return transformers.AutoModelForCausalLM.from_config(config)
