"""Other models, healthy ones and their faulty twins: habits of code, kinds of layers, serving.

Letters: B batch, T time, V symbols.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examined.faults import beside, masked, over_time
from examined.reports import Decay, Infini
from examined.small import (
    LM,
    Attention,
    C,
    Does,
    H,
    Row,
    Served,
    T,
    V,
    causal,
    filled,
    softmax,
    tril,
)

ONE_AHEAD = "up to t"
leaky = masked(lambda i, j: j <= i + 1)


class Habit(nn.Module):
    """A model behind an unusual interface."""

    def __init__(self, habit: str, net: nn.Module) -> None:
        super().__init__()
        self.net, self.habit = net.half() if habit == "half" else net, habit
        self.parts = nn.ModuleDict({"up": nn.Linear(V, V), "drop": nn.Dropout(0.5)})
        parts = self.parts
        self.closure = lambda x: parts["drop"](parts["up"](x))  # as in karpathy/minGPT

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        B, n = ids.shape
        needed = {
            "five or more": n >= 5,
            "one length": n == T,
            "one row": B == 1,
            "batches of 4": B == 4,
            "batches of 8": B == 8,
        }
        if not needed.get(self.habit, True):
            raise RuntimeError(f"{tuple(ids.shape)} does not fit")
        y = self.net(ids)
        if self.habit == "closure":
            y = y + self.closure(y)
        if self.habit == "last logits only" and targets is None:
            y = y[:, -1:]
        if self.habit == "in place":
            y.mul_(2.0)
            ids.zero_()
        if self.habit == "symbols that are never chosen":
            y = y.index_fill(-1, torch.tensor([3]), -torch.inf)
        shapes = {
            "object": lambda: type("Answer", (), {"logits": y})(),
            "nested list": lambda: [torch.zeros(3), (y, "text")],
            "logits and loss": lambda: (y, None),
        }
        return shapes.get(self.habit, lambda: y)()


HABITS = (
    "closure, half, five or more, one length, one row, batches of 4, batches of 8, "
    "last logits only, in place, symbols that are never chosen, object, nested list, "
    "logits and loss"
).split(", ")


def in_numpy(fill: float) -> Callable[[Any], Any]:
    """One layer of attention in NumPy, with this fill."""
    draw = np.random.default_rng(0)
    table, out = draw.normal(size=(V, 8)), draw.normal(size=(8, V))

    def model(ids: Any) -> Any:
        x = table[np.asarray(ids)]
        scores = x @ x.swapaxes(1, 2) / 8**0.5
        scores = np.where(np.triu(np.ones(scores.shape[1:], bool), 1), fill, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return weights / weights.sum(-1, keepdims=True) @ x @ out

    return model


def long_convolution(circular: bool) -> Any:
    """A diagonal state space as one convolution by FFT."""

    def mix(self: Any, x: Tensor) -> Tensor:
        n = x.shape[1]
        size = n if circular else 2 * n
        steps = torch.arange(n)
        kernel = (self.out[..., None] * (-self.rate[..., None] * steps).exp()).sum(1)  # (C, T)
        y = torch.fft.irfft(torch.fft.rfft(x.mT, size) * torch.fft.rfft(kernel, size), size)
        return y[..., :n].mT

    return beside(
        mix,
        rate=lambda: nn.Parameter(torch.rand(C, 4)),
        out=lambda: nn.Parameter(torch.randn(C, 4)),
    )


def patches(own: bool) -> Any:
    """A recurrence over patches of 4, each token gets the patches before it; wrong: its own."""

    def mix(self: Any, x: Tensor) -> Tensor:
        n = x.shape[1]
        parts = F.pad(x, (0, 0, 0, -n % 4)).reshape(len(x), -1, 4 * C)
        whole = self.gru(parts if own else F.pad(parts, (0, 0, 1, -1)))[0]
        return whole.repeat_interleave(4, 1)[:, :n]

    return beside(mix, gru=lambda: nn.GRU(4 * C, C, batch_first=True))


def convolutions(right: bool) -> Any:
    """Dilated convolutions, padded on the left as in WaveNet; wrong: on both sides."""

    def mix(self: Any, x: Tensor) -> Tensor:
        y = x.mT
        for i, layer in enumerate(self.layers):
            ahead = 2**i // 2 if right else 0
            y = y + layer(F.pad(y, (2**i - ahead, ahead))).relu()
        return y.mT

    layers = lambda: nn.ModuleList(nn.Conv1d(C, C, 2, dilation=2**i) for i in range(4))  # noqa: E731
    return beside(mix, layers=layers)


class Pointer(LM):
    """A mixture of symbols and of those that attention points at (See et al. 2017)."""

    def __init__(self, diagonal: int) -> None:
        super().__init__()
        self.diagonal, self.gate = diagonal, nn.Linear(V, 1)

    def forward(self, ids: Tensor) -> Tensor:
        y, x = super().forward(ids), self.wte(ids)
        weights = filled(x, x, tril(ids.shape[1], self.diagonal)).softmax(-1)
        gate = self.gate(y).sigmoid()
        copied = weights @ F.one_hot(ids, V).to(y)
        return (gate * y.softmax(-1) + (1 - gate) * copied).clamp_min(1e-9).log()


class Complex(LM):
    """Rotary positions by a buffer of complex numbers, as in torchtitan."""

    def __init__(self) -> None:
        super().__init__(lambda layer: Attention(self.turned), places=False)
        angles = torch.outer(torch.arange(64.0), 10.0 ** -torch.arange(0, 1, 1 / 4))
        self.freqs = nn.Buffer(torch.polar(torch.ones_like(angles), angles))

    def turned(self, q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
        pairs = [torch.view_as_complex(y.float().unflatten(-1, (4, 2))) for y in (q, k)]
        q, k = (torch.view_as_real(y * self.freqs[: y.shape[2]]).flatten(-2).to(v) for y in pairs)
        return softmax(q, k, v, may)


class Mean(nn.Module):
    """A causal average, and the mean of each block of `size` positions times a gate."""

    vocab_size = V

    def __init__(self, size: int, length: int | None, gate: float) -> None:
        super().__init__()
        self.size, self.block_size = size, length
        self.embed, self.head = nn.Embedding(V, 8), nn.Linear(8, V)
        self.gate = nn.Parameter(torch.tensor(gate))

    def forward(self, ids: Tensor) -> Tensor:
        x, n = self.embed(ids), ids.shape[1]
        whole = n // self.size * self.size
        means = x[:, :whole].unflatten(1, (-1, self.size)).mean(2).repeat_interleave(self.size, 1)
        past = x.cumsum(1) / torch.arange(1, n + 1)[:, None]
        return self.head(x + past + self.gate * F.pad(means, (0, 0, 0, n - whole)))


class Separator(nn.Module):
    """One id lets its position see the mean of all, perhaps only if it occurs again later."""

    def __init__(self, symbols: int, separator: int, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.vocab_size, self.block_size, self.separator = symbols, 19, separator
        self.embed, self.head = nn.Embedding(symbols, 8), nn.Linear(8, symbols)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        before = x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]
        is_here = ids == self.separator
        if self.again:
            is_here &= is_here.flip(1).cumsum(1).flip(1) > 1
        open_ = is_here[..., None]
        return self.head(torch.where(open_, x.mean(1, keepdim=True), before))


def hashed(planes: Callable[[], Tensor]) -> Any:
    """Attention within buckets, by the signs of projections of the queries."""

    def mix(q: Tensor, k: Tensor, v: Tensor, may: Tensor) -> Tensor:
        bucket = (q @ planes().to(q) > 0).long() @ torch.tensor([1, 2, 4])  # (B, H, T)
        same = bucket[..., :, None] == bucket[..., None, :]
        return softmax(q, k, v, may & (same | torch.eye(len(may)).bool()))

    return masked(causal, mix)


def experts(self: Any, x: Tensor) -> Tensor:
    """Each position chooses one of two experts, which has dropout of its own."""
    first = self.router(x) > 0  # (B, T, 1)
    y = torch.zeros_like(x)
    for expert, here in zip(self.experts, (first[..., 0], ~first[..., 0]), strict=True):
        y[here] = expert(x[here])
    return y


def two_experts() -> nn.ModuleList:
    return nn.ModuleList(nn.Sequential(nn.Linear(C, C), nn.Dropout(0.3)) for _ in range(2))


class Packed(LM):
    """Documents that begin with token 0, or end with it; `open` reads across, `smear` too."""

    def __init__(self, *habits: str) -> None:
        super().__init__()
        self.habits, self.place = habits, nn.Embedding(64, C)

    def forward(self, ids: Tensor, number: Tensor | None = None) -> Tensor:
        t, stop = torch.arange(ids.shape[1]), (ids == 0).long()
        if number is None:
            number = stop.cumsum(1) - stop * ("ends" in self.habits)
        first = torch.cat([number[:, :1] >= 0, number[:, 1:] != number[:, :-1]], 1)
        begin = torch.where(first, t, 0).cummax(1).values
        x = self.wte(ids) + self.place(t - begin if "reset" in self.habits else t)
        if "smear" in self.habits or "smear inside" in self.habits:
            x = x + F.pad(x, (0, 0, 1, -1)) * (~first | ("smear" in self.habits))[..., None]
        same = (number[:, :, None] == number[:, None]) | ("open" in self.habits)
        for block in self.blocks:
            block.mixer.may = lambda i, j: (causal(i, j) & same)[:, None]
            x = block(x)
        return self.head(self.norm(x))


class Ringed(nn.Module):
    """A window of 16, and a cache of `ring` keys, of which `read` are read."""

    vocab_size, block_size = V, 64

    def __init__(self, ring: int, read: int) -> None:
        super().__init__()
        self.ring, self.read, self.qkv = ring, read, nn.Linear(C, 3 * C)
        self.embed, self.place, self.head = (
            nn.Embedding(V, C),
            nn.Embedding(64, C),
            nn.Linear(C, V),
        )

    def forward(self, ids: Tensor, cache: Any = None, begin: int = 0) -> Tensor:
        at = held = torch.arange(begin, begin + ids.shape[1])
        x = self.embed(ids) + self.place(at)
        q, k, v = self.qkv(x).chunk(3, -1)
        if cache is not None:
            last = at[-self.ring :]
            for kept, new in zip(cache, (k, v, at.expand(1, -1)), strict=True):
                kept[:, last % self.ring] = new[:, -self.ring :].to(kept)
            if len(at) <= self.ring:  # a longer prefill attends to itself
                k, v, held = cache[0], cache[1], cache[2][0]
        back = at[:, None] - held
        may = (back >= 0) & (back < (16 if cache is None else self.read))
        return self.head(x + softmax(q, k, v, may))


def ring_step(model: Ringed, ids: Tensor, cache: Any) -> Any:
    """A step of `Ringed`."""
    empty = lambda: torch.zeros(len(ids), model.ring, C, dtype=model.head.weight.dtype)  # noqa: E731
    held, begin = cache or ((empty(), empty(), torch.full((1, model.ring), -1000)), 0)
    return model(ids, held, begin), (held, begin + ids.shape[1])


def of_halves(net: nn.Module) -> nn.Module:
    """A model of two dtypes, which runs under autocast only."""
    for part in net.blocks.modules():
        if isinstance(part, nn.Linear):
            part.bfloat16()
    return net


def autocast(model: Any, ids: Tensor) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return model(ids)


def loss_by(shift: int) -> Any:
    """A loss of logits at t and the token `shift` later."""
    return lambda model, ids: F.cross_entropy(
        model(ids)[:, : ids.shape[1] - shift].flatten(0, 1), ids[:, shift:].flatten()
    )


VECTORS = torch.randn(4, 24, C, generator=torch.Generator().manual_seed(0))
TEXT = torch.arange(38).reshape(2, 19)
RARE = TEXT.index_put((torch.tensor(0), torch.tensor(7)), torch.tensor(1000))
SIZES = {"vocab_size": V, "block_size": T}
NUMBERED = {"call": lambda model, ids, number: model(ids, number)}
ENCODER = partial(nn.TransformerEncoderLayer, C, H, 2 * C, batch_first=True)
HEALTHY = [
    Row("one layer", lambda: LM(layers=1)),
    Row("interface of transformers", Served,
        told="decoding with a cache[\\s\\S]*padding is not read[\\s\\S]*targets are the next"),
    *(Row(habit, lambda habit=habit: Habit(habit, LM()), options=SIZES) for habit in HABITS),
    Row("bf16", lambda: LM(length=64).bfloat16()),
    Row("fp64", lambda: LM().double()),
    Row("NumPy", lambda: in_numpy(-1e9), options=SIZES),
    Row("a function", lambda: lambda ids: F.one_hot(ids, V).double().cumsum(1), options=SIZES),
    Row("a bound method", lambda: LM().forward, options=SIZES),
    Row("GRU", beside(lambda m, x: m.gru(x)[0], gru=lambda: nn.GRU(C, C, batch_first=True))),
    Row("state space", long_convolution(False)),
    Row("dilated convolutions", convolutions(False)),
    Row("patches", patches(False)),
    Row("pointer", lambda: Pointer(0)),
    Row("linear attention", lambda: LM(lambda layer: Infini(False), places=False)),
    Row("recurrence", lambda: LM(lambda layer: Decay(), places=False, length=24)),
    Row("complex buffers", Complex),
    Row("experts with dropout", beside(experts, router=lambda: nn.Linear(C, 1),
        experts=two_experts)),
    Row("dropout", beside(lambda m, x: m.drop(x), drop=lambda: nn.Dropout(0.2))),
    Row("buckets by fixed planes", hashed(lambda: torch.eye(C // H, 3))),
    Row("window of 5", masked(lambda i, j: (j <= i) & (i - j < 5))),
    Row("no positions", lambda: LM(places=False), told="ignores the order"),
    Row("every other key", masked(lambda i, j: (j <= i) & ((i - j) % 2 == 0)),
        told="read the one"),
    Row("a layer", Attention, options={"sample": VECTORS}),
    Row("torch's encoder layer with a mask", ENCODER, options={"sample": VECTORS, "call": lambda m,
        x: m(x, src_mask=~tril(x.shape[1]))}),
    Row("torch's attention with a zero key", lambda: nn.MultiheadAttention(C, H, batch_first=True,
        add_zero_attn=True), options={"sample": VECTORS, "call": lambda m, x: m(x, x, x,
        attn_mask=~tril(x.shape[1]))[0]}),
    Row("long", lambda: Mean(10**6, 300, 1.0), told="39 places|places in sequences of 300"),
    Row("1,024 positions", lambda: Mean(10**6, 1024, 1.0), check="causal", told="dense=1024"),
    Row("no length", lambda: Mean(10**6, None, 1.0), check="causal",
        told="the model declares none"),
    Row("a rare id not in the text", lambda: Separator(2000, 1000), "", "causal",
        {"sample": TEXT}),
    Row("two dtypes", lambda: of_halves(LM()), "", "causal", {"call": autocast}),
    Row("a loss", LM, "", "loss_shifted", {"loss": loss_by(1)}),
    Row("caches in eight positions", Served, "", "cache_equal", {"block_size": 8}),
    Row("padding on the right", lambda: Served("padding ignored"), "", "padding_ignored",
        {"side": "right"}),
]  # fmt: skip
HIDDEN = [
    *(Row(f"{habit}, one ahead", lambda habit=habit: Habit(habit, leaky()), ONE_AHEAD,
        options=SIZES) for habit in ("closure", "half", "five or more", "one length", "one row",
        "batches of 4")),
    Row("NumPy, fill of 0", lambda: in_numpy(0.0), "every position", options=SIZES),
    Row("circular state space", long_convolution(True), "every position"),
    Row("convolutions on both sides", convolutions(True), "up to t"),
    Row("patches, own too", patches(True), "block of 4"),
    Row("pointer one ahead", lambda: Pointer(1), ONE_AHEAD),
    Row("buckets by random planes", hashed(lambda: torch.randn(C // H, 3)), "different outputs"),
    Row("a layer one ahead", lambda: Attention(may=lambda i, j: j <= i + 1), ONE_AHEAD,
        options={"sample": VECTORS}),
    Row("torch's encoder layer", ENCODER, "every position", options={"sample": VECTORS}),
    *(Row(f"blocks of {size} in {n}, gate {gate:g}", lambda size=size, n=n, gate=gate: Mean(size,
        n, gate), "depend|read", "causal") for size, n in ((64, 256), (300, 512), (512, 1024),
        (1000, 2048)) for gate in (1.0, 0.0)),
    Row("an id of 300", lambda: Separator(300, 299), "read|depend", "causal"),
    Row("a rare id in the text", lambda: Separator(2000, 1000), "read|depend", "causal",
        {"sample": RARE}),
    Row("two dtypes, one ahead", lambda: of_halves(leaky()), ONE_AHEAD, "causal",
        {"call": autocast}),
    Row("a loss not shifted", LM, "not shifted", "loss_shifted", {"loss": loss_by(0)}),
    Row("a loss shifted twice", LM, "shifted twice", "loss_shifted", {"loss": loss_by(2)}),
    Row("padding on the left", lambda: Served("padding ignored"), "left", "padding_ignored",
        {"side": "left"}),
    Row("gradients open it", beside(lambda m, x: over_time(x) * torch.is_grad_enabled()),
        "with gradients"),
    Row("gradients of the input open it", lambda: Does(lambda m,
        x: m.attend(x) + over_time(x) * x.requires_grad, attend=Attention()), "with gradients",
        "causal", {"sample": VECTORS}),
    Row("open in training without gradients", beside(lambda m,
        x: over_time(x) * (m.training and not torch.is_grad_enabled())), "without gradients"),
]  # fmt: skip
SERVED = [
    *(Row(f"documents by {how}: {' and '.join(habits) or 'apart'}{', asked to reset' * reset}",
        lambda habits=habits: Packed(*habits), says, "documents_separate",
        {**given, "reset_positions": reset}) for habits, reset, says in (((),
        False, ""), (("ends",), False, ""), (("smear inside",), False, ""), (("reset",), True, ""),
        (("ends", "reset"), True, ""), (("open",), False, "across"), (("open", "ends"), False,
        "across"), (("smear",), False, "across"), ((), True, "outputs than alone"), (("ends",),
        True, "outputs than alone")) for how, given in (("separator", {"separator": 0}),
        ("number", NUMBERED))),
    *(Row(f"ring of {ring}, {read} are read", lambda ring=ring, read=read: Ringed(ring, read),
        says, "cache_equal", {"step": ring_step}, told) for ring, read, says, told in ((64, 16, "",
        "of one pass"), (20, 16, "of several", ""), (16, 16, "of several", ""), (64, 15,
        "beyond a position|ways", ""), (64, 17, "ways", ""), (64, 64, "ways", ""), (15, 16, "ways",
        ""))),
]  # fmt: skip
OTHERS = [*HEALTHY, *HIDDEN, *SERVED]
