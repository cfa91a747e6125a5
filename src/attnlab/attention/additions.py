"""The parameters of settings of self-attention that are off by default, and their first values."""

import math

import torch
from torch import nn

from attnlab.attention.variant import AttentionConfig, check_sizes
from attnlab.rng import Rule, constant, normal, ones, uniform, zeros

Parts = dict[str, nn.Module | nn.Parameter]


def additions(config: AttentionConfig, H: int, rows: int) -> tuple[Parts, dict[str, Rule]]:
    """The parameters that the settings of a layer with `rows` rows of `qkv` add to it, and their
    initialization rules, by name.

    Raises ValueError for settings out of range, or that do not combine.
    """
    C = config.n_embd
    parts: Parts = {}
    rules: dict[str, Rule] = {}
    if config.length_scale:
        parts["length_gain"], rules["length_gain"] = nn.Parameter(torch.ones(H)), ones
    if config.conv is not None:
        check_sizes({"conv": config.conv})
        parts["conv"] = nn.Parameter(torch.zeros(config.conv, rows))
        rules["conv"] = uniform(-0.5, 0.5)  # as nn.Conv1d with 4 taps a channel
    if config.sink:
        parts["sink"], rules["sink"] = nn.Parameter(torch.zeros(H)), zeros
    if config.gate not in (None, "head", "channel"):
        raise ValueError(f"gate = {config.gate} must be head, channel or null")
    if config.gate_bias is not None and config.gate is None:
        raise ValueError(f"gate_bias = {config.gate_bias:g} needs gate = head or channel")
    if config.gate is not None:
        width = H if config.gate == "head" else C
        parts["gate"] = nn.Linear(C, width, bias=config.gate_bias is not None)
        rules |= {"gate.weight": normal(0.02), "gate.bias": constant(config.gate_bias or 0.0)}
    if config.forget is not None:
        parts["forget"] = nn.Linear(C, H)
        rules |= {"forget.weight": normal(0.02), "forget.bias": constant(config.forget)}
    if config.value_embeddings and config.value_residual:
        raise ValueError("value_residual and value_embeddings do not combine; remove one")
    if config.value_embeddings or (config.value_residual and config.layer > 0):
        parts["value_mix"], rules["value_mix"] = nn.Parameter(torch.tensor(0.5)), constant(0.5)
    if config.value_embeddings:
        heads = H if config.n_kv_head is None else config.n_kv_head
        parts["value_embeddings"] = nn.Embedding(config.vocab_size, heads * (C // H))
        rules["value_embeddings.weight"] = normal(0.02)
    return parts, rules


def rotated_channels(config: AttentionConfig, D: int) -> int:
    """How many channels of a head are rotated; ValueError if they cannot be."""
    rotary, share = config.rotary, config.rotary_share
    if rotary is None:
        if share is not None:
            raise ValueError(f"rotary_share = {share:g} needs rotary, such as rotary = 10000")
        return 0
    if not (1 <= rotary < math.inf):
        raise ValueError(f"rotary = {rotary} must be a base of at least 1, or null")
    rotated = D if share is None else round(share * D)
    if rotated % 2 or not 0 < rotated <= D:
        of = f"n_embd / heads = {config.n_embd} / {config.n_embd // D} = {D}"
        times = "" if share is None else f", times rotary_share = {share:g},"
        raise ValueError(
            f"rotary = {rotary:g} rotates pairs of channels, so {of}{times} must be even"
        )
    return rotated
