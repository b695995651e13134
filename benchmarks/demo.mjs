// Time the page's model in Node, without a page: processor seconds of scoring a text and of writing one.
import { readFileSync } from "node:fs";
import { Kernel } from "../src/soma/web/kernel.mjs";
import { Generation, Model } from "../src/soma/web/model.mjs";
import { Sampling } from "../src/soma/web/sampling.mjs";

const { wasm, numbers, about, text, length, repeats } = JSON.parse(readFileSync(0, "utf8"));
const kernel = new Kernel(new WebAssembly.Module(readFileSync(wasm)));
const model = new Model(kernel, about, new Uint8Array(readFileSync(numbers)).buffer);
const bytes = Uint8Array.from(Buffer.from(text, "hex"));
const sampling = await Sampling.of({ temperature: 1, topK: null, topP: null, repetition: 1, seed: 0 });

function seconds(work) {
  const before = process.cpuUsage();
  work();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1e6;
}

function write() {
  const stream = new Generation(model, about.k, bytes.slice(0, about.prefix));
  for (let i = 0; i < length; i++) stream.push(sampling.draw(kernel, stream.probabilities, i, stream.text));
  stream.close();
}

const score = [];
const sample = [];
for (let i = 0; i <= repeats; i++) {
  score.push(seconds(() => Array.from(model.score(bytes, about.k))));
  sample.push(seconds(write));
}
console.log(JSON.stringify({ score: score.slice(1), sample: sample.slice(1) })); // the first warms up
