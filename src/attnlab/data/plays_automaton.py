"""A weighted grammar run as a deterministic automaton over characters, with exact probabilities.

A reader cannot see which frame a line was made from. A state is therefore the set of all readings
that the characters so far allow, with their posterior weights: determinization of a weighted
automaton (Mohri 1997, Computational Linguistics 23(2)), done on demand and cached. Weights are
integers, so that equal states compare equal whatever path led to them.
"""

from __future__ import annotations

import math
import random
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray


class Slot(NamedTuple):
    """A place in a frame, filled by one choice of the rule or ask with this name."""

    name: str


class Act(NamedTuple):
    """A place in a frame that writes nothing but changes the scene: a verb and its object."""

    verb: str
    object: str


S = TypeVar("S")
Part = str | Slot | Act
Parts = tuple[Part, ...]
Choices = tuple[tuple[int, Parts], ...]
Answers = tuple[tuple[str, Choices], ...]
Readings = dict[Parts, int]  # what may follow, with integer posterior weights


@dataclass(frozen=True)
class Grammar(Generic[S]):
    """Weighted rules, and a scene that they read and change.

    The text is one endless `Slot("play")`. Weights are positive integers. A rule begins with a
    literal or another rule, never with itself. An act must be certain once its place is reached:
    readings that differ in it raise ValueError when the text gets there.
    """

    rules: Mapping[str, Choices]  # the same in every scene
    scene: S  # the first one, hashable
    asks: Mapping[str, Callable[[S], Choices]] = field(default_factory=dict)
    acts: Mapping[str, Callable[[S, str], S]] = field(default_factory=dict)


def parse(frame: str) -> Parts:
    """Turn `text {slot} {!verb object}` into its parts: literals, slots, and acts."""
    parts: list[Part] = []
    for literal, tag in re.findall(r"([^{}]+)|\{([^{}]+)\}", frame):
        if literal:
            parts.append(literal)
        elif tag.startswith("!"):
            verb, _, target = tag[1:].partition(" ")
            parts.append(Act(verb, target))
        else:
            parts.append(Slot(tag))
    return tuple(parts)


class _Node:
    """Readings without their common end: it forks by character, or waits for more of the state."""

    __slots__ = ("asks", "chars", "cuts", "forks", "logs", "probs", "readings", "waits")

    def __init__(self, readings: Readings) -> None:
        self.readings = readings
        self.asks = _front_slots(readings)
        acts = any(isinstance(part, Act) for part, *_ in filter(None, readings))
        self.waits = "tail" if () in readings else "scene" if self.asks else "act" if acts else ""
        forks: dict[str, Readings] = {}
        for parts, weight in () if self.waits else readings.items():
            head, tail = str(parts[0]), parts[1:]
            rest = (head[1:], *tail) if len(head) > 1 else tail
            fork = forks.setdefault(head[0], {})
            fork[rest] = fork.get(rest, 0) + weight
        self.chars = "".join(sorted(forks))
        self.forks = [forks[char] for char in self.chars]
        weights = [sum(fork.values()) for fork in self.forks]
        total = sum(weights)
        # Integer division rounds correctly, so these are the same floats on every platform.
        self.probs = [weight / total for weight in weights]
        self.cuts = [sum(weights[:i]) / total for i in range(1, len(weights))]
        self.logs = [math.log(prob) for prob in self.probs]


Move = tuple[_Node, Parts]  # where to, and what to put before the tail
State = tuple[_Node, Parts, S]  # node, tail and scene; equal states have the same future


class Automaton(Generic[S]):
    """The distribution of a grammar's text, one character at a time.

    States are cached as they are reached, so the second text is faster than the first. States of
    different automata are not comparable.
    """

    def __init__(self, grammar: Grammar[S]) -> None:
        self._grammar = grammar
        self._nodes: dict[frozenset[tuple[Parts, int]], _Node] = {}
        self._moves: dict[tuple[_Node, Any], Move] = {}
        node, tail = self._enter({(Slot("play"),): 1}, grammar.rules)
        self.start: State[S] = self._settle(node, tail, grammar.scene)

    def generate(self, seed: int, length: int) -> tuple[str, NDArray[np.float64]]:
        """Draw a text, and the exact ln p of each character given all before it, (length,) nats.

        The text begins at the start state, is the same on every platform (only
        `random.Random(seed).random()` is used), and is a prefix of every longer text of that seed.
        Raises ValueError if the seed or the length is negative.
        """
        if seed < 0 or length < 0:
            raise ValueError(f"seed {seed} and length {length} must not be negative")
        node, tail, scene = self.start
        draw = random.Random(seed).random
        chars: list[str] = []
        logs: list[float] = []
        for _ in range(length):
            i = bisect_right(node.cuts, draw()) if node.cuts else 0
            chars.append(node.chars[i])
            logs.append(node.logs[i])
            node, ending = self._moves.get((node, i)) or self._move(node, i)
            if ending:
                tail = ending + tail
            if node.waits:
                node, tail, scene = self._settle(node, tail, scene)
        return "".join(chars), np.array(logs, dtype=np.float64)

    def _enter(self, readings: Readings, rules: Mapping[str, Choices]) -> Move:
        """The node of readings with the slots at their front filled, and their common end."""
        # Without the common end, a word is spelled by the same nodes in every frame.
        core, ending = _without_common_end(_fill(readings, rules))
        key = frozenset(core.items())
        if key not in self._nodes:
            self._nodes[key] = _Node(core)
        return self._nodes[key], ending

    def _settle(self, node: _Node, tail: Parts, scene: S) -> State[S]:
        """Take from the tail and the scene what is needed for the next character."""
        while node.waits:
            given: Part | Answers | None = None
            if node.waits == "tail":
                given, tail = tail[0], tail[1:]
            elif node.waits == "scene":
                given = tuple((name, self._grammar.asks[name](scene)) for name in node.asks)
            else:
                act, *others = {parts[0] for parts in node.readings}
                if others or not isinstance(act, Act):
                    raise ValueError(
                        f"the text leaves open what happens in the scene: {[act, *others]}"
                    )
                scene = self._grammar.acts[act.verb](scene, act.object)
            node, ending = self._moves.get((node, given)) or self._move(node, given)
            tail = ending + tail
        return node, tail, scene

    def _move(self, node: _Node, given: Any) -> Move:
        readings, rules = node.readings, self._grammar.rules
        if node.waits == "tail":
            readings = {(*parts, given): weight for parts, weight in readings.items()}
        elif node.waits == "scene":
            rules = {**rules, **dict(given)}
        elif node.waits == "act":
            readings = {parts[1:]: weight for parts, weight in readings.items()}
        else:
            readings = node.forks[given]
        return self._moves.setdefault((node, given), self._enter(readings, rules))


def _without_common_end(readings: Readings) -> tuple[Readings, Parts]:
    """Cut off the parts in which all readings end, leaving at least one part of each."""
    first = next(iter(readings))
    most = max(0, min(map(len, readings)) - 1)
    size = 0
    while size < most and len({parts[-1 - size] for parts in readings}) == 1:
        size += 1
    cut = len(first) - size
    return {parts[: len(parts) - size]: w for parts, w in readings.items()}, first[cut:]


def _fill(readings: Readings, rules: Mapping[str, Choices]) -> Readings:
    """Replace rules at the front of readings by their choices; weights in lowest terms."""
    # Where a rule stands, its choices share the weight; all other weights are multiplied by the
    # sum of the shares, so that all stay in proportion.
    while open_rules := [name for name in _front_slots(readings) if name in rules]:
        front, choices = Slot(open_rules[0]), rules[open_rules[0]]
        total = sum(share for share, _ in choices)
        filled: Readings = {}
        for parts, weight in readings.items():
            if parts and parts[0] == front:
                for share, choice in choices:
                    new = choice + parts[1:]
                    filled[new] = filled.get(new, 0) + weight * share
            else:
                filled[parts] = filled.get(parts, 0) + weight * total
        readings = filled
    divisor = math.gcd(*readings.values())
    return {parts: weight // divisor for parts, weight in readings.items()}


def _front_slots(readings: Readings) -> list[str]:
    return sorted({p[0].name for p in readings if p and isinstance(p[0], Slot)})
