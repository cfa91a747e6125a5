// The two models of an experiment, each trained by a worker of its own.

import { bytesOf } from "./texts.js";

/** One of the two models: its worker, and what came back from it. */
class Model {
  constructor(side, arm, script) {
    this.side = side; // "a" or "b"
    this.arm = arm; // of the lesson: variant, name, settings, published losses
    this.worker = new Worker(script);
    this.losses = [];
    this.said = "…"; // what it writes
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

const SAMPLE = 130; // characters that a model writes

/** Two models that train in step: `changed` is called when there is something new to see. */
export class Experiment {
  constructor(lesson, { seed, steps, text = null }, changed) {
    Object.assign(this, { lesson, seed, steps, text, changed });
    this.guess = null;
    this.models = [];
    this.corpus = null;
    this.running = false; // as the reader wants it
    this.looping = false; // whether `train` is at work; after a stop it ends with its step
    this.pace = 0; // steps per second
    this.validating = false; // nothing stops it: a worker validates in one action
    this.done = false;
    this.layer = 0;
    this.head = 0;
    this.chosen = false; // whether the reader has chosen a head
  }

  get block_size() {
    return this.lesson.arms[0].settings.model.block_size;
  }

  get stepsDone() {
    return this.models.length ? this.models[0].losses.length : 0;
  }

  /** Whether the initial weights are drawn. */
  get ready() {
    return this.models.length > 0 && this.models.every(({ patterns }) => patterns);
  }

  /** Whether something is lost with it: it has begun, and has not come to its end. */
  get unfinished() {
    return this.models.length > 0 && !this.done;
  }

  /** Draw the initial weights of both models. */
  async begin(script, corpus, wasm) {
    this.corpus = corpus;
    this.models = this.lesson.arms.map((arm, i) => new Model("ab"[i], arm, script));
    const { train, val, alphabet } = corpus;
    const given = { wasm: bytesOf(wasm), text: { train, val }, vocab_size: alphabet.length };
    await this.each(async (model) => {
      const settings = { ...model.arm.settings, seed: this.seed, trainer: { max_steps: this.steps } };
      Object.assign(model, await model.ask("start", { ...given, settings }));
    });
  }

  /** Stop after the step at work. */
  stop() {
    this.running = false;
  }

  async each(action) {
    await Promise.all(this.models.map(action));
  }

  /** Train until the end, or until the reader stops. */
  async train() {
    if (this.looping) return;
    this.looping = true;
    let count = 1;
    while (this.running && this.stepsDone < this.steps) {
      const began = performance.now();
      await this.each(async (model) => {
        const { losses, ...seen } = await model.ask("train", { count });
        model.losses.push(...losses);
        Object.assign(model, seen);
      });
      const now = (1000 * count) / (performance.now() - began);
      this.pace = this.pace === 0 ? now : 0.8 * this.pace + 0.2 * now;
      if (this.stepsDone % 50 < count) await this.write();
      this.changed(this);
      count = Math.max(1, Math.min(10, Math.round(this.pace / 8), this.steps - this.stepsDone));
    }
    if (this.running) await this.finish();
    this.looping = false;
  }

  /** Let both models write, after a new line, or else after the first character of the validation
   *  text. */
  async write() {
    const { alphabet, val } = this.corpus;
    const newline = alphabet.indexOf("\n");
    const prompt = [newline >= 0 ? newline : val[0]];
    await this.each(async (model) => {
      const { ids } = await model.ask("sample", { prompt, count: SAMPLE });
      model.said = ids
        .map((id) => alphabet[id])
        .join("")
        .trim();
    });
  }

  async finish() {
    this.validating = true;
    this.changed(this);
    await this.each(async (model) => {
      model.validated = (await model.ask("validate")).loss;
    });
    await this.write();
    Object.assign(this, { running: false, validating: false, done: true });
    this.end();
    this.changed(this);
  }

  /** Seconds until the result, by the pace so far. A validation has no backward pass, which takes
   *  two thirds of a step. */
  get secondsLeft() {
    const { data, model } = this.lesson.arms[0].settings;
    const validation = this.corpus.val.length / (data.batch_size * model.block_size) / 3;
    return (this.steps - this.stepsDone + validation) / this.pace;
  }

  /** End the workers. */
  end() {
    for (const { worker } of this.models) worker.terminate();
  }
}
