"""The checkup calls every healthy variant healthy."""

import pytest

from attnlab.checkup import checkup
from attnlab.training.config import read_config
from tests.conftest import settings
from tests.contracts.test_variants import DELTA

SIZES = [f"model.{name}=32" for name in ("n_embd", "block_size")]
NEW = [
    *("sink", "softpick", "stick_breaking", "sparsemax", "entmax", "top_k", "differential_v2"),
    *("gate_head", "gate_channel", "forgetting", "value_residual", "value_embeddings", "latent"),
    *("exclusive", "short_conv", "scalable_softmax", "partial_rotary", *sorted(DELTA)),
]


@pytest.mark.slow
@pytest.mark.parametrize("variant", NEW)
def test_a_variant_is_healthy(variant: str) -> None:
    small = ["preset=micro", "model.n_layer=2", "model.n_head=2", *SIZES, f"attn={variant}"]
    report = checkup(read_config(settings(*small)).model(29), vocab_size=29, block_size=32)
    assert report.healthy, report
