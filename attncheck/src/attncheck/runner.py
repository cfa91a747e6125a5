"""Every property that applies to a model, and a report on the results."""

import json
import textwrap
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from functools import partial
from unittest import SkipTest

from torch import Tensor
from typing_extensions import Unpack

from .caches import CACHES, cache_step_of, check_cache_equal, check_padded_cache
from .calls import DOCUMENTS, TARGETS, Call, Model, arguments_of, module_of
from .causal import check_causal, check_mask_is_infinite, check_past_used
from .gradients import check_gradients_right
from .loss import check_labels_ignored, check_loss_shifted, labels_argument
from .modes import check_deterministic, check_modes_agree, check_rows_independent
from .outcomes import (
    PROBE_ERRORS,
    CannotCheck,
    CheckFailed,
    Passed,
    as_assertion,
    in_one_line,
    is_own_error,
)
from .padding import MASKS, check_documents_separate, check_padding_ignored
from .precision import check_precision_kept
from .subject import Sizes, Subject, prepared

FIRST = ("deterministic", "rows", "causal")  # after a fault of one, other results mean nothing
# A property that fails explains a failure of these, which are not tried then.
EXPLAINS = {
    "cache": ("padded cache",),
    "padding": ("padded cache",),
    "loss": ("ignored labels",),
}
WRONG = ("fault", "suspicious")
ASSERT_IT = "give a call of its own to the assert_ function of this property"
OWN_ERROR = 4  # the exit code if the checkup itself raised an error
WIDTH = 80  # of a line of the report
TITLE = 16  # of which the name of the property


@dataclass(frozen=True)
class PropertyResult:
    """What one property says of a model."""

    check: str  # the name of the property
    status: str  # "ok", "fault", "suspicious", "accepted", "not applicable", "failed", "error"
    message: str
    remarks: tuple[str, ...] = ()
    states: tuple[str, ...] = ()  # in which it was tried
    not_tried: tuple[str, ...] = ()
    map: Tensor | None = field(default=None, repr=False)  # (T, T), of a leak

    def to_dict(self) -> dict[str, object]:
        """All but the map, which is not for JSON."""
        return {
            "property": self.check,
            "status": self.status,
            "message": self.message,
            "remarks": list(self.remarks),
            "states": list(self.states),
            "not_tried": list(self.not_tried),
        }

    def __str__(self) -> str:
        """The name of the property, and beside it the status, the message and the remarks."""
        first, *others = self.message.split("\n")
        others += [f"remark: {each}" for each in self.remarks]
        return _in_columns(self.check, [f"{self.status}: {first}", *others])


@dataclass(frozen=True)
class Report:
    """The results of all properties of one model, in the order in which they were tried."""

    subject: str
    results: tuple[PropertyResult, ...]
    not_tried: tuple[str, ...] = ()  # what no property looks at
    strict: bool = False  # a suspicion counts as a fault

    @property
    def healthy(self) -> bool:
        """Whether no property found a fault or raised an error; a suspicion is a fault only if
        the report is strict."""
        return self.exit_code == 0

    @property
    def suspicions(self) -> int:
        """How many properties found what may be meant."""
        return sum(result.status == "suspicious" for result in self.results)

    @property
    def exit_code(self) -> int:
        """0: healthy, 1: a fault was found (if strict, also a suspicion), 3: the model raised an
        error while it was examined, 4: the checkup itself did, so that nothing is known.

        The command also ends with 2, if the model cannot be called.
        """
        statuses = {result.status for result in self.results}
        if "fault" in statuses or (self.strict and self.suspicions):
            return 1
        if "error" in statuses:
            return OWN_ERROR
        return 3 if "failed" in statuses else 0

    @property
    def verdict(self) -> str:
        """The exit code in words, and how many suspicions there are."""
        if self.exit_code == OWN_ERROR:
            return "not known, for the checkup has an error"
        said = {0: "healthy", 1: "faulty", 3: "the examination failed"}[self.exit_code]
        if not self.suspicions:
            return said
        noun = "suspicion" if self.suspicions == 1 else "suspicions"
        return f"{said}, {self.suspicions} {noun}"

    @property
    def missing(self) -> tuple[str, ...]:
        """What no property looks at, and what those that were tried have left out, each once."""
        every = list(self.not_tried)
        for result in self.results:
            every += result.not_tried
        return tuple(dict.fromkeys(every))

    def __str__(self) -> str:
        """The report in lines of a terminal; the last one says the verdict."""
        lines = [str(result) for result in self.results]
        lines += [_in_columns("not tried", [each]) for each in self.missing]
        return "\n".join([*lines, f"{self.subject}: {self.verdict}"])

    def to_dict(self) -> dict[str, object]:
        """Everything that the report says, for a program."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "healthy": self.healthy,
            "exit_code": self.exit_code,
            "results": [result.to_dict() for result in self.results],
            "not_tried": list(self.missing),
        }

    def to_json(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)


Check = Callable[[], Passed]


def checkup(
    model: Model,
    sample: Tensor | None = None,
    *,
    call: Call | None = None,
    name: str = "",
    accept: Collection[str] = (),
    strict: bool = False,
    **sizes: Unpack[Sizes],
) -> Report:
    """Try all properties that apply to a model, as `checks_for` lists them.

    After a fault in determinism, rows or causality, nothing else is tried: fix it first. A cache
    with padding is not tried if padding or the cache alone has a fault.

    Args:
        model, sample, call: see `assert_causal`.
        name: of the model in the report.
        accept: properties that the model lacks on purpose, by their names in the report, such as
            "rows" for experts with a capacity. What fails is then told as accepted, and the rest
            is tried; of a model that mixes rows, with one row at a time.
        strict: whether a suspicion makes the report faulty.
        sizes: `vocab_size`, `block_size`, `rows`, `prefix` and `causal`, see
            `attncheck.prepared`.

    Raises:
        CannotCheck: the model cannot be called as described.
    """
    tried = prepared(model, sample, call, **sizes).sharing()
    checks = checks_of(tried, accept)
    results: list[PropertyResult] = []
    skipped: list[str] = []
    explained: set[str] = set()
    for title, check in checks.items():
        fundamental = any(r.check in FIRST and r.status == "fault" for r in results)
        if fundamental or title in explained:  # after such a fault, its result means nothing
            skipped.append(title)
            continue
        result = _run_check(title, check)
        if title in accept and result.status in WRONG:
            result = replace(result, status="accepted")
        results.append(result)
        if result.status in WRONG:
            explained.update(EXPLAINS.get(title, ()))
    not_tried = _untried(tried, {r.check for r in results if r.status != "not applicable"})
    if skipped:
        not_tried.append(f"{', '.join(skipped)}, before the fault is repaired")
    owner = module_of(model)
    own_name = type(model if owner is None else owner).__name__
    subject = name or getattr(model, "__name__", own_name)
    return Report(subject, tuple(results), tuple(not_tried), strict)


def _run_check(title: str, check: Check) -> PropertyResult:
    """The result of a check under its title, with a status for whatever is raised: "fault" or
    "suspicious" for CheckFailed, "not applicable" for CannotCheck, "failed" for another error of
    the model, "error" for one of the checkup itself; else "ok", or "failed" if the model has
    raised an error in a state that it must support."""
    try:
        passed = check()
    except CheckFailed as failed:
        status = "fault" if failed.grave else "suspicious"
        states = (failed.state,) if failed.state else ()
        return PropertyResult(title, status, str(failed), states=states, map=failed.map)
    except CannotCheck as error:
        return PropertyResult(title, "not applicable", str(error))
    except Exception as error:  # a model may raise anything
        if is_own_error(error):
            return PropertyResult(title, "error", f"the checkup raised {in_one_line(error)}")
        return PropertyResult(title, "failed", f"the model raised {in_one_line(error)}")
    status = "failed" if passed.crashed else "ok"
    message = passed.crashed or passed.said
    return PropertyResult(title, status, message, passed.remarks, passed.states, passed.not_tried)


def _in_columns(title: str, texts: list[str]) -> str:
    """A title and texts beside it, each of which begins a line, in lines of a terminal."""
    lines: list[str] = []
    for text in texts:
        lines += textwrap.wrap(text, WIDTH - TITLE, subsequent_indent="  ", break_long_words=False)
    return f"{title:{TITLE}}" + ("\n" + " " * TITLE).join(lines)


def _untried(tried: Subject, titles: set[str]) -> list[str]:
    """What none of the properties with these titles looks at, a phrase for each: arguments of the
    model, and what `Subject.not_tried` says."""
    arguments_tried: set[str] = set()
    if "loss" in titles:
        arguments_tried.add(labels_argument(tried))
    if "padding" in titles:
        arguments_tried.add("attention_mask")
    if "cache" in titles:
        try:
            step = cache_step_of(tried)
            arguments_tried |= {step.argument, *step.flags}
        except PROBE_ERRORS:  # which the property says
            pass
    with tried.evaluating():
        missing = tried.not_tried(arguments_tried)
    takes = arguments_of(tried.model).values()
    named = [p for p in takes if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if not named and not tried.call_given:
        missing.append("arguments of the model whose names are not known (give call)")
    return missing


def checks_of(tried: Subject, accept: Collection[str] = ()) -> dict[str, Check]:
    """The checks of the properties that a model may have, by title: of every model, and those that
    the names of its arguments suggest. Each draws its own inputs, anew from the beginning.

    `accept` are the titles of properties that the model lacks on purpose; CannotCheck if one is no
    property of the model. They are checked, too, but one row at a time where rows may mix.
    """
    takes = set(arguments_of(tried.model))
    # Accepted mixing of rows would spoil the other properties; a fixed number of rows must stay.
    one_by_one = "rows" in accept and not tried.fixed_rows
    unmixed = replace(tried, rows=1) if one_by_one else tried
    checks: dict[str, Check] = {
        "deterministic": partial(check_deterministic, tried.anew()),
        "rows": partial(check_rows_independent, tried.anew()),
        "causal": partial(check_causal, unmixed.anew()),
        "past": partial(check_past_used, unmixed.anew()),
        "finite fill": partial(check_mask_is_infinite, unmixed.anew()),
        "training": partial(check_modes_agree, unmixed.anew()),
        "gradients": partial(check_gradients_right, unmixed.anew()),
    }
    if tried.has_half_weights:
        checks["precision"] = partial(check_precision_kept, unmixed.anew())
    of_arguments: dict[str, Check] = {}
    if takes & set(CACHES):
        of_arguments["cache"] = partial(check_cache_equal, unmixed.anew())
    if takes & set(MASKS):
        of_arguments["padding"] = partial(check_padding_ignored, unmixed.anew())
    if takes & set(CACHES) and "attention_mask" in takes:
        of_arguments["padded cache"] = partial(check_padded_cache, unmixed.anew())
    if takes & set(DOCUMENTS):
        of_arguments["documents"] = partial(check_documents_separate, unmixed.anew())
    if takes & set(TARGETS):
        of_arguments["loss"] = partial(check_loss_shifted, unmixed.anew())
        of_arguments["ignored labels"] = partial(check_labels_ignored, unmixed.anew())
    for title, check in of_arguments.items():
        checks[title] = partial(_if_arguments_are_free, tried, check)
    unknown = set(accept) - set(checks)
    if unknown:
        raise CannotCheck(
            f"no property of this model is {', '.join(sorted(unknown))}; there are "
            f"{', '.join(checks)}"
        )
    return checks


def _if_arguments_are_free(tried: Subject, check: Check) -> Passed:
    """What a check of an argument returns; CannotCheck if a call of the user's decides which
    arguments the model gets, or if the inputs are vectors, not ids."""
    if tried.call_given:
        raise CannotCheck(f"the model is called by your call; {ASSERT_IT}")
    if tried.sample.is_floating_point():
        raise CannotCheck(f"the inputs are vectors; {ASSERT_IT}")
    return check()


def checks_for(
    model: Model,
    sample: Tensor | None = None,
    *,
    call: Call | None = None,
    accept: Collection[str] = (),
    **sizes: Unpack[Sizes],
) -> list[Callable[[], str]]:
    """The checks of a model, for `pytest.mark.parametrize("check", checks_for(model))`.

    Each returns what was tried in a sentence, raises CheckFailed, or skips the test with the
    reason if the property does not apply. Caches, padding, documents and losses are checked if the
    model has an argument that is named so. What is named in `accept` may fail.
    """
    checks = checks_of(prepared(model, sample, call, **sizes), accept)
    return [_asserted(title, check, accepted=title in accept) for title, check in checks.items()]


def _asserted(title: str, check: Check, *, accepted: bool) -> Callable[[], str]:
    """A check as a function for pytest, which shows it under its title: it returns a sentence,
    raises CheckFailed unless the fault is accepted, and skips the test if the check does not
    apply."""

    @as_assertion
    def assertion() -> str:
        try:
            return str(check())
        except CannotCheck as error:
            raise SkipTest(f"not applicable: {error}") from None  # pytest skips it, too
        except CheckFailed as failed:
            if not accepted:
                raise
            return f"accepted: {failed}"

    assertion.__name__ = title
    return assertion
