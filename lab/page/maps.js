// The maps: patterns as pictures, the thumbnails of all heads, and a row in words.

import { $, color, DARK, make, visible } from "./elements.js";
import { mostAhead, mostApart } from "./heads.js";

/** The head that is shown large: that of the experiment, or the last if the model has fewer. */
export function shownHead(model, { head }) {
  return Math.min(head, model.n_head - 1);
}

/** Until the reader chooses a head, the maps show the one that tells most: where the mask of one
 *  model alone lets it read on, its head with most weight on the next character; else the head in
 *  which the two models differ most. Returns a sentence that says so. */
export function openHead(experiment) {
  const { models, block_size: T } = experiment;
  const [first, second] = models;
  const readsOn = ({ allowed }) => allowed[1] === 1; // the first query reads the second key
  const leaking = readsOn(first) === readsOn(second) ? null : models.find(readsOn);
  const found = leaking ? mostAhead(leaking.patterns, T) : mostApart(first.patterns, second.patterns, T);
  const { layer, head, weight } = found;
  if (!experiment.chosen) Object.assign(experiment, { layer, head });
  const place = placeOf(experiment);
  if (experiment.chosen) return `The maps show ${place}, which you chose.`;
  if (weight === 0) return `The maps show ${place}; in no head do the two models differ.`;
  if (!leaking) return `The maps show ${place}, where the two models differ most.`;
  return (
    `The maps show ${place}: of all heads of “${leaking.arm.name}”, the one that attends most to the next ` +
    `character, with ${(100 * weight).toFixed(0)} % of its weight.`
  );
}

/** Which head both maps show; a model with fewer heads shows its last. */
function placeOf({ models, layer, head }) {
  const place = `layer ${layer + 1}, head ${head + 1}`;
  const fewer = models.find((model) => head >= model.n_head);
  return fewer ? `${place} (of “${fewer.arm.name}”, head ${fewer.n_head})` : place;
}

/** A small map for each head; a row for each layer, or one row if layers have a single head. */
export function headButtons(model, experiment, chosen) {
  const { n_layer } = model.arm.settings.model;
  const buttons = [];
  for (let layer = 0; layer < n_layer; layer++) {
    for (let head = 0; head < model.n_head; head++) {
      const name = `Layer ${layer + 1}, head ${head + 1}`;
      const button = make("button", { type: "button", title: name, "aria-label": name });
      button.append(make("canvas", {}));
      button.onclick = () => {
        Object.assign(experiment, { layer, head, chosen: true });
        chosen();
      };
      buttons.push(button);
    }
  }
  const columns = model.n_head > 1 ? model.n_head : n_layer;
  const group = make("div", { class: "heads", role: "group", "aria-label": "Heads" }, ...buttons);
  group.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 66px))`;
  return group;
}

export function drawHeads(model, experiment) {
  [...model.heads.children].forEach((button, i) => {
    const layer = Math.floor(i / model.n_head);
    const head = i % model.n_head;
    const shown = layer === experiment.layer && head === shownHead(model, experiment);
    button.setAttribute("aria-pressed", shown);
    paintPattern(button.firstChild, model, layer, head);
  });
}

/** Blue on itself and before, orange on later keys, the root of the weight as strength; gray where
 *  the mask blocks and there is no weight. A weight of 0 that the mask allows is not gray. */
export function paintPattern(canvas, model, layer, head) {
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

const drawing = document.createElement("canvas"); // T by T, before it is enlarged

/** Where the map lies in its canvas: beside it the letters, in so many columns that they fit. */
function mapPlace(canvas, T) {
  const size = canvas.clientWidth;
  const columns = Math.max(1, Math.ceil(9.5 / ((size * 0.92) / T)));
  const margin = 8 * columns + 2;
  return { size, columns, margin, cell: (size - margin) / T };
}

/** The map of the shown head, with the letters of the text, and the chosen row framed. */
export function drawMap(model, experiment, row) {
  const T = experiment.block_size;
  const head = shownHead(model, experiment);
  const { size, columns, margin, cell } = mapPlace(model.map, T);
  const ratio = devicePixelRatio || 1;
  model.map.width = size * ratio;
  model.map.height = size * ratio;
  const context = model.map.getContext("2d");
  context.scale(ratio, ratio);
  context.imageSmoothingEnabled = false;
  paintPattern(drawing, model, experiment.layer, head);
  context.drawImage(drawing, margin, margin, cell * T, cell * T);
  context.font = "9px ui-monospace, DejaVu Sans Mono, monospace";
  context.textAlign = "center";
  context.textBaseline = "middle";
  const letters = lettersOf(experiment);
  for (let i = 0; i < T; i++) {
    // Queries stand down the left side, keys along the top.
    const away = margin - 5 - 8 * (i % columns);
    const along = margin + (i + 0.5) * cell;
    context.fillStyle = color(i === row ? "--ink" : "--soft");
    context.fillText(visible(letters[i]), away, along);
    context.fillStyle = color("--soft");
    context.fillText(visible(letters[i]), along, away);
  }
  context.strokeStyle = color("--ink");
  context.lineWidth = 1.5;
  context.strokeRect(margin, margin + row * cell - 0.5, cell * T, cell + 1);
  const place = `layer ${experiment.layer + 1}, head ${head + 1}`;
  const label = `Attention of ${model.arm.name}, ${place}, step ${experiment.stepsDone}`;
  model.map.setAttribute("aria-label", label);
}

function lettersOf({ corpus, block_size: T }) {
  return [...corpus.val.subarray(0, T)].map((id) => corpus.alphabet[id]);
}

/** The row of a map under the pointer; null beside it. */
export function rowAt(model, experiment, event) {
  const T = experiment.block_size;
  const { margin, cell } = mapPlace(model.map, T);
  const row = Math.floor((event.clientY - model.map.getBoundingClientRect().top - margin) / cell);
  return row < 0 || row >= T ? null : row;
}

/** The chosen row of both maps in words. */
export function readRow(experiment, row) {
  const letters = lettersOf(experiment);
  const before = letters
    .slice(Math.max(0, row - 12), row + 1)
    .map(visible)
    .join("");
  $("row").setAttribute("aria-valuetext", `row ${row + 1}, after ${before}`);
  const lines = experiment.models.map((model) => {
    const line = make("div", { class: model.side });
    const keys = strongestKeys(model, experiment, row).map(([weight, key]) => {
      return `“${visible(letters[key])}” ${whereIs(key, row)} ${(100 * weight).toFixed(0)} %`;
    });
    line.append(make("span", { class: "dot" }, `${model.arm.name}: `), keys.join(", "));
    return line;
  });
  $("reading").replaceChildren(make("div", {}, `After “${before}” it attends to`), ...lines);
}

/** Up to three keys of the chosen row with the largest weights, as [weight, key]. */
function strongestKeys(model, experiment, row) {
  const T = experiment.block_size;
  const start = (shownHead(model, experiment) * T + row) * T;
  const weights = [...model.patterns[experiment.layer].subarray(start, start + T)];
  const ranked = weights.map((weight, key) => [weight, key]).sort((a, b) => b[0] - a[0]);
  return ranked.slice(0, 3).filter(([weight]) => weight >= 0.005);
}

function whereIs(key, row) {
  if (key === row) return "(itself)";
  return key < row ? `(${row - key} back)` : `(${key - row} ahead)`;
}

/** Both maps as one picture. */
export function mapsAsPicture(models) {
  const [a, b] = models.map(({ map }) => map);
  const canvas = document.createElement("canvas");
  const line = Math.round(a.width / 16); // a line of letters
  canvas.width = a.width + line + b.width;
  canvas.height = Math.max(a.height, b.height) + 2 * line;
  const context = canvas.getContext("2d");
  context.fillStyle = color("--page");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.fillStyle = color("--ink");
  context.font = `${Math.round(0.7 * line)}px system-ui, DejaVu Sans, sans-serif`;
  [a, b].forEach((map, i) => {
    const left = i * (a.width + line);
    context.fillText(models[i].arm.name, left + line / 2, line, map.width);
    context.drawImage(map, left, 1.5 * line);
  });
  return new Promise((resolve) => {
    canvas.toBlob(resolve, "image/png");
  });
}
