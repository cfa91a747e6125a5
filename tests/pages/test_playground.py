"""docs/playground.html in Chromium, if it is installed: its numbers are those of the measures."""

import json
import math
import re
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch

from attnlab.attention.core import build_mask, causal
from attnlab.probes import measures
from experiments.unscaled.random_energy import random_energy
from tests.conftest import ROOT
from tests.pages.test_browser import BROWSER

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
# What a reader sets, and the result that the page shows for it.
SETTINGS = [
    {"D": 4, "T": 20, "scale": "one", "mask": "causal"},
    *({"D": D, "T": 64, "mask": "none", "scale": scale}
      for D in (0, 6, 10) for scale in ("root", "one", "inverse")),
    {"D": 4, "T": 16, "mask": "flipped", "scale": "root"},
]  # fmt: skip
PROBE = """<script>
addEventListener("error", (event) => { document.title = `ERROR ${event.message}`; });
addEventListener("load", () => {
  const found = SETTINGS.map((settings) => {
    for (const [name, value] of Object.entries(settings)) {
      const control = document.getElementById(name);
      control.value = value;
      control.dispatchEvent(new Event("input", { bubbles: true }));
    }
    return { ...last, shown: document.getElementById("largest").textContent };
  });
  const row = () => [...document.querySelectorAll("#steps tr")[3].children];
  found.push(row().map((cell) => cell.textContent));
  found.push(document.documentElement.scrollWidth - innerWidth);
  document.body.textContent = `SEEN${JSON.stringify(found)}END`;
});
</script></body>"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder: Path = tmp_path_factory.mktemp("playground")
    page = (ROOT / "docs" / "playground.html").read_text()
    probe = PROBE.replace("SETTINGS", json.dumps(SETTINGS))
    (folder / "page.html").write_text(page.replace("</body>", probe))
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=8000"]
    done = subprocess.run(
        [*command, (folder / "page.html").as_uri()], capture_output=True, text=True, timeout=200
    )
    (found,) = re.findall(r"SEEN(\[.*?)END", unescape(done.stdout))
    return list(json.loads(found))


def test_measured_numbers_are_those_of_the_measures(seen: list[Any]) -> None:
    found = seen[0]["result"]
    pattern = torch.tensor(found["pattern"], dtype=torch.float64)[None, None]
    mask = build_mask(causal, 20)
    assert found["entropy"] == pytest.approx(float(measures.entropy_nats(pattern, mask)))
    assert found["largest"] == pytest.approx(float(measures.largest_weight(pattern, mask)))
    assert found["gradient"] == pytest.approx(float(measures.jacobian_trace(pattern, mask)))
    assert float(seen[0]["shown"]) == pytest.approx(found["largest"], abs=0.005)


@pytest.mark.parametrize("row", range(1, 10))
def test_theory_is_the_random_energy_model(row: int, seen: list[Any]) -> None:
    width, scale, found = SETTINGS[row]["D"], SETTINGS[row]["scale"], seen[row]
    std = 2 ** (width / 2) * {"root": 2 ** (-width / 2), "one": 1, "inverse": 2**-width}[scale]
    assert found["theory"]["std"] == pytest.approx(std)
    entropy, trace = random_energy(std, torch.tensor([64]))
    assert found["theory"]["entropy"] == pytest.approx(float(entropy), rel=0.05, abs=0.02)
    assert found["theory"]["gradient"] == pytest.approx(float(trace), rel=0.05, abs=0.02)
    if width == 10:  # at D = 1, scores are products of two numbers, which are not Gaussian
        assert found["result"]["std"] == pytest.approx(std, rel=0.1)
        assert found["result"]["entropy"] == pytest.approx(float(entropy), rel=0.15, abs=0.06)


def test_masks_and_the_example_by_hand(seen: list[Any]) -> None:
    flipped = seen[10]["result"]["pattern"]
    assert all((flipped[i][j] == 0) == (j < i) for i in range(16) for j in range(16))
    assert [math.fsum(row) for row in flipped] == pytest.approx([1.0] * 16)
    by_hand = ["3", "0.693, 1.099, 1.792", "2, 3, 6", "11"]
    assert seen[11] == [*by_hand, "0.182, 0.273, 0.545", "(0.727, 0.818)"]
    assert seen[12] <= 0  # nothing is wider than the window
