// Answer one request on standard input with the kernel of the page: losses, probabilities, random numbers.
import { readFileSync } from "node:fs";
import { Kernel, Stream } from "../../src/soma/web/kernel.mjs";

const asked = JSON.parse(readFileSync(0, "utf8"));
const kernel = new Kernel(new WebAssembly.Module(readFileSync(asked.wasm)));
const floats = (path) => new Float32Array(new Uint8Array(readFileSync(path)).buffer);
const model = kernel.open(asked.sizes, floats(asked.bodies), floats(asked.heads));
const answers = asked.texts.map((hex) => {
  const text = Uint8Array.from(Buffer.from(hex, "hex"));
  const stream = new Stream(kernel, model, asked.experts);
  const cut = text.length >> 1;
  stream.read(text.subarray(0, cut));
  const probabilities = Array.from(stream.read(text.subarray(cut)));
  stream.close();
  const losses = text.length > 1 ? Array.from(kernel.losses(model, asked.experts, text, text.length - 1)) : [];
  return { losses, probabilities };
});
let refused = "";
try {
  kernel.losses(model, [asked.sizes.experts], new Uint8Array(2), 1);
} catch (error) {
  refused = error.message;
}
const uniform = asked.positions.map((position) => kernel.uniform(BigInt(asked.key), position));
console.log(JSON.stringify({ answers, refused, uniform }));
