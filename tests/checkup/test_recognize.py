"""Maps drawn by hand, and what they must be taken for."""

import pytest
import torch
from torch import Tensor

from attnlab.checkup.recognize import (
    explain,
    explain_pattern,
    explain_scramble,
    unmerged,
    unsplit,
    untransposed,
)

T = 13
LOWER = torch.ones(T, T, dtype=torch.bool).tril()
ALL = torch.ones(T, dtype=torch.bool)


def cause(reads: Tensor, **options: object) -> str:
    found = explain(reads, ALL, **options)  # type: ignore[arg-type]
    return "" if found is None else found[0]


def test_a_causal_map_needs_no_explanation() -> None:
    assert cause(LOWER) == ""
    assert cause(LOWER.triu(-3)) == ""  # a window


@pytest.mark.parametrize(
    ("reads", "expected"),
    [
        (torch.ones(T, T).bool(), "no_mask"),
        (torch.ones(T, T).bool().triu(), "flipped_mask"),
        (torch.ones(T, T).bool().triu(1), "inverted_mask"),
        (torch.ones(T, T).bool().tril(1), "off_by_one"),
        (torch.ones(T, T).bool().tril(3), "off_by_one"),
    ],
)
def test_masks(reads: Tensor, expected: str) -> None:
    assert cause(reads) == expected


def test_one_pair_is_named_by_its_positions() -> None:
    reads = LOWER.clone()
    reads[3, 9] = True
    found = explain(reads, ALL)
    assert found is not None
    assert found[0] == "single_leaks"
    assert "3 reads 9" in found[1]


def test_a_leak_in_long_sequences_only() -> None:
    reads = LOWER.clone()
    reads[8:] = True
    assert cause(reads, clean_up_to=8) == "late_leak"


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("one_layer", "expected"),
    [(unmerged, "unmerged_heads"), (unsplit, "unsplit_heads"), (untransposed, "untransposed")],
)
def test_scrambled_heads(one_layer: object, expected: str, layers: int) -> None:
    step = one_layer(T, 3)  # type: ignore[operator]
    reads = step if layers == 1 else (step.double() @ step.double()) > 0
    found = explain_scramble(reads, ALL, [(layers, 3)])
    assert found is not None
    assert found[0] == expected


def test_a_plain_map_is_never_taken_for_scrambled_heads() -> None:
    shapes = [(layers, H) for layers in range(1, 9) for H in (2, 3, 4, 6, 8, 12)]
    for reads in (LOWER, torch.ones(T, T).bool()):
        assert explain_scramble(reads, ALL, shapes) is None


@pytest.mark.parametrize("H", [2, 3, 4])
def test_the_scrambles_are_those_of_the_reshapes(H: int) -> None:
    """The formulas against indices that went through the reshapes themselves."""
    index = torch.arange(T).repeat(H, 1)  # (H, T): the position of each row of each head
    merged = index.reshape(T, H)  # as (B, H, T, D) -> (B, T, C) without the transpose
    for t in range(T):
        seen = {j for p in merged[t].tolist() for j in range(p + 1)} | {t}
        assert unmerged(T, H)[t].nonzero().flatten().tolist() == sorted(seen)
    token = torch.arange(T).repeat_interleave(H).reshape(H, T)  # (B, T, C) -> (B, H, T, D)
    for t in range(T):
        seen = set(token[:, : t + 1].flatten().tolist()) | {t}
        assert unsplit(T, H)[t].nonzero().flatten().tolist() == sorted(seen)


def test_the_pattern_of_a_layer() -> None:
    assert explain_pattern(LOWER) is None
    blocked = explain_pattern(LOWER.tril(-1))
    assert blocked is not None
    assert blocked[0] == "self_blocked"
