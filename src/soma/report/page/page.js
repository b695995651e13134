"use strict";
const RUNS = JSON.parse(document.getElementById("runs").textContent);
const origin = document.getElementById("origin"), contents = document.getElementById("contents");
const wide = matchMedia("(min-width: 1180px)");
const make = (tag, text, ...inside) => {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  element.append(...inside);
  return element;
};
const list = (pairs) => {
  const out = make("dl");
  for (const [name, value] of Object.entries(pairs)) out.append(make("dt", name), make("dd", value));
  return out;
};

// A number's runs, settings and commands, beside the page.
function explain(cell) {
  const table = cell.closest("table"), row = cell.parentElement;
  const names = cell.id.match(/-r(\d+)c(\d+)$/);
  const column = table.tHead.rows[0].cells[cell.cellIndex].textContent;
  const runs = RUNS.sets[cell.dataset.r].split(" ");
  const first = row.cells[0].dataset.full || row.cells[0].textContent;
  origin.replaceChildren(make("h4", `${table.dataset.label} · ${first.trim()} · ${column}`));
  const value = make("p", cell.textContent.trim());
  value.className = "value";
  const exact = [];
  if (cell.dataset.v) exact.push(`exactly ${cell.dataset.v}`);
  if (cell.dataset.low) exact.push(`interval from ${cell.dataset.low} to ${cell.dataset.high}`);
  const where = make("p", [...exact, `row ${names[1]} of ${table.dataset.csv}`].join("; ") + ".");
  where.className = "soft";
  origin.append(value, where, make("p", "Make it again:"), make("code", table.dataset.command));
  const replayed = runs.filter((run) => RUNS.runs[run]);
  if (replayed.length) {
    origin.append(make("p", "Run parts of the training behind it again, and compare:"));
    origin.append(make("code", `soma replay ${RESULTS} ${replayed.slice(0, 6).join(" ")}`));
    origin.append(make("p", replayed.length === 1 ? "Its run:" : `Its ${replayed.length} runs:`));
  }
  for (const run of replayed) {
    const known = RUNS.runs[run];
    const recorded = Object.keys(known.record).length;
    const files = known.parts.map((part) => `${RESULTS}/runs/${part}/run.json`);
    origin.append(make("details", "", make("summary", `${run} (${known.label})`), list(known.settings),
      recorded ? list(known.record) : make("p", "Its record comes with dvc pull."),
      make("p", `Recorded in ${files.join(", ")}.`), make("code", `soma replay ${RESULTS} ${run}`)));
  }
  const close = make("button", "×");
  close.className = "close";
  close.setAttribute("aria-label", "Close");
  close.onclick = hide;
  origin.append(close);
  origin.hidden = false;
  origin.scrollTop = 0;
}
function hide() {
  origin.hidden = true;
  document.querySelector("td.here")?.classList.remove("here");
}
addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

// Wherever a link leads, open what is folded around it.
function arrive() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  hide();
  if (!target) return;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  const cell = target.matches("td[data-r]");
  target.scrollIntoView({ block: cell && wide.matches ? "center" : "start", inline: cell ? "center" : "nearest" });
  if (target.tagName === "TD") target.classList.add("here");
  if (cell) explain(target);
}
addEventListener("hashchange", arrive);
addEventListener("click", (event) => {  // a link to where one already is
  const link = event.target.closest?.('a[href^="#"]');
  if (link && link.getAttribute("href") === location.hash) arrive();
  if (link?.closest("nav") && !wide.matches) contents.open = false;
});

// Tables are sorted by the column whose head is clicked, then the other way round, then as they were.
for (const table of document.querySelectorAll("table.data")) {
  const rows = [...table.tBodies[0].rows];
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!event.target.closest("button")) return;
    const next = { ascending: "descending", descending: null }[head.getAttribute("aria-sort")] ?? (head.hasAttribute("aria-sort") ? null : "ascending");
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    for (const cell of table.querySelectorAll("[data-full]")) {  // a sorted row has no row above it to refer to
      cell.dataset.short ??= cell.textContent;
      (cell.querySelector("a") || cell).textContent = next ? cell.dataset.full : cell.dataset.short;
    }
    if (!next) return table.tBodies[0].append(...rows);
    head.setAttribute("aria-sort", next);
    const key = (row) => {
      const cell = row.cells[head.cellIndex], text = cell.dataset.full || cell.textContent.trim();
      const number = cell.dataset.v ?? (/^[~+−-]?[\d.,]+(e-?\d+)?$/.test(text) ? text.replace(/[~,]/g, "").replace("−", "-") : NaN);
      return { number: parseFloat(number), text };
    };
    const sign = next === "ascending" ? 1 : -1;
    table.tBodies[0].append(...rows.map((row) => [key(row), row]).sort(([a], [b]) => {
      if (isNaN(a.number) !== isNaN(b.number)) return isNaN(a.number) ? 1 : -1;  // words after numbers, either way
      return sign * (isNaN(a.number) ? a.text.localeCompare(b.text, "en", { numeric: true }) : a.number - b.number);
    }).map(([, row]) => row));
  });
}

// The contents follow the reader.
const unfold = () => { contents.open = wide.matches; };
wide.addEventListener("change", unfold);
unfold();
const links = [...document.querySelectorAll("nav a")].map((link) => [link, document.getElementById(link.hash.slice(1))]);
let waiting = false;
function follow() {
  waiting = false;
  const passed = links.filter(([, place]) => place.getBoundingClientRect().top < innerHeight / 3);
  const current = (passed.at(-1) || links[0])[0];
  for (const [link] of links) {
    link.toggleAttribute("aria-current", link === current);
    link.parentElement.classList.toggle("current", link.parentElement.contains(current));
  }
}
addEventListener("scroll", () => { if (!waiting) { waiting = true; requestAnimationFrame(follow); } }, { passive: true });
follow();

// On paper everything is open.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => { for (const each of folded) each.open = false; });
if (location.hash) arrive();
