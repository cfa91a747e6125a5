"""The states in which a property is tried, one after another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from .outcomes import REFUSALS, CannotCheck, CheckFailed, Passed, in_one_line
from .states import EVALUATION, State
from .subject import Subject


@dataclass
class Visits:
    """A property, tried in one state after another, the plainest first.

    What the model refuses in the first state is raised; in a later one it is noted, and the next
    state is tried.
    """

    tried: Subject
    what: str = ""  # what is tried, before the name of a state in `not_tried`: "padding "
    held_in: list[str] = field(default_factory=list)  # the states in which the property held
    not_tried: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    crashed: dict[State, str] = field(default_factory=dict)  # by state, what the model raised

    def through(self, states: Sequence[State]) -> list[State]:
        """These states, and for a model of half precision also the first one in its own dtype; of
        a model without weights, evaluation mode alone, for nothing of it can be changed."""
        if not self.tried.weights:
            return [EVALUATION]
        if not self.tried.has_half_weights or self.tried.best_dtype is None:
            return [*states]
        return [*states, replace(states[0], in_own_dtype=True)]

    @contextmanager
    def visit(self, state: State) -> Iterator[Subject]:
        """The subject in a state, for a `with` block that tries the property there; `noting`
        records the result. Its `held_before` is whether the property held in an earlier state."""
        with self.noting(state), self.tried.in_state(state) as there:
            yield replace(there, held_before=bool(self.held_in))

    @contextmanager
    def noting(self, state: State) -> Iterator[None]:
        """Inside, the property is tried in a state, which is added to `held_in` if nothing is
        raised. CheckFailed is raised, and any error before the property has held in a state; of a
        later state, what the model raises is noted in `not_tried` and goes no further."""
        try:
            yield
        except REFUSALS as error:
            if isinstance(error, CheckFailed) or not self.held_in:
                raise
            why = f": {error}"
            if not isinstance(error, CannotCheck):
                self.crashed[state] = in_one_line(error)
                why = f", in which it raises {self.crashed[state]}"
            self.not_tried.append(f"{self.what}{state}{why}")
        else:
            self.held_in.append(str(state))

    def passed(self, said: str, crashed: str = "") -> Passed:
        """The result of a property that held in the states that were visited, for the report.

        `said` is what holds. `crashed` is told instead if the model raised an error in a state
        that it must support, such as training mode.
        """
        return Passed(
            said,
            remarks=tuple(self.remarks),
            states=tuple(self.held_in),
            not_tried=tuple(self.not_tried),
            crashed=crashed,
        )
