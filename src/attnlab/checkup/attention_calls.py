"""One recorded attention call. Letters: N heads (the batch is 1), T time, D head channels."""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Product = tuple[str, int]  # a module and the number of a matrix product in it
Factor = tuple[str, float]  # the module that multiplies, and by what


@dataclass
class AttentionCall:
    """One attention call, step by step."""

    module: str  # name of the innermost running module, "" for the model itself
    queries: Tensor | None  # (N, T, D), of the product; None if scores are not a product
    keys: Tensor | None  # (N, T, D)
    raw: Tensor  # (N, T, T) scores, as the product returned them or as they first appeared
    product: Product | None = None  # which one computed them
    factors: list[Factor] = field(default_factory=list)  # of the scores, before or after
    masked: Tensor | None = None  # the softmax's input in its shape; None if no softmax was seen
    softened: Tensor | None = None  # the softmax's output
    pattern: Tensor | None = None  # (N, T, T), the weights that average the values
    values: Tensor | None = None  # (N, T, E)
    before: int = 0  # how many of the factors were applied before the product
    dropped: bool = False  # whether random numbers were drawn for the scores before the softmax
    axis: int | None = None  # the softmax's, counted from the end, -1 for the keys; or unknown

    @property
    def length(self) -> int:
        """T, the length of the sequence."""
        return self.raw.shape[-1]

    @property
    def place(self) -> str:
        """The name of the module, for the report."""
        return self.module or "the model"

    @property
    def weights(self) -> Tensor:
        """(N, T, T) fp64 on the CPU, the pattern of a completed call."""
        assert self.pattern is not None
        return self.pattern.detach().to("cpu", torch.float64)

    @property
    def head_size(self) -> int:
        """D, if scores are a product."""
        assert self.queries is not None
        return self.queries.shape[-1]

    @property
    def scores(self) -> Tensor | None:
        """(N, T, T) fp64 on the CPU, the softmax's input; None if not seen or with more keys."""
        return self._as_scores(self.masked)

    @property
    def after_softmax(self) -> Tensor | None:
        """(N, T, T) fp64 on the CPU, the softmax's output; None if not seen or with more keys."""
        return self._as_scores(self.softened)

    def _as_scores(self, x: Tensor | None) -> Tensor | None:
        if x is None or x.numel() != self.raw.numel():
            return None
        return x.detach().to("cpu", torch.float64).reshape(self.raw.shape)

    @property
    def unmasked(self) -> Tensor:
        """(N, T, T) fp64 on the CPU, the raw scores times the factors that follow the product."""
        after = math.prod(x for _, x in self.factors[self.before :])
        return self.raw.detach().to("cpu", torch.float64) * after

    @property
    def largest_possible(self) -> float:
        """The largest score that its queries and keys can give in another direction."""
        assert self.queries is not None and self.keys is not None
        lengths = [x.detach().double().norm(dim=-1).max() for x in (self.queries, self.keys)]
        after = math.prod(x for _, x in self.factors[self.before :])
        return abs(after) * float(lengths[0] * lengths[1])

    @property
    def scale(self) -> float:
        """The product of all factors of the scores."""
        return math.prod(x for _, x in self.factors)


def fused_call(product: Product, values: dict[str, Any], before: list[Factor]) -> AttentionCall:
    """Compute in fp64, step by step, what a fused kernel computes from the same arguments."""
    q, k, v = (values[key].detach().double() for key in ("query", "key", "value"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    given = values.get("scale")
    scale = 1 / math.sqrt(q.shape[-1]) if given is None else float(given)
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
    q, k, v, raw, weights = (merge_batch(x) for x in (q, k, v, raw, pattern))
    factors = [*before, (product[0], scale)]
    return AttentionCall(
        product[0], q, k, raw, product, factors, masked, pattern, weights, v,
        before=len(before), axis=-1,
    )  # fmt: skip


def merge_batch(x: Tensor) -> Tensor:
    """(..., T, D) -> (N, T, D), all axes before T in one."""
    return x.reshape(-1, *x.shape[-2:])
