// The page's behaviour. What it shows is in two embedded blocks: the results, byte for byte, and what
// reports/page.py adds to them (specifications of charts, runs, timelines).
"use strict";

const VERDICTS = ["reproduced", "holds here", "unclear", "mixed", "fails here", "contradicted"];
const PERFETTO = "https://ui.perfetto.dev";
const LETTER = 8;  // pixels of a letter of a title
const state = { views: {} };

async function block(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const text = (bytes) => new TextDecoder().decode(bytes);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// ------------------------------------------------------------------------------------------ data of charts

function rowsOf(exhibit) {
  const told = state.more.told[exhibit.id];
  return exhibit.rows.map((row, i) => ({
    label: row.label, x: Number(row.column), column: state.more.columns[exhibit.id][i],
    measured: row.measured, paper: row.paper, told: told[i], at: `row:${exhibit.id}:${i}`,
    low: row.ci95 && row.ci95[0], high: row.ci95 && row.ci95[1],
  }));
}

function seedsOf(exhibit) {
  return exhibit.rows.flatMap((row) => !row.sample || row.sample.statistic !== "mean" ? [] :
    row.sample.values.map(([y], seed) => ({ label: row.label, x: Number(row.column), y, seed })));
}

function dataOf(name) {
  const [id, part] = name.split(":");
  if (name === "forest" || part === "differences" || part === "spans") return state.more.data[name];
  const exhibit = state.exhibits[id];
  return part === "seeds" ? seedsOf(exhibit) : rowsOf(exhibit);
}

function lines(words, most) {
  // a title in lines of so many letters: what is cut off cannot be read
  const found = [""];
  for (const word of words.split(" ")) {
    if (found.at(-1) && found.at(-1).length + word.length >= most) found.push("");
    found.push(`${found.pop()} ${word}`.trim());
  }
  return found;
}

function filled(spec, width) {
  // the specification with its data, as wide as the screen lets it be
  const copy = { ...spec };
  if (copy.data && copy.data.name) copy.data = { ...copy.data, values: dataOf(copy.data.name) };
  for (const key of ["layer", "vconcat"]) {
    if (copy[key]) copy[key] = copy[key].map((each) => filled(each, key === "vconcat" ? width : 0));
  }
  if (width && !copy.vconcat) copy.width = width;
  if (width && copy.title) copy.title = { ...copy.title, text: lines(copy.title.text, (width + 60) / LETTER), limit: width + 60 };
  return copy;
}

function look(width) {
  const css = getComputedStyle(document.documentElement);
  const of = (name) => css.getPropertyValue(name).trim();
  const axis = { labelColor: of("--ink"), titleColor: of("--ink"), gridColor: of("--line"), domainColor: of("--muted"),
    tickColor: of("--muted"), labelLimit: width < 500 ? 130 : 330, titleLimit: width };
  return {
    background: null, view: { stroke: null }, font: "Georgia, serif", axis,
    axisQuantitative: { labelOverlap: "greedy", labelSeparation: 8, tickCount: width < 500 ? 5 : 9 },
    legend: { labelColor: of("--ink"), titleColor: of("--ink"), columns: width < 500 ? 1 : 3 },
    title: { color: of("--ink"), fontSize: 13 }, rule: { color: of("--muted") }, point: { color: of("--ink") },
    autosize: { type: "pad" },
  };
}

async function draw(id, spec) {
  const place = document.getElementById(id);
  const room = place.clientWidth;
  const margin = id === "forest" || id.startsWith("timeline") ? (room < 500 ? 140 : 345) : 75;
  const options = { actions: false, renderer: "svg", config: look(room), tooltip: { theme: "custom" } };
  if (state.views[id]) state.views[id].finalize();
  const { view } = await vegaEmbed(place, filled(spec, Math.max(120, room - margin)), options);
  state.views[id] = view;
  place.querySelector("svg").setAttribute("aria-hidden", "true");
  view.addEventListener("click", (_, item) => {
    const datum = item && item.datum;
    if (datum && datum.at) openRuns(datum.at);
    else if (datum && datum.place !== undefined) openRuns(`claim:${datum.place}`);
  });
}

async function drawAll() {
  for (const [id, spec] of Object.entries(state.more.charts)) await draw(id, spec);
  await applyFilter();
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
}

// ------------------------------------------------------------------------------------------------ the filter

const pressed = () => VERDICTS.filter((verdict) =>
  document.querySelector(`.filter [data-verdict="${verdict}"]`).getAttribute("aria-pressed") === "true");

async function applyFilter() {
  if (!document.querySelector(".filter")) return;
  const shown = pressed();
  for (const row of document.querySelectorAll(".claims tbody tr")) row.hidden = !shown.includes(row.dataset.verdict);
  if (state.views.forest) await state.views.forest.signal("shown", shown).runAsync();
}

function sortBy(header) {
  const table = header.closest("table"), place = [...header.parentNode.children].indexOf(header);
  const up = header.getAttribute("aria-sort") !== "ascending";
  for (const each of header.parentNode.children) each.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.children[place].dataset.key ?? row.children[place].textContent.trim();
  const number = (value) => (value === "" ? Number.POSITIVE_INFINITY : Number(value));
  const compare = (a, b) => Number.isNaN(number(a)) || Number.isNaN(number(b)) ? a.localeCompare(b) : number(a) - number(b);
  const rows = [...table.tBodies[0].rows].sort((a, b) => (up ? 1 : -1) * compare(key(a), key(b)));
  table.tBodies[0].append(...rows);
}

// --------------------------------------------------------------------------------- the runs behind a number

function behind(at) {
  const [kind, ...rest] = at.split(":");
  if (kind === "claim") {
    const claim = state.results.claims[Number(rest[0])];
    return { title: `${claim.id}: ${claim.statement}`, runs: claim.runs, only: "" };
  }
  const exhibit = state.exhibits[rest[0]], row = exhibit.rows[Number(rest[1])];
  const title = `${exhibit.paper_label || exhibit.id}: ${row.label}, ${state.more.columns[exhibit.id][Number(rest[1])]}`;
  return { title, runs: row.runs, only: ` --only ${exhibit.id.replace(/^[^.]*\./, "")}` };
}

function openRuns(at) {
  const { title, runs, only } = behind(at), dialog = document.getElementById("runs");
  const kinds = [...new Set(runs.map((hash) => (state.more.runs[hash] || [""])[0]))].filter(Boolean);
  const body = runs.map((hash) => {
    const [, setting, seed, status, apart, note] = state.more.runs[hash] || ["", "", "", "not stored", "", ""];
    return element("tr", {}, ...[setting, seed, status, [apart, note].filter(Boolean).join(" · "), hash]
      .map((value, i) => element("td", i > 2 ? { class: "mono" } : {}, value)));
  });
  const head = ["setting", "seed", "ended", "what sets its configuration apart", "hash"];
  dialog.replaceChildren(
    element("form", { method: "dialog" }, element("button", {}, "Close")),
    element("h2", { id: "runs-title" }, title),
    element("p", {}, runs.length ? `${runs.length} run${runs.length > 1 ? "s" : ""}.` : "No run is behind it: it was computed."),
    element("p", {}, "Commit ", element("code", {}, state.more.commit), ". Made again by ",
      element("code", {}, state.more.command + only)),
    runs.length ? element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "runs" }, element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...body))) : "",
    ...kinds.map((kind) => element("details", {}, element("summary", {}, "What is usual among runs of their kind"),
      element("p", { class: "mono" }, state.more.usual[kind] || ""))),
  );
  dialog.showModal();
}

function fillTable(details) {
  const exhibit = state.exhibits[details.dataset.table];
  if (details.querySelector("table")) return;
  const rows = rowsOf(exhibit).map((row) => element("tr", {},
    element("td", {}, row.label), element("td", {}, row.column),
    element("td", {}, row.paper === null ? "" : String(row.paper)),
    element("td", {}, element("button", { class: "number", "data-at": row.at }, row.told))));
  const head = ["series", exhibit.axes.x || "column", state.more.against, "measured"];
  details.append(element("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `figures of ${exhibit.id}` },
    element("table", {}, element("thead", {}, element("tr", {}, ...head.map((name) => element("th", { scope: "col" }, name)))),
      element("tbody", {}, ...rows))));
}

// ------------------------------------------------------------------------------- timelines and files to keep

function download(name, content) {
  const link = element("a", { href: URL.createObjectURL(new Blob([content])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function perfetto(id) {
  const buffer = new TextEncoder().encode(state.more.traces[id]).buffer, other = window.open(PERFETTO);
  if (!other) return;
  const knock = setInterval(() => other.postMessage("PING", PERFETTO), 100);
  const answered = (event) => {
    if (event.source !== other || event.data !== "PONG") return;
    clearInterval(knock);
    removeEventListener("message", answered);
    other.postMessage({ perfetto: { buffer, title: id } }, PERFETTO);
  };
  addEventListener("message", answered);
  setTimeout(() => clearInterval(knock), 60000);
}

async function checkDigest(bytes) {
  const place = document.getElementById("digest");
  if (!window.crypto || !crypto.subtle) return;
  const found = [...new Uint8Array(await crypto.subtle.digest("SHA-256", bytes))]
    .map((byte) => byte.toString(16).padStart(2, "0")).join("");
  place.append(found === place.dataset.sha256 ? " (checked: these are its bytes)" : " (DOES NOT MATCH the embedded bytes)");
}

// ------------------------------------------------------------------------------------------------ beginning

function listen() {
  document.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    if (button.dataset.at) openRuns(button.dataset.at);
    else if (button.closest(".filter")) {
      button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      applyFilter();
    } else if (button.closest("th")) sortBy(button.closest("th"));
    else if (button.dataset.perfetto) perfetto(button.dataset.perfetto);
    else if (button.dataset.trace) download(`${button.dataset.trace}.json`, state.more.traces[button.dataset.trace]);
    else if (button.dataset.results) download("results.json", state.bytes);
  });
  for (const details of document.querySelectorAll("details[data-table]")) {
    details.addEventListener("toggle", () => fillTable(details));
  }
  let width = innerWidth, waiting;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 200);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
}

async function begin() {
  state.bytes = await block("results");
  state.results = JSON.parse(text(state.bytes));
  state.exhibits = Object.fromEntries(state.results.exhibits.map((each) => [each.id, each]));
  state.more = JSON.parse(text(await block("more")));
  listen();
  await checkDigest(state.bytes);
  await drawAll();
}

begin();
