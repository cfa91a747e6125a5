import pytest
import torch

from attnlab.attention import SelfAttention, Variant
from attnlab.data.batches import IGNORED
from attnlab.errors import BadInput
from attnlab.init import init_weights
from attnlab.model import GPT
from attnlab.rng import generator
from experiments.gated_attention.backcopy import backcopy
from experiments.gated_attention.measure import SYMBOLS, weight_on_start


def test_a_trigger_asks_for_the_symbol_before_it_and_others_for_a_function_of_themselves():
    x, y = backcopy(64).draw(200, generator(0, "test"))
    assert x.shape == y.shape == (200, 64)
    assert (x[:, 0] == 0).all() and (x[:, 1:] > 0).all() and (y[:, 0] == IGNORED).all()
    triggers = x > SYMBOLS
    assert triggers[:, 1:].float().mean() == pytest.approx(0.25, abs=0.02)
    assert torch.equal(y[:, 1:][triggers[:, 1:]], x[:, :-1][triggers[:, 1:]])
    plain = x[:, 1:][~triggers[:, 1:]]
    answers = y[:, 1:][~triggers[:, 1:]]
    assert torch.equal(answers, plain % SYMBOLS + 1)
    assert set(answers.tolist()) == set(range(1, SYMBOLS + 1))


def test_a_task_without_room_for_an_answer_is_refused():
    with pytest.raises(BadInput, match=r"data\.length = 2"):
        backcopy(2)


def test_the_weight_on_the_start_is_that_of_plain_symbols():
    net = GPT(
        Variant(SelfAttention, {}), SYMBOLS + 5, block_size=32, n_layer=1, n_head=2, n_embd=16
    )
    init_weights(net, 0, "gpt2")
    attn = net.blocks[0].attn
    even = weight_on_start(net)
    assert even["plain"] == pytest.approx(even["triggers"], abs=0.005)
    assert even["plain"] == pytest.approx(sum(1 / n for n in range(9, 33)) / 24, abs=0.005)
    # Plain symbols get one direction, the start the same one: plain queries look at the start.
    with torch.no_grad():
        net.wpe.weight.zero_()
        net.wte.weight.zero_()
        net.wte.weight[1 : SYMBOLS + 1, 0] = 1
        net.wte.weight[0, 1] = 1
        for W in (attn.W_q, attn.W_k):
            W.zero_()
        attn.W_q[0, ::8] = 10  # the first channel of both heads
        attn.W_k[1, ::8] = 10
    planted = weight_on_start(net)
    assert planted["plain"] > 0.99
    assert planted["triggers"] < 0.2
