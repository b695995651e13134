// The inference kernel: the twin of soma.inference.compiled, over kernel.wasm instead of a shared library.
//
// Shapes: N experts, V = 256 bytes, P pairs of an expert and a sequence, T bytes read.

const VOCABULARY = 256;
const REQUEST_BYTES = 64; // `Request` of infer.cpp, whose fields `write` fills one by one
const CHUNK = 4096; // bytes that a stream reads in one call; the cut changes no bit
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
    const memory = new Memory(this.exports);
    const [theta, head, place] = [memory.copy(bodies), memory.copy(heads), memory.allocate(4)];
    const sizes = [BigInt(bodies.length), BigInt(heads.length)];
    check(this.exports.soma_infer_open(width, depth, embedding, experts, theta, sizes[0], head, sizes[1], place));
    const ensemble = memory.view(DataView, place, 4).getUint32(0, true);
    memory.free();
    return ensemble;
  }

  close(ensemble) {
    this.exports.soma_infer_close(ensemble);
  }

  // Compute nats of the last `scored` bytes of a text under each expert, from the zero state; Float64Array [P, scored].
  losses(ensemble, experts, text, scored) {
    const memory = new Memory(this.exports);
    const request = new Request(memory, experts);
    const [count, tokens] = [experts.length * scored, memory.copy(text)];
    const losses = memory.allocate(8 * count);
    request.write({ time: text.length - 1, scored, tokens, length: text.length, losses });
    request.run(ensemble);
    const out = memory.view(Float64Array, losses, count).slice();
    memory.free();
    return out;
  }

  // Return the number in [0, 1) of soma.numerics.rng: `key` is a BigInt of 64 bits.
  uniform(key, position) {
    return this.exports.soma_web_uniform(Number(key & 0xffffffffn), Number(key >> 32n), position);
  }
}

// Experts that read a text on from the zero state. Their states, and what a call reads and writes, stay in the kernel's
// memory until `close`, so that a byte costs no allocation and no copy.
export class Stream {
  constructor(kernel, ensemble, experts) {
    this.ensemble = ensemble;
    this.probabilities = new Float64Array(experts.length * VOCABULARY); // of the next byte, [P, V]; `read` fills it
    this.memory = new Memory(kernel.exports);
    this.request = new Request(this.memory, experts);
    this.tokens = this.memory.allocate(CHUNK);
    this.states = this.memory.copy(new Float32Array(experts.length * Number(kernel.exports.soma_infer_state(ensemble))));
    this.out = this.memory.allocate(4 * this.probabilities.length);
  }

  // Read bytes, at least one, and return `probabilities`.
  read(text) {
    const { memory, tokens, states, out, probabilities } = this;
    for (let at = 0; at < text.length; at += CHUNK) {
      const part = text.slice(at, at + CHUNK);
      memory.view(Uint8Array, tokens, CHUNK).set(part);
      this.request.write({ time: part.length, scored: 1, tokens, length: part.length, states, probabilities: out });
      this.request.run(this.ensemble);
    }
    const narrow = memory.view(Float32Array, out, probabilities.length);
    for (let row = 0; row < narrow.length; row += VOCABULARY) {
      let sum = 0;
      for (let v = row; v < row + VOCABULARY; v++) sum += narrow[v];
      for (let v = row; v < row + VOCABULARY; v++) probabilities[v] = narrow[v] / sum;
    }
    return probabilities;
  }

  close() {
    this.memory.free();
  }
}

// A request in the kernel's memory: each of P experts reads the same one text.
class Request {
  constructor(memory, experts) {
    Object.assign(this, { memory, pairs: experts.length, place: memory.allocate(REQUEST_BYTES) });
    this.experts = memory.copy(Int32Array.from(experts));
    this.sequences = memory.copy(new Int32Array(experts.length));
  }

  write({ time, scored, tokens, length, states = 0, losses = 0, probabilities = 0 }) {
    const view = this.memory.view(DataView, this.place, REQUEST_BYTES);
    [this.pairs, time, scored, 1].forEach((value, i) => view.setInt32(4 * i, value, true));
    view.setBigInt64(16, 1n, true); // rows
    [this.experts, this.sequences, tokens].forEach((place, i) => view.setUint32(24 + 4 * i, place, true));
    view.setBigInt64(40, BigInt(length), true); // stride
    [states, losses, probabilities].forEach((place, i) => view.setUint32(48 + 4 * i, place, true));
  }

  run(ensemble) {
    check(this.memory.exports.soma_infer_run(ensemble, this.place));
  }
}

// Pieces of the kernel's memory that are freed together.
class Memory {
  constructor(exports) {
    this.exports = exports;
    this.places = [];
  }

  allocate(bytes) {
    const place = this.exports.soma_web_allocate(Math.max(1, bytes));
    if (!place) check(1);
    this.places.push(place);
    return place;
  }

  copy(array) {
    const place = this.allocate(array.byteLength);
    this.view(Uint8Array, place, array.byteLength).set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength));
    return place;
  }

  // Return a view that is valid until the next call of the kernel, in which its memory may grow and move.
  view(Kind, place, length) {
    return new Kind(this.exports.memory.buffer, place, length);
  }

  free() {
    for (const place of this.places) this.exports.soma_web_free(place);
    this.places = [];
  }
}

function check(status) {
  if (status) throw new Error(MEANINGS[status]);
}
