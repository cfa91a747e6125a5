// Measures of patterns with known values.

import assert from "node:assert/strict";
import { test } from "node:test";

import { MASKS } from "../engine/attention.js";
import { measures } from "../engine/measures.js";
import { even, evenOverThePast, itself, next, pattern, T } from "./patterns.js";

const MEASURED = [
  ["even, causal", evenOverThePast, MASKS.causal, { entropy: 1, future: 0 }],
  ["even, no mask", even, MASKS.bidirectional, { entropy: 1, future: 0.5 }],
  ["one key", itself, MASKS.causal, { entropy: 0, future: 0 }],
  ["the next key", next, MASKS.peek_one, { entropy: 0, future: 1 }],
];
for (const [name, weight, may, expected] of MEASURED) {
  test(`measures of a pattern: ${name}`, () => {
    const found = measures(pattern(weight), 1, T, may);
    for (const [measure, value] of Object.entries(expected)) {
      assert.ok(Math.abs(found[measure] - value) < 1e-6, `${measure}: ${found[measure]}`);
    }
    assert.ok(Number.isNaN(found.similarity), "one head has no other");
  });
}

test("equal heads have a similarity of 1, opposite ones of -1", () => {
  const may = MASKS.bidirectional;
  const first = (_, k) => (k < T / 2 ? 2 / T : 0);
  const second = (_, k) => (k < T / 2 ? 0 : 2 / T);
  assert.ok(Math.abs(measures(pattern(first, first), 2, T, may).similarity - 1) < 1e-6);
  assert.ok(Math.abs(measures(pattern(first, second), 2, T, may).similarity + 1) < 1e-6);
});
