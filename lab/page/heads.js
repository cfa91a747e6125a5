// Which head the maps open at. Patterns are arrays (H, T, T), one a layer.

/** The head that attends most to the next position, { layer, head, weight }: its mean weight there,
 *  over the queries that have a next position. */
export function mostAhead(patterns, T) {
  return largest(patterns, T, (pattern, head) => {
    let sum = 0;
    for (let q = 0; q < T - 1; q++) sum += pattern[(head * T + q) * T + q + 1];
    return sum / (T - 1);
  });
}

/** The head in which two models differ most, { layer, head, weight }: the mean share of a query's
 *  weight that is on other keys. A model with fewer heads is compared by its last. */
export function mostApart(first, second, T) {
  const larger = first[0].length >= second[0].length ? first : second;
  return largest(larger, T, (_, head, layer) => {
    const start = (pattern) => Math.min(head, pattern.length / (T * T) - 1) * T * T;
    const [a, b] = [first[layer], second[layer]];
    const [aStart, bStart] = [start(a), start(b)];
    let sum = 0;
    for (let i = 0; i < T * T; i++) sum += Math.abs(a[aStart + i] - b[bStart + i]);
    return sum / (2 * T);
  });
}

function largest(patterns, T, measure) {
  let most = { layer: 0, head: 0, weight: -1 };
  patterns.forEach((pattern, layer) => {
    for (let head = 0; head < pattern.length / (T * T); head++) {
      const weight = measure(pattern, head, layer);
      if (weight > most.weight) most = { layer, head, weight };
    }
  });
  return most;
}

/** The largest difference between the weights of two heads of a layer on the same key. */
export function headsApart(patterns, T) {
  const size = T * T;
  let most = 0;
  for (const pattern of patterns) {
    for (let i = size; i < pattern.length; i++) {
      most = Math.max(most, Math.abs(pattern[i] - pattern[i % size]));
    }
  }
  return most;
}
