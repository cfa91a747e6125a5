"""Every variant of conf/attn against its formula in NumPy."""

from typing import Any

import numpy as np
import pytest
import torch

from attnlab.attention import delta, entmax15, sparsemax
from tests.attention.formulas import CASES, Array, delta_product, model_scale, relative_bias
from tests.attention.layers import DELTA, B, D, H, T, layer_of, memo_of, x_of

PLANTED = [(name, planted) for name, case in CASES.items() for planted in case.planted]


def both(variant: str, planted: dict[str, Any]) -> tuple[Array, Array]:
    """The outputs (B, T, C) of a layer, and of its formula with the planted error."""
    layer, case = layer_of(variant), CASES[variant]
    x, memo = case.size * x_of(), memo_of(layer)
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    outputs = []
    for b in range(B):
        given = w | {name: value[b].numpy() for shared in memo for name, value in shared.items()}
        outputs.append(
            case.formula(given, x[b].numpy(), case.heads or H, **(case.given | planted))
        )
    return layer(x, *memo).detach().numpy(), np.array(outputs)


@pytest.mark.parametrize("variant", CASES)  # test_lists.py names a variant without a formula
def test_the_output_equals_the_formula(variant: str) -> None:
    ours, formula = both(variant, {})
    np.testing.assert_allclose(ours, formula, rtol=1e-10, atol=1e-10)
    assert np.isnan(ours).any() == (variant == "strict_flip")


@pytest.mark.parametrize("variant", DELTA)
def test_chunks_hand_on_their_state(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta, "CHUNK", 4)  # T = 11
    test_the_output_equals_the_formula(variant)


@pytest.mark.parametrize(("variant", "planted"), PLANTED)
def test_a_planted_error_shows(variant: str, planted: dict[str, Any]) -> None:
    ours, formula = both(variant, planted)
    wrong = np.abs(ours - formula).max() > 1e-3 * np.abs(np.nan_to_num(ours)).max()
    assert wrong or (np.isnan(ours) != np.isnan(formula)).any()


@pytest.mark.parametrize("decay", ["fixed", "head", "channel"])
def test_a_product_of_writes_decays_once_for_each_position(decay: str) -> None:
    layer, x = layer_of("delta_product", decay=decay), x_of()
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    ours = layer(x)[0].detach().numpy()
    right, twice = (
        delta_product(w, x[0].numpy(), H, decay=decay, decays=decays) for decays in (1, 2)
    )
    np.testing.assert_allclose(ours, right, rtol=1e-10, atol=1e-10)
    assert np.abs(ours - twice).max() > 1e-3


@pytest.mark.parametrize("heads", [1, 2, 4, 8])
def test_the_scale_of_the_width_is_the_same_for_every_number_of_heads(heads: int) -> None:
    layer, x = layer_of("model_scale", heads=heads), x_of()
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    ours = layer(x)[0].detach().numpy()
    np.testing.assert_allclose(ours, model_scale(w, x[0].numpy(), heads), rtol=1e-10, atol=1e-10)


def test_distances_beyond_half_of_the_buckets_share_one_by_the_logarithm() -> None:
    layer, x = layer_of("relative_bias", buckets=8, farthest=9), x_of()
    w = {name: weight.detach().numpy() for name, weight in layer.named_parameters()}
    ours = layer(x)[0].detach().numpy()
    right, wrong = (relative_bias(w, x[0].numpy(), H, n=8, far=far) for far in (9, 10))
    np.testing.assert_allclose(ours, right, rtol=1e-10, atol=1e-10)
    assert np.abs(ours - wrong).max() > 1e-3
    # Those of the authors' code for T5's own 32 buckets up to 128.
    distances = torch.tensor([-3, 0, 15, 16, 18, 19, 31, 32, 64, 112, 113, 127, 128, 10**6])
    of_t5 = [0, 0, 15, 16, 16, 17, 21, 21, 26, 30, 31, 31, 31, 31]
    assert layer_of("relative_bias").bucket(distances).tolist() == of_t5


WEIGHTS = ["softmax1", "sigmoid", "top_k", "sparsemax", "entmax15", "stick_breaking"]


@pytest.mark.parametrize("kernel", WEIGHTS)
@pytest.mark.parametrize("sequences", [1, B])
def test_a_kernel_takes_a_mask_of_each_sequence_and_head(kernel: str, sequences: int) -> None:
    """Selection of blocks has such a mask; with one block of the whole text it hides nothing."""
    x = x_of()[:sequences]
    usual = layer_of("sdpa", kernel=kernel)
    selects = layer_of("block_selection", kernel=kernel, block=T)
    torch.testing.assert_close(selects(x), usual(x), rtol=0, atol=1e-12)


@torch.no_grad()
def repeated(grouped: Any, G: int) -> dict[str, torch.Tensor]:
    """Weights of a layer without groups that computes the same: keys, values and what else is of
    G heads are written once for each query head."""
    weights = {}
    for name, weight in grouped.named_parameters():
        if name.startswith("qkv"):
            parts = weight.split(grouped.qkv_sizes)
            both = [
                part.unflatten(0, (G, D)).repeat_interleave(H // G, 0).flatten(0, 1)
                for part in parts[1:]
            ]
            weight = torch.cat([parts[0], *both])
        elif name.endswith("_taps"):
            weight = weight.view(2, G).repeat_interleave(H // G, 1).flatten()
        elif name == "table":
            weight = weight.unflatten(1, (G, D)).repeat_interleave(H // G, 1).flatten(1)
        weights[name] = weight
    return weights


@pytest.mark.parametrize("G", [1, 2])
@pytest.mark.parametrize(
    "variant",
    ["sdpa", "shifted_keys", "shifted_keys_values", "key_offset", "differential_2",
     "value_embeddings", "block_selection", "selective", "scalable_softmax"],
)  # fmt: skip
def test_grouped_heads_are_heads_with_equal_keys_and_values(variant: str, G: int) -> None:
    x = x_of()
    grouped, whole = layer_of(variant, n_kv_head=G), layer_of(variant)
    whole.load_state_dict(repeated(grouped, G))
    memo = memo_of(whole)
    torch.testing.assert_close(grouped(x, *memo), whole(x, *memo), rtol=0, atol=1e-12)
    grouped.qkv.weight.data[-1] += 1  # of one head of values
    assert not torch.allclose(grouped(x, *memo), whole(x, *memo), atol=1e-3)


@pytest.mark.parametrize("kernel", [sparsemax, entmax15])
def test_a_sorting_kernel_takes_fewer_queries_than_keys(kernel: Any) -> None:
    q, k, v = torch.randn(3, 1, 1, 9, 4)
    mask, given = torch.ones(9, 9).tril().bool(), {"scale": 1.0, "dropout": 0.0}
    some, whole = (kernel(q[:, :, n:], k, v, mask=mask[n:], **given) for n in (6, 0))
    torch.testing.assert_close(some, whole[:, :, 6:])
