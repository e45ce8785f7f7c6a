// Line charts as SVG.

// Draws once the page is complete, and again whenever the width of `node` has changed.
const pictures = [];
function whenResized(node, draw) {
  let width = 0;
  const redraw = () => {
    if (node.clientWidth === width) return;
    width = node.clientWidth;
    draw();
  };
  pictures.push(redraw);
  new ResizeObserver(() => requestAnimationFrame(redraw)).observe(node);
}

// About `count` round numbers between low and high.
function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) found.push(Number((i * step).toPrecision(12)));
  return found;
}
function logTicks(low, high) {
  const found = [];
  for (let p = Math.floor(low); p <= Math.ceil(high); ++p)
    for (const m of high - low > 2.5 ? [1] : [1, 2, 5]) {
      const at = Math.log10(m) + p;
      if (at >= low - 1e-9 && at <= high + 1e-9) found.push(at);
    }
  return found.length > 1 ? found : [low, high];
}

// An exponential moving average whose first values are not drawn to zero.
function smoothed(points, weight) {
  if (!weight) return points;
  let sum = 0, mass = 0;
  return points.map(([x, y]) => {
    if (y === null) return [x, y];
    sum = sum * weight + y * (1 - weight);
    mass = mass * weight + (1 - weight);
    return [x, sum / mass];
  });
}

function path(points, toX, toY) {
  let text = "", pen = false;
  for (const [x, y] of points) {
    if (y === null) { pen = false; continue; }
    text += `${pen ? "L" : "M"}${toX(x).toFixed(1)} ${toY(y).toFixed(1)}`;
    pen = true;
  }
  return text;
}

// One chart: { title, series: [{ name, colour, dash, points: [[x, y or null]] }], marks: [{ x, text }], stairs,
// legend: [{ name, colour, dash }], by default the series }.
// `view` has what the controls chose: { smooth, log }.
class Chart {
  constructor(what, view) {
    this.what = what;
    this.view = view;
    this.plot = element("div", { class: "plot" });
    this.node = element("section", { class: "card chart" },
      element("div", { class: "head" }, element("h3", {}, what.title), this.legend()), this.plot);
    this.plot.addEventListener("pointermove", (event) => this.point(event));
    this.plot.addEventListener("pointerleave", () => this.leave());
    whenResized(this.plot, () => this.draw());
  }

  legend() {
    const named = this.what.legend ?? this.what.series, all = named.slice(0, 12).map((one) => element("span", {},
      shape("svg", { width: 18, height: 8 }, shape("line", {
        x1: 0, x2: 18, y1: 4, y2: 4, stroke: one.colour, "stroke-width": 2, "stroke-dasharray": one.dash })), one.name));
    const rest = named.length - all.length;
    return element("div", { class: "legend" }, ...all, rest > 0 ? `and ${rest} more` : undefined);
  }

  drawn() {
    const log = this.view.log && !this.what.stairs;
    return this.what.series.map((one) => {
      const scaled = (points) => log ? points.map(([x, y]) => [x, y > 0 ? Math.log10(y) : null]) : points;
      const smooth = this.what.stairs ? 0 : this.view.smooth;
      return { one, raw: scaled(one.points), line: scaled(smoothed(one.points, smooth)) };
    });
  }

  draw() {
    const width = this.plot.clientWidth, height = width < 420 ? 190 : 230;
    if (!width) return;
    const all = this.drawn(), log = this.view.log && !this.what.stairs;
    const points = all.flatMap(({ raw }) => raw).filter(([, y]) => y !== null);
    const values = points.map(([, y]) => y), places = all.flatMap(({ raw }) => raw).map(([x]) => x);
    const extent = (list, other) => list.length ? [list.reduce((a, b) => Math.min(a, b)), list.reduce((a, b) => Math.max(a, b))] : other;
    let [low, high] = extent(values, [0, 1]), [first, last] = extent(places, [0, 1]);
    if (this.what.stairs) low = Math.min(low, 0);
    // Values that are equal in 12 digits are drawn as equal: the axis could not count in steps between them.
    const range = high - low > Math.abs(high) * 1e-12 ? high - low : 0, room = range * 0.06 || Math.abs(high) * 0.1 || 1;
    if (low !== 0 || !this.what.stairs) low -= room;
    high += room;
    if (first === last) { first -= 1; last += 1; }
    const yTicks = log ? logTicks(low, high) : ticks(low, high, 4);
    const label = (y) => log ? short(10 ** y) : short(y);
    const left = 12 + Math.max(...yTicks.map((y) => label(y).length)) * 6.6, right = 12, top = 8, bottom = 34;
    const toX = (x) => left + (x - first) / (last - first) * (width - left - right);
    const toY = (y) => height - bottom - (y - low) / (high - low) * (height - top - bottom);
    const svg = shape("svg", { width, height, role: "img", "aria-label": this.what.title });
    for (const y of yTicks) svg.append(
      shape("line", { class: "grid", x1: left, x2: width - right, y1: toY(y), y2: toY(y) }),
      shape("text", { x: left - 7, y: toY(y) + 4, "text-anchor": "end" }, label(y)));
    for (const x of ticks(first, last, width / 80)) svg.append(
      shape("text", { x: toX(x), y: height - bottom + 17, "text-anchor": "middle" }, short(x)));
    svg.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
      shape("text", { x: width - right, y: height - 3, "text-anchor": "end" }, "step"));
    for (const mark of this.what.marks ?? [])
      if (mark.x >= first && mark.x <= last) svg.append(
        shape("line", { class: "failure-mark", x1: toX(mark.x), x2: toX(mark.x), y1: top, y2: height - bottom },
          shape("title", {}, mark.text)));
    for (const { one, raw, line } of all) {
      if (line !== raw && this.view.smooth && !this.what.stairs)
        svg.append(shape("path", { class: "line raw", d: path(raw, toX, toY), stroke: one.colour }));
      svg.append(shape("path", { class: "line", d: path(line, toX, toY), stroke: one.colour, "stroke-dasharray": one.dash }));
      const seen = line.filter(([, y]) => y !== null);
      if (seen.length <= 24) for (const [x, y] of seen)
        svg.append(shape("circle", { cx: toX(x), cy: toY(y), r: seen.length === 1 ? 4 : 2.6, fill: one.colour }));
    }
    this.hover = shape("g", {});
    svg.append(this.hover);
    this.scale = { all, toX, toY, left, right, top, bottom, width, height, first, last, label };
    this.tip?.remove();
    this.plot.replaceChildren(svg);
  }

  point(event) {
    const s = this.scale;
    if (!s) return;
    const at = event.clientX - this.plot.getBoundingClientRect().left;
    const x = s.first + (at - s.left) / (s.width - s.left - s.right) * (s.last - s.first);
    const near = s.all.map(({ one, line }) => {
      const seen = line.filter(([, y]) => y !== null);
      return { one, at: seen.reduce((best, p) => !best || Math.abs(p[0] - x) < Math.abs(best[0] - x) ? p : best, null) };
    }).filter((n) => n.at);
    if (!near.length) return;
    const step = near.reduce((best, n) => Math.abs(n.at[0] - x) < Math.abs(best - x) ? n.at[0] : best, near[0].at[0]);
    this.hover.replaceChildren(
      shape("line", { class: "cross", x1: s.toX(step), x2: s.toX(step), y1: s.top, y2: s.height - s.bottom }),
      ...near.map((n) => shape("circle", { cx: s.toX(n.at[0]), cy: s.toY(n.at[1]), r: 3.6, fill: n.one.colour })));
    this.tip?.remove();
    this.tip = element("div", { class: "tip" }, element("div", { class: "quiet" }, `step ${number(step)}`),
      ...near.slice(0, 12).map((n) => element("div", {}, element("span", { class: "dot", style: `background:${n.one.colour}` }),
        n.one.name, element("b", {}, this.view.log && !this.what.stairs ? number(10 ** n.at[1]) : number(n.at[1])))));
    this.plot.append(this.tip);
    const place = s.toX(step) + 12;
    this.tip.style.left = `${place + this.tip.offsetWidth > s.width ? Math.max(0, place - 24 - this.tip.offsetWidth) : place}px`;
  }

  leave() {
    this.tip?.remove();
    this.hover?.replaceChildren();
  }
}
