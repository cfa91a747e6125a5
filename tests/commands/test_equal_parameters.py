"""The width of the MLP at which two arms have equal numbers of parameters."""

import pytest

from attnlab.commands.equal_parameters import equalize
from attnlab.errors import BadInput


def test_the_larger_arm_gets_a_narrower_mlp():
    (full, large), (shared, small) = equalize(("attn=sdpa", "attn=shared_qk"), ["preset=micro"])
    assert shared == "attn=shared_qk" and small == 98_688
    # Two layers each lose 64 * 64 weights of qkv, and one unit of an MLP has 2 * 64 weights.
    assert full == "attn=sdpa model.mlp_ratio=3.5" and large == small
    again = equalize((full, shared), ["preset=micro"])
    assert again == [(full, small), (shared, small)]


def test_arms_that_no_mlp_can_equalize_are_refused():
    with pytest.raises(BadInput, match=r"no model\.mlp_ratio"):
        equalize(("model.n_embd=128", "model.n_embd=16"), ["preset=micro"])


def test_an_arm_may_be_a_list_of_variants():
    (both, _), (full, large) = equalize(("attn=[gqa,sdpa]", "attn=sdpa"), ["preset=micro"])
    assert both == "attn=[gqa,sdpa]" and full.startswith("attn=sdpa model.mlp_ratio=")
    assert equalize((full, both), ["preset=micro"])[0] == (full, large)
