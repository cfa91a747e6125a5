// The page: it opens experiments, and shows what is known of them.

import { joinAddress, LESSON_SETTINGS, ownSettings, readSettings, splitAddress } from "./addresses.js";
import { drawGap, drawLosses, smooth } from "./charts.js";
import { $, CALM, DARK, inNats, make, save } from "./elements.js";
import { headsApart } from "./heads.js";
import { drawHeads, drawMap, headButtons, mapsAsPicture, openHead, readRow, rowAt } from "./maps.js";
import { Experiment } from "./models.js";
import {
  bytesOf,
  corpusOf,
  grouped,
  gunzip,
  MOST_CHARACTERS,
  packText,
  readText,
  textRefusal,
  unpackText,
} from "./texts.js";
import {
  agreement,
  answerOf,
  curvesAsCsv,
  differences,
  explanation,
  outcome,
  progress,
  wholeSteps,
} from "./words.js";

const LESSONS = JSON.parse($("lessons").textContent);
const OWN = JSON.parse($("own-settings").textContent); // variants, sizes, inits, defaults
const OWN_SETTINGS = ownSettings(OWN);
const FIRST_LESSONS = 3; // the heads, the mask and the scale; the others are more of the same
const TITLE = document.title;
const FORM = $("own").elements;

const page = {
  experiment: null, // that is shown
  kept: new Map(), // the last experiment of each lesson
  row: 20, // of the maps
};

// ---- what the workers run, and the text that comes with the page

/** Sources of the engine that the page shows and the workers run, in the order of their use. */
const SOURCES = [...document.querySelectorAll("script[data-source]")];

/** One classic script, because Chromium starts no module worker from a file. */
function workerScript() {
  const parts = SOURCES.map(({ textContent }) => {
    return textContent.replace(/^import [^;]*;$/gm, "").replace(/^export /gm, "");
  });
  return URL.createObjectURL(new Blob(parts, { type: "text/javascript" }));
}

/** What `make` returns, made when it is first asked for. */
function once(make) {
  let made = null;
  return () => {
    made ??= make();
    return made;
  };
}
const script = once(workerScript);
const shakespeare = once(async () => corpusOf(await gunzip(bytesOf($("text").textContent))));

// ---- opening

/** Show an experiment; the one before stops, and is kept. */
function open(experiment) {
  page.experiment?.stop();
  page.experiment = experiment;
  const { lesson } = experiment;
  const kept = page.kept.get(lesson.id);
  if (kept !== experiment) kept?.end();
  page.kept.set(lesson.id, experiment);
  document.title = TITLE;
  for (const button of $("switches").querySelectorAll("button")) {
    button.setAttribute("aria-current", button.dataset.id === lesson.id);
  }
  $("question").textContent = lesson.question;
  $("own").hidden = lesson.id !== "own";
  $("answers").hidden = lesson.id === "own";
  $("refused").textContent = "";
  showAnswers();
  $("lab").hidden = !experiment.models.length;
  $("result").hidden = true;
  $("evidence").hidden = true;
  if (!experiment.models.length) return;
  showModels();
  show(experiment);
}

/** Open a lesson as it was left, unless another seed or number of steps is given. */
function openLesson(lesson, given = {}) {
  const kept = page.kept.get(lesson.id);
  const { seed = kept?.seed ?? lesson.seed, steps = kept?.steps ?? wholeSteps(lesson) } = given;
  const same = kept?.seed === seed && kept?.steps === steps;
  open(same ? kept : new Experiment(lesson, { seed, steps }, show));
  const { model, optim } = lesson.arms[0].settings;
  $("setup").textContent =
    `Your answer starts the training: ${steps} steps at a learning rate of ${optim.lr}, ${model.n_layer} ` +
    `layers of width ${model.n_embd}, which read ${model.block_size} characters of Shakespeare. Queries and keys ` +
    `start ${startInWords(model.init)} (model.init=${model.init}). Seed ${seed}.`;
  const settings = steps === wholeSteps(lesson) ? { seed } : { seed, steps };
  keepForm(joinAddress(lesson.id, settings));
}

function startInWords(init) {
  return init === "unit" ? "with variance 1" : "small, as in GPT-2";
}

/** Open what the address names. */
async function openAddress() {
  const { id, given } = splitAddress(location.hash);
  const lesson = LESSONS.find((each) => each.id === id);
  const { found, refused } = readSettings(given, id === "own" ? OWN_SETTINGS : LESSON_SETTINGS);
  if (id === "own") {
    const packed = given.find(([name]) => name === "text")?.[1];
    const text = packed ? await unpackText(packed).catch(() => null) : history.state?.form?.text;
    if (text === null) refused.push("its text is damaged.");
    else if (found.source === "own" && !text) refused.push("it was too short for the text: paste it again.");
    const choice = { ...OWN.defaults, ...found, text: text ?? "" };
    putIntoForm(history.state?.form ?? choice);
    openOwn(choice);
  } else {
    openLesson(lesson ?? LESSONS[0], found);
    if (id && !lesson) refused.push(`There is no lesson ${id}.`);
  }
  if (refused.length) $("setup").prepend(`Of the address: ${refused.join(" ")} `);
}

// ---- a lesson: a question, and the answer that starts the training

function showAnswers() {
  const { lesson, guess } = page.experiment;
  const buttons = (lesson.answers ?? []).map((answer, i) => {
    const button = make("button", { type: "button", "aria-pressed": guess === i }, answer);
    if (lesson.meaning[i]) button.append(make("small", {}, lesson.meaning[i]));
    button.disabled = guess !== null;
    button.onclick = () => predict(i);
    return button;
  });
  $("answers").replaceChildren(...buttons);
}

function predict(answer) {
  const { experiment } = page;
  if (experiment.guess !== null) return;
  experiment.guess = answer;
  showAnswers();
  start(experiment).catch(fail);
}

// ---- an experiment of one's own

function fillForm() {
  const option = (value, text) => make("option", { value }, text);
  for (const name of ["first", "second"]) {
    FORM[name].append(...OWN.variants.map(({ variant, about }) => option(variant, `${variant}: ${about}`)));
  }
  FORM.size.append(...OWN.sizes.map(({ id, about }) => option(id, about)));
  FORM.init.append(...OWN.inits.map((init) => option(init, `${init}: ${startInWords(init)}`)));
}

const FIELDS = [...Object.keys(OWN_SETTINGS), "text"];

function putIntoForm(fields) {
  for (const name of FIELDS) FORM[name].value = fields[name];
}

/** Show the form as the reader left it, and below it the experiment of a choice. */
function openOwn(choice) {
  const kept = page.kept.get("own");
  open(kept && isSame(kept.lesson.choice, choice) ? kept : ownExperiment(choice));
  $("setup").textContent =
    "Both models start from the same weights and read the same batches. The rate rises for " +
    `${OWN.sizes[0].settings.optim.warmup_steps} steps, then falls to a tenth along a cosine.`;
  showForm();
  keepOwn(choice).catch(fail);
}

/** Whether two choices train the same. */
function isSame(a, b) {
  const names = Object.keys(OWN_SETTINGS);
  if (a.source === "own") names.push("text");
  return names.every((name) => a[name] === b[name]);
}

function ownExperiment(choice) {
  const { seed, steps, source, text } = choice;
  return new Experiment(ownLesson(choice), { seed, steps, text: source === "own" ? text : null }, show);
}

/** What depends on the fields of the form. */
function showForm() {
  const variantOf = (name) => OWN.variants.find(({ variant }) => variant === FORM[name].value);
  $("differs").textContent = differences(variantOf("first"), variantOf("second"));
  $("own-text").hidden = FORM.source.value !== "own";
  const text = FORM.text.value;
  const symbols = new Set(text).size;
  $("counted").textContent = text ? `${grouped([...text].length)} characters, ${symbols} different` : "";
}

/** The settings in the form, { choice, refused }. */
function readForm() {
  const given = Object.keys(OWN_SETTINGS).map((name) => [name, FORM[name].value]);
  const { found, refused } = readSettings(given, OWN_SETTINGS);
  const text = FORM.text.value;
  const { block_size } = OWN.sizes.find(({ id }) => id === found.size).settings.model;
  const bad = found.source === "own" ? textRefusal(text, block_size) : null;
  if (bad) refused.push(bad);
  return { choice: { ...found, text }, refused };
}

/** The address holds the settings, and a short text. */
async function keepOwn({ text, ...settings }) {
  const packed = settings.source === "own" && text ? await packText(text) : null;
  if (page.experiment.lesson.id !== "own") return;
  keepForm(joinAddress("own", packed ? { ...settings, text: packed } : settings));
}

/** Keep the fields beside the address, where a reload finds them; browsers keep some megabytes. */
function keepForm(address = location.href) {
  const form = Object.fromEntries(FIELDS.map((name) => [name, FORM[name].value]));
  if (form.text.length > 2 * MOST_CHARACTERS) form.text = "";
  history.replaceState({ form }, "", address);
}

/** An experiment of one's own as a lesson without a question. */
function ownLesson(choice) {
  const { first, second, size, init, rate, steps, seed, source } = choice;
  const chosen = OWN.sizes.find(({ id }) => id === size);
  const least = Number((rate / 10).toPrecision(12)); // 0.003 / 10 is not 0.0003
  const arms = [first, second].map((variant, i) => {
    const { attn } = OWN.variants.find((each) => each.variant === variant);
    const name = first === second ? `${variant} (${i + 1})` : variant;
    const { model, optim, data } = chosen.settings;
    const settings = {
      model: { ...model, init },
      attn,
      data,
      optim: { ...optim, lr: rate, min_lr: least },
      trainer: { max_steps: steps },
    };
    return { variant, name, settings, published: {}, rounding: 0 };
  });
  const words = [
    `python train.py -m ${chosen.words} model.init=${init} optim.lr=${rate} optim.min_lr=${least}`,
    `trainer.max_steps=${steps} trainer.val_check_interval=${steps}`,
    ...(source === "own" ? ["data=text data.path=text.txt"] : []),
  ];
  const question = "An experiment of your own: what shall differ?";
  return { id: "own", question, choice, arms, seed, command: words.join(" ") };
}

function submitOwn(event) {
  event.preventDefault();
  const { experiment } = page;
  const { choice, refused } = readForm();
  const same = refused.length === 0 && isSame(choice, experiment.lesson.choice);
  if (same && experiment.done) refused.push("This is the experiment below; change something first.");
  else if (experiment.running) refused.push("An experiment is running: stop it first, or wait for its end.");
  $("refused").textContent = refused[0] ?? "";
  if (refused.length) return;
  if (same && experiment.models.length) {
    stopOrContinue();
    return;
  }
  openOwn(choice);
  start(page.experiment).catch(fail);
}

async function readFile() {
  const [file] = $("file").files;
  if (!file) return;
  try {
    FORM.text.value = await readText(file);
    $("refused").textContent = "";
  } catch (error) {
    $("refused").textContent = error.message;
  }
  changedForm();
}

let keeping = 0;

function changedForm() {
  showForm();
  clearTimeout(keeping);
  keeping = setTimeout(keepForm, 500); // Firefox refuses more than 200 changes of the address in 10 s
}

// ---- training

async function start(experiment) {
  const { text } = experiment;
  experiment.running = true;
  $("speed").textContent = "drawing the initial weights …";
  $("pause").hidden = false;
  $("pause").textContent = "Stop";
  $("lab").hidden = false;
  $("lab").scrollIntoView({ behavior: CALM.matches ? "instant" : "smooth", block: "start" });
  $("announce").textContent = "Training started.";
  const corpus = text === null ? await shakespeare() : corpusOf(text);
  const begun = experiment.begin(script(), corpus, $("wasm").textContent);
  if (experiment === page.experiment) showModels();
  await begun;
  show(experiment);
  await experiment.train();
}

function stopOrContinue() {
  const { experiment } = page;
  experiment.running = !experiment.running;
  show(experiment);
  if (experiment.running && experiment.ready) experiment.train().catch(fail);
}

function fail(error) {
  page.experiment.stop();
  $("lab").hidden = false;
  $("pause").hidden = true;
  document.body.dataset.failed = error.message;
  $("speed").textContent = `The training stopped: ${error.message}. Reload the page, or try another browser.`;
  $("announce").textContent = $("speed").textContent;
}

// ---- what is seen of an experiment

function showModels() {
  const { experiment } = page;
  const sections = experiment.models.map((model) => {
    model.lossNow = make("span", { class: "loss" });
    model.map = make("canvas", { class: "map", role: "img" });
    model.map.onpointermove = (event) => pointAt(model, event);
    model.map.onpointerdown = (event) => pointAt(model, event);
    model.heads = headButtons(model, experiment, draw);
    model.numbers = make("dl", {});
    model.written = make("p", { class: "said" });
    return make(
      "section",
      { class: `arm ${model.side}`, "aria-label": model.arm.name },
      make("h3", {}, make("span", { class: "dot" }, model.arm.name), model.lossNow),
      model.map,
      make("div", { class: "below" }, model.heads, model.numbers),
      make("div", { class: "small soft" }, "What it writes"),
      model.written,
    );
  });
  $("arms").replaceChildren(...sections);
  $("lab").hidden = false;
  $("row").max = experiment.block_size - 1;
}

let drawn = 0; // the step that was drawn last

/** Show the state of an experiment, if it is the one that the reader looks at. */
function show(experiment) {
  if (experiment !== page.experiment || !experiment.ready) return;
  const { stepsDone, running, done, validating } = experiment;
  $("progress").max = experiment.steps;
  $("progress").value = stepsDone;
  $("speed").textContent = progress(experiment);
  $("pause").hidden = done || validating;
  $("pause").textContent = running ? "Stop" : "Continue";
  const seldom = CALM.matches && running && stepsDone > drawn && stepsDone - drawn < 50;
  if (!seldom) {
    drawn = stepsDone;
    draw();
  }
  if (done && $("result").hidden) showResult();
}

function draw() {
  const { experiment } = page;
  if (!experiment?.ready) return;
  $("shown").textContent = openHead(experiment);
  drawLosses(experiment);
  drawGap(experiment);
  for (const model of experiment.models) {
    drawMap(model, experiment, page.row);
    drawHeads(model, experiment);
    const done = model.losses.length;
    model.lossNow.textContent = done ? `${inNats(smooth(model.losses, done - 1))} nats` : "";
    model.written.textContent = model.said;
    showMeasures(model);
  }
  readRow(experiment, page.row);
}

function showMeasures(model) {
  const measures = [
    ["entropy (1: even over allowed keys)", model.entropy],
    ["weight on the future", model.future],
    ["similarity of heads", model.similarity],
  ];
  const known = measures.filter(([, value]) => Number.isFinite(value));
  const rows = known.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value.toFixed(2))]);
  model.numbers.replaceChildren(...rows);
}

function pointAt(model, event) {
  const row = rowAt(model, page.experiment, event);
  if (row === null || row === page.row) return;
  page.row = row;
  $("row").value = row;
  draw();
}

// ---- the end

function showResult() {
  const { experiment } = page;
  const { lesson, seed, steps, guess, models, text } = experiment;
  const [first, second] = models.map((model) => model.validated);
  const apart = headsApart(models[1].patterns, experiment.block_size);
  const measured = { gap: second - first, second, apart };
  const own = lesson.id === "own";
  if (own) {
    $("refused").textContent = "";
    $("outcome").textContent = `After ${steps} steps, ${outcome(lesson, measured)}`;
    $("explained").textContent = "One seed says little about a small difference: try others.";
    $("agreement").textContent = "No such run is published; the command below makes it in Python.";
  } else {
    const answer = answerOf(lesson, measured);
    const agrees = answer === guess;
    const verdict = make("span", { class: agrees ? "right" : "wrong" });
    verdict.textContent = agrees ? "As you predicted. " : "Not as you predicted. ";
    $("outcome").replaceChildren(verdict, `${lesson.answers[answer]}: ${outcome(lesson, measured)}`);
    $("explained").textContent = explanation(lesson, answer, steps);
    $("condition").textContent = lesson.condition;
    $("agreement").textContent = agreement(lesson, { seed, steps, answer }).join(" ");
    $("next").textContent = `Next: ${nextLesson().switch}`;
  }
  showLosses(experiment);
  $("holds").hidden = own;
  $("next").hidden = own;
  $("text-read").hidden = text === null;
  $("claim").hidden = !lesson.verdict;
  $("verdict").replaceChildren(...(lesson.verdict ? verdictLines(lesson) : []));
  $("command").textContent =
    `${lesson.command} attn=${variantsOf(lesson)} seed=${seed}${shorter(experiment)}`;
  $("copy").textContent = "Copy the command";
  $("share").textContent = "Copy a link";
  $("result").hidden = false;
  $("evidence").hidden = false;
  if (!isWritingNext(experiment)) bringAnswer();
  $("announce").textContent = `Training is done. ${$("outcome").textContent}`;
  if (document.hidden) document.title = `Done: ${TITLE}`;
}

/** Whether the reader is at work on the next experiment: then the page stays, and the keys go on
 *  into the form. */
function isWritingNext({ lesson }) {
  if (lesson.id !== "own" || !$("own").contains(document.activeElement)) return false;
  const { choice, refused } = readForm();
  return refused.length > 0 || !isSame(choice, lesson.choice);
}

/** The answer comes to the top of the window, where the maps are below it. */
function bringAnswer() {
  $("result").scrollIntoView({ behavior: "instant", block: "start" });
  $("outcome").focus({ preventScroll: true });
}

function variantsOf({ arms }) {
  return [...new Set(arms.map(({ variant }) => variant))].join(",");
}

/** The words that shorten a lesson's published run. */
function shorter({ lesson, steps }) {
  if (steps === wholeSteps(lesson)) return "";
  return ` trainer.max_steps=${steps} trainer.val_check_interval=${steps}`;
}

function verdictLines({ verdict }) {
  const lines = verdict.lines.map(([word, where, seeds]) => {
    return make("li", {}, make("b", {}, `${word}: `), `${where} (${seeds})`);
  });
  return [make("p", {}, verdict.says), make("ul", {}, ...lines), make("p", {}, verdict.reach)];
}

function showLosses({ lesson, models, seed, steps }) {
  const heads = lesson.id === "own" ? ["", "here"] : ["", "here", "PyTorch, published", "difference"];
  const rows = models.map((model) => {
    const published = steps === wholeSteps(lesson) ? model.arm.published[seed] : undefined;
    const cells = [model.validated.toFixed(5)];
    if (published !== undefined) {
      cells.push(published.toFixed(5), Math.abs(model.validated - published).toExponential(0));
    } else if (lesson.id !== "own") cells.push("not published", "");
    const numbers = cells.map((cell) => make("td", {}, cell));
    return make("tr", { class: model.side }, make("td", { class: "dot" }, model.arm.name), ...numbers);
  });
  const header = make("tr", {}, ...heads.map((head) => make("th", {}, head)));
  $("losses").replaceChildren(header, ...rows);
}

function nextLesson() {
  return LESSONS[(LESSONS.indexOf(page.experiment.lesson) + 1) % LESSONS.length];
}

/** The same experiment with the next seed. */
function again() {
  const { lesson, guess, seed, steps } = page.experiment;
  if (lesson.id === "own") {
    FORM.seed.value = seed + 1;
    openOwn({ ...lesson.choice, seed: seed + 1 });
    start(page.experiment).catch(fail);
    return;
  }
  openLesson(lesson, { seed: seed + 1, steps });
  predict(guess);
}

// ---- the reader

async function copyText(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    prompt("Copy this:", text); // a browser may forbid it for a file
  }
}

/** The address; of a file, its name without the folders of this device. */
function link() {
  return location.protocol === "file:" ? `lab.html${location.hash}` : location.href;
}

function fileName(kind) {
  const { lesson, seed, steps } = page.experiment;
  return `${lesson.id}-${variantsOf(lesson).replace(",", "-")}-seed${seed}-steps${steps}.${kind}`;
}

function saveText(text, name) {
  save(new Blob([text], { type: "text/plain" }), name);
}

$("pause").onclick = stopOrContinue;
$("row").oninput = () => {
  page.row = Number($("row").value);
  draw();
};
$("copy").onclick = () => copyText($("copy"), $("command").textContent);
$("share").onclick = () => copyText($("share"), link());
$("next").onclick = () => {
  openLesson(nextLesson());
  $("question").focus();
  scrollTo({ top: 0 });
};
$("again").onclick = again;
$("to-evidence").onclick = (event) => {
  event.preventDefault(); // the address keeps the settings
  $("evidence").scrollIntoView();
  $("evidence").focus({ preventScroll: true });
};
$("curves").onclick = () => {
  const { models } = page.experiment;
  const names = models.map(({ arm }) => arm.name);
  const losses = models.map((model) => model.losses);
  saveText(curvesAsCsv(names, losses), fileName("csv"));
};
$("picture").onclick = async () => save(await mapsAsPicture(page.experiment.models), fileName("png"));
$("text-written").onclick = () => {
  const parts = page.experiment.models.map(({ arm, said }) => `${arm.name}:\n${said}\n`);
  saveText(`${$("command").textContent}\n\n${parts.join("\n")}`, fileName("txt"));
};
$("text-read").onclick = () => saveText(page.experiment.text, "text.txt");
$("own").onsubmit = submitOwn;
$("own").oninput = changedForm;
$("file").onchange = readFile;

fillForm();
putIntoForm(history.state?.form ?? { ...OWN.defaults, text: "" });
for (const lesson of LESSONS) {
  const button = make("button", { type: "button", "data-id": lesson.id }, lesson.switch);
  button.onclick = () => openLesson(lesson);
  if (lesson === LESSONS[FIRST_LESSONS]) $("switches").append(make("span", { class: "small soft" }, "More:"));
  $("switches").append(button);
}
const ownButton = make("button", { type: "button", "data-id": "own" }, "Your own experiment");
ownButton.onclick = () => openOwn(page.kept.get("own")?.lesson.choice ?? { ...OWN.defaults, text: "" });
$("switches").append(ownButton);
for (const source of SOURCES) {
  const shown = make("pre", { tabindex: "0" }, source.textContent.trim());
  $("sources").append(make("details", {}, make("summary", {}, source.dataset.source), shown));
}
addEventListener("hashchange", () => openAddress().catch(fail));
addEventListener("resize", draw);
addEventListener("beforeunload", (event) => {
  // The browser asks before a training is lost.
  if ([...page.kept.values()].some(({ unfinished }) => unfinished)) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) document.title = TITLE;
});
DARK.addEventListener("change", draw);
openAddress()
  .then(() => {
    document.body.dataset.ready = "true";
  })
  .catch(fail);
