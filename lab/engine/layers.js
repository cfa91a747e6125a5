// The parts that attention and the model are made of: parameters, linear maps, LayerNorm.
//
// Each part keeps what its forward pass computed, because its backward pass needs it.
// Letters: N rows (B sequences of T positions), C channels, M and K the sides of a weight.

import { add, matrix, transpose, transposed } from "./operations.js";
import { Generator } from "./rng.js";

/** What all parts of a model share: operations and memory, the seed, the sizes, the parameters. */
export class Context {
  constructor(operations, seed, model, batch_size) {
    this.operations = operations;
    this.seed = seed;
    this.model = model; // n_layer, n_head, n_embd, block_size, init
    this.batch_size = batch_size;
    this.N = batch_size * model.block_size;
    this.parameters = [];
  }

  zeros(count) {
    return this.operations.zeros(count);
  }

  /** A parameter (M, K) with its initial values: a rule applied to (seed, name), as in init.py. */
  parameter(name, M, K, rule) {
    const made = new Parameter(this, name, M, K);
    rule(made, new Generator(this.seed, `weights/${name}`));
    this.parameters.push(made);
    return made;
  }
}

/** A matrix (M, K) that is trained: its value, its gradient, and the moments of AdamW. */
class Parameter {
  constructor(context, name, M, K) {
    this.name = name;
    this.M = M;
    this.K = K;
    this.count = M * K;
    this.padded = M === 1 ? 1 : 8 * Math.ceil(M / 8); // rows; those after M are 0 and stay 0
    this.value = context.zeros(this.padded * K);
    this.grad = context.zeros(this.padded * K);
    this.mean = context.zeros(this.padded * K);
    this.square = context.zeros(this.padded * K);
  }
}

// ---- rules for initial values, from a stream of random numbers

export function ones(parameter) {
  parameter.value.fill(1);
}

/** Draw from N(0, std^2). */
export function normal(std) {
  return ({ value, count }, stream) => value.set(times(stream.normal(count), std));
}

/** The numbers times a factor, in fp32 as in PyTorch. */
export function times(numbers, factor) {
  return numbers.map((x) => x * Math.fround(factor));
}

// ---- parts

/** A linear map without bias: y (N, M) = x (N, K) W^T, with W (M, K). */
export class Linear {
  constructor(context, weight) {
    const M = weight.padded;
    this.operations = context.operations;
    this.weight = weight;
    this.turned = context.zeros(M * weight.K); // (K, M)
    this.out = context.zeros(context.N * M);
    this.dx = context.zeros(context.N * weight.K);
  }

  forward(x, N) {
    const { value, padded: M, K } = this.weight;
    this.x = x;
    transpose(matrix(value, K), M, K, this.turned);
    this.operations.matmul(N, K, M, matrix(x, K), matrix(this.turned, M), matrix(this.out, M));
    return this.out;
  }

  /** From dy (N, M): dW = dy^T x, and dx = dy W, which it returns. */
  backward(dy, N) {
    const { value, grad, padded: M, K } = this.weight;
    const { matmul } = this.operations;
    matmul(M, N, K, transposed(matrix(dy, M)), matrix(this.x, K), matrix(grad, K));
    matmul(N, M, K, matrix(dy, M), matrix(value, K), matrix(this.dx, K));
    return this.dx;
  }
}

/** Mean 0 and variance 1 over the channels of each row, times a weight (Ba et al. 2016). */
export class LayerNorm {
  constructor(context, name) {
    const { N } = context;
    const C = context.model.n_embd;
    this.operations = context.operations;
    this.C = C;
    this.weight = context.parameter(name, 1, C, ones);
    this.unit = context.zeros(N * C); // x, normalized
    this.inverse = context.zeros(N); // 1 / standard deviation of each row
    this.out = context.zeros(N * C);
  }

  forward(x, N) {
    const { C, weight, unit, inverse, out } = this;
    this.operations.layerNorm(N, C, x, weight.value, unit, inverse, out);
    return out;
  }

  /** Adds the gradient of x to dx. */
  backward(dOut, dx, N) {
    const { C, weight, unit, inverse } = this;
    weight.grad.fill(0);
    this.operations.layerNormBackward(N, C, dOut, weight.value, unit, inverse, dx, weight.grad);
  }
}

/** The vectors of symbols and of positions, added: ids (B, T) -> (B, T, C). */
export class Embedding {
  constructor(context, vocab_size) {
    const { n_embd, block_size } = context.model;
    this.C = n_embd;
    this.symbols = context.parameter("wte.weight", vocab_size, n_embd, normal(0.02));
    this.positions = context.parameter("wpe.weight", block_size, n_embd, normal(0.02));
    this.out = context.zeros(context.N * n_embd);
  }

  forward(ids, N, T) {
    const { C, out } = this;
    for (let n = 0; n < N; n++) {
      const symbol = ids[n] * C;
      const position = (n % T) * C;
      for (let c = 0; c < C; c++) {
        out[n * C + c] = this.symbols.value[symbol + c] + this.positions.value[position + c];
      }
    }
    return out;
  }

  /** Adds to the gradient of the symbols, which are also the weights of the head. */
  backward(ids, dx, N, T) {
    const { C } = this;
    this.positions.grad.fill(0);
    for (let n = 0; n < N; n++) {
      const row = dx.subarray(n * C, (n + 1) * C);
      add(C, this.symbols.grad.subarray(ids[n] * C), row);
      add(C, this.positions.grad.subarray((n % T) * C), row);
    }
  }
}
