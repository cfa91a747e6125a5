"""What `look` remarks, and that the comparison page shows what runs say as text."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import attnlab
from attnlab.pages.attention_maps import equal_heads, sharp_layers, where_it_looks
from attnlab.pages.comparison import comparison_page
from attnlab.probes.capture import View
from attnlab.probes.history import as_history, snapshot
from attnlab.runs.compared_runs import compared_runs
from attnlab.runs.frame import read_runs
from tests.invented import write_run


def view_of(size: float, *, equal: bool = False) -> View:
    """A causal layer of three heads whose scores are N(0, size^2)."""
    mask = torch.ones(24, 24).tril().bool()
    scores = size * torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    if equal:
        scores[:, 2] = scores[:, 0]
    pattern: Tensor = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    return View(0, nn.Identity(), pattern, mask)


def test_equal_heads_are_named() -> None:
    assert [*equal_heads([view_of(1.0)])] == []
    (said,) = equal_heads([view_of(1.0, equal=True)])
    assert "L0" in said and "0 and 2" in said and "1" not in said


def test_a_head_that_sees_one_key_is_no_error() -> None:
    one_key = View(0, nn.Identity(), torch.eye(8)[None, None], torch.eye(8).bool())
    assert "one key" in where_it_looks(one_key, 0)
    assert "not a number" in where_it_looks(
        View(0, nn.Identity(), torch.eye(8)[None, None] * torch.nan, torch.eye(8).bool()), 0
    )


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.8, "mostly the character “␣” (80%)"), (0.2, "often the first character (40%")],
)
def test_a_symbol_that_a_head_favors_is_named(share: float, said: str) -> None:
    labels = [*"ab cd ef gh ij kl mn op qr"]  # each third is a space
    mask = torch.ones(len(labels), len(labels)).tril().bool()
    spaces = torch.tensor([label == " " for label in labels])
    weights = []
    for row in mask:
        # A few other keys share the rest, so that the head is not spread out.
        of = spaces & row
        others = (~spaces & row).nonzero().flatten()[:2]
        pattern = torch.zeros(len(labels))
        pattern[others] = (1 - share if of.any() else 1) / len(others)
        if of.any():
            pattern[of] = share / of.sum()
        weights.append(pattern)
    view = View(0, nn.Identity(), torch.stack(weights)[None, None], mask)
    assert where_it_looks(view, 0, labels=labels).startswith(said)
    assert "␣" not in where_it_looks(view, 0)


def test_a_layer_with_sharp_patterns_is_named(tmp_path: Path) -> None:
    assert [*sharp_layers([view_of(1.0)], tmp_path)] == []
    (said,) = sharp_layers([view_of(16.0)], tmp_path)
    assert "L0" in said and "scale" in said


def test_the_start_of_a_run_is_what_its_history_says(tmp_path: Path) -> None:
    start, end = view_of(16.0), view_of(1.0)
    for first, n in ((start, 1), (end, 0)):
        history = as_history("x" * 24, [end], [snapshot([first], 0), snapshot([end], 8)])
        (tmp_path / "history.json").write_text(json.dumps(history))
        said = [*sharp_layers([end], tmp_path)]
        assert len(said) == n and all("at the start (entropy 0.06" in text for text in said), said


def test_the_page_of_a_comparison_escapes_names(tmp_path: Path) -> None:
    for seed in (0, 1):
        for variant, loss in (("sdpa", 2.0), ("<b>own", 2.1)):
            losses = [3.0, 2.5, loss]
            write_run(tmp_path, variant, seed, loss, curves={"val/loss": losses})
    text = comparison_page(compared_runs(read_runs(tmp_path)))
    assert "<b>own" not in text and "&lt;b&gt;own" in text
    assert "<h1>&lt;b&gt;own, compared with sdpa</h1>" in text
    assert "2 seeds are too few for a verdict" in text and "seed=range(10)" in text
    assert (
        text.count("<svg") == 1
        and "loss by step" in text
        and "0.1000" in text
        and "<script" not in text
    )


def test_the_page_of_a_comparison_says_what_was_trained_and_what_its_words_mean(
    tmp_path: Path,
) -> None:
    sizes = {"model": {"n_layer": 3, "n_embd": 48, "init": "gpt2"}}
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1), ("none", 2.5)):
        for seed in range(3):
            write_run(tmp_path, variant, seed, loss + seed / 100, settings=sizes)
    page = comparison_page(compared_runs(read_runs(tmp_path)))
    rows = dict(
        re.findall(r"<th>([^<]+)</th>\s*<td>([^<]+)</td>", page.partition("trained</h2>")[2])
    )
    assert (rows["layers"], rows["channels"], rows["steps"]) == ("3", "48", "8")
    assert (rows["learning rate"], rows["data"], rows["seeds"]) == ("0.001", "plays", "0, 1, 2")
    assert rows["start of queries and keys"] == "gpt2"
    assert {"nats", "keeps", "seeds"} <= {*re.findall("<dt>([^<]+)</dt>", page)}


def test_the_page_of_judged_losses_has_no_model() -> None:
    rows = [(name, seed, 2.0 + seed) for name in ("base", "<i>own") for seed in range(3)]
    found = attnlab.judge(pd.DataFrame(rows, columns=["run", "seed", "value"]))
    page = comparison_page(found)
    assert "What was trained" not in page and "<dt>nats" not in page and "&lt;i&gt;own" in page
