// Elements, what a metric is called, and parts that the report and the live page both have. Text from a run only ever
// becomes a text node.
const SVG = "http://www.w3.org/2000/svg";

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {}))
    if (value !== undefined && value !== null) node.setAttribute(name, value);
  return node;
}
function element(tag, attributes, ...children) {
  const node = set(document.createElement(tag), attributes);
  node.append(...children.filter((child) => child !== undefined && child !== null));
  return node;
}
function shape(tag, attributes, ...children) {
  const node = set(document.createElementNS(SVG, tag), attributes);
  node.append(...children);
  return node;
}

function number(x) {
  if (x === null || x === undefined) return "–";
  if (typeof x !== "number") return String(x);
  if (Number.isInteger(x)) return x.toLocaleString("en");
  const size = Math.abs(x);
  if (size >= 1e6 || size < 1e-4) return x.toExponential(3);
  if (size >= 1000) return Math.round(x).toLocaleString("en");
  return String(Number(x.toPrecision(4)));
}
function short(x) {
  const size = Math.abs(x);
  if (size >= 1e9) return Number((x / 1e9).toPrecision(4)) + "G";
  if (size >= 1e6) return Number((x / 1e6).toPrecision(4)) + "M";
  if (size >= 1e4) return Number((x / 1e3).toPrecision(4)) + "k";
  if (size !== 0 && size < 1e-3) return x.toExponential().replace(/(\.\d\d)\d*e/, "$1e");
  return String(Number(x.toPrecision(6)));
}
function duration(seconds) {
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)} h` : `${minutes}:${two(whole % 60)} min`;
}

// `1 rank`, `2 ranks`.
function counted(count, word) { return `${number(count)} ${word}${Number(count) === 1 ? "" : "s"}`; }

// --- what a metric is called ---------------------------------------------------------------------

// `rank/N/NAME` is a figure of one rank.
const OF_RANK = /^rank\/(\d+)\/(\w+)$/;
// A metric may have any name, also one that objects have by themselves.
const FIGURES = {
  __proto__: null,
  samples_per_second: { words: "Samples per second, by rank" },
  waiting_share: { words: "Waiting in collectives, by rank (% of the time)", factor: 100 },
};
const STAGES = { __proto__: null, train: "training", val: "validation", test: "test", sanity: "sanity check" };
const DASHES = [undefined, "6 4", "1.5 4"];

// What ready callbacks log.
const KNOWN = { __proto__: null, process_memory_mib: "memory of the process (MiB)", process_cpu_percent: "processor time (% of a core)" };

function words(name) {
  return KNOWN[name] ?? name.replace(/^lr-(\w+(-\d+)?)$/, "learning rate ($1)").replaceAll("_", " ");
}
// For titles. The names of parameters stay as they are.
function capital(text) { return text.includes(".") ? text : text.slice(0, 1).toUpperCase() + text.slice(1); }

// The chart of a metric and its line there, in words. The stages of a metric share a chart, and so do the ranks.
function called(name) {
  const [, rank, figure] = name.match(OF_RANK) ?? [];
  if (rank !== undefined) return { chart: FIGURES[figure]?.words ?? `${capital(words(figure))}, by rank`, line: `rank ${rank}`, nth: Number(rank) };
  const slash = name.indexOf("/"), stage = name.slice(0, Math.max(slash, 0)), nth = Object.keys(STAGES).indexOf(stage);
  return { chart: capital(words(name.slice(slash + 1))), line: stage === "run" ? "all ranks" : STAGES[stage] ?? words(stage || name), nth: nth < 0 ? undefined : nth };
}
// A metric alone, in words: `training loss`.
function inWords(name) {
  const [stage, ...rest] = name.replace(/^run\//, "").split("/");
  return KNOWN[rest[0]] ?? [STAGES[stage] ?? stage, ...rest].map(words).join(" ");
}
// What is drawn of a value: a share of the time as per cent.
function drawnValue(name, value) {
  const [, , figure] = name.match(OF_RANK) ?? [];
  return value === null ? null : value * (FIGURES[figure]?.factor ?? 1);
}

// Title to series of a chart, of [{ name, points, run }]. With `run` = { name, colour } the runs have a colour each, and
// the lines of a run differ in their dashes.
function grouped(curves) {
  const groups = new Map();
  for (const { name, points, run } of curves) {
    const { chart, line, nth } = called(name), group = groups.get(chart) ?? [], place = nth ?? group.length;
    group.push({ name: run ? `${run.name} ${line}` : line, line, place, points, colour: run?.colour ?? `var(--c${place % 8})`,
      dash: DASHES[(run ? nth ?? 0 : Math.floor(place / 8)) % DASHES.length] });
    groups.set(chart, group);
  }
  for (const group of groups.values()) if (group.every((one) => /^rank \d+$/.test(one.line))) group.sort((a, b) => a.place - b.place);
  return groups;
}

// --- parts of both pages -------------------------------------------------------------------------

function pill(state) { return element("span", { class: `pill ${state}` }, state); }
function figure(name, value, title) {
  return element("div", {}, element("dt", { title }, name), element("dd", {}, value));
}
// The last value of a metric. Its own name is the hint.
function metricFigure(name, value) { return figure(inWords(name), number(value), name); }
// The shares of the ranks, from 0 to 1, as [[rank, share]].
function shareBars(shares) {
  return element("div", { class: "bars" }, ...shares.slice(0, 256).map(([rank, share]) => element("div", {}, `rank ${rank}`,
    element("i", {}, element("i", { style: `width:${Math.min(Math.max(share, 0), 1) * 100}%` })),
    element("b", {}, `${(share * 100).toFixed(1)} %`))));
}
// A smoothing and a scale for all charts of the page, which `view` keeps.
function controls(view, redraw) {
  const slider = element("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: view.smooth, "aria-label": "smoothing" });
  const shown = element("span", {}, String(view.smooth));
  slider.addEventListener("input", () => { view.smooth = Number(slider.value); shown.textContent = slider.value; redraw(); });
  const log = element("button", { type: "button", "aria-pressed": String(view.log) }, "log scale");
  log.addEventListener("click", () => { view.log = !view.log; log.setAttribute("aria-pressed", String(view.log)); redraw(); });
  return element("div", { class: "controls" }, element("label", { class: "switch" }, "smoothing", slider, shown), log);
}
function theme() {
  const button = document.getElementById("theme");
  const use = (name) => {
    document.documentElement.dataset.theme = name;
    button.textContent = name === "dark" ? "Light" : "Dark";
  };
  use(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  button.addEventListener("click", () => use(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
}
theme();
