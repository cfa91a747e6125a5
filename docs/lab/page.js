// The page: lessons, two workers that train, and what is seen of them.

const $ = (id) => document.getElementById(id);
const LESSONS = JSON.parse($("lessons").textContent);
const CALM = matchMedia("(prefers-reduced-motion: reduce)");
const DARK = matchMedia("(prefers-color-scheme: dark)");
const SAMPLE = 130;  // characters that a model writes
const MAIN_LESSONS = 3;  // the scale, the mask and the heads; the others are more of the same

/** An element with attributes and children. */
function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function inNats(loss) {
  return loss.toFixed(loss < 1 ? 4 : 3);
}

/** A letter that is seen where a space or a new line is not. */
function visible(letter) {
  return { " ": "␣", "\n": "↵" }[letter] ?? letter;
}

function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

// ---- the text, the engine, and a worker for each model

/** Sources of the engine that the page shows and the workers run, in the order of their use. */
const SOURCES = [...document.querySelectorAll("script[data-source]")];

/** One classic script, because Chromium starts no module worker from a file. */
function workerScript() {
  const parts = SOURCES.map(({ textContent }) => {
    return textContent.replace(/^import .*;$/gm, "").replace(/^export /gm, "");
  });
  return URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

/** The packed text as ids: its first 90 % for training, the rest for validation. */
async function unpackCorpus() {
  const packed = new Blob([bytesOf($("text").textContent)]).stream();
  const text = await new Response(packed.pipeThrough(new DecompressionStream("gzip"))).text();
  const alphabet = [...new Set(text)].sort();
  const ids = new Map(alphabet.map((letter, i) => [letter, i]));
  const all = Uint8Array.from(text, (letter) => ids.get(letter));
  const end = Math.floor(0.9 * all.length);
  return { alphabet, train: all.slice(0, end), val: all.slice(end) };
}

/** One of the two models: its worker, and what came back from it. */
class Model {
  constructor(side, arm, script) {
    this.side = side;  // "a" or "b"
    this.arm = arm;  // of the lesson
    this.worker = new Worker(script);
    this.losses = [];
    this.validated = null;
  }

  /** Send { action, ... } and keep what the worker answers. */
  async ask(action, given = {}) {
    const answer = await new Promise((resolve, reject) => {
      this.worker.onmessage = ({ data }) => resolve(data);
      this.worker.onerror = (event) => reject(new Error(event.message));
      this.worker.postMessage({ action, ...given });
    });
    if (answer.error) throw new Error(answer.error);
    return answer;
  }

  /** The number of heads of its layers. */
  get n_head() {
    return this.arm.settings.attn.heads ?? this.arm.settings.model.n_head;
  }
}

// ---- the state of the page

const page = {
  corpus: null, script: null, lesson: null, seed: 0, steps: 0, models: [], guess: null,
  running: false,  // as the reader wants it
  looping: false,  // whether `trainOn` is at work; after a stop it ends with its step
  visit: 0,  // grows with each lesson and start, so that late answers are dropped
  layer: 0, head: 0, row: 20,
  chosen: false,  // whether the reader has chosen a head
};

/** Whether the reader has gone on to something else since `visit`. */
function gone(visit) {
  return visit !== page.visit;
}

function openLesson(lesson, seed = lesson.seed, steps = lesson.arms[0].settings.trainer.max_steps) {
  leave();
  Object.assign(page, { lesson, seed, steps, guess: null });
  for (const button of $("switches").querySelectorAll("button")) {
    button.setAttribute("aria-current", button.dataset.id === lesson.id);
  }
  $("question").textContent = lesson.question;
  $("answers").replaceChildren(...lesson.answers.map((answer, i) => {
    const button = make("button", { type: "button", "aria-pressed": "false" }, answer);
    if (lesson.meaning[i]) button.append(make("small", {}, lesson.meaning[i]));
    button.onclick = () => predict(i);
    return button;
  }));
  const { model, optim } = lesson.arms[0].settings;
  $("setup").textContent = `Your answer starts the training: ${steps} steps at a learning rate of `
    + `${optim.lr}, ${model.n_layer} layers of width ${model.n_embd}, which read `
    + `${model.block_size} characters of Shakespeare. Seed ${seed}.`;
  $("lab").hidden = true;
  $("result").hidden = true;
  const address = `#${lesson.id}&seed=${seed}${isWhole() ? "" : `&steps=${steps}`}`;
  if (location.hash !== address) history.replaceState(null, "", address);
}

/** Whether the lesson trains for as long as its published runs. */
function isWhole() {
  return page.steps === page.lesson.arms[0].settings.trainer.max_steps;
}

/** Stop the workers of the lesson that is left. */
function leave() {
  for (const model of page.models) model.worker.terminate();
  Object.assign(page, { models: [], running: false, looping: false, visit: page.visit + 1 });
}

/** The lesson of an address such as #mask&seed=3. */
function openAddress() {
  const [id, ...rest] = location.hash.slice(1).split("&");
  const given = new URLSearchParams(rest.join("&"));
  const lesson = LESSONS.find((each) => each.id === id) ?? LESSONS[0];
  const whole = (name, most) => {
    const value = given.get(name);
    return value !== null && /^\d{1,9}$/.test(value) && Number(value) <= most
      ? Number(value) : undefined;
  };
  const steps = whole("steps", 5000);
  openLesson(lesson, whole("seed", 999999999), steps === 0 ? undefined : steps);
}

// ---- training

function predict(answer) {
  if (page.guess !== null) return;
  page.guess = answer;
  [...$("answers").children].forEach((button, i) => {
    button.setAttribute("aria-pressed", i === answer);
    button.disabled = true;
  });
  start().catch(fail);
}

async function start() {
  leave();
  const { visit } = page;
  page.corpus ??= await unpackCorpus();
  page.script ??= workerScript();
  if (gone(visit)) return;
  const { lesson } = page;
  page.layer = lesson.arms[0].settings.model.n_layer - 1;
  page.head = 0;
  page.chosen = false;
  page.models = lesson.arms.map((arm, i) => new Model("ab"[i], arm, page.script));
  showModels();
  $("row").max = lesson.arms[0].settings.model.block_size - 1;
  $("speed").textContent = "drawing the initial weights …";
  $("pause").hidden = false;
  $("result").hidden = true;
  $("lab").hidden = false;
  $("lab").scrollIntoView({ behavior: CALM.matches ? "instant" : "smooth", block: "nearest" });
  if (innerWidth < 1000) $("lab").scrollIntoView({ block: "start" });
  const wasm = bytesOf($("wasm").textContent);
  const { train, val, alphabet } = page.corpus;
  await Promise.all(page.models.map(async (model) => {
    const settings = { ...model.arm.settings, seed: page.seed, trainer: { max_steps: page.steps } };
    const given = { wasm, settings, text: { train, val }, vocab_size: alphabet.length };
    Object.assign(model, await model.ask("start", given));
  }));
  if (gone(visit)) return;
  $("announce").textContent = "Training started.";
  page.running = true;
  $("pause").textContent = "Stop";
  draw();
  await trainOn(visit);
}

/** Train both models in step until the end, or until the reader stops. */
async function trainOn(visit) {
  page.looping = true;
  let count = 1;
  let pace = 0;  // steps per second
  let drawn = 0;
  while (page.running && stepsDone() < page.steps) {
    const began = performance.now();
    const answers = await Promise.all(page.models.map((model) => model.ask("train", { count })));
    if (gone(visit)) return;
    answers.forEach(({ losses, ...seen }, i) => {
      page.models[i].losses.push(...losses);
      Object.assign(page.models[i], seen);
    });
    const now = (1000 * count) / (performance.now() - began);
    pace = pace === 0 ? now : 0.8 * pace + 0.2 * now;
    showPace(pace);
    if (stepsDone() % 50 < count) await write(visit);
    if (gone(visit)) return;
    if (!CALM.matches || stepsDone() - drawn >= 50) {
      drawn = stepsDone();
      draw();
    }
    count = Math.max(1, Math.min(10, Math.round(pace / 8), page.steps - stepsDone()));
  }
  if (page.running) await finish(visit);
  if (!gone(visit)) page.looping = false;
}

function stepsDone() {
  return page.models[0].losses.length;
}

function showPace(pace) {
  $("progress").max = page.steps;
  $("progress").value = stepsDone();
  const speed = pace.toFixed(pace < 10 ? 1 : 0);
  const { operations } = page.models[0];
  $("speed").textContent = `step ${stepsDone()} of ${page.steps}, ${speed} steps per second, ${operations}`;
}

/** Let both models write. */
async function write(visit) {
  const prompt = [page.corpus.alphabet.indexOf("\n")];
  const given = { prompt, count: SAMPLE };
  const answers = await Promise.all(page.models.map((model) => model.ask("sample", given)));
  if (gone(visit)) return;
  answers.forEach(({ ids }, i) => {
    page.models[i].said.textContent = ids.map((id) => page.corpus.alphabet[id]).join("").trim();
  });
}

async function finish(visit) {
  draw();
  $("speed").textContent = `${page.steps} steps; now the loss on all of the validation text …`;
  const answers = await Promise.all(page.models.map((model) => model.ask("validate")));
  if (gone(visit)) return;
  answers.forEach(({ loss }, i) => { page.models[i].validated = loss; });
  await write(visit);
  if (gone(visit)) return;
  page.running = false;
  $("pause").hidden = true;
  $("speed").textContent = `${page.steps} steps done`;
  showResult();
}

function stopOrContinue() {
  page.running = !page.running;
  $("pause").textContent = page.running ? "Stop" : "Continue";
  draw();
  if (page.running && !page.looping) trainOn(page.visit).catch(fail);
}

function fail(error) {
  Object.assign(page, { running: false, looping: false });
  $("lab").hidden = false;
  $("pause").hidden = true;
  document.body.dataset.failed = error.message;
  $("speed").textContent = `The training stopped: ${error.message}. Reload the page, or try another browser.`;
  $("announce").textContent = $("speed").textContent;
}

// ---- what is seen of the models

function showModels() {
  $("arms").replaceChildren(...page.models.map((model) => {
    model.lossNow = make("span", { class: "loss" });
    model.map = make("canvas", { class: "map", role: "img" });
    model.map.onpointermove = (event) => pointAt(model, event);
    model.map.onpointerdown = (event) => pointAt(model, event);
    model.heads = make("div", { class: "heads", role: "group", "aria-label": "Heads" });
    model.heads.replaceChildren(...headButtons(model));
    model.numbers = make("dl", {});
    model.said = make("p", { class: "said" }, "…");
    return make(
      "section", { class: `arm ${model.side}`, "aria-label": model.arm.name },
      make("h3", {}, make("span", { class: "dot" }, model.arm.name), model.lossNow),
      model.map,
      make("div", { class: "below" }, model.heads, model.numbers),
      make("div", { class: "small soft" }, "What it writes"), model.said,
    );
  }));
}

/** A small map for each head; a row for each layer, or one row if layers have a single head. */
function headButtons(model) {
  const { n_layer } = model.arm.settings.model;
  const buttons = [];
  for (let layer = 0; layer < n_layer; layer++) {
    for (let head = 0; head < model.n_head; head++) {
      const name = `Layer ${layer + 1}, head ${head + 1}`;
      const button = make("button", { type: "button", title: name, "aria-label": name });
      button.append(make("canvas", {}));
      button.onclick = () => {
        Object.assign(page, { layer, head, chosen: true });
        draw();
      };
      buttons.push(button);
    }
  }
  const columns = model.n_head > 1 ? model.n_head : n_layer;
  model.heads.style.gridTemplateColumns = `repeat(${columns}, auto)`;
  return buttons;
}

/** The head that is shown large: the chosen one, or the last if the model has fewer. */
function shownHead(model) {
  return Math.min(page.head, model.n_head - 1);
}

function draw() {
  if (!page.models.length || !page.models[0].patterns) return;
  if (!page.chosen && page.lesson.judge === "leak") {
    const { layer, head } = page.models[1].ahead;  // the head that copies, if one does
    Object.assign(page, { layer, head });
  }
  drawLosses();
  drawGap();
  for (const model of page.models) {
    drawMap(model);
    [...model.heads.children].forEach((button, i) => {
      const layer = Math.floor(i / model.n_head);
      const head = i % model.n_head;
      const chosen = layer === page.layer && head === shownHead(model);
      button.setAttribute("aria-pressed", chosen);
      paintPattern(button.firstChild, model, layer, head);
    });
    const done = model.losses.length;
    model.lossNow.textContent = done ? `${inNats(smooth(model.losses, done - 1))} nats` : "";
    showMeasures(model);
  }
  readRow();
}

function showMeasures(model) {
  const measures = [
    ["entropy (1: even)", model.entropy],
    ["weight on the future", model.future],
    ["similarity of heads", model.similarity],
  ];
  model.numbers.replaceChildren(...measures.filter(([, value]) => Number.isFinite(value))
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value.toFixed(2))]));
}

// ---- maps

/** Blue on itself and before, orange on later keys, the root of the weight as strength; gray where
 *  the mask blocks and there is no weight. A weight of 0 that the mask allows is not gray. */
function paintPattern(canvas, model, layer, head) {
  const T = model.arm.settings.model.block_size;
  const pattern = model.patterns[layer].subarray(head * T * T, (head + 1) * T * T);
  const light = DARK.matches ? [23, 27, 33] : [255, 255, 255];
  const blocked = DARK.matches ? [42, 48, 58] : [223, 226, 231];
  const past = DARK.matches ? [130, 170, 255] : [31, 95, 196];
  const future = DARK.matches ? [255, 157, 92] : [214, 96, 20];
  const pixels = new ImageData(T, T);
  for (let i = 0; i < T * T; i++) {
    const strong = i % T > Math.floor(i / T) ? future : past;
    const weight = Math.sqrt(Math.min(1, pattern[i]));
    for (let c = 0; c < 3; c++) {
      const free = light[c] + (strong[c] - light[c]) * weight;
      pixels.data[4 * i + c] = model.allowed[i] || pattern[i] > 0 ? free : blocked[c];
    }
    pixels.data[4 * i + 3] = 255;
  }
  canvas.width = T;
  canvas.height = T;
  canvas.getContext("2d").putImageData(pixels, 0, 0);
}

const drawing = document.createElement("canvas");  // T by T, before it is enlarged

/** Where the map lies in its canvas: beside it the letters, in so many columns that they fit. */
function mapPlace(canvas, T) {
  const size = canvas.clientWidth;
  const columns = Math.max(1, Math.ceil(9.5 / ((size * 0.92) / T)));
  const margin = 8 * columns + 2;
  return { size, columns, margin, cell: (size - margin) / T };
}

function drawMap(model) {
  const T = model.arm.settings.model.block_size;
  const head = shownHead(model);
  const { size, columns, margin, cell } = mapPlace(model.map, T);
  const ratio = devicePixelRatio || 1;
  model.map.width = size * ratio;
  model.map.height = size * ratio;
  const context = model.map.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  paintPattern(drawing, model, page.layer, head);
  context.drawImage(drawing, margin, margin, cell * T, cell * T);
  context.font = "9px ui-monospace, DejaVu Sans Mono, monospace";
  context.textAlign = "center";
  context.textBaseline = "middle";
  const letters = lettersOf(T);
  for (let i = 0; i < T; i++) {  // queries down the left side, keys along the top
    const away = margin - 5 - 8 * (i % columns);
    const along = margin + (i + 0.5) * cell;
    context.fillStyle = color(i === page.row ? "--ink" : "--soft");
    context.fillText(visible(letters[i]), away, along);
    context.fillStyle = color("--soft");
    context.fillText(visible(letters[i]), along, away);
  }
  context.strokeStyle = color("--ink");
  context.lineWidth = 1.5;
  context.strokeRect(margin, margin + page.row * cell - 0.5, cell * T, cell + 1);
  const place = `layer ${page.layer + 1}, head ${head + 1}`;
  model.map.setAttribute("aria-label", `Attention of ${model.arm.name}, ${place}, step ${stepsDone()}`);
}

function lettersOf(T) {
  return [...page.corpus.val.subarray(0, T)].map((id) => page.corpus.alphabet[id]);
}

function pointAt(model, event) {
  const T = model.arm.settings.model.block_size;
  const { margin, cell } = mapPlace(model.map, T);
  const row = Math.floor((event.clientY - model.map.getBoundingClientRect().top - margin) / cell);
  if (row < 0 || row >= T || row === page.row) return;
  page.row = row;
  $("row").value = row;
  draw();
}

/** The chosen row of both maps in words. */
function readRow() {
  const T = page.lesson.arms[0].settings.model.block_size;
  const letters = lettersOf(T);
  const before = letters.slice(Math.max(0, page.row - 12), page.row + 1).map(visible).join("");
  $("row").setAttribute("aria-valuetext", `row ${page.row + 1}, after ${before}`);
  const lines = page.models.map((model) => {
    const line = make("div", { class: model.side });
    const keys = strongestKeys(model, T).map(([weight, key]) => {
      return `“${visible(letters[key])}” ${whereIs(key)} ${(100 * weight).toFixed(0)} %`;
    });
    line.append(make("span", { class: "dot" }, `${model.arm.name}: `), keys.join(", "));
    return line;
  });
  $("reading").replaceChildren(make("div", {}, `After “${before}” it attends to`), ...lines);
}

/** Up to three keys of the chosen row with the largest weights, as [weight, key]. */
function strongestKeys(model, T) {
  const start = (shownHead(model) * T + page.row) * T;
  const weights = [...model.patterns[page.layer].subarray(start, start + T)];
  const ranked = weights.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]);
  return ranked.slice(0, 3).filter(([weight]) => weight >= 0.005);
}

function whereIs(key) {
  if (key === page.row) return "(itself)";
  return key < page.row ? `(${page.row - key} back)` : `(${key - page.row} ahead)`;
}

// ---- curves

/** The mean of the last 10 values up to i. */
function smooth(values, i) {
  const part = values.slice(Math.max(0, i - 9), i + 1);
  return part.reduce((sum, x) => sum + x, 0) / part.length;
}

/** A chart over the steps: draws its axes; `line` and `across` draw into it. */
class Chart {
  constructor(canvas, low, high, ticks, title) {
    const ratio = devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = this.width * ratio;
    canvas.height = this.height * ratio;
    this.low = low;
    this.high = high;
    this.context = canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.context.font = "12px system-ui, DejaVu Sans, sans-serif";
    for (const tick of ticks) this.across(tick, String(tick), "--line");
    this.context.fillStyle = color("--soft");
    this.context.textAlign = "center";
    for (let step = 0; step <= page.steps; step += stepsBetweenTicks()) {
      this.context.fillText(step, Math.min(this.x(step), this.width - 14), this.height - 4);
    }
    this.context.textAlign = "left";
    this.context.fillText(title, 40, 11, this.width - 46);
  }

  x(step) {
    return 40 + ((this.width - 46) * step) / page.steps;
  }

  y(value) {
    const inside = Math.max(this.low, Math.min(this.high, value));
    return 18 + ((this.height - 38) * (this.high - inside)) / (this.high - this.low);
  }

  /** A horizontal line with its name to the left. */
  across(value, name, stroke) {
    const { context } = this;
    context.strokeStyle = color(stroke);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(40, this.y(value));
    context.lineTo(this.width - 6, this.y(value));
    context.stroke();
    context.fillStyle = color("--soft");
    context.textAlign = "right";
    context.fillText(name, 35, this.y(value) + 4);
  }

  line(values, stroke, width, alpha) {
    const { context } = this;
    context.strokeStyle = stroke;
    context.lineWidth = width;
    context.globalAlpha = alpha;
    context.beginPath();
    values.forEach((value, i) => context.lineTo(this.x(i + 1), this.y(value)));
    context.stroke();
    context.globalAlpha = 1;
  }
}

function stepsBetweenTicks() {
  return page.steps > 100 ? 100 : Math.max(1, Math.round(page.steps / 4));
}

function drawLosses() {
  const smallest = Math.min(...page.models.flatMap((model) => model.losses), 4);
  const low = smallest < 1.5 ? 0 : 1.5;
  const title = "training loss in nats per character; 4.17 is guessing";
  const chart = new Chart($("chart"), low, 4.4, low === 0 ? [0, 1, 2, 3, 4] : [2, 2.5, 3, 3.5, 4], title);
  page.models.forEach((model, i) => {  // the second, thinner, on the first: both show
    chart.line(model.losses, color(`--${model.side}`), 1, 0.25);
    const smoothed = model.losses.map((_, at) => smooth(model.losses, at));
    chart.line(smoothed, color(`--${model.side}`), i === 0 ? 5 : 2, 1);
  });
  chart.context.font = "600 13px system-ui, DejaVu Sans, sans-serif";
  chart.context.textAlign = "right";
  page.models.forEach((model, i) => {
    chart.context.fillStyle = color(`--${model.side}`);
    chart.context.fillText(model.arm.name, chart.width - 10, 34 + 17 * i);
  });
  const done = stepsDone();
  const said = page.models.map((model) => {
    return `${model.arm.name} ${done ? inNats(smooth(model.losses, done - 1)) : "not trained"}`;
  });
  $("chart").setAttribute("aria-label", `Training loss after ${done} steps: ${said.join(", ")}`);
}

function drawGap() {
  const [first, second] = page.models;
  const apart = second.losses.map((loss, i) => loss - first.losses[i]);
  const steps = [0.1, 0.2, 0.5, 1, 2, 3, 5];
  const bound = (size) => steps.find((step) => size <= step) ?? 5;
  const least = -bound(-Math.min(0, ...apart));
  const most = bound(Math.max(0, ...apart));
  const ticks = [0];
  if (most >= -least / 4) ticks.push(most);
  if (-least >= most / 4) ticks.push(least);
  const title = `difference on the same batch: ${second.arm.name} − ${first.arm.name}`;
  const chart = new Chart($("gap"), least, most, ticks, title);
  chart.line(apart, color("--ink"), 1.5, 1);
  const last = apart.length ? smooth(apart, apart.length - 1).toFixed(3) : "not known yet";
  $("gap").setAttribute("aria-label", `Difference of the losses in nats: ${last}`);
}

// ---- the end

/** Which answer is right, for what was measured; `gap` is the second loss minus the first. */
const JUDGES = {
  worse: ({ gap, second }) => (second > 4 ? 2 : Number(gap > 0.05)),
  leak: ({ gap }) => (gap < -0.8 ? 2 : Number(gap <= 0.05)),
  sign: ({ gap }) => (gap > 0.05 ? 0 : gap < -0.05 ? 2 : 1),
  size: ({ gap }) => (gap < 0.05 ? 0 : gap < 1 ? 1 : 2),
  apart: ({ apart }) => (apart === 0 ? 0 : apart < 0.2 ? 1 : 2),
};

/** The largest difference between the weights of two heads of a layer on the same key. */
function headsApart(model) {
  const size = model.arm.settings.model.block_size ** 2;
  let most = 0;
  for (const pattern of model.patterns) {
    for (let i = size; i < pattern.length; i++) {
      most = Math.max(most, Math.abs(pattern[i] - pattern[i % size]));
    }
  }
  return most;
}

function showResult() {
  const { lesson } = page;
  const [first, second] = page.models.map((model) => model.validated);
  const measured = { gap: second - first, second, apart: headsApart(page.models[1]) };
  const right = JUDGES[lesson.judge](measured);
  const agrees = right === page.guess;
  $("outcome").replaceChildren(
    make("span", { class: agrees ? "right" : "wrong" }, agrees ? "As you predicted. " : "Not as you predicted. "),
    `${lesson.answers[right]}: ${outcomeInNumbers(measured)}`,
  );
  $("explained").textContent = lesson.explained;
  $("condition").textContent = lesson.condition;
  showLosses();
  $("claim").hidden = lesson.verdict === null;
  $("verdict").replaceChildren(...(lesson.verdict === null ? [] : verdictLines(lesson)));
  const variants = lesson.arms.map((arm) => arm.variant).join(",");
  const steps = isWhole() ? "" : ` trainer.max_steps=${page.steps} trainer.val_check_interval=${page.steps}`;
  $("command").textContent = `${lesson.command} attn=${variants} seed=${page.seed}${steps}`;
  $("next").textContent = `Next: ${nextLesson().switch}`;
  $("copy").textContent = "Copy the command";
  $("share").textContent = "Copy a link";
  $("result").hidden = false;
  $("announce").textContent = "Training is done.";
}

function outcomeInNumbers({ gap, apart }) {
  if (page.lesson.judge === "apart") {
    const size = apart === 0 ? "exactly 0" : apart.toPrecision(2);
    return `the largest difference between two heads' weights is ${size}.`;
  }
  const [first, second] = page.lesson.arms.map((arm) => arm.name);
  const than = gap > 0 ? "above" : "below";
  return `${second} ends ${Math.abs(gap).toFixed(3)} nats ${than} ${first}.`;
}

function verdictLines({ verdict }) {
  const lines = verdict.lines.map(([word, where, seeds]) => {
    return make("li", {}, make("b", {}, `${word}: `), `${where} (${seeds})`);
  });
  return [make("p", {}, verdict.says), make("ul", {}, ...lines), make("p", {}, verdict.reach)];
}

function showLosses() {
  const heads = ["", "here", "PyTorch, published", "difference"];
  const rows = page.models.map((model) => {
    const published = isWhole() ? model.arm.published[page.seed] : undefined;
    const apart = published === undefined ? "" : Math.abs(model.validated - published);
    const cells = [
      model.validated.toFixed(5),
      published === undefined ? "not published" : published.toFixed(5),
      apart === "" ? "" : apart.toExponential(0),
    ];
    return make(
      "tr", { class: model.side }, make("td", { class: "dot" }, model.arm.name),
      ...cells.map((cell) => make("td", {}, cell)),
    );
  });
  const header = make("tr", {}, ...heads.map((head) => make("th", {}, head)));
  $("losses").replaceChildren(header, ...rows);
  $("agreement").textContent = agreement().join(" ");
}

/** Sentences about the published losses: where they are from, and how far they can be trusted. */
function agreement() {
  const { lesson, seed, steps } = page;
  const sentences = [];
  if (!isWhole()) {
    const whole = lesson.arms[0].settings.trainer.max_steps;
    sentences.push(`You trained for ${steps} steps, the published runs for ${whole}.`);
  }
  for (const { name, published, variant, source } of lesson.arms) {
    const seeds = Object.keys(published).map(Number);
    if (!seeds.length) {
      sentences.push(`No run of ${name} (attn=${variant}) is published for this experiment.`);
    } else if (!(seed in published)) {
      sentences.push(`Of ${name}, the published seeds are ${seeds.join(", ")}.`);
    }
    if (seeds.length && source !== lesson.claim) {
      sentences.push(`The published run of ${name} is one of experiments/${source}, with the same settings.`);
    }
  }
  const amplified = lesson.arms.filter((arm) => arm.rounding > 0);
  if (amplified.length) {
    const sizes = amplified.map((arm) => `${arm.rounding} in “${arm.name}”`).join(" and ");
    sentences.push("Training amplifies rounding here: with an older instruction set of the same "
      + `processor, PyTorch's own loss of seed ${lesson.seed} differs by ${sizes}. This page, another program, may differ by a `
      + "few times as much.");
  }
  const share = seedsWithTheSameAnswer();
  if (share !== null) sentences.push(share);
  return sentences;
}

/** In how many published seeds the answer was the same; null if the rows do not tell. */
function seedsWithTheSameAnswer() {
  const { lesson, models } = page;
  const [first, second] = lesson.arms.map((arm) => arm.published);
  const seeds = Object.keys(first).filter((seed) => seed in second);
  if (lesson.judge === "apart" || seeds.length < 2 || !isWhole()) return null;
  const judge = (a, b) => JUDGES[lesson.judge]({ gap: b - a, second: b });
  const here = judge(models[0].validated, models[1].validated);
  const same = seeds.filter((seed) => judge(first[seed], second[seed]) === here);
  const middle = median(seeds.map((seed) => second[seed] - first[seed])).toFixed(3);
  return `Of the ${seeds.length} published seeds, ${same.length} give this answer; `
    + `their median difference is ${middle} nats.`;
}

function nextLesson() {
  return LESSONS[(LESSONS.indexOf(page.lesson) + 1) % LESSONS.length];
}

// ---- the reader

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {  // a browser may forbid it for a file
    prompt("Copy this:", text);
  }
}

$("pause").onclick = stopOrContinue;
$("row").oninput = () => {
  page.row = Number($("row").value);
  draw();
};
$("copy").onclick = () => copyText($("copy"), $("command").textContent);
$("share").onclick = () => copyText($("share"), location.href);
$("next").onclick = () => {
  openLesson(nextLesson());
  $("question").focus();
  scrollTo({ top: 0 });
};
$("again").onclick = () => {
  const guess = page.guess;
  openLesson(page.lesson, page.seed + 1, page.steps);
  predict(guess);
};
for (const lesson of LESSONS) {
  const button = make("button", { type: "button", "data-id": lesson.id }, lesson.switch);
  button.onclick = () => openLesson(lesson);
  if (lesson === LESSONS[MAIN_LESSONS]) {
    $("switches").append(make("span", { class: "small soft" }, "More:"));
  }
  $("switches").append(button);
}
for (const source of SOURCES) {
  const shown = make("pre", { tabindex: "0" }, source.textContent.trim());
  $("sources").append(make("details", {}, make("summary", {}, source.dataset.source), shown));
}
addEventListener("hashchange", openAddress);
addEventListener("resize", draw);
DARK.addEventListener("change", draw);
openAddress();
document.body.dataset.ready = "true";
