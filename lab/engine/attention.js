// Attention as in attnlab/attention/core.py, with its names, and its gradient written out.
//
//     softmax(Q K^T / sqrt(D)) V                      (Vaswani et al. 2017, equation 1)
//
// Letters: B batch, T positions, N = B T rows, C channels, H heads, D = C / H channels of a head.

import { Linear, normal, times } from "./layers.js";
import { from, matrix, transpose, transposed } from "./operations.js";

// ---- masks: may the query at position q attend to the key at position k?

export const MASKS = {
  causal: (q, k) => k <= q,
  flipped: (q, k) => k >= q,
  peek_one: (q, k) => k <= q + 1,
  bidirectional: () => true,
};

/** How many rows or columns of a pattern are computed together. */
export const BAND = 16;

/** A mask for texts of `length` positions, in a pattern of T rows (T a multiple of BAND).
 *
 *  `blocked` are the places q * T + k whose score becomes -Infinity, `zeroed` those whose score
 *  becomes 0 (only the kernel zero_fill, a common bug, has some). `queries` and `keys` say what
 *  must be computed at all: for each band of queries, which keys they read, [first, end), and for
 *  each band of keys, which queries read them. */
export function buildMask({ may_attend, window, kernel }, T, length) {
  const inText = (q, k) => q < length && k < length;
  const may = (q, k) =>
    inText(q, k) && MASKS[may_attend](q, k) && (window === null || Math.abs(q - k) < window);
  const reads = (q, k) => {
    if (!inText(q, k)) return q === k; // rows after the text, which nobody looks at
    return kernel === "zero_fill" || may(q, k);
  };
  const queries = [];
  const keys = [];
  for (let start = 0; start < T; start += BAND) {
    queries.push({ start, ...rangeOf((own, other) => reads(own, other), start, T) });
    keys.push({ start, ...rangeOf((own, other) => reads(other, own), start, T) });
  }
  const blocked = [];
  const zeroed = [];
  for (let q = 0; q < T; q++) {
    const { first, end } = queries[Math.floor(q / BAND)];
    for (let k = first; k < end; k++) {
      if (!reads(q, k)) blocked.push(q * T + k);
      else if (inText(q, k) && !may(q, k)) zeroed.push(q * T + k);
    }
  }
  return { may, blocked, zeroed, queries, keys };
}

/** The others, in whole bands, that touch any of the BAND positions from `start` on. */
function rangeOf(touches, start, T) {
  const others = [];
  for (let other = 0; other < T; other++) {
    for (let own = start; own < start + BAND; own++) {
      if (touches(own, other)) others.push(other);
    }
  }
  return {
    first: BAND * Math.floor(others[0] / BAND),
    end: BAND * Math.ceil((others[others.length - 1] + 1) / BAND),
  };
}

// ---- initial weights

// The standard deviation of query and key weights, by model.init: "unit" gives queries and keys
// variance 1 (Vaswani et al. 2017, footnote 4), "gpt2" is that of all weights of GPT-2.
export const QK_STD = { unit: (C) => 1 / Math.sqrt(C), gpt2: () => 0.02 };

/** Queries and keys N(0, QK_STD^2), values N(0, 0.02^2). */
function drawQkv(init) {
  return ({ value, count, K: C }, stream) => {
    const drawn = stream.normal(count);
    const values = 2 * C * C; // the first 2 C rows are queries and keys
    value.set(times(drawn.subarray(0, values), QK_STD[init](C)));
    value.set(times(drawn.subarray(values), 0.02), values);
  };
}

// Rules for the heads, applied once the weights are drawn. Head h owns the rows h D to (h + 1) D
// of queries, keys and values in `qkv`, and the same columns of `proj`.
const HEAD_RULES = {
  independent() {},

  /** Give every head the weights of the first, and divide the output by sqrt(H). */
  identical({ qkv, proj, n_head: H, head_size: D, C }) {
    const first = (i) => i - (i % C) + (i % D); // the same row or column in head 0
    const rows = qkv.weight.value.slice();
    for (let i = 0; i < 3 * C; i++) {
      qkv.weight.value.set(rows.subarray(first(i) * C, (first(i) + 1) * C), i * C);
    }
    const columns = proj.weight.value.slice();
    for (let i = 0; i < C * C; i++) proj.weight.value[i] = columns[first(i)] / Math.sqrt(H);
  },
};

/** What multiplies the scores: a number, or by its name; the default is 1/sqrt(D). */
function scaleOf(scale, D, C) {
  if (scale === null) return 1 / Math.sqrt(D);
  return { "1/D": 1 / D, "8/D": 8 / D, "1/sqrt(C)": 1 / Math.sqrt(C) }[scale] ?? scale;
}

// ---- the layer

/** Multi-head self-attention (Vaswani et al. 2017, section 3.2). The settings are those of
 *  conf/attn/*.yaml. */
export class SelfAttention {
  constructor(
    context,
    name,
    {
      kernel = "sdpa",
      scale = null,
      may_attend = "causal",
      window = null,
      heads = null,
      head_init = "independent",
    },
  ) {
    const { n_layer, n_head, n_embd: C, block_size: T, init } = context.model;
    const { batch_size: B, N } = context;
    this.operations = context.operations;
    this.C = C;
    this.n_head = heads ?? n_head;
    this.head_size = C / this.n_head;
    this.scale = scaleOf(scale, this.head_size, C);
    if (this.head_size % 8 !== 0 || T % BAND !== 0) {
      throw new Error(`D = ${this.head_size} must be a multiple of 8, and T = ${T} of ${BAND}`);
    }
    const output = normal(0.02 / Math.sqrt(2 * n_layer));
    this.qkv = new Linear(context, context.parameter(`${name}.qkv.weight`, 3 * C, C, drawQkv(init)));
    this.proj = new Linear(context, context.parameter(`${name}.proj.weight`, C, C, output));
    HEAD_RULES[head_init](this);

    this.masks = new Map(); // by length of the text
    this.maskOf = (T, length) => buildMask({ may_attend, window, kernel }, T, length);
    this.pattern = context.zeros(B * this.n_head * T * T); // (B, H, T, T)
    this.dPattern = context.zeros(T * T); // of one head
    this.turned = context.zeros(this.head_size * T); // keys or values of one head, (D, T)
    this.mixed = context.zeros(N * C);
    this.dRows = context.zeros(N * 3 * C);
  }

  /** x (B, T, C) -> (B, T, C). */
  forward(x, B, T, length) {
    if (!this.masks.has(length)) this.masks.set(length, this.maskOf(T, length));
    this.mask = this.masks.get(length);
    const rows = this.qkv.forward(x, B * T);
    this.pattern.fill(0, 0, B * this.n_head * T * T);
    for (let b = 0; b < B; b++) {
      for (let h = 0; h < this.n_head; h++) {
        const [q, k, v] = this.split(rows, b, h, T);
        const pattern = this.patternOf(b, h, T);
        this.weigh(q, k, pattern, T);
        this.average(pattern, v, this.mixedOf(this.mixed, b, h, T));
      }
    }
    return this.proj.forward(this.mixed, B * T);
  }

  /** Queries, keys and values (T, D) of a head: parts of the rows (N, 3 C) of `qkv`. */
  split(rows, b, h, T) {
    const start = b * T * 3 * this.C + h * this.head_size;
    return [0, this.C, 2 * this.C].map((part) => matrix(rows, 3 * this.C, start + part));
  }

  /** The pattern (T, T) of a head. */
  patternOf(b, h, T) {
    return matrix(this.pattern, T, (b * this.n_head + h) * T * T);
  }

  /** The columns (T, D) of a head in mixed values, or their gradient, (N, C). */
  mixedOf(mixed, b, h, T) {
    return matrix(mixed, this.C, b * T * this.C + h * this.head_size);
  }

  /** The pattern: scores, -Infinity where the mask blocks, softmax over the keys. */
  weigh(q, k, pattern, T) {
    const { operations, head_size: D, mask } = this;
    transpose(k, T, D, this.turned);
    const columns = matrix(this.turned, T);
    for (const { start, first, end } of mask.queries) {
      const scores = from(pattern, start, first);
      operations.matmul(BAND, D, end - first, from(q, start, 0), from(columns, 0, first), scores);
    }
    for (const place of mask.blocked) pattern.data[pattern.start + place] = -Infinity;
    for (const place of mask.zeroed) pattern.data[pattern.start + place] = 0;
    for (const { start, first, end } of mask.queries) {
      operations.softmax(BAND, end - first, from(pattern, start, first), this.scale);
    }
  }

  /** mixed = pattern V. */
  average(pattern, v, mixed) {
    const { operations, head_size: D } = this;
    for (const { start, first, end } of this.mask.queries) {
      const weights = from(pattern, start, first);
      operations.matmul(BAND, end - first, D, weights, from(v, first, 0), from(mixed, start, 0));
    }
  }

  /** From the gradient of the output (B, T, C) to that of x. */
  backward(dOut, B, T) {
    const dMixed = this.proj.backward(dOut, B * T);
    for (let b = 0; b < B; b++) {
      for (let h = 0; h < this.n_head; h++) {
        const [q, k, v] = this.split(this.qkv.out, b, h, T);
        const [dq, dk, dv] = this.split(this.dRows, b, h, T);
        const pattern = this.patternOf(b, h, T);
        const dy = this.mixedOf(dMixed, b, h, T);
        this.averageBackward(pattern, v, dy, dv, T);
        this.weighBackward(pattern, q, k, dq, dk, T);
      }
    }
    return this.qkv.backward(this.dRows, B * T);
  }

  /** dV = pattern^T dy, and dPattern = dy V^T. */
  averageBackward(pattern, v, dy, dv, T) {
    const { operations, head_size: D, mask } = this;
    for (const { start, first, end } of mask.keys) {
      const columns = transposed(from(pattern, first, start));
      operations.matmul(BAND, end - first, D, columns, from(dy, first, 0), from(dv, start, 0));
    }
    transpose(v, T, D, this.turned);
    const turned = matrix(this.turned, T);
    const dPattern = matrix(this.dPattern, T);
    for (const { start, first, end } of mask.queries) {
      const out = from(dPattern, start, first);
      operations.matmul(BAND, D, end - first, from(dy, start, 0), from(turned, 0, first), out);
    }
  }

  /** Through the softmax to the scores, then dQ = dScores K, and dK = dScores^T Q. */
  weighBackward(pattern, q, k, dq, dk, T) {
    const { operations, head_size: D, mask } = this;
    const dScores = matrix(this.dPattern, T);
    for (const { start, first, end } of mask.queries) {
      const weights = from(pattern, start, first);
      const d = from(dScores, start, first);
      operations.softmaxBackward(BAND, end - first, weights, d, this.scale);
    }
    for (const place of mask.zeroed) dScores.data[place] = 0;
    for (const { start, first, end } of mask.queries) {
      const d = from(dScores, start, first);
      operations.matmul(BAND, end - first, D, d, from(k, first, 0), from(dq, start, 0));
    }
    for (const { start, first, end } of mask.keys) {
      const d = transposed(from(dScores, first, start));
      operations.matmul(BAND, end - first, D, d, from(q, first, 0), from(dk, start, 0));
    }
  }
}
