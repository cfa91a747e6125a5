"""Batches: functions of (seed, step), epochs without repetition, padding at the end."""

import pytest
import torch
from pair_batches import PairBatches, batch_of, validation_batches
from sentence_pairs import END, PAD, START, decode, pairs

from attnlab.errors import BadInput

DATA = pairs(train=50, val=23)
MORE = pairs(train=1000, val=23)  # its alphabet contains every word


def batches(**changed: int) -> PairBatches:
    settings = {"batch_size": 8, "seed": 3, "steps": 20} | changed
    return PairBatches(DATA.train, DATA.alphabet, **settings)


def test_a_batch_depends_only_on_seed_and_step() -> None:
    whole = list(batches())
    late = list(batches(start=13))
    assert len(late) == 7
    for a, b in zip(whole[13:], late, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_epoch_has_each_pair_once_in_a_new_order() -> None:
    first = [pair for step in range(6) for pair in batches().rows(step)]
    second = [pair for step in range(6, 12) for pair in batches().rows(step)]
    assert len({pair.source for pair in first}) == len(first) == 48
    assert len({pair.source for pair in second}) == 48
    assert first != second


def test_ranks_share_the_global_batch() -> None:
    whole = batches()[5]
    parts = [batches(rank=rank, world_size=2)[5] for rank in (0, 1)]
    rows = {tuple(row.tolist()) for row in whole.source}
    assert sum(len(part.source) for part in parts) == 8
    for part in parts:
        width = whole.source.shape[1] - part.source.shape[1]
        padded = torch.nn.functional.pad(part.source, (0, width), value=PAD)
        assert {tuple(row.tolist()) for row in padded} <= rows


def test_the_decoder_input_is_the_shifted_target() -> None:
    batch = batch_of(DATA.train[:5], DATA.alphabet)
    for n, pair in enumerate(DATA.train[:5]):
        T = len(pair.target) + 1
        assert batch.given[n, 0] == START
        assert torch.equal(batch.given[n, 1:T], batch.target[n, : T - 1])
        assert batch.target[n, T - 1] == END
        assert (batch.target[n, T:] == PAD).all() and (batch.given[n, T:] == PAD).all()
        assert decode(batch.source[n].tolist(), DATA.alphabet) == list(pair.source)


def test_validation_uses_every_pair_once() -> None:
    found = validation_batches(MORE.val, MORE.alphabet, batch_size=10)
    assert [len(batch.source) for batch in found] == [10, 10, 3]
    said = [decode(row, MORE.alphabet) for batch in found for row in batch.target.tolist()]
    assert said == [list(pair.target) for pair in MORE.val]


def test_too_few_pairs_and_ranks_that_do_not_divide() -> None:
    with pytest.raises(BadInput, match=r"data\.batch_size = 64 is more than the 50 pairs"):
        batches(batch_size=64)
    with pytest.raises(BadInput, match="must be a positive multiple of the number of devices, 3"):
        batches(world_size=3)
