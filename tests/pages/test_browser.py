"""The pages in Chromium, where it is installed: what a reader sees on wide and narrow screens."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attnlab.pages.comparison import comparison_page
from attnlab.pages.explorer import explore
from attnlab.plotting.maps import shades
from attnlab.probes.capture import View
from attnlab.probes.history import as_history, snapshot
from attnlab.runs.compared_runs import compared_runs
from attnlab.runs.frame import read_runs
from tests.invented import write_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
TOKENS = ["a", " ", "<b>", "\n"]

# What a reader does (DO) and sees; `data-ready` is set by the page.
PROBE = """<script>
addEventListener("error", (event) => { document.title = `ERROR ${event.message}`; });
const waiting = setInterval(() => {
  if (!document.body.dataset.ready) return;
  clearInterval(waiting);
  const seen = {};
  const all = (selector) => [...document.querySelectorAll(selector)];
  const pixels = (c) => [...c.getContext("2d").getImageData(0, 0, c.width, c.height).data];
  const look = (name) => {
    seen[name] = all("output, .words, .facts, .heads span, h2").map((x) => x.textContent);
  };
  DO
  seen.wide = document.documentElement.scrollWidth - innerWidth;
  seen.width = innerWidth;
  seen.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  seen.ink = getComputedStyle(document.body).color;
  parent.postMessage(seen, "*");
}, 20);
</script></body>"""
# The window of a browser has a smallest width, and a frame has none.
FRAMES = """<!doctype html><script>
const all = [];
onmessage = ({ data }) => {
  all.push(data);
  if (all.length === 2) document.body.textContent = `SEEN${JSON.stringify(all)}END`;
};
</script><body><iframe src="page.html" style="width: 1280px; height: 900px; border: 0"></iframe>
<iframe src="page.html" style="width: 390px; height: 900px; border: 0"></iframe></body>"""


def visit(folder: Path, content: str, do: str, *, dark: bool) -> list[Any]:
    """What PROBE sees of a page on a screen of 1,280 and on one of 390 pixels."""
    if "script-src" not in content:  # a page without a script forbids all
        content = content.replace("style-src", "script-src 'unsafe-inline'; style-src")
    (folder / "page.html").write_text(content.replace("</body>", PROBE.replace("DO", do)))
    (folder / "frames.html").write_text(FRAMES)
    done = subprocess.run(
        [
            *(str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--user-data-dir={folder / 'profile'}", "--window-size=1800,1900"),
            *("--virtual-time-budget=8000", f"--blink-settings=preferredColorScheme={1 - dark}"),
            (folder / "frames.html").as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    found = re.findall(r"SEEN(\[.*?)END", unescape(done.stdout))
    assert len(found) == 1, done.stdout[:500]
    both = sorted(json.loads(found[0]), key=lambda seen: -seen["width"])
    assert [seen["width"] for seen in both] == [1280, 390]
    for seen in both:
        assert seen["dark"] == dark and seen["wide"] <= 0
        assert seen["ink"] == ("rgb(255, 255, 255)" if dark else "rgb(0, 0, 0)")
    return both


def views(step: int, pattern: Tensor) -> dict[str, Any]:
    mask = torch.ones(4, 4).tril().bool()
    seen = [View(0, nn.Identity(), pattern[None], mask)]
    return as_history(TOKENS, seen, [snapshot(seen, step, 3.0 - step / 10)])


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Tensor]:
    """A run with three heads at two steps, and its patterns at the end (3, 4, 4): head 1 equals
    head 0, and head 2 leaks, has a negative weight and a row of NaN."""
    even = torch.ones(3, 4, 4).tril()
    even /= even.sum(-1, keepdim=True)
    last = torch.zeros(3, 4, 4)
    for row in range(4):
        last[:, row, max(0, row - 1)] = 1
    last[2, 0] = torch.tensor([0.25, 0.75, 0, 0])
    last[2, 2] = torch.tensor([-0.5, 1, 0.5, 0])
    last[2, 3] = torch.nan
    history = views(0, even)
    history["snapshots"] += views(8, last)["snapshots"]
    folder = write_run(tmp_path, "<i>own", 0, 2.2, folder=tmp_path / "a" / "b")
    (folder / "history.json").write_text(json.dumps(history))
    return folder, last


@pytest.mark.parametrize("dark", [False, True])
def test_the_explorer(run: tuple[Path, Tensor], tmp_path: Path, dark: bool) -> None:
    do = """
    look("end");
    seen.maps = all(".heads canvas").map(pixels);
    all(".heads button")[1].click();
    document.querySelector(".text span").dispatchEvent(new Event("pointerenter"));
    look("other");
    const slider = document.querySelector("#step");
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    const key = new KeyboardEvent("keydown", { key: "ArrowDown" });
    document.querySelector(".large").dispatchEvent(key);
    look("start");
    seen.large = document.querySelector(".large").clientWidth;
    """
    for seen in visit(tmp_path, explore(run[0]), do, dark=dark):
        step, name, facts, *heads, words = seen["end"]
        assert (step, name, heads) == ("step 8", "<i>own", ["L0H0", "L0H1 = L0H0", "L0H2"])
        assert "loss 2.200 nats" in facts and words == "L0H0: “↵” (3) reads “<b>” (2) 1.00"
        assert seen["other"][-1] == "L0H1: “a” (0) reads “a” (0) 1.00"
        assert seen["start"][0] == "step 0" and "loss 3.000" in seen["start"][2]
        assert seen["start"][-1] == "L0H1: “␣” (1) reads “a” (0) 0.50, “␣” (1) 0.50"
        assert 300 < seen["large"] <= seen["width"]
        mask = np.tri(4, dtype=bool)
        for shown, pattern in zip(seen["maps"], run[1].numpy(), strict=True):
            blocked = ~mask & (pattern == 0)
            got = np.array(shown).reshape(4, 4, 4)[..., :3]
            assert len({*map(tuple, got[blocked])}) == 1 and dark == (got[blocked].max() < 128)
            if dark:
                assert_bright_where_large(got, np.where(blocked, np.nan, pattern))
            else:
                expected = shades(pattern, mask).astype(int)
                assert abs(got - expected)[~blocked].max() <= 4  # bytes of roots and of a map


def assert_bright_where_large(colors: np.ndarray, pattern: np.ndarray) -> None:
    """On a dark page, a larger weight is brighter, and 1 is nearly white."""
    known = np.isfinite(pattern)
    weights, brightness = abs(pattern[known]), colors[known].mean(-1)
    order = np.argsort(weights, kind="stable")
    rises = np.diff(brightness[order]) >= -25  # of three hues, which are not equally bright
    assert rises.all(), (weights[order], brightness[order])
    assert brightness[weights == 0].max(initial=0) < 40
    assert brightness[weights == 1].min(initial=255) > 200


@pytest.mark.parametrize("dark", [False, True])
def test_the_explorer_says_what_a_run_has_not_recorded(tmp_path: Path, dark: bool) -> None:
    # The first run has patterns from the start on, the second at its end alone, and in a layer
    # where each query sees one key.
    early = write_run(tmp_path, "sdpa", 0, 2.0, folder=tmp_path / "lab" / "sdpa" / "seed=0")
    late = write_run(tmp_path, "none", 0, 2.5, folder=tmp_path / "lab" / "none" / "seed=0")
    even = torch.ones(1, 4, 4).tril()
    history = views(0, even / even.sum(-1, keepdim=True))
    (early / "history.json").write_text(json.dumps(history))
    itself = View(1, nn.Identity(), torch.eye(4)[None, None], torch.eye(4).bool())
    at_end = as_history(TOKENS, [itself], [snapshot([itself], 8)])
    (late / "history.json").write_text(json.dumps(at_end))
    do = """
    const told = () => all(".gap").map((x) => x.textContent);
    seen.end = told();
    const slider = document.querySelector("#step");
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    seen.start = told();
    seen.pale = all("section").map((x) => x.classList.contains("unrecorded"));
    look("page");
    seen.heading = document.querySelector("h1").textContent;
    """
    for seen in visit(tmp_path, explore(early, late), do, dark=dark):
        assert seen["end"] == ["", ""] and seen["start"][0] == ""
        assert "no patterns before step 8" in seen["start"][1]
        assert seen["pale"] == [False, True] and "2 models" in seen["heading"]
        said = " ".join(seen["page"])
        assert "NaN" not in said and "L1H0" in said and "one key only" in said


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_of_a_comparison(tmp_path: Path, dark: bool) -> None:
    for variant, loss in (("sdpa", 2.0), ("unscaled", 2.1), ("flipped", 0.1)):
        mass = 0.9 if variant == "flipped" else 0.0
        curve = {"val/loss": [3.0, 2.5, loss]}
        write_run(tmp_path / "lab", variant, 0, loss, curves=curve, future_mass=mass)
    do = """
    const leak = all("td").filter((x) => x.textContent === "leak");
    seen.leak = leak.map((x) => x.getBoundingClientRect().right);
    seen.figures = all("svg").map((x) => x.getBoundingClientRect().width);
    """
    for seen in visit(
        tmp_path, comparison_page(compared_runs(read_runs(tmp_path / "lab"))), do, dark=dark
    ):
        assert len(seen["figures"]) == 1 and min(seen["figures"]) > 300
        assert len(seen["leak"]) == 1 and seen["leak"][0] <= seen["width"]  # without scrolling
