"""Faults at sizes that nobody chose: hypothesis draws the size, and the checkup finds it."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from test_refusals import Normed, Prefixed
from torch import Tensor, nn

from attncheck import checkup
from examined.small import LM, C, Does, Output, V, filled, tril

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
