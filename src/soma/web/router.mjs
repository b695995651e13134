// The router: the first bytes of a text → words → tf-idf · SVD → experts, as soma.inference.route computes it.
//
// Numbers are float32 where the product's are, so that the page makes the same choice.
// Shapes: N experts, D dimensions, V words.

const f32 = Math.fround;

export class Router {
  // idf [V], components [V, D], mean [D], centroids [N, D] and prices [N] as Float32Array.
  constructor({ words, dims, assignment }, { idf, components, mean, centroids, prices }) {
    this.column = new Map(words.map((word, v) => [word, v]));
    Object.assign(this, { words, dims, idf, components, mean, centroids, experts: prices.length });
    this.offset = assignment === "priced" ? prices : new Float32Array(prices.length);
    this.weights = []; // [N, V], made when first asked for
  }

  // Choose the k nearest experts of a text, nearest first; the lower index on a tie.
  route(text, k) {
    const cosines = this.similarities(text);
    const scores = cosines.map((cosine, e) => f32(cosine - this.offset[e]));
    const order = Array.from(scores.keys()).sort((a, b) => scores[b] - scores[a]);
    return { experts: order.slice(0, k), similarities: Array.from(cosines) };
  }

  // Compute the cosine between a text and each expert's centroid, [N].
  similarities(text) {
    const { vector } = this.#features(text);
    const out = new Float32Array(this.experts);
    for (let e = 0; e < this.experts; e++) {
      let sum = 0;
      for (let d = 0; d < this.dims; d++) sum += vector[d] * this.centroids[e * this.dims + d];
      out[e] = sum;
    }
    return out;
  }

  // Return the words of a text with what each adds to the cosine with every chosen expert, the heaviest first.
  reasons(text, experts, count) {
    const { values, length } = this.#features(text);
    const rows = values.map(([v, value]) => {
      const added = experts.map((e) => (value * this.#dot(v, e)) / length);
      return { word: this.words[v], added };
    });
    const spread = ({ added }) => Math.max(...added.map(Math.abs));
    return rows.sort((a, b) => spread(b) - spread(a)).slice(0, count);
  }

  // Return the words most over-represented in an expert's cluster, as `soma route` prints them.
  terms(expert, count) {
    this.weights[expert] ??= this.words.map((_, v) => this.#dot(v, expert));
    const weight = this.weights[expert];
    return Array.from(weight.keys()).sort((a, b) => weight[b] - weight[a]).slice(0, count).map((v) => this.words[v]);
  }

  #dot(v, expert) {
    let sum = 0;
    for (let d = 0; d < this.dims; d++)
      sum += this.components[v * this.dims + d] * this.centroids[expert * this.dims + d];
    return sum;
  }

  // Compute the unit features of a text [D], its words' tf-idf in column order, and the length before normalising.
  #features(text) {
    const counts = new Map();
    for (const word of wordsOf(text)) {
      const v = this.column.get(word);
      if (v !== undefined) counts.set(v, (counts.get(v) ?? 0) + 1);
    }
    const columns = Array.from(counts.keys()).sort((a, b) => a - b);
    const raw = columns.map((v) => f32(f32(f32(Math.log(counts.get(v))) + 1) * this.idf[v]));
    const norm = Math.sqrt(raw.reduce((sum, value) => sum + f32(value * value), 0));
    const values = columns.map((v, i) => [v, f32(raw[i] / norm)]);
    const vector = new Float32Array(this.dims);
    for (const [v, value] of values)
      for (let d = 0; d < this.dims; d++) vector[d] += f32(value * this.components[v * this.dims + d]);
    for (let d = 0; d < this.dims; d++) vector[d] -= this.mean[d];
    const length = f32(Math.sqrt(vector.reduce((sum, x) => sum + x * x, 0))) || 1;
    return { vector: vector.map((x) => x / length), values, length };
  }
}

// Split a text into words as Python does: UTF-8 without its invalid bytes, lower case, two letters or more.
export function wordsOf(text) {
  const bytes = Uint8Array.from(text);
  // A U+FFFD of the text itself separates words; those that the decoder puts for invalid bytes are dropped.
  for (let i = 0; i + 2 < bytes.length; i++)
    if (bytes[i] === 0xef && bytes[i + 1] === 0xbf && bytes[i + 2] === 0xbd) bytes.fill(0x20, i, i + 3);
  const read = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  return read.replaceAll("\ufffd", "").toLowerCase().match(/[\p{L}\p{N}_]{2,}/gu) ?? [];
}
