"""The variants read ahead only where they are meant to."""

import pytest

from attncheck import assert_causal
from attnlab.init import init_weights
from attnlab.training.config import read_config
from tests.conftest import VARIANTS, settings

pytestmark = pytest.mark.slow
V = 29
READ_AHEAD = "bidirectional flipped peek_one post_softmax_mask softmax_over_queries strict_flip"
READ_AHEAD += " unmerged_heads zero_fill"


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_of_the_lab_read_ahead_only_where_they_are_meant_to(name: str) -> None:
    small = ["preset=micro", "model.n_layer=2", "model.n_head=2", f"attn={name}"]
    small += ["model.n_embd=32", "model.block_size=32"]
    model = read_config(settings(*small)).model(V)
    init_weights(model, 0)
    try:
        assert_causal(model, vocab_size=V, block_size=32)
        leaks = False
    except AssertionError:
        leaks = True
    assert leaks == (name in READ_AHEAD.split())
