"""Every check that applies to a model, and a report on their results."""

import inspect
import json
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from . import causal, loss, serving
from .models import Call, CannotCheck, CheckFailed, module_of, subject

FIRST = {"deterministic", "rows", "causal"}  # if one fails, the other results mean nothing


@dataclass(frozen=True)
class Result:
    """What one check found."""

    check: str
    status: str  # "ok", "fault", "suspicious", "not applicable", "failed"
    message: str
    map: Tensor | None = field(default=None, repr=False)  # (T, T), of a leak


@dataclass(frozen=True)
class Report:
    """The results of all checks of one model, in the order in which they ran."""

    subject: str
    results: tuple[Result, ...]

    @property
    def healthy(self) -> bool:
        """Whether all checks ran and none found a fault; a suspicion is not a fault."""
        return self.exit_code == 0

    @property
    def exit_code(self) -> int:
        """0: healthy, 1: a fault was found, 3: the model failed during the examination."""
        found = {result.status for result in self.results}
        return 1 if "fault" in found else 3 if "failed" in found else 0

    def __str__(self) -> str:
        lines = [
            f"{r.check:14}{r.status:15} " + r.message.replace("\n", "\n" + " " * 30)
            for r in self.results
        ]
        verdict = ("healthy", "faulty", "", "the examination failed")[self.exit_code]
        return "\n".join([*lines, f"{self.subject}: {verdict}"])

    def to_json(self) -> str:
        """The report without its maps."""
        rows = [{k: v for k, v in vars(r).items() if k != "map"} for r in self.results]
        report = {"subject": self.subject, "healthy": self.healthy, "results": rows}
        return json.dumps(report, indent=2, ensure_ascii=False)


def checkup(
    model: Any,
    sample: Tensor | None = None,
    *,
    call: Call | None = None,
    name: str = "",
    **sizes: Any,
) -> Report:
    """Run all checks that apply to a model, as `checks_for` lists them.

    After a fault in determinism, rows or causality, no other check runs: fix it first. A cache
    with padding is not checked if padding or the cache alone has a fault.

    Raises:
        CannotCheck: the model cannot be called as described.
    """
    subject(model, sample, call, **sizes)  # or CannotCheck
    results: list[Result] = []
    for check in checks_for(model, sample, call=call, **sizes):
        wrong = {r.check for r in results if r.status in ("fault", "suspicious")}
        title, explained = check.__name__, wrong & {"cache", "padding"}
        if wrong & FIRST or (title == "padded cache" and explained):
            continue
        try:
            results.append(Result(title, "ok", check()))
        except CheckFailed as failed:
            status = "fault" if failed.grave else "suspicious"
            results.append(Result(title, status, str(failed), failed.map))
        except CannotCheck as error:
            results.append(Result(title, "not applicable", str(error)))
        except Exception as error:  # a model may raise anything
            results.append(Result(title, "failed", f"the model raised {error!r:.300}"))
    owner = type(module_of(model) or model).__name__
    return Report(name or getattr(model, "__name__", owner), tuple(results))


def checks_for(
    model: Any, sample: Tensor | None = None, *, call: Call | None = None, **sizes: Any
) -> list[Any]:
    """The checks of a model, for `pytest.mark.parametrize("check", checks_for(model))`.

    Caches, padding and losses are checked if the model has the interface of transformers.
    """
    usual: dict[str, Any] = {"sample": sample, "call": call, **sizes}
    named: dict[str, Any] = {"sample": sample, **sizes}
    forward = getattr(model, "forward", None)
    takes = set(inspect.signature(forward).parameters) if forward else set()
    found: dict[str, partial[str]] = {
        "deterministic": partial(serving.assert_deterministic, model, **usual),
        "rows": partial(serving.assert_rows_independent, model, **usual),
        "causal": partial(causal.assert_causal, model, **usual),
        "past": partial(causal.assert_past_used, model, **usual),
        "finite fill": partial(causal.assert_mask_is_infinite, model, **usual),
    }
    if {"past_key_values", "use_cache"} <= takes:
        found["cache"] = partial(serving.assert_cache_equal, model, **named)
    if "attention_mask" in takes:
        found["padding"] = partial(serving.assert_padding_ignored, model, **named)
        if "cache" in found:
            found["padded cache"] = partial(found["cache"], padded_step=serving.transformers_step)
    if "labels" in takes and "encoder_hidden_states" not in takes:  # whose labels come shifted
        own = lambda net, ids: net(ids, labels=ids).loss  # noqa: E731
        found["loss"] = partial(loss.assert_loss_shifted, model, own, **named)
    for name, run in found.items():
        run.__name__ = name  # type: ignore[attr-defined]  # pytest shows it
    return list(found.values())
