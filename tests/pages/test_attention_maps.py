"""`attnlab look` describes the patterns in words and draws them."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from attnlab.attention.masks import build_mask, causal, flipped
from attnlab.commands.cli import app, main
from attnlab.errors import BadInput
from attnlab.pages.attention_maps import look, where_it_looks
from attnlab.plotting import heatmaps
from attnlab.probes.capture import View

T = 20


def view(pattern: Tensor, mask: Tensor | None = None) -> View:
    mask = build_mask(causal, T) if mask is None else mask
    return View(0, nn.Identity(), pattern.expand(1, 1, T, T), mask, None, None)


def looks_back(by: int) -> Tensor:
    return torch.eye(T)[(torch.arange(T) - by).clamp(0, T - 1)]


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (looks_back(1), "mostly the previous character (100%)"),
        (looks_back(0), "mostly itself (100%)"),
        (looks_back(T), "mostly the first character (100%)"),
        (0.6 * looks_back(1) + 0.4 * looks_back(4), "mostly the previous character (60%)"),
        (0.4 * looks_back(1) + 0.6 * looks_back(4), "often the previous character (40%; "),
        (looks_back(4), "here and there (1.0 keys in effect, 4.0 characters back on average)"),
        (torch.full((T, T), torch.nan), "nowhere: its pattern is not a number"),
    ],
)
def test_words(pattern: Tensor, words: str) -> None:
    assert where_it_looks(view(pattern), 0).startswith(words)


def test_uniform_and_flipped_patterns_are_described() -> None:
    mask = build_mask(causal, T)
    assert where_it_looks(view(mask / mask.sum(-1, keepdim=True)), 0).startswith("spread out (")
    ahead = build_mask(flipped, T)
    assert where_it_looks(view(looks_back(-1), ahead), 0) == "mostly later characters (100%)"


def shows(page: heatmaps.Pixels, color: tuple[int, ...]) -> bool:
    """Whether a color fills many pixels of a page."""
    return int((page == color).all(-1).sum()) > 100


def page_of(values: np.ndarray, text: str = "a" * T) -> heatmaps.Pixels:
    mask = build_mask(causal, T).numpy()
    panel = heatmaps.Panel("", values.astype(np.float32), mask)
    return heatmaps.grid([panel], text, columns=1, heading="")


def test_the_page_shows_text_mask_edge_and_nan() -> None:
    mask = build_mask(causal, T).numpy()
    values = mask / mask.sum(-1, keepdims=True)
    plain = page_of(values)
    assert shows(plain, heatmaps.BLOCKED) and not shows(plain, heatmaps.NOT_A_NUMBER)
    green = plain[..., 1].astype(int) - plain[..., [0, 2]].max(-1)
    assert (green > 40).sum() > 100  # the edge of the mask
    assert not np.array_equal(plain, page_of(values, "ab" * 10))  # the characters are drawn
    values[3] = np.nan
    assert shows(page_of(values), heatmaps.NOT_A_NUMBER)


def test_a_redrawn_page_contains_nothing_of_the_last_one() -> None:
    mask = build_mask(causal, T).numpy()
    first, second = mask / mask.sum(-1, keepdims=True), np.eye(T)
    once = page_of(first)
    page_of(second)
    assert np.array_equal(once, page_of(first))


def test_weight_outside_the_mask_is_not_hidden() -> None:
    assert not shows(page_of(np.full((T, T), 1 / T)), heatmaps.BLOCKED)


def test_text_that_looks_like_a_formula_is_text() -> None:
    page_of(np.eye(T), "$x_{" + "$" * (T - 4))


@pytest.mark.parametrize("length", [2, 64, 256, pytest.param(1024, marks=pytest.mark.long)])
def test_any_length_fits_a_page(length: int) -> None:
    mask = np.tri(length, dtype=bool)
    panel = heatmaps.Panel("L0H0", mask.astype(np.float32) / 2, mask)
    page = heatmaps.grid([panel] * 2, "x" * length, columns=2, heading="wide " * 100)
    assert page.shape[1] < 8000 and page.shape[0] < 4000


def test_look_at_a_run(train: Callable[..., Any]) -> None:
    folder = train().folder
    result = CliRunner().invoke(app, ["look", str(folder), "--text", "the lazy dog"])
    assert result.exit_code == 0, result.output
    assert {"L0H0", "L0H1", "L1H0", "L1H1"} <= set(result.output.split())
    assert (folder / "look.png").read_bytes()[:4] == b"\x89PNG"
    seen = look(str(folder), "the lazy dog")
    assert [(layer, head) for layer, head, _ in seen.words] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "at least two characters"),
        ("t", "at least two characters"),
        ("the lazy dog and the fox", "block_size = 16"),
        ("the #", "alphabet lacks '#'"),
    ],
)
def test_text_that_does_not_fit(text: str, sentence: str, train: Callable[..., Any]) -> None:
    with pytest.raises(BadInput, match=sentence):
        look(str(train().folder), text)


def test_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a run directory"):
        look(str(tmp_path), "the")


def test_an_unwritable_page_is_one_sentence(
    train: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = str(train().folder)
    (tmp_path / "file").touch()
    out = f"{tmp_path}/file/page.png"
    monkeypatch.setattr(sys, "argv", ["attnlab", "look", run, "--text", "aa", "--out", out])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path}/file: ")


def test_layer_and_head_of_a_run(train: Callable[..., Any]) -> None:
    folder = str(train().folder)
    assert [name[:2] for name in look(folder, "the fox", head=1).words] == [(0, 1), (1, 1)]
    assert [name[:2] for name in look(folder, "the fox", layer=1).words] == [(1, 0), (1, 1)]
    whole, one = look(folder, "the fox"), look(folder, "the fox", layer=1, head=0)
    assert one.words == whole.words[2:3]
    for given, sentence in [({"layer": 2}, "layer = 2"), ({"head": -1}, "head = -1")]:
        with pytest.raises(BadInput, match=f"{sentence} must be one of 0 to 1"):
            look(folder, "the fox", **given)


def test_words_are_written_along_both_axes() -> None:
    mask = np.tri(4, dtype=bool)
    panel = heatmaps.Panel("", mask.astype(np.float32) / 4, mask)
    words = ["[CLS]", " look", "##ing", "a very long token indeed"]
    page = heatmaps.grid([panel], words, columns=1, heading="")
    blank = heatmaps.grid([panel], [" "] * 4, columns=1, heading="")
    assert page.shape > blank.shape  # room for the words
    ink = (page < 100).all(-1).sum() - (blank < 100).all(-1).sum()
    assert ink > 2 * 4 * 20  # pixels, of four words twice


def test_twelve_heads_of_a_long_text_fit_a_page() -> None:
    mask = np.tri(128, dtype=bool)
    panel = heatmaps.Panel("L0H0", mask.astype(np.float32) / 128, mask)
    page = heatmaps.grid([panel] * 12, [" token"] * 128, columns=12, heading="")
    assert page.shape[1] <= heatmaps.LARGEST_WIDTH
