// Answer one request on standard input with the page's model: losses, routes, samples, words, and what it refuses.
import { readFileSync } from "node:fs";
import { Kernel } from "../../src/soma/web/kernel.mjs";
import { Generation, Model } from "../../src/soma/web/model.mjs";
import { wordsOf } from "../../src/soma/web/router.mjs";
import { Sampling } from "../../src/soma/web/sampling.mjs";

const asked = JSON.parse(readFileSync(0, "utf8"));
const kernel = new Kernel(new WebAssembly.Module(readFileSync(asked.wasm)));
const numbers = new Uint8Array(readFileSync(asked.numbers)).buffer;
const model = new Model(kernel, asked.about, numbers);
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));

const answers = [];
for (const { text, k, settings, length } of asked.requests) {
  const stream = new Generation(model, k, bytes(text));
  const sampling = await Sampling.of({ repetition: 1, ...settings });
  const drawn = [];
  while (drawn.length < length) {
    drawn.push(sampling.draw(kernel, stream.probabilities, drawn.length, stream.text));
    stream.push(drawn.at(-1));
  }
  const answer = { sample: Buffer.from(drawn).toString("hex"), route: model.choose(bytes(text), k), refused: "" };
  try {
    answer.nats = Array.from(model.score(bytes(text), k)).flatMap((window) => Array.from(window.nats));
  } catch (error) {
    answer.refused = error.message;
  }
  answers.push({ ...answer, words: wordsOf(bytes(text)), reasons: model.router?.reasons(bytes(text), [0], 50) ?? [] });
}
let cut = "";
try {
  new Model(kernel, asked.about, numbers.slice(0, 1000));
} catch (error) {
  cut = error.message;
}
const terms = model.router ? Array.from({ length: asked.about.experts }, (_, e) => model.router.terms(e, 8)) : [];
console.log(JSON.stringify({ answers, cut, terms }));
