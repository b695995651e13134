// The worker of the page: it holds the models, and answers one message at a time, so that the page never waits.
//
// A request is { id, act, ... }; answers are { id, part } while text is written, then { id, result } or { id, error }.

import { Kernel, Stream } from "./kernel.mjs";
import { Generation, Model } from "./model.mjs";
import { Sampling } from "./sampling.mjs";

const SLICE = 40; // milliseconds between two looks at the messages while text is written
const models = [];
const streams = []; // of each model, with the number of bytes drawn
const stopped = new Set();
let kernel;

const acts = {
  async start({ wasm }) {
    kernel = new Kernel(await WebAssembly.compile(wasm));
  },

  open({ about, numbers }) {
    models.push(new Model(kernel, about, numbers));
  },

  // Draw bytes after a prompt, or go on with the model's last text if there is none.
  async write({ id, model, prompt, k, settings, length }) {
    const sampling = await Sampling.of(settings);
    if (prompt) {
      const text = new Generation(models[model], k, prompt);
      streams[model]?.text.close();
      streams[model] = { text, drawn: 0 };
    }
    const stream = streams[model];
    const begun = performance.now();
    let part = [];
    let due = begun + SLICE;
    for (let i = 0; i < length && !stopped.has(id); i++) {
      const { each, experts, probabilities } = stream.text;
      const byte = sampling.draw(kernel, probabilities, stream.drawn++, stream.text.text);
      const shares = experts.map((_, e) => each[e * 256 + byte]);
      part.push({ byte, experts, shares, bits: -Math.log2(probabilities[byte]), entropy: entropy(probabilities) });
      stream.text.push(byte);
      if (performance.now() > due) {
        postMessage({ id, part });
        part = [];
        await new Promise((resume) => setTimeout(resume));
        due = performance.now() + SLICE;
      }
    }
    postMessage({ id, part });
    stopped.delete(id);
    return { seconds: (performance.now() - begun) / 1000 };
  },

  stop({ write }) {
    stopped.add(write);
  },

  // Measure the surprise of every byte of a text.
  score({ model, text, k }) {
    const begun = performance.now();
    const windows = Array.from(models[model].score(text, k));
    return { windows, seconds: (performance.now() - begun) / 1000 };
  },

  // Say where a text goes, and why.
  route({ model, text, k }) {
    const { router, about } = models[model];
    const read = text.slice(0, about.prefix);
    const { experts, similarities } = models[model].choose(read, k);
    if (!router) return { experts, reasons: null };
    const rows = experts.map((e) => ({ expert: e, cosine: similarities[e], terms: router.terms(e, 8) }));
    return { experts, rows, read: read.length, reasons: router.reasons(read, experts, 12) };
  },

  // Return the next-byte probabilities of experts that have read a text, [K, V].
  inspect({ model, experts, text }) {
    const stream = new Stream(kernel, models[model].ensemble, experts);
    stream.read(text);
    stream.close();
    return stream.probabilities;
  },
};

function entropy(probabilities) {
  let bits = 0;
  for (const p of probabilities) if (p > 0) bits -= p * Math.log2(p);
  return bits;
}

onmessage = async ({ data }) => {
  try {
    postMessage({ id: data.id, result: await acts[data.act](data) });
  } catch (error) {
    const trapped = error instanceof WebAssembly.RuntimeError;
    postMessage({ id: data.id, error: trapped ? "the kernel stopped for want of memory; close other tabs" : error.message });
  }
};
