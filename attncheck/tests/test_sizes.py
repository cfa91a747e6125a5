"""Faults at sizes that nobody chose: hypothesis draws the size, and the checkup finds it."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_refusals import Normed, Prefixed
from torch import Tensor, nn

from attncheck import (
    CheckFailed,
    assert_deterministic,
    assert_loss_shifted,
    assert_padding_ignored,
    assert_precision_kept,
    assert_rows_independent,
    checkup,
)
from examined.small import LM, C, Does, Output, Served, V, filled, tril

T = 48
drawn = settings(max_examples=3, deadline=None, database=None)


def status(model: nn.Module, check: str, **given: Any) -> str:
    """What a property says, with its message and remarks."""
    torch.manual_seed(0)
    results = checkup(model, **given).results
    said = [f"{r.status}: {' '.join([r.message, *r.remarks])}" for r in results]
    found = {r.check: text for r, text in zip(results, said, strict=True)}
    assert check in found, said
    return found[check]


class Steps(nn.Module):
    """Attention with a cache. `wrong` says of the sizes of a step and of all steps so far whether
    the keys of the step are lost."""

    vocab_size, block_size = V, T

    def __init__(self, wrong: Any = lambda sizes: False) -> None:
        super().__init__()
        self.wrong = wrong
        self.embed, self.place = nn.Embedding(V, C), nn.Embedding(T, C)
        self.qkv, self.head = nn.Linear(C, 3 * C), nn.Linear(C, V, bias=False)

    def forward(self, input_ids: Tensor, past_key_values: Any = None, use_cache: bool = False):
        keys, values, sizes = past_key_values or (None, None, ())
        n, begin = input_ids.shape[1], sum(sizes)
        sizes = (*sizes, n)
        x = self.embed(input_ids) + self.place(torch.arange(begin, begin + n))
        q, k, v = self.qkv(x).chunk(3, -1)
        if keys is not None:
            k, v = torch.cat([keys, k], 1), torch.cat([values, v], 1)
        y = filled(q, k, tril(begin + n)[begin:]).softmax(-1) @ v
        if use_cache and self.wrong(sizes):
            v = torch.cat([v[:, :begin], 0 * v[:, begin:]], 1)
        return Output(self.head(x + y), None, (k, v, sizes) if use_cache else None)


@drawn
@given(st.integers(1, T - 2))
def test_a_cache_that_a_step_of_some_size_spoils_is_found(size: int) -> None:
    model = Steps(lambda sizes: len(sizes) > 1 and sizes[-1] == size)
    assert status(model, "cache").startswith("fault")


@drawn
@given(st.integers(1, T - 9), st.integers(0, 7))
def test_a_cache_that_prompts_of_some_lengths_spoil_is_found(first: int, more: int) -> None:
    model = Steps(lambda sizes: len(sizes) == 1 and first <= sizes[0] <= first + more)
    assert status(model, "cache").startswith("fault")


def test_the_same_cache_is_right_if_nothing_spoils_it() -> None:
    assert f"1 to {T - 2}" in status(Steps(), "cache")


class Chunks(LM):
    """A mean over the tokens so far of a token's own chunk; chunks begin at slots."""

    def __init__(self, size: int, *, by_tokens: bool = False) -> None:
        super().__init__(length=32, places=False)
        self.size, self.by_tokens = size, by_tokens

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.embedded(input_ids)
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        slot = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        number = real.cumsum(1) - 1 if self.by_tokens else slot
        chunk = number // self.size
        may = (chunk[:, :, None] == chunk[:, None]) & real.bool()[:, None]
        may = may & tril(x.shape[1]) | torch.eye(x.shape[1], dtype=torch.bool)
        return self.head(x + may.to(x) / may.sum(-1, keepdim=True) @ x)


@drawn
@given(st.integers(2, 11), st.booleans())
def test_slots_that_padding_moves_are_remarked_for_chunks_of_any_size(
    size: int, right: bool
) -> None:
    said = status(Chunks(size, by_tokens=right), "padding")
    assert said.startswith("ok") and ("than alone" not in said) == right


@drawn
@given(st.integers(2, 30))
def test_a_prefix_of_any_length_is_no_leak_but_one_more_is(prefix: int) -> None:
    assert checkup(Prefixed(prefix), prefix=prefix).exit_code == 0
    assert status(Prefixed(prefix, more=1), "causal", prefix=prefix).startswith("fault")


@drawn
@given(st.sampled_from([12, 16, 24, 32]))
def test_the_module_is_named_also_if_a_width_is_the_length(size: int) -> None:
    assert "norm (BatchNorm1d)" in status(Normed(size, size), "causal", accept=["rows"])


@drawn
@given(st.integers(1, 31))
def test_a_row_that_reads_one_further_up_is_found(distance: int) -> None:
    above = Does(lambda _, x: F.pad(x, (0, 0, 0, 0, distance, 0))[: len(x)])
    with pytest.raises(CheckFailed, match="row"):
        assert_rows_independent(LM(length=12, layers=1, beside=above))


@drawn
@given(st.integers(3, 12))
def test_a_right_model_of_a_few_positions_is_healthy(length: int) -> None:
    torch.manual_seed(0)
    report = checkup(Served(), block_size=length)
    assert {result.status for result in report.results} == {"ok"}, report


DRAWS: dict[str, Any] = {
    "torch": lambda: float(torch.rand(())),
    "random": random.random,
    "NumPy": np.random.rand,
}


@pytest.mark.parametrize("source", DRAWS)
@drawn
@given(st.floats(0.2, 0.9))
@example(0.84375)
def test_a_layer_that_is_sometimes_left_out_is_found(source: str, rate: float) -> None:
    layer = Does(lambda _, x: x.sin() * (DRAWS[source]() < rate))
    with pytest.raises(CheckFailed, match="different outputs"):
        assert_deterministic(LM(length=12, layers=1, beside=layer))


@pytest.mark.parametrize("source", DRAWS)
def test_random_numbers_that_change_nothing_are_remarked(source: str) -> None:
    layer = Does(lambda _, x: x.sin() * (DRAWS[source]() < 2))
    said = assert_deterministic(LM(length=12, layers=1, beside=layer))
    assert "remark: in evaluation mode a call draws random numbers" in said


class ReadsLabels(Served):
    """Logits at t read the label at t - `later`, if labels are given; perhaps only in training."""

    def __init__(self, later: int | None, *, in_training: bool = False) -> None:
        super().__init__()
        self.later, self.in_training = later, in_training

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> Output:  # type: ignore[override]
        plain = super().forward(input_ids, labels=labels)
        if labels is None or self.later is None or (self.in_training and not self.training):
            return plain
        read = F.one_hot(labels.clamp(0), V).to(plain.logits).roll(self.later, 1)
        logits = plain.logits + read
        wanted = F.pad(labels[:, 1:], (0, 1), value=-100)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        return plain._replace(logits=logits, loss=loss)


@pytest.mark.parametrize("in_training", [False, True])
@drawn
@given(st.integers(0, 40))
def test_logits_that_read_labels_are_found(in_training: bool, later: int) -> None:
    with pytest.raises(CheckFailed, match="depend on the labels"):
        assert_loss_shifted(ReadsLabels(later, in_training=in_training))
    assert_loss_shifted(ReadsLabels(None))


class OtherWithMask(LM):
    """Positions are others if any mask is given."""

    def __init__(self, by: int) -> None:
        super().__init__(length=24, layers=1)
        self.by = by

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(ids) if attention_mask is None else attention_mask
        more = 0 if attention_mask is None else self.by
        at = (real.cumsum(1) - 1).clamp(0) + more
        x = self.wte(ids) + self.wpe(at)
        may = tril(ids.shape[1]) & real.bool()[:, None, None] | torch.eye(len(ids[0])).bool()
        self.blocks[0].mixer.may = lambda i, j: may
        return self.head(self.norm(self.blocks[0](x)))


@drawn
@given(st.integers(1, 900))
def test_a_mask_of_ones_that_is_no_absent_mask_is_remarked(by: int) -> None:
    assert "a mask of ones gives other outputs" in assert_padding_ignored(OtherWithMask(by))
    assert "remark" not in assert_padding_ignored(OtherWithMask(0))


@drawn
@given(st.floats(1e3, 1e4))
def test_squares_that_overflow_in_half_precision_are_found(size: float) -> None:
    def normed(x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()

    def in_half(_: object, x: Tensor) -> Tensor:
        return normed(size * x.sin())

    def in_single(_: object, x: Tensor) -> Tensor:
        return normed(size * x.sin().float()).to(x)

    assert_precision_kept(LM(length=24, layers=1, beside=Does(in_single)).half())
    with pytest.raises(CheckFailed, match="also at the first positions"):
        assert_precision_kept(LM(length=24, layers=1, beside=Does(in_half)).half())


class Kept(nn.Embedding):
    """Adds a mean of earlier embeddings, which training updates, in a buffer or an attribute."""

    def __init__(self, share: float, *, saved: bool) -> None:
        super().__init__(V, C)
        self.share = share
        self.kept = nn.Buffer(torch.zeros(C)) if saved else [torch.zeros(C)]

    def forward(self, ids: Tensor) -> Tensor:
        x = super().forward(ids)
        kept = self.kept if isinstance(self.kept, Tensor) else self.kept[0]
        added = kept.to(x, copy=True)
        if self.training:
            kept.mul_(1 - self.share).add_(self.share * x.detach().mean((0, 1)))
        return x + added


@drawn
@given(st.floats(0.05, 1.0))
def test_a_statistic_of_training_is_suspicious_and_a_memory_a_fault(share: float) -> None:
    model = Served()
    model.embed = Kept(share, saved=False)
    with pytest.raises(CheckFailed, match="earlier calls"):
        assert_deterministic(model)
    model.embed = Kept(share, saved=True)
    report = checkup(model)
    statuses = {result.check: result.status for result in report.results}
    assert statuses.pop("deterministic") == "suspicious"
    assert set(statuses.values()) == {"ok"} and report.exit_code == 0, report
    assert "each call changes the model" in " ".join(report.missing)


class Halves(nn.Module):
    """Half precision. In some part outputs or the loss are NaN, but not in a higher precision."""

    vocab_size, block_size = V, 24

    def __init__(self, part: str, dtype: torch.dtype, size: int = 0) -> None:
        super().__init__()
        self.part, self.size = part, size
        self.embed, self.qkv = nn.Embedding(V, C), nn.Linear(C, 3 * C)
        self.head = nn.Linear(C, V, bias=False)
        self.to(dtype)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        document_ids: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool = False,
    ) -> Output:
        x = self.embed(input_ids)
        n, begin = input_ids.shape[1], 0
        q, k, v = self.qkv(x).chunk(3, -1)
        if past_key_values is not None:
            begin = past_key_values[0].shape[1]
            k, v = (torch.cat(pair, 1) for pair in zip(past_key_values, (k, v), strict=True))
        may = tril(begin + n)[begin:].expand(len(x), n, -1)
        if attention_mask is not None:
            may = may & attention_mask.bool()[:, None]
        if document_ids is not None:
            may = may & (document_ids[:, :, None] == document_ids[:, None])
        fill = -1e4 if x.dtype == torch.float16 else torch.finfo(x.dtype).min
        y = x + filled(q, k, may, fill).softmax(-1) @ v
        half = x.dtype in (torch.float16, torch.bfloat16)
        given = {"padding": attention_mask is not None and not attention_mask.all(),
                 "cache": begin > 0 and begin >= self.size, "documents": document_ids is not None,
                 "loss": False}  # fmt: skip
        if half and given.get(self.part):
            y = y + y.new_tensor(torch.nan)
        logits, loss = self.head(y), None
        if labels is not None:
            wanted = F.pad(labels[:, 1:], (0, 1), value=-100)
            scale = 1e8 if half and self.part == "loss" else 1.0
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten()) * scale
            loss = loss.to(x.dtype) / scale
        return Output(logits, loss, (k, v) if use_cache else None)


@pytest.mark.parametrize("part", ["padding", "cache", "documents", "loss"])
@drawn
@given(st.sampled_from([torch.float16, torch.bfloat16]), st.integers(1, 11))
def test_nan_in_half_precision_alone_is_found_in_what_serves(
    part: str, dtype: torch.dtype, size: int
) -> None:
    if part == "loss":
        dtype = torch.float16  # the largest number of bfloat16 is that of float32
    said = status(Halves(part, dtype, size), part)
    assert said.startswith("fault") and "NaN" in said.replace("nan", "NaN")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_without_a_fault_is_healthy(dtype: torch.dtype) -> None:
    report = checkup(Halves("", dtype))
    assert report.exit_code == 0 and not report.suspicions, report
    for result in report.results:
        if result.check in ("padding", "cache", "documents", "loss"):
            assert any("its own precision" in state for state in result.states), result


class Encoder(LM):
    """An encoder that reads padding, or does not."""

    def __init__(self, *, reads: bool, strict: bool = False) -> None:
        super().__init__(length=24, layers=1)
        self.reads, self.strict = reads, strict

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        may = torch.ones(input_ids.shape[1], input_ids.shape[1], dtype=torch.bool)
        if attention_mask is not None and not self.reads:
            if self.strict and not attention_mask.any(1).all():
                raise ValueError("a row has no token")
            between = (attention_mask.diff(dim=1) != 0).sum(1) > 1
            if self.strict and between.any():
                raise ValueError("padding must be at one end")
            may = may & attention_mask.bool()[:, None, None]
        self.blocks[0].mixer.may = lambda i, j: may
        return super().forward(input_ids)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("reads", [False, True])
def test_an_encoder_is_judged_by_its_padding_alone(reads: bool, strict: bool) -> None:
    report = checkup(Encoder(reads=reads, strict=strict), causal=False)
    assert report.exit_code == int(reads), report
    missing = " ".join(report.missing)
    assert ("between, which is refused (ValueError" in missing) == (strict and not reads)


class Capacity(LM):
    """Mixes rows on purpose, and perhaps reads ahead beside that."""

    def __init__(self, *, leaks: bool) -> None:
        later = (lambda i, j: j <= i + 1) if leaks else (lambda i, j: j <= i)
        super().__init__(length=16, layers=1, beside=Does(lambda _, x: x.mean(0, keepdim=True)))
        self.blocks[0].mixer.may = later


@pytest.mark.parametrize("leaks", [False, True])
def test_what_mixes_rows_can_be_accepted_and_the_rest_is_tried(leaks: bool) -> None:
    assert checkup(Capacity(leaks=leaks)).exit_code == 1
    report = checkup(Capacity(leaks=leaks), accept=["rows"])
    assert report.exit_code == int(leaks), report
    statuses = {result.check: result.status for result in report.results}
    assert statuses["rows"] == "accepted" and statuses["causal"] == ("fault" if leaks else "ok")
