// Texts: which can be trained on, their ids, and a text that stands in an address.

export const MOST_CHARACTERS = 2_000_000;
export const MOST_SYMBOLS = 256; // an id is a byte

/** The different characters of a text in the order of their code points, as Python sorts them. */
export function alphabetOf(text) {
  return [...new Set(text)].sort((a, b) => a.codePointAt(0) - b.codePointAt(0));
}

/** A text as ids of its characters: the first 90 % are for training, the rest for validation. */
export function corpusOf(text) {
  const alphabet = alphabetOf(text);
  const ids = new Map(alphabet.map((letter, i) => [letter, i]));
  const all = Uint8Array.from(text, (letter) => ids.get(letter));
  const end = trainingPart(all.length);
  return { alphabet, train: all.slice(0, end), val: all.slice(end) };
}

function trainingPart(characters) {
  return Math.floor(0.9 * characters);
}

/** The fewest characters of which both parts are longer than a window of block_size + 1. */
export function fewestCharacters(block_size) {
  let count = block_size;
  while (count - trainingPart(count) <= block_size || trainingPart(count) - 1 <= block_size) count++;
  return count;
}

/** Why a text cannot be trained on, in one sentence; null if it can. */
export function textRefusal(text, block_size) {
  if (text.length === 0) return "The text is empty: paste one, or choose Shakespeare.";
  if (text.length > 2 * MOST_CHARACTERS) return tooLong(text.length);
  const count = [...text].length; // a character outside the basic plane has a length of 2
  if (count > MOST_CHARACTERS) return tooLong(count);
  const symbols = new Set(text).size;
  if (symbols === 1) return `All characters are “${[...text][0]}”, so there is nothing to predict.`;
  if (symbols > MOST_SYMBOLS) {
    return `The text has ${grouped(symbols)} different characters, and this page takes at most ${MOST_SYMBOLS}.`;
  }
  const fewest = fewestCharacters(block_size);
  if (count < fewest) {
    return (
      `The text has ${grouped(count)} characters, and needs ${fewest}: a tenth is kept for validation, ` +
      `and a window has ${block_size}.`
    );
  }
  return null;
}

function tooLong(count) {
  return `The text has ${grouped(count)} characters, and this page takes at most ${grouped(MOST_CHARACTERS)}: use a part of it.`;
}

export function grouped(count) {
  return count.toLocaleString("en-US");
}

/** The text of a file, with new lines as a text field has them; throws an Error that says in one
 *  sentence why it cannot be read. */
export async function readText(file) {
  if (file.size > 4 * MOST_CHARACTERS) throw new Error(tooLong(file.size)); // at most 4 bytes each
  const bytes = await file.arrayBuffer();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes).replace(/\r\n?/g, "\n");
  } catch (error) {
    throw new Error(`${file.name} is not UTF-8 text: save it as UTF-8, and choose it again.`, {
      cause: error,
    });
  }
}

// ---- in an address: gzip, in the letters of base64 that need no escape

const LONGEST_IN_ADDRESS = 6000; // letters; some programs cut longer links

/** A text for an address; null if it is too long for one. */
export async function packText(text) {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  if (bytes.length > LONGEST_IN_ADDRESS) return null;
  const letters = btoa(String.fromCharCode(...bytes));
  const packed = letters.replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
  return packed.length > LONGEST_IN_ADDRESS ? null : packed;
}

/** The text that `packText` packed; throws if it is damaged. */
export async function unpackText(packed) {
  return gunzip(bytesOf(packed.replace(/-/g, "+").replace(/_/g, "/")));
}

export function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
}

export async function gunzip(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
