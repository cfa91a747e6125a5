// Elements of the page, colors, and a few words that several parts of the page need.

export const DARK = matchMedia("(prefers-color-scheme: dark)");
export const CALM = matchMedia("(prefers-reduced-motion: reduce)");

export const $ = (id) => document.getElementById(id);

/** An element with attributes and children. */
export function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function inNats(loss) {
  return loss.toFixed(loss < 1 ? 4 : 3);
}

/** A letter that is seen where a space or a new line is not. */
export function visible(letter) {
  return { " ": "␣", "\n": "↵", "\t": "⇥" }[letter] ?? letter;
}

/** Let the reader keep a file. */
export function save(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000); // the browser reads it after the click
}
