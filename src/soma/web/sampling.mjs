// Sampling of a byte from a distribution, as soma.inference.sampling does it, and the page's own penalty of repetition.

const RUN = 6; // bytes that repeat something if the text has held them, one after another, before
const LOOK_BACK = 1024; // bytes of the text that are searched for them

export class Sampling {
  // topK and topP are null for all bytes; the seed is an integer. Call `Sampling.of`, which hashes the seed.
  static async of(settings) {
    if (!globalThis.crypto?.subtle)
      throw new Error("this browser hashes no seed for a page from this address; open the file from disk, or by https");
    const name = new TextEncoder().encode(`${settings.seed}/sample`);
    const hash = await crypto.subtle.digest("SHA-256", name);
    return Object.assign(new Sampling(), settings, { key: new DataView(hash).getBigUint64(0, true) });
  }

  // Apply temperature, then top-k, then top-p to what remains; ties keep lower bytes.
  distribution(probabilities) {
    const out = new Float64Array(probabilities.length);
    if (this.temperature === 0) {
      out[probabilities.indexOf(Math.max(...probabilities))] = 1;
      return out;
    }
    let most = -Infinity;
    for (let v = 0; v < out.length; v++) {
      out[v] = Math.log(probabilities[v]);
      if (out[v] > most) most = out[v];
    }
    for (let v = 0; v < out.length; v++) out[v] = Math.exp((out[v] - most) / this.temperature);
    if (this.topK === null && this.topP === null) return normalise(out);
    const order = Array.from(out.keys()).sort((a, b) => out[b] - out[a]);
    if (this.topK !== null) for (const byte of order.slice(this.topK)) out[byte] = 0;
    normalise(out);
    if (this.topP !== null) {
      let sum = 0; // a byte stays if the likelier ones sum to less than top-p, so the likeliest always stays
      for (const byte of order) {
        const own = out[byte];
        sum += own;
        if (sum - own >= this.topP) out[byte] = 0;
      }
      normalise(out);
    }
    return out;
  }

  // Draw the byte at a position of the sample, from only seed, position, probabilities and, with a penalty, the text.
  draw(kernel, probabilities, position, text) {
    const total = this.distribution(this.repetition > 1 ? this.#penalised(probabilities, text) : probabilities);
    for (let v = 1; v < total.length; v++) total[v] += total[v - 1];
    const at = kernel.uniform(this.key, position) * total[total.length - 1];
    return total.findIndex((sum) => sum > at);
  }

  // Divide the probability of every byte that would end a run of RUN bytes that the text holds already.
  #penalised(probabilities, text) {
    const out = Float64Array.from(probabilities);
    const end = text.length;
    for (let i = Math.max(RUN - 1, end - LOOK_BACK); i < end; i++) {
      let same = 1;
      while (same < RUN && text[i - same] === text[end - same]) same++;
      if (same === RUN) out[text[i]] = probabilities[text[i]] / this.repetition;
    }
    return normalise(out);
  }
}

function normalise(out) {
  let sum = 0;
  for (let v = 0; v < out.length; v++) sum += out[v];
  for (let v = 0; v < out.length; v++) out[v] /= sum;
  return out;
}
