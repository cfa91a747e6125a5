"""The translator: padding has no effect, and greedy decoding agrees with teacher forcing."""

from functools import partial

import aligner
import pytest
import torch
from aligner import Aligner
from pair_batches import batch_of
from sentence_pairs import END, PAD, START, pairs
from torch import Tensor
from translator import Translator, init_weights

DATA = pairs(train=50, val=10)
SCORES = ("additive", "dot", "scaled_dot")


def net(
    score: str = "additive", *, seed: int = 0, size: int = 8, dropout: float = 0.0
) -> Translator:
    attn = partial(Aligner, score=vars(aligner)[score], size=size)
    made = Translator(attn, len(DATA.alphabet), n_embd=12, hidden_size=10, dropout=dropout)
    init_weights(made, seed)
    return made.eval()


@pytest.mark.parametrize("score", SCORES)
def test_padding_changes_nothing(score: str) -> None:
    model = net(score)
    whole = batch_of(DATA.train[:6], DATA.alphabet)
    logits = model(whole.source, whole.given)
    pattern = model.align(whole.source, whole.given)
    for n, pair in enumerate(DATA.train[:6]):
        alone = batch_of([pair], DATA.alphabet)
        T, S = alone.target.shape[1], alone.source.shape[1]
        torch.testing.assert_close(logits[n, :T], model(alone.source, alone.given)[0])
        torch.testing.assert_close(pattern[n, :T, :S], model.align(alone.source, alone.given)[0])
        assert not pattern[n, :, S:].any()


@pytest.mark.parametrize("score", SCORES)
def test_patterns_are_averages(score: str) -> None:
    batch = batch_of(DATA.train[:6], DATA.alphabet)
    pattern = net(score).align(batch.source, batch.given)
    torch.testing.assert_close(pattern.sum(-1), torch.ones(batch.given.shape))


def test_no_word_depends_on_later_words() -> None:
    model, batch = net(), batch_of(DATA.train[:6], DATA.alphabet)
    other = batch.given.clone()
    other[:, 3:] = 7
    a, b = model(batch.source, batch.given), model(batch.source, other)
    assert torch.equal(a[:, :3], b[:, :3]) and not torch.equal(a[:, 3:], b[:, 3:])


@pytest.mark.parametrize("score", SCORES)
def test_greedy_decoding_agrees_with_teacher_forcing(score: str) -> None:
    model, batch = net(score, seed=2), batch_of(DATA.train[:6], DATA.alphabet)
    said = model.translate(batch.source, longest=9)
    given = torch.cat((torch.full((6, 1), START), said[:, :-1]), dim=1)
    likeliest = model(batch.source, given).argmax(-1)
    ended = torch.zeros(6, dtype=torch.bool)
    for t in range(said.shape[1]):
        assert torch.equal(said[~ended, t], likeliest[~ended, t])
        assert (said[ended, t] == PAD).all()
        ended |= said[:, t] == END


def by_hand(model: Translator, score: str, q: Tensor, k: Tensor) -> Tensor:
    """Scores of one query against S keys, one at a time."""
    if score == "additive":
        v = model.attn.score.v  # type: ignore[union-attr]
        return torch.stack([sum(v[a] * torch.tanh(q[a] + key[a]) for a in range(8)) for key in k])
    products = torch.stack([sum(q[a] * key[a] for a in range(8)) for key in k])
    return products / 8**0.5 if score == "scaled_dot" else products


@pytest.mark.parametrize("score", SCORES)
def test_a_step_against_a_slow_loop(score: str) -> None:
    model = net(score)
    batch = batch_of(DATA.train[:1], DATA.alphabet)
    memory, state = model.encode(batch.source)
    context, _, pattern = model.step(model.target(batch.given[:, 0]), state, memory)
    q = model.attn.query.weight @ state[0]
    k = [model.attn.key.weight @ h for h in memory.states[0]]
    weights = by_hand(model, score, q, torch.stack(k)).softmax(0)
    torch.testing.assert_close(pattern[0], weights)
    torch.testing.assert_close(
        context[0], sum(w * h for w, h in zip(weights, memory.states[0], strict=True))
    )


def test_variants_start_from_the_same_weights() -> None:
    nets = {score: dict(net(score, seed=4).named_parameters()) for score in SCORES}
    shared = nets["dot"].keys()
    assert nets["additive"].keys() - shared == {"attn.score.v"}
    for name in shared:
        assert torch.equal(nets["additive"][name], nets["dot"][name])
        assert torch.equal(nets["scaled_dot"][name], nets["dot"][name])
    assert not torch.equal(net(seed=5).head.weight, nets["additive"]["head.weight"])


def test_dropout_acts_only_in_training() -> None:
    model, batch = net(dropout=0.5), batch_of(DATA.train[:6], DATA.alphabet)
    still = model(batch.source, batch.given)
    assert torch.equal(still, model(batch.source, batch.given))
    model.train()
    assert not torch.equal(still, model(batch.source, batch.given))


@pytest.mark.parametrize("changed", [{"n_embd": 0}, {"hidden_size": 0}, {"dropout": 1.0}])
def test_sizes_out_of_range(changed: dict[str, float]) -> None:
    (name,) = changed
    settings = {"n_embd": 4, "hidden_size": 4, "dropout": 0.0} | changed
    with pytest.raises(ValueError, match=f"{name} = "):
        Translator(partial(Aligner, score=aligner.dot, size=4), 9, **settings)  # type: ignore[arg-type]


def test_a_width_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attn\.size = 0 must be at least 1"):
        net(size=0)


def test_a_parameter_without_a_rule_is_refused() -> None:
    model = net()
    model.gain = torch.nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"gain .* no rule"):
        init_weights(model, 0)
