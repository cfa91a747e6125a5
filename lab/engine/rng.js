// Random numbers: bit for bit those of torch.Generator().manual_seed(...) on a CPU.
// As in attnlab/rng.py, each stream starts from (seed, name, step).

/** The SHA-256 of an ASCII text: 8 unsigned integers of 32 bits (FIPS 180-4). */
export function sha256(text) {
  const { state, constants } = sha256Constants();
  const words = padded(text);
  const schedule = new Int32Array(64);
  for (let start = 0; start < words.length; start += 16) {
    for (let i = 0; i < 16; i++) schedule[i] = words[start + i];
    for (let i = 16; i < 64; i++) {
      const x = schedule[i - 15];
      const y = schedule[i - 2];
      const small0 = turn(x, 7) ^ turn(x, 18) ^ (x >>> 3);
      const small1 = turn(y, 17) ^ turn(y, 19) ^ (y >>> 10);
      schedule[i] = schedule[i - 16] + small0 + schedule[i - 7] + small1;
    }
    let [a, b, c, d, e, f, g, h] = state;
    for (let i = 0; i < 64; i++) {
      const big1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
      const choice = (e & f) ^ (~e & g);
      const first = (h + big1 + choice + constants[i] + schedule[i]) | 0;
      const big0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
      const majority = (a & b) ^ (a & c) ^ (b & c);
      [h, g, f, e, d, c, b, a] = [g, f, e, (d + first) | 0, c, b, a, (first + big0 + majority) | 0];
    }
    [a, b, c, d, e, f, g, h].forEach((x, i) => {
      state[i] = (state[i] + x) | 0;
    });
  }
  return state.map((x) => x >>> 0);
}

/** 32 bits turned to the right by n. */
function turn(x, n) {
  return (x >>> n) | (x << (32 - n));
}

/** The first bits of the fractions of roots: square roots of 8 primes, cube roots of 64. */
function sha256Constants() {
  const primes = [];
  for (let n = 2; primes.length < 64; n++) {
    if (primes.every((p) => n % p !== 0)) primes.push(n);
  }
  const fraction = (x) => Math.floor((x - Math.floor(x)) * 2 ** 32) | 0;
  return {
    state: primes.slice(0, 8).map((p) => fraction(Math.sqrt(p))),
    constants: primes.map((p) => fraction(Math.cbrt(p))),
  };
}

/** A text as words of 32 bits in blocks of 16: its bytes, a bit 1, zeros, its length in bits. */
function padded(text) {
  const words = new Int32Array(16 * Math.ceil((text.length + 9) / 64));
  for (let i = 0; i < text.length; i++) words[i >> 2] |= text.charCodeAt(i) << (24 - 8 * (i % 4));
  words[text.length >> 2] |= 0x80 << (24 - 8 * (text.length % 4));
  words[words.length - 1] = 8 * text.length;
  return words;
}

/** A stream of random numbers: the Mersenne Twister (Matsumoto and Nishimura 1998). */
export class Generator {
  constructor(seed, name, step = 0) {
    // attnlab takes the first 64 bits of the hash, shifted right by one; torch keeps the low 32.
    const [high, low] = sha256(`${seed}/${name}/${step}`);
    this.state = new Int32Array(624);
    this.state[0] = (low >>> 1) | (high << 31);
    for (let i = 1; i < 624; i++) {
      const before = this.state[i - 1];
      this.state[i] = Math.imul(before ^ (before >>> 30), 1812433253) + i;
    }
    this.next = 624;
  }

  /** The next 32 random bits. */
  bits() {
    if (this.next === 624) this.refill();
    let y = this.state[this.next++];
    y ^= y >>> 11;
    y ^= (y << 7) & 0x9d2c5680;
    y ^= (y << 15) & 0xefc60000;
    return (y ^ (y >>> 18)) >>> 0;
  }

  refill() {
    const s = this.state;
    for (let i = 0; i < 624; i++) {
      const y = (s[i] & 0x80000000) | (s[(i + 1) % 624] & 0x7fffffff);
      const odd = y & 1 ? 0x9908b0df : 0;
      s[i] = s[(i + 397) % 624] ^ (y >>> 1) ^ odd;
    }
    this.next = 0;
  }

  /** An integer from 0 to n - 1, as torch.randint draws it. */
  integer(n) {
    return this.bits() % n;
  }

  /** A number in [0, 1) with 24 bits, as torch.rand draws it. */
  uniform() {
    return (this.bits() & 0xffffff) / 2 ** 24;
  }

  /** torch.randn of at least 16 numbers: 16 uniform ones become 16 normal ones. */
  normal(count) {
    const out = new Float32Array(count);
    for (let i = 0; i < count; i++) out[i] = this.uniform();
    for (let start = 0; start + 16 <= count; start += 16) boxMuller(out, start);
    if (count % 16 !== 0) {
      // torch draws the last 16 once more
      for (let i = count - 16; i < count; i++) out[i] = this.uniform();
      boxMuller(out, count - 16);
    }
    return out;
  }
}

/** In place: 8 radii and 8 angles, all uniform, to 16 normal numbers (Box and Muller 1958). */
function boxMuller(x, start) {
  for (let i = start; i < start + 8; i++) {
    const radius = Math.sqrt(-2 * Math.log(1 - x[i]));
    const angle = 2 * Math.PI * x[i + 8];
    x[i] = radius * Math.cos(angle);
    x[i + 8] = radius * Math.sin(angle);
  }
}
