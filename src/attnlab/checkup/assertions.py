"""Assertions for the test suites of other projects."""

from collections.abc import Callable, Collection

from attnlab.checkup.findings import FAULT, Diagnosis, Report
from attnlab.checkup.runner import checkup
from attnlab.errors import BadInput

# Detectors whose faults mean that logits depend on later tokens ...
CAUSALITY = {
    "finite", "future", "disturbed", "gradient", "prefixes", "mask", "stress", "trained",
    "training mode", "proof",
}  # fmt: skip
# ... unless this is their cause.
_NOT_CAUSALITY = {"dropout_on", "self_blocked", "keeps_state"}


def assert_causal(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    seed: int = 0,
) -> None:
    """Assert that no logit depends on a later token, in eval or training mode; nothing else.

    Args:
        model, vocab_size, block_size, seed: see `checkup`.

    Raises:
        AssertionError: with the diagnoses.
        attnlab.errors.BadInput: the model cannot be called as described.
    """
    report = checkup(model, vocab_size=vocab_size, block_size=block_size, seed=seed)
    leaks = [
        d
        for d in report.diagnoses
        if d.status is FAULT and d.cause not in _NOT_CAUSALITY and CAUSALITY & set(d.detectors)
    ]
    _fail_for(report, leaks, "is not causal")


def assert_healthy(
    model: Callable[..., object],
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    ignore: Collection[str] = (),
    fail_on: str = "fault",
    seed: int = 0,
) -> None:
    """Assert that a checkup finds nothing wrong: causality, scale, heads, cache, padding, ...

    Args:
        model, vocab_size, block_size, seed: see `checkup`.
        ignore: causes that do not count, keys of `attnlab.checkup.diagnoses.CAUSES`.
        fail_on: "fault", or "suspicious" to fail on suspicions too.

    Raises:
        AssertionError: with the diagnoses.
        attnlab.errors.BadInput: `fail_on` is neither, or the model cannot be called.
    """
    if fail_on not in ("fault", "suspicious"):
        raise BadInput(f"fail_on = {fail_on} must be fault or suspicious")
    report = checkup(model, vocab_size=vocab_size, block_size=block_size, seed=seed)
    counted = [d for d in report.diagnoses if d.cause not in ignore]
    if fail_on == "fault":
        counted = [d for d in counted if d.status is FAULT]
    _fail_for(report, counted, "is not healthy")


def _fail_for(report: Report, diagnoses: list[Diagnosis], verdict: str) -> None:
    lines = [f"- {d.cause}: {d.headline}. {d.advice}" for d in diagnoses]
    if report.error:
        lines.append(f"- the examination failed:\n{report.error}")
    if lines:
        raise AssertionError("\n".join([f"{report.subject} {verdict}:", *lines]))
