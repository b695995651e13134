// The page: what the worker computes, to be seen, clicked and heard.

const HEAT_BITS = 12; // surprise of the strongest colour
const SMOOTH = 16; // bytes that a point of the charts averages
const find = (selector, within = document) => within.querySelector(selector);
const encode = (text) => new TextEncoder().encode(text);

// ------------------------------------------------------------------------------------------- the worker

class Worked {
  #asked = new Map();
  #last = 0;

  constructor(source) {
    this.worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    this.worker.onmessage = ({ data: { id, part, result, error } }) => {
      const asked = this.#asked.get(id);
      if (part) return asked.part(part);
      this.#asked.delete(id);
      error === undefined ? asked.resolve(result) : asked.reject(new Error(error));
    };
    this.worker.onerror = (event) => this.#asked.forEach(({ reject }) => reject(new Error(event.message)));
  }

  ask(act, request, part = null, moved = []) {
    const id = ++this.#last;
    const answer = new Promise((resolve, reject) => this.#asked.set(id, { part, resolve, reject }));
    this.worker.postMessage({ id, act, ...request }, moved);
    return Object.assign(answer, { id });
  }
}

function bytesOf(base64) {
  const text = atob(base64.slice(0, base64.length - (base64.length % 4)));
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// ------------------------------------------------------------------------------------------- bytes as text

// Cut bytes into characters, from `first` on: [{ start, end, shown }]; a byte that is no UTF-8 stands alone.
function characters(bytes, first) {
  const out = [];
  for (let start = first; start < bytes.length; ) {
    const lead = bytes[start];
    const size = lead < 0x80 ? 1 : lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    let [shown, end] = ["\ufffd", start + 1];
    try {
      shown = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes.subarray(start, start + size));
      end = start + size;
    } catch {} // shown as the replacement character
    out.push({ start, end: Math.min(end, bytes.length), shown: shown === "\n" ? "↵\n" : shown < " " ? "·" : shown });
    start = end;
  }
  return out;
}

function nameOf(byte) {
  if (byte === 0x20) return "space";
  if (byte === 0x0a) return "line feed";
  return byte > 0x20 && byte < 0x7f ? String.fromCharCode(byte) : `0x${byte.toString(16).padStart(2, "0")}`;
}

const hue = (expert) => (expert * 137.5 + 250) % 360;
const percent = (p) => (p >= 0.0995 ? `${Math.round(100 * p)} %` : `${(100 * p).toFixed(p >= 0.001 ? 1 : 2)} %`);

function element(tag, properties = {}, ...inside) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...inside);
  return made;
}

function dotted(expert) {
  const dot = element("span", { className: "dot" });
  dot.style.setProperty("--hue", hue(expert));
  return element("span", {}, dot, `expert ${expert}`);
}

// ------------------------------------------------------------------------------------------- one model's answer

// Text of one model with, for each byte, its record { experts, shares, bits, entropy, from }, or null if it is only read.
class Pane {
  constructor(worked, number, about, place, colour) {
    Object.assign(this, { worked, number, about, colour, bytes: new Uint8Array(), records: [], spans: [], opening: [], asked: 0 });
    this.root = find("#pane").content.cloneNode(true).firstElementChild;
    place.append(this.root);
    this.part = (selector) => find(selector, this.root);
    this.part("h3").textContent = about.name;
    this.part(".output").ariaLabel = `Text of ${about.name}; the arrow keys go from byte to byte`;
    this.slider = this.part("input");
    this.slider.oninput = () => this.choose(Number(this.slider.value));
    this.part(".output").onclick = ({ target }) => {
      if (target.dataset.start) this.choose(Number(target.dataset.start));
    };
    this.part(".output").onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step || !this.records.length) return;
      event.preventDefault();
      this.choose(Math.min(this.records.length - 1, Math.max(0, Number(this.slider.value) + step)));
    };
    colour.addEventListener("change", () => this.spans.forEach((span) => this.#paint(span)));
  }

  say(text, wrong = false) {
    this.part(".status").textContent = text;
    this.part(".status").classList.toggle("fault", wrong);
  }

  // Say a text that a screen reader reads out too; what changes while a text is written would never let it finish.
  sayAloud(text, wrong = false) {
    this.say(text, wrong);
    find("#spoken").textContent = `${this.about.name}: ${text}`;
  }

  clear() {
    Object.assign(this, { bytes: new Uint8Array(), records: [], spans: [] });
    this.part(".output").replaceChildren();
    this.part(".after").hidden = true;
    this.say("");
  }

  // Append bytes with their records.
  add(bytes, records) {
    this.records.push(...records);
    const joined = new Uint8Array(this.bytes.length + bytes.length);
    joined.set(this.bytes);
    joined.set(bytes, this.bytes.length);
    this.bytes = joined;
    for (const span of this.spans.splice(Math.max(0, this.spans.length - 3))) span.remove(); // may be parts of a character
    const first = this.spans.length ? Number(this.spans.at(-1).dataset.end) : 0;
    const fresh = characters(joined, first).map(({ start, end, shown }) => {
      const span = element("span", { textContent: shown });
      Object.assign(span.dataset, { start, end });
      this.#paint(span);
      return span;
    });
    this.spans.push(...fresh);
    this.part(".output").append(...fresh);
  }

  // Show what belongs to a text that is complete.
  async finish() {
    this.part(".after").hidden = !this.records.length;
    if (!this.records.length) return;
    this.slider.max = this.records.length - 1;
    const scored = this.records.findIndex((record) => record);
    this.charts();
    await this.why();
    await this.choose(scored < 0 ? this.records.length - 1 : scored);
  }

  #paint(span) {
    const records = this.records.slice(span.dataset.start, span.dataset.end).filter((record) => record);
    span.className = records.length ? "" : "unscored";
    if (!records.length) return;
    const by = this.colour.value;
    if (by === "bits") {
      const bits = records.reduce((sum, record) => sum + record.bits, 0);
      return span.style.setProperty("--p", Math.min(1, bits / HEAT_BITS) * 90);
    }
    const { experts, shares } = records[0];
    span.classList.add("expert");
    span.style.setProperty("--hue", hue(by === "nearest" ? experts[0] : experts[shares.indexOf(Math.max(...shares))]));
  }

  // Show the predictions at a byte.
  async choose(at) {
    const asked = ++this.asked;
    this.slider.value = at;
    for (const span of this.spans) span.classList.toggle("chosen", at >= span.dataset.start && at < span.dataset.end);
    const byte = this.bytes[at];
    const record = this.records[at];
    const place = `Byte ${at + 1} of ${this.bytes.length}, ${nameOf(byte)}`;
    const told = record ? `${record.bits.toFixed(2)} bits` : "read, not scored";
    this.part(".at").textContent = record
      ? `${place}: ${told} of surprise; ${record.experts.length > 1 ? "experts" : "expert"} ${record.experts.join(", ")}.`
      : `${place}: ${told}.`;
    this.slider.setAttribute("aria-valuetext", `${place}, ${told}`);
    const table = this.part("table");
    if (!record) return table.replaceChildren();
    const text = Uint8Array.of(...this.opening, ...this.bytes.subarray(record.from, at));
    const each = await this.worked.ask("inspect", { model: this.number, experts: record.experts, text });
    if (asked === this.asked) table.replaceChildren(...chances(each, record.experts, byte));
  }

  async why() {
    const k = this.records.find((record) => record)?.experts.length ?? this.about.k;
    const answer = await this.worked.ask("route", { model: this.number, text: this.bytes, k });
    this.part(".why div").replaceChildren(...reasons(answer));
  }

  // Show the bytes that surprised most.
  worst() {
    const order = this.records.map((record, i) => [record?.bits ?? -1, i]).sort((a, b) => b[0] - a[0]).slice(0, 8);
    const show = (from, to) => characters(this.bytes.slice(from, to), 0).map(({ shown }) => shown.trim() || " ").join("");
    const lines = order.filter(([bits]) => bits >= 0).map(([bits, at]) => {
      const button = element("button", { type: "button", onclick: () => this.choose(at) });
      button.append(show(Math.max(0, at - 14), at), element("mark", {}, nameOf(this.bytes[at])), show(at + 1, at + 8));
      return element("li", {}, `${bits.toFixed(1)} bits `, button);
    });
    this.part(".worst").hidden = false;
    this.part(".worst ol").replaceChildren(...lines);
  }

  // Draw entropy, or surprise where there is none, and every expert's share of the probability of the bytes.
  charts() {
    const records = this.records.filter((record) => record);
    this.part(".time").hidden = records.length < 2;
    if (records.length < 2) return;
    const written = records[0].entropy !== undefined;
    const values = records.map((record) => (written ? record.entropy : record.bits));
    const lines = smooth(values);
    const experts = Array.from(new Set(records.flatMap((record) => record.experts))).sort((a, b) => a - b);
    const shares = experts.map((e) =>
      smooth(
        records.map(({ experts: chosen, shares: given }) => {
          const at = chosen.indexOf(e);
          return at < 0 ? 0 : given[at] / given.reduce((a, b) => a + b, 0);
        }),
      ),
    );
    const total = shares.map((row, e) => row.reduce((a, b) => a + b, 0) / row.length);
    const label = written ? "Entropy of the next byte" : "Surprise";
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const words = experts.map((e, i) => `expert ${e} ${percent(total[i])}`).join(", ");
    const legend = element("p", { className: "soft legend" }, "Load:");
    experts.forEach((e, i) => legend.append(element("span", {}, dotted(e), ` ${percent(total[i])}`)));
    this.part(".time div").replaceChildren(
      element("p", { className: "soft" }, `${label}, from 0 to 8 bits; mean ${mean.toFixed(2)}`),
      drawing(`${label}: mean ${mean.toFixed(2)} bits`, [["polyline", points(lines.map((bits) => 1 - Math.min(1, bits / 8)))]]),
      ...(experts.length > 1 ? [legend, drawing(`Load: ${words}`, stacked(experts, shares))] : []),
    );
  }
}

function smooth(values) {
  const count = Math.min(values.length, 300);
  return Array.from({ length: count }, (_, i) => {
    const middle = Math.floor((i * values.length) / count);
    const some = values.slice(Math.max(0, middle - SMOOTH), middle + 1);
    return some.reduce((a, b) => a + b, 0) / some.length;
  });
}

const points = (heights) =>
  heights.map((y, i) => `${((300 * i) / Math.max(1, heights.length - 1)).toFixed(1)},${(2 + 36 * y).toFixed(1)}`);

function stacked(experts, shares) {
  let below = shares[0].map(() => 0);
  return experts.map((e, i) => {
    const above = below.map((sum, t) => sum + shares[i][t]);
    const shape = ["polygon", [...points(above.map((y) => 1 - y)), ...points(below.map((y) => 1 - y)).reverse()], hue(e)];
    below = above;
    return shape;
  });
}

function drawing(label, shapes) {
  const make = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const svg = make("svg", { viewBox: "0 0 300 40", preserveAspectRatio: "none", role: "img", "aria-label": label });
  for (const [tag, place, colour] of shapes) {
    const shape = make(tag, { points: place.join(" ") });
    if (colour !== undefined) shape.style.setProperty("--hue", colour);
    svg.append(shape);
  }
  return svg;
}

// Rows of the likeliest next bytes, and of the byte that came: under the mixture and each expert.
function chances(each, experts, byte) {
  const k = experts.length;
  const mixture = Array.from({ length: 256 }, (_, v) => experts.reduce((sum, _, e) => sum + each[e * 256 + v], 0) / k);
  const order = Array.from(mixture.keys()).sort((a, b) => mixture[b] - mixture[a]).slice(0, 8);
  if (!order.includes(byte)) order.push(byte);
  const heading = [element("th", { scope: "col" }, "next byte"), element("th", { scope: "col" }, "mixture")];
  const shown = k > 1 ? experts : []; // a mixture of one is its expert
  for (const e of shown) heading.push(element("th", { scope: "col" }, dotted(e)));
  const rows = order.map((v) => {
    const values = [mixture[v], ...shown.map((_, e) => each[e * 256 + v])];
    const cells = values.map((p) => {
      const cell = element("td", { className: "share" }, percent(p));
      cell.style.setProperty("--p", 100 * p);
      return cell;
    });
    const name = element("th", { scope: "row" }, nameOf(v) + (v === byte ? " ←" : ""));
    return element("tr", { className: v === byte ? "drawn" : "" }, name, ...cells);
  });
  return [element("thead", {}, element("tr", {}, ...heading)), element("tbody", {}, ...rows)];
}

function reasons({ experts, rows, read, reasons: words }) {
  if (!rows) return [element("p", { className: "soft" }, `This model has no router: every text goes to ${experts.length === 1 ? "its one expert" : "the same experts"}.`)];
  const chosen = rows.map(({ expert, cosine, terms }) =>
    element("tr", {}, element("th", { scope: "row" }, dotted(expert)), element("td", {}, cosine.toFixed(3)),
      element("td", { className: "words" }, terms.join(" "))));
  const heads = (...names) => element("thead", {}, element("tr", {}, ...names.map((name) => element("th", { scope: "col", className: name === "its words" ? "words" : "" }, name))));
  const scroll = (table) => element("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: "Reasons of the router" }, table);
  const out = [
    element("p", { className: "soft" }, `Routed on ${read} bytes. Nearest first, with the cosine and the words of the expert's own texts:`),
    scroll(element("table", {}, heads("expert", "cosine", "its words"), element("tbody", {}, ...chosen))),
  ];
  if (!words.length) return [...out, element("p", { className: "soft" }, "The router knows none of the words in these bytes.")];
  const added = words.map(({ word, added: values }) =>
    element("tr", {}, element("th", { scope: "row" }, word), ...values.map((x) => element("td", {}, `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(3)}`))));
  return [...out, element("p", { className: "soft" }, "What each word adds to the cosine:"),
    scroll(element("table", {}, heads("word", ...experts.map(dotted)), element("tbody", {}, ...added)))];
}

// ------------------------------------------------------------------------------------------- the two forms

const number = (id) => (find(`#${id}`).value === "" ? null : Number(find(`#${id}`).value));
const averaged = (about) => Math.min(number("k") ?? about.k, about.experts);

function settings() {
  return { temperature: number("temperature"), topK: number("topK"), topP: number("topP"), repetition: number("repetition"), seed: find("#seed").value };
}

// Write with every model, one after another; without a prompt, go on.
async function write(worked, panes, running, prompt) {
  running.stopped = false;
  find("#written").ariaBusy = "true";
  find("#stop").disabled = false;
  find("#continue").disabled = find("#write .main").disabled = true;
  if (prompt) panes.forEach((pane) => pane.clear());
  for (const pane of panes) {
    if (running.stopped) break;
    if (prompt) {
      pane.opening = prompt.length ? [] : [0x0a]; // an empty prompt is read as one line feed
      pane.add(prompt, Array.from(prompt, () => null));
    }
    const before = pane.records.length;
    const part = (drawn) => {
      pane.add(Uint8Array.from(drawn, ({ byte }) => byte), drawn.map((each) => ({ ...each, from: 0 })));
      pane.say(`${(pane.records.length - before).toLocaleString("en")} bytes written …`);
    };
    const request = { model: pane.number, prompt, k: averaged(pane.about), settings: settings(), length: number("length") };
    try {
      const answer = worked.ask("write", request, part);
      running.id = answer.id;
      const { seconds } = await answer;
      const fresh = pane.records.slice(before);
      const bits = fresh.reduce((sum, { bits: own }) => sum + own, 0) / fresh.length;
      const rate = Math.round(fresh.length / seconds).toLocaleString("en");
      pane.sayAloud(`${fresh.length.toLocaleString("en")} bytes written, ${rate} per second, ${bits.toFixed(2)} bits per byte`);
    } catch (error) {
      pane.sayAloud(sentence(error), true);
    }
    await pane.finish();
  }
  find("#written").ariaBusy = "false";
  find("#stop").disabled = true;
  find("#continue").disabled = find("#write .main").disabled = false;
}

async function measure(worked, panes, text) {
  find("#measured").ariaBusy = "true";
  for (const pane of panes) {
    pane.clear();
    pane.say("reading …");
    try {
      const { windows, seconds } = await worked.ask("score", { model: pane.number, text, k: averaged(pane.about) });
      const records = Array.from(text, () => null);
      let total = 0;
      let count = 0;
      for (const { first, experts, each, nats } of windows)
        nats.forEach((own, t) => {
          const shares = experts.map((_, e) => Math.exp(-each[e * nats.length + t]));
          records[first + t] = { experts, shares, bits: own / Math.LN2, from: first - pane.about.prefix - 1 };
          total += own;
          count++;
        });
      pane.add(text, records);
      const rate = Math.round(text.length / seconds).toLocaleString("en");
      const bits = (total / count / Math.LN2).toFixed(4);
      pane.sayAloud(`${bits} bits per byte over ${count.toLocaleString("en")} scored bytes; ${rate} bytes per second`);
      pane.worst();
      await pane.finish();
    } catch (error) {
      pane.sayAloud(sentence(error), true);
    }
  }
  find("#measured").ariaBusy = "false";
}

const sentence = (error) => error.message.charAt(0).toUpperCase() + error.message.slice(1).replace(/\.?$/, ".");

function described(about) {
  const { name, experts, parameters, k, run, update, loss } = about;
  const count = experts > 1 ? `${experts} experts, of which ${k} ${k > 1 ? "are averaged" : "answers"}` : "One network";
  const measured = loss
    ? `Test loss: ${loss.nats.toFixed(3)} nats, ${(loss.nats / Math.LN2).toFixed(3)} bits per byte.`
    : "Its test loss was not recorded.";
  const origin = `${run === name ? "Trained for" : `Run ${run}, after`} ${update.toLocaleString("en")} updates.`;
  const words = `${count}; ${parameters.toLocaleString("en")} parameters in all. ${origin} ${measured}`;
  return element("div", {}, element("h3", {}, name), element("p", {}, words));
}

// Say what the test losses mean; they were measured with as many experts averaged as a model averages by itself.
function honest(abouts) {
  const known = abouts.filter(({ loss }) => loss);
  if (!known.length) return "";
  const each = known.map(({ name, loss }) => `${name} gives the right byte a probability of ${percent(Math.exp(-loss.nats))}`);
  return `On test texts that ${known.length > 1 ? "they" : "it"} never saw, ${each.join(", and ")} (the geometric mean); a blind guess gives it ` +
    `${percent(1 / 256)}.`;
}

async function main() {
  if (typeof WebAssembly !== "object") throw new Error("this browser has no WebAssembly, which the page computes with; use another, or allow it");
  const abouts = Array.from(document.querySelectorAll(".about"), (each) => each.textContent);
  const numbers = Array.from(document.querySelectorAll(".numbers"));
  if (!find("#count") || numbers.length < Number(find("#count").textContent))
    throw new Error("the file ends too early, before its models; it was cut off on its way, so copy it again");
  const worked = new Worked(find("#worker").textContent);
  await worked.ask("start", { wasm: bytesOf(find("#kernel").textContent) });
  const models = [];
  for (const [i, each] of abouts.entries()) {
    const about = JSON.parse(each);
    const buffer = bytesOf(numbers[i].textContent.trim()).buffer;
    numbers[i].remove();
    await worked.ask("open", { about, numbers: buffer }, null, [buffer]);
    models.push(about);
  }
  find("#models").append(...models.map(described));
  find("#honest").textContent = honest(models);
  find("#k").max = Math.max(...models.map(({ experts }) => experts));
  const panes = (place, form) => models.map((about, i) => new Pane(worked, i, about, find(place), find(`${form} .colour`)));
  const [written, measured] = [panes("#written", "#write"), panes("#measured", "#read")];
  const running = {};
  find("#write").onsubmit = (event) => {
    event.preventDefault();
    if (!find("#write .main").disabled) write(worked, written, running, encode(find("#prompt").value));
  };
  find("#continue").onclick = () => write(worked, written, running, null);
  find("#stop").onclick = () => {
    running.stopped = true;
    worked.ask("stop", { write: running.id });
  };
  find("#read").onsubmit = (event) => {
    event.preventDefault();
    measure(worked, measured, encode(find("#text").value));
  };
  document.body.dataset.ready = "yes";
}

main().catch((error) => {
  find("#fault").textContent = sentence(error);
  find("#fault").hidden = false;
  for (const control of document.querySelectorAll("button")) control.disabled = true;
});
