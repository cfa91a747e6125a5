"""What probes read off layers whose weights of heads are not three matrices (C, C)."""

import pytest
import torch

from attnlab.probes import capture
from attnlab.probes.capture import views
from attnlab.probes.training_probes import gradient_norms, parts
from attnlab.training.run import build_model
from tests.conftest import settings

SIZES = ("model.n_layer=2", "model.n_head=4", "model.n_embd=16", "model.block_size=12")


@pytest.mark.parametrize("variant", ["gqa", "mqa", "general", "additive", "cosine", "rotary"])
def test_probes_know_the_weights_of_the_heads(variant: str) -> None:
    """Scores by a tanh, of normalized or of turned queries and keys have no form W_Q^T W_K."""
    net = build_model(settings(*SIZES, f"attn={variant}"), 11)
    ids = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))
    values = capture.scalars(views(net, ids))
    assert ("attn/qk_similarity" in values) == (variant not in {"additive", "cosine", "rotary"})
    assert abs(values["attn/ov_similarity"]) < 1
    assert values["attn/row_sum_error"] < 1e-6
    assert values["attn/future_mass"] == 0
    net(ids)[..., 0].sum().backward()
    assert {"grad/L0/q", "grad/L0/k", "grad/L0/v", "grad/L1/out"} <= set(gradient_norms(net))


def test_the_parts_of_shared_heads_are_their_rows() -> None:
    net = build_model(settings(*SIZES, "attn=mqa"), 11)
    shapes = {name: tuple(weight.shape) for name, weight in parts(net) if name.startswith("L0")}
    assert shapes == {"L0/q": (16, 16), "L0/k": (4, 16), "L0/v": (4, 16), "L0/out": (16, 16)}


def test_one_key_head_for_all_makes_the_values_forms_differ_by_their_outputs_alone() -> None:
    net = build_model(settings(*SIZES, "attn=mqa"), 11)
    attn = net.blocks[0].attn
    _, k, v = attn.qkv_of_heads().unflatten(0, (3, 4, 4))  # (H, D, C)
    assert torch.equal(k, k[:1].expand_as(k))
    assert torch.equal(v, v[:1].expand_as(v))
