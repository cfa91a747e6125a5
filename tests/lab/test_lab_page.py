"""docs/lab.html: it is what scripts/lab.py builds, and works in Chromium from a file."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from scripts.lab import PAGE, built_page, engine_settings, read_entries, runs_of, unpacked
from tests.pages.test_browser import BROWSER

in_chromium = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --window-size=1400,1000"
).split()

# How many of 64 x 64 places a mask blocks.
CAUSAL = "sdpa unscaled flipped identical_heads zero_fill model_scale single_head".split()
BLOCKED = dict.fromkeys(CAUSAL, 2016)
BLOCKED |= {"peek_one": 1953, "bidirectional": 0, "none": 4032}

# What a reader does with the page, in its own scope; `seen` is what comes back.
READER = """<script>
const seen = { errors: [] };
addEventListener("error", (event) => seen.errors.push(event.message));
addEventListener("unhandledrejection", (event) => seen.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => seen.errors.push(event.blockedURI));
const until = (done) => new Promise((resolve) => {
  const waiting = setInterval(() => {
    if (document.body.dataset.failed) seen.errors.push(document.body.dataset.failed);
    if (!done() && !seen.errors.length) return;
    clearInterval(waiting);
    resolve();
  }, 20);
});
const text = (id) => document.getElementById(id).innerText;
(async () => {
  DO
  seen.requests = performance.getEntriesByType("resource").map((entry) => entry.name)
    .filter((name) => !name.startsWith("blob:"));
  parent.postMessage(seen, "*");
})();
</script></body>"""
# A frame has the width of a phone, which a window has not, and tells what was seen.
FRAME = """<!doctype html><body><iframe id="frame" src="page.htmlADDRESS"
style="width: 1280px; height: 800px; border: 0"></iframe><script>
onmessage = ({ data }) => {
  const letter = { method: "POST", mode: "no-cors", body: JSON.stringify(data) };
  if (data === "narrow") frame.style.width = "390px";
  else fetch("http://127.0.0.1:PORT", letter);
};
</script></body>"""


def visit(folder: Path, address: str, do: str, *, dark: bool = False) -> dict[str, Any]:
    """What a reader sees who does something with the page in Chromium, opened from a file."""
    arrived = threading.Event()
    seen: dict[str, Any] = {}

    class Mailbox(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    page = PAGE.read_text(encoding="utf-8")
    (folder / "page.html").write_text(page.replace("</body>", READER.replace("DO", do)))
    server = HTTPServer(("127.0.0.1", 0), Mailbox)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    frame = FRAME.replace("ADDRESS", address).replace("PORT", str(server.server_port))
    (folder / "frame.html").write_text(frame)
    command = [
        *(str(BROWSER), *FLAGS, f"--user-data-dir={folder / 'profile'}"),
        f"--blink-settings=preferredColorScheme={0 if dark else 1}",
        *("--remote-debugging-port=0", (folder / "frame.html").as_uri()),  # keeps it running
    ]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert arrived.wait(timeout=280), "the page did not answer"
    finally:
        browser.terminate()
        browser.wait()
        server.shutdown()
        server.server_close()
    assert seen["errors"] == [] and seen["requests"] == []
    return seen


TO_THE_END = """
  document.querySelectorAll("#answers button")[0].click();
  const { experiment } = page;
  const { models } = experiment;
  await until(() => experiment.stepsDone >= 2);
  document.getElementById("pause").click();
  document.getElementById("pause").click();  // goes on within the step
  document.getElementById("pause").click();
  await until(() => !experiment.looping);
  seen.stopped = experiment.stepsDone;
  seen.button = text("pause");
  document.querySelector("[data-id=own]").click();  // what has begun is kept
  document.querySelector(`[data-id=${experiment.lesson.id}]`).click();
  seen.kept = page.experiment === experiment && text("pause") === "Continue";
  document.getElementById("pause").click();
  await until(() => experiment.validating);
  seen.stoppable = !document.getElementById("pause").hidden;
  await until(() => !document.getElementById("result").hidden);
  seen.steps = experiment.models.map((model) => model.losses.length);
  seen.losses = experiment.models.map((model) => model.validated);
  const seeAnswer = () => {
    const top = document.getElementById("outcome").getBoundingClientRect().top;
    const { bottom } = document.getElementById("explained").getBoundingClientRect();
    return top >= 0 && bottom <= innerHeight;
  };
  seen.answer = seeAnswer();
  seen.table = text("losses");
  seen.command = text("command");
  seen.outcome = text("outcome");
  seen.said = experiment.models.map(({ written }) => written.textContent);
  seen.shown = [experiment.layer, experiment.head];
  seen.caption = text("shown");
  const places = experiment.models[1].patterns.map((pattern) => pattern.length / 64 ** 2);
  seen.ahead = places.map((heads, layer) => Array.from({ length: heads }, (_, head) => {
    let sum = 0;
    for (let q = 0; q < 63; q++) {
      sum += experiment.models[1].patterns[layer][(head * 64 + q) * 64 + q + 1];
    }
    return sum / 63;
  }));
  seen.map = document.querySelector(".map").getBoundingClientRect().width;
  const slider = document.getElementById("row");
  slider.value = 40;
  slider.dispatchEvent(new Event("input"));
  seen.reading = text("reading");
  seen.dark = matchMedia("(prefers-color-scheme: dark)").matches;
  seen.wide = document.documentElement.scrollWidth - innerWidth;
  parent.postMessage("narrow", "*");
  await until(() => innerWidth === 390);
  await new Promise((resolve) => setTimeout(resolve, 100));
  seen.narrow = document.documentElement.scrollWidth - innerWidth;
  seen.narrowMap = document.querySelector(".map").getBoundingClientRect().width;
  bringAnswer();
  seen.narrowAnswer = seeAnswer();
  seen.gray = experiment.models.map((model) => {  // also where a weight that is allowed underflows
    model.patterns[0].fill(0);
    paintPattern(drawing, model, 0, 0);
    const { data } = drawing.getContext("2d").getImageData(0, 0, 64, 64);
    const colors = [];
    for (let i = 0; i < data.length; i += 4) colors.push(data.slice(i, i + 3).join());
    const allowed = colors[0];  // every mask lets the first query see itself
    return colors.filter((color) => color !== allowed).length;
  });
"""


def test_the_page_is_what_the_script_builds() -> None:
    built = unpacked(built_page())
    assert unpacked(PAGE.read_text(encoding="utf-8")) == built, "run python scripts/lab.py"
    assert len(PAGE.read_bytes()) < 800_000


def see_lesson(folder: Path, lesson: str, steps: int, dark: bool) -> None:
    seen = visit(folder, f"#{lesson}&seed=3&steps={steps}", TO_THE_END, dark=dark)
    first, second = runs_of(lesson)
    assert seen["steps"] == [steps, steps] and 2 <= seen["stopped"] < steps
    assert seen["button"] == "Continue" and seen["dark"] == dark
    assert not seen["stoppable"]  # while it validates
    assert all(0 < loss < 6 for loss in seen["losses"]) and len(set(seen["losses"])) == 2
    assert all(f"{loss:.5f}" in seen["table"] for loss in seen["losses"])
    assert f"attn={first.variant},{second.variant} seed=3" in seen["command"]
    assert seen["outcome"] and all(len(said) > 50 for said in seen["said"])
    assert first.label in seen["reading"] and "%" in seen["reading"]
    assert seen["wide"] <= 0 and seen["narrow"] <= 0  # nothing is wider than the window
    assert seen["gray"] == [BLOCKED[first.variant], BLOCKED[second.variant]]
    leaks = read_entries()[lesson]["judge"] == "leak"  # then the head that copies is shown
    layer, head = seen["shown"]
    most = max(max(of_layer) for of_layer in seen["ahead"])
    assert not leaks or seen["ahead"][layer][head] == pytest.approx(most)
    assert f"layer {layer + 1}, head {head + 1}" in seen["caption"]
    assert seen["kept"] and seen["answer"] and seen["narrowAnswer"]
    assert seen["map"] > 300 and 150 < seen["narrowMap"] < 195


@in_chromium
def test_a_lesson_in_chromium(tmp_path: Path) -> None:
    see_lesson(tmp_path, "heads", 6, dark=False)


@pytest.mark.slow
@in_chromium
@pytest.mark.parametrize("lesson", read_entries())
def test_every_lesson_in_chromium(lesson: str, tmp_path: Path) -> None:
    see_lesson(tmp_path, lesson, 20, dark=lesson in ("mask", "none"))


# What a reader does with an experiment of one's own: texts that cannot be trained on, then one.
OWN = """
  const put = (value) => {
    FORM.source.value = "own";
    FORM.text.value = value;
    FORM.text.dispatchEvent(new Event("input", { bubbles: true }));
  };
  const submit = () => document.querySelector("#own [type=submit]").click();
  seen.defaults = page.experiment.lesson.arms.map(({ settings }) => settings);
  seen.defaultCommand = page.experiment.lesson.command;
  seen.refused = [];
  for (const bad of ["", "a".repeat(5000), "short", "ab ".repeat(1_800_000), "\\u{1F600}"]) {
    put(bad);
    submit();
    const fields = JSON.stringify(FIELDS.map((name) => FORM[name].value));
    document.querySelector("[data-id=heads]").click();
    document.querySelector("[data-id=own]").click();
    const kept = fields === JSON.stringify(FIELDS.map((name) => FORM[name].value));
    submit();
    seen.refused.push([text("refused"), kept, page.experiment.stepsDone]);
  }
  const { replaceState } = history;
  let changes = 0;
  history.replaceState = (...given) => {
    changes += 1;
    replaceState.apply(history, given);
  };
  for (let key = 0; key < 300; key++) put("x".repeat(key));  // browsers refuse as many changes
  await until(() => changes > 0);
  seen.changes = changes;
  history.replaceState = replaceState;
  putIntoForm({ ...OWN.defaults, text: "" });
  await openAddress();  // as after a reload
  seen.reloaded = [FORM.source.value, FORM.text.value.length];
  FORM.second.value = "zero_fill";
  FORM.init.value = "gpt2";
  FORM.rate.value = "1e-3";
  FORM.steps.value = "6";
  put("The \\u{1F600} cat sat on the mat.\\n".repeat(60));
  submit();
  await until(() => page.experiment.stepsDone >= 1);
  submit();  // a second click
  seen.second = [text("refused"), page.kept.get("own") === page.experiment];
  FORM.text.focus();
  put("the next text");
  await until(() => page.experiment.done);
  seen.writing = document.activeElement === FORM.text && FORM.text.value === "the next text";
  seen.arms = page.experiment.lesson.arms.map(({ settings }) => settings);
  seen.command = text("command");
  seen.outcome = text("outcome");
  const { found } = readSettings(splitAddress(location.hash).given, OWN_SETTINGS);
  const packed = splitAddress(location.hash).given.find(([name]) => name === "text")[1];
  seen.address = { ...found, text: await unpackText(packed) };
  seen.text = page.experiment.text;
  FORM.source.value = "shakespeare";
  FORM.first.value = "zero_fill";
  FORM.steps.value = "1";
  submit();
  await until(() => page.experiment.done && text("outcome").includes("1 steps"));
  seen.equal = [text("outcome"), text("shown")];
"""


@in_chromium
def test_an_experiment_of_ones_own(tmp_path: Path) -> None:
    seen = visit(tmp_path, "#own", OWN)
    assert all(said and kept and steps == 0 for said, kept, steps in seen["refused"])
    assert len({said for said, _, _ in seen["refused"]}) == len(seen["refused"])
    assert seen["changes"] == 1 and seen["reloaded"] == ["own", 299]
    assert seen["writing"]
    assert "same loss" in seen["equal"][0] and "in no head" in seen["equal"][1]
    assert seen["second"][0] and seen["second"][1]
    assert seen["address"]["text"] == seen["text"]
    chosen = {"second": "zero_fill", "init": "gpt2", "rate": 1e-3, "steps": 6, "source": "own"}
    assert seen["address"].items() >= chosen.items()
    assert "data=text" in seen["command"] and "zero_fill" in seen["outcome"]
    commands = [f"{seen['defaultCommand']} attn=sdpa,flipped", seen["command"]]
    for command, arms in zip(commands, (seen["defaults"], seen["arms"]), strict=True):
        _, _, _, *words = command.replace("data=text data.path=text.txt ", "").split()
        (variants,) = [word for word in words if word.startswith("attn=")]
        for variant, settings in zip(variants[5:].split(","), arms, strict=True):
            plain = [word for word in words if not word.startswith(("attn=", "seed="))]
            assert engine_settings([*plain, f"attn={variant}"]) == settings
