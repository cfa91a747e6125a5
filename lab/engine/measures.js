// Measures of patterns (B, H, T, T), as attnlab/probes/measures.py defines them.
// may(q, k) is the mask: may the query at position q attend to the key at position k?

/** Means over the heads of the three measures below. */
export function measures(pattern, H, T, may) {
  const shape = { B: pattern.length / (H * T * T), H, T };
  const visible = [];
  for (let q = 0; q < T; q++) visible.push(countKeys(may, q, T));
  const rows = rowsWithChoice(visible);
  return {
    entropy: entropy(pattern, shape, visible, rows),
    future: futureMass(pattern, shape),
    similarity: similarity(pattern, shape, visible, rows, may),
  };
}

function countKeys(may, q, T) {
  let count = 0;
  for (let k = 0; k < T; k++) count += may(q, k);
  return count;
}

/** Queries that see at least 8 keys, or as many as any query sees if fewer; never those with 1. */
function rowsWithChoice(visible) {
  const least = Math.min(8, Math.max(2, ...visible));
  return visible.flatMap((keys, q) => (keys >= least ? [q] : []));
}

/** Entropy over the log of the number of visible keys: 0 for one key, 1 for all equally. */
function entropy(pattern, { B, H, T }, visible, rows) {
  let sum = 0;
  for (let head = 0; head < B * H; head++) {
    for (const q of rows) {
      const start = (head * T + q) * T;
      let nats = 0;
      for (let i = start; i < start + T; i++) {
        if (pattern[i] > 0) nats -= pattern[i] * Math.log(pattern[i]);
      }
      sum += nats / Math.log(visible[q]);
    }
  }
  return sum / (B * H * rows.length); // NaN if no row counts
}

/** Weight on later positions: the mean over the queries that have some. */
function futureMass(pattern, { B, H, T }) {
  let sum = 0;
  for (let head = 0; head < B * H; head++) {
    for (let q = 0; q < T; q++) {
      for (let k = q + 1; k < T; k++) sum += pattern[(head * T + q) * T + k];
    }
  }
  return sum / (B * H * (T - 1));
}

/** Cosine between the patterns of two heads minus even weights: the mean over all pairs. */
function similarity(pattern, { B, H, T }, visible, rows, may) {
  const gram = new Float64Array(H * H);
  const uneven = new Float64Array(H);
  for (let b = 0; b < B; b++) {
    for (const q of rows) {
      for (let k = 0; k < T; k++) {
        const even = may(q, k) ? 1 / visible[q] : 0;
        for (let h = 0; h < H; h++) uneven[h] = pattern[((b * H + h) * T + q) * T + k] - even;
        for (let i = 0; i < H * H; i++) gram[i] += uneven[Math.floor(i / H)] * uneven[i % H];
      }
    }
  }
  let sum = 0;
  for (let h = 0; h < H; h++) {
    for (let g = 0; g < H; g++) {
      if (g === h) continue;
      sum += gram[h * H + g] / Math.sqrt(gram[h * H + h] * gram[g * H + g]);
    }
  }
  return sum / (H * (H - 1)); // NaN for a single head
}
