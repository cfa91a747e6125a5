"""One attention inside a model, as `attnlab.checkup.trace` has seen it.

Letters: N heads (times batch, which is 1 here), T time, D channels of a head.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class AttentionCall:
    """One attention inside a model, as it was computed.

    Args:
        module: name of the innermost module that was running, "" at the top.
        queries, keys: (N, T, D), as they entered the product; None where scores are no product.
        raw: (N, T, T) scores as the product gave them, or as they first appeared.
        factors: numbers other than 1 that the scores were multiplied by, before or after.
        masked: the softmax's input in the shape it had, or None where no softmax op was seen.
        softened: the softmax's output.
        pattern: (N, T, T), what the values were averaged with; sums to 1 over the last axis.
        values: (N, T, E).
        fused: the kernel's name, or "" for one that was written out.
        scale_before: the part of the scale that queries or keys had got before the product.
        axis: the softmax's axis counted from the end, -1 for the keys; None where unseen.
    """

    module: str
    queries: Tensor | None
    keys: Tensor | None
    raw: Tensor
    factors: list[float] = field(default_factory=list)
    masked: Tensor | None = None
    softened: Tensor | None = None
    pattern: Tensor | None = None
    values: Tensor | None = None
    fused: str = ""
    scale_before: float = 1.0
    axis: int | None = None

    @property
    def width(self) -> int:
        """D, where scores are a product."""
        assert self.queries is not None
        return self.queries.shape[-1]

    @property
    def scores(self) -> Tensor | None:
        """(N, T, T) fp64, the softmax's input; None where it was not seen, or has further keys."""
        if self.masked is None or self.masked.numel() != self.raw.numel():
            return None
        return self.masked.detach().double().reshape(self.raw.shape)

    @property
    def has_sink(self) -> bool:
        """Whether the softmax ran over one key more than there are, which takes its share."""
        n = self.raw.shape[0] * self.raw.shape[1]
        return self.masked is not None and self.masked.numel() == self.raw.numel() + n

    @property
    def scale(self) -> float:
        """The factor of the scores in all."""
        return math.prod(self.factors)


def written_out(
    module: str, name: str, values: dict[str, object], earlier: list[float]
) -> AttentionCall:
    """What a fused kernel was told, computed again in the open, in fp64."""
    q, k, v = (values[key].detach().double() for key in ("query", "key", "value"))  # type: ignore[attr-defined]
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    given = values.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if given is None else float(given)  # type: ignore[arg-type]
    raw = q @ k.mT  # (B, N, T, T)
    masked = raw * scale
    bias = values.get("attn_mask", values.get("attn_bias"))
    if isinstance(bias, Tensor):
        masked = masked + bias.double()
    if values.get("is_causal"):
        blocked = torch.ones(masked.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        masked = masked.masked_fill(blocked, -math.inf)
    pattern = masked.softmax(-1)
    pattern = pattern.masked_fill((masked == -math.inf).all(-1, keepdim=True), 0.0)
    return AttentionCall(
        module,
        flat(q),
        flat(k),
        flat(raw),
        factors=[*earlier, scale],
        masked=masked,
        softened=pattern,
        pattern=flat(pattern),
        values=flat(v),
        fused=name,
        scale_before=math.prod(earlier),
        axis=-1,
    )


def flat(x: Tensor) -> Tensor:
    """(..., T, D) -> (N, T, D)."""
    return x.reshape(-1, *x.shape[-2:])
