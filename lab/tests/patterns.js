// Patterns with known measures, (heads, T, T).

export const T = 16;

/** A pattern from functions weight(q, k), one a head. */
export function pattern(...heads) {
  return Float32Array.from({ length: heads.length * T * T }, (_, i) => {
    const place = i % (T * T);
    return heads[Math.floor(i / (T * T))](Math.floor(place / T), place % T);
  });
}

export const even = () => 1 / T;
export const evenOverThePast = (q, k) => (k <= q ? 1 / (q + 1) : 0);
export const itself = (q, k) => Number(k === q);
export const next = (q, k) => Number(k === q + 1); // the last query has no next position
export const previous = (q, k) => Number(k === q - 1);
