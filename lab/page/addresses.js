// What stands after the # of the page's address: which experiment is shown, and its settings.
//
//     #mask&seed=300&steps=20
//     #own&first=sdpa&second=flipped&size=micro&init=unit&rate=0.003&seed=0&steps=300&source=own&text=H4sI…

export const MOST_STEPS = 5000;
export const MOST_SEED = 999_999_999;

/** A setting of an address: how it is read (undefined if it cannot be), and what it must be. */
const whole = (least, most) => ({
  read: (text) => (/^\d{1,9}$/.test(text) && text >= least && text <= most ? Number(text) : undefined),
  must: `a whole number from ${least} to ${most}`,
});
const oneOf = (names) => ({
  read: (text) => (names.includes(text) ? text : undefined),
  must: `one of ${names.join(", ")}`,
});
const rate = {
  read: (text) => (text.trim() !== "" && Number(text) > 0 && Number(text) <= 1 ? Number(text) : undefined),
  must: "a number above 0 and at most 1, such as 0.003",
};

/** The settings of a lesson. */
export const LESSON_SETTINGS = { seed: whole(0, MOST_SEED), steps: whole(1, MOST_STEPS) };

/** The settings of an experiment of one's own, from what the page has. */
export function ownSettings({ variants, sizes, inits }) {
  return {
    first: oneOf(variants.map(({ variant }) => variant)),
    second: oneOf(variants.map(({ variant }) => variant)),
    size: oneOf(sizes.map(({ id }) => id)),
    init: oneOf(inits),
    rate,
    source: oneOf(["shakespeare", "own"]),
    ...LESSON_SETTINGS,
  };
}

/** Read the settings that are given; what cannot be read is refused in a sentence, and left out. */
export function readSettings(given, settings) {
  const found = {};
  const refused = [];
  for (const [name, text] of given) {
    const value = settings[name]?.read(text);
    if (value !== undefined) found[name] = value;
    else if (name in settings) refused.push(`${name} = ${text} is not ${settings[name].must}.`);
    else if (name !== "text") refused.push(`There is no setting ${name}.`);
  }
  return { found, refused };
}

/** The name of the experiment in an address, and its settings as [name, text]. */
export function splitAddress(hash) {
  const [id, ...rest] = hash.replace(/^#/, "").split("&");
  return { id, given: [...new URLSearchParams(rest.join("&"))] };
}

export function joinAddress(id, settings) {
  return `#${[id, ...Object.entries(settings).map(([name, value]) => `${name}=${value}`)].join("&")}`;
}
