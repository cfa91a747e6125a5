import torch

from attnlab.data.plays import Plays
from experiments.grammar_heads.measure import untrained_net
from experiments.nearby_tokens import measure


def test_blocked_keys_are_not_read_and_the_mask_is_restored():
    net = untrained_net(0, n_layer=1)
    ids = torch.randint(net.vocab_size, (1, 32), generator=torch.Generator().manual_seed(0))
    changed = ids.clone()
    changed[0, 28] = (ids[0, 28] + 1) % net.vocab_size  # 3 back from the last
    with torch.no_grad(), measure.without_keys(net, 3, 3):
        assert torch.equal(net(ids)[0, -1], net(changed)[0, -1])
        assert not torch.equal(net(ids)[0, -2], net(changed)[0, -2])
    with torch.no_grad():
        assert not torch.equal(net(ids)[0, -1], net(changed)[0, -1])


def test_removing_keys_outside_the_window_changes_nothing():
    net = untrained_net(0)
    ids = torch.randint(net.vocab_size, (2, 65), generator=torch.Generator().manual_seed(0))
    counted = torch.ones(2, 64, dtype=torch.bool)
    whole = measure.loss(net, ids, counted)
    with measure.without_keys(net, 64, 100):
        assert abs(measure.loss(net, ids, counted) - whole) < 1e-6


def test_windows_end_with_the_bracket():
    text = "x" * 60 + "[Ada looks coldly at Tom.]\n[Exit Tom.]\n"
    alphabet = "".join(sorted(set(text)))
    ids = torch.tensor([alphabet.index(c) for c in text])
    windows, counted = measure.closing_brackets(text, ids, 64)
    assert "".join(alphabet[i] for i in windows[0])[-6:] == " Tom.]"
    assert len(windows) == 1 and counted.sum() == 1 and counted[0, -1]


def test_fresh_plays_are_not_the_corpus():
    assert measure.fresh_plays()[:1000] != Plays().generate(seed=0, length=1000)[0]
