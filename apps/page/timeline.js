// The life of a run from its events: generations as bars, failures, checkpoints and requests as marks.

// Time as it is drawn: a pause between two calls of the program takes a fixed width.
class Clock {
  constructor(times, breaks) {
    this.parts = [];
    let from = times[0], before = 0;
    for (const [end, next] of breaks) {
      this.parts.push({ from, to: end, before });
      before += end - from;
      from = next;
    }
    this.parts.push({ from, to: times[times.length - 1], before });
    this.total = before + times[times.length - 1] - from;
  }
  place(time) {
    let index = 0;
    while (index + 1 < this.parts.length && time >= this.parts[index + 1].from) ++index;
    const part = this.parts[index];
    return { active: part.before + Math.min(Math.max(time - part.from, 0), part.to - part.from), index };
  }
}

// [end, next begin] of each pause: after the end of a job, or where a killed program was followed by another one.
function pauses(events) {
  const found = [], span = events[events.length - 1].at - events[0].at;
  events.forEach((event, i) => {
    const before = events[i - 1];
    if (!before || event.event !== "generation_forming") return;
    const ends = before.event === "job_ended" || event.generation <= (before.generation ?? 0);
    if (ends && event.at - before.at > Math.max(5000, span * 0.05)) found.push([before.at, event.at]);
  });
  return found;
}

function generations(events, end) {
  const all = [];
  let open = null;
  const close = (at) => { if (open) open.end = at; open = null; };
  for (const event of events) {
    if (event.event === "generation_forming") {
      close(event.at);
      all.push(open = { number: event.generation, forming: event.at, cause: event.details.cause, step: event.step });
    } else if (event.event === "generation_active" && open) {
      open.active = event.at;
      open.ranks = event.details.ranks;
    } else if (event.event === "generation_closing" && open) {
      open.closing = event.at;
    } else if (event.event === "generation_closed" || event.event === "job_ended") {
      close(event.at);
    }
  }
  close(end);
  return all;
}

// A generation that gives way to another number of processes. The request came at most a step before.
function isScaled(event) { return event.event === "generation_closing" && event.details.why === "scaled"; }

const ROWS = [
  ["failures", (e) => e.event === "rank_failed" || e.event === "survivor" || e.event === "trouble"],
  ["checkpoints", (e) => e.event === "checkpoint_written" || e.event === "checkpoint_failed"],
  ["requests", (e) => e.event === "stop_requested" || e.event === "stop_agreed" || isScaled(e)],
];

function mark(event, x, y) {
  const title = shape("title", {}, eventText(event));
  if (event.event.startsWith("checkpoint"))
    return shape("path", { class: event.event === "checkpoint_failed" ? "checkpoint failed" : "checkpoint",
      d: `M${x} ${y - 6}l5 6l-5 6l-5 -6z` }, title);
  if (isScaled(event))
    return shape("path", { class: "scale", d: `M${x} ${y - 8}l4.5 6h-9zM${x} ${y + 8}l4.5 -6h-9z` }, title);
  if (event.event.startsWith("stop")) return shape("rect", { class: "stop", x: x - 4.5, y: y - 4.5, width: 9, height: 9, rx: 2 }, title);
  return shape("path", { class: "failure", d: `M${x - 4.5} ${y - 4.5}l9 9M${x + 4.5} ${y - 4.5}l-9 9` }, title);
}

function eventText(event) {
  const parts = [isScaled(event) ? "scale request" : words(event.event)];
  for (const name of ["rank", "generation", "step"])
    if (typeof event[name] === "number") parts.push(`${name} ${event[name]}`);
  for (const [name, value] of Object.entries(event.details)) parts.push(`${name}: ${value}`);
  return parts.join(", ");
}

// The steps of failures, for charts.
function failureMarks(events) {
  return events.filter((e) => e.event === "rank_failed" && typeof e.step === "number").slice(-100)
    .map((e) => ({ x: e.step, text: eventText(e) }));
}

class Timeline {
  constructor(run, made) {
    this.events = run.events.list;
    const last = this.events[this.events.length - 1].at;
    this.end = run.state === "running" ? Math.max(made, last) : last;
    this.bars = generations(this.events, this.end);
    this.clock = new Clock([this.events[0].at, this.end], pauses(this.events));
    this.rows = ROWS.map(([name, wanted]) => [name, this.events.filter(wanted)]).filter(([, list]) => list.length);
    this.node = element("div", { class: "plot timeline" });
    whenResized(this.node, () => this.draw());
  }

  draw() {
    const width = this.node.clientWidth;
    if (!width) return;
    const left = 88, right = 14, row = 30, gap = 16, top = 4, rows = this.rows.length + 1;
    const height = top + row * rows + 24, room = width - left - right - gap * (this.clock.parts.length - 1);
    const toX = (time) => {
      const { active, index } = this.clock.place(time);
      return left + (this.clock.total ? active / this.clock.total * room : 0) + index * gap;
    };
    const middle = (index) => top + row * index + row / 2;
    const svg = shape("svg", { width, height, role: "img", "aria-label": "timeline" });
    const write = (x, y, text, anchor, kind) => svg.append(shape("text", { x, y, "text-anchor": anchor, class: kind }, text));
    this.clock.parts.slice(1).forEach((part) => svg.append(shape("rect", { class: "pause", x: toX(part.from) - gap + 2, y: top,
      width: gap - 4, height: row * rows }, shape("title", {}, "a pause between two calls of the program"))));
    for (const second of ticks(0, this.clock.total / 1000, width / 130)) {
      const part = this.clock.parts.findLast((p) => p.before <= second * 1000), x = toX(part.from + second * 1000 - part.before);
      svg.append(shape("line", { class: "grid", x1: x, x2: x, y1: top, y2: top + row * rows }));
      write(x, height - 5, second === 0 ? "0" : duration(second), "middle");
    }
    write(left - 12, middle(0) + 4, "generations", "end");
    for (const bar of this.bars) this.drawBar(svg, bar, toX, middle(0));
    this.rows.forEach(([name, list], i) => {
      write(left - 12, middle(i + 1) + 4, name, "end");
      svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: middle(i + 1), y2: middle(i + 1) }),
        ...list.map((event) => mark(event, Number(toX(event.at).toFixed(1)), middle(i + 1))));
    });
    this.node.replaceChildren(svg);
  }

  drawBar(svg, bar, toX, y) {
    const colour = `var(--c${(bar.number + 7 - 1) % 7})`;
    const piece = (from, to, kind) => {
      if (from === undefined || to === undefined) return;
      const x = toX(from), wide = Math.max(toX(to) - x, 1.5);
      svg.append(shape("rect", { class: `generation ${kind}`, x, y: y - 11, width: wide, height: 22, rx: 4, fill: colour },
        shape("title", {}, `generation ${bar.number}, ${kind}${bar.ranks ? `, ${counted(bar.ranks, "rank")}` : ""}` +
          `${bar.cause ? `, after: ${bar.cause}` : ""}, ${duration((to - from) / 1000)}`)));
    };
    const active = bar.active ?? bar.closing ?? bar.end;
    piece(bar.forming, active, "forming");
    if (bar.active !== undefined) piece(bar.active, bar.closing ?? bar.end, "active");
    piece(bar.closing, bar.end, "closing");
    const wide = toX(bar.closing ?? bar.end) - toX(active);
    const text = [`${bar.number}`, `${bar.number}: ${counted(bar.ranks, "rank")}`, `generation ${bar.number}: ${counted(bar.ranks, "rank")}`]
      .findLast((t) => t.length * 6.6 + 14 < wide);
    if (text && bar.active !== undefined)
      svg.append(shape("text", { class: "in-bar", x: toX(active) + 7, y: y + 4 }, text));
  }
}

// Steps per second between moments at which the committed step is known: when a checkpoint was written.
function speeds(events) {
  const found = [];
  let before = null;
  for (const event of events) {
    if (event.event === "generation_forming" && before) {
      found.push([before.step, null]);
      before = null;
    }
    if (event.event !== "checkpoint_written" || typeof event.step !== "number") continue;
    const here = { at: event.at, step: event.step + (Number(event.details.behind) || 0) };
    if (before && here.at > before.at && here.step > before.step) {
      const speed = (here.step - before.step) / (here.at - before.at) * 1000;
      found.push([before.step, speed], [here.step, speed]);
    }
    before = here;
  }
  return found;
}
