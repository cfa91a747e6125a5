"""Read a text with the automaton of `plays`, one character at a time."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.data.plays_automaton import Automaton, State


def next_probs(state: State[Any]) -> dict[str, float]:
    """The probability of each character that can come next."""
    node = state[0]
    return dict(zip(node.chars, node.probs, strict=True))


def step(automaton: Automaton[Any], state: State[Any], char: str) -> State[Any]:
    """The state after one more character."""
    node, tail, scene = state
    i = node.chars.index(char)
    node, ending = automaton._moves.get((node, i)) or automaton._move(node, i)
    return automaton._settle(node, ending + tail, scene)


def log_probs(automaton: Automaton[Any], text: str) -> NDArray[np.float64]:
    """The exact ln p of each character of a text; -inf from the first one that cannot occur."""
    result = np.full(len(text), -np.inf)
    state = automaton.start
    for t, char in enumerate(text):
        if char not in state[0].chars:
            break
        result[t] = state[0].logs[state[0].chars.index(char)]
        state = step(automaton, state, char)
    return result
