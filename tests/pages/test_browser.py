"""The explorer page in a browser: pointer, slider, and keyboard control both models."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnlab.attention.masks import flipped
from attnlab.pages.explorer import explore
from tests.browser import Browser, chromium
from tests.pages import invented

pytestmark = pytest.mark.long
FIRST, SECOND = ".run0.large canvas", ".run1.large canvas"
STATE = "({...document.body.dataset})"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A causal model, and a model with equal heads that attends to the future."""
    root = tmp_path_factory.mktemp("runs")
    folders = [
        invented.run(root, "sdpa", invented.content()),
        invented.run(root, "flipped", invented.content(may_attend=flipped, equal=True)),
    ]
    explore(*folders).save(root / "page.html")
    return root / "page.html"


@pytest.fixture(autouse=True)
def clean(browser: Browser) -> Iterator[None]:
    """Checks that no test writes to the console or makes a network request."""
    browser.forget()
    yield
    assert browser.messages() == []
    assert browser.requests() == []


def cell(browser: Browser, query: int, key: int) -> tuple[float, float]:
    frame = browser.run("runs[0].frame")
    return (
        frame["left"] + (key + 0.5) * frame["cell"],
        frame["top"] + (query + 0.5) * frame["cell"],
    )


def state(browser: Browser) -> dict[str, str]:
    found: dict[str, str] = browser.run(STATE)
    return found


def picture(browser: Browser, selector: str) -> str:
    return str(browser.run(f"document.querySelector({selector!r}).toDataURL()"))


def test_pointing_at_a_cell_highlights_the_row_of_both_models(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    before = picture(browser, SECOND)
    browser.point(FIRST, *cell(browser, 22, 3))
    now = state(browser)
    assert (now["query"], now["key"], now["held"]) == ("22", "3", "false")
    for run in (0, 1):
        words = browser.find(f".run{run}.reads p").text
        assert words.startswith(f"“{invented.TEXT[22]}” (22) reads ")
        outlined = browser.run(f"runs[{run}].spans.findIndex(s => s.className.includes('query'))")
        assert outlined == 22
    assert "weight on" in browser.find(".run0.reads p").text
    assert ", later)" in browser.find(".run1.reads p").text
    assert ", later)" not in browser.find(".run0.reads p").text
    assert picture(browser, SECOND) != before


def test_the_words_name_the_largest_weights(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point(FIRST, *cell(browser, 22, 3))
    bytes_, text = browser.run("[...rowOf(runs[0], 22).bytes]"), invented.TEXT
    best = max(range(len(bytes_)), key=bytes_.__getitem__)
    weight = (bytes_[best] / 254) ** 2
    shown = {" ": "␣", "\n": "↵"}.get(text[best], text[best])
    words = browser.find(".run0.reads p").text
    assert f"reads “{shown}” ({best}) {weight:.2f}" in words
    pattern = invented.patterns(30, invented.build_mask(invented.causal, len(text)))[0, 0, 22]
    assert best == int(pattern.argmax()) and abs(weight - float(pattern.max())) < 0.004


def test_negative_weights_are_green_and_have_a_minus(browser: Browser, tmp_path: Path) -> None:
    folder = invented.run(tmp_path, "differential", invented.content(negative=True))
    explore(folder).save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    mask = invented.build_mask(invented.causal, len(invented.TEXT))
    row = invented.patterns(30, mask, negative=True)[0, 0, 22]
    key = int(row.argmin())
    browser.point(FIRST, *cell(browser, 22, key))
    said = re.search(rf"reads “.” \({key}\) −(0\.\d\d),", browser.find(".run0.reads p").text)
    assert said and abs(float(said[1]) + float(row[key])) < 0.01
    color = browser.run(f"getComputedStyle(runs[0].spans[{key}]).backgroundColor")
    red, green, blue = map(int, re.findall(r"\d+", color)[:3])
    assert green > red and green > blue
    assert "−1 negative weight" in browser.find(".legend").text


def test_a_click_holds_the_query_until_escape(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page)
    browser.point(FIRST, *cell(browser, 22, 3), click=True)
    assert state(browser)["held"] == "true"
    browser.point(FIRST, *cell(browser, 9, 3))
    assert state(browser)["query"] == "22"
    browser.press(Keys.ARROW_DOWN)
    assert state(browser)["query"] == "23"
    browser.press(Keys.ESCAPE)
    browser.point(FIRST, *cell(browser, 9, 3))
    assert (state(browser)["query"], state(browser)["held"]) == ("9", "false")


def test_pointing_at_a_character_highlights_what_it_reads(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.point(".run1 .text span:nth-child(9)", 3, 8)
    assert state(browser)["query"] == "8"
    lit = browser.run("runs[1].spans.map(s => s.style.background !== 'none')")
    assert lit[9] and not any(lit[:8])  # the flipped mask shows only later characters
    dimmed = browser.run("runs[0].spans.map(s => s.className.includes('blocked'))")
    assert dimmed == [i > 8 for i in range(len(invented.TEXT))]


def test_the_slider_and_the_keys_move_the_step(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page)
    assert state(browser)["step"] == "30"  # the page opens at the trained model
    last = picture(browser, SECOND)
    browser.find(".bar input").send_keys(Keys.ARROW_LEFT)
    assert state(browser)["step"] == "10" and picture(browser, SECOND) != last
    assert browser.find(".bar input").get_attribute("aria-valuetext") == "step 10 of 30"
    browser.run("document.activeElement.blur()")
    browser.press(Keys.HOME)
    assert state(browser)["step"] == "0"
    browser.press(Keys.ARROW_RIGHT)
    assert state(browser)["step"] == "3"
    browser.press(Keys.END)
    assert state(browser)["step"] == "30" and picture(browser, SECOND) == last
    assert "step 30" in browser.run("document.querySelector('[aria-live]').textContent")


def test_the_page_plays_and_stops(browser: Browser, page: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.open(page)
    assert state(browser)["playing"] == "false"  # nothing moves without input
    browser.press(" ")
    WebDriverWait(browser.driver, 10).until(lambda _: state(browser)["step"] not in ("0", "30"))
    browser.find(".bar button").click()
    stopped = state(browser)
    assert stopped["playing"] == "false" and stopped["step"] in ("3", "10")


def test_a_head_is_chosen_in_both_models(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.press("h")
    assert state(browser)["head"] == "L0H1"
    browser.find(".run1 .layer:nth-of-type(3) button:nth-of-type(3)").click()
    assert state(browser)["head"] == "L1H2"
    pressed = browser.run("document.querySelectorAll('button[aria-pressed=true]').length")
    assert pressed == 2
    assert browser.find(".run0 caption").text == "layer 1, head 2"


def test_a_click_in_a_curve_moves_to_the_nearest_step(browser: Browser, page: Path) -> None:
    browser.open(page)
    box = browser.find(".chart svg").rect
    browser.point(".chart svg", box["width"] * 0.45, box["height"] / 2, click=True)
    assert state(browser)["step"] == "10"
    assert browser.find(".chart h3").text.endswith("3.500 · 3.500")


def test_equal_heads_are_marked(browser: Browser, page: Path) -> None:
    browser.open(page)
    shown = (
        "[...document.querySelectorAll('.run%d .equal')].map(e => getComputedStyle(e).visibility)"
    )
    assert browser.run(shown % 0) == ["hidden", "hidden"]
    assert browser.run(shown % 1) == ["visible", "visible"]


def test_past_and_future_have_different_hues(browser: Browser, page: Path) -> None:
    for dark in (False, True):
        browser.open(page, dark=dark)
        hues = """((run) => {
            const T = run.T, colors = image(run, 0, 0).data;
            let blue = 0, red = 0;
            for (let i = 0; i < T; i++) for (let j = 0; j < T; j++) {
                const k = 4 * (i * T + j);
                if (rowOf(run, i).bytes[j] < 100) continue;
                if (colors[k + 2] > colors[k] + 20) blue++;
                if (colors[k] > colors[k + 2] + 20) red++;
            }
            return [blue, red];
        })(runs[RUN])"""
        blue, red = browser.run(hues.replace("RUN", "0"))
        assert blue > 30 and red == 0
        blue, red = browser.run(hues.replace("RUN", "1"))
        assert red > 30 and blue <= len(invented.TEXT)  # a query's own position


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_window(width: int, dark: bool, browser: Browser, page: Path) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    first, second = browser.find(FIRST).rect, browser.find(SECOND).rect
    assert first["y"] == second["y"] and first["width"] == second["width"]


def test_many_heads_fit_a_phone(browser: Browser, tmp_path: Path) -> None:
    kept = invented.content(heads=12)
    folders = [invented.run(tmp_path, name, kept) for name in ("sdpa", "mine")]
    explore(*folders).save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html", width=390)
    assert browser.run("document.documentElement.scrollWidth") <= 390
    left = "Math.max(...[...document.querySelectorAll('.run0 .layer button')].map(EDGE))"
    edge = browser.run(left.replace("EDGE", "b => b.getBoundingClientRect().right"))
    assert edge <= browser.find(".run1.heads").rect["x"]


def test_the_address_restores_the_view(browser: Browser, page: Path) -> None:
    browser.open(page, at="#step=3&head=L1H2")
    assert (state(browser)["step"], state(browser)["head"]) == ("3", "L1H2")
    browser.open(page, at="#step=4&head=L9H9")
    assert (state(browser)["step"], state(browser)["head"]) == ("30", "L1H2")


def test_losses_on_different_texts_have_no_difference(browser: Browser, tmp_path: Path) -> None:
    texts = {"sdpa": invented.TEXT, "manual": invented.TEXT[:20], "flipped": invented.TEXT[::-1]}
    runs = {x: invented.run(tmp_path, x, invented.content(text)) for x, text in texts.items()}
    for other, shown in (("manual", True), ("flipped", False)):
        explore(runs["sdpa"], runs[other]).save(tmp_path / "page.html")
        browser.open(tmp_path / "page.html")
        assert ("Difference in loss" in browser.find("aside").text) == shown


@pytest.mark.parametrize("other", ["nothing", "a run that diverged", "a longer text with markup"])
def test_unusual_pages_work(other: str, browser: Browser, tmp_path: Path) -> None:
    folders = [invented.run(tmp_path, "sdpa", invented.content())]
    if other == "a run that diverged":
        folders.append(invented.run(tmp_path, "x", invented.content(steps=(0, 3), nan_from=3)))
    if other == "a longer text with markup":
        text = '</script><img src=x onerror="alert(1)"><b>&amp;' * 2
        folders.append(invented.run(tmp_path, "x", invented.content(text)))
    explore(*folders).save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html", dark=True)
    assert browser.run("document.images.length") == 0
    if other == "a run that diverged":
        assert "maps end at step 3" in browser.find(".run1.name").text
        assert "NaN" in browser.find(".run1 table").text and "NaN" in browser.find(".legend").text
    if other == "a longer text with markup":
        assert "</script><img" in browser.find(".run1 .text").text
    browser.point(FIRST, *cell(browser, 12, 3))
    assert state(browser)["query"] == "12"


def test_a_single_snapshot_has_no_slider(browser: Browser, tmp_path: Path) -> None:
    folder = invented.run(tmp_path, "sdpa", invented.content(steps=(30,)))
    explore(folder).save(tmp_path / "page.html")
    browser.open(tmp_path / "page.html")
    assert not browser.find(".bar").is_displayed() and not browser.find("aside").is_displayed()
    browser.point(".run0 .text span:nth-child(9)", 3, 8)
    assert state(browser)["query"] == "8"


def test_it_works_in_the_frame_of_a_notebook(browser: Browser, tmp_path: Path, page: Path) -> None:
    shown = explore(invented.run(tmp_path, "sdpa", invented.content()))
    outer = f"<body data-ready=true>{shown._repr_html_()}</body>"
    (tmp_path / "notebook.html").write_text(outer, encoding="utf-8")
    browser.open(tmp_path / "notebook.html")
    browser.driver.switch_to.frame(0)
    try:
        assert browser.run("runs.length") == 1
        browser.find(".layer button:nth-of-type(2)").click()
        assert state(browser)["head"] == "L0H1"
    finally:
        browser.driver.switch_to.default_content()
