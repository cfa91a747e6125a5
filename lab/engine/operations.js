// The operations that take the time of a training step, on tensors in one piece of memory.
// Here they are written out in JavaScript. operations.wat has the same in WebAssembly, 4 numbers
// at a time, and is used where the browser allows it.
//
// A tensor is a Float32Array, row after row; a comment gives its shape.

/** A matrix inside a tensor: element (i, j) is data[start + i * row + j * col]. */
export function matrix(data, row, start = 0, col = 1) {
  return { data, start, row, col };
}

export function transposed({ data, start, row, col }) {
  return { data, start, row: col, col: row };
}

/** The part of a matrix from row i and column j on. */
export function from(m, i, j) {
  return { data: m.data, start: m.start + i * m.row + j * m.col, row: m.row, col: m.col };
}

/** out (J, I), contiguous, = x (I, J) transposed. */
export function transpose(x, I, J, out) {
  for (let i = 0; i < I; i++) {
    const start = x.start + i * x.row;
    for (let j = 0; j < J; j++) out[j * I + i] = x.data[start + j * x.col];
  }
}

/** x += y. */
export function add(count, x, y) {
  for (let i = 0; i < count; i++) x[i] += y[i];
}

/** out (I, N) = a (I, J) @ b (J, N). Rows of b and out are contiguous; I and N are even. */
function matmul(I, J, N, a, b, out) {
  const A = a.data;
  const B = b.data;
  for (let i = 0; i < I; i += 2) {
    for (let n = 0; n < N; n += 2) {
      let left = 0; // 2 rows by 2 columns at a time, so that each number read is used twice
      let right = 0;
      let leftBelow = 0;
      let rightBelow = 0;
      let p = a.start + i * a.row;
      let q = b.start + n;
      for (let j = 0; j < J; j++) {
        left += A[p] * B[q];
        right += A[p] * B[q + 1];
        leftBelow += A[p + a.row] * B[q];
        rightBelow += A[p + a.row] * B[q + 1];
        p += a.col;
        q += b.row;
      }
      const at = out.start + i * out.row + n;
      out.data[at] = left;
      out.data[at + 1] = right;
      out.data[at + out.row] = leftBelow;
      out.data[at + out.row + 1] = rightBelow;
    }
  }
}

/** Rows x (I, N) become exp(scale x) divided by their sum; -Infinity becomes 0. */
function softmax(I, N, x, scale) {
  for (let i = 0; i < I; i++) {
    const start = x.start + i * x.row;
    let largest = -Infinity;
    for (let j = start; j < start + N; j++) largest = Math.max(largest, x.data[j]);
    let sum = 0;
    for (let j = start; j < start + N; j++) {
      x.data[j] = Math.exp(scale * (x.data[j] - largest));
      sum += x.data[j];
    }
    for (let j = start; j < start + N; j++) x.data[j] /= sum;
  }
}

/** Rows dp (I, N), the gradient of the softmax p, become that of x: scale p (dp - sum(p dp)). */
function softmaxBackward(I, N, p, dp, scale) {
  for (let i = 0; i < I; i++) {
    const at = p.start + i * p.row;
    const dAt = dp.start + i * dp.row;
    let mean = 0;
    for (let j = 0; j < N; j++) mean += p.data[at + j] * dp.data[dAt + j];
    for (let j = 0; j < N; j++) {
      dp.data[dAt + j] = scale * p.data[at + j] * (dp.data[dAt + j] - mean);
    }
  }
}

/** out = x P(x), P the distribution function of a normal number (Hendrycks and Gimpel 2016).
 *  slope is its derivative, P(x) + x P'(x). */
function gelu(count, x, out, slope) {
  for (let i = 0; i < count; i++) {
    const bell = Math.exp((-x[i] * x[i]) / 2);
    const below = x[i] < 0 ? tail(-x[i], bell) : 1 - tail(x[i], bell);
    out[i] = x[i] * below;
    slope[i] = below + (x[i] * bell) / Math.sqrt(2 * Math.PI);
  }
}

/** The probability that a normal number is above x >= 0, within 1e-7; bell is exp(-x^2 / 2)
 *  (Abramowitz and Stegun 1964, 7.1.26). */
function tail(x, bell) {
  const t = 1 / (1 + 0.3275911 * Math.SQRT1_2 * x);
  const a = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
  return (bell * t * (a[0] + t * (a[1] + t * (a[2] + t * (a[3] + t * a[4]))))) / 2;
}

/** Rows of x (N, C): unit = (x - mean) / sqrt(variance + 1e-5), out = weight unit (Ba et al. 2016).
 *  inverse (N) is 1 / sqrt(variance + 1e-5). */
function layerNorm(N, C, x, weight, unit, inverse, out) {
  for (let n = 0; n < N; n++) {
    const row = n * C;
    let sum = 0;
    for (let c = 0; c < C; c++) sum += x[row + c];
    const mean = sum / C;
    let squares = 0;
    for (let c = 0; c < C; c++) squares += (x[row + c] - mean) ** 2;
    const factor = 1 / Math.sqrt(squares / C + 1e-5);
    inverse[n] = factor;
    for (let c = 0; c < C; c++) {
      unit[row + c] = (x[row + c] - mean) * factor;
      out[row + c] = unit[row + c] * weight[c];
    }
  }
}

/** Adds the gradient of x to dx (N, C), and that of the weight to dWeight (C). */
function layerNormBackward(N, C, dOut, weight, unit, inverse, dx, dWeight) {
  for (let n = 0; n < N; n++) {
    const row = n * C;
    let mean = 0;
    let along = 0;
    for (let c = 0; c < C; c++) {
      const dUnit = dOut[row + c] * weight[c];
      mean += dUnit / C;
      along += (dUnit * unit[row + c]) / C;
      dWeight[c] += dOut[row + c] * unit[row + c];
    }
    for (let c = 0; c < C; c++) {
      const dUnit = dOut[row + c] * weight[c];
      dx[row + c] += inverse[n] * (dUnit - mean - along * unit[row + c]);
    }
  }
}

/** A step of AdamW (Loshchilov and Hutter 2019) for one parameter: its moments mean and square,
 *  then its value. clip multiplies the gradient, kept the value; rate and root are corrected for
 *  moments that started at 0. */
function adamw(count, value, grad, mean, square, { clip, kept, beta1, beta2, rate, root }) {
  for (let i = 0; i < count; i++) {
    const g = clip * grad[i];
    mean[i] += (1 - beta1) * (g - mean[i]);
    square[i] = beta2 * square[i] + (1 - beta2) * g * g;
    value[i] = kept * value[i] - (rate * mean[i]) / (Math.sqrt(square[i]) / root + 1e-8);
  }
}

export const javascript = {
  name: "JavaScript",
  matmul,
  softmax,
  softmaxBackward,
  gelu,
  layerNorm,
  layerNormBackward,
  adamw,
};

const SCRATCH = 2 ** 16; // bytes at address 0 that `matmul` of operations.wat uses

/** Tensors in one memory, and the operations on them: in WebAssembly if `wasm` (the bytes of
 *  operations.wat) is given and the browser knows its SIMD instructions, else in JavaScript. */
export async function createOperations(wasm, megabytes = 64) {
  const memory = new WebAssembly.Memory({ initial: 16 * megabytes });
  let used = SCRATCH;
  const zeros = (count) => {
    const tensor = new Float32Array(memory.buffer, used, count);
    used += 16 * Math.ceil(count / 4); // each starts at a multiple of 16 bytes
    return tensor;
  };
  if (wasm === null || !WebAssembly.validate(wasm)) return { ...javascript, zeros };
  const { instance } = await WebAssembly.instantiate(wasm, { js: { memory } });
  return { ...webAssembly(instance.exports), zeros };
}

/** The functions of operations.wat, which take addresses and strides in bytes. */
function webAssembly(exports) {
  const at = ({ data, start }) => data.byteOffset + 4 * start;
  const addresses = (tensors) => tensors.map((tensor) => tensor.byteOffset);
  return {
    name: "WebAssembly",
    matmul: (I, J, N, a, b, out) =>
      exports.matmul(I, J, N, at(a), 4 * a.row, 4 * a.col, at(b), 4 * b.row, at(out), 4 * out.row),
    softmax: (I, N, x, scale) => exports.softmax(I, N, at(x), 4 * x.row, scale),
    softmaxBackward: (I, N, p, dp, scale) =>
      exports.softmaxBackward(I, N, at(p), 4 * p.row, at(dp), 4 * dp.row, scale),
    gelu: (count, ...tensors) => exports.gelu(count, ...addresses(tensors)),
    layerNorm: (N, C, ...tensors) => exports.layerNorm(N, C, ...addresses(tensors)),
    layerNormBackward: (N, C, ...tensors) => exports.layerNormBackward(N, C, ...addresses(tensors)),
    adamw: (count, value, grad, mean, square, { clip, kept, beta1, beta2, rate, root }) => {
      const tensors = addresses([value, grad, mean, square]);
      exports.adamw(count, ...tensors, clip, kept, 1 - beta1, beta2, 1 - beta2, rate, root);
    },
  };
}
