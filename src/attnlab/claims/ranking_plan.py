"""How many runs a ranking still needs, and how long they take, before anything is trained.

What is missing follows from the results of earlier runs, which choose the learning rates. So a
missing run is given the result of the most similar run of softmax attention, until none is
missing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnlab.claims.ranking import Protocol, is_of_attention, missing_of_ranking
from attnlab.claims.trials import Row, Run, without_rate
from attnlab.claims.work import RunsAhead
from attnlab.settings.roles import last_of

TaskAndSteps = tuple[str, ...]  # the overrides of a run but those of attention and of its rate


@dataclass(frozen=True)
class BaselineRun:
    """A row of a baseline, with the rate and seed by which a similar run is looked for."""

    rate: float
    seed: int
    row: Row


def runs_ahead(
    protocol: Protocol, rows: Mapping[Run, Row], names: Sequence[str], *, quick: bool
) -> RunsAhead | None:
    """An estimate of the runs that some variants still need, and of their CPU minutes: as if each
    missing run had the result, and took the time, of the most similar run of a baseline. None if
    the baselines have no run of its task and number of steps."""
    filled = dict(rows)
    baseline_runs = runs_of_baselines(protocol, rows)
    runs = 0
    seconds = 0.0
    # Results choose the learning rates, so what is missing is asked again once all are there.
    while missing := missing_of_ranking(protocol, filled, names, quick=quick):
        for run in missing:
            similar = baseline_runs.get(task_and_steps(run))
            if not similar:
                return None
            row = most_similar(run, similar)
            filled[run] = row
            runs += 1
            seconds += row["cpu_seconds"] or 0
    return RunsAhead(runs, seconds / 60)


def runs_of_baselines(
    protocol: Protocol, rows: Mapping[Run, Row]
) -> dict[TaskAndSteps, list[BaselineRun]]:
    """The runs of all attentions with which variants are compared, by task and number of steps."""
    baselines = set()
    for name in protocol.arms:
        baselines.add(attention_of(protocol.overrides(protocol.partner(name))))
    found: dict[TaskAndSteps, list[BaselineRun]] = {}
    for run, row in rows.items():
        if attention_of(run.overrides) in baselines:
            of_task = found.setdefault(task_and_steps(run), [])
            of_task.append(BaselineRun(rate_of_run(run), run.seed, row))
    return found


def attention_of(overrides: Sequence[str]) -> tuple[str, ...]:
    """Of some overrides, those that choose the attention and its settings."""
    return tuple(filter(is_of_attention, overrides))


def task_and_steps(run: Run) -> TaskAndSteps:
    """The overrides of a run without those of attention and learning rate: equal for runs of other
    variants on the same task that have the same number of steps."""
    return tuple(word for word in without_rate(run.overrides) if not is_of_attention(word))


def rate_of_run(run: Run) -> float:
    """The learning rate of a run, of which every run of the ranking has an override."""
    return float(last_of(run.overrides)["optim.lr"].partition("=")[2])


def most_similar(run: Run, baseline_runs: Sequence[BaselineRun]) -> Row:
    """The row of a baseline whose rate is nearest, as a factor; of several, that with the seed of
    the run, if there is one."""
    rate = rate_of_run(run)
    nearest = min(baseline_runs, key=lambda x: (abs(math.log(x.rate / rate)), x.seed != run.seed))
    return nearest.row
