// Builds the page from the object that the program wrote into it.
const data = JSON.parse(document.getElementById("data").textContent);
const page = document.getElementById("page");
const view = { smooth: 0, log: false };
const charts = [];
const several = data.runs.length > 1;

const FIRST = ["Loss", "Accuracy"];
const RATE = /(^|[/_.-])(lr|learning_rate)([/_.-]|$)/i;
const WORK = /^(throughput|device)\/|samples_per_sec|steps_per_sec|batches_per_sec|throughput|waiting|memory|_bytes|utili[sz]ation/i;

function section(title, ...children) {
  page.append(element("h2", {}, title), ...children);
}
function colour(run) { return `var(--c${run % 8})`; }
function table(heads, rows) {
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows)));
}
function runName(run, index) {
  return element("span", { class: "run" },
    several ? element("span", { class: "dot", style: `background:${colour(index)}` }) : undefined, run.name);
}
function failureBox(failure) {
  const place = ["rank", "hook", "step", "generation"].filter((k) => failure[k] !== null && failure[k] !== undefined)
    .map((k) => `${k} ${failure[k]}`).join(", ");
  const box = element("div", { class: "box bad" }, element("b", {}, `${failure.type ?? "failure"}`), place ? ` (${place}) ` : " ",
    element("code", {}, `${failure.what ?? ""}`));
  for (const cause of failure.causes ?? [])
    box.append(element("div", {}, "caused by ", element("b", {}, `${cause.type}`), " ", element("code", {}, `${cause.what}`)));
  const others = (failure.others ?? []).length;
  if (others) box.append(element("div", { class: "quiet" }, `${counted(others, "other failure")} followed`));
  return box;
}

function lastValues(run) {
  const found = new Map();
  for (const one of run.metrics.series) {
    const known = one.value.filter((v) => v !== null);
    if (known.length) found.set(one.name, known[known.length - 1]);
  }
  for (const [name, value] of Object.entries(run.result?.metrics ?? {})) found.set(name, value);
  if (run.result?.samples_per_second) found.delete("run/samples_per_second");  // the whole run's is shown
  return found;
}

function summary(run, index) {
  const r = run.result ?? {}, steps = run.metrics.series.flatMap((s) => s.step);
  const lastStep = r.steps ?? (steps.length ? Math.max(...steps.slice(-1), steps.reduce((a, b) => Math.max(a, b))) : null);
  const figures = element("dl", { class: "figures" });
  const add = (name, value) => { if (value !== null && value !== undefined && value !== "–") figures.append(figure(name, value)); };
  add("steps", number(lastStep));
  add("epochs", r.epochs !== undefined ? number(r.epochs) : undefined);
  add("samples", r.samples !== undefined ? short(r.samples) : undefined);
  add("ranks", r.ranks);
  if (typeof r.seconds?.total === "number") add("time", duration(r.seconds.total));
  if (typeof r.samples_per_second === "number") add("samples/s", number(Math.round(r.samples_per_second)));
  if (r.restarts) add("restarts", r.restarts);
  if (!several) for (const [name, value] of lastValues(run)) if (!OF_RANK.test(name)) figures.append(metricFigure(name, value));
  const card = element("article", { class: "card" },
    element("div", { class: "head" }, element("h3", {}, runName(run, index)), pill(run.state)),
    element("p", { class: "quiet" }, run.folder), figures);
  if (r.failure) card.append(failureBox(r.failure));
  for (const note of run.notes) card.append(element("div", { class: "box warm" }, note));
  return card;
}

function comparison() {
  const values = data.runs.map(lastValues), names = [...new Set(values.flatMap((v) => [...v.keys()]))].filter((name) => !OF_RANK.test(name));
  const row = (name, cell, title) => element("tr", {}, element("td", { class: "key", title }, name),
    ...data.runs.map((run, i) => element("td", { class: "number" }, cell(run, i))));
  return element("div", { class: "card" }, table(
    [element("th", {}, ""), ...data.runs.map((run, i) => element("th", { class: "number" }, runName(run, i)))],
    [row("state", (run) => run.state), row("steps", (run) => number(run.result?.steps)),
      row("ranks", (run) => number(run.result?.ranks)), row("samples/s", (run) => number(run.result?.samples_per_second)),
      row("seconds", (run) => number(run.result?.seconds?.total)), row("restarts", (run) => number(run.result?.restarts)),
      ...names.map((name) => row(inWords(name), (run, i) => number(values[i].get(name)), name))]));
}

// Of several runs: a colour for each run, a kind of line for each stage or rank.
function runLegend(series) {
  if (!several) return undefined;
  const lines = [...new Map(series.map((one) => [one.line, one.dash]))];
  return [...data.runs.map((run, i) => ({ name: run.name, colour: colour(i) })).filter((r) => series.some((s) => s.colour === r.colour)),
    ...(lines.length > 1 ? lines : []).map(([name, dash]) => ({ name, colour: "var(--quiet)", dash }))];
}

function curves(wanted) {
  const all = data.runs.flatMap((run, index) => run.metrics.series.filter((one) => wanted(one.name) && one.step.length).map((one) => ({
    name: one.name, points: one.step.map((step, i) => [step, drawnValue(one.name, one.value[i])]),
    run: several ? { name: run.name, colour: colour(index) } : undefined })));
  const order = (name) => FIRST.includes(name) ? `0${FIRST.indexOf(name)}` : `1${name}`;
  const marks = several ? [] : failureMarks(data.runs[0].events.list);
  return [...grouped(all)].sort(([a], [b]) => order(a) < order(b) ? -1 : 1)
    .map(([title, series]) => new Chart({ title, series, marks, legend: runLegend(series) }, view));
}

function addCharts(title, list, ...before) {
  if (!list.length) return;
  charts.push(...list);
  section(title, ...before, element("div", { class: "charts" }, ...list.map((chart) => chart.node)));
}

function waiting(run, index) {
  const shares = run.result?.waiting_share;
  if (!Array.isArray(shares)) return undefined;
  return element("section", { class: "card" }, element("div", { class: "head" },
    element("h3", {}, several ? runName(run, index) : "Time in collectives"),
    element("span", { class: "quiet" }, "share of the training time, by rank")), shareBars(shares.map((share, rank) => [rank, share])));
}

function throughput() {
  const derived = data.runs.map((run, index) => ({ name: several ? run.name : "steps per second", colour: colour(several ? index : 5),
    points: speeds(run.events.list) })).filter((one) => one.points.length > 2);
  const list = curves((name) => WORK.test(name));
  if (derived.length) list.push(new Chart({ title: "Steps per second, between checkpoints", series: derived, stairs: true }, view));
  const bars = data.runs.map(waiting).filter(Boolean);
  if (!list.length && !bars.length) return;
  charts.push(...list);
  section("Throughput and waiting", element("div", { class: "charts" }, ...list.map((chart) => chart.node), ...bars));
}

function generationTable(result) {
  const list = result?.generations;
  if (!Array.isArray(list) || !list.length) return undefined;
  const heads = ["generation", "ranks", "from step", "steps redone", "detect", "abort", "form", "heal", "first step", "ended by"];
  const ended = (by) => by && typeof by === "object" ? `${by.type}: ${by.what}` : `${by}`;
  const ms = (x) => typeof x === "number" ? duration(x / 1000) : "–";
  return element("details", {}, element("summary", {}, "Generations and the time of each recovery"),
    table(heads.map((h) => element("th", {}, h)), list.map((one) => element("tr", {},
      ...[one.generation, one.ranks, one.base_step, one.steps_redone].map((x) => element("td", {}, number(x))),
      ...["detect", "abort", "form", "heal", "first_step"].map((k) => element("td", {}, ms(one.milliseconds?.[k]))),
      element("td", {}, ended(one.ended_by))))));
}

function eventTable(run) {
  const left = run.events.left_out ? `, ${number(run.events.left_out)} more are not shown` : "";
  return element("details", {}, element("summary", {}, `All events (${number(run.events.list.length)}${left})`),
    table(["time", "event", "rank", "generation", "step", "details"].map((h) => element("th", {}, h)),
      run.events.list.map((e) => element("tr", {}, element("td", { class: "key" }, e.time),
        ...[words(e.event), e.rank, e.generation, e.step].map((x) => element("td", {}, x === null ? "" : `${x}`)),
        element("td", {}, Object.entries(e.details).map(([k, v]) => `${k}: ${v}`).join(", "))))));
}

function timelines() {
  const nodes = data.runs.map((run, index) => {
    if (!run.events.list.length) return undefined;
    return element("section", { class: "card" },
      several ? element("div", { class: "head" }, element("h3", {}, runName(run, index)), pill(run.state)) : undefined,
      new Timeline(run, Date.parse(data.made)).node, generationTable(run.result), eventTable(run));
  }).filter(Boolean);
  if (nodes.length) section("Timeline", element("div", { class: "cards one" }, ...nodes));
}

function settings() {
  const keys = [...new Set(data.runs.flatMap((run) => Object.keys(run.settings)))];
  if (!keys.length) return;
  const differs = (key) => data.runs.some((run) => run.settings[key] !== data.runs[0].settings[key]);
  const row = (key) => element("tr", several && differs(key) ? { class: "differs" } : {}, element("td", { class: "key" }, key),
    ...data.runs.map((run) => element("td", {}, run.settings[key] ?? "–")));
  const heads = () => [element("th", {}, "key"), ...data.runs.map((run, i) => element("th", {}, several ? runName(run, i) : "value"))];
  const unequal = several ? keys.filter(differs) : [], equal = keys.filter((key) => !unequal.includes(key));
  const card = element("div", { class: "card" });
  if (unequal.length) card.append(table(heads(), unequal.map(row)));
  if (several && !unequal.length) card.append(element("p", { class: "quiet" }, "All settings are equal."));
  card.append(element("details", several ? {} : { open: "" },
    element("summary", {}, counted(equal.length, several ? "equal setting" : "setting")), table(heads(), equal.map(row))));
  section("Settings", card);
}

for (const run of data.runs) for (const event of run.events.list) event.at = Date.parse(event.time);
for (const run of data.runs) run.events.list = run.events.list.filter((event) => !Number.isNaN(event.at));
const title = several ? `${data.runs.length} runs` : data.runs[0].name;
document.getElementById("title").textContent = title;
document.title = `${title} – Troupe report`;
document.getElementById("line").textContent = `made ${data.made.replace("T", " ").replace(/\.\d+Z/, " UTC")}`;
page.append(element("div", { class: several ? "cards" : "cards one" }, ...data.runs.map(summary)));
if (several) section("Comparison", comparison());
addCharts("Curves", curves((name) => !RATE.test(name) && !WORK.test(name)), controls(view, () => charts.forEach((chart) => chart.draw())));
addCharts("Learning rate", curves((name) => RATE.test(name)));
throughput();
timelines();
settings();
for (const draw of pictures) draw();
document.documentElement.dataset.ready = "true";
