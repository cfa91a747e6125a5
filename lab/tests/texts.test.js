// Texts of one's own: which are refused, what becomes of the others, and a text in an address.

import assert from "node:assert/strict";
import { test } from "node:test";

import { corpusOf, fewestCharacters, packText, readText, textRefusal, unpackText } from "../page/texts.js";

const BLOCK = 64;
const letters = (count) => Array.from({ length: count }, (_, i) => String.fromCodePoint(0x4e00 + i)).join("");

const REFUSED = {
  empty: "",
  "one symbol": "a".repeat(5000),
  "too short": "ab".repeat(300),
  "5 MB": "abcde ".repeat(900_000),
  "an emoji": "😀",
  "one emoji, often": "😀".repeat(5000),
  "an alphabet of 257": letters(257).repeat(10),
};
for (const [name, text] of Object.entries(REFUSED)) {
  test(`a text that cannot be trained on: ${name}`, () => {
    const said = textRefusal(text, BLOCK);
    assert.match(said, /^[^.]+\.$/); // one sentence
  });
}

const TAKEN = {
  letters: "ab".repeat(400),
  "an alphabet of 256": letters(256).repeat(3),
  emoji: "😀😁".repeat(400),
  "as short as it may be": "ab".repeat(400).slice(0, fewestCharacters(BLOCK)),
};
for (const [name, text] of Object.entries(TAKEN)) {
  test(`a text that can be trained on: ${name}`, () => {
    assert.equal(textRefusal(text, BLOCK), null);
    const { alphabet, train, val } = corpusOf(text);
    const decoded = [...train, ...val].map((id) => alphabet[id]).join("");
    assert.equal(decoded, text);
    assert.ok(val.length > BLOCK && train.length - 1 > BLOCK);
  });
}

test("one character less than the fewest leaves no window for validation", () => {
  const count = fewestCharacters(BLOCK) - 1;
  assert.ok(count - Math.floor(0.9 * count) <= BLOCK);
});

test("an address holds a short text, and no long one", async () => {
  const text = "The 😀 cat sat on the mat?&#=\n".repeat(100);
  const packed = await packText(text);
  assert.match(packed, /^[\w-]+$/);
  assert.equal(await unpackText(packed), text);
  await assert.rejects(unpackText(packed.slice(0, -20)));
  const random = Uint8Array.from({ length: 9000 }, (_, i) => (i * i * 2654435761) >>> 24);
  assert.equal(await packText(letters(256).repeat(4) + [...random].join("")), null);
});

test("a file is read as UTF-8, with new lines as a text field has them", async () => {
  assert.equal(await readText(new File(["ü\r\nb\rc\n"], "a.txt")), "ü\nb\nc\n");
  await assert.rejects(
    readText(new File([Uint8Array.of(0x66, 0xfc, 0x72)], "latin.txt")),
    /latin\.txt.*UTF-8/,
  );
  await assert.rejects(readText(new File([new Uint8Array(9_000_000)], "big.txt")), /9,000,000/);
});
