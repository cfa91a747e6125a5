"""The settings of an attention layer, rules for its heads, and a variant: a layer class with
settings."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn

from attnlab.attention.kernels import Kernel, sdpa
from attnlab.attention.masks import Predicate, causal, name_of

if TYPE_CHECKING:
    from attnlab.attention.layer import Attention

Scale = float | Literal["1/D"] | None
Shared = Literal["qk", "qkv"] | None
Gate = Literal["head", "channel"] | None


class HeadRule(Protocol):
    """Changes the heads of an `Attention` after its weights are drawn."""

    def __call__(self, layer: Any, /) -> None: ...


class ScoreMod(Protocol):
    """Changes scores (B, H, T, S), given the positions of queries (T, 1) and of keys (1, S)."""

    def __call__(self, scores: Tensor, query: Tensor, key: Tensor, /) -> Tensor: ...


# A head owns the slices h*D to (h+1)*D of the rows of q, k and v in `qkv`, and of the columns of
# `proj`. Identical heads get identical gradients, so they stay identical under any elementwise
# optimizer, unless something acts on them differently: an output slice, or dropout on the pattern.


def independent(layer: "Attention") -> None:
    """Leave the heads as initialized."""


@torch.no_grad()
def identical_qkv(layer: "Attention") -> None:
    """Give every head the query, key and value weights of the first; output slices stay apart."""
    heads = (layer.n_head, layer.n_kv_head, layer.n_kv_head)
    for parameter in layer.qkv.parameters():  # weight, and bias where there is one
        for part, count in zip(layer.split_qkv(parameter), heads, strict=True):
            _repeat_first_head(part.unflatten(0, (count, -1)), dim=0)


@torch.no_grad()
def identical(layer: "Attention") -> None:
    """Give every head the weights of the first in `qkv` and `proj`, including the output slice.

    Other parameters of a head, such as those of a gate or of the delta rule, stay apart.
    The H equal slices add up in phase, which would make the branch sqrt(H) times as large as H
    independent ones; dividing the slice by sqrt(H) keeps its size.
    """
    identical_qkv(layer)
    slices = layer.proj.weight.unflatten(1, (layer.n_head, -1))  # (C, H, D)
    _repeat_first_head(slices, dim=1)
    layer.proj.weight.div_(math.sqrt(layer.n_head))


@torch.no_grad()
def single_active(layer: "Attention") -> None:
    """Silence every head but the first permanently: one head of width D in a layer of width C.

    A silent head has neither values nor an output slice, so no gradient ever reaches it. The
    output slice of the first head is multiplied by sqrt(H): the layer then computes the same
    function as H heads that `identical` made equal. Raises ValueError if heads share their values,
    so that none can be silent alone, and for value_embeddings, which give each head other values.
    """
    if layer.n_kv_head != layer.n_head:
        raise ValueError(
            f"n_kv_head = {layer.n_kv_head} must be n_head = {layer.n_head} for single_active: "
            f"a head that shares its values cannot be silent"
        )
    if hasattr(layer, "value_embeddings"):
        raise ValueError(
            "single_active does not support value_embeddings, which wake the silent heads; "
            "remove one"
        )
    for parameter in layer.qkv.parameters():  # weight, and bias where there is one
        values = layer.split_qkv(parameter)[2]
        values.unflatten(0, (layer.n_head, -1))[1:] = 0  # (H, D, C) or (H, D)
    slices = layer.proj.weight.unflatten(1, (layer.n_head, -1))  # (C, H, D)
    slices[:, 1:] = 0
    slices[:, 0] *= math.sqrt(layer.n_head)


def _repeat_first_head(view: Tensor, dim: int) -> None:
    view.copy_(view.narrow(dim, 0, 1).clone().expand_as(view))


@dataclass(frozen=True)
class AttentionConfig:
    """The shape and the settings of an attention layer.

    `SHAPE` names those that come from the model; the rest are the variant's (conf/attn).

    Args:
        n_embd, n_head, block_size: C, the model's number of heads, and the largest T.
        bias: whether `qkv` and `proj` have biases.
        dropout: probability of dropping an entry of the pattern, in training only.
        kernel: see `attnlab.attention.kernels`.
        scale: multiplies the scores; None means 1/sqrt(D) (Vaswani et al. 2017, equation 1), and
            "1/D" the power of D that Yang et al. (2022, definition 4.1) derive.
        may_attend: the mask, see `attnlab.attention.masks`.
        head_init: changes the heads after the weights are drawn, such as `identical`.
        heads: H, if the variant sets it; None means the model's `n_head`.
        n_kv_head: number of heads of keys and values, each shared by H / n_kv_head neighboring
            heads of queries: 1 is multi-query attention (Shazeer 2019), a number between 1 and H
            grouped-query attention (Ainslie et al. 2023), H or None multi-head attention. `qkv`
            has C + 2 n_kv_head D rows.
        qk_norm: queries and keys are divided by their root mean square, and the scores multiplied
            by a learned `gain` of each head: the cosine of query and key, times a learned scale
            that starts at D * `scale` (Henry et al. 2020, section 2).
        rotary: base of rotary positions (Su et al. 2021): queries and keys are rotated by
            angles that grow with their positions, so that scores depend on distances; None for
            no rotation.
        window: a query sees only keys less than this many positions away, of those that the mask
            allows; None for all (Beltagy et al. 2020, section 3.1).
        score_mod: changes the scaled scores before the mask, as `alibi` and `log_length` in
            `attnlab.attention.positions` do: a function of the scores (B, H, T, S) and of the
            positions (T, 1) of queries and (1, S) of keys.
        softcap: scores s become c tanh(s / c) with this c (Gemma Team 2024, section 2), before
            `score_mod`; None for no cap.
        shared: "qk": keys are the queries (Kitaev et al. 2020, section 2); "qkv": one projection
            gives queries, keys and values. `qkv` then has 2C or C rows.
        gate: the mixed values are multiplied by sigmoid(W x), with one number a head ("head") or
            a channel ("channel"); None for no gate (Qiu et al. 2025).
        gate_bias: a learned bias of the gate starts at this number, such as 4, so that the gate
            starts at 0.98; None for no bias: the gate starts near 1/2 and halves the output.
        sink: the kernel gets a learned score of each head for attending to nothing, from 0 on, as
            in gpt-oss (OpenAI 2025); for the kernel softmax1.
        top_k: how many keys a query keeps, for the kernel top_k; None for its default, 8.
        forget: the scores of query i and key j are lowered by the logarithms of forget gates of
            the positions j + 1 to i, sigmoid(W x + b), where b starts at this number (Lin et al.
            2025); 0 in the paper. None for no gates. Needs a causal mask.
        value_residual: from the second layer on, values are v + m (v0 - v), with v0 those of the
            first layer and a learned number m, which starts at 1/2 (Zhou et al. 2024).
        value_embeddings: the same in every layer, with an embedding of the symbol in place of v0.
        exclusive: the mixed values lose their part along the value of their own position (XSA,
            Zhai 2026). At position 0 nothing is left. It acts before the gate.
        conv: taps of a causal convolution over the rows of `qkv`, added to them before norms and
            rotary positions (Canon-B, Allen-Zhu 2025); None for none.
        length_scale: scores are multiplied by s ln n, n the number of keys up to the query, with a
            learned s of each head, from 1 on (SSMax, Nakanishi 2025).
        rotary_share: the share of the channels of a head, the first ones, that are rotated, with
            frequencies as for a head of that many channels; None for all.
        layer: the number of the layer, from 0.
        vocab_size: V of the model; 0 for a layer outside a model.
    """

    n_embd: int
    n_head: int
    block_size: int
    bias: bool = True
    dropout: float = 0.0
    kernel: Kernel = sdpa
    scale: Scale = None
    may_attend: Predicate = causal
    head_init: HeadRule = independent
    heads: int | None = None
    n_kv_head: int | None = None
    qk_norm: bool = False
    rotary: float | None = None
    shared: Shared = None
    window: int | None = None
    score_mod: ScoreMod | None = None
    softcap: float | None = None
    gate: Gate = None
    gate_bias: float | None = None
    sink: bool | None = None
    top_k: int | None = None
    forget: float | None = None
    value_residual: bool | None = None
    value_embeddings: bool | None = None
    exclusive: bool | None = None
    conv: int | None = None
    length_scale: bool | None = None
    rotary_share: float | None = None
    layer: int = 0
    vocab_size: int = 0

    def require_default(self, *names: str, by: str) -> None:
        """Raise ValueError if one of the named settings of the layer `by` is not its default."""
        for name in names:
            value = vars(self)[name]
            if value != DEFAULTS[name]:
                raise ValueError(f"{by} does not support {name} = {name_of(value)}; remove it")


DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(AttentionConfig)}
# What the model sets; a variant sets the other fields.
SHAPE = ("n_embd", "n_head", "block_size", "bias", "dropout", "layer", "vocab_size")


@dataclass(frozen=True)
class Variant:
    """An attention class with settings: makes a layer from the model's config.

    `GPT(Variant(SelfAttention, {"scale": 1.0}), vocab_size=65)` is what `attn=unscaled` builds.
    """

    layer: Callable[..., nn.Module]  # called with a config and the settings that are not its own
    # Fields of `AttentionConfig`, which replace the model's, and keyword arguments of the layer.
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, config: AttentionConfig) -> nn.Module:
        """Make one layer; raises ValueError if it ignores or refuses a setting."""
        own = {name: x for name, x in self.settings.items() if name not in DEFAULTS}
        changed = {name: x for name, x in self.settings.items() if name in DEFAULTS}
        merged = _Watched(**{name: vars(config)[name] for name in DEFAULTS} | changed)
        layer = self.layer(merged, **own)
        for name, value in changed.items():
            if value != DEFAULTS[name] and name not in vars(merged).get("names_read", ()):
                raise ValueError(
                    f"{type(layer).__name__} ignores {name} = {name_of(value)}; remove it, or use "
                    f"config.{name} in the constructor"
                )
        return layer


@dataclass(frozen=True)
class PerLayer:
    """Different variants in turn: layer n is made by number n modulo their count.

    `GPT(PerLayer([sliding, full]), vocab_size=65)` alternates, as `attn=[sliding_window,sdpa]`.
    """

    variants: Sequence[Callable[[AttentionConfig], nn.Module]]

    def __call__(self, config: AttentionConfig) -> nn.Module:
        """Make one layer."""
        return self.variants[config.layer % len(self.variants)](config)


class _Watched(AttentionConfig):
    """Remembers which fields a constructor reads, so that no setting is ignored silently."""

    def __getattribute__(self, name: str) -> Any:
        if name in DEFAULTS:
            vars(self).setdefault("names_read", set()).add(name)
        return super().__getattribute__(name)


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise ValueError for the first size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} = {size} must be at least 1")


def check_divides(name: str, part: int, whole: str, size: int) -> None:
    """Raise ValueError, listing the divisors of `size`, if `part` is not one of them."""
    if part < 1 or size % part:
        divisors = ", ".join(str(d) for d in range(1, size + 1) if size % d == 0)
        raise ValueError(
            f"{name} = {part} does not divide {whole} = {size}; it must be one of {divisors}"
        )


def check_dropout(dropout: float) -> None:
    """Raise ValueError for a probability outside [0, 1)."""
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout = {dropout} must be at least 0 and less than 1")
