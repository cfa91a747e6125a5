"""Right models that refuse a call of the checkup, or keep a contract in another way than most.

Letters: B batch, T time, V symbols.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attncheck import CannotCheck, CheckFailed, assert_cache_equal, assert_causal, checkup
from attncheck import causal as causality
from examined.modes import Cache, OtherNames, Stateful
from examined.small import LM, Attention, C, Served, V, every, filled, tril

LENGTH = 32


def judged(model: Any, **sizes: Any) -> dict[str, str]:
    """The status of each property."""
    return {result.check: result.status for result in checkup(model, **sizes).results}


# ---- what a model refuses


class Refuses(Stateful):
    """Raises an error for some masks."""

    def __init__(self, refused: str, error: Callable[[str], Exception] = ValueError) -> None:
        super().__init__()
        self.refused, self.error = refused, error

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
    ) -> Tensor:
        B = len(input_ids)
        real = torch.ones(B, 1, dtype=torch.bool)
        if attention_mask is not None:
            real = attention_mask.bool()
        found = {
            "no token": not real.any(1).all(),
            "left": not real[:, 0].all(),
            "documents": document_ids is not None,
            "many rows": B > 8,
            "fp64": self.head.weight.dtype is torch.float64,
        }
        if found[self.refused]:
            raise self.error(f"{self.refused} is refused")
        return super().forward(input_ids, attention_mask, document_ids)


class ReadsPadding(Refuses):
    """Also reads what is in a padded first slot."""

    def may(self, x: Tensor, real: Tensor | None, document: Tensor | None) -> Tensor:
        first = torch.arange(x.shape[1]) == 0
        return super().may(x, None if real is None else real.bool() | first, document)


class OneLength(LM):
    """A model of one length that is longer than a map, without a mask."""

    def __init__(self) -> None:
        super().__init__(lambda _: Attention(may=every), length=64)

    def forward(self, ids: Tensor, *args: Any) -> Tensor:
        if ids.shape[1] != self.block_size:
            raise RuntimeError(f"{ids.shape[1]} inputs, not {self.block_size}")
        return super().forward(ids, *args)


class OtherError(Exception):
    """As of a library that checks shapes."""


@pytest.mark.parametrize(
    ("refused", "error"),
    [
        ("no token", ValueError),
        ("no token", OtherError),
        ("documents", OtherError),
        ("many rows", OtherError),
        ("fp64", OtherError),
    ],
)
def test_a_call_that_only_asks_may_be_refused(refused: str, error: Any) -> None:
    torch.manual_seed(0)
    statuses = judged(Refuses(refused, error))
    if refused == "documents":
        assert statuses.pop("documents") == "not applicable"
    assert set(statuses.values()) == {"ok"}, statuses


def test_a_side_of_padding_that_is_refused_is_told_as_not_tried() -> None:
    torch.manual_seed(0)
    report = checkup(Refuses("left"))
    assert report.exit_code == 0 and "padding, left, which is refused" in " ".join(report.missing)


def test_a_fault_stays_one_if_the_search_for_its_cause_is_refused() -> None:
    torch.manual_seed(0)
    assert judged(ReadsPadding("no token"))["padding"] == "fault"


class OneDtype(Served):
    """Takes a mask of one dtype only."""

    def __init__(self, dtype: torch.dtype, fault: str = "") -> None:
        super().__init__(fault)
        self.dtype = dtype

    def forward(self, input_ids: Tensor, attention_mask: Any = None, *args: Any, **more: Any):
        if attention_mask is not None and attention_mask.dtype is not self.dtype:
            raise TypeError(f"{attention_mask.dtype} is refused")
        return super().forward(input_ids, attention_mask, *args, **more)

    forward.__signature__ = inspect.signature(Served.forward)  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_a_mask_has_the_dtype_that_the_model_takes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    assert set(judged(OneDtype(dtype)).values()) == {"ok"}


class ByName(Served):
    """Takes its inputs by name only."""

    def forward(self, *, input_ids: Tensor, **more: Any) -> Any:  # type: ignore[override]
        return super().forward(input_ids, **more)

    parameters_of_served = inspect.signature(Served.forward).parameters.values()
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [p if p.name == "self" else p.replace(kind=p.KEYWORD_ONLY) for p in parameters_of_served]
    )


class ByAnyName(Served):
    """Says no names of its arguments."""

    def forward(self, **batch: Any) -> Any:  # type: ignore[override]
        return super().forward(**batch)


@pytest.mark.parametrize("fault", ["", "restarts", "padding ignored"])
def test_inputs_may_be_taken_by_name_only(fault: str) -> None:
    torch.manual_seed(0)
    assert judged(ByName(fault)) == judged(Served(fault))


def test_a_model_of_unknown_names_is_called_as_the_user_says() -> None:
    torch.manual_seed(0)
    with pytest.raises(CannotCheck, match="by name, such as call=lambda"):
        checkup(ByAnyName())
    assert judged(ByAnyName(), call=lambda model, ids: model(input_ids=ids))["causal"] == "ok"


class Crashes(Served):
    """An operation inside of it fails with padding, with padding in steps, or with ignored labels,
    or it refuses them."""

    def __init__(self, check: str, *, deliberate: bool) -> None:
        super().__init__()
        self.check, self.deliberate = check, deliberate

    def forward(self, input_ids: Tensor, attention_mask: Any = None, *args: Any, **more: Any):
        stepwise = more.get("past_key_values") is not None
        padded = attention_mask is not None and not attention_mask.all()
        labels = more.get("labels")
        given = {
            "padding": padded,
            "padded cache": padded and stepwise,
            "ignored labels": labels is not None and bool((labels < 0).any()),
        }
        if given[self.check]:
            if self.deliberate:
                raise NotImplementedError(f"{self.check} is not supported")
            torch.ones(3) + torch.ones(4)
        return super().forward(input_ids, attention_mask, *args, **more)

    forward.__signature__ = inspect.signature(Served.forward)  # type: ignore[attr-defined]


@pytest.mark.parametrize("deliberate", [False, True])
@pytest.mark.parametrize("check", ["padding", "padded cache", "ignored labels"])
def test_a_crash_where_the_simpler_call_works_is_a_failure(check: str, deliberate: bool) -> None:
    torch.manual_seed(0)
    report = checkup(Crashes(check, deliberate=deliberate))
    statuses = {result.check: result.status for result in report.results}
    assert statuses["cache"] == statuses["loss"] == "ok"
    assert statuses[check] == ("not applicable" if deliberate else "failed"), report
    assert report.exit_code == (0 if deliberate else 3)


class Encoder(nn.Module):
    """Of torch, which gives NaN for a row without tokens."""

    vocab_size, block_size = V, 24

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(C, 4, 2 * C, 0.0, batch_first=True)
        self.embed, self.head = nn.Embedding(V, C), nn.Linear(C, V)
        self.encode = nn.TransformerEncoder(layer, 2)

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        blocked = None if attention_mask is None else attention_mask == 0
        return self.head(self.encode(self.embed(ids), src_key_padding_mask=blocked))


def test_an_encoder_of_torch_is_examined() -> None:
    torch.manual_seed(0)
    model = Encoder()
    assert judged(model)["causal"] == "fault"
    statuses = judged(model, prefix=model.block_size)
    assert statuses["causal"] == statuses["finite fill"] == "not applicable", statuses
    assert statuses["rows"] == statuses["padding"] == "ok", statuses


def test_a_leak_of_a_model_of_one_length_is_told() -> None:
    torch.manual_seed(0)
    with pytest.raises(CheckFailed, match="every position reads all 64"):
        assert_causal(OneLength())


# ---- errors of the checkup itself


def test_an_error_of_the_checkup_is_none_of_the_model(
    tmp_path: Path, attncheck: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.py").write_text("from examined.small import LM\n")
    monkeypatch.setattr(causality, "dependence", None)
    done = attncheck("small.py:LM")
    assert done.code == 4 and "the checkup raised TypeError" in done.out, done
    monkeypatch.setattr("attncheck.subject.find_best_dtype", None)
    done = attncheck("small.py:LM")
    assert done.code == 4 and "Traceback" in done.err, done


# ---- caches that keep the contract in another way


class Reordered(Cache):
    """Returns a new cache in another order of rows, all of it or a part."""

    def reorder_cache(self, rows: Tensor) -> "Reordered":  # type: ignore[override]
        parts = [(k[rows], v[rows] if self.whole else v) for k, v in self]
        return Reordered(parts, self.whole)


class ReturnsReordered(OtherNames):
    """Its cache does not change itself when it is reordered."""

    def forward(self, ids: Tensor, state: Any = None) -> Any:
        logits, cache = super().forward(ids, state)
        return logits, Reordered(cache, cache.whole)


class ReturnsOnce(OtherNames):
    """Returns its cache after the first step, and then changes it in place."""

    def forward(self, ids: Tensor, state: Any = None) -> Any:
        logits, cache = super().forward(ids, state)
        if state is None:
            return logits, cache
        state[:] = cache
        return logits, None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (ReturnsReordered, ""),
        (lambda: ReturnsReordered("keys are reordered alone"), "rows in another order"),
        (ReturnsOnce, ""),
        (lambda: ReturnsOnce("restarts"), "steps of one token and of several are wrong"),
    ],
)
def test_a_cache_may_change_itself_or_return_another(make: Callable[[], Any], words: str) -> None:
    torch.manual_seed(0)
    if not words:
        assert_cache_equal(make())
        return
    with pytest.raises(CheckFailed, match=words):
        assert_cache_equal(make())


# ---- a prefix, whose inputs may see each other


class Prefixed(nn.Module):
    """A prefix-LM whose prefix begins in each row, or at its first token; its cache has keys and
    values, and the mask. `more` tokens behind the prefix may be read, too."""

    vocab_size, block_size = V, LENGTH

    def __init__(self, prefix: int, begins: str = "row", more: int = 0) -> None:
        super().__init__()
        self.prefix, self.begins, self.more = prefix, begins, more
        self.embed, self.place = nn.Embedding(V, C), nn.Embedding(LENGTH, C)
        self.qkv, self.head = nn.Linear(C, 3 * C), nn.Linear(C, V, bias=False)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        past: Any = None,
    ) -> Any:
        begin = 0 if past is None else past[0].shape[1]
        end = begin + ids.shape[1]
        q, k, v = self.qkv(self.embed(ids) + self.place(torch.arange(begin, end))).chunk(3, -1)
        if past is not None:
            k, v = (torch.cat(pair, 1) for pair in zip(past, (k, v), strict=True))
        real = torch.ones(len(ids), end, dtype=torch.bool)
        if attention_mask is not None:
            real = attention_mask.bool()
        first = real.int().argmax(1) if self.begins == "token" else torch.zeros(len(ids))
        at = torch.arange(end)
        may = tril(end) | (at < first[:, None, None] + self.prefix + self.more)
        if document_ids is not None:
            inside = torch.maximum(at[:, None], at) < self.prefix
            may = may & (inside | (document_ids[:, :, None] == document_ids[:, None]))
        may = (may & real[:, None]) | torch.eye(end, dtype=torch.bool)
        return self.head(filled(q, k, may[:, begin:]).softmax(-1) @ v), (k, v)


@pytest.mark.parametrize("begins", ["row", "token"])
@pytest.mark.parametrize("prefix", [8, 15, 16, 17, 20, 28, 31])
def test_a_prefix_of_any_length_is_right(prefix: int, begins: str) -> None:
    torch.manual_seed(0)
    statuses = judged(Prefixed(prefix, begins), prefix=prefix)
    if prefix > 26:  # no steps are left behind it and the padding
        del statuses["padded cache"]
    assert set(statuses.values()) == {"ok"}, statuses


@pytest.mark.parametrize("prefix", [8, 17, 30])
def test_what_is_read_behind_a_prefix_is_found(prefix: int) -> None:
    torch.manual_seed(0)
    assert judged(Prefixed(prefix, more=1), prefix=prefix)["causal"] == "fault"


def test_where_all_inputs_may_see_each_other_causality_does_not_apply() -> None:
    torch.manual_seed(0)
    statuses = judged(Prefixed(LENGTH), prefix=LENGTH)
    for check in ("causal", "finite fill", "cache"):
        assert statuses[check] == "not applicable", statuses


# ---- a width that is as large as the length


class Normed(nn.Module):
    """A GRU, whose last state is (1, B, C), and a norm over the batch and time."""

    vocab_size = V

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.block_size = length
        self.embed, self.recur = nn.Embedding(V, width), nn.GRU(width, width, batch_first=True)
        self.norm, self.head = nn.BatchNorm1d(width), nn.Linear(width, V)

    def forward(self, ids: Tensor) -> Tensor:
        y, _ = self.recur(self.embed(ids))
        return self.head(self.norm(y.mT).mT)


@pytest.mark.parametrize(("width", "length"), [(32, 32), (24, 32), (24, 24)])
def test_a_width_is_not_taken_for_time(width: int, length: int) -> None:
    torch.manual_seed(0)
    with pytest.raises(CheckFailed, match="reads ahead is norm"):
        assert_causal(Normed(width, length))
