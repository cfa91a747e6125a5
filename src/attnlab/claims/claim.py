"""A claim: a sentence, the predictions that test it, and where it is expected to hold.

Plain data and small functions. `experiments/<claim>/claim.py` defines one as `CLAIM`; the rest of
this package runs and judges it without knowing which it is.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnlab.claims.criteria import Prediction

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnlab.claims.evidence import Evidence

Budget = Literal["quick", "full"]
BUDGETS: tuple[Budget, ...] = ("quick", "full")
Bearing = Literal["for", "against", "neither"]
Values = Mapping[str, Any]  # JSON


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: Hydra overrides on top of `experiment=<claim>`."""

    name: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Effort:
    """What one budget spends on a part.

    Args:
        seeds: how many; they are 0, 1, 2, ... and the same for all arms.
        overrides: for all arms, `trainer.max_steps=2000` say.
        on_gpu: further ones where a GPU is found.
        seconds: guess of what one measurement takes, for the estimate before the first.
    """

    seeds: int
    overrides: tuple[str, ...] = ()
    on_gpu: tuple[str, ...] = ()
    seconds: float = 5.0


@dataclass(frozen=True)
class Reading:
    """A metric that metrics.json does not hold, read from the run folder after the training.

    Args:
        read: takes the folder of a finished run and gives numbers (JSON).
        value: the one of them that is judged.
        diverged: the score of a run that diverged; None scores it as the loss at the start, ln V.
    """

    read: Callable[[Path], Values]
    value: str
    diverged: float | None = None


def difference(first: float, second: float) -> float:
    """The first arm minus the second: paired by seed, so by weights and by batches."""
    return first - second


def level(first: float) -> float:
    """The first arm as it is."""
    return first


@dataclass(frozen=True)
class Part:
    """One prediction of a claim.

    Args:
        name: short, unique within the claim.
        says: the prediction in one sentence.
        test: threshold and kind of test.
        budgets: what each budget spends; a budget that is missing does not judge this part.
        where: the circumstances, to complete "holds for ...".
        bearing: whether a supported part speaks for or against the claim's sentence.
        counts: False for what is shown and not judged (a map of single seeds, say).
        timed: the values are times, so no two machines give the same.
    """

    name: str
    says: str
    test: Prediction
    budgets: Mapping[Budget, Effort]
    where: str = ""
    bearing: Bearing = "neither"
    counts: bool = True
    timed: bool = False


@dataclass(frozen=True)
class Trained(Part):
    """A prediction about training runs.

    Args:
        arms: what is trained; the contrast gets the scores of the first arms, in order.
        contrast: as many arguments as it takes arms, scores of one seed -> the judged value.
        metric: a key of metrics.json, or a `Reading`.
        given: preconditions, dotted keys of the configuration with their values, in every arm;
            "corpus" is the name of the corpus that was really read.
    """

    arms: tuple[Arm, ...] = ()
    contrast: Callable[..., float] = difference
    metric: str | Reading = "val_loss"
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured(Part):
    """A prediction about what a pure function measures.

    Args:
        measure: (seed, budget) -> numbers (JSON); the same for the same arguments, times apart.
        value: the one of them that is judged.
    """

    measure: Callable[[int, str], Values] = field(default=lambda seed, budget: {})
    value: str = ""


@dataclass(frozen=True)
class Claim:
    """A sentence from the textbook, with the predictions that it is judged by.

    Args:
        says: the sentence.
        parts: predictions, the most important first.
        figure: draws the evidence.
        table: rows of a table to stand below the figure.
        notes: what a reader should know, plain paragraphs.
        order: place in the report.
        name: of the folder; filled in by whoever reads the folder.
    """

    says: str
    parts: tuple[Part, ...]
    figure: Callable[[Evidence], Figure] | None = None
    table: Callable[[Evidence], Sequence[Mapping[str, Any]]] | None = None
    notes: str = ""
    order: int = 100
    name: str = ""

    def part(self, name: str) -> Part:
        """The part of that name."""
        return next(part for part in self.parts if part.name == name)


def declaration(claim: Claim) -> dict[str, Any]:
    """All that decides a verdict and was to be fixed before the first run, as JSON.

    Metrics, contrasts and measurements enter by their source text, comments and layout apart.
    """
    return {"claim": claim.name, "parts": [_declared(part) for part in claim.parts]}


def declared_hash(claim: Claim) -> str:
    """SHA-256 of the declaration."""
    content = json.dumps(declaration(claim), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()


def source_of(function: Callable[..., Any]) -> str:
    """The text of a function, comments and layout apart; its name where there is no text."""
    try:
        return ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(function))))
    except (OSError, TypeError, SyntaxError):  # a lambda in the middle of an expression, say
        return function.__qualname__


def _declared(part: Part) -> dict[str, Any]:
    content: dict[str, Any] = {
        "name": part.name,
        "test": [type(part.test).__name__, asdict(part.test)],
        "budgets": {budget: asdict(effort) for budget, effort in part.budgets.items()},
        "counts": part.counts,
        "bearing": part.bearing,
    }
    if isinstance(part, Trained):
        metric = part.metric
        content["arms"] = [asdict(arm) for arm in part.arms]
        content["contrast"] = source_of(part.contrast)
        content["given"] = dict(part.given)
        if isinstance(metric, Reading):
            content["metric"] = [source_of(metric.read), metric.value, metric.diverged]
        else:
            content["metric"] = metric
    if isinstance(part, Measured):
        content["metric"] = [source_of(part.measure), part.value]
    return content
