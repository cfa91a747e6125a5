// A small decoder-only GPT that takes its attention as settings, as attnlab/model.py does.
//
// Letters: B batch, T positions, N = B T rows, C channels, V symbols.

import { BAND, SelfAttention } from "./attention.js";
import { Context, Embedding, LayerNorm, Linear, normal } from "./layers.js";
import { add, matrix } from "./operations.js";

/** Two linear maps around a GELU, 4 times as wide inside: like x (N, C). */
class MLP {
  constructor(context, name) {
    const { n_layer, n_embd: C } = context.model;
    const residual = normal(0.02 / Math.sqrt(2 * n_layer));
    this.operations = context.operations;
    this.fc = new Linear(context, context.parameter(`${name}.fc.weight`, 4 * C, C, normal(0.02)));
    this.proj = new Linear(context, context.parameter(`${name}.proj.weight`, C, 4 * C, residual));
    this.active = context.zeros(context.N * 4 * C);
    this.slope = context.zeros(context.N * 4 * C); // derivative of the GELU
  }

  forward(x, N) {
    const inside = this.fc.forward(x, N);
    this.operations.gelu(N * this.fc.weight.M, inside, this.active, this.slope);
    return this.proj.forward(this.active, N);
  }

  backward(dOut, N) {
    const dInside = this.proj.backward(dOut, N);
    const count = N * this.fc.weight.M;
    for (let i = 0; i < count; i++) dInside[i] *= this.slope[i];
    return this.fc.backward(dInside, N);
  }
}

/** Pre-norm residual block: attention mixes positions, the MLP acts on each separately. */
class Block {
  constructor(context, name, attn) {
    this.ln_1 = new LayerNorm(context, `${name}.ln_1.weight`);
    this.attn = new SelfAttention(context, `${name}.attn`, attn);
    this.ln_2 = new LayerNorm(context, `${name}.ln_2.weight`);
    this.mlp = new MLP(context, `${name}.mlp`);
  }

  /** Adds to the residual stream x (B, T, C). */
  forward(x, B, T, length) {
    const N = B * T;
    const C = this.ln_1.C;
    add(N * C, x, this.attn.forward(this.ln_1.forward(x, N), B, T, length));
    add(N * C, x, this.mlp.forward(this.ln_2.forward(x, N), N));
  }

  /** Adds to its gradient dx (B, T, C). */
  backward(dx, B, T) {
    const N = B * T;
    this.ln_2.backward(this.mlp.backward(dx, N), dx, N);
    this.ln_1.backward(this.attn.backward(dx, B, T), dx, N);
  }
}

/** A GPT whose head is tied to its embedding (Radford et al. 2019).
 *
 *  settings: { seed, model: { n_layer, n_head, n_embd, block_size }, attn, data: { batch_size } },
 *  with the names and values of `python train.py`. */
export class GPT {
  constructor(operations, vocab_size, { seed, model, attn, data }) {
    const context = new Context(operations, seed, model, data.batch_size);
    this.model = model;
    this.vocab_size = vocab_size;
    this.embedding = new Embedding(context, vocab_size);
    this.blocks = [];
    for (let n = 0; n < model.n_layer; n++) {
      this.blocks.push(new Block(context, `blocks.${n}`, attn));
    }
    this.ln_f = new LayerNorm(context, "ln_f.weight");
    this.head = new Linear(context, this.embedding.symbols);
    this.dx = context.zeros(context.N * model.n_embd);
    this.operations = operations;
    this.parameters = context.parameters;
  }

  /** The number of parameters. */
  count() {
    return this.parameters.reduce((sum, { count }) => sum + count, 0);
  }

  /** Logits of the next symbol at every position: ids (B, T) -> (B, T, padded V).
   *
   *  Texts of a `length` below T stand in rows of T, the next multiple of BAND. */
  forward(ids, B, length = this.model.block_size) {
    const T = BAND * Math.ceil(length / BAND);
    const x = this.embedding.forward(ids, B * T, T);
    for (const block of this.blocks) block.forward(x, B, T, length);
    return this.head.forward(this.ln_f.forward(x, B * T), B * T);
  }

  /** The gradients of all parameters, from that of the logits of whole texts. */
  backward(ids, dLogits, B) {
    const T = this.model.block_size;
    const { dx } = this;
    const dNormed = this.head.backward(dLogits, B * T);
    dx.fill(0);
    this.ln_f.backward(dNormed, dx, B * T);
    for (const block of [...this.blocks].reverse()) block.backward(dx, B, T);
    this.embedding.backward(ids, dx, B * T, T);
  }

  /** The sum of -ln p(target) over `rows` rows of logits, in nats. The logits become the
   *  gradient of its mean: (p - 1 at the target) / rows. */
  crossEntropy(logits, targets, rows) {
    const V = this.vocab_size;
    const padded = this.embedding.symbols.padded;
    const largest = new Int32Array(rows); // where
    const above = new Float32Array(rows); // how far the largest logit is above the target's
    for (let n = 0; n < rows; n++) {
      const start = n * padded;
      let at = start;
      for (let i = start; i < start + V; i++) if (logits[i] > logits[at]) at = i;
      largest[n] = at;
      above[n] = logits[at] - logits[start + targets[n]];
      logits.fill(-Infinity, start + V, start + padded); // columns without a symbol
    }
    this.operations.softmax(rows, padded, matrix(logits, padded), 1);
    let sum = 0;
    for (let n = 0; n < rows; n++) {
      sum += above[n] - Math.log(logits[largest[n]]);
      logits[n * padded + targets[n]] -= 1;
    }
    for (let i = 0; i < rows * padded; i++) logits[i] /= rows;
    return sum;
  }

  /** The patterns (B, H, T, T) of each layer for B texts of whole length. */
  patterns(ids, B) {
    this.forward(ids, B);
    return this.blocks.map(({ attn: { pattern, n_head } }) => {
      return pattern.slice(0, B * n_head * this.model.block_size ** 2);
    });
  }
}
