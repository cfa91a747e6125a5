"""Translate with additive, dot and scaled dot attention: one encoder-decoder, three scores.

    python experiments/bahdanau/train.py --seeds 3 --out outputs/bahdanau

A bidirectional GRU encodes English, and another GRU writes Tavi, an invented language, attending
to the source before each word with its state as the query (Bahdanau et al. 2015). Nothing but the
score differs: all three have the same matrices, initial weights and batches.

Letters: B batch, S source words, T target words, E embedding, H hidden, D width of queries and
keys, V words.
"""

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

# ---- English and Tavi. In Tavi, the verb is last; adjectives, numerals and articles follow their
# noun, and postpositions their phrase. Adjectives agree with the class of their noun, which is its
# vowel, and verbs with the number of their subject. Some nouns and verbs are irregular.

NOUNS = {  # by class: singular, plural, stem
    "a": "dog dogs kel, cat cats mish, woman women dor, king kings rav, boat boats nesh",
    "o": "man men hul, horse horses garn, child children vosh, garden gardens fen, "
    "apple apples zub",
}
ADJECTIVES = "old drem, young tish, red kos, big mab, small pin, good hal"
TRANSITIVE = (  # base, third person, past, stem
    "see sees saw vid, find finds found gor, like likes liked lum, follow follows followed tarn, "
    "bring brings brought nok, want wants wanted bas"
)
INTRANSITIVE = "sleep sleeps slept dum, sing sings sang fiv"
IRREGULAR = {"children": "tuvari", "men": "osk", "boats": "enna"}
IRREGULAR_PASTS = {"vid": "tork", "dum": "eshi", "nok": "alven"}
PLACES = "in om, near et, behind ull"
NUMERALS = "two bi, three kra, four sen"
TIMES = {False: "often yil, today zan", True: "yesterday ork, once peth"}


class Pair(NamedTuple):
    """A sentence, its translation, and for each word of this the word that it translates."""

    source: list[str]
    target: list[str]
    of: list[int]


class Writer:
    """Writes one English sentence, and translates it."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.english = list[str]()

    def pair(self) -> Pair:
        """A sentence with its translation."""
        frame = self.pick("plain, timed, placed, negated, asked")[0]
        past = self.happens(0.5)
        asked = []
        negated = []
        time = [self.say(*self.pick(TIMES[past]))] if frame == "timed" else []
        if frame == "asked":
            asked = [self.say("did" if past else "do", "ka")]
        subject, plural = self.phrase()
        if asked and not past and not plural:
            self.english[asked[0][1]] = "does"
        if frame == "negated":
            present = "do" if plural else "does"
            self.english.append("did" if past else present)
            negated = [self.say("not", "na")]
        alone = self.happens(0.25)
        base, third, was, stem = self.pick(INTRANSITIVE if alone else TRANSITIVE)
        bare = frame in ("negated", "asked") or (plural and not past)
        root = IRREGULAR_PASTS.get(stem, stem + "iv") if past else stem
        if bare:
            said = base
        elif past:
            said = was
        else:
            said = third
        verb = self.say(said, root + ("em" if plural else "e"))
        thing = [] if alone else self.phrase()[0]
        place = []
        if frame == "placed":
            postposition = self.say(*self.pick(PLACES))
            place = [*self.phrase()[0], postposition]
        words = [*subject, *place, *thing, *negated, *time, verb, *asked]
        return Pair(self.english, [word for word, _ in words], [of for _, of in words])

    def phrase(self) -> tuple[list[tuple[str, int]], bool]:
        """A noun with what belongs to it, in Tavi, and whether it is plural."""
        plural = self.happens(0.35)
        counted = plural and self.happens(0.4)
        definite = not counted and (plural or self.happens(0.6))
        vowel = "a" if self.happens(0.5) else "o"
        ending = f"{vowel}n" if plural else vowel
        adjective = self.pick(ADJECTIVES) if self.happens(0.4) else []
        singular, plurals, stem = self.pick(NOUNS[vowel])
        after = []
        if counted:
            after = [self.say(*self.pick(NUMERALS))]
        elif definite:
            after = [self.say("the", "li")]
        else:
            first = (adjective or [singular])[0][0]
            self.english.append("an" if first in "aeiou" else "a")
        if adjective:
            after = [self.say(adjective[0], adjective[1] + ending), *after]
        tavi = IRREGULAR.get(plurals, stem + ending) if plural else stem + ending
        return [self.say(plurals if plural else singular, tavi), *after], plural

    def say(self, english: str, tavi: str) -> tuple[str, int]:
        """Append an English word; its translation, and its position."""
        self.english.append(english)
        return tavi, len(self.english) - 1

    def pick(self, table: str) -> list[str]:
        """An entry of a table."""
        entries = table.split(", ")
        return entries[int(self.chance.random() * len(entries))].split()

    def happens(self, p: float) -> bool:
        """A random event."""
        return self.chance.random() < p


def make_pairs(count: int, seed: int = 0) -> list[Pair]:
    """Pairs of different sentences."""
    chance = Random(seed)
    found = dict[tuple[str, ...], Pair]()
    while len(found) < count:
        pair = Writer(chance).pair()
        found.setdefault(tuple(pair.source), pair)
    return list(found.values())


# ---- the model

PAD, START, END = range(3)
Score = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (B, D), k (B, S, D), v (D,) -> (B, S)


def additive(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """v . tanh(q + k) (Bahdanau et al. 2015)."""
    return torch.tanh(q[:, None] + k) @ v


def dot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q . k (Luong et al. 2015)."""
    return (k @ q[..., None])[..., 0]


def scaled_dot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """q . k / sqrt(D) (Vaswani et al. 2017)."""
    return dot(q, k, v) / math.sqrt(q.shape[-1])


SCORES: dict[str, Score] = {"additive": additive, "dot": dot, "scaled dot": scaled_dot}


class Translator(nn.Module):
    """A recurrent encoder-decoder with attention; PyTorch's own initial weights."""

    def __init__(self, score: Score, V: int, *, E: int = 64, H: int = 64, D: int = 64) -> None:
        super().__init__()
        self.score = score
        self.source, self.target = nn.Embedding(V, E), nn.Embedding(V, E)
        self.encoder = nn.GRU(E, H, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(H, H)
        self.query, self.key = nn.Linear(H, D, bias=False), nn.Linear(2 * H, D, bias=False)
        self.v = nn.Parameter(torch.full((D,), D**-0.5))  # only the additive score reads it
        self.decoder = nn.GRUCell(E + 2 * H, H)
        self.read = nn.Linear(E + 3 * H, E)
        self.head = nn.Linear(E, V)

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """(B, S) -> the states (B, S, 2 H), and the first state of the decoder (B, H)."""
        lengths = (source != PAD).sum(1)  # packed: the backward direction begins at the last word
        packed = pack_padded_sequence(self.source(source), lengths, True, enforce_sorted=False)
        states, last = self.encoder(packed)
        return pad_packed_sequence(states, True)[0], torch.tanh(self.bridge(last[1]))

    def step(
        self, word: Tensor, state: Tensor, states: Tensor, keys: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One word (B,): logits (B, V), the new state (B, H), and the weights (B, S)."""
        scores = self.score(self.query(state), keys, self.v)
        pattern = scores.masked_fill(~mask, -math.inf).softmax(-1)
        context = (pattern[:, None] @ states)[:, 0]
        embedded = self.target(word)
        state = self.decoder(torch.cat((embedded, context), -1), state)
        seen = torch.tanh(self.read(torch.cat((embedded, context, state), -1)))
        return self.head(seen), state, pattern

    def forward(
        self, source: Tensor, given: Tensor | None = None, longest: int = 40
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, T, V) and weights (B, T, S), with the words (B, T) given to the decoder, or
        with its own most likely ones."""
        states, state = self.encode(source)
        keys = self.key(states)
        mask = source != PAD
        word = torch.full_like(source[:, 0], START)
        found = []
        for t in range(longest if given is None else given.shape[1]):
            word = word if given is None else given[:, t]
            logits, state, pattern = self.step(word, state, states, keys, mask)
            found.append((logits, pattern))
            word = logits.argmax(-1)
        logits, patterns = zip(*found, strict=True)
        return torch.stack(logits, 1), torch.stack(patterns, 1)


# ---- training and measuring


class Words:
    """The words of both languages, and sentences as ids."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        known = sorted({word for pair in pairs for word in (*pair.source, *pair.target)})
        self.words = ["<pad>", "<start>", "<end>", *known]
        self.ids = {word: i for i, word in enumerate(self.words)}

    def batch(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """Sources (B, S) and translations (B, T), each with its end, padded."""

        def padded(sentences: list[list[str]]) -> Tensor:
            rows = [torch.tensor([*map(self.ids.__getitem__, s), END]) for s in sentences]
            return pad_sequence(rows, batch_first=True, padding_value=PAD)

        return padded([pair.source for pair in pairs]), padded([pair.target for pair in pairs])

    def decode(self, ids: list[int]) -> list[str]:
        """Words up to the end."""
        return [self.words[i] for i in ids[: ids.index(END) if END in ids else None]]


def train(
    score: Score, words: Words, pairs: list[Pair], seed: int, epochs: int, batch: int = 64
) -> tuple[Translator, float]:
    """A trained model, and its seconds an epoch. Adam, at a rate that decays from 0.007 to 0."""
    torch.manual_seed(seed)
    net = Translator(score, len(words.words))
    optimizer = torch.optim.Adam(net.parameters(), lr=7e-3)
    steps = epochs * (len(pairs) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    began = time.process_time()
    for _ in range(epochs):
        order = torch.randperm(len(pairs)).tolist()
        for start in range(0, len(pairs) - batch + 1, batch):
            source, target = words.batch([pairs[i] for i in order[start : start + batch]])
            given = F.pad(target, (1, 0), value=START)[:, :-1]
            logits, _ = net(source, given)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    return net.eval(), (time.process_time() - began) / epochs


def bleu(said: Sequence[list[str]], meant: Sequence[list[str]]) -> float:
    """Corpus BLEU, 0 to 100 (Papineni et al. 2002): the geometric mean of the precisions of 1 to 4
    words, times exp(1 - meant / said) if what was said is shorter."""
    logs = 0.0
    for n in range(1, 5):
        right = total = 0
        for a, b in zip(said, meant, strict=True):
            counts, others = (
                Counter(zip(*(x[i:] for i in range(n)), strict=False)) for x in (a, b)
            )
            right = right + (counts & others).total()
            total = total + counts.total()
        if not right:
            return 0.0
        logs += math.log(right / total) / 4
    short = 1 - sum(map(len, meant)) / max(1, sum(map(len, said)))
    return 100 * math.exp(logs + min(0.0, short))


@torch.no_grad()
def quality(net: Translator, words: Words, pairs: list[Pair]) -> tuple[float, float]:
    """BLEU, and the share of words whose largest weight is on the word that they translate."""
    source, target = words.batch(pairs)
    said = [words.decode(ids) for ids in net(source)[0].argmax(-1).tolist()]
    looked = net(source, F.pad(target, (1, 0), value=START)[:, :-1])[1].argmax(-1).tolist()
    hits = [at == of for row, pair in zip(looked, pairs, strict=True)
            for at, of in zip(row, pair.of, strict=False)]  # fmt: skip
    return bleu(said, [pair.target for pair in pairs]), sum(hits) / len(hits)


@torch.no_grad()
def draw(nets: dict[str, Translator], words: Words, pairs: list[Pair]) -> Figure:
    """Heatmaps of the weights: a row of panels a sentence, a column a score."""
    figure = Figure(figsize=(4 * len(nets), 4 * len(pairs)), layout="constrained")
    panels = figure.subplots(len(pairs), len(nets), squeeze=False)
    for row, pair in zip(panels, pairs, strict=True):
        source, target = words.batch([pair])
        for axes, (name, net) in zip(row, nets.items(), strict=True):
            pattern = net(source, F.pad(target, (1, 0), value=START)[:, :-1])[1][0]
            axes.imshow(pattern.numpy(), cmap="Greys", vmin=0, vmax=1)
            axes.set_xticks(range(source.shape[1]), [*pair.source, "<end>"], rotation=90)
            axes.set_yticks(range(target.shape[1]), [*pair.target, "<end>"])
            axes.set(title=name, xlabel="source", ylabel="translation")
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Train each score with each seed; print BLEU by seed, and draw alignments."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default, says in (
        ("seeds", 3, "of weights and batches: 0 to N - 1"),
        ("epochs", 6, "passes over the training pairs"),
        ("pairs", 4000, "for training; a tenth of it validates"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=says)
    parser.add_argument("--out", type=Path, help="a directory for the heatmaps, alignments.svg")
    given = parser.parse_args(arguments)
    pairs = make_pairs(given.pairs + given.pairs // 10)
    words = Words(pairs)
    known = pairs[: given.pairs]
    new = pairs[given.pairs :]
    print("score         seed   BLEU   aligned   CPU seconds an epoch")
    nets: dict[str, Translator] = {}
    for seed in range(given.seeds):
        for name, score in SCORES.items():
            nets[name], seconds = train(score, words, known, seed, given.epochs)
            found, aligned = quality(nets[name], words, new)
            print(f"{name:12}  {seed:4}  {found:5.1f}  {aligned:8.1%}  {seconds:8.1f}", flush=True)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        draw(nets, words, new[:2]).savefig(given.out / "alignments.svg")


if __name__ == "__main__":
    main()
