"""The GPT: size, shapes, and causality."""

import pytest
import torch

from attnlab.attention import SelfAttention
from attnlab.init import init_weights
from attnlab.model import GPT


def gpt(**sizes: int) -> GPT:
    net = GPT(SelfAttention, 65, **sizes)  # type: ignore[arg-type]
    init_weights(net, 0)
    return net


def test_the_parameters_are_nanogpts() -> None:
    # 4 layers of 12 C^2 and two LayerNorm gains, the last one, 65 symbols, 64 positions.
    C = 128
    assert sum(p.numel() for p in gpt().parameters()) == 4 * (12 * C * C + 2 * C) + C + 129 * C


def test_the_initial_loss_is_that_of_uniform_guesses() -> None:
    x, y = torch.randint(65, (2, 8, 64), generator=torch.Generator().manual_seed(0))
    loss = torch.nn.functional.cross_entropy(gpt()(x).flatten(0, 1), y.flatten())
    assert loss.item() == pytest.approx(4.174, abs=0.1)  # ln 65


def test_logits_depend_only_on_the_past() -> None:
    net = gpt(n_layer=2).double().eval()
    ids = torch.randint(65, (1, 64), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 65
    with torch.no_grad():
        difference = (net(ids) - net(changed)).abs().amax(-1)[0]
    assert difference[:40].max() < 1e-12
    assert difference[40:].min() > 0


def test_smearing_adds_the_embeddings_before_by_their_weights() -> None:
    net, T = gpt(smear=2), 5
    assert all(torch.equal(weight, torch.full((128,), 0.2)) for weight in net.smear)
    weights = torch.randn(2, 128, generator=torch.Generator().manual_seed(0))
    for weight, drawn in zip(net.smear, weights, strict=True):
        weight.data.copy_(drawn)
    ids = torch.randint(65, (3, T), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for length in range(1, T + 1):
            x = net.embed(ids[:, :length])
            for t in range(length):
                expected = net.wte(ids[:, t]) + net.wpe.weight[t]
                for back in range(1, min(t, 2) + 1):
                    expected = expected + weights[back - 1] * net.wte(ids[:, t - back])
                torch.testing.assert_close(x[:, t], expected)


def test_what_is_not_a_layer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attn made 3, which is not an nn\.Module"):
        GPT(lambda config: 3, vocab_size=65)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("smear", [-1, 64])
def test_smearing_stays_within_the_block(smear: int) -> None:
    with pytest.raises(ValueError, match=f"smear = {smear} must be at least 0"):
        gpt(smear=smear)


def test_a_text_longer_than_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="65 positions do not fit into block_size = 64"):
        gpt()(torch.zeros(1, 65, dtype=torch.long))


@pytest.mark.parametrize("name", ["n_layer", "n_head", "n_embd", "block_size"])
def test_sizes_must_be_positive(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0 must be at least 1"):
        gpt(**{name: 0})
