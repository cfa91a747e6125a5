"""docs/playground.html in a browser: its numbers agree with attnlab's measures."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnlab.attention.masks import build_mask, causal
from attnlab.probes import measures
from tests.browser import Browser, chromium
from tests.conftest import ROOT

pytestmark = pytest.mark.long
PAGE = ROOT / "docs" / "playground.html"


@pytest.fixture(scope="module")
def started() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def browser(started: Browser) -> Iterator[Browser]:
    started.open(PAGE)
    yield started
    assert started.messages() == []
    assert started.requests() == []


def set_to(browser: Browser, **values: object) -> dict[str, Any]:
    """Move the controls as a user does, and return the last result with its theory."""
    for name, value in values.items():
        browser.run(
            f"(() => {{ const e = document.getElementById('{name}'); e.value = '{value}';"
            "e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )
    found: dict[str, Any] = browser.run("last")
    return found


def shown(browser: Browser, name: str) -> float:
    return float(browser.find(f"#{name}").text)


def test_measured_numbers_are_those_of_the_measures(browser: Browser) -> None:
    found = set_to(browser, D=4, T=20, scale="one")["result"]
    pattern = torch.tensor(found["pattern"], dtype=torch.float64)[None, None]
    mask = build_mask(causal, 20)
    assert found["entropy"] == pytest.approx(float(measures.entropy_nats(pattern, mask)))
    assert found["largest"] == pytest.approx(float(measures.largest_weight(pattern, mask)))
    assert found["gradient"] == pytest.approx(float(measures.jacobian_trace(pattern, mask)))
    assert shown(browser, "largest") == pytest.approx(found["largest"], abs=0.005)


@pytest.mark.parametrize("width", [0, 6, 10])
@pytest.mark.parametrize("scale", ["root", "one", "inverse"])
def test_theory_is_the_random_energy_model(width: int, scale: str, browser: Browser) -> None:
    found = set_to(browser, D=width, T=64, mask="none", scale=scale)
    std = math.sqrt(2**width) * {"root": 2 ** (-width / 2), "one": 1, "inverse": 2**-width}[scale]
    assert found["theory"]["std"] == pytest.approx(std)
    entropy, trace = measures.random_energy(std, torch.tensor([64]))
    assert found["theory"]["entropy"] == pytest.approx(float(entropy), rel=0.05, abs=0.02)
    assert found["theory"]["gradient"] == pytest.approx(float(trace), rel=0.05, abs=0.02)
    if width == 10:  # at D = 1, scores are products of two numbers, which are not Gaussian
        assert found["result"]["std"] == pytest.approx(std, rel=0.1)
        assert found["result"]["entropy"] == pytest.approx(float(entropy), rel=0.15, abs=0.06)


def test_without_the_scale_the_softmax_saturates(browser: Browser) -> None:
    scaled = set_to(browser, D=9, scale="root")["result"]
    assert set_to(browser, scale="one")["result"]["largest"] > 0.9 > 0.4 > scaled["largest"]
    assert shown(browser, "gradient") < 0.1 < 0.8 < scaled["gradient"]


def test_the_mask_is_drawn_and_applied(browser: Browser) -> None:
    for mask, zero in (("causal", lambda i, j: j > i), ("flipped", lambda i, j: j < i)):
        pattern = set_to(browser, mask=mask, T=16)["result"]["pattern"]
        assert all((pattern[i][j] == 0) == zero(i, j) for i in range(16) for j in range(16))
        assert [sum(row) for row in pattern] == pytest.approx([1.0] * 16)


def test_drawing_again_changes_the_numbers_and_pointing_shows_the_row(browser: Browser) -> None:
    before = browser.run("last.result.entropy")
    browser.find("#again").click()
    assert browser.run("last.result.entropy") != before
    cell = float(browser.run("document.getElementById('map').dataset.cell"))
    browser.point("#map", 40, 5.5 * cell)
    assert browser.find("#row").text.startswith("Query 5 reads key ")


def test_three_tokens_by_hand(browser: Browser) -> None:
    cells = "r => [...r.children].map(c => c.textContent)"
    rows = f"[...document.querySelectorAll('#steps tr')].map({cells})"
    assert browser.run(rows)[3] == [
        *("3", "0.693, 1.099, 1.792", "2, 3, 6", "11"),
        *("0.182, 0.273, 0.545", "(0.727, 0.818)"),
    ]
    browser.find("#hand-mask").click()
    assert browser.run(rows)[1][2:5] == ["2, 0, 0", "2", "1, 0, 0"]
    browser.find("#hand-scale").click()
    assert browser.run(rows)[3][1] == "0.98, 1.554, 2.534"


@pytest.mark.parametrize("width", [390, 1280])
def test_the_playground_fits_the_window(width: int, browser: Browser) -> None:
    browser.open(PAGE, width=width, dark=True)
    assert browser.run("document.documentElement.scrollWidth") <= width
