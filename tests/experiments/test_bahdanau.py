"""The translator of experiments/bahdanau: its pairs, its scores, BLEU, and a short training."""

import importlib.util
import math

import pytest
import torch

from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location(
    "bah", ROOT / "experiments" / "bahdanau" / "train.py"
)
assert SPEC is not None and SPEC.loader is not None
bahdanau = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bahdanau)


def test_a_sentence_is_translated_with_its_alignment() -> None:
    pairs = bahdanau.make_pairs(2000)
    assert len({tuple(pair.source) for pair in pairs}) == 2000
    for pair in pairs:
        assert len(pair.of) == len(pair.target) and len({*pair.of}) == len(pair.of)
        if "the" in pair.source:
            assert pair.source[pair.of[pair.target.index("li")]] == "the"
        asked = pair.source[0] in ("do", "does", "did")
        assert (pair.target[-1] == "ka") == asked  # otherwise, the verb is last
        assert asked or pair.target[-1].endswith("e") or pair.target[-1].endswith("em")


@pytest.mark.parametrize("name", ["additive", "dot", "scaled dot"])
def test_a_score_is_its_formula(name: str) -> None:
    q, k, v = torch.randn(2, 4), torch.randn(2, 3, 4), torch.randn(4)
    for b in range(2):
        for s in range(3):
            each = {
                "additive": sum(v[i] * math.tanh(q[b, i] + k[b, s, i]) for i in range(4)),
                "dot": sum(q[b] * k[b, s]),
                "scaled dot": sum(q[b] * k[b, s]) / 2,
            }[name]
            got = bahdanau.SCORES[name](q, k, v)[b, s]
            assert float(got) == pytest.approx(float(each), abs=1e-5)


@pytest.mark.parametrize(
    ("said", "meant", "score"),
    [
        ("a b c d e", "a b c d e", 100.0),
        ("a b c d", "a b c d e", 100 * math.exp(1 - 5 / 4)),  # too short
        ("a b c d x", "a b c d e", 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25),
        ("a a a a a", "a b c d e", 0.0),
    ],
)
def test_bleu(said: str, meant: str, score: float) -> None:
    assert bahdanau.bleu([said.split()], [meant.split()]) == pytest.approx(score)


def test_padding_is_not_attended_to_and_the_scores_start_equal() -> None:
    pairs = bahdanau.make_pairs(20)
    words = bahdanau.Words(pairs)
    source, target = words.batch(pairs)
    nets = []
    for score in bahdanau.SCORES.values():
        torch.manual_seed(0)
        nets.append(bahdanau.Translator(score, len(words.words)))
    weights = [torch.cat([p.flatten() for p in net.parameters()]) for net in nets]
    assert all(torch.equal(weights[0], other) for other in weights)
    for net in nets:
        pattern = net(source, target)[1].detach()
        assert pattern[(source == 0)[:, None].expand_as(pattern)].max() == 0
        assert (pattern.sum(-1) - 1).abs().max() < 1e-5


def test_it_trains_and_draws(tmp_path, capsys) -> None:
    bahdanau.main(["--seeds=1", "--epochs=1", "--pairs=130", f"--out={tmp_path}"])
    lines = capsys.readouterr().out.splitlines()
    assert [line[:12].strip() for line in lines[1:]] == list(bahdanau.SCORES)
    svg = (tmp_path / "alignments.svg").read_text()
    assert svg.count("<image") == 6
