"""The corpus `plays`: little plays drawn from a grammar, whose exact entropy is known.

It rewards attention: who may speak, whom a line addresses, who leaves and with what, and which
question is being answered were all said many characters before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from attnlab.data.corpora import Corpus, split_at
from attnlab.data.plays_automaton import Act, Automaton, Choices, Grammar, Part, Slot, parse
from attnlab.errors import BadInput


@cache
def vocabulary() -> dict[str, Any]:
    """The content of plays.yaml: word lists, phrases, frames, and the order of lines."""
    content: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("plays.yaml").read_text())
    return content


@cache
def women() -> frozenset[str]:
    """The women's names."""
    return frozenset(vocabulary()["women"].split())


@cache
def names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(sorted(women().union(vocabulary()["men"].split())))


def plays(length: int = 600_000, seed: int = 0) -> Corpus:
    """Little plays drawn from a grammar; their exact entropy is the floor of the loss.

    The length is in characters. The seed is that of the text, not of the run, so that all runs
    read the same plays. Raises BadInput if a number is out of range.
    """
    for name, value, least in (("length", length, 1), ("seed", seed, 0)):
        if not least <= value < 2**63:
            raise BadInput(f"data.{name} = {value} must be at least {least} and below 2^63")
    text, log_p = _shared().generate(seed, length)
    floor = float(-log_p[split_at(length) + 1 :].mean())
    return Corpus.from_pieces("plays", [text], val_floor=floor)


class Scene(NamedTuple):
    """What a line of a play depends on from the lines before it."""

    cast: tuple[str, ...] = ()  # in the order of their entrances
    speaker: str = ""
    addressed: str = ""  # named by the speaker, so probably the next to speak
    asked: str = ""  # the noun of the question just put
    topic: str = ""  # the noun of the question that the speaker now answers
    mover: str = ""  # whom the stage direction is about
    place: str = ""
    prop: str = ""
    holder: str = ""  # who has the prop

    def others(self, but: str) -> tuple[str, ...]:
        """All who are present except one."""
        return tuple(name for name in self.cast if name != but)


class Plays(Automaton[Scene]):
    """The distribution of the plays, exact at every character."""

    alphabet: str  # all characters that can occur, sorted (ASCII)

    def __init__(self) -> None:
        rules = _rules()
        super().__init__(Grammar(rules, Scene(), ASKS, ACTS))
        literals = (part for choices in rules.values() for _, parts in choices for part in parts)
        letters = "".join(part for part in literals if isinstance(part, str))
        self.alphabet = "".join(sorted({*letters, *"".join(names())}))


_shared = cache(Plays)  # the second text is faster than the first


def _rules() -> dict[str, Choices]:
    given = vocabulary()
    rules = {name: _evenly(text.split()) for name, text in given["words"].items()}
    for name, text in given["phrases"].items():
        rules[name] = _evenly(phrase.strip() for phrase in text.split("/"))
    for name, text in given["frames"].items():
        lines = (line.partition(" ") for line in text.splitlines())
        rules[name] = tuple((int(weight), parse(frame)) for weight, _, frame in lines)
    for name, frames in given["flow"].items():
        rules[name] = tuple((weight, parse(frame)) for weight, frame in frames)
    nouns, adjectives = given["words"]["noun"].split(), given["words"]["adj"].split()
    places, props = given["places"].split(), given["props"].split()
    rules["Adj"] = _evenly(word.capitalize() for word in adjectives)
    rules["asked"] = _evenly(f"{noun}?{{!ask {noun}}}" for noun in nouns)
    rules["setting"] = _evenly(f"{_a(place)},{{!place {place}}}" for place in places)
    rules["burden"] = _evenly(f"{_a(prop)},{{!prop {prop}}}" for prop in props)
    return rules


def _evenly(texts: Iterable[str]) -> Choices:
    return tuple((1, parse(text)) for text in texts)


def _a(noun: str) -> str:
    return ("an " if noun[0] in "aeiou" else "a ") + noun


@cache
def _one(part: Part) -> Choices:
    return ((1, (part,)),)


@cache
def _people(names: tuple[str, ...], verb: str) -> Choices:
    return tuple((1, (name, Act(verb, name))) for name in names)


@cache
def _headers(names: tuple[str, ...], addressed: str) -> Choices:
    return tuple(
        (8 if name == addressed else 1, (name + ":\n", Act("speak", name), Slot("opening")))
        for name in names
    )


# Choices are cached, since a play asks for them at every line.
ASKS: dict[str, Callable[[Scene], Choices]] = {
    "line": lambda s: _one(Slot("of holder" if s.speaker == s.holder else "of others")),
    "opening": lambda s: _one(Slot("answering" if s.topic else "line")),
    "header": lambda s: _headers(s.others(s.speaker), s.addressed),
    "after": lambda s: _one(Slot("after two" if len(s.cast) == 2 else "after three")),
    "enter": lambda s: _people(tuple(name for name in names() if name not in s.cast), "enter"),
    "leaver": lambda s: _people(s.others(s.holder), "leave"),
    "everyone": lambda s: _one(", ".join(s.cast[:-1]) + " and " + s.cast[-1]),
    "other": lambda s: _people(s.others(s.speaker), "address"),
    "speaker": lambda s: _one(s.speaker),
    "holder": lambda s: _people((s.holder,), "address"),
    "mover": lambda s: _people(s.cast, "move"),
    "moving": lambda s: _one(Slot("giving" if s.mover == s.holder else "deed")),
    "another": lambda s: tuple((1, (name,)) for name in s.others(s.mover)),
    "taker": lambda s: _people(s.others(s.holder), "give"),
    "his": lambda s: _one("her" if s.mover in women() else "his"),
    "place": lambda s: _one(s.place),
    "prop": lambda s: _one(s.prop),
    "topic": lambda s: _one(s.topic),
}

ACTS: dict[str, Callable[[Scene, str], Scene]] = {
    "enter": lambda s, name: s._replace(cast=(*s.cast, name)),
    "leave": lambda s, name: s._replace(cast=s.others(name), addressed=""),
    "speak": lambda s, name: s._replace(
        speaker=name, addressed="", asked="", topic=s.asked, mover=""
    ),
    "address": lambda s, name: s._replace(addressed=name),
    "ask": lambda s, noun: s._replace(asked=noun),
    "move": lambda s, name: s._replace(mover=name),
    "give": lambda s, name: s._replace(holder=name),
    "place": lambda s, place: s._replace(place=place),
    "prop": lambda s, prop: s._replace(prop=prop, holder=s.cast[0]),
    "end": lambda s, _: Scene(),
}
