// The inference kernel: the twin of soma.inference.compiled, over kernel.wasm instead of a shared library.
//
// Shapes: N experts, V = 256 bytes, P pairs of an expert and a sequence, T bytes read.

const VOCABULARY = 256;
const REQUEST_BYTES = 64; // `Request` of infer.cpp, whose fields `run` fills one by one
const MEANINGS = { 1: "the kernel ran out of memory", 2: "the kernel was given arguments that do not fit the model" };

export class Kernel {
  // Start the kernel of a compiled WebAssembly.Module.
  constructor(module) {
    const refuse = () => 8; // EBADF: the C library wants files, of which there are none
    const files = { fd_close: refuse, fd_seek: refuse, fd_write: refuse };
    this.exports = new WebAssembly.Instance(module, { wasi_snapshot_preview1: files }).exports;
    this.exports._initialize();
    if (this.exports.soma_infer_request_bytes() !== REQUEST_BYTES)
      throw new Error("kernel.wasm was built from other sources than kernel.mjs was written for; run `make kernel`");
  }

  // Pack the experts of a model: bodies [N, M] and heads, [N, V, H] or one [V, H] that all share, as Float32Array.
  open({ width, depth, embedding, experts }, bodies, heads) {
    const [theta, head, place] = [this.#copy(bodies), this.#copy(heads), this.#allocate(4)];
    const sizes = [BigInt(bodies.length), BigInt(heads.length)];
    check(this.exports.soma_infer_open(width, depth, embedding, experts, theta, sizes[0], head, sizes[1], place));
    const ensemble = new DataView(this.exports.memory.buffer).getUint32(place, true);
    for (const memory of [theta, head, place]) this.exports.soma_web_free(memory);
    return ensemble;
  }

  close(ensemble) {
    this.exports.soma_infer_close(ensemble);
  }

  // Compute nats of the last `scored` bytes of a text under each expert, from the zero state; Float64Array [P, scored].
  losses(ensemble, experts, text, scored) {
    const bytes = 8 * experts.length * scored;
    const out = this.#allocate(bytes);
    this.#run(ensemble, experts, text, { time: text.length - 1, scored, losses: out });
    return new Float64Array(this.#take(out, bytes));
  }

  // Return zero states of P pairs, for `advance`.
  start(ensemble, pairs) {
    return new Float32Array(pairs * Number(this.exports.soma_infer_state(ensemble)));
  }

  // Read a text with each expert, updating its state; return next-byte probabilities, Float64Array [P, V].
  advance(ensemble, experts, text, states) {
    const bytes = 4 * experts.length * VOCABULARY;
    const [out, carried] = [this.#allocate(bytes), this.#copy(states)];
    this.#run(ensemble, experts, text, { time: text.length, scored: 1, states: carried, probabilities: out });
    states.set(new Float32Array(this.#take(carried, states.byteLength)));
    const wide = Float64Array.from(new Float32Array(this.#take(out, bytes)));
    for (let row = 0; row < wide.length; row += VOCABULARY) {
      const one = wide.subarray(row, row + VOCABULARY);
      const sum = one.reduce((a, b) => a + b);
      one.forEach((p, i) => (one[i] = p / sum));
    }
    return wide;
  }

  // Return the number in [0, 1) of soma.numerics.rng: `key` is a BigInt of 64 bits.
  uniform(key, position) {
    return this.exports.soma_web_uniform(Number(key & 0xffffffffn), Number(key >> 32n), position);
  }

  #run(ensemble, experts, text, { time, scored, states = 0, losses = 0, probabilities = 0 }) {
    const pairs = experts.length;
    const expert = this.#copy(Int32Array.from(experts));
    const sequence = this.#copy(new Int32Array(pairs)); // all pairs read the one text
    const [tokens, request] = [this.#copy(text), this.#allocate(REQUEST_BYTES)];
    const view = new DataView(this.exports.memory.buffer, request, REQUEST_BYTES);
    [pairs, time, scored, 1].forEach((value, i) => view.setInt32(4 * i, value, true));
    view.setBigInt64(16, 1n, true); // rows
    [expert, sequence, tokens].forEach((place, i) => view.setUint32(24 + 4 * i, place, true));
    view.setBigInt64(40, BigInt(text.length), true); // stride
    [states, losses, probabilities].forEach((place, i) => view.setUint32(48 + 4 * i, place, true));
    check(this.exports.soma_infer_run(ensemble, request));
    for (const memory of [expert, sequence, tokens, request]) this.exports.soma_web_free(memory);
  }

  #allocate(bytes) {
    const place = this.exports.soma_web_allocate(Math.max(1, bytes));
    if (!place) check(1);
    return place;
  }

  #copy(array) {
    const place = this.#allocate(array.byteLength);
    const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
    new Uint8Array(this.exports.memory.buffer).set(bytes, place);
    return place;
  }

  #take(place, bytes) {
    const copy = this.exports.memory.buffer.slice(place, place + bytes);
    this.exports.soma_web_free(place);
    return copy;
  }
}

function check(status) {
  if (status) throw new Error(MEANINGS[status]);
}
