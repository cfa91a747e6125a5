"""Assertions for the test suites of other projects.

Each raises `CheckupFailed`, an AssertionError, with the diagnoses, and BadInput if the model
cannot be called as described or the property does not apply. `assert_causal` and `assert_healthy`
also take the report of a `checkup`, whose arguments describe a model in detail.
"""

import time
import warnings
from collections.abc import Iterable
from functools import partial

from attnlab.checkup.caches import Step
from attnlab.checkup.checkup_report import Diagnosis, Report
from attnlab.checkup.detectors import Meant
from attnlab.checkup.examination import Examination
from attnlab.checkup.findings import FAULT, NOT_APPLICABLE, OK
from attnlab.checkup.loss_path import Loss, own_loss
from attnlab.checkup.model_adapter import Model, adapt
from attnlab.checkup.runner import checkup, name_of, prepared
from attnlab.checkup.serving import Documents
from attnlab.errors import BadInput

Size = int | None  # by default the model's own

# Detectors whose faults mean that logits depend on later tokens, except for the causes below.
CAUSALITY = {
    "finite", "future", "disturbed", "gradient", "prefixes", "lengths", "mask", "tokens", "stress",
    "trained", "training mode", "proof",
}  # fmt: skip
_NOT_CAUSALITY = {"dropout_on", "self_blocked"}


class CheckupFailed(AssertionError):
    """An assertion on a model failed; `report` says what was found."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def assert_causal(
    model: Model | Report,
    *,
    vocab_size: Size = None,
    block_size: Size = None,
    seconds: float | None = None,
    complete: bool = False,
) -> None:
    """Assert that no logit depends on later tokens or earlier calls, in eval or training mode.

    Args:
        complete: whether to fail, and not only to warn, if something was not looked at.
    """
    __tracebackhide__ = True
    report = _examined(model, vocab_size, block_size, seconds)
    faults = [d for d in report.diagnoses if d.status is FAULT]
    leaks = [d for d in faults if CAUSALITY & {*d.detectors} and d.cause not in _NOT_CAUSALITY]
    _fail_for(report, leaks, "is not causal", complete)


def assert_healthy(
    model: Model | Report,
    *,
    vocab_size: Size = None,
    block_size: Size = None,
    fail_on: str = "fault",
    seconds: float | None = None,
    complete: bool = False,
) -> None:
    """Assert that a checkup finds nothing wrong: causality, scale, heads, cache, padding, ...

    Args:
        fail_on: "fault", or "suspicious" to fail on suspicions too.
        complete: whether to fail, and not only to warn, if something was not looked at.
    """
    __tracebackhide__ = True
    if fail_on not in ("fault", "suspicious"):
        raise BadInput(f"fail_on = {fail_on} must be fault or suspicious")
    report = _examined(model, vocab_size, block_size, seconds)
    counted = [d for d in report.diagnoses if d.status is FAULT or fail_on != "fault"]
    _fail_for(report, counted, "is not healthy", complete)


def assert_rows_independent(
    model: Model, *, vocab_size: Size = None, block_size: Size = None
) -> None:
    """Assert that no row of a batch depends on another, nor on the size of the batch."""
    __tracebackhide__ = True
    _assert_one("batch", model, Meant(), vocab_size, block_size)


def assert_cache_equal(
    model: Model, step: Step | None = None, *, vocab_size: Size = None, block_size: Size = None
) -> None:
    """Assert that decoding with a cache gives the logits of one pass, whatever the steps are.

    Args:
        step: from the model, the next ids (B, n), and the cache, which is None at first, to the
            logits (B, n, V) and the cache; None for the `past_key_values` of transformers. With a
            fourth parameter, it also gets a mask (B, T) of the tokens so far, 0 for padding.
    """
    __tracebackhide__ = True
    _assert_one("cache", model, Meant(step=step), vocab_size, block_size)


def assert_padding_ignored(
    model: Model, side: str | None = None, *, vocab_size: Size = None, block_size: Size = None
) -> None:
    """Assert that padding on a side ("left", "right"; None for both) is not read."""
    __tracebackhide__ = True
    _assert_one("padding", model, Meant(padding=side), vocab_size, block_size)


def assert_documents_separate(
    model: Model,
    documents: Documents | None = None,
    *,
    separator: int | None = None,
    reset_positions: bool = False,
    vocab_size: Size = None,
    block_size: Size = None,
) -> None:
    """Assert that no attention and no smear crosses the border of two packed documents.

    Args:
        documents: from the model, ids (B, T), and the number of each token's document (B, T), to
            what the model returns; None if only a separator in the ids tells documents apart.
        separator: the id that begins or ends a document.
        reset_positions: whether a packed document should also get the logits that it gets alone.
    """
    __tracebackhide__ = True
    meant = Meant(None, separator, documents, reset_positions)
    _assert_one("documents", model, meant, vocab_size, block_size)


def assert_loss_shifted(
    model: Model, loss: Loss | None = None, *, vocab_size: Size = None, block_size: Size = None
) -> None:
    """Assert that the loss compares the logits at t with token t + 1.

    Args:
        loss: from the model and ids (B, T) to the loss; None if the model takes `labels`.
    """
    __tracebackhide__ = True
    _assert_one("targets", model, Meant(loss=loss or own_loss), vocab_size, block_size)


def _examined(
    model: Model | Report, vocab_size: Size, block_size: Size, seconds: float | None
) -> Report:
    if isinstance(model, Report):
        return model
    return checkup(model, vocab_size=vocab_size, block_size=block_size, seconds=seconds)


def _assert_one(
    detector: str, model: Model, meant: Meant, vocab_size: Size, block_size: Size
) -> None:
    """Run one detector alone; if it does not apply to the model, raise BadInput."""
    __tracebackhide__ = True
    described = partial(adapt, vocab_size=vocab_size, block_size=block_size)
    with prepared(model, described) as adapter:
        examination = Examination(adapter, meant)
        examination.raise_precision()
        finding = examination.examine(detector)
    if finding.status is NOT_APPLICABLE:
        raise BadInput(f"{detector} cannot be examined: {finding.headline}")
    unseen = finding.evidence if finding.status is OK else ()
    seconds = time.perf_counter() - examination.begin
    report = Report(name_of(model), examination.settings(), (finding,), seconds, unseen=unseen)
    _fail_for(report, report.diagnoses, f"fails the test of {detector}")


def _fail_for(
    report: Report, diagnoses: Iterable[Diagnosis], verdict: str, complete: bool = False
) -> None:
    __tracebackhide__ = True
    told = list(diagnoses)
    if told or report.error:
        raise CheckupFailed(f"{report.subject} {verdict}\n{report.summary(told)}", report)
    missed = f"not looked at: {'; '.join(report.unseen)}"
    if report.unseen and complete:
        raise CheckupFailed(f"{report.subject}: {missed}", report)
    if report.unseen:
        warnings.warn(f"checkup of {report.subject}: {missed}", stacklevel=3)
