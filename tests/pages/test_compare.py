"""`attnlab compare`: one page with paired differences from the baseline."""

import io
import json
import re
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attnlab.attention.masks import causal, flipped
from attnlab.errors import BadInput
from attnlab.pages.compare import compare
from tests import command_line as commands
from tests.browser import Browser, chromium
from tests.pages import invented


def run(root: Path, variant: str, seed: int, loss: float, **changes: Any) -> Path:
    """A run directory with a validation loss, and a history where the seed is 0."""
    mask = flipped if variant == "flipped" else causal
    kept = invented.content(may_attend=mask) if seed == 0 else None
    status = changes.pop("status", "finished")
    folder = invented.run(root, variant, kept, seed=seed, status=status)
    metrics = invented.METRICS | {"status": status, "variant": variant, "seed": seed}
    metrics |= {"val_loss": loss, "loss_by_position": [loss + 1, loss], "steps": 30}
    metrics |= changes
    (folder / "metrics.json").write_text(json.dumps(metrics))
    settings = {"seed": seed, "attn": {"scale": 1.0 if variant == "unscaled" else None}}
    (folder / ".hydra" / "config.yaml").write_text(json.dumps(settings | {"optim": {"lr": 0.1}}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed, base in enumerate((2.0, 3.0)):
        run(tmp_path, "sdpa", seed, base)
        run(tmp_path, "unscaled", seed, base + 0.1 + seed / 100)
    run(tmp_path, "flipped", 0, 0.5)
    run(tmp_path, "flipped", 1, float("nan"), status="diverged")
    return tmp_path


def rows(page: str) -> dict[str, list[str]]:
    """The cells of each table row of the page, by the first cell."""
    found = {}
    for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL):
        cells = [re.sub("<.*?>", "", x) for x in re.findall(r"<t[dh].*?</t[dh]>", row)]
        found.setdefault(cells[0], cells[1:])  # before the table of heads
    return found


def test_differences_are_paired_by_seed_as_in_the_table(runs: Path) -> None:
    table = rows(compare([runs]))
    headings = ["mean val loss", "median diff", "lowest to highest", "better in", "runs"]
    assert table["setting"] == headings
    assert table["sdpa"] == ["2.5000", "baseline", "", "", "2: finished"]
    assert table["unscaled"][1:4] == ["+0.1050", "+0.100 to +0.110", "0 of 2"]
    assert table["flipped"][1] == "diverged"  # the median of -1.5 and infinity
    assert table["flipped"][-1] == "2: 1 finished, 1 diverged at 30"
    # sdpa, the baseline, comes first
    assert table["attn.scale"] == ["1/sqrt(D)", "1/sqrt(D)", "1"]
    assert "optim.lr" not in table  # the same everywhere


def test_a_run_that_diverged_counts_as_worse_even_if_its_loss_is_finite(runs: Path) -> None:
    run(runs, "cosine", 0, 2.5)
    run(runs, "cosine", 1, 2.5, status="diverged")
    row = rows(compare([runs]))["cosine"]
    assert row[:4] == ["2.5000", "diverged", "-", "0 of 2"]


def test_sweeps_of_one_name_in_two_directories_are_two_settings(runs: Path) -> None:
    for place, loss in (("a", 2.0), ("b", 2.5)):
        run(runs / place / "lab", "sdpa", 0, loss)
    table = rows(compare([runs / "a", runs / "b"]))
    first, second = (f"sdpa ({place}/lab)" for place in ("a", "b"))
    assert table[first][:2] == ["2.0000", "baseline"]
    assert table[second][:2] == ["2.5000", "baseline"]


def test_runs_are_named_one_by_one_or_by_their_directory(runs: Path) -> None:
    both = [runs / "attn=sdpa" / "seed=0", runs / "attn=unscaled"]
    table = rows(compare([*both, both[0]]))
    assert table["sdpa"][-1] == "1: finished"
    assert table["unscaled"][1] == "+0.1000" and table["unscaled"][-1] == "2: finished"
    assert "flipped" not in table


def test_a_model_that_reads_ahead_is_marked(tmp_path: Path) -> None:
    """Its loss is low, but no measure of prediction."""
    run(tmp_path, "sdpa", 0, 2.0)
    run(tmp_path, "flipped", 0, 0.5, probes={"attn/future_mass": 0.4})
    run(tmp_path, "unscaled", 0, 2.1, probes={"attn/future_mass": 0.0})
    table = rows(compare([tmp_path]))
    assert table["flipped"][1:3] == ["leak", "-"]
    assert table["unscaled"][1] == "+0.1000"


def test_losses_on_different_texts_have_no_difference(runs: Path) -> None:
    run(runs / "other", "unscaled", 0, 2.5, corpus={"name": "text", "sha256": "b"})
    page = compare([runs / "attn=sdpa", runs / "other"])
    assert "2 different texts" in page
    assert "+0.5" not in page


def test_the_title_states_the_finding_and_sentences_follow(runs: Path) -> None:
    page = compare([runs / "attn=sdpa", runs / "attn=unscaled"])
    finding = "unscaled ends 0.105 nats worse than sdpa (median of 2 seeds; worse in 2 of 2)"
    assert f"<title>{finding}</title>" in page and f"<h1>{finding}</h1>" in page
    assert f"<p>{finding}." in page


def test_the_axes_have_text_as_text(runs: Path) -> None:
    page = compare([runs])
    for title in ("each seed minus the baseline", "loss by position"):
        assert f">{title}</text>" in page


def test_heads_are_columns_in_order_and_later_keys_are_orange(runs: Path) -> None:
    page = compare([runs])
    headings = re.findall(r"<th>(L[0-9]+H[0-9]+)</th>", page)
    assert headings == [f"L{i}H{j}" for i in range(invented.LAYERS) for j in range(invented.HEADS)]
    for variant in ("sdpa", "flipped"):
        image = re.search(f'base64,([^"]*)" alt="{variant}, L0H0', page)
        assert image is not None
        colors = np.asarray(Image.open(io.BytesIO(b64decode(image[1]))).convert("RGB")).astype(int)
        warm = colors[..., 0] > colors[..., 2] + 40
        assert warm.any() == (variant == "flipped")


def test_heads_are_shown_or_a_reason_is_given(runs: Path) -> None:
    page = compare([runs])
    assert page.count("data:image/png;base64,") == 3 * invented.LAYERS * invented.HEADS
    assert "unscaled, L1H2: pattern with an entropy of 0." in page
    (runs / "attn=sdpa" / "seed=0" / "history.json").unlink()
    assert "No maps of sdpa: " in compare([runs])


def test_maps_show_negative_weights_in_green(tmp_path: Path) -> None:
    for variant, negative in (("sdpa", False), ("differential", True)):
        folder = invented.run(tmp_path, variant, invented.content(negative=negative))
        maps = re.findall('data:image/png;base64,([^"]*)"', compare([folder]))
        pixels = [np.asarray(Image.open(io.BytesIO(b64decode(x))).convert("RGB")) for x in maps]
        red, green, blue = np.concatenate(pixels).astype(int).transpose(2, 0, 1)
        strong = (green > red + 30) & (green > blue + 30)
        assert (strong.mean() > 0.01) == negative


def test_the_page_loads_nothing_and_escapes_names(runs: Path) -> None:
    run(runs, "<b>bold<!b>", 0, 2.2)
    page = compare([runs])
    assert "&lt;b&gt;bold" in page and "<b>bold" not in page
    outside = re.findall(r"""(?:src|href)\s*=\s*["'](?!#|data:)[^"']*""", page)
    assert outside == [] and "url(http" not in page and "<script" not in page


def test_the_command(runs: Path) -> None:
    out = runs / "page.html"
    ended = commands.attnlab("compare", str(runs), "--html", str(out))
    assert ended.code == 0 and ended.out.endswith(f"{out}\n")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    ended = commands.attnlab("compare", str(runs), "--json", "--html", str(out))
    assert len(json.loads(ended.out)) == 3
    ended = commands.attnlab("compare", str(runs / "nowhere"), "--html", str(out))
    assert ended.code == 2 and "there is no directory" in ended.error
    of_seed = ("compare", str(runs), "--html", str(out), "--where")
    assert commands.attnlab(*of_seed, "attn!=flipped").code == 0
    page = rows(out.read_text(encoding="utf-8"))
    assert "unscaled" in page and "flipped" not in page
    ended = commands.attnlab(*of_seed, "attn=linear")
    assert ended.code == 2 and "none of 6 runs match --where attn=linear" in ended.error
    run(runs, "words", 0, 2.0, unit="word")
    with pytest.raises(BadInput, match="cannot share an axis"):
        compare([runs])


@pytest.fixture
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.mark.long
def test_a_browser_shows_the_page_at_any_width_without_a_request(
    runs: Path, browser: Browser
) -> None:
    (runs / "page.html").write_text(compare([runs]), encoding="utf-8")
    for width in (1280, 390):
        browser.open(runs / "page.html", width=width, dark=width == 390)
        assert browser.run("document.documentElement.scrollWidth") <= width
        assert browser.run("[...document.images].every(image => image.naturalWidth > 0)")
    assert browser.messages() == [] and browser.requests() == []
