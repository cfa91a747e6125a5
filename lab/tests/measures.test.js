// Measures of patterns with known values.

import assert from "node:assert/strict";
import { test } from "node:test";

import { MASKS } from "../engine/attention.js";
import { measures, mostAhead } from "../engine/measures.js";

const T = 16;

/** A pattern (heads, T, T) from functions weight(q, k), one a head. */
function pattern(...heads) {
  return Float32Array.from({ length: heads.length * T * T }, (_, i) => {
    const place = i % (T * T);
    return heads[Math.floor(i / (T * T))](Math.floor(place / T), place % T);
  });
}

const even = () => 1 / T;
const evenOverThePast = (q, k) => (k <= q ? 1 / (q + 1) : 0);
const itself = (q, k) => Number(k === q);
const next = (q, k) => Number(k === q + 1);  // the last query has no next position
const previous = (q, k) => Number(k === q - 1);

test("the head with most weight on the next position is found", () => {
  const copies = pattern(even, next);
  const back = pattern(previous, even);
  assert.deepEqual(mostAhead([copies, back], T), { layer: 0, head: 1, weight: 1 });
  assert.deepEqual(mostAhead([back, copies], T), { layer: 1, head: 1, weight: 1 });
  assert.deepEqual(mostAhead([pattern(even), back], T), { layer: 0, head: 0, weight: 1 / T });
});

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
