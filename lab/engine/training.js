// Training as `python train.py` does it: batches, schedule, optimizer, validation, samples.

import { BAND } from "./attention.js";
import { matrix } from "./operations.js";
import { Generator } from "./rng.js";

/** The batch of a step, x and y (B, T): random windows; y is one symbol later than x. */
export function batch(train, { seed, data, model }, step) {
  const stream = new Generator(seed, "data", step);
  const T = model.block_size;
  const x = new Uint8Array(data.batch_size * T);
  const y = new Uint8Array(data.batch_size * T);
  for (let b = 0; b < data.batch_size; b++) {
    const start = stream.integer(train.length - T);
    x.set(train.subarray(start, start + T), b * T);
    y.set(train.subarray(start + 1, start + T + 1), b * T);
  }
  return { x, y };
}

/** The learning rate of a step: a linear warm-up, then half a cosine from lr to min_lr
 *  (Loshchilov and Hutter 2017). */
export function learningRate(step, { optim: { lr, min_lr, warmup_steps }, trainer }) {
  if (step < warmup_steps) return (lr * (step + 1)) / (warmup_steps + 1);
  const progress = (step - warmup_steps) / Math.max(1, trainer.max_steps - warmup_steps);
  const cosine = (1 + Math.cos(Math.PI * Math.min(1, progress))) / 2;
  return min_lr + (lr - min_lr) * cosine;
}

/** Clip all gradients together to a norm of 1, then a step of AdamW; returns the norm before.
 *  Matrices decay, the weights of LayerNorm do not. `updates` counts from 1. */
export function update(net, updates, lr, { betas: [beta1, beta2], weight_decay }) {
  let squares = 0;
  for (const { grad } of net.parameters) {
    for (let i = 0; i < grad.length; i++) squares += grad[i] * grad[i];
  }
  const norm = Math.sqrt(squares);
  const shared = {
    clip: Math.min(1, 1 / (norm + 1e-6)),
    beta1,
    beta2,
    rate: lr / (1 - beta1 ** updates),
    root: Math.sqrt(1 - beta2 ** updates),
  };
  for (const { value, grad, mean, square, M } of net.parameters) {
    const kept = M > 1 ? 1 - lr * weight_decay : 1;
    net.operations.adamw(value.length, value, grad, mean, square, { ...shared, kept });
  }
  return norm;
}

/** One step of training, counted from 0: the mean loss in nats, and the norm of its gradient. */
export function trainStep(net, train, settings, step) {
  const { x, y } = batch(train, settings, step);
  const B = settings.data.batch_size;
  const logits = net.forward(x, B);
  const loss = net.crossEntropy(logits, y, y.length) / y.length;
  net.backward(x, logits, B);
  const norm = update(net, step + 1, learningRate(step, settings), settings.optim);
  return { loss, norm };
}

/** The mean loss on a text in windows that do not overlap: `val_loss` of a run. */
export function evaluate(net, ids, batch_size) {
  const T = net.model.block_size;
  const last = ids.length - 1; // has no target
  let sum = 0;
  for (let start = 0; start < last; ) {
    const windows = Math.min(batch_size, Math.floor((last - start) / T));
    const length = windows > 0 ? T : last - start; // the last window is shorter
    const B = Math.max(1, windows);
    const x = new Uint8Array(B * BAND * Math.ceil(length / BAND));
    x.set(ids.subarray(start, start + B * length));
    const targets = ids.subarray(start + 1, start + 1 + B * length);
    sum += net.crossEntropy(net.forward(x, B, length), targets, B * length);
    start += B * length;
  }
  return sum / last;
}

/** `count` ids that continue a prompt, drawn at temperature 1; the model sees the last T. */
export function sample(net, prompt, count, stream) {
  const ids = [...prompt];
  const padded = net.embedding.symbols.padded;
  for (let i = 0; i < count; i++) {
    const seen = ids.slice(-net.model.block_size);
    const x = new Uint8Array(BAND * Math.ceil(seen.length / BAND));
    x.set(seen);
    const logits = net.forward(x, 1, seen.length);
    const start = (seen.length - 1) * padded;
    logits.fill(-Infinity, start + net.vocab_size, start + padded);
    net.operations.softmax(1, padded, matrix(logits, padded, start), 1);
    ids.push(draw(logits.subarray(start, start + net.vocab_size), stream.uniform()));
  }
  return ids.slice(prompt.length);
}

/** The index at which the running sum of probabilities passes u, uniform in [0, 1). */
function draw(probabilities, u) {
  let left = u;
  for (let i = 0; i < probabilities.length - 1; i++) {
    left -= probabilities[i];
    if (left < 0) return i;
  }
  return probabilities.length - 1;
}
