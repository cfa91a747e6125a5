"""Assertions for the test suites of other projects.

The arguments are those of `checkup`. Each raises `CheckupFailed`, an AssertionError, with the
diagnoses, and BadInput if the model cannot be called as described or the property does not apply.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from functools import partial

from torch import Tensor

from attnlab.checkup import blackbox, serving
from attnlab.checkup.caches import Step, check_cache
from attnlab.checkup.examination import Examination
from attnlab.checkup.findings import Diagnosis, Finding, Report, Status, causes
from attnlab.checkup.loss_path import Loss, own_loss
from attnlab.checkup.model_adapter import Model
from attnlab.checkup.runner import checkup, name_of, prepared
from attnlab.errors import BadInput

# Detectors whose faults mean that logits depend on later tokens, except for the causes below.
CAUSALITY = {
    "finite", "future", "disturbed", "gradient", "prefixes", "lengths", "mask", "tokens", "stress",
    "trained", "training mode", "proof",
}  # fmt: skip
_NOT_CAUSALITY = {"dropout_on", "self_blocked"}
Examine = Callable[[Examination], Finding]


class CheckupFailed(AssertionError):
    """An assertion on a model failed; `report` says what was found."""

    def __init__(self, message: str, report: Report) -> None:
        super().__init__(message)
        self.report = report


def assert_causal(
    model: Model,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ids: Tensor | None = None,
    example: Mapping[str, object] | None = None,
    seconds: float | None = None,
    complete: bool = False,
    seed: int = 0,
) -> None:
    """Assert that no logit depends on later tokens or earlier calls, in eval or training mode.

    Args:
        complete: whether to fail, and not only to warn, if something was not looked at.
    """
    report = checkup(
        model, vocab_size=vocab_size, block_size=block_size, ids=ids, example=example,
        seconds=seconds, seed=seed,
    )  # fmt: skip
    faults = [
        d for d in report.diagnoses if d.status is Status.FAULT and d.cause not in _NOT_CAUSALITY
    ]
    _fail_for(
        report, [d for d in faults if CAUSALITY & set(d.detectors)], "is not causal", complete
    )


def assert_healthy(
    model: Model,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ids: Tensor | None = None,
    example: Mapping[str, object] | None = None,
    loss: Loss | None = None,
    ignore: Collection[str] = (),
    fail_on: str = "fault",
    seconds: float | None = None,
    complete: bool = False,
    seed: int = 0,
) -> None:
    """Assert that a checkup finds nothing wrong: causality, scale, heads, cache, padding, ...

    Args:
        ignore: causes that do not count, keys of `attnlab.checkup.findings.causes()`.
        fail_on: "fault", or "suspicious" to fail on suspicions too.
        complete: whether to fail, and not only to warn, if something was not looked at.
    """
    if fail_on not in ("fault", "suspicious"):
        raise BadInput(f"fail_on = {fail_on} must be fault or suspicious")
    if unknown := set(ignore) - causes().keys():
        raise BadInput(f"ignore: {min(unknown)} is no cause; there are {', '.join(causes())}")
    report = checkup(
        model, vocab_size=vocab_size, block_size=block_size, ids=ids, example=example, loss=loss,
        seconds=seconds, seed=seed,
    )  # fmt: skip
    statuses = [Status.FAULT] + [Status.SUSPICIOUS] * (fail_on == "suspicious")
    counted = [d for d in report.diagnoses if d.cause not in ignore and d.status in statuses]
    _fail_for(report, counted, "is not healthy", complete)


def assert_rows_independent(
    model: Model, *, vocab_size: int | None = None, block_size: int | None = None, seed: int = 0
) -> None:
    """Assert that no row of a batch depends on another, nor on the size of the batch."""
    _assert_one(
        lambda e: blackbox.check_rows_independent(e.adapter, e.lengths[0]),
        model, vocab_size, block_size, seed,
    )  # fmt: skip


def assert_cache_equal(
    model: Model,
    step: Step | None = None,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> None:
    """Assert that decoding with a cache gives the logits of one pass, whatever the steps are.

    Args:
        step: from the model, the next ids (B, n), and the cache, which is None at first, to the
            logits (B, n, V) and the cache; None for the `past_key_values` of transformers. With a
            fourth parameter, it also gets a mask (B, T) of the tokens so far, 0 for padding.
    """
    _assert_one(
        lambda e: e.serve("cache", partial(check_cache, step=step)),
        model, vocab_size, block_size, seed,
    )  # fmt: skip


def assert_padding_ignored(
    model: Model, *, vocab_size: int | None = None, block_size: int | None = None, seed: int = 0
) -> None:
    """Assert that padded tokens are not read, on either side, in rows of different lengths."""
    _assert_one(
        lambda e: e.serve("padding", serving.check_padding), model, vocab_size, block_size, seed
    )


def assert_loss_shifted(
    model: Model,
    loss: Loss | None = None,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> None:
    """Assert that the loss compares the logits at t with token t + 1.

    Args:
        loss: from the model and ids (B, T) to the loss; None if the model takes `labels`.
    """

    def examine(examination: Examination) -> Finding:
        if loss is None and not examination.adapter.takes("labels"):
            raise BadInput("the model takes no labels; give loss, from the model and ids to it")
        return examination.check_loss(loss or own_loss, shifts_in_data=False)

    _assert_one(examine, model, vocab_size, block_size, seed)


def _assert_one(
    examine: Examine, model: Model, vocab_size: int | None, block_size: int | None, seed: int
) -> None:
    """Run one detector alone; if it does not apply to the model, raise BadInput."""
    with prepared(model, vocab_size, block_size, seed=seed) as adapter:
        examination = Examination(adapter)
        examination.raise_precision()
        finding = examine(examination)
    if finding.status is Status.NOT_APPLICABLE:
        raise BadInput(f"{finding.detector} cannot be examined: {finding.headline}")
    report = Report(name_of(model), examination.settings, (finding,))
    _fail_for(report, list(report.diagnoses), f"fails the test of {finding.detector}")


def _fail_for(
    report: Report, diagnoses: list[Diagnosis], verdict: str, complete: bool = False
) -> None:
    lines = [f"- {d.cause}: {d.headline}. {d.advice}" for d in diagnoses]
    if report.error:
        lines.append(f"- the examination failed:\n{report.error}")
    unseen = "; ".join(report.unseen)
    if lines:
        raise CheckupFailed("\n".join([f"{report.subject} {verdict}:", *lines]), report)
    if unseen and complete:
        raise CheckupFailed(f"{report.subject}: not looked at: {unseen}", report)
    if unseen:
        warnings.warn(f"checkup of {report.subject}: not looked at: {unseen}", stacklevel=3)
