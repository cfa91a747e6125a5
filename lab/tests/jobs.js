// Runs jobs with the engine of a folder and prints what came out as one line of JSON.
//
//     node lab/tests/jobs.js FOLDER_OF_THE_ENGINE TEXT < jobs.json
//
// A job: { name, settings, steps, wasm: true, validate: false }; weights and gradients of step 0 go
// to NAME.weights and NAME.grads, fp32, in the order of `parameters`.
import fs from "node:fs";
import { pathToFileURL } from "node:url";

import { corpusOf } from "../page/texts.js";

const [folder, text] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${folder}/${name}`));
const { createOperations } = await load("operations.js");
const { GPT } = await load("model.js");
const { batch, evaluate, trainStep } = await load("training.js");
const { measures } = await load("measures.js");

const { alphabet, train, val } = corpusOf(fs.readFileSync(text, "utf8"));
const wasm = Buffer.from(fs.readFileSync(`${folder}/operations.wasm.base64`, "utf8"), "base64");

function write(file, net, part) {
  const pieces = net.parameters.map((p) => p[part].slice(0, p.count));
  fs.writeFileSync(file, Buffer.concat(pieces.map((x) => Buffer.from(x.buffer))));
}

function measured(net, settings) {
  const T = settings.model.block_size;
  const windows = new Uint8Array(2 * T);
  windows.set(val.subarray(0, T));
  windows.set(val.subarray(val.length - T - 1, val.length - 1), T);
  const patterns = net.patterns(windows, 2);
  const found = patterns.map((pattern, layer) => {
    const { n_head, mask } = net.blocks[layer].attn;
    return measures(pattern, n_head, T, mask.may);
  });
  const mean = (name) => found.reduce((sum, of) => sum + of[name], 0) / found.length;
  return { entropy: mean("entropy"), future: mean("future"), similarity: mean("similarity") };
}

const done = [];
for (const job of JSON.parse(fs.readFileSync(0, "utf8"))) {
  const { settings, steps } = job;
  const operations = await createOperations(job.wasm ? wasm : null);
  const net = new GPT(operations, alphabet.length, settings);
  write(`${job.name}.weights`, net, "value");
  const before = measured(net, settings);
  const losses = [];
  const norms = [];
  const ms = []; // CPU time of each step, of all threads
  for (let step = 0; step < steps; step++) {
    const before = process.cpuUsage();
    const { loss, norm } = trainStep(net, train, settings, step);
    const { user, system } = process.cpuUsage(before);
    ms.push((user + system) / 1000);
    losses.push(loss);
    norms.push(norm);
    if (step === 0) write(`${job.name}.grads`, net, "grad");
  }
  const batches = [0, 1, 299].map((step) => {
    const { x, y } = batch(train, settings, step);
    return [[...x], [...y]];
  });
  done.push({
    name: job.name,
    operations: operations.name,
    losses,
    norms,
    batches,
    measures: before,
    ms,
    parameters: net.parameters.map(({ name, M, K }) => [name, M, K]),
    val_loss: job.validate ? evaluate(net, val, settings.data.batch_size) : null,
  });
}
console.log(JSON.stringify(done));
