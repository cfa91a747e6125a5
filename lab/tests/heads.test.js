// Which head the maps open at.

import assert from "node:assert/strict";
import { test } from "node:test";

import { headsApart, mostAhead, mostApart } from "../page/heads.js";
import { even, itself, next, pattern, previous, T } from "./patterns.js";

test("the head with most weight on the next position is found", () => {
  const copies = pattern(even, next);
  const back = pattern(previous, even);
  assert.deepEqual(mostAhead([copies, back], T), { layer: 0, head: 1, weight: 1 });
  assert.deepEqual(mostAhead([back, copies], T), { layer: 1, head: 1, weight: 1 });
  assert.deepEqual(mostAhead([pattern(even), back], T), { layer: 0, head: 0, weight: 1 / T });
});

test("the head in which two models differ most is found", () => {
  const same = pattern(even, even);
  const one = pattern(even, itself);
  assert.deepEqual(mostApart([same, one], [same, same], T), { layer: 1, head: 1, weight: 1 - 1 / T });
  assert.deepEqual(mostApart([same, same], [one, same], T), { layer: 0, head: 1, weight: 1 - 1 / T });
  // A single head is compared with each head of the other model.
  assert.deepEqual(mostApart([pattern(even)], [one], T), { layer: 0, head: 1, weight: 1 - 1 / T });
  assert.deepEqual(mostApart([one], [pattern(itself)], T), { layer: 0, head: 0, weight: 1 - 1 / T });
});

test("the largest difference between heads is that within a layer", () => {
  assert.equal(headsApart([pattern(even, even), pattern(itself, itself)], T), 0);
  assert.equal(headsApart([pattern(even, even), pattern(even, itself)], T), 1 - 1 / T);
});
