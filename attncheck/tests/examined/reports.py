"""Faults of public reports, rebuilt in small models, each with its repaired twin.

Letters: B batch, H heads, T time, D channels of a head.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from examined.small import (
    LM,
    Attention,
    C,
    D,
    Does,
    H,
    Row,
    V,
    every,
    filled,
    merge,
    rotate,
    scores,
    softmax,
    split,
    tril,
)

Make = Callable[[], Any]


class Cached(LM):
    """Its mixers are called with x, a dict of their own, the first position, and a mask (B, n)
    that is 1 for tokens and 0 for padding, of all tokens so far."""

    def __init__(self, mixer: Callable[[], nn.Module], **settings: Any) -> None:
        super().__init__(lambda layer: mixer(), length=64, **settings)

    def forward(self, ids: Tensor, cache: Any = None, mask: Tensor | None = None) -> Tensor:
        caches, begin = cache or ([None for _ in self.blocks], 0)
        x = self.embedded(ids, begin)
        for block, held in zip(self.blocks, caches, strict=True):
            x = block(x, held, begin, mask)
        return self.head(self.norm(x))


def step(model: Cached, ids: Tensor, cache: Any, mask: Tensor | None = None) -> Any:
    """A step with a cache, of any of these models."""
    cache = cache or ([{} for _ in model.blocks], 0)
    return model(ids, cache, mask), (cache[0], cache[1] + ids.shape[1])


def drafting(restores: bool) -> Any:
    """A step that also verifies two draft tokens, which are rejected; the state stays."""

    def drafted(model: Cached, ids: Tensor, cache: Any) -> Any:
        states = [dict(held) for held in cache[0]] if cache else None
        wrong = torch.cat([ids, (ids[:, -2:] + 7) % V], 1)
        logits, (after, _) = step(model, wrong, cache)
        begin = cache[1] if cache else 0
        if restores:
            _, (after, _) = step(model, ids, states and (states, begin))
        return logits[:, : ids.shape[1]], (after, begin + ids.shape[1])

    return drafted


class Decay(nn.Module):
    """S <- a S + k v^T, y = q S; padding is left out always, in the first step, or never."""

    def __init__(self, rule: str = "always") -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, H)
        self.proj, self.rule = nn.Linear(C, C, bias=False), rule

    def forward(self, x: Tensor, held: Any = None, begin: int = 0, mask: Any = None) -> Tensor:
        first = held is None or "state" not in held
        if mask is not None and (self.rule == "always" or (self.rule == "first" and first)):
            x = x * mask[:, -x.shape[1] :, None].to(x)
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        a, rows = self.gate(x).sigmoid().mT, []
        state = torch.zeros_like(k[:, :, :1].mT @ v[:, :, :1]) if first else held["state"]
        for t in range(x.shape[1]):
            state = a[:, :, t, None, None] * state + k[:, :, t, :, None] * v[:, :, t, None]
            rows.append(q[:, :, t, None] @ state)
        if held is not None:
            held["state"] = state
        return self.proj(merge(torch.cat(rows, 2)))


class Rotary(nn.Module):
    """Rotary attention with a cache. "dynamic": the base grows with the length from 25 on; "one
    head": in steps of one token, only the first head is rotated."""

    def __init__(self, rule: str = "") -> None:
        super().__init__()
        self.qkv, self.proj, self.rule = nn.Linear(C, 3 * C), nn.Linear(C, C), rule

    def forward(self, x: Tensor, held: Any = None, begin: int = 0, mask: Any = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        n = begin + x.shape[1]
        base = 100.0
        if self.rule == "dynamic":
            base *= max(1.0, n / 12 - 1) ** (D / (D - 2))
        turned = [rotate(y, torch.arange(begin, n), base) for y in (q, k)]
        if self.rule == "one head" and x.shape[1] == 1:
            pairs = zip(turned, (q, k), strict=True)
            turned = [torch.cat([r[:, :1], y[:, 1:]], 1) for r, y in pairs]
        q, k = turned
        if held is not None:
            if begin:
                k, v = torch.cat([held["k"], k], 2), torch.cat([held["v"], v], 2)
            held["k"], held["v"] = k, v
        return self.proj(merge(softmax(q, k, v, tril(n)[begin:])))


class Window(nn.Module):
    """A window of 16. "ring": 16 places, and the mask is cut from a global triangle; "late": steps
    of several read their own later tokens from 64 on; "clamped": the last 16 keys, whatever the
    query."""

    def __init__(self, rule: str = "") -> None:
        super().__init__()
        self.qkv, self.proj, self.rule = nn.Linear(C, 3 * C), nn.Linear(C, C), rule

    def forward(self, x: Tensor, held: Any = None, begin: int = 0, mask: Any = None) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        n, end = x.shape[1], begin + x.shape[1]
        at, seen = torch.arange(begin, end), torch.arange(end)
        may = (seen <= at[:, None]) & (at[:, None] - seen < 16)
        if held is not None and self.rule == "ring":
            if not begin:
                held["k"], held["v"] = (
                    torch.zeros_like(y[:, :, :1]).repeat(1, 1, 16, 1) for y in (k, v)
                )
            for j in range(n):
                held["k"][:, :, at[j] % 16], held["v"][:, :, at[j] % 16] = k[:, :, j], v[:, :, j]
            size = min(end, 16)
            k, v, may = held["k"][:, :, :size], held["v"][:, :, :size], tril(1024)[at][:, :size]
        elif held is not None:
            if begin:
                k, v = torch.cat([held["k"], k], 2), torch.cat([held["v"], v], 2)
            held["k"], held["v"] = k, v
            if self.rule == "late" and begin >= 64 and n > 1:
                may = at[:, None] - seen < 16
            if self.rule == "clamped" and begin and n > 1:
                may = may & (seen >= end - 16)
        return self.proj(merge(softmax(q, k, v, may)))


class Packed(nn.Module):
    """A convolution over 4, then rotary attention or a recurrence, of packed documents; what is
    reset at a border."""

    def __init__(self, conv: bool, state: bool, recurrent: bool) -> None:
        super().__init__()
        self.resets, self.recurrent = (conv, state), recurrent
        self.conv = nn.Parameter(0.3 * torch.randn(4, 3 * C))
        self.qkv, self.gate, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, H), nn.Linear(C, C)

    def forward(self, x: Tensor, number: Tensor) -> Tensor:
        y, n = self.qkv(x), x.shape[1]
        mixed = y * self.conv[0]
        for m in range(1, 4):
            shifted = F.pad(y, (0, 0, m, 0))[:, :n]
            if self.resets[0]:
                shifted = shifted * (F.pad(number, (m, 0), value=-1)[:, :n] == number)[..., None]
            mixed = mixed + shifted * self.conv[m]
        q, k, v = map(split, mixed.chunk(3, -1))
        same = number[:, None, :, None] == number[:, None, None]
        if not self.resets[1]:
            same = torch.ones_like(same)
        if self.recurrent:  # a decayed sum of what the state holds
            log = F.logsigmoid(self.gate(x)).mT.cumsum(-1)  # (B, H, T)
            gone = (log[..., :, None] - log[..., None, :]).masked_fill(~tril(n), -torch.inf).exp()
            return self.proj(merge((q @ k.mT * gone * same) @ v))
        q, k = (rotate(y, torch.arange(n)) for y in (q, k))
        return self.proj(merge(softmax(q, k, v, tril(n) & same)))


class Documents(LM):
    """Documents by their numbers (B, T)."""

    def __init__(self, *rule: bool) -> None:
        super().__init__(lambda layer: Packed(*rule), places=False, length=64)

    def forward(self, ids: Tensor, number: Tensor | None = None) -> Any:
        return super().forward(ids, torch.zeros_like(ids) if number is None else number)


class Chunks(nn.Module):
    """A decaying sum in chunks; wrong: the sum over chunks runs over the reader's axis."""

    def __init__(self, size: int, wrong: bool) -> None:
        super().__init__()
        self.qkv, self.dt, self.size, self.wrong = (
            nn.Linear(C, 3 * C),
            nn.Linear(C, 1),
            size,
            wrong,
        )

    def forward(self, x: Tensor) -> Tensor:
        c = self.size
        n = -(-x.shape[1] // c)
        pad = n * c - x.shape[1]
        q, k, v = F.pad(self.qkv(x), (0, 0, 0, pad)).unflatten(1, (n, c)).chunk(3, -1)
        a = F.pad(-F.softplus(self.dt(x)[..., 0] - 3), (0, pad)).unflatten(1, (n, c)).cumsum(-1)
        inside = (a[..., :, None] - a[..., None, :]).masked_fill(~tril(c), -torch.inf).exp()
        y = (q @ k.mT * inside) @ v
        added = F.pad((k * (a[..., -1:] - a).exp()[..., None]).mT @ v, (0, 0, 0, 0, 1, 0))
        total = F.pad(a[..., -1], (1, 0)).cumsum(-1)  # (B, n + 1)
        gone = total[..., :, None] - total[..., None, :]
        gone = gone.masked_fill(~tril(n + 1), -torch.inf).exp()[..., None, None]
        held = (gone * added[:, None]).sum(1 if self.wrong else 2)[:, :n]
        return (y + (q * a.exp()[..., None]) @ held).flatten(1, 2)[:, : x.shape[1]]


class Linformer(nn.Module):
    """Keys and values are projected along time to 16 rows, under a mask (T, 16)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.along = nn.Linear(C, 3 * C), nn.Parameter(torch.randn(2, 16, 64) / 8)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(split, self.qkv(x).chunk(3, -1))
        n = x.shape[1]
        k, v = (w[:, :n] @ y for y, w in zip((k, v), self.along, strict=True))
        return merge(softmax(q, k, v, torch.ones(n, 16, dtype=torch.bool).tril()))


class Infini(nn.Module):
    """Segments of 16 with a memory; early: a segment is added before it is read."""

    def __init__(self, early: bool) -> None:
        super().__init__()
        self.qkv, self.early = nn.Linear(C, 3 * C), early

    def forward(self, x: Tensor) -> Tensor:
        segments = [map(split, part.chunk(3, -1)) for part in self.qkv(x).split(16, 1)]
        memory: Any = 0.0
        rows = []
        for q, k, v in segments:
            fq, fk = F.elu(q) + 1, F.elu(k) + 1
            after = memory + fk.mT @ v
            if self.early:
                past = fq @ after
            elif rows:
                past = fq @ memory
            else:
                past = torch.zeros_like(v)
            rows.append(softmax(q, k, v, tril(q.shape[2])) + past)
            memory = after
        return merge(torch.cat(rows, 2))


class Asked(LM):
    """A fast path with a mask; a slow one, if weights are asked for or dropped (p), without."""

    def __init__(self, p: float = 0.0, repaired: bool = False) -> None:
        super().__init__(length=64)
        self.p, self.repaired = p, repaired

    def forward(self, ids: Tensor, output_attentions: bool = False) -> dict[str, Any]:
        def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
            if not output_attentions and not (self.p and self.training):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
            kept.append((filled(q, k, may) if self.repaired else scores(q, k)).softmax(-1))
            return F.dropout(kept[-1], self.p * self.training) @ v

        kept: list[Tensor] = []
        for block in self.blocks:
            block.mixer.mix = mix
        return {"logits": super().forward(ids), "attentions": kept}


class Encoder(LM):
    """torch's encoder, of which is_causal is a hint."""

    def __init__(self, kind: str) -> None:
        super().__init__(length=64)
        layer = nn.TransformerEncoderLayer(C, H, 2 * C, dropout=0.0, batch_first=True)
        self.body, self.kind = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), kind

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n, dtype=self.head.weight.dtype)
        if self.kind == "window":  # under the hint, it is taken for a causal mask
            mask = tril(n).triu(-7) == 0
        given = {} if self.kind == "hint" else {"mask": mask}
        return self.head(self.body(self.embedded(ids), **given, is_causal=self.kind != "mask"))


class Dropping(LM):
    """The mask is missing under a condition."""

    def __init__(self, when: Callable[[Any], bool]) -> None:
        super().__init__(length=64)
        self.when = when

    def forward(self, ids: Tensor) -> Any:
        x, drop = self.embedded(ids), self.when(self)
        for block in self.blocks:
            block.mixer.may = every if drop else lambda i, j: j <= i
            x = checkpoint(block, x, use_reentrant=False) if drop else block(x)
        return self.head(self.norm(x))


class TwoHeads(LM):
    """A second head predicts the token after the next; how far the labels of each are rolled."""

    def __init__(self, main: int, second: int) -> None:
        super().__init__(length=64)
        self.second, self.rolled = nn.Linear(C, V), (main, second)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        x = self.embedded(ids)
        for block in self.blocks:
            x = block(x)
        outputs = {"logits": self.head(self.norm(x)), "mtp_logits": self.second(x)}
        if labels is not None:
            losses = [
                F.cross_entropy(y[:, : y.shape[1] - n].flatten(0, 1), labels[:, n:].flatten())
                for y, n in zip(outputs.values(), self.rolled, strict=True)
            ]
            outputs["loss"] = losses[0] + 0.3 * losses[1]
        return outputs


class MultiheadAttention(LM):
    """torch's layer with a mask that joins the causal one and padding (1 = padding)."""

    def __init__(self, weights: bool, repaired: bool) -> None:
        super().__init__(length=64)
        self.mha = nn.ModuleList(nn.MultiheadAttention(C, H, batch_first=True) for _ in range(2))
        self.weights, self.repaired = weights, repaired

    def forward(self, ids: Tensor, padding: Tensor | None = None) -> Tensor:
        x, n = self.embedded(ids), ids.shape[1]
        blocked = ~tril(n).expand(len(ids), n, n)
        if padding is not None:
            blocked = blocked | padding[:, None].bool()
        if self.repaired:
            blocked = blocked & ~torch.eye(n, dtype=torch.bool)
        for layer in self.mha:
            mask = blocked.repeat_interleave(H, 0)
            x = x + layer(x, x, x, attn_mask=mask, need_weights=self.weights)[0]
        return self.head(self.norm(x))


def hot(fill: float, gain: float, layers: int = 2) -> Make:
    """Blocked scores are a number, and queries and keys are as large as a high rate makes them."""

    def make() -> LM:
        mix = lambda q, k, v, may: filled(q, k, may, fill).softmax(-1) @ v  # noqa: E731
        model = LM(lambda layer: Attention(mix), layers=layers, length=64)
        with torch.no_grad():
            for block in model.blocks:
                block.mixer.qkv.weight[: 2 * C] *= gain
        return model

    return make


def turned(over_heads: bool) -> Make:
    """Rotary positions along time, or along the heads."""

    def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
        if over_heads:
            q, k = (rotate(y.transpose(1, 2), torch.arange(H)).transpose(1, 2) for y in (q, k))
        else:
            q, k = (rotate(y, torch.arange(y.shape[2])) for y in (q, k))
        return softmax(q, k, v, may)

    return lambda: LM(lambda layer: Attention(mix), places=False, length=64)


def repeated(wrong: bool) -> Make:
    """Two key-value heads, repeated over the heads, or along time."""

    def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
        k, v = (y[:, :2].repeat_interleave(2, 2 if wrong else 1) for y in (k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=wrong)

    return lambda: LM(lambda layer: Attention(mix), length=64)


class Filter(nn.Module):
    """A filter by FFT, which wraps around without padding."""

    def __init__(self, wraps: bool) -> None:
        super().__init__()
        self.k, self.times = nn.Parameter(torch.randn(64, C) / 8), 1 if wraps else 2

    def forward(self, x: Tensor) -> Tensor:
        n = self.times * x.shape[1]
        spectrum = torch.fft.rfft(x, n, dim=1) * torch.fft.rfft(self.k[: x.shape[1]], n, dim=0)
        return torch.fft.irfft(spectrum, n, dim=1)[:, : x.shape[1]]


class GroupNorm(nn.Module):
    """A causal convolution, and a norm of (B, C, T) over groups of channels and all of time."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(C, C, 4), nn.GroupNorm(4, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(F.pad(x.mT, (3, 0)))).mT


def running_mean(layer: nn.Module, x: Tensor) -> Tensor:
    """The mean so far."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None] - x


def cached(mixer: Any, *rule: Any, **settings: Any) -> Make:
    """Layers with a cache."""
    return lambda: Cached(lambda: mixer(*rule), **settings)


def mixers(mixer: Any, *rule: Any, length: int | None = 64) -> Make:
    """Layers without one."""
    return lambda: LM(lambda layer: mixer(*rule), length=length)


def grad(model: Any) -> bool:
    return torch.is_grad_enabled()


def rows(published: str, check: str, *given: tuple[Any, ...]) -> list[Row]:
    """Rows of one report: (name, make, says, options or {}, told)."""
    return [
        Row(name, make, says, check, *more, published=published)
        for name, make, says, *more in given
    ]


CACHE, PADDED = {"step": step}, {"step": step, "padded_step": step}
LONG = CACHE | {"block_size": 128}
LEFT, RIGHT = (
    {"side": side, "call": lambda m, x, real: m(x, 1 - real)} for side in ("left", "right")
)
ASKED = {"call": lambda model, ids: model(ids, output_attentions=True)}
LOSS = {"loss": lambda model, ids: model(ids, labels=ids)["loss"]}
NUMBERED = {"call": lambda model, ids, number: model(ids, number)}
NAMED = {"call": lambda model, ids, real: model(ids, None, real)}
MEAN, PAIRS = "mean, norm or filter", "not in every sequence|finite blocked scores"
HYBRID, LATE = cached(Decay, places=False), cached(Window, "late")
NTK, FIXED = cached(Rotary, "dynamic"), cached(Rotary, places=False)
REPORTED = [
    *rows("karpathy/minGPT#75", "checkup",
        ("fill -1e4, fresh", hot(-1e4, 1), "finite -1e4"),
        ("fill -1e4, scores of 3,000", hot(-1e4, 60), "finite -1e4"),
        ("fill -1e4, scores of 30,000", hot(-1e4, 150), PAIRS),
        ("fill -1e4, one hot layer", hot(-1e4, 150, 1), PAIRS),
        ("fill -30, scores of 60", hot(-30, 8, 1), PAIRS),
        ("fill -inf", hot(-torch.inf, 1), ""),
        ("fill -inf, scores of 30,000", hot(-torch.inf, 150), "")),
    *rows("keras-team/keras#23038", "causal",
        ("mask missing with dropout", lambda: Asked(0.1), "in training mode"),
        ("mask missing if weights are asked for", Asked, "", {}, "not tried: .*output_attentions"),
        ("the same, asked by call", Asked, "every position", ASKED),
        ("weights asked for, repaired", lambda: Asked(0.1, True), "", ASKED),
        ("dropout, repaired", lambda: Asked(0.1, True), "")),
    *rows("huggingface/transformers#47475", "causal",
        ("chunks of 32", mixers(Chunks, 32, True), "32 reads"),
        ("chunks of 32, repaired", mixers(Chunks, 32, False), ""),
        ("chunks of 256 in 64", mixers(Chunks, 256, True, length=None), "", {}, "declares none"),
        ("chunks of 256 in 512", mixers(Chunks, 256, True, length=512), "in a sequence of 512"),
        ("chunks of 128 in 300", mixers(Chunks, 128, True, length=300), "in a sequence of 300")),
    *rows("huggingface/transformers#47087", "cache_equal",
        ("padding in the first step only", cached(Decay, "first"),
            "only with padding\n.*reads padding", PADDED),
        ("padding in every step", cached(Decay), "", PADDED)),
    *rows("huggingface/transformers#47087", "padding_ignored",
        ("padding never left out", cached(Decay, ""), "other inputs at the padding change", NAMED),
        ("padding left out", cached(Decay), "", NAMED)),
    *rows("huggingface/transformers#25104", "causal",
        ("base by length, 64", NTK, "inputs alone give other outputs"),
        ("base by length, 20", NTK, "", {"block_size": 20}),
        ("fixed base", FIXED, "")),
    *rows("huggingface/transformers#25104", "cache_equal",
        ("base by length, cached", NTK, "the first step, whose cache is empty, is wrong", CACHE),
        ("fixed base, cached", FIXED, "", CACHE)),
    *rows("oxiglade/mlx-rs#357", "cache_equal",
        ("one head rotated in steps of one", cached(Rotary, "one head"), "steps of one", CACHE)),
    *rows("ml-explore/mlx-lm#1486", "cache_equal",
        ("state, no drafts", HYBRID, "", CACHE),
        ("state after rejected drafts", HYBRID, "first cached", {"step": drafting(False)}),
        ("state restored after drafts", HYBRID, "", {"step": drafting(True)})),
    *rows("Lightning-AI/litgpt#2182", "cache_equal",
        ("ring with the first rows of a mask, 64", cached(Window, "ring"), "later tokens", CACHE),
        ("ring with the first rows of a mask, 128", cached(Window, "ring"), "later tokens", LONG),
        ("all keys, 64", cached(Window), "", CACHE),
        ("all keys, 128", cached(Window), "", LONG)),
    *rows("huggingface/transformers#37574", "cache_equal",
        ("unmasked steps from 64 on, of 64", LATE, "", CACHE),
        ("unmasked steps from 64 on, of 128", LATE, "reads its own later tokens", LONG)),
    *rows("lablup/mlxcel#413", "cache_equal",
        ("clamped mask, 64", cached(Window, "clamped"), "steps of several", CACHE),
        ("clamped mask, 128", cached(Window, "clamped"), "steps of several", LONG)),
    *(
        Row(f"documents: {name}{', recurrent' if recurrent else ''}"
            f"{', asked to reset' if reset else ''}",
            lambda rule=(conv, state, recurrent): Documents(*rule), says, "documents_separate",
            NUMBERED | {"reset_positions": reset}, published="huggingface/transformers#46588")
        for name, conv, state, says in (
            ("convolution crosses", False, True, "across the borders"),
            ("state crosses", True, False, "across the borders"),
            ("apart", True, True, ""))
        for recurrent in (False, True)
        for reset in (False, True)
    ),
    *rows("pytorch/pytorch#99282", "causal",
        ("is_causal without a mask", lambda: Encoder("hint"), "every position reads all"),
        ("a mask", lambda: Encoder("mask"), ""),
        ("a mask and the hint", lambda: Encoder("both"), ""),
        ("a window and the hint", lambda: Encoder("window"), "with gradients differ")),
    *rows("mlfoundations/open_lm#4", "past_used",
        ("rotation along the heads", turned(True), "", {}, "ignores the order of inputs"),
        ("rotation along time", turned(False), "", {}, r"back$")),
    *rows("tatp22/linformer-pytorch#25", "causal",
        ("keys projected along time", mixers(Linformer), "every position reads all")),
    *rows("dingo-actual/infini-transformer#4", "causal",
        ("memory with the own segment", mixers(Infini, True), "own block of 16"),
        ("memory of earlier segments", mixers(Infini, False), "")),
    *rows("lucidrains/metaformer-gpt#1", "causal",
        ("pooling", mixers(Does, lambda m, x: x.mean(1, keepdim=True) - x), MEAN),
        ("running mean", mixers(Does, running_mean), "")),
    *rows("Wan-Video/Wan2.1#294", "causal", ("group norm over time", mixers(GroupNorm), MEAN)),
    *rows("HazyResearch/safari#47", "causal",
        ("circular filter", mixers(Filter, True), MEAN),
        ("padded filter", mixers(Filter, False), "")),
    *rows("radixark/miles#2215", "loss_shifted",
        *((f"second head rolled {n}", lambda n=n: TwoHeads(1, n), "", LOSS,
           rf"mtp_logits .*{n} later") for n in (3, 1, 0, 2)),
        ("both heads rolled twice", lambda: TwoHeads(2, 2), "shifted twice", LOSS)),
    *rows("lightly-ai/lightly#2049", "causal",
        ("no mask in training steps", lambda: Dropping(lambda m: m.training), "in training mode"),
        ("no mask with gradients", lambda: Dropping(grad), "with gradients"),
        ("a mask in every mode", lambda: Dropping(lambda m: False), "")),
    *rows("datawhalechina/tiny-universe#21", "past_used",
        ("keys repeated along time", repeated(True), "", {}, "never read the one before"),
        ("keys repeated over heads", repeated(False), "", {}, r"back$")),
    *rows("pytorch/pytorch#41508", "padding_ignored",
        *((f"queries without keys, weights {weights}, {given['side']}",
           lambda weights=weights: MultiheadAttention(weights, False), says, given)
          for weights in (True, False) for given, says in ((LEFT, "without keys"), (RIGHT, ""))),
        ("padded queries see themselves", lambda: MultiheadAttention(True, True), "", LEFT)),
]  # fmt: skip
