"""Maps drawn by hand, and the causes that must be recognized."""

import pytest
import torch
from torch import Tensor

from attnlab.checkup.findings import span
from attnlab.checkup.recognize import (
    explain,
    explain_pattern,
    explain_scramble,
    scrambled,
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
def test_maps_of_common_masks_are_recognized(reads: Tensor, expected: str) -> None:
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
    ("split", "merge", "expected"),
    [
        (False, True, "unmerged_heads"),
        (True, False, "unsplit_heads"),
        (True, True, "untransposed"),
    ],
)
def test_maps_of_scrambled_heads_are_recognized(
    split: bool, merge: bool, expected: str, layers: int
) -> None:
    step = scrambled(T, 3, split=split, merge=merge)
    reads = step if layers == 1 else (step.double() @ step.double()) > 0
    found = explain_scramble(reads, ALL, [(3, range(layers, layers + 1))])
    assert found is not None
    assert found[0] == expected


def test_a_plain_map_is_never_taken_for_scrambled_heads() -> None:
    shapes = [(H, range(1, 9)) for H in (2, 3, 4, 6, 8, 12)]
    for reads in (LOWER, torch.ones(T, T).bool()):
        assert explain_scramble(reads, ALL, shapes) is None


@pytest.mark.parametrize("H", [2, 3, 4])
def test_the_scrambles_are_those_of_attention_with_such_reshapes(H: int) -> None:
    """Compared with the gradients of a layer that averages the past."""
    lower = LOWER.double() / LOWER.sum(1, keepdim=True)
    for split, merge in ((False, True), (True, False), (True, True), (False, False)):

        def layer(x: Tensor, split: bool = split, merge: bool = merge) -> Tensor:
            parts = x.view(T, H, 2)
            heads = parts.reshape(H, T, 2) if split else parts.transpose(0, 1)
            y = lower @ heads
            return (y.reshape(T, H, 2) if merge else y.transpose(0, 1)).reshape(T, 2 * H)

        x = torch.ones(T, 2 * H, dtype=torch.float64)
        slopes = torch.autograd.functional.jacobian(layer, x)
        reads = slopes.abs().sum((1, 3)) > 0  # type: ignore[union-attr]
        own = torch.eye(T, dtype=torch.bool)  # the residual stream
        assert ((reads | own) == scrambled(T, H, split=split, merge=merge)).all()


def test_the_pattern_of_a_layer() -> None:
    assert explain_pattern(LOWER) is None
    blocked = explain_pattern(LOWER.tril(-1))
    assert blocked is not None
    assert blocked[0] == "self_blocked"


def test_places_with_gaps_are_not_a_range() -> None:
    assert span("row", [3]) == "row 3"
    assert span("row", [3, 4, 5]) == "rows 3 to 5"
    assert span("row", [0, 8]) == "rows 0, 8"
    assert span("row", list(range(0, 20, 2))) == "rows 0, 2, 4, 6, 8, 10, ..."
