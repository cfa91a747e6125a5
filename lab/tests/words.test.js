// What is said follows from what was measured.

import assert from "node:assert/strict";
import { test } from "node:test";

import {
  agreement,
  answerOf,
  curvesAsCsv,
  differences,
  explanation,
  outcome,
  progress,
  publishedShare,
  timeLeft,
} from "../page/words.js";

const trainer = { max_steps: 500 };
const arm = (variant, published) => {
  return { variant, name: variant, published, source: "a_claim", rounding: 0, settings: { trainer } };
};
const LEAK = {
  claim: "a_claim",
  judge: "leak",
  explains: 2,
  answers: ["worse", "the same", "far better"],
  explained: "It copies.",
  arms: [arm("sdpa", { 3: 2.2, 4: 2.3, 5: 2.1 }), arm("flipped", { 3: 0.1, 4: 2.2, 5: 0.2 })],
};

const ANSWERS = [
  ["worse", { gap: 0.04, second: 2 }, 0],
  ["worse", { gap: 0.06, second: 2 }, 1],
  ["worse", { gap: 2, second: 4.1 }, 2],
  ["worse", { gap: 0.04, second: 4.1 }, 0],
  ["slightly", { gap: 0.09, second: 2 }, 0],
  ["slightly", { gap: 0.11, second: 2 }, 1],
  ["slightly", { gap: 2, second: 4.1 }, 2],
  ["slightly", { gap: -0.01, second: 4.1 }, 0],
  ["leak", { gap: 0.06 }, 0],
  ["leak", { gap: -0.7 }, 1],
  ["leak", { gap: -0.9 }, 2],
  ["sign", { gap: 0.06 }, 0],
  ["sign", { gap: 0 }, 1],
  ["sign", { gap: -0.06 }, 2],
  ["size", { gap: 0.04 }, 0],
  ["size", { gap: 0.06 }, 1],
  ["size", { gap: 1.1 }, 2],
  ["apart", { apart: 0 }, 0],
  ["apart", { apart: 0.1 }, 1],
  ["apart", { apart: 0.3 }, 2],
];
for (const [judge, measured, answer] of ANSWERS) {
  test(`the answer of ${judge} to ${JSON.stringify(measured)}`, () => {
    assert.equal(answerOf({ judge }, measured), answer);
  });
}

test("an explanation stands alone only where a whole run gave the answer that it explains", () => {
  assert.equal(explanation(LEAK, 2, 500), "It copies.");
  const short = explanation(LEAK, 1, 20);
  assert.match(short, /2 of 3 published runs.*500 steps.*20.*It copies\./);
  const whole = explanation(LEAK, 1, 500);
  assert.ok(whole.includes("2 of 3") && !whole.includes("steps"));
  assert.match(explanation(LEAK, 2, 20), /2 of 3 published runs.*500 steps.*20.*It copies\./);
  const unpublished = { ...LEAK, arms: [LEAK.arms[0], arm("own", {})] };
  assert.ok(!explanation(unpublished, 1, 500).includes("published"));
});

test("the share of published seeds is of those that both models have", () => {
  const arms = [arm("sdpa", { 3: 2.2, 4: 2.3 }), arm("flipped", { 3: 0.1, 4: 0.2, 9: 3 })];
  assert.deepEqual({ ...publishedShare({ ...LEAK, arms }, 2), gap: 0 }, { same: 2, seeds: 2, gap: 0 });
  assert.equal(publishedShare({ ...LEAK, arms: [arms[0], arm("x", { 3: 1 })] }, 2), null);
});

test("seeds that both models lack are listed once", () => {
  const said = agreement(LEAK, { seed: 8, steps: 500, answer: 2 });
  assert.equal(said.filter((sentence) => sentence.includes("3, 4, 5")).length, 1);
  assert.equal(agreement(LEAK, { seed: 3, steps: 500, answer: 2 }).length, 1);
});

test("a difference is told with its sign and size", () => {
  assert.match(outcome(LEAK, { gap: -0.5 }), /flipped ends 0\.500 nats below sdpa/);
  assert.match(outcome(LEAK, { gap: 2e-6 }), /2e-6 nats above/);
  assert.match(outcome(LEAK, { gap: 0 }), /same loss/);
});

const AT_WORK = {
  stepsDone: 4,
  steps: 12,
  running: true,
  validating: false,
  done: false,
  pace: 2,
  secondsLeft: 5,
  models: [{ operations: "WebAssembly" }],
};
const PROGRESS = {
  "at work": [{}, /^step 4 of 12, .*left, 2\.0 steps per second/],
  "just begun": [{ stepsDone: 0, pace: 0 }, /^step 0 of 12, WebAssembly$/],
  stopped: [{ running: false }, /^stopped at step 4 of 12$/],
  "stopped after the last step": [{ stepsDone: 12, running: false }, /^stopped at step 12 of 12$/],
  validating: [{ stepsDone: 12, validating: true }, /validation text/],
  "validating, behind another lesson": [
    { stepsDone: 12, validating: true, running: false },
    /validation text/,
  ],
  done: [{ stepsDone: 12, running: false, done: true }, /^12 steps done$/],
};
for (const [name, [state, said]] of Object.entries(PROGRESS)) {
  test(`the progress of an experiment: ${name}`, () => {
    assert.match(progress({ ...AT_WORK, ...state }), said);
  });
}

test("the time that is left has one unit", () => {
  const told = [3, 12, 89, 200].map(timeLeft);
  assert.deepEqual(told, ["a few seconds left", "about 10 s left", "about 90 s left", "about 3 min left"]);
});

test("settings that differ are named", () => {
  const of = (attn) => ({ attn });
  const said = differences(of({ kernel: "sdpa", scale: null }), of({ kernel: "sdpa", scale: 1 }));
  assert.ok(said.includes("attn.scale (default in the first, 1 in the second)") && !said.includes("kernel"));
  assert.match(differences(of({ scale: 1 }), of({ scale: 1 })), /^Nothing differs/);
});

test("curves are a table with a row a step", () => {
  const lines = curvesAsCsv(
    ['a "b"', "c, d"],
    [
      [4, 3],
      [5, 2],
    ],
  ).split("\n");
  assert.deepEqual(lines, ['step,"a ""b""","c, d"', "1,4,5", "2,3,2", ""]);
});
