// The live page: lists the jobs, follows one by server-sent events, and sends what the buttons say.
const POINTS_MAX = 2000;  // of one curve: of more, every second one stays
const LIFE_MAX = 1000;    // events of the timeline: of more, every second checkpoint stays
const EVENTS_MAX = 200;   // in the list below the timeline, the newest
const byId = (id) => document.getElementById(id);
const view = { smooth: 0, log: false };
let token = sessionStorage.getItem("troupe-token") ?? "";
let chosen = location.hash.slice(1);
let listed = [];       // the jobs, as of the newest list
let following = null;  // { name, stop, job, life, events, curves, charts, rate, waiting }
function say(text) { byId("line").textContent = text; }
// What the service says to a button stays until the next one.
function answered(text) { byId("answer").textContent = text; }
async function ask(path, options = {}) {
  const headers = { ...(token ? { Authorization: `Bearer ${token}` } : {}), ...options.headers };
  const answer = await fetch(path, { ...options, headers });
  if (answer.status === 401) { byId("login").hidden = false; byId("page").hidden = true; throw new Error("a token is needed"); }
  return answer;
}
async function order(path, body, method = "POST") {
  const answer = await ask(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw new Error(said.error);
  return said;
}
function press(path, body) {
  return order(path, body).then(() => answered(`asked: ${path.split("/").slice(3).join(" ")}`), (error) => answered(error.message)).then(list);
}

// --- the list ---------------------------------------------------------------------------------

function done(job) {
  const s = job.status;
  if (job.state === "finished") return 1;
  if (!s || !s.epochs) return 0;
  return Math.min((Math.max(s.epoch ?? 0, 0) + (s.batches ? ((s.batch ?? -1) + 1) / s.batches : 0)) / s.epochs, 1);
}
// The cards stay, so that one keeps the focus.
const cards = new Map();
function card(job) {
  const s = job.status, node = cards.get(job.name) ?? element("button", { type: "button", class: "pick", "data-job": job.name });
  if (!cards.has(job.name)) node.addEventListener("click", () => choose(job.name));
  cards.set(job.name, node);
  const text = job.state === "running" && s ? `${s.state}, step ${number(s.step)}${s.seconds_left === null ? "" : `, ${duration(s.seconds_left)} left`}`
    : counted(job.result?.steps ?? s?.step ?? 0, "step");
  node.setAttribute("aria-pressed", String(job.name === chosen));
  node.replaceChildren(element("div", { class: "head" }, element("h3", {}, job.name), pill(job.state)), element("span", { class: "quiet" }, text),
    element("div", { class: "bar" }, element("i", { style: `width:${(done(job) * 100).toFixed(1)}%` })));
  return node;
}
// The card of the job below shows what is shown there.
function showCards(all) {
  const nodes = all.map((job) => following?.job && job.name === following.name ? cards.get(job.name) ?? card(job) : card(job));
  if (nodes.length !== byId("jobs").children.length || nodes.some((node, i) => node !== byId("jobs").children[i]))
    byId("jobs").replaceChildren(...nodes);
  for (const name of cards.keys()) if (!all.some((job) => job.name === name)) cards.delete(name);
}
async function list() {
  try {
    const all = (await (await ask("/v1/jobs")).json()).jobs;
    byId("login").hidden = true;
    byId("page").hidden = false;
    listed = all;
    showCards(all);
    const running = all.filter((job) => job.state === "running").length;
    say(all.length ? `${counted(all.length, "job")}, ${running} running` : "no job yet");
    if (!all.some((job) => job.name === chosen)) chosen = all.find((job) => job.state === "running")?.name ?? all.at(-1)?.name ?? "";
    if (chosen && following?.name !== chosen) choose(chosen);
    if (!chosen) leave();
  } catch (error) {
    say(error instanceof TypeError ? "the service does not answer" : error.message);
  }
}

// --- one job ----------------------------------------------------------------------------------

function leave() {
  following?.stop.abort();
  following = null;
  byId("job").replaceChildren();
}
function choose(name) {
  chosen = name;
  history.replaceState(null, "", `#${name}`);
  following?.stop.abort();
  for (const one of document.querySelectorAll(".pick")) one.setAttribute("aria-pressed", String(one.dataset.job === name));
  following = { name, stop: new AbortController(), job: null, life: [], events: 0, curves: new Map(), charts: new Map(), rate: [],
    waiting: [], after: 0, dirty: true };
  build(following);
  follow(following);
}

const goesOn = (job) => job?.state === "running" || job?.state === "waiting";
// The stream ends with the connection, and is read on from the last event, or with the job: then only the list is asked
// whether the job was resumed.
async function follow(of) {
  while (!of.stop.signal.aborted) {
    try {
      const answer = await ask(`/v1/jobs/${of.name}/events?after=${of.after}`, { signal: of.stop.signal });
      if (answer.status === 404) { of.stop.abort(); if (following === of) leave(); return list(); }  // the job was removed
      if (!answer.ok) throw new Error((await answer.json()).error);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        text += value;
        const pieces = text.split("\n\n");
        text = pieces.pop();
        for (const piece of pieces) receive(of, piece);
      }
    } catch (error) {
      if (of.stop.signal.aborted) return;
      say(`the stream of ${of.name} ended: ${error.message}`);
    }
    do await new Promise((resolve) => setTimeout(resolve, 1500));
    while (!of.stop.signal.aborted && of.job && !goesOn(of.job) && !goesOn(listed.find((job) => job.name === of.name)));
  }
}
function receive(of, piece) {
  let kind = "", data = "";
  for (const line of piece.split("\n")) {
    if (line.startsWith("id: ")) of.after = Number(line.slice(4));
    if (line.startsWith("event: ")) kind = line.slice(7);
    if (line.startsWith("data: ")) data += line.slice(6);
  }
  if (!data) return;
  const what = JSON.parse(data);
  what.at = Date.parse(what.time);
  if (kind === "job") seeJob(of, what);
  if (kind === "lifecycle") addEvent(of, what);
  if (kind === "metrics") seeMetrics(of, what.step, Object.entries(what.values));
  of.dirty = true;
}
// The newest ones all stay. Where there are not enough checkpoints, events in the middle go.
function addEvent(of, event) {
  ++of.events;
  of.life.push(event);
  if (of.life.length <= LIFE_MAX) return;
  let seen = 0;
  const newest = of.life.splice(-EVENTS_MAX);
  of.life = of.life.filter((e) => e.event !== "checkpoint_written" || ++seen % 2).concat(newest);
  if (of.life.length > LIFE_MAX) of.life.splice(LIFE_MAX / 2, of.life.length - LIFE_MAX);
}
function seeJob(of, job) {
  if (!of.job?.status && job.status?.ranks) of.controls.ranks.value = job.status.ranks;
  of.job = job;
}
// A step that is done again after a failure replaces what it said before.
function seeMetrics(of, step, values) {
  for (const [name, value] of values) {
    if (!of.curves.has(name)) of.curves.set(name, []);
    addPoint(of.curves.get(name), step, drawnValue(name, value));
  }
  const ofRanks = (wanted) => values.map(([name, value]) => [...(name.match(OF_RANK) ?? []), value])
    .filter(([, , figure, value]) => figure === wanted && value !== null).map(([, rank, , value]) => [Number(rank), value]);
  const rates = ofRanks("samples_per_second"), shares = ofRanks("waiting_share");
  if (rates.length) addPoint(of.rate, step, rates.reduce((sum, [, value]) => sum + value, 0));
  if (shares.length) of.waiting = shares.sort(([a], [b]) => a - b);
}
function addPoint(points, x, y) {
  while (points.length && points[points.length - 1][0] >= x) points.pop();
  points.push([x, y]);
  if (points.length > POINTS_MAX) points.splice(0, points.length, ...points.filter((_, i) => i % 2 === 0 || i === points.length - 1));
}

function remove(name) {
  return order(`/v1/jobs/${name}`, {}, "DELETE").then(() => answered(`removed: ${name}`), (error) => answered(error.message)).then(list);
}
function build(of) {
  of.head = element("div", {});
  of.figures = element("section", { class: "card" });
  of.plots = element("div", { class: "charts", id: "curves" });
  of.work = element("div", { class: "charts", id: "work" });
  of.bars = element("div", {});
  of.share = element("span", { class: "quiet" });
  of.shares = element("section", { class: "card", id: "waiting", hidden: "" },
    element("div", { class: "head" }, element("h3", {}, "Waiting in collectives"), of.share), of.bars);
  of.time = element("div", { id: "timeline" });
  of.table = element("tbody", {});
  of.count = element("summary", {}, "Events");
  const part = (title, ...nodes) => element("section", { hidden: "" }, element("h2", {}, title), ...nodes);
  of.parts = [part("Curves", controls(view, () => of.charts.forEach((chart) => chart.draw())), of.plots), part("Throughput and waiting", of.work),
    part("Timeline", element("section", { class: "card" }, of.time, element("details", {}, of.count, element("div", { class: "scroll" },
      element("table", {}, of.table)))))];
  of.work.append(of.shares);
  byId("job").replaceChildren(of.head, of.figures, ...of.parts);
  of.head.append(buttons(of));
}
function buttons(of) {
  const button = (id, text, act, kind) => {
    const node = element("button", { type: "button", id, class: kind }, text);
    node.addEventListener("click", act);
    return node;
  };
  const path = `/v1/jobs/${of.name}`, ranks = element("input", { type: "number", min: 1, max: 256, value: 2, id: "ranks", "aria-label": "ranks" });
  of.controls = {
    stop: button("stop", "Stop", () => press(`${path}/stop`, {})),
    end: button("end", "End now", () => { if (confirm(`End ${of.name} without a checkpoint?`)) press(`${path}/stop`, { now: true }); }, "danger"),
    resume: button("resume", "Resume", () => press(`${path}/resume`, {}).then(() => choose(of.name))),
    remove: button("remove", "Remove", () => { if (confirm(`Remove ${of.name} and its files?`)) remove(of.name); }, "danger"),
    scale: button("scale", "Scale", () => press(`${path}/scale`, { ranks: Number(ranks.value) })), ranks };
  of.state = element("span", {});
  const c = of.controls;
  return element("div", { class: "head titles" }, element("span", { class: "run" }, element("h2", {}, of.name), of.state),
    element("div", { class: "buttons" }, c.stop, c.end, c.resume, c.remove, element("span", { class: "scale" }, c.scale, ranks)));
}

function showHead(of) {
  const job = of.job, s = job.status, runs = job.state === "running", r = job.result;
  card(job);
  of.state.replaceChildren(pill(job.state));
  for (const one of ["stop", "end", "scale", "ranks"]) of.controls[one].disabled = !runs;
  if (job.state === "waiting") of.controls.stop.disabled = false;
  of.controls.resume.disabled = runs || job.state === "finished";
  of.controls.remove.disabled = runs;
  const list = element("dl", { class: "figures" });
  const add = (name, value) => { if (value !== null && value !== undefined) list.append(figure(name, value)); };
  if (s) {
    if (runs) add("now", s.state);
    add("generation", number(s.generation));
    add("ranks", number(s.ranks));
    add("step", number(s.step));
    // After the last epoch `epoch` equals `epochs`.
    add("epoch", s.epoch === null ? null : `${Math.min(s.epoch + 1, s.epochs)}/${s.epochs}`);
    if (s.samples_per_second !== null) add("samples/s", number(Math.round(s.samples_per_second)));
    if (runs && s.seconds_left !== null) add("left", duration(s.seconds_left));
    add("restarts", number(s.restarts));
    add("failures", number(s.failures));
    add("checkpoint", s.checkpoint_step === null ? null : `step ${number(s.checkpoint_step)}`);
  } else if (r) {
    add("steps", number(r.steps));
    add("restarts", number(r.restarts));
  }
  const metrics = Object.entries(s?.metrics ?? r?.metrics ?? {}).filter(([name]) => !OF_RANK.test(name));
  for (const [name, value] of metrics.slice(0, 8)) list.append(metricFigure(name, value));
  of.figures.replaceChildren(list);
  const failures = r?.failure ? [`${r.failure.type}: ${r.failure.what}`] : causes(s?.newest_failures ?? []).slice(-3);
  for (const text of failures) of.figures.append(element("div", { class: r?.failure ? "box bad" : "box warm" }, element("code", {}, text)));
}
// A text per generation. Ranks that notice the loss of another one report generation_closed, also before its own report.
function causes(failures) {
  const generations = Map.groupBy(failures, (f) => f.generation);
  return [...generations].map(([generation, list]) => {
    const first = list.find((f) => !f.what.includes("troupe::generation_closed:")) ?? list[0], others = list.length - 1;
    return `generation ${generation}: ${first.what}${others ? `; ${counted(others, "other report")}` : ""}`;
  });
}

function showCurves(of) {
  const curves = (wanted) => grouped([...of.curves].map(([name, points]) => ({ name, points })).filter(({ name }) => OF_RANK.test(name) === wanted));
  const groups = curves(false), all = of.rate.length ? [["Samples per second", [{ name: "all ranks", colour: "var(--c5)", points: of.rate }]]] : [];
  const work = new Map([...all, ...curves(true)]);
  const marks = failureMarks(of.life);
  for (const [title, series] of [...groups, ...work]) {
    const shown = of.charts.get(title);
    if (shown && shown.what.series.length === series.length) {
      shown.what.marks = marks;
      shown.draw();
      continue;
    }
    const chart = new Chart({ title, series, marks }, view);
    if (shown) shown.node.replaceWith(chart.node);
    else work.has(title) ? of.shares.before(chart.node) : of.plots.append(chart.node);
    of.charts.set(title, chart);
  }
}
// The newest figures while the job runs; of a job that has ended, those of its whole training.
function showWaiting(of) {
  const whole = of.job.result?.waiting_share, shares = whole?.length ? whole.map((share, rank) => [rank, share]) : of.waiting;
  of.shares.hidden = !shares.length;
  of.share.textContent = whole?.length ? "share of the training time, by rank" : "share of the newest steps, by rank";
  of.bars.replaceChildren(shareBars(shares));
}
function showTimeline(of) {
  if (!of.life.length) return;
  const run = { state: of.job?.state, events: { list: of.life } };
  of.time.replaceChildren(new Timeline(run, Date.now()).node);
  const newest = of.life.slice(-EVENTS_MAX).reverse();
  of.count.textContent = newest.length < of.events ? `Events (the newest ${newest.length} of ${number(of.events)})` : `Events (${newest.length})`;
  of.table.replaceChildren(...newest.map((e) => element("tr", {}, element("td", { class: "key" }, new Date(e.at).toLocaleTimeString()),
    element("td", {}, eventText(e)))));
}
function show() {
  const of = following;
  if (!of?.job || !of.dirty) return;
  of.dirty = false;
  pictures.length = 0;
  showHead(of);
  showCurves(of);
  showWaiting(of);
  showTimeline(of);
  [of.charts.size - of.work.querySelectorAll(".chart").length, of.work.querySelectorAll(".chart").length || !of.shares.hidden, of.life.length]
    .forEach((some, i) => { of.parts[i].hidden = !some; });
  for (const draw of pictures) draw();
  document.documentElement.dataset.ready = of.name;
}

// --- the rest of the page -----------------------------------------------------------------------

function newJob(event) {
  event.preventDefault();
  const form = new FormData(byId("start")), whole = (name) => Number(form.get(name));
  const request = {
    model: { hidden: form.get("hidden").split(",").map((w) => w.trim()).filter(Boolean).map(Number), learning_rate: whole("learning_rate") },
    data: { name: form.get("data") },
    options: Object.fromEntries(["ranks", "max_epochs", "batch_size", "max_restarts"].map((name) => [name, whole(name)])) };
  if (form.get("name")) request.name = form.get("name");
  order("/v1/jobs", request).then((job) => { byId("start").hidden = true; answered(`started: ${job.name}`); choose(job.name); list(); },
    (error) => answered(error.message));
}

byId("new").addEventListener("click", () => { byId("start").hidden = !byId("start").hidden; });
byId("start").addEventListener("submit", newJob);
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value;
  sessionStorage.setItem("troupe-token", token);
  list();
});
list();
setInterval(list, 3000);
setInterval(show, 500);
