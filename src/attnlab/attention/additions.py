"""The parameters of settings of self-attention that are off by default, and their first values."""

import math

import torch
from torch import nn

from attnlab.attention.variant import AttentionConfig, check_sizes
from attnlab.rng import Rule, constant, normal, ones, uniform, zeros

Parts = dict[str, nn.Module | nn.Parameter]

RULES: dict[str, Rule] = {
    "length_gain": ones,
    "conv": uniform(-0.5, 0.5),  # as nn.Conv1d with 4 taps a channel
    "sink": zeros,
    "value_mix": constant(0.5),
    "gate.weight": normal(0.02),
    "forget.weight": normal(0.02),
    "value_embeddings.weight": normal(0.02),
}


def additions(config: AttentionConfig, H: int, rows: int) -> Parts:
    """The parameters that the settings of a layer with `rows` rows of `qkv` add to it, by name.

    Raises ValueError for settings out of range, or that do not combine.
    """
    C = config.n_embd
    parts: Parts = {}
    if config.length_scale:
        parts["length_gain"] = nn.Parameter(torch.ones(H))
    if config.conv is not None:
        check_sizes({"conv": config.conv})
        parts["conv"] = nn.Parameter(torch.zeros(config.conv, rows))
    if config.sink:
        parts["sink"] = nn.Parameter(torch.zeros(H))
    if config.gate not in (None, "head", "channel"):
        raise ValueError(f"gate = {config.gate} must be head, channel or null")
    if config.gate_bias is not None and config.gate is None:
        raise ValueError(f"gate_bias = {config.gate_bias:g} needs gate = head or channel")
    if config.gate is not None:
        width = H if config.gate == "head" else C
        parts["gate"] = nn.Linear(C, width, bias=config.gate_bias is not None)
    if config.forget is not None:
        parts["forget"] = nn.Linear(C, H)
    if config.value_embeddings and config.value_residual:
        raise ValueError("value_residual and value_embeddings do not combine; remove one")
    if config.value_embeddings or (config.value_residual and config.layer > 0):
        parts["value_mix"] = nn.Parameter(torch.tensor(0.5))
    if config.value_embeddings:
        parts["value_embeddings"] = nn.Embedding(config.vocab_size, C)
    return parts


def rules_of_additions(config: AttentionConfig, parts: Parts) -> dict[str, Rule]:
    """The initialization rules of `additions`, by parameter name."""
    rules = {name: rule for name, rule in RULES.items() if name.partition(".")[0] in parts}
    if config.gate_bias is not None:
        rules["gate.bias"] = constant(config.gate_bias)
    if config.forget is not None:
        rules["forget.bias"] = constant(config.forget)
    return rules


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
