"""The grammar of Tavi: word order, agreement, irregular words, and alignments."""

from random import Random

import pytest
import tavi as grammar
from tavi import Pair, sentence


def sentences(count: int = 2000) -> list[Pair]:
    chance = Random(7)
    return [sentence(chance) for _ in range(count)]


PAIRS = sentences()
NOUNS = {
    form: (stem, vowel, number)
    for vowel, entries in grammar.NOUNS.items()
    for singular, plural, stem in (entry.split() for entry in entries.split(","))
    for form, number in ((singular, ""), (plural, "n"))
}
ADJECTIVES = dict(entry.split() for entry in grammar.ADJECTIVES.split(","))
VERBS = {
    form: stem
    for entry in (grammar.TRANSITIVE + "," + grammar.INTRANSITIVE).split(",")
    for *forms, stem in (entry.split(),)
    for form in forms
}


def test_the_same_seed_gives_the_same_sentences() -> None:
    assert sentences(50) == sentences(50)


@pytest.mark.parametrize("frame", grammar.FRAMES.split())
def test_every_frame_occurs(frame: str) -> None:
    marks = {
        "timed": {"often", "today", "yesterday", "once"},
        "placed": {"in", "near", "behind"},
        "negated": {"not"},
        "asked": {"does", "do", "did"},
        "plain": {"the", "a"},
    }
    assert any(marks[frame] & set(pair.source) for pair in PAIRS)


def test_each_source_word_except_articles_is_translated_once() -> None:
    silent = {"a", "an", "do", "does", "did"}
    for pair in PAIRS:
        assert len(pair.alignment) == len(pair.content) == len(pair.target)
        assert len(set(pair.alignment)) == len(pair.alignment)
        left_out = {pair.source[i] for i in range(len(pair.source)) if i not in pair.alignment}
        assert left_out <= silent


def test_the_verb_is_last_except_for_the_question_particle() -> None:
    for pair in PAIRS:
        (place,) = [t for t, of in enumerate(pair.alignment) if pair.source[of] in VERBS]
        assert place == len(pair.target) - (2 if pair.target[-1] == "ka" else 1)


def test_adjectives_follow_their_noun_and_agree_with_it() -> None:
    seen = set()
    for pair in PAIRS:
        renders = dict(zip(pair.alignment, pair.target, strict=True))
        places = {of: t for t, of in enumerate(pair.alignment)}
        for i, word in enumerate(pair.source):
            if word in ADJECTIVES:
                _, vowel, number = NOUNS[pair.source[i + 1]]
                assert renders[i] == ADJECTIVES[word] + vowel + number
                assert places[i] == places[i + 1] + 1
                seen.add(vowel + number)
    assert seen == {"a", "o", "an", "on"}


def test_verbs_agree_with_their_subject_and_some_pasts_are_irregular() -> None:
    seen = set()
    for pair in PAIRS:
        (i,) = [i for i, word in enumerate(pair.source) if word in VERBS]
        subject = next(word for word in pair.source if word in NOUNS)
        verb = pair.target[pair.alignment.index(i)]
        assert verb.endswith("em" if NOUNS[subject][2] else "e")
        stem = VERBS[pair.source[i]]
        irregular = grammar.IRREGULAR_PASTS.get(stem, "-")
        assert verb.startswith((stem, irregular))
        seen |= {irregular} if verb.startswith(irregular) else set()
    assert seen == set(grammar.IRREGULAR_PASTS.values())


def test_irregular_plurals_occur() -> None:
    words = {word for pair in PAIRS for word in pair.target}
    assert set(grammar.IRREGULAR_NOUNS.values()) <= words


def test_the_word_order_really_changes() -> None:
    """Keeping the word order of the source would be correct for few content words."""
    same = total = 0
    for pair in PAIRS:
        for t, (of, counts) in enumerate(zip(pair.alignment, pair.content, strict=True)):
            same += counts and of == t
            total += counts
    assert same / total < 0.15
