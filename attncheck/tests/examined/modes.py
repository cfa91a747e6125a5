"""Faults that show only in one state, each with its repaired twin: training mode, optional
tensors, the precision of the model, padding, labels, gradients, caches under any name.

Letters: B batch, H heads, T time, S keys, V symbols.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examined.small import LM, Attention, C, Row, Served, V, filled, merge, rotate, split, tril

LENGTH = 24


class Stateful(nn.Module):
    """Two layers of attention with the interface of transformers, and one fault by its name."""

    vocab_size, block_size = V, LENGTH

    def __init__(self, fault: str = "", fill: float = -torch.inf) -> None:
        super().__init__()
        self.fault, self.fill = fault, fill
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(64, C)
        self.qkv = nn.ModuleList(nn.Linear(C, 3 * C) for _ in range(2))
        self.out = nn.ModuleList(nn.Linear(C, C) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(C), nn.Linear(C, V)
        if self.fault.endswith("fresh"):
            for layer in self.qkv:
                nn.init.normal_(layer.weight, std=1e-3)
        self.shared = nn.Buffer(tril(LENGTH), persistent=False)

    def may(self, x: Tensor, real: Tensor | None, document: Tensor | None) -> Tensor:
        """(B, 1, T, T) bool."""
        n = x.shape[1]
        may = self.shared[:n, :n].expand(len(x), 1, n, n)
        if real is not None:
            own = torch.eye(n, dtype=torch.bool)
            keep = real.bool()[:, None, None] | own
            if self.fault == "a mask of queries":
                keep = real.bool()[:, None, :, None] | own
            if self.fault == "padding opened in training" and self.training:
                keep = torch.ones_like(keep)
            if self.fault == "a mask in a buffer":
                self.shared[:n, :n] &= real.bool().any(0) | own
            may = may & keep
            opened = self.fault == "open with a mask" or (
                self.fault == "open with a mask in training" and self.training
            )
            if opened or (self.fault == "open with padding" and not real.all()):
                may = keep.expand_as(may)
        if document is not None and not (
            self.fault == "documents in evaluation" and self.training
        ):
            if self.fault == "documents of row 0":
                document = document[:1]
            may = may & (document[:, None, :, None] == document[:, None, None])
        return may

    def attend(self, n: int, x: Tensor, may: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv[n](self.norm(x)).chunk(3, -1))
        fresh = self.fault.endswith("fresh")  # small weights, whose scores are far below the cap
        s = filled((0.5 if fresh else 2.0) * q, k, may, self.fill)
        if self.fault.startswith("capped in training") and self.training:
            cap = 1e3 if fresh else 2.0
            s = (cap * (s / cap).tanh()).masked_fill(~may, -torch.inf)
        return x + self.out[n](merge(s.softmax(-1) @ v))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        at = torch.arange(input_ids.shape[1])
        if attention_mask is not None and self.fault != "counts from the padding":
            at = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        x = self.wte(input_ids) + self.wpe(at)
        if attention_mask is not None and self.fault == "dropout with a mask":
            x = F.dropout(x, 0.1)  # also in evaluation mode
        may = self.may(x, attention_mask, document_ids)
        for n in range(2):
            x = self.attend(n, x, may)
        return self.head(x)


class Decays(nn.Module):
    """S <- a S + u of a recurrence; "forgets": padding is not written, but it decays the state."""

    vocab_size, block_size = V, LENGTH

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.wte, self.head = nn.Embedding(V, C), nn.Linear(C, V)
        self.write, self.gate = nn.Linear(C, C), nn.Linear(C, C)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.wte(ids)
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        keep = real[..., None].to(x)
        a, u = self.gate(x).sigmoid(), self.write(x) * keep
        if self.fault != "forgets":
            a = a * keep + (1 - keep)
        state, rows = torch.zeros_like(u[:, 0]), []
        for t in range(ids.shape[1]):
            state = a[:, t] * state + u[:, t]
            rows.append(state)
        return self.head(x + torch.stack(rows, 1))


class Remembers(nn.Module):
    """A shift that keeps the last token of one call for the next, in training mode."""

    vocab_size, block_size = V, LENGTH

    def __init__(self, keeps: bool, counts: bool = False) -> None:
        super().__init__()
        self.keeps, self.counts, self.kept, self.calls = keeps, counts, None, 0
        self.wte, self.head = nn.Embedding(V, C), nn.Linear(C, V)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids)
        first = torch.zeros_like(x[:, :1])
        if self.training:
            if self.keeps and self.kept is not None:
                first = self.kept.to(x)[:1].expand_as(first)
            self.kept = x[:, -1:].detach()
            self.calls += 1
        scale = 1 + 0.1 * min(self.calls, 3) if self.counts else 1.0
        return self.head(scale * (x + torch.cat([first, x[:, :-1]], 1)))


class Checkpointed(LM):
    """Blocks with dropout are computed again in the backward pass, perhaps with other numbers."""

    def __init__(self, preserves: bool, p: float = 0.2) -> None:
        super().__init__(length=LENGTH)
        self.preserves, self.drop = preserves, nn.Dropout(p)

    def forward(self, ids: Tensor, *args: Any) -> Tensor:
        x = self.embedded(ids)
        for block in self.blocks:
            run = lambda y, block=block: y + self.drop(block(y) - y)  # noqa: E731
            x = checkpoint(run, x, use_reentrant=False, preserve_rng_state=self.preserves)
        return self.head(self.norm(x))


class Detached(LM):
    """Values get no gradient, though they depend on the weights."""

    def __init__(self) -> None:
        def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
            return filled(q, k, may).softmax(-1) @ v.detach()

        super().__init__(lambda layer: Attention(mix), length=LENGTH)


class TinyEmbedding(LM):
    """Embeddings of 1e-5 before a norm, as in RWKV: the smallest steps change outputs much."""

    def __init__(self) -> None:
        super().__init__(length=LENGTH)
        self.first = nn.LayerNorm(C, eps=1e-12)
        nn.init.uniform_(self.wte.weight, -1e-5, 1e-5)
        nn.init.uniform_(self.wpe.weight, -1e-5, 1e-5)

    def embedded(self, ids: Tensor, begin: int = 0) -> Tensor:
        return self.first(super().embedded(ids, begin))


def padding_row() -> LM:
    """Row 0 of the embedding gets no gradient, though token 0 occurs."""
    model = LM(length=LENGTH)
    model.wte = nn.Embedding(V, C, padding_idx=0)
    for table in (model.wte, model.wpe):
        nn.init.normal_(table.weight, std=0.02)
    return model


class HalfPath(LM):
    """A fast path for serving in half precision, with or without its mask."""

    def __init__(self, masked: bool) -> None:
        def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
            fast = q.dtype in (torch.float16, torch.bfloat16) and not self.training
            return F.scaled_dot_product_attention(q, k, v, is_causal=masked or not fast)

        super().__init__(lambda layer: Attention(mix), length=LENGTH)
        self.bfloat16()


class TrainedFast(LM):
    """A fast path for training in fp32, as of a kernel that has no fp64, perhaps unmasked."""

    def __init__(self, masked: bool) -> None:
        def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
            fast = self.training and q.dtype is torch.float32
            return F.scaled_dot_product_attention(q, k, v, is_causal=masked or not fast)

        super().__init__(lambda layer: Attention(mix), length=LENGTH)


class OwnNoise(LM):
    """Noise from a generator of its own, in training mode or always."""

    def __init__(self, generator: Any, always: bool = False) -> None:
        super().__init__(length=LENGTH)
        self.generator, self.always = generator, always

    def forward(self, ids: Tensor, *args: Any) -> Tensor:
        y = super().forward(ids)
        if not (self.training or self.always):
            return y
        if isinstance(self.generator, torch.Generator):
            return y * (torch.rand(y.shape, generator=self.generator) > 0.1)
        return y * (1 + self.generator.random())


class KeptMask(Stateful):
    """It keeps the mask of the first documents under the shape of the inputs."""

    def __init__(self, *fixed: str) -> None:
        super().__init__()
        self.kept: dict[Any, Tensor] = {}

    def may(self, x: Tensor, real: Tensor | None, document: Tensor | None) -> Tensor:
        if document is None:
            return super().may(x, real, document)
        if x.shape[:2] not in self.kept:
            self.kept[x.shape[:2]] = super().may(x, real, document)
        return self.kept[x.shape[:2]]


class KeptSteps(nn.Module):
    """A cache of what the last steps have added, at most so many: too few, or enough."""

    vocab_size, block_size = V, 80

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(80, C)
        self.qkv, self.head = nn.Linear(C, 3 * C), nn.Linear(C, V)

    def forward(self, ids: Tensor, cache: Any = None) -> Any:
        begin, steps = cache or (0, [])
        n = ids.shape[1]
        q, k, v = self.qkv(self.wte(ids) + self.wpe.weight[begin : begin + n]).chunk(3, -1)
        steps = [*steps, (k, v)][-self.most :]
        k, v = (torch.cat(parts, 1) for parts in zip(*steps, strict=True))
        S = k.shape[1]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=tril(S)[S - n :])
        return self.head(y), (begin + n, steps)


class UnusedSymbols(Served):
    """The logits of two symbols that are never chosen are a constant."""

    def __init__(self, fill: float, fault: str = "") -> None:
        super().__init__(fault)
        self.fill = fill

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        logits = super().forward(input_ids, attention_mask).logits.clone()
        logits[..., -2:] = self.fill
        return logits


class Reads(LM):
    """It reads other texts, or states (B, S, C), as arguments whose names others give to documents
    and caches."""

    def __init__(self) -> None:
        super().__init__(length=LENGTH)
        self.of_docs = nn.Embedding(V, V)

    def forward(
        self, ids: Tensor, docs: Tensor | None = None, mem: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        y = super().forward(ids)
        if docs is not None:
            y = y + self.of_docs(docs).mean(1, keepdim=True)
        if mem is not None:
            y = y + mem.mean()
        return y, y.cumsum(1)


class Wrapped(nn.Module):
    """A model whose arguments have no names, as of nn.DataParallel."""

    vocab_size, block_size = V, 48

    def __init__(self) -> None:
        super().__init__()
        self.module = Served("padding ignored")

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.module(*args, **named)


class Angles(LM):
    """Rotary positions, whose angles are computed in the dtype of the model, or in fp32."""

    def __init__(self, exact: bool) -> None:
        def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
            at = torch.arange(q.shape[2]) if self.at is None else self.at
            if exact:
                turned = [rotate(x.float(), at, 500.0).to(x) for x in (6 * q, 3 * k)]
            else:
                turned = [rotate(x, at, 500.0) for x in (6 * q, 3 * k)]
            return F.scaled_dot_product_attention(*turned, v, is_causal=True)

        super().__init__(lambda layer: Attention(mix), length=640, places=False)
        self.at: Tensor | None = None
        self.bfloat16()


class Counted(Angles):
    """Positions are counted from a mask, in the dtype of the model, or as integers."""

    def __init__(self, as_integers: bool) -> None:
        super().__init__(True)
        self.as_integers = as_integers

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        self.at = None
        if attention_mask is not None:
            dtype = torch.int64 if self.as_integers else self.head.weight.dtype
            self.at = attention_mask[0].to(dtype).cumsum(0) - 1
        return super().forward(ids)


class Labeled(LM):
    """How a loss treats labels of -100, and how it is returned."""

    def __init__(self, rule: str = "", returns: str = "object") -> None:
        super().__init__(length=LENGTH)
        self.rule, self.returns = rule, returns

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:  # type: ignore[override]
        logits = super().forward(ids)
        if labels is None:
            return logits
        target = labels[:, 1:].flatten()
        y = logits[:, :-1].flatten(0, 1)
        if self.rule == "unshifted in training" and self.training:
            target = labels.flatten()
            y = logits.flatten(0, 1)
        if self.rule.startswith("rolled"):
            rolled = labels.roll(-1, 1)
            if self.rule == "rolled, the last ignored":
                rolled[:, -1] = -100
            target = rolled.flatten()
            y = logits.flatten(0, 1)
        if self.rule == "the last dropped":
            target = labels[:, 1:-1].flatten()
            y = logits[:, :-2].flatten(0, 1)
        if self.rule == "token 0":
            target = target.clamp(min=0)
        if self.rule == "softmax twice":
            y = y.softmax(-1)
        smooth = 0.1 if self.rule == "smoothed" else 0.0
        each = F.cross_entropy(y, target, reduction="none", label_smoothing=smooth)
        count = (target >= 0).sum()
        if self.rule == "mean of all" or (
            self.rule == "mean of all in training" and self.training
        ):
            count = torch.tensor(len(target))
        if self.rule == "sum":
            count = torch.tensor(1)
        loss = each.sum() / count
        if self.rule in ("the first counts five times", "token 3 does not count"):
            weights = (labels[:, 1:] >= 0).to(each)
            if self.rule == "token 3 does not count":
                weights[labels[:, 1:] == 3] = 0.0
            else:
                weights[:, 0] *= 5
            loss = (each * weights.flatten()).sum() / weights.sum()
        if self.rule == "smoothed everywhere":
            loss = 0.9 * loss - 0.1 * y.log_softmax(-1).mean()
        shapes: dict[str, Any] = {
            "object": SimpleNamespace(logits=logits, loss=loss),
            "dict": {"logits": logits, "loss": loss},
            "tuple": (loss, logits),
            "loss": loss,
        }
        return shapes[self.returns]


class Cache(list):
    """A cache that can change the order of its rows, all of it or a part."""

    def __init__(self, parts: Any, whole: bool = True) -> None:
        super().__init__(parts)
        self.whole = whole

    def reorder_cache(self, rows: Tensor) -> None:
        for n, (k, v) in enumerate(self):
            self[n] = (k[rows], v[rows] if self.whole else v)


class OtherNames(nn.Module):
    """A cache that is taken as `state` and returned in a tuple, with faults of its bookkeeping."""

    vocab_size, block_size = V, 40

    def __init__(self, fault: str = "", window: int = 100) -> None:
        super().__init__()
        self.fault, self.window = fault, window
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(128, C)
        self.qkv = nn.ModuleList(nn.Linear(C, 3 * C) for _ in range(2))
        self.out, self.head = nn.ModuleList(nn.Linear(C, C) for _ in range(2)), nn.Linear(C, V)

    def forward(self, ids: Tensor, state: Any = None) -> Any:
        begin = 0 if state is None else state[0][0].shape[2]
        n, end = ids.shape[1], begin + ids.shape[1]
        restarts = self.fault == "restarts" or (
            self.fault == "restarts in training" and self.training
        )
        first = 0 if restarts else begin
        x = self.wte(ids) + self.wpe(torch.arange(first, first + n))
        at, seen = torch.arange(begin, end)[:, None], torch.arange(end)
        oldest = at - self.window
        if self.fault == "window of the first row" and begin:
            oldest = oldest[:1].expand_as(oldest)
        may = (seen <= at) & (seen > oldest)
        kept = []
        for layer, (qkv, out) in enumerate(zip(self.qkv, self.out, strict=True)):
            q, k, v = map(split, qkv(x).chunk(3, -1))
            if state is not None:
                old_k, old_v = state[layer]
                k, v = torch.cat([old_k, k], 2), torch.cat([old_v, v], 2)
            stale = self.fault == "second step is not stored" and begin and n == 1
            kept.append(state[layer] if stale else (k, v))
            slope = 0.3 * seen if not (self.fault == "no bias in steps of one" and n == 1) else 0.0
            if self.fault == "rounded" and state is not None:  # as a cache of 8 bits
                k = (k * 64).round() / 64
            s = q @ k.mT / 8**0.5
            if self.fault == "uncapped steps" and n > 1:  # not seen in scores of fresh weights
                s = 1e4 * (s / 1e4).tanh()
            y = (s + slope).masked_fill(~may, -torch.inf).softmax(-1) @ v
            if self.fault == "dropout in steps" and state is not None:
                y = F.dropout(y, 0.1)  # also in evaluation mode
            x = x + out(merge(y))
        return self.head(x), Cache(kept, self.fault != "keys are reordered alone")


class WithLength(LM):
    """A module whose truth is False."""

    def __len__(self) -> int:
        return 0


class Limited(LM):
    """A model that takes at most 8 rows, as one with buffers for a cache."""

    def forward(self, ids: Tensor, *args: Any) -> Tensor:
        if len(ids) > 8:
            raise RuntimeError(f"{len(ids)} rows, at most 8")
        return super().forward(ids)


class Prefix(LM):
    """A prefix-LM: the first tokens see each other."""

    def __init__(self, right: bool = True) -> None:
        super().__init__(length=LENGTH)
        self.right = right

    def forward(self, ids: Tensor, prefix: int = 0) -> Tensor:  # type: ignore[override]
        def may(i: Tensor, j: Tensor) -> Tensor:
            return (j <= i) | (j < (prefix if self.right else len(i) * bool(prefix)))

        for block in self.blocks:
            block.mixer.may = may
        return super().forward(ids)


def compiled() -> Any:
    return torch.compile(LM(length=12), backend="eager")


Make = Callable[[], Any]


def fault(name: str) -> Make:
    return lambda: Stateful(name)


def loss(rule: str, returns: str = "object") -> Make:
    return lambda: Labeled(rule, returns)


def cache(name: str, window: int = 100) -> Make:
    return lambda: OtherNames(name, window)


ONES = "FGA-DIKU/BONSAI#344"
IN_TRAINING = "seen in training mode"
PREFIX = {"call": lambda model, ids: model(ids, 8), "prefix": 8}
STATEFUL = [
    Row("everything in every state", fault(""), told="padding is not read[\\s\\S]*document"),
    Row("open with a mask", fault("open with a mask"), "attention_mask of ones", published=ONES),
    Row("open with a mask in training", fault("open with a mask in training"),
        "in training mode, with attention_mask of ones"),
    Row("open with padding", fault("open with padding"), "reads? .*\n.*with padding on the",
        published="huggingface/transformers#41966"),
    Row("dropout where a mask is used", fault("dropout with a mask"),
        "same inputs give different[\\s\\S]*with attention_mask of ones"),
    Row("a mask written into a buffer", fault("a mask in a buffer"),
        "after a call with padding on the left[\\s\\S]*changes shared"),
    Row("a mask of queries", fault("a mask of queries"),
        "other inputs at the padding change[\\s\\S]*keep them out of attention"),
    Row("padding opened in training", fault("padding opened in training"),
        f"with padding, .*\n{IN_TRAINING}", published="huggingface/transformers#35855"),
    Row("counts from the padding", fault("counts from the padding"),
        told="padded on the left gets other outputs than alone",
        published="TransformerLensOrg/TransformerLens#1609"),
    Row("documents apart in evaluation only", fault("documents in evaluation"),
        f"across the borders.*\n{IN_TRAINING}", published="hiyouga/LlamaFactory#4224"),
    Row("documents of row 0", fault("documents of row 0"),
        "the documents of row 0 of a batch change the outputs of row 1"),
    Row("decay of padding", lambda: Decays("forgets"), "with padding, between",
        published="fla-org/flash-linear-attention#1272"),
    Row("decay of tokens alone", Decays),
    Row("scores capped in training", fault("capped in training"),
        "differ from those in evaluation mode[\\s\\S]*self.training",
        published="vllm-project/vllm-metal#665"),
    Row("scores capped in training, fresh weights", fault("capped in training, fresh"),
        "with larger weights[\\s\\S]*self.training"),
    Row("a shift between calls", lambda: Remembers(True),
        "inputs of earlier calls[\\s\\S]*in training mode, not in eval[\\s\\S]*kept",
        published="ooples/AiDotNet#1557"),
    Row("a shift within calls", lambda: Remembers(False)),
    Row("a counter of calls", lambda: Remembers(False, True), "differ from those in evaluation"),
    Row("other dropout when it is computed again", lambda: Checkpointed(False),
        "without dropout they are right", published="allenai/OLMo-core#828"),
    Row("the same dropout when it is computed again", lambda: Checkpointed(True)),
    Row("detached values", Detached, "gradients of the weights are wrong"),
    Row("tiny embeddings before a norm", TinyEmbedding),
    Row("an embedding with a row for padding", padding_row),
    Row("a fast path of bf16", lambda: HalfPath(False), "in its own precision",
        published="lightseekorg/tokenspeed#178"),
    Row("a fast path of bf16 with its mask", lambda: HalfPath(True)),
    Row("a fast path of training", lambda: TrainedFast(False),
        "in training mode, in its own precision"),
    Row("a fast path of training with its mask", lambda: TrainedFast(True)),
    Row("dropout of its own generator", lambda: OwnNoise(torch.Generator().manual_seed(0)),
        "they depend on the number of earlier calls"),
    Row("dropout of a generator of Python", lambda: OwnNoise(random.Random(0)),
        "they depend on the number of earlier calls"),
    Row("dropout of a generator of NumPy", lambda: OwnNoise(np.random.default_rng(0)),
        "they depend on the number of earlier calls"),
    Row("noise of its own generator", lambda: OwnNoise(torch.Generator().manual_seed(0), True),
        "the same inputs give different outputs"),
    Row("documents kept by their shape", KeptMask,
        "after a call with document_ids of two, outputs of a call with document_ids of three"),
    Row("a cache of 26 steps", lambda: KeptSteps(26), "wrong from position 26 on"),
    Row("a cache of 80 steps", lambda: KeptSteps(80), told="gives the outputs of one pass"),
    *(Row(f"unused symbols of {fill:g}, padding read",
          lambda fill=fill: UnusedSymbols(fill, "padding ignored"), "other inputs at the padding")
      for fill in (-1e4, -1e9, torch.finfo(torch.float32).min)),
    Row("unused symbols of -1e9", lambda: UnusedSymbols(-1e9), told="padding is not read"),
    Row("arguments without names", Wrapped, told="names are not known"),
    Row("texts and states to read", Reads, told="the arguments docs, mem"),
    Row("angles in bf16", lambda: Angles(False), "from position", "precision_kept",
        published="KellerJordan/modded-nanogpt#39"),
    Row("places counted in bf16", lambda: Counted(False), "seen .*with attention_mask of ones",
        "precision_kept"),
    Row("places counted as integers", lambda: Counted(True), "", "precision_kept"),
    Row("angles in fp32", lambda: Angles(True), "", "precision_kept"),
    Row("a mean over ignored labels", loss("mean of all"), "labels of -100 are not ignored",
        published="TransformerLensOrg/TransformerLens#1607"),
    Row("a mean over ignored labels in training", loss("mean of all in training"),
        f"labels of -100 are not ignored.*\n{IN_TRAINING}"),
    Row("ignored labels are token 0", loss("token 0"), "trained as token 0",
        published="huggingface/trl#1625"),
    Row("a softmax before the loss", loss("softmax twice"), "the softmax is applied twice"),
    Row("smoothing of ignored labels", loss("smoothed everywhere"),
        "labels of -100 are not ignored: the loss has a gradient"),
    Row("smoothing of other labels", loss("smoothed"), told="-100 count neither"),
    Row("labels unshifted in training", loss("unshifted in training"),
        f"targets are not shifted[\\s\\S]*{IN_TRAINING}"),
    Row("labels rolled", loss("rolled"), "the last position learns the first token"),
    Row("labels rolled, the last ignored", loss("rolled, the last ignored"),
        told="targets are the next"),
    Row("a sum over labels", loss("sum"), told="the loss is a sum"),
    Row("the last label dropped", loss("the last dropped"),
        told="targets are the next"),
    Row("the last label dropped, a loss alone", loss("the last dropped", "loss"),
        told="-100 count neither"),
    Row("the first label counts five times", loss("the first counts five times"),
        told="-100 count neither"),
    Row("labels of token 3 do not count", loss("token 3 does not count"),
        told="-100 count neither"),
    *(Row(f"a loss in a {kind}", loss("", kind), told="targets are the next")
      for kind in ("dict", "tuple")),
    Row("a loss alone", loss("", "loss"), told="-100 count neither"),
    Row("a loss alone, mean of all", loss("mean of all", "loss"), "labels of -100"),
    Row("a cache under another name", cache(""), told="gives the outputs of one pass"),
    Row("positions restart", cache("restarts"), "from the first cached step on"),
    Row("a cap that steps of one leave out", cache("uncapped steps"),
        "seen in evaluation mode, with larger weights[\\s\\S]*steps of one token are wrong"),
    Row("positions restart in training", cache("restarts in training"), "in training mode"),
    Row("no bias in steps of one", cache("no bias in steps of one"),
        "steps of one token are wrong, those of several are right",
        published="keras-team/keras-hub#2861"),
    Row("dropout in steps", cache("dropout in steps"), "other outputs each time"),
    Row("the second step is not stored", cache("second step is not stored"),
        "the first cached step is right, the second is not",
        published="ggml-org/llama.cpp#11445"),
    Row("the window of the first row", cache("window of the first row", 6),
        "steps of several tokens are wrong, those of one[\\s\\S]*which one pass does not",
        published="pytorch/executorch#21857"),
    Row("a window in steps", cache("", 6)),
    Row("only keys are reordered", cache("keys are reordered alone"), "rows in another order",
        published="huggingface/transformers#46612"),
    Row("a cache of 8 bits", cache("rounded"), told="rounding of the cache"),
    Row("a prefix", Prefix, options=PREFIX),
    Row("no mask after a prefix", lambda: Prefix(False), "reads?", options=PREFIX),
    Row("at most 8 rows", lambda: Limited(length=12)),
    Row("at most 3 rows, asked for", lambda: LM(length=12), options={"rows": 3}),
    Row("a length of 0", lambda: WithLength(length=12)),
    Row("compiled", compiled),
]  # fmt: skip
