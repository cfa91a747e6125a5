"""The live page in a browser: its numbers are PyTorch's, and its controls do what they say."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from attnlab.data.corpora import encode
from attnlab.model import GPT
from attnlab.probes.capture import views
from tests.browser import Browser, chromium
from tests.pages.live_models import ALPHABET, MODELS, SUPPORTED, T, net_of, switched, write_page

pytestmark = pytest.mark.long
FP32, FP16 = 1e-4, 3e-2  # the largest difference of a logit
LOGITS = """((models, sw, texts) => texts.map(ids => {
    const r = run(models, sw, ids);
    return [...r.logits.subarray(0, ids.length * V)];
}))(models[%d], %s, %s)"""
STATES: dict[str, dict[str, Any]] = {
    "scores times sqrt(D)": {"power": 2},
    "scores over D": {"power": -4},
    "no mask": {"mask": "none"},
    "a flipped mask": {"mask": "flipped"},
    "a causal mask": {"mask": "causal"},
    "an even head and a cut one": {"heads": {"L0H1": "even", "L1H0": "cut"}},
    "one pattern": {"heads": {f"L{layer}H{head}": "2" for layer in (0, 1) for head in range(4)}},
    "everything": {"power": 1, "mask": "none", "heads": {"L0H0": "3", "L1H2": "even"}},
}


def random_texts(count: int = 20) -> list[list[int]]:
    stream = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, T + 1, (count,), generator=stream).tolist()
    lengths[:2] = [1, T]
    return [torch.randint(len(ALPHABET), (n,), generator=stream).tolist() for n in lengths]


def difference(
    browser: Browser, number: int, net: GPT, *, count: int = 20, **switches: Any
) -> float:
    """The largest difference between the page's logits and PyTorch's, on random texts."""
    texts, state = random_texts(count), {"power": 0, "mask": None, "heads": {}} | switches
    found = browser.run(LOGITS % (number, str(state).replace("None", "null"), texts))
    net, worst = switched(net, **switches) if switches else net, 0.0
    for ids, logits in zip(texts, found, strict=True):
        with torch.no_grad():
            expected = net(torch.tensor([ids]))[0]
        worst = max(worst, float((torch.tensor(logits).view_as(expected) - expected).abs().max()))
    return worst


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(autouse=True)
def clean(browser: Browser) -> Iterator[None]:
    """Checks that no test writes to the console or makes a network request."""
    browser.forget()
    yield
    assert browser.messages() == []
    assert browser.requests() == []


@pytest.fixture(scope="module")
def nets() -> dict[str, GPT]:
    """Every variant and every setting of the model that the page computes."""
    variants = {variant: net_of(variant) for variant in SUPPORTED}
    return variants | {name: net_of("sdpa", *settings) for name, settings in MODELS.items()}


@pytest.fixture(scope="module")
def all_models(nets: dict[str, GPT], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("live") / "all.html", nets)


@pytest.fixture(scope="module")
def windows() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(len(ALPHABET), (9, T + 1), generator=torch.Generator().manual_seed(2))
    return ids[:, :-1], ids[:, 1:]


@pytest.fixture(scope="module")
def lesson() -> dict[str, GPT]:
    return {name: net_of(name) for name in ("sdpa", "unscaled", "flipped", "identical_heads")}


@pytest.fixture(scope="module")
def page(lesson: dict[str, GPT], windows: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The four models of the lesson."""
    return write_page(tmp_path_factory.mktemp("live") / "page.html", lesson, windows=windows)


# ---- numbers


def test_every_model_is_equal_to_pytorch(
    browser: Browser, all_models: Path, nets: dict[str, GPT]
) -> None:
    browser.open(all_models)
    worst = {n: difference(browser, i, net) for i, (n, net) in enumerate(nets.items())}
    assert {name: x for name, x in worst.items() if not x < FP32} == {}
    assert not browser.find("#alarm").is_displayed()


@pytest.mark.parametrize("state", STATES)
def test_every_switch_is_equal_to_pytorch(
    state: str, browser: Browser, all_models: Path, nets: dict[str, GPT]
) -> None:
    browser.open(all_models)
    worst = {}
    for number, (name, net) in enumerate(nets.items()):
        if name == "single_head" and "heads" in STATES[state]:
            continue
        if name == "linear" and "power" in STATES[state]:
            continue  # it has no scale
        worst[name] = difference(browser, number, net, count=4, **STATES[state])
    assert {name: x for name, x in worst.items() if not x < FP32} == {}


@pytest.mark.parametrize(
    ("mistake", "plant"),
    [
        ("tanh GELU", "ACTIVATIONS.gelu = ACTIVATIONS.gelu_tanh"),
        ("another eps", "models[0].eps = 1e-6"),
        ("a shifted position", "positionOf = t => Math.min(t + 1, N - 1)"),
        ("unbiased variance", "norm = ((f) => (m, ...x) => f({...m, C: m.C}, ...x).map("
         "y => y * Math.sqrt((m.C - 1) / m.C)))(norm)"),
    ],
)  # fmt: skip
def test_planted_mistakes_are_found(
    mistake: str, plant: str, browser: Browser, all_models: Path, nets: dict[str, GPT]
) -> None:
    browser.open(all_models)
    browser.run(f"({plant}, 1)")
    assert difference(browser, 0, nets["sdpa"]) > 2 * FP32, mistake


def test_fp16_holds_its_tolerance_and_says_so(
    browser: Browser, nets: dict[str, GPT], tmp_path: Path
) -> None:
    browser.open(write_page(tmp_path / "page.html", nets, fp16=True))
    worst = [difference(browser, i, net) for i, net in enumerate(nets.values())]
    assert FP32 < max(worst) < FP16
    assert "Weights rounded" in said(browser, "#lead")
    assert not browser.find("#alarm").is_displayed()


def test_typing_computes_new_rows_only_and_the_same_numbers(
    browser: Browser, all_models: Path, nets: dict[str, GPT]
) -> None:
    browser.open(all_models)
    typed = """((m) => {
        const ids = [], from = [];
        let r = null, worst = 0;
        for (const id of [3, 1, 4, 1, 5, 9, -1, -1, 2, 6, 5]) {
            if (id < 0) ids.pop(); else ids.push(id);
            r = run(m, UNCHANGED(), ids.slice(), r); from.push(r.from);
            const fresh = run(m, UNCHANGED(), ids.slice());
            for (let i = 0; i < ids.length * V; i++)
                worst = Math.max(worst, Math.abs(r.logits[i] - fresh.logits[i]));
        }
        return [worst, from];
    })(models[%d])"""
    names = list(nets)
    for name in ("sdpa", "rotary", "as preset=fast"):
        worst, start = browser.run(typed % names.index(name))
        assert worst == 0 and start == [0, 1, 2, 3, 4, 5, 5, 4, 4, 5, 6]
    for name in ("flipped", "bidirectional", "peek_one"):
        worst, start = browser.run(typed % names.index(name))
        assert worst == 0 and set(start) == {0}


def test_the_page_checks_itself(browser: Browser, tmp_path: Path) -> None:
    file = write_page(tmp_path / "page.html", {"sdpa": net_of()})
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"eps":1e-05', '"eps":1e-2'), encoding="utf-8")
    browser.open(file)
    assert "other numbers than PyTorch" in said(browser, "#alarm")


def test_patterns_losses_and_probabilities(browser: Browser, page: Path, lesson: Any) -> None:
    browser.open(page)
    text = "Cabbage: Ei"
    set_text(browser, text)
    ids = encode(text, ALPHABET)[None]
    pattern = next(views(lesson["sdpa"], ids)).pattern[0, 2]
    n = len(text)
    shown = browser.run(
        f"Array.from({{length: {n}}}, (_, i) => "
        f"[...cols[0].r.layers[0].patterns[2].subarray(i * N, i * N + {n})])"
    )
    torch.testing.assert_close(torch.tensor(shown), pattern, rtol=0, atol=1e-5)
    with torch.no_grad():
        logits = lesson["sdpa"](ids)[0]
    loss = F.cross_entropy(logits[:-1], ids[0, 1:])
    assert said(browser, ".col0 .losses").splitlines()[-1] == f"loss on this text {loss:.3f}"
    p, best = logits[-1].softmax(0).max(0)
    symbol = {" ": "␣", "\n": "↵"}.get(ALPHABET[int(best)], ALPHABET[int(best)])
    assert said(browser, ".col0 .bars").split()[:2] == [symbol, f"{float(p):.2f}"]


# ---- controls


def set_text(browser: Browser, text: str) -> None:
    box = browser.find("#text")
    box.clear()
    box.send_keys(text)


def said(browser: Browser, selector: str) -> str:
    """What an element shows, after the next two frames have drawn it."""
    text = browser.run(f"document.querySelector({selector!r}).innerText")
    return str(text).replace("\t", " ").strip()


def right(browser: Browser) -> str:
    return said(browser, ".col1 h2")


def wait_for_validation(browser: Browser) -> list[str]:
    """The rows of the right table, once the page has measured its state."""
    from selenium.webdriver.support.ui import WebDriverWait

    done = "validOf(cols[1].r).count === data.windows.length"
    WebDriverWait(browser.driver, 30).until(lambda _: browser.run(done))
    rows: list[str] = said(browser, ".col1 .losses").splitlines()
    return rows


def test_the_cards(browser: Browser, page: Path) -> None:
    browser.open(page)
    expected = [
        ["sdpa, scores × 2.83", "sdpa, scores ÷ 2.83", "unscaled, as trained"],
        ["sdpa, no mask", "sdpa, mask flipped", "flipped, as trained"],
        ["sdpa, all heads like head 0", "sdpa, L0H0 cut", "identical_heads, as trained"],
    ]
    for card, titles in enumerate(expected, start=1):
        for button, title in enumerate(titles, start=1):
            pressed = f".card:nth-child({card}) button:nth-of-type({button})"
            browser.find(pressed).click()
            assert right(browser) == title
            assert said(browser, ".col0 h2") == "sdpa, as trained"
            on = browser.run("document.querySelectorAll('.acts [aria-pressed=true]').length")
            assert on == 1 and browser.find(pressed).get_attribute("aria-pressed") == "true"
    equal = "[...document.querySelectorAll('.col%d .equal.all')].length"
    assert (browser.run(equal % 0), browser.run(equal % 1)) == (0, 2)
    browser.find("#reset").click()
    assert right(browser) == "sdpa, as trained"


def test_without_trained_models_the_cards_name_the_run(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_page(tmp_path / "page.html", {"sdpa": net_of()}))
    names = [card.text for card in browser.driver.find_elements("css selector", ".acts .none")]
    assert [name.split()[-1] for name in names] == [
        *("attn=unscaled", "attn=flipped", "attn=identical_heads")
    ]
    assert "no validation loss" in browser.run("$('about').textContent")
    browser.find("#mask label:nth-child(2)").click()
    assert right(browser) == "sdpa, no mask"
    assert "a different experiment from training this way" in said(browser, ".col1 .story")


@pytest.mark.parametrize("state", ["a flipped mask", "everything"])
def test_the_validation_loss_of_a_state_is_pytorchs(
    state: str, browser: Browser, page: Path, lesson: Any, windows: Any
) -> None:
    browser.open(page)
    losses = []
    for net in (lesson["sdpa"], switched(lesson["sdpa"], **STATES[state])):
        with torch.no_grad():
            losses.append(
                float(F.cross_entropy(net(windows[0]).flatten(0, 1), windows[1].flatten()))
            )
    assert said(browser, ".col0 .losses").splitlines()[0].endswith(f"{losses[0]:.3f}")
    sw = str({"power": 0, "mask": None, "heads": {}} | STATES[state]).replace("None", "null")
    browser.run(f"(state.right = 0, state.sw = {sw}, compute())")
    row = wait_for_validation(browser)[0]
    change = f"{losses[1] - losses[0]:+.3f}".replace("-", "−")
    assert row == f"validation loss {losses[1]:.3f}{change}"


def test_a_head_is_made_even_copied_and_cut(browser: Browser, page: Path) -> None:
    browser.open(page, at="#model=0")
    row = "[...cols[1].r.layers[0].patterns[%d].subarray(5 * N, 5 * N + 6)]"
    trained = browser.run(row % 0)
    for number, name, expected in (
        (2, "even", [pytest.approx(1 / 6)] * 6),
        (4, "cut", [0] * 6),
        (3, "copied", trained),
    ):
        browser.find(f"#head label:nth-child({number})").click()
        assert browser.run(row % 0) == expected
        assert said(browser, "#head label:has(input:checked)") == name
        assert (browser.run(row % 3) == trained) == (name == "copied")
    assert right(browser) == "sdpa, layer 0 all like head 0"
    browser.find("#head label:nth-child(1)").click()
    assert right(browser) == "sdpa, as trained"
    assert browser.run(
        "cols.map(c => c.r.layers[0].patterns[3][N]).every((x, _, a) => x === a[0])"
    )


def test_the_scale_slider(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page, at="#model=0")
    browser.find("#power").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert right(browser) == "sdpa, scores × 2.83"
    assert said(browser, "#scale-told") == "0.35 → 1"
    scales = browser.run("cols.map(c => c.r.layers[0].scale)")
    assert scales == [pytest.approx(8**-0.5), pytest.approx(1)]


def test_why_a_weight_is_what_it_is(browser: Browser, page: Path, lesson: Any) -> None:
    browser.open(page, at="#model=0")
    set_text(browser, "Ed had a cab")
    browser.run("choose(9, 3)")
    words = said(browser, ".col0 .sum")
    net, ids = lesson["sdpa"], encode("Ed had a cab", ALPHABET)[None]
    view = next(views(net, ids))
    score, weight = float(view.scores[0, 0, 9, 3]), float(view.pattern[0, 0, 9, 3])
    dot = score * 8**0.5
    signed = [f"{x:.2f}".replace("-", "−") for x in (dot, score)]
    assert words.startswith("“c” (9) reads “h” (3): the 8 products sum to " + signed[0])
    assert f"= score {signed[1]};" in words
    assert f"is {weight:.3f}" in words or f"is {weight:.2f}" in words
    browser.run("choose(3, 9)")
    assert "blocked by the mask" in said(browser, ".col0 .sum")


def test_odd_texts(browser: Browser, page: Path) -> None:
    browser.open(page)
    for text, told, shown in (
        ("", "type at least one character", False),
        ("5ü", "do not know them: 5 ü", False),
        ("A", "a second character gives a loss", True),
        ("A5", "do not know it: 5", True),
        ("<img src=x onerror=alert(1)>", "do not know them", True),
        ("abc" * 20, f"the models read the last {T}", True),
    ):
        browser.run(f"($('text').value = {text!r}, $('text').dispatchEvent(new Event('input')))")
        assert told in browser.run("$('note').textContent"), text
        assert browser.find("#results").is_displayed() == shown
    assert browser.run("document.images.length") == 0
    browser.run("($('text').value = 'A', $('text').dispatchEvent(new Event('input')))")
    assert said(browser, ".col0 .losses").splitlines()[-1] == "loss on this text –"


def test_writing_on(browser: Browser, page: Path) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    browser.open(page, at="#model=0")
    for mask, same in ((1, True), (3, False)):
        browser.find(f"#mask label:nth-child({mask})").click()
        browser.find("#go").click()
        WebDriverWait(browser.driver, 30).until(lambda _: browser.run("!writing"))
        left, other = browser.run("state.wrote")
        assert len([*left]) == browser.run("WRITTEN") and (left == other) == same
        assert "nats per character" in said(browser, ".col1 .judged")
    browser.find("#text").send_keys("a")
    assert browser.run("state.wrote") == ["", ""]


def test_the_keyboard_and_the_screen_reader(browser: Browser, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.open(page)
    browser.find("#text").send_keys("hr")  # letters are text in the box
    assert browser.run("state.chars.slice(-1)[0]") == "h" and state(browser)["head"] == "L0H0"
    browser.press(Keys.ESCAPE)
    browser.press("h")
    assert state(browser)["head"] == "L0H1"
    browser.press("H")
    assert state(browser)["head"] == "L0H0"
    last = int(state(browser)["query"])
    browser.press(Keys.ARROW_UP)
    assert int(state(browser)["query"]) == last - 1
    browser.press(Keys.ARROW_RIGHT)
    assert (state(browser)["key"], state(browser)["held"]) == ("0", "true")
    spoken = browser.run("document.querySelector('[aria-live=polite]').textContent")
    assert spoken.startswith("L0H0. sdpa, as trained: “") and spoken.count(" reads ") == 2
    browser.find(".col0 .map").send_keys(Keys.ARROW_RIGHT)  # one stop of Tab for all maps
    assert state(browser)["head"] == "L0H1"
    assert browser.run("document.querySelectorAll('.col0 .map[tabindex=\"0\"]').length") == 1
    browser.press("r")
    assert right(browser) == "sdpa, as trained"
    unnamed = "[...document.querySelectorAll('canvas[role=img]')].filter(c => !c.ariaLabel).length"
    assert browser.run(unnamed) == 0


def state(browser: Browser) -> dict[str, str]:
    found: dict[str, str] = browser.run("({...document.body.dataset})")
    return found


def test_pointing_at_the_map_and_at_the_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    cell = browser.run("cols[0].cell")
    browser.point(".col0 .big", 2.5 * cell, 6.5 * cell)
    assert (state(browser)["query"], state(browser)["key"]) == ("6", "2")
    browser.point(".cell:nth-child(4)", 5, 50, click=True)
    assert (state(browser)["query"], state(browser)["held"]) == ("3", "true")
    browser.point(".col1 .big", 2.5 * cell, 6.5 * cell)
    assert state(browser)["query"] == "3"  # held


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_the_window(width: int, dark: bool, browser: Browser, page: Path) -> None:
    browser.open(page, width=width, dark=dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    first, second = browser.find(".col0 .big").rect, browser.find(".col1 .big").rect
    assert first["y"] == second["y"] and first["width"] == second["width"]
    if width == 390:
        browser.find("#sheet summary").click()
        sizes = browser.run(
            "[...document.querySelectorAll('button, select, summary, .pick span, #power')]"
            ".filter(e => e.offsetParent).map(e => e.getBoundingClientRect())"
            ".filter(r => r.height < 44 || r.width < 38).length"
        )
        assert sizes == 0


def test_the_address_restores_the_state(browser: Browser, page: Path) -> None:
    place = "#model=2&power=2&mask=none&heads=L0H1.even+L1H0.cut&head=L1H2&text=Bad+cab"
    browser.open(page, at=place)
    assert right(browser) == "flipped, scores × 2.83, no mask, L0H1 even, L1H0 cut"
    assert state(browser)["head"] == "L1H2" and browser.run("state.text") == "Bad cab"
    browser.open(page, at="#model=9&power=77&mask=x&heads=L0H1.boom&head=L9H9")
    assert right(browser) == "unscaled, as trained" and state(browser)["head"] == "L1H3"
