"""Tasks with known answers: the answers follow from the sequence."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.attention import SelfAttention
from attnlab.data.batches import IGNORED
from attnlab.data.sequences import (
    SYMBOLS,
    Sequences,
    copy,
    fuzzy_recall,
    induction,
    mqar,
    noisy_recall,
    parity,
)
from attnlab.errors import BadInput
from attnlab.model import GPT
from attnlab.probes import measures
from attnlab.probes.capture import by_head, views
from attnlab.rng import generator
from attnlab.training.checkpoints import load_model
from attnlab.training.config import read_config
from attnlab.training.run import run
from tests.conftest import SMALL, settings

T = 32
TASKS = {
    "mqar": mqar(T, pairs=6, symbols=20),
    "noisy_recall": noisy_recall(T, pairs=5, symbols=9, noise=11),
    "fuzzy_recall": fuzzy_recall(T + 1, pairs=6, symbols=3),
    "copy": copy(T),
    "induction": induction(T),
    "parity": parity(T),
}


def answer(task: str, seen: list[int]) -> int | None:
    """The symbol that follows x[: t + 1], or None if it cannot be known."""
    if task == "parity":
        return seen.count(1) % 2
    if task in ("mqar", "noisy_recall"):
        told, symbols = (12, 20) if task == "mqar" else (2 * 5 + 11, 9)
        known = {}
        for before, symbol in pairwise(seen[:told]):
            if before < symbols <= symbol < 2 * symbols:
                known[before] = symbol
        return known.get(seen[-1]) if len(seen) > told else None
    if task == "fuzzy_recall":
        triples = {
            (seen[n], seen[n + 1]): seen[n + 2] for n in range(0, min(len(seen) - 2, 18), 3)
        }
        return triples[seen[-2], seen[-1]] if len(seen) > 18 and len(seen) % 2 == 0 else None
    if task == "copy":
        return seen[len(seen) - 1 - seen.index(0)] if 0 in seen else None
    earlier = seen[:-1]
    return seen[earlier.index(seen[-1]) + 1] if seen[-1] in earlier else None


@pytest.mark.parametrize("name", TASKS)
def test_the_answers_are_those_of_a_reader(name: str) -> None:
    task = TASKS[name]
    x, y = task.draw(20, generator(3, "test"))
    assert x.shape == y.shape == (20, task.length) and x.dtype == y.dtype == torch.int64
    assert int(x.min()) >= 0 and int(x.max()) < len(task.alphabet)
    for row, targets in zip(x.tolist(), y.tolist(), strict=True):
        told = [answer(name, row[: t + 1]) for t in range(task.length)]
        assert [IGNORED if a is None else a for a in told] == targets


def test_the_share_of_answers() -> None:
    count = {
        name: (task.draw(50, generator(0, "n"))[1] != IGNORED) for name, task in TASKS.items()
    }
    assert (count["mqar"].sum(1) == T - 12).all()
    assert (count["noisy_recall"].sum(1) == T - 2 * 5 - 11).all()
    assert (count["fuzzy_recall"].sum(1) == (T - 18) // 2).all()
    assert (count["copy"].sum(1) == T // 2).all()
    assert set(count["induction"].sum(1).tolist()) <= set(range(T // 2, 3 * T // 4 + 1))
    assert count["parity"].all()


def test_pairs_among_noise_stand_at_all_places() -> None:
    """No place of the first part is only for keys, values or noise, and every noise occurs."""
    x = noisy_recall(T, pairs=5, symbols=9, noise=11).draw(500, generator(0, "n"))[0][:, :21]
    kinds = x // 9  # 0 a key, 1 a value, 2 noise
    assert (kinds == 0).sum(1).eq(5).all() and (kinds == 2).sum(1).eq(11).all()
    for kind, first, last in ((0, 0, 20), (1, 1, 21), (2, 0, 21)):
        assert (kinds[:, first:last] == kind).any(0).all()
    assert set(x[kinds == 2].tolist()) == set(range(18, 27))


def test_keys_of_two_symbols_share_symbols() -> None:
    """The second symbol alone does not tell the answer: several keys have it."""
    x, _ = fuzzy_recall(T, pairs=6, symbols=3).draw(500, generator(0, "n"))
    keys = x[:, :18].unflatten(1, (6, 3))[..., :2]  # (B, 6 pairs, 2)
    assert all(len(set(map(tuple, row))) == 6 for row in keys.tolist())
    seconds = keys[..., 1]
    assert (seconds[:, :, None] == seconds[:, None]).sum(2).ge(2).any(1).all()


def test_sums_modulo_a_number() -> None:
    x, y = parity(6, symbols=5).draw(20, generator(0, "n"))
    assert [sum(row) % 5 for row in x.tolist()] == y[:, -1].tolist()
    assert int(x.max()) == 4


def test_thousands_of_keys_have_a_symbol_each() -> None:
    task = mqar(T, symbols=8192)
    x, y = task.draw(64, generator(0, "n"))
    assert len(set(task.alphabet)) == len(task.alphabet) == 2 * 8192
    assert int(y.max()) < 2 * 8192 and len(set(x[:, :16:2].flatten().tolist())) > 480
    assert len(set(SYMBOLS)) == len(SYMBOLS) and SYMBOLS.isprintable()


def test_validation_sequences_are_fixed_and_differ_from_training() -> None:
    one, other = copy(T), copy(T)
    for part in ("val", "train"):
        (a, _), (b, _) = one.held_out(part, T)[0], other.held_out(part, T)[0]  # type: ignore[arg-type]
        assert torch.equal(a, b) and len(one.held_out(part, T)) == 8  # type: ignore[arg-type]
    val, train = one.held_out("val", T)[0][0], one.held_out("train", T)[0][0]
    assert not torch.equal(val, train)
    assert one.sha256 == other.sha256 != copy(T, symbols=31).sha256


@pytest.mark.parametrize(
    ("make", "given", "sentence"),
    [
        (mqar, {"pairs": 16}, r"data\.pairs = 16 must be from 1 to 15"),
        (mqar, {"symbols": 0}, r"data\.symbols = 0 must be from 1 to 11155"),
        (mqar, {"symbols": 4}, r"data\.pairs = 8 must be from 1 to 4"),
        (mqar, {"symbols": 11156}, r"data\.symbols = 11156"),
        (noisy_recall, {"noise": 0}, r"data\.noise = 0 must be from 1 to 29"),
        (noisy_recall, {"noise": 20}, r"data\.pairs = 8 must be from 1 to 5"),
        (fuzzy_recall, {"pairs": 11}, r"data\.pairs = 11 must be from 1 to 10"),
        (fuzzy_recall, {"symbols": 2}, r"data\.pairs = 6 must be from 1 to 4"),
        (parity, {"symbols": 11}, r"data\.symbols = 11 must be from 2 to 10"),
        (copy, {"length": 33}, r"data\.length = 33 must be even"),
        (copy, {"symbols": 1}, r"data\.symbols = 1"),
        (induction, {"symbols": 15}, r"data\.symbols = 15 must be from 16 to"),
    ],
)
def test_bad_numbers_are_named(make: Any, given: dict[str, int], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        make(**{"length": T, **given})


def test_a_model_of_another_length_is_refused() -> None:
    with pytest.raises(BadInput, match=r"data\.length = 32 must be model\.block_size = 16"):
        copy(T).check_length(16)


@pytest.mark.parametrize("name", ["mqar", "copy", "induction"])
def test_a_run_reports_the_exact_accuracy(name: str, tmp_path: Path) -> None:
    given = [o for o in SMALL if o not in {"data=text", "model.block_size=16", "probes=none"}]
    given += [f"data={name}", "model.block_size=32", "probes.patterns.images=false"]
    result = run(read_config(settings(*given)), tmp_path / "run", variant="sdpa")
    metrics, net = result.metrics, result_net(result)
    x, y = result_task(name).windows("val", 32, 512)
    with torch.no_grad():
        right = (net(x).argmax(-1) == y).sum() / (y != IGNORED).sum()
        loss = measures.mean_loss(net(x), y)
    assert metrics["val_accuracy"] == pytest.approx(float(right), abs=1e-6)
    assert metrics["val_loss"] == pytest.approx(float(loss), abs=1e-5)
    assert metrics["val_floor"] == 0 and metrics["corpus"]["name"] == name
    scored = (y != IGNORED).any(0)
    by_position = torch.tensor(metrics["probes"]["loss_by_position"])
    assert torch.equal(by_position.isfinite(), scored)


def result_task(name: str) -> Sequences:
    return {"mqar": mqar, "copy": copy, "induction": induction}[name](32)


def result_net(result: Any) -> GPT:
    net, _ = load_model(result.folder)
    assert isinstance(net, GPT)
    return net


def test_the_induction_score_of_hand_made_heads() -> None:
    """A head on what followed the last occurrence has 1; one on the previous symbol has 0."""
    ids = torch.tensor([[4, 7, 5, 4, 7, 5, 4, 7]])
    n = ids.shape[1]
    perfect, previous = torch.zeros(n, n), torch.zeros(n, n)
    for t in range(n):
        perfect[t, max(0, t - 2)] = 1
        previous[t, max(0, t - 1)] = 1
    score = measures.induction_mass(torch.stack([perfect, previous])[None], ids)
    assert score.tolist() == [1, 0]
    unique = measures.induction_mass(perfect[None, None], torch.arange(n)[None])
    assert bool(unique.isnan().all())


def test_every_head_has_an_induction_score() -> None:
    net = GPT(SelfAttention, 33, block_size=T)
    view = next(views(net, induction(T).windows("val", T, 4)[0]))
    assert by_head(view)["induction_mass"].shape == (4,)
