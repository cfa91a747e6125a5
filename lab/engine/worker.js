// One of the two models of the page. It answers each message { action, ... } with one message.

import { measures } from "./measures.js";
import { GPT } from "./model.js";
import { createOperations } from "./operations.js";
import { Generator } from "./rng.js";
import { evaluate, sample, trainStep } from "./training.js";

const state = { net: null, settings: null, text: null, step: 0 };

const ACTIONS = {
  /** settings as `python train.py` composes them; text: { train, val } as ids. */
  async start({ wasm, settings, text, vocab_size }) {
    const operations = await createOperations(wasm);
    Object.assign(state, { settings, text, step: 0 });
    state.net = new GPT(operations, vocab_size, settings);
    return { operations: operations.name, ...look(), allowed: allowed() };
  },

  /** Train `count` steps: their losses, and the patterns after the last. */
  train({ count }) {
    const losses = [];
    for (let i = 0; i < count; i++) {
      losses.push(trainStep(state.net, state.text.train, state.settings, state.step).loss);
      state.step += 1;
    }
    return { losses, ...look() };
  },

  /** The loss on all of the validation text. */
  validate() {
    return { loss: evaluate(state.net, state.text.val, state.settings.data.batch_size) };
  },

  sample({ prompt, count }) {
    const stream = new Generator(state.settings.seed, "sample");
    return { ids: sample(state.net, prompt, count, stream) };
  },
};

/** The patterns of the first window of the validation text, and measures of two windows: its first
 *  and its last. */
function look() {
  const { net, text } = state;
  const T = net.model.block_size;
  const windows = new Uint8Array(2 * T);
  const last = text.val.length - T - 1;
  windows.set(text.val.subarray(0, T));
  windows.set(text.val.subarray(last, last + T), T);
  const patterns = net.patterns(windows, 2);
  const found = patterns.map((pattern, layer) => {
    const { n_head, mask } = net.blocks[layer].attn;
    return measures(pattern, n_head, T, mask.may);
  });
  const mean = (name) => found.reduce((sum, of) => sum + of[name], 0) / found.length;
  return {
    patterns: patterns.map((pattern) => pattern.slice(0, pattern.length / 2)),
    entropy: mean("entropy"),
    future: mean("future"),
    similarity: mean("similarity"),
  };
}

/** The mask (T, T) of the first layer, 1 = may attend. */
function allowed() {
  const T = state.net.model.block_size;
  const { may } = state.net.blocks[0].attn.mask;
  return Uint8Array.from({ length: T * T }, (_, i) => may(Math.floor(i / T), i % T));
}

self.onmessage = async ({ data: { action, ...given } }) => {
  try {
    postMessage(await ACTIONS[action](given));
  } catch (error) {
    postMessage({ error: String(error) });
  }
};
