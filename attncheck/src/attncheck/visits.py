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
    what: str = ""  # is not tried in a state that the model refuses
    states: list[str] = field(default_factory=list)  # in which the property held
    not_tried: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    crashed: dict[State, str] = field(default_factory=dict)  # by state, what the model raised

    def through(self, states: Sequence[State]) -> list[State]:
        """The states of a model with weights, and for one of half precision also that; without
        weights there is evaluation mode alone."""
        if not self.tried.weights:
            return [EVALUATION]
        if not self.tried.half or self.tried.best is None:
            return [*states]
        return [*states, replace(states[0], own_dtype=True)]

    @contextmanager
    def visit(self, state: State) -> Iterator[Subject]:
        """The subject in a state, which is noted as tried if nothing is raised inside."""
        with self.noting(state), self.tried.put(state) as there:
            yield replace(there, held=bool(self.states))

    @contextmanager
    def noting(self, state: State) -> Iterator[None]:
        """The same for code that puts the subject into the state itself."""
        try:
            yield
        except REFUSALS as error:
            if isinstance(error, CheckFailed) or not self.states:
                raise
            why = f": {error}"
            if not isinstance(error, CannotCheck):
                self.crashed[state] = in_one_line(error)
                why = f", in which it raises {self.crashed[state]}"
            self.not_tried.append(f"{self.what}{state}{why}")
        else:
            self.states.append(str(state))

    def passed(self, said: str, crashed: str = "") -> Passed:
        """What was tried, of a property that holds."""
        remarks = tuple(self.remarks)
        return Passed(said, remarks, tuple(self.states), tuple(self.not_tried), crashed)
