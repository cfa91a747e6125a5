"""Tasks with known answers, against a reader that finds the answers by search."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnlab.data import sequences
from attnlab.data.contract import IGNORED
from attnlab.errors import BadInput

Reader = Callable[[list[int], int], Any]  # symbols so far, length -> the answer, None where open


def recall(x: list[int], T: int, *, pairs: int = 4, symbols: int = 9, noise: int = 0) -> Any:
    """The value after the last symbol's first occurrence, once all pairs were shown."""
    told = 2 * pairs + noise
    return [*x, None][x.index(x[-1]) + 1] if len(x) > told else None


def induction(x: list[int], T: int) -> Any:
    """What followed the last occurrence of the current symbol."""
    earlier = [i for i in range(len(x) - 1) if x[i] == x[-1]]
    return x[earlier[-1] + 1] if earlier else None


def product(x: list[int], T: int, *, size: int = 3, reverse: bool = False) -> int:
    """The number of the permutation that moves things as all of x do, one after the other."""
    group = sorted(itertools.permutations(range(size)))
    things = list(range(size))
    for symbol in reversed(x) if reverse else x:
        things = [group[symbol][thing] for thing in things]
    return group.index(tuple(things))


# task -> settings, reader, and a wrong reader
TASKS: dict[str, tuple[dict[str, int], Reader, Reader]] = {
    "mqar": ({"length": 20, "pairs": 4, "symbols": 9}, recall, lambda x, T: x[-1]),
    "noisy_recall": (
        {"length": 24, "pairs": 4, "symbols": 9, "noise": 5},
        lambda x, T: recall(x, T, noise=5),
        lambda x, T: recall(x, T),
    ),
    "copy": (
        {"length": 16, "symbols": 3},
        lambda x, T: x[len(x) - 1 - T // 2] if len(x) > T // 2 else None,
        lambda x, T: x[len(x) - 2 - T // 2] if len(x) > T // 2 else None,
    ),
    "induction": ({"length": 24, "symbols": 16}, induction, lambda x, T: x[max(0, len(x) - 8)]),
    "parity": ({"length": 12}, lambda x, T: sum(x) % 2, lambda x, T: x[-1]),
    "permutations": ({"length": 12}, product, lambda x, T: product(x, T, reverse=True)),
}


def misread(name: str, reader: Reader) -> int:
    """How many answers of 64 sequences differ from the reader's, places without one included."""
    given, _, _ = TASKS[name]
    task = getattr(sequences, name)(**given)
    wrong = 0
    for x, y in zip(*task.draw(64, torch.Generator().manual_seed(0)), strict=True):
        assert len(x) == given["length"] and 0 <= int(x.min()) <= int(x.max()) < len(task.alphabet)
        found = [reader(x[: t + 1].tolist(), len(x)) for t in range(len(x))]
        expected = [None if int(z) == IGNORED else int(z) for z in y]
        wrong += sum(a != b for a, b in zip(found, expected, strict=True))
    return wrong


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_those_of_a_search(name: str) -> None:
    _, reader, other = TASKS[name]
    assert misread(name, reader) == 0
    assert misread(name, other) > 64  # a planted error


@pytest.mark.parametrize("name", TASKS)
def test_batches_differ_and_lengths_are_other_tasks(name: str) -> None:
    given, _, _ = TASKS[name]
    task = getattr(sequences, name)(**given)
    first, second = (task.draw(8, torch.Generator().manual_seed(n))[0] for n in (0, 1))
    assert not torch.equal(first, second)
    assert sum(len(x) for x, _ in task.held_out("val", 0)) == sequences.HELD_OUT
    longer = task.at_length(given["length"] + 8)
    assert longer.length == given["length"] + 8 and longer.sha256 != task.sha256
    with pytest.raises(BadInput, match="block_size = 99"):
        task.check_length(99)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("noisy_recall", {"length": 24, "pairs": 9, "noise": 6}, "data.pairs = 9"),
        ("mqar", {"length": 20, "pairs": 9, "symbols": 8}, "data.pairs = 9"),
        ("mqar", {"length": 64, "symbols": 20_000}, "data.symbols = 20000"),
        ("noisy_recall", {"length": 20, "noise": 18}, "data.noise = 18"),
        ("copy", {"length": 15}, "data.length = 15"),
        ("induction", {"length": 24, "symbols": 11}, "data.symbols = 11"),
        ("parity", {"length": 8, "symbols": 1}, "data.symbols = 1"),
        ("permutations", {"length": 8, "size": 6}, "data.size = 6"),
        ("permutations", {"length": 1}, "data.length = 1"),
        ("parity", {"length": 2**20 + 1}, "data.length = 1048577"),
    ],
)
def test_settings_out_of_range_are_refused(name: str, given: dict[str, int], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        getattr(sequences, name)(**given)


def test_five_things_have_120_permutations_and_no_common_order() -> None:
    """S5 is not commutative, and all of its symbols are used."""
    task = sequences.permutations(40, size=5)
    x, y = task.draw(512, torch.Generator().manual_seed(0))
    assert len(task.alphabet) == 120
    assert x.unique().numel() == y.unique().numel() == 120
    for text, answers in zip(x[:8].tolist(), y[:8].tolist(), strict=True):
        assert answers == [product(text[: t + 1], 40, size=5) for t in range(40)]
