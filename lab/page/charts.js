// The curves: losses of both models, and their difference.

import { $, color, inNats } from "./elements.js";

/** The mean of the last 10 values up to i. */
export function smooth(values, i) {
  const part = values.slice(Math.max(0, i - 9), i + 1);
  return part.reduce((sum, x) => sum + x, 0) / part.length;
}

/** A chart over the steps: draws its axes; `line` and `across` draw into it. */
class Chart {
  constructor(canvas, steps, { low, high, ticks, title }) {
    const ratio = devicePixelRatio || 1;
    this.width = canvas.clientWidth;
    this.height = canvas.clientHeight;
    canvas.width = this.width * ratio;
    canvas.height = this.height * ratio;
    this.steps = steps;
    this.low = low;
    this.high = high;
    this.context = canvas.getContext("2d");
    this.context.scale(ratio, ratio);
    this.context.font = "12px system-ui, DejaVu Sans, sans-serif";
    for (const tick of ticks) this.across(tick, String(tick), "--line");
    this.context.fillStyle = color("--soft");
    this.context.textAlign = "center";
    for (let step = 0; step <= steps; step += stepsBetweenTicks(steps)) {
      this.context.fillText(step, Math.min(this.x(step), this.width - 14), this.height - 4);
    }
    this.context.textAlign = "left";
    this.context.fillText(title, 40, 11, this.width - 46);
  }

  x(step) {
    return 40 + ((this.width - 46) * step) / this.steps;
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
    values.forEach((value, i) => {
      context.lineTo(this.x(i + 1), this.y(value));
    });
    context.stroke();
    context.globalAlpha = 1;
  }
}

/** About four ticks, or one each 100 steps. */
function stepsBetweenTicks(steps) {
  if (steps <= 100) return Math.max(1, Math.round(steps / 4));
  return 100 * Math.ceil(steps / 600);
}

export function drawLosses({ models, steps, stepsDone, corpus }) {
  const guessing = Math.log(corpus.alphabet.length);
  const smallest = Math.min(...models.flatMap((model) => model.losses), guessing);
  const high = guessing + 0.23;
  const low = smallest < 1.5 ? 0 : 1.5;
  const every = high - low > 3 ? 1 : 0.5;
  const ticks = [];
  for (let tick = low === 0 ? 0 : 2; tick <= high; tick += every) ticks.push(tick);
  const title = `training loss in nats per character; ${guessing.toFixed(2)} is guessing`;
  const chart = new Chart($("chart"), steps, { low, high, ticks, title });
  models.forEach((model, i) => {
    // The second, thinner, on the first: both show.
    chart.line(model.losses, color(`--${model.side}`), 1, 0.25);
    const smoothed = model.losses.map((_, at) => smooth(model.losses, at));
    chart.line(smoothed, color(`--${model.side}`), i === 0 ? 5 : 2, 1);
  });
  chart.context.font = "600 13px system-ui, DejaVu Sans, sans-serif";
  chart.context.textAlign = "right";
  models.forEach((model, i) => {
    chart.context.fillStyle = color(`--${model.side}`);
    chart.context.fillText(model.arm.name, chart.width - 10, 34 + 17 * i);
  });
  const said = models.map((model) => {
    const loss = stepsDone ? inNats(smooth(model.losses, stepsDone - 1)) : "not trained";
    return `${model.arm.name} ${loss}`;
  });
  $("chart").setAttribute("aria-label", `Training loss after ${stepsDone} steps: ${said.join(", ")}`);
}

export function drawGap({ models, steps }) {
  const [first, second] = models;
  const apart = second.losses.map((loss, i) => loss - first.losses[i]);
  const sizes = [0.1, 0.2, 0.5, 1, 2, 3, 5];
  const bound = (size) => sizes.find((step) => size <= step) ?? 5;
  const low = -bound(-Math.min(0, ...apart));
  const high = bound(Math.max(0, ...apart));
  const ticks = [0];
  if (high >= -low / 4) ticks.push(high);
  if (-low >= high / 4) ticks.push(low);
  const title = `difference on the same batch: ${second.arm.name} − ${first.arm.name}`;
  const chart = new Chart($("gap"), steps, { low, high, ticks, title });
  chart.line(apart, color("--ink"), 1.5, 1);
  const last = apart.length ? smooth(apart, apart.length - 1).toFixed(3) : "not known yet";
  $("gap").setAttribute("aria-label", `Difference of the losses in nats: ${last}`);
}
