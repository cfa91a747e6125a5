"""Texts and batches are what they were in every version, from commit b308e5e on."""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from attnlab.data.corpus import TrainBatches, tinyshakespeare
from attnlab.data.plays import plays
from attnlab.data.sequences import copy, induction, mqar, noisy_recall, parity, permutations

# Data, and a digest of its text or settings, its training batches, validation, and windows.
DIGESTS: dict[str, tuple[Callable[..., Any], str]] = {
    "tinyshakespeare": (tinyshakespeare, "090aab4e8094460e"),
    "plays": (partial(plays, 30_000, seed=3), "7e25c855b704f1ab"),
    "mqar": (partial(mqar, 32, pairs=6, symbols=20), "851542e80cf537c0"),
    "noisy_recall": (partial(noisy_recall, 32, pairs=5, noise=11), "e42fdbf096f08051"),
    "copy": (partial(copy, 32), "f9aeeb35e44b5262"),
    "induction": (partial(induction, 32, symbols=40), "e43229004e16294b"),
    "parity": (partial(parity, 24, symbols=5), "e9cd36505daebcb6"),
    "permutations": (partial(permutations, 24, size=4), "3df2cb2d6397557e"),
}


@pytest.mark.parametrize("name", DIGESTS)
def test_batches_are_those_of_the_digest(name: str) -> None:
    make, expected = DIGESTS[name]
    data = make()
    T, found = getattr(data, "length", 20), hashlib.sha256(data.sha256.encode())
    batches = TrainBatches(data.train_draw(T), batch_size=6, seed=3, steps=9, start=4)
    for pair in (*batches, *data.held_out("val", T), data.windows("train", T, 7)):
        for z in pair:
            found.update(z.numpy().tobytes())
    assert found.hexdigest()[:16] == expected
    if name == "plays":
        assert data.val_floor == pytest.approx(0.5401477947508124, rel=1e-12)
