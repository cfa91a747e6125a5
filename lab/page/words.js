// What the page says of what was measured. Nothing here looks at the page or changes it.

/** Which answer is right, for what was measured; `gap` is the second loss minus the first. */
const JUDGES = {
  worse: (measured) => worseThan(0.05, measured),
  slightly: (measured) => worseThan(0.1, measured),
  leak: ({ gap }) => (gap < -0.8 ? 2 : Number(gap <= 0.05)),
  sign: ({ gap }) => {
    if (gap > 0.05) return 0;
    return gap < -0.05 ? 2 : 1;
  },
  size: ({ gap }) => {
    if (gap < 0.05) return 0;
    return gap < 1 ? 1 : 2;
  },
  apart: ({ apart }) => {
    if (apart === 0) return 0;
    return apart < 0.2 ? 1 : 2;
  },
};

/** Whether the second model is worse, and then whether it learns at all: early, no model does. */
function worseThan(limit, { gap, second }) {
  if (gap <= limit) return 0;
  return second > 4 ? 2 : 1;
}

export function answerOf(lesson, measured) {
  return JUDGES[lesson.judge](measured);
}

export function median(numbers) {
  const sorted = [...numbers].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)];
}

/** The published seeds that both models have, and what each measured. */
function publishedPairs({ judge, arms }) {
  const [first, second] = arms.map(({ published }) => published);
  if (judge === "apart") return []; // losses do not tell
  const seeds = Object.keys(first).filter((seed) => seed in second);
  return seeds.map((seed) => ({ gap: second[seed] - first[seed], second: second[seed] }));
}

/** How many published seeds give an answer, of how many, and their median difference; null if fewer
 *  than two tell. */
export function publishedShare(lesson, answer) {
  const pairs = publishedPairs(lesson);
  if (pairs.length < 2) return null;
  const same = pairs.filter((pair) => answerOf(lesson, pair) === answer).length;
  return { same, seeds: pairs.length, gap: median(pairs.map(({ gap }) => gap)) };
}

/** The number of steps of the published runs. */
export function wholeSteps(lesson) {
  return lesson.arms[0].settings.trainer.max_steps;
}

/** The explanation. It explains one answer after the lesson's steps, and a short run, or another seed,
 *  may have given another: then it says first whose answer it explains. */
export function explanation(lesson, answer, steps) {
  const whole = wholeSteps(lesson);
  if (answer === lesson.explains && steps === whole) return lesson.explained;
  const trained = steps === whole ? "" : ` after ${whole} steps, and you trained for ${steps}`;
  return `“${lesson.answers[lesson.explains]}” is the answer ${answerers(lesson)}${trained}. It is explained so: ${lesson.explained}`;
}

/** Whose answer an explanation explains. */
function answerers(lesson) {
  if (lesson.arms.some(({ published }) => Object.keys(published).length === 0)) return "that is expected";
  const share = publishedShare(lesson, lesson.explains);
  return share ? `of ${share.same} of ${share.seeds} published runs` : "of the published runs";
}

/** What came out, as a sentence without its beginning. */
export function outcome(lesson, { gap, apart }) {
  if (lesson.judge === "apart") {
    const size = apart === 0 ? "exactly 0" : apart.toPrecision(2);
    return `the largest difference between two heads' weights is ${size}.`;
  }
  const [first, second] = lesson.arms.map((arm) => arm.name);
  if (gap === 0) return `${second} and ${first} end with the same loss, to the last bit.`;
  const than = gap > 0 ? "above" : "below";
  const size = Math.abs(gap) < 0.0005 ? Math.abs(gap).toExponential(0) : Math.abs(gap).toFixed(3);
  return `${second} ends ${size} nats ${than} ${first}.`;
}

/** Sentences about the published losses: where they are from, and how far they can be trusted. */
export function agreement(lesson, { seed, steps, answer }) {
  const sentences = [];
  const whole = wholeSteps(lesson);
  if (steps !== whole) {
    sentences.push(`You trained for ${steps} steps, the published runs for ${whole}.`);
  }
  for (const { name, published, variant, source } of lesson.arms) {
    const seeds = Object.keys(published);
    if (!seeds.length) {
      sentences.push(`No run of ${name} (attn=${variant}) is published for this experiment.`);
    } else if (source !== lesson.claim) {
      sentences.push(`The published run of ${name} is one of experiments/${source}, with the same settings.`);
    }
  }
  sentences.push(...otherSeeds(lesson, seed));
  const amplified = lesson.arms.filter((arm) => arm.rounding > 0);
  if (amplified.length) {
    const sizes = amplified.map((arm) => `${arm.rounding} in “${arm.name}”`).join(" and ");
    sentences.push(
      "Training amplifies rounding here: with an older instruction set of the same processor, PyTorch's own " +
        `loss of seed ${lesson.seed} differs by ${sizes}. This page, another program, may differ by a few times as much.`,
    );
  }
  const share = publishedShare(lesson, answer);
  if (share && steps === whole) {
    sentences.push(
      `Of the ${share.seeds} published seeds, ${share.same} give this answer; their median difference is ` +
        `${share.gap.toFixed(3)} nats.`,
    );
  }
  return sentences;
}

/** Which seeds are published, where `seed` is not; models with the same seeds in one sentence. */
function otherSeeds({ arms }, seed) {
  const names = new Map();
  for (const { name, published } of arms) {
    const seeds = Object.keys(published).join(", ");
    if (seeds && !(seed in published)) names.set(seeds, [...(names.get(seeds) ?? []), name]);
  }
  return [...names].map(([seeds, of]) => `Of ${of.join(" and ")}, the published seeds are ${seeds}.`);
}

/** How far an experiment is, and how long the rest will take. */
export function progress({ stepsDone, steps, running, validating, done, pace, secondsLeft, models }) {
  if (done) return `${steps} steps done`;
  if (validating) return `${steps} steps; now the loss on all of the validation text …`;
  if (!running) return `stopped at step ${stepsDone} of ${steps}`;
  const left = stepsDone < 3 ? "" : `, ${timeLeft(secondsLeft)}`;
  const speed = pace ? `, ${pace.toFixed(pace < 10 ? 1 : 0)} steps per second` : "";
  return `step ${stepsDone} of ${steps}${left}${speed}, ${models[0].operations}`;
}

export function timeLeft(seconds) {
  if (seconds < 8) return "a few seconds left";
  if (seconds < 90) return `about ${5 * Math.round(seconds / 5)} s left`;
  return `about ${Math.round(seconds / 60)} min left`;
}

/** Which settings differ between two variants, as a sentence. */
export function differences(first, second) {
  const told = (value) => (value === null ? "default" : value);
  const differing = Object.keys(first.attn).filter((name) => first.attn[name] !== second.attn[name]);
  if (!differing.length) return "Nothing differs: both models will end with the same loss, to the last bit.";
  const listed = differing.map((name) => {
    return `attn.${name} (${told(first.attn[name])} in the first, ${told(second.attn[name])} in the second)`;
  });
  return `What differs: ${listed.join(" and ")}. All else is the same.`;
}

/** Both curves as CSV: a row a step. */
export function curvesAsCsv(names, losses) {
  const cell = (text) => `"${text.replace(/"/g, '""')}"`;
  const rows = losses[0].map((loss, step) => [step + 1, loss, losses[1][step]].join(","));
  return [["step", ...names.map(cell)].join(","), ...rows, ""].join("\n");
}
