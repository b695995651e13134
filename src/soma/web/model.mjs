// A model: what soma.inference.Ensemble, Generation and `soma score` do, over the kernel and the router.
//
// Shapes: N experts, K experts averaged, R routed prefix bytes, W window bytes, V = 256.

import { Stream } from "./kernel.mjs";
import { Router } from "./router.mjs";

const START = [0x0a]; // read before an empty prompt

export class Model {
  // Unpack the numbers that soma.web.demo packed: `about` lists every array with its first byte and its length.
  constructor(kernel, about, numbers) {
    if (numbers.byteLength !== about.bytes)
      throw new Error(
        `the file holds ${numbers.byteLength.toLocaleString("en")} of the ${about.bytes.toLocaleString("en")} bytes of ` +
          `${about.name}; it was cut off on its way, so copy it again, or make it again with \`soma demo\``,
      );
    const array = (name) => new Float32Array(numbers, ...about.arrays[name]);
    this.kernel = kernel;
    this.about = about;
    this.router = about.routing
      ? new Router(about.routing, Object.fromEntries(about.routing.arrays.map((name) => [name, array(name)])))
      : null;
    try {
      this.ensemble = kernel.open(about, array("bodies"), array("heads"));
    } catch (error) {
      throw new Error(
        `${about.name} has ${about.bytes.toLocaleString("en")} bytes of numbers, which this browser gives no page room ` +
          `for (${error.message}); use the command line`,
      );
    }
  }

  // Choose k experts from the first bytes of a text.
  choose(text, k) {
    if (this.router) return this.router.route(text.slice(0, this.about.prefix), k);
    return { experts: Array.from({ length: k }, (_, e) => e), similarities: null };
  }

  // Yield, for each window of a text, its chosen experts and the nats of its scored bytes: under each expert and under
  // their mean probability.
  *score(text, k) {
    const { window, prefix } = this.about;
    if (!text.length) throw new Error("the text is empty; there is nothing to score.");
    if (text.length < prefix + 2)
      throw new Error(
        `the text has ${text.length} bytes, too few to score: the first ${prefix} are routed and the next is an input, ` +
          `so it needs at least ${prefix + 2}.`,
      );
    for (let first = 0; text.length - first > prefix + 1; first += window - prefix) {
      const bytes = text.subarray(first, first + window + 1);
      const { experts } = this.choose(bytes, k);
      const scored = bytes.length - 1 - prefix;
      const each = this.kernel.losses(this.ensemble, experts, bytes, scored);
      const nats = Float64Array.from({ length: scored }, (_, t) => {
        let sum = 0;
        for (let e = 0; e < k; e++) sum += Math.exp(-each[e * scored + t]);
        return -Math.log(sum / k);
      });
      yield { first: first + prefix + 1, experts, each, nats };
    }
  }
}

// A stream of bytes with the experts that read it; `close` it in the end.
export class Generation {
  constructor(model, k, prompt) {
    Object.assign(this, { model, k });
    this.opening = prompt.length ? [] : START;
    this.text = Array.from(prompt);
    this.probabilities = new Float64Array(256); // of the next byte under the ensemble, [V]
    this.#readAll(this.#choose());
  }

  // Next-byte probabilities under every expert, [K, V]; like `probabilities`, they last until the next byte is read.
  get each() {
    return this.stream.probabilities;
  }

  push(byte) {
    this.text.push(byte);
    if (this.text.length <= this.model.about.prefix) {
      const experts = this.#choose();
      if (experts.some((e, i) => e !== this.experts[i])) return this.#readAll(experts);
    }
    this.#read([byte]);
  }

  close() {
    this.stream.close();
  }

  #choose() {
    return this.model.choose(this.text, this.k).experts;
  }

  #readAll(experts) {
    const stream = new Stream(this.model.kernel, this.model.ensemble, experts);
    this.stream?.close();
    Object.assign(this, { experts, stream });
    this.#read([...this.opening, ...this.text]);
  }

  #read(text) {
    const each = this.stream.read(text);
    for (let v = 0; v < 256; v++) {
      let sum = 0;
      for (let e = 0; e < this.k; e++) sum += each[e * 256 + v];
      this.probabilities[v] = sum / this.k;
      if (!Number.isFinite(sum))
        throw new Error("the experts gave probabilities that are not numbers; their weights are damaged or diverged.");
    }
  }
}
