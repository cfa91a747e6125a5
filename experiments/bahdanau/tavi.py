"""English sentences and their translations into Tavi, an invented language, aligned by words.

In Tavi, the verb is last; adjectives, numerals, and articles follow their noun; and postpositions
follow their phrase. Adjectives agree with the class of their noun, which is one of two. Verbs
agree with the number of their subject. Some nouns and verbs are irregular. There is no indefinite
article.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, TypeVar

T = TypeVar("T")

# Singular, plural, stem; a class of nouns is the vowel that it ends in.
NOUNS = {
    "a": "dog dogs kel, cat cats mish, woman women dor, king kings rav, boat boats nesh",
    "o": """man men hul, horse horses garn, child children vosh, garden gardens fen,
            apple apples zub""",
}
IRREGULAR_NOUNS = {"children": "tuvari", "men": "osk", "boats": "enna"}
ADJECTIVES = "old drem, young tish, red kos, big mab, small pin, good hal"
# Base, third person, past, stem.
TRANSITIVE = """see sees saw vid, find finds found gor, like likes liked lum,
    follow follows followed tarn, bring brings brought nok, want wants wanted bas"""
INTRANSITIVE = "sleep sleeps slept dum, sing sings sang fiv"
IRREGULAR_PASTS = {"vid": "tork", "dum": "eshi", "nok": "alven"}
PLACES = "in om, near et, behind ull"
NUMERALS = "two bi, three kra, four sen"
TIMES = {"present": "often yil, today zan", "past": "yesterday ork, once peth"}
# What a sentence has besides subject, verb and, mostly, an object.
FRAMES = "plain timed placed negated asked"
CONTENT = frozenset({"noun", "adjective", "verb", "numeral", "time"})


class Word(NamedTuple):
    """A word with the source word that it translates.

    Args:
        text: the word.
        kind: noun, adjective, verb, ...
        of: position of its source word, or -1 if there is none.
    """

    text: str
    kind: str
    of: int


@dataclass(frozen=True)
class Pair:
    """A sentence and its translation.

    Args:
        source: its words.
        target: the words of the translation.
        alignment: for each target word, the position of the source word that it translates, or -1;
            empty if unknown.
        content: for each target word, whether it is a content word; empty if unknown.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    alignment: tuple[int, ...] = ()
    content: tuple[bool, ...] = ()


class Phrase(NamedTuple):
    """A phrase in Tavi, and the number of its noun."""

    words: list[Word]
    plural: bool


def sentence(chance: Random) -> Pair:
    """One random English sentence with its translation.

    Args:
        chance: source of random numbers; only `random()` is used, whose stream is stable across
            versions of Python.
    """
    return _Writer(chance).sentence()


class _Writer:
    """Writes the English words one by one, and returns Tavi phrases with their alignments."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.english: list[str] = []

    def sentence(self) -> Pair:
        frame = _pick(self.chance, FRAMES.split())
        past = self._happens(0.5)
        time, particle = [], []
        if frame == "timed":
            time = [self._entry(TIMES["past" if past else "present"], "time")]
        if frame == "asked":
            particle = [self._say("did" if past else "do", "ka", "particle")]
        subject = self._noun_phrase()
        if particle and not past and not subject.plural:
            self.english[particle[0].of] = "does"
        *before, verb = self._predicate(subject, past, frame)
        words = [*subject.words, *before, *time, verb, *particle]
        return Pair(
            tuple(self.english),
            tuple(word.text for word in words),
            tuple(word.of for word in words),
            tuple(word.kind in CONTENT for word in words),
        )

    def _predicate(self, subject: Phrase, past: bool, frame: str) -> list[Word]:
        """The rest of the clause; its verb is the last word."""
        particle = []
        if frame == "negated":
            self.english.append("did" if past else "do" if subject.plural else "does")
            particle = [self._say("not", "na", "particle")]
        intransitive = self._happens(0.25)
        base, third, english_past, stem = self._one_of(
            INTRANSITIVE if intransitive else TRANSITIVE
        )
        bare = frame in ("negated", "asked") or (subject.plural and not past)
        english = base if bare else english_past if past else third
        verb = self._say(english, _conjugated(stem, past, subject.plural), "verb")
        thing = [] if intransitive else self._noun_phrase().words
        place = self._place() if frame == "placed" else []
        return [*place, *thing, *particle, verb]

    def _noun_phrase(self) -> Phrase:
        plural = self._happens(0.35)
        counted = plural and self._happens(0.4)
        definite = not counted and (plural or self._happens(0.6))
        described = self._happens(0.4)
        vowel = "a" if self._happens(0.5) else "o"
        ending = vowel + ("n" if plural else "")
        adjective = self._one_of(ADJECTIVES) if described else []
        singular, plurals, stem = self._one_of(NOUNS[vowel])
        tavi = IRREGULAR_NOUNS.get(plurals, stem + ending) if plural else stem + ending
        # From here on the English words stand in their order.
        before: list[Word] = []
        after: list[Word] = []
        if counted:
            before = [self._entry(NUMERALS, "numeral")]
        elif definite:
            before = [self._say("the", "li", "article")]
        else:
            follows = adjective[0] if described else singular
            self.english.append("an" if follows[0] in "aeiou" else "a")
        if described:
            after = [self._say(adjective[0], adjective[1] + ending, "adjective")]
        noun = self._say(plurals if plural else singular, tavi, "noun")
        return Phrase([noun, *after, *before], plural)

    def _place(self) -> list[Word]:
        postposition = self._entry(PLACES, "postposition")
        return [*self._noun_phrase().words, postposition]

    def _entry(self, table: str, kind: str) -> Word:
        english, tavi = self._one_of(table)
        return self._say(english, tavi, kind)

    def _say(self, english: str, tavi: str, kind: str) -> Word:
        self.english.append(english)
        return Word(tavi, kind, len(self.english) - 1)

    def _one_of(self, table: str) -> list[str]:
        return _pick(self.chance, table.split(",")).split()

    def _happens(self, p: float) -> bool:
        return self.chance.random() < p


def _conjugated(stem: str, past: bool, plural: bool) -> str:
    root = IRREGULAR_PASTS.get(stem, stem + "iv") if past else stem
    return root + ("em" if plural else "e")


def _pick(chance: Random, items: Sequence[T]) -> T:
    return items[int(chance.random() * len(items))]
