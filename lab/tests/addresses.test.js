// What an address holds, and what of it is refused.

import assert from "node:assert/strict";
import { test } from "node:test";

import { joinAddress, LESSON_SETTINGS, ownSettings, readSettings, splitAddress } from "../page/addresses.js";

const SETTINGS = ownSettings({
  variants: [{ variant: "sdpa" }, { variant: "flipped" }],
  sizes: [{ id: "micro" }],
  inits: ["unit", "gpt2"],
});

test("an address holds all settings", () => {
  const choice = { first: "sdpa", second: "flipped", size: "micro", init: "gpt2", rate: 1e-7, source: "own" };
  const all = { ...choice, seed: 7, steps: 20 };
  const { id, given } = splitAddress(joinAddress("own", all));
  assert.equal(id, "own");
  assert.deepEqual(readSettings(given, SETTINGS), { found: all, refused: [] });
});

const REFUSED = ["seed=-1", "seed=1e5", "steps=0", "steps=5001", "steps=", "steps=2.5", "speed=3", "seed"];
for (const setting of REFUSED) {
  test(`a setting of a lesson that is refused: ${setting}`, () => {
    const { found, refused } = readSettings(splitAddress(`#mask&${setting}`).given, LESSON_SETTINGS);
    assert.deepEqual(found, {});
    assert.equal(refused.length, 1);
  });
}

for (const setting of ["rate=", "rate=0", "rate=-1", "rate=2", "rate=abc", "rate=NaN", "first=unscald"]) {
  test(`a setting of one's own that is refused: ${setting}`, () => {
    const { found, refused } = readSettings(splitAddress(`#own&${setting}`).given, SETTINGS);
    assert.deepEqual(found, {});
    assert.equal(refused.length, 1);
  });
}
