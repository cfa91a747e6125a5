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

TaskOfRun = tuple[str, ...]  # the overrides of a run but those of attention and of its rate


@dataclass(frozen=True)
class StandIn:
    """A row of a baseline, with what makes it similar to another run of the same task."""

    rate: float
    seed: int
    row: Row


def runs_ahead(
    protocol: Protocol, rows: Mapping[Run, Row], names: Sequence[str], *, quick: bool
) -> RunsAhead | None:
    """The runs that some variants still need, and their CPU minutes, if each comes out, and takes
    as long, as one of their baselines; None if a baseline has no runs of that kind."""
    filled = dict(rows)
    stand_ins = rows_of_baselines(protocol, rows)
    runs = 0
    seconds = 0.0
    while missing := missing_of_ranking(protocol, filled, names, quick=quick):
        for run in missing:
            similar = stand_ins.get(task_of_run(run))
            if not similar:
                return None
            row = most_similar(run, similar)
            filled[run] = row
            runs += 1
            seconds += row["cpu_seconds"] or 0
    return RunsAhead(runs, seconds / 60)


def rows_of_baselines(
    protocol: Protocol, rows: Mapping[Run, Row]
) -> dict[TaskOfRun, list[StandIn]]:
    """The rows of what variants are compared with, by task and number of steps."""
    baselines = {attention_of(protocol.overrides(protocol.partner(x))) for x in protocol.arms}
    found: dict[TaskOfRun, list[StandIn]] = {}
    for run, row in rows.items():
        if attention_of(run.overrides) in baselines:
            found.setdefault(task_of_run(run), []).append(StandIn(rate_of_run(run), run.seed, row))
    return found


def attention_of(overrides: Sequence[str]) -> tuple[str, ...]:
    """The overrides that choose the attention."""
    return tuple(filter(is_of_attention, overrides))


def task_of_run(run: Run) -> TaskOfRun:
    """What a run shares with those of other variants on its task, with as many steps."""
    return tuple(word for word in without_rate(run.overrides) if not is_of_attention(word))


def rate_of_run(run: Run) -> float:
    """The learning rate of a run."""
    return float(last_of(run.overrides)["optim.lr"].partition("=")[2])


def most_similar(run: Run, stand_ins: Sequence[StandIn]) -> Row:
    """The row with the nearest rate, and of those one with the same seed."""
    rate = rate_of_run(run)
    nearest = min(stand_ins, key=lambda x: (abs(math.log(x.rate / rate)), x.seed != run.seed))
    return nearest.row
