// The live canvas of a run: draws the charts that the kernel describes in `spec`, and their curves in `data`, one value
// per pixel column; asks for other columns when width or zoom change. A chart has two canvases, curves below and
// crosshair above, so that a moving pointer draws no curve. Names come from a run's files: they are set as text only.

const MARGIN = { left: 56, right: 16, top: 34, bottom: 24 };
const FRAME_COST = 72; // in curves; further charts are drawn in the next frame
const NEAR_PX = 22; // how near to a curve the pointer must be to raise it
const MANY = 8; // of more curves only the raised one has a band, and a value in the other charts
const KINDS = ["step", "samples", "time", "relative"];
const POINTER = ["down", "move", "up", "cancel", "leave"].map((kind) => `pointer${kind}`);
const EVENTS = [...POINTER, "blur", "dblclick", "keydown"];
const HELP = "drag: zoom · shift-drag: move · 0: all · ← →: crosshair · + −: zoom";
const TOUCH_HELP = "drag: zoom · double tap: all";

// --- the page -----------------------------------------------------------------------------------

function make(tag, className, parent, properties = {}) {
  const element = Object.assign(document.createElement(tag), { className, ...properties });
  parent?.append(element);
  return element;
}

/** Have the browser save a text as a file. */
export function save(name, text, type) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href, download: name.replace(/[^\w.-]+/g, "_") }).click();
  setTimeout(() => URL.revokeObjectURL(href), 1000);
}

const closest = (items, distance, limit) =>
  items.filter((item) => distance(item) <= limit).sort((a, b) => distance(a) - distance(b))[0];
const words = (...parts) => parts.filter(Boolean).join(" ");
const button = (parent, properties) => make("button", "", parent, { type: "button", ...properties });

/** Set a text only where it differs. */
const setText = (element, text) => element.textContent === text || (element.textContent = text);
/** Whether a value differs from the one that this object was last asked about. */
const isNew = (object, value) => object.seenValue !== (object.seenValue = JSON.stringify(value));

/** An entry of a legend: a line with its dashes and dots, or a triangle, and a text. */
function legendEntry(colour, { text, title = text, dash = [], dots = false, isTriangle = false }) {
  const element = make("span", "nbt-entry", null, { title, text });
  const kind = isTriangle ? "triangle" : dash.length ? "dashed" : "solid";
  make("i", `nbt-sample nbt-${kind}${dots ? " nbt-dots" : ""}`, element).style.color = colour;
  return Object.assign(element, { label: make("span", "", element, { textContent: text, dir: "auto" }) });
}

const polyline = (...points) => new Path2D(`M${points.join("L")}`);
const box = (x, y, width, height) => polyline([x, y], [x + width, y], [x + width, y + height], [x, y + height], [x, y]);
const disc = (x, y, r) => new Path2D(`M${x - r},${y}a${r},${r} 0 1 1 ${2 * r},0a${r},${r} 0 1 1 ${-2 * r},0Z`);

/** Stroke and fill a path; dashes are in widths of the line, which lines of the width `hair` can make up together. */
function paint(ctx, path, { stroke, fill, width = 1, hair = width, dash = [], opacity = 1, clip }) {
  const count = Math.ceil(width / hair), gap = (width - hair) / Math.max(1, count - 1);
  ctx.save();
  if (clip) ctx.clip(clip);
  Object.assign(ctx, { globalAlpha: opacity, lineWidth: hair, lineJoin: "round" });
  Object.assign(ctx, { strokeStyle: stroke, fillStyle: fill });
  ctx.setLineDash(dash.map((length) => length * width));
  ctx.translate(0, (hair - width) / 2);
  for (let k = 0; stroke && k < count; k++, ctx.translate(0, gap)) ctx.stroke(path);
  if (fill) ctx.fill(path);
  ctx.restore();
}

// --- one chart ----------------------------------------------------------------------------------

class Chart {
  isDirty = true; // the curves must be drawn again
  isSeen = true; // in the viewport

  constructor(owner, key) {
    Object.assign(this, { owner, key, root: make("div", "nbt-chart") });
    owner.charts.set(key, this);
    owner.seen.observe(this.root);
    const canvas = (properties) => make("canvas", "", this.root, properties).getContext("2d");
    this.layers = [this.base, this.top] = [canvas(), canvas({ tabIndex: 0, role: "img" })];
    const head = make("div", "nbt-head", this.root);
    this.title = make("div", "nbt-title", head, { dir: "auto" });
    const tools = make("div", "nbt-tools", head);
    this.log = button(tools, { textContent: "log", onclick: () => owner.send({ log: key }) });
    const csv = { textContent: "csv", title: "Save the values as CSV" };
    button(tools, { ...csv, onclick: () => save(`${this.spec.title}.csv`, this.csv(), "text/csv") });
    this.limits = make("input", "nbt-limits", tools, { placeholder: "y: auto", title: "Limits of y, as in 0 to 3" });
    this.limits.onkeydown = (event) => event.stopPropagation();
    this.limits.onchange = () => owner.send({ y: key, limits: limitsIn(this.limits.value) });
    this.whole = button(tools, { textContent: "⤢", onclick: () => owner.send({ only: owner.spec.only ? "" : key }) });
    this.fold = button(tools, { textContent: "–", onclick: () => owner.send({ open: [key], is_open: false }) });
    this.badge = make("div", "nbt-badge", this.root);
    this.legend = make("div", "nbt-legend", head);
    const react = (event) => owner[event.type](this, event);
    for (const type of EVENTS) this.top.canvas.addEventListener(type, react, owner.stopping);
  }

  /** Take what the kernel says that this chart is. */
  update(spec, hasRuns, alt) {
    const { title, series, is_log: isLog } = spec, hasLabels = !hasRuns || new Set(series.map((s) => s.label)).size > 1;
    for (const s of series) s.text = words(s.run, hasLabels && s.label);
    const densest = series.reduce((best, s) => (s.n > best.n ? s : best), { n: 0, x: [] });
    Object.assign(this, { spec, series, densest, hasRuns, isDirty: true });
    Object.assign(this.log, { hidden: !spec.can_log, ariaPressed: String(isLog), title: "Logarithmic axis" });
    setText(Object.assign(this.title, { title }), title);
    Object.assign(this.fold, { title: `Fold ${title}`, hidden: Boolean(this.owner.spec.only) });
    Object.assign(this.whole, { title: `${title} in full size`, ariaPressed: String(this.fold.hidden) });
    const limits = spec.is_fixed ? spec.y.map((y) => formatNumber(isLog ? 10 ** y : y)).join(" to ") : "";
    this.limits.ariaLabel = `Limits of y of ${title}`;
    if (document.activeElement !== this.limits) this.limits.value = limits;
    setText(Object.assign(this.badge, { hidden: !spec.badge }), spec.badge?.text ?? "");
    this.top.canvas.ariaLabel = `${title}, ${alt}: ${series.map((s) => words(s.text, s.value)).join(", ")}`;
    this.showLegend();
  }
  /** The values of all curves, those of a column as their mean. */
  csv() {
    const cell = (text) => `"${String(text ?? "").replaceAll('"', '""')}"`;
    const row = (s) => (x, i) => [cell(s.run), cell(s.name), x, s.mean[i]].join(",");
    const rows = this.series.flatMap((s) => [...s.x].map(row(s)));
    return [`run,metric,${this.owner.spec.x.label},value`, ...rows, ""].join("\n");
  }
  /** Names and last values in the title's line; entries without room are left out from the end. */
  showLegend() {
    const { owner, series, hasRuns } = this, { marks } = this.spec;
    const withText = (s) => ({ ...s, title: s.name, text: words(s.text, s.value) });
    const checkpoint = marks.length && !hasRuns ? [{ text: "checkpoint", colour: "text", isTriangle: true }] : [];
    const entries = [...series.map(withText), ...checkpoint];
    if (!isNew(this.legend, entries.map((e) => [e.text, owner.colour(e.colour), e.dash, e.dots, e.name]))) return;
    this.entries = entries.map((entry) => {
      const element = legendEntry(owner.colour(entry.colour), entry);
      return entry.name ? owner.raises(element, { chart: this.key, name: entry.name }) : element;
    });
    this.legend.classList.toggle("nbt-lone", entries.length === 1 && !hasRuns);
    this.legend.replaceChildren(...this.entries);
    this.readOut(null);
  }

  resize(width, height, scale) {
    Object.assign(this, { width, height, scale, isDirty: true });
    this.root.style.height = `${height}px`;
    this.plot = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
    const { left, right, top, bottom } = this.plot;
    this.clip = box(left, top - 2, right - left + 2, bottom - top + 4);
    for (const ctx of this.layers) {
      Object.assign(ctx.canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
      ctx.setTransform(scale, 0, 0, scale, 0, 0);
    }
  }

  /** Functions to pixels: from x, from a value (NaN if it has no logarithm), from a position on the y axis. */
  get scales() {
    const { left, right, top, bottom } = this.plot, [from, to] = this.owner.limits, [low, high] = this.spec.y;
    const xScale = (right - left) / (to - from), yScale = (bottom - top) / (high - low);
    const toY = (y) => bottom - (y - low) * yScale;
    return [(x) => left + (x - from) * xScale, this.spec.is_log ? (y) => toY(y > 0 ? Math.log10(y) : NaN) : toY, toY];
  }
  fromX(pixel) {
    const { left, right } = this.plot, [from, to] = this.owner.limits;
    return from + ((Math.min(right, Math.max(left, pixel)) - left) / (right - left)) * (to - from);
  }
  isInside = (x) => x >= this.plot.left - 1 && x <= this.plot.right + 1;
  isWithin = (y) => y >= this.plot.top - 2 && y <= this.plot.bottom + 2;
  across = (y) => polyline([this.plot.left, y], [this.plot.right, y]);
  upright = (x, top = this.plot.top) => polyline([x, this.plot.bottom], [x, top]);

  /** Draw the curves and all that does not move with the pointer; return what it cost, in curves. */
  draw() {
    const { base: ctx, owner, series, spec } = this, { veil, badge } = spec, [toX, toY] = this.scales;
    const { run, chart, name } = owner.raised ?? {}; // the others of that chart, or of all charts, become faint
    const opacity = (s) => ((run && s.run !== run) || (chart === this.key && s.name !== name) ? 0.15 : 1);
    const style = (s, width, faint = 1) => ({ stroke: owner.colour(s.colour), width, opacity: faint * opacity(s) });
    ctx.clearRect(0, 0, this.width, this.height);
    ctx.save();
    ctx.clip(this.clip);
    const banded = series.filter((s) => s.is_smoothed && (series.length <= MANY || (run && s.run === run)));
    for (const s of banded) {
      if (s.is_band) paint(ctx, this.area(s), { fill: owner.colour(s.colour), opacity: 0.2 * opacity(s) });
      else paint(ctx, this.path(s, s.low, s.high), style(s, 1, 0.38));
    }
    // A line of one device pixel costs a sixth of a wider one.
    const thin = series.length > MANY ? { hair: 1 / this.scale } : {};
    for (const s of [...series].sort((a, b) => opacity(a) - opacity(b))) {
      s.path = s.is_smoothed || s.is_exact ? this.path(s, s.bold, s.bold) : this.path(s, s.low, s.high);
      paint(ctx, s.path, { ...style(s, s.width), dash: s.dash, ...thin });
      paint(ctx, this.dots(s), { fill: owner.colour(s.colour), opacity: opacity(s) });
    }
    ctx.restore();
    if (Number.isFinite(veil)) { // dim the part of a resumed run's parent
      Object.assign(ctx, { globalCompositeOperation: "destination-out", fillStyle: "rgb(0 0 0 / 60%)" });
      ctx.fillRect(0, 0, Math.max(0, toX(veil)), this.height);
    }
    ctx.globalCompositeOperation = "destination-over"; // behind the curves, and not dimmed
    this.drawAxes(ctx);
    ctx.globalCompositeOperation = "source-over";
    this.drawCuts(ctx, toX);
    for (const { kind, x, y } of spec.marks) this.drawMark(ctx, kind, toX(x), toY(y ?? NaN));
    if (badge) this.drawAlarm(ctx, toX(badge.x));
    this.isDirty = false;
    return series.length + 4; // the axes cost as much as some curves
  }

  /** A line through the lowest and the highest value of each column within the limits, the nearer first, with gaps. */
  path({ x, n }, low, high) {
    const path = new Path2D(), [toX, toY] = this.scales, floor = this.plot.bottom + 4;
    const [start, stop] = this.owner.limits.map((limit) => nearest(x, limit)); // and a neighbour on each side
    for (let i = Math.max(0, start - 1), last = NaN; i < Math.min(n, stop + 2); i++) {
      const at = toX(x[i]), top = toY(high[i]), isGap = !Number.isFinite(top), least = toY(low[i]);
      const bottom = isGap || Number.isFinite(least) ? least : floor; // no logarithm
      const first = Math.abs(last - top) < Math.abs(last - bottom) ? top : bottom, second = top + bottom - first;
      if (Number.isNaN(last)) path.moveTo(at, first); // what is not finite is ignored
      else path.lineTo(at, first);
      if (second !== first) path.lineTo(at, second);
      last = isGap ? NaN : second;
    }
    return path;
  }

  /** The area between the lowest and the highest value of each column. */
  area({ x, low, high }) {
    const [toX, toY] = this.scales, edge = (ys) => [...x].map((at, i) => [toX(at), toY(ys[i])]);
    return polyline(...[...edge(high), ...edge(low).reverse()].filter(([, y]) => Number.isFinite(y)));
  }

  /** Points of a sparse curve, and any point between two gaps, where a line draws nothing. */
  dots({ n, x, bold, dots }) {
    const path = new Path2D(), [toX, toY] = this.scales, isShown = (i) => Number.isFinite(toY(bold[i] ?? NaN));
    const isDot = (i) => (dots || (!isShown(i - 1) && !isShown(i + 1))) && isShown(i);
    for (let i = 0; i < n; i++) if (isDot(i)) path.addPath(disc(toX(x[i]), toY(bold[i]), 2.4));
    return path;
  }
  drawAxes(ctx) {
    const { plot, owner, spec } = this, { text, muted } = owner.ink, [toX, , toY] = this.scales;
    const sharp = (y) => Math.round(y) + 0.5;
    paint(ctx, this.across(plot.bottom + 0.5), { stroke: text, opacity: 0.27 });
    for (const [value] of spec.y_ticks) paint(ctx, this.across(sharp(toY(value))), { stroke: text, opacity: 0.1 });
    Object.assign(ctx, { fillStyle: muted, font: owner.font(10.5), textAlign: "right", textBaseline: "middle" });
    for (const [value, label] of spec.y_ticks) ctx.fillText(label, plot.left - 7, sharp(toY(value)), plot.left - 10);
    Object.assign(ctx, { textAlign: "center", textBaseline: "top" });
    for (const [value, label] of spec.x_ticks) {
      const x = toX(value), right = this.width - 2 - ctx.measureText(label).width / 2;
      if (this.isInside(x)) ctx.fillText(label, Math.min(x, right), plot.bottom + 7);
    }
  }
  /** A thin line where the run was resumed or restarted, and the label of a resume. */
  drawCuts(ctx, toX) {
    const { plot, owner } = this, { muted, page } = owner.ink;
    Object.assign(ctx, { font: owner.font(10), textBaseline: "top", textAlign: "left", fillStyle: muted });
    Object.assign(ctx, { strokeStyle: page, lineWidth: 3 });
    for (const [at, label] of this.spec.cuts) {
      const x = Math.round(toX(at)) + 0.5, { width } = ctx.measureText(label);
      if (!this.isInside(x)) continue;
      paint(ctx, this.upright(x), { stroke: muted, dash: [2, 2] });
      const left = x + 5 + width > plot.right ? x - 5 - width : x + 5;
      ctx.strokeText(label, left, plot.top + 1);
      ctx.fillText(label, left, plot.top + 1);
    }
  }
  /** A triangle on the floor for a checkpoint, a ring at its evaluation; the best one is filled. */
  drawMark(ctx, kind, x, y) {
    const { plot, owner } = this, stroke = owner.colour("evaluation"), floor = plot.bottom - 1;
    if (!this.isInside(x)) return;
    const triangle = polyline([x, floor - 7], [x + 4, floor], [x - 4, floor], [x, floor - 7]);
    paint(ctx, triangle, { stroke: owner.ink.page, fill: owner.colour("text"), width: 1.6 });
    if (this.isWithin(y)) paint(ctx, disc(x, y, 4.6), { stroke, fill: kind === "best" && stroke, width: 1.3 });
  }
  /** Where values are not finite. */
  drawAlarm(ctx, x) {
    const { plot, owner } = this, alarm = owner.colour("alarm"), y = plot.top + 30;
    this.badge.style.background = alarm;
    if (!this.isInside(x)) return;
    paint(ctx, this.upright(x, y), { stroke: alarm, width: 1.2, dash: [1, 2] });
    const cross = new Path2D(`M${x - 3},${y - 3}l6,6m0,-6l-6,6`);
    for (const [stroke, width] of [[owner.ink.page, 4.6], [alarm, 2.8]]) paint(ctx, cross, { stroke, width });
  }

  /** The value of each curve at x; `where` names the point of a sparse curve that lies elsewhere. */
  read(x, shown) {
    const [toX, toY] = this.scales, { x: axis } = this.owner.spec;
    return shown.flatMap((series) => {
      const i = nearest(series.x, x), at = toX(series.x[i]);
      if (i < 0 || !this.isInside(at)) return [];
      const mean = series.mean[i], low = series.low[i], high = series.high[i];
      return {
        ...{ series, x: at, y: toY(mean), mean },
        value: formatNumber(mean, series.is_exact ? 6 : 4),
        range: (series.is_band || !series.is_exact) && low < high
          ? `[${formatNumber(low)}, ${formatNumber(high)}]` : "",
        where: Math.abs(at - toX(x)) > 1.5 ? `at ${formatX(series.x[i], axis)}` : "",
      };
    });
  }

  /** Draw crosshair and selection; return the values, of which `hot` is the curve near the pointer. */
  drawTop(cross, selection) {
    const { top: ctx, plot, owner } = this, [toX] = this.scales, { accent, text, page } = owner.ink;
    ctx.clearRect(0, 0, this.width, this.height);
    if (selection) {
      const [a, b] = [selection.from, selection.to].map(toX);
      paint(ctx, box(a, plot.top, b - a, plot.bottom - plot.top), { fill: accent, opacity: 0.14 });
      for (const x of [a, b]) paint(ctx, this.upright(x), { stroke: accent, opacity: 0.7 });
    }
    const isHot = (s) => (s.run ? s.run === owner.hot?.run : s === owner.hot), isHere = cross?.chart === this;
    const read = isHere || this.series.length <= MANY ? this.series : this.series.filter(isHot);
    const rows = cross ? this.read(cross.x, read) : [], x = cross && Math.round(toX(cross.x)) + 0.5;
    const near = cross && rows.length > 1 && closest(rows, ({ y }) => Math.abs(y - (cross.y ?? NaN)), NEAR_PX);
    if (isHere) owner.hot = near?.series;
    const hot = rows.find(({ series }) => isHot(series));
    if (cross && this.isInside(x)) paint(ctx, this.upright(x), { stroke: text, opacity: 0.4 });
    const { path, width, dash } = hot?.series ?? {};
    if (path) paint(ctx, path, { stroke: owner.colour(hot.series.colour), width: width + 1.2, dash, clip: this.clip });
    for (const row of rows.filter(({ y }) => this.isWithin(y))) {
      const radius = row === hot ? 4.2 : rows.length > MANY ? 2.2 : 3.2, stroke = radius > 3 && page;
      paint(ctx, disc(row.x, row.y, radius), { fill: owner.colour(row.series.colour), stroke, width: 1.5 });
    }
    this.readOut(cross && !isHere ? rows : null, hot);
    return cross && { rows, hot };
  }

  /** Show the values at the crosshair of another chart in the title's line; of compared runs only the raised one. */
  readOut(rows, hot) {
    this.series.forEach((series, i) => {
      const row = rows?.find((each) => each.series === series), { label, text } = this.entries[i];
      setText(label, row ? words(series.text, row.value, row.range) : text);
      this.entries[i].hidden = this.hasRuns && (!row || row !== hot);
    });
  }
  /** The checkpoint whose triangle is near the pointer. */
  markAt({ x, y }) {
    const [toX] = this.scales, isOnFloor = y === null || y >= this.plot.bottom - NEAR_PX;
    return isOnFloor && closest(this.spec.marks, (each) => Math.abs(toX(each.x) - toX(x)), 7);
  }
}

// --- all charts ---------------------------------------------------------------------------------

class Canvas {
  spec = { x: { limits: [0, 1], full: [0, 1] }, charts: [] };
  charts = new Map();
  open = []; // the charts in their order
  sections = new Map(); // by name: heading, and the place for buttons of closed charts
  asked = null; // a zoom that the kernel has not answered yet: {span, patience, time}
  cross = null; // {x, chart, y}: where the crosshair stands; y is null for keys
  drag = null; // {kind, chart, from, to, …}
  isVisible = this.isSeen = true; // seen: in the viewport; visible: and so is the page
  name = Math.random().toString(36).slice(2); // a widget may be shown several times
  timers = new Map();
  stopping = new AbortController();
  close = () => this.stopping.abort();
  constructor(model, el) {
    const root = make("div", "nbt-canvas mathjax_ignore tex2jax_ignore", el), bar = make("div", "nbt-bar", root);
    Object.assign(this, { model, el, root, bar });
    this.kinds = make("div", "nbt-kinds", bar, { role: "group", ariaLabel: "x axis" });
    for (const x of KINDS) button(this.kinds, { textContent: x, value: x, onclick: () => this.send({ x }) });
    this.filter = make("input", "nbt-filter", bar, {
      ...{ type: "search", placeholder: "filter: grad*", ariaLabel: "Show the metrics whose names match" },
      oninput: () => this.later("filter", 200, () => this.send({ filter: this.filter.value })),
      onkeydown: (event) => event.stopPropagation(),
    });
    this.chip = button(bar, { className: "nbt-chip", title: "Show all", hidden: true, onclick: () => this.zoom(null) });
    make("span", "nbt-help", bar, { textContent: matchMedia("(hover: none)").matches ? TOUCH_HELP : HELP });
    this.runs = make("div", "nbt-runs", root, { hidden: true });
    this.message = make("div", "nbt-message", root, { hidden: true });
    this.grid = make("div", "nbt-grid", root, { role: "group" });
    this.live = make("div", "nbt-live", root, { ariaLive: "polite" });
    this.tip = make("div", "nbt-tip", root, { hidden: true, ariaHidden: "true" }); // the live region says the same
    this.watch();
    this.change();
  }

  /** Follow the size of the output, the theme, and whether any of it is on the screen. */
  watch() {
    const { signal } = this.stopping, change = () => this.change();
    const on = (target, type, action) => target.addEventListener(type, action, { signal });
    const resized = new ResizeObserver(() => this.resize()), themed = new MutationObserver(() => this.retheme());
    this.seen = new IntersectionObserver((entries) => this.see(entries));
    this.model.on("change:version", change);
    this.model.on("msg:custom", this.hear);
    resized.observe(this.root);
    this.seen.observe(this.root);
    themed.observe(document.body, { attributeFilter: ["class", "data-jp-theme-light", "data-jp-theme-name"] });
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.retheme());
    on(document, "visibilitychange", () => this.see([]));
    on(window, "resize", () => this.resize()); // the density of pixels changes with it
    this.later("ready", 60, () => this.tellReady()); // an output that is not shown has no size yet
    signal.addEventListener("abort", () => {
      this.model.off("change:version", change);
      this.model.off("msg:custom", this.hear);
      for (const observer of [resized, this.seen, themed]) observer.disconnect();
      for (const timer of this.timers.values()) clearTimeout(timer);
      cancelAnimationFrame(this.frame);
    });
  }

  /** Run an action once, some time after the last call with this name. */
  later(name, ms, action) {
    clearTimeout(this.timers.get(name));
    this.timers.set(name, setTimeout(action, ms));
  }

  /** Tell the kernel; without a kernel the page works on with the columns that it has. */
  send(message) {
    try { this.model.send(message); } catch (error) { this.el.dataset.unsent = String(error); }
  }
  hear = ({ file, text }) => this.isSeen && save(file, text, "text/html");
  tellReady = () => this.sentWidth ?? this.send({ ready: true, width: (this.sentWidth = this.width) });
  see(entries) {
    const seen = new Map(entries.map(({ target, isIntersecting }) => [target, isIntersecting]));
    for (const part of [this, ...this.open]) part.isSeen = seen.get(part.root) ?? part.isSeen;
    const isVisible = this.isSeen && !document.hidden;
    if (isVisible !== this.isVisible) this.send({ visible: (this.isVisible = isVisible), view: this.name });
    this.request();
  }
  get limits() { return this.asked ? (this.asked.span ?? this.spec.x.full) : this.spec.x.limits; }
  change() {
    const spec = this.model.get("spec"), { children } = this.grid;
    this.retheme();
    if (!spec?.x) return;
    const isWanted = ({ key }) => !spec.only || key === spec.only;
    const charts = unpack(spec, this.model.get("data")).filter(isWanted), open = charts.filter((chart) => chart.open);
    const runs = new Map(open.flatMap((chart) => chart.series).filter((s) => s.run).map((s) => [s.run, s]));
    if (spec.x.kind !== this.spec.x.kind) this.asked = this.cross = null; // positions on another axis
    Object.assign(this, { spec, isTopDirty: true });
    this.settle();
    for (const [key, chart] of [...this.charts].filter(([name]) => !open.some((each) => each.key === name))) {
      this.charts.delete(key);
      if (this.cross?.chart === chart) this.cross = this.drag = null;
    }
    this.open = [];
    const sections = [...Map.groupBy(charts, ({ section }) => section)];
    const parts = sections.flatMap((section) => this.showSection(...section));
    for (const each of [...children]) if (!parts.includes(each)) each.remove();
    // What stays keeps its element, and with it the focus.
    parts.forEach((part, i) => part === children[i] || this.grid.insertBefore(part, children[i] ?? null));
    setText(Object.assign(this.message, { hidden: !spec.message }), spec.message);
    this.showBar(charts.length > 0);
    this.showRuns(runs);
    this.resize();
  }
  showBar(hasCharts) {
    const { x, filter } = this.spec, shown = x.kinds ?? KINDS;
    Object.assign(this.bar, { hidden: !hasCharts && !filter }), (this.kinds.hidden = shown.length < 2);
    for (const kind of this.kinds.children) {
      const name = kind.value, textContent = (name === "step" && x.step) || name;
      Object.assign(kind, { textContent, hidden: !shown.includes(name), ariaPressed: String(name === x.kind) });
    }
    if (document.activeElement !== this.filter) this.filter.value = filter;
    this.showChip();
  }
  showChip() {
    this.chip.hidden = !(this.asked ? this.asked.span : this.spec.x.is_zoomed);
    setText(this.chip, `zoomed ${this.limits.map((x) => formatX(x, this.spec.x)).join("–")} ✕`);
  }

  /** The legend of compared runs, one for all charts. */
  showRuns(runs) {
    this.runs.hidden = !runs.size;
    if (!isNew(this.runs, [...runs.values()].map((s) => [s.run, s.colour, s.dash]))) return;
    const item = ({ run, colour, dash }) => this.raises(legendEntry(this.colour(colour), { text: run, dash }), { run });
    this.runs.replaceChildren(...[...runs.values()].map(item));
  }
  /** The elements of a section: its heading, its open charts, and buttons of the others unless all are closed. */
  showSection(name, charts) {
    const made = () => [button(null, { className: "nbt-section" }), make("div", "nbt-folded")];
    const [head, folded] = this.sections.get(name) ?? made(), { only, alt } = this.spec;
    const open = charts.filter((chart) => chart.open);
    this.sections.set(name, [head, folded]);
    const keys = charts.map(({ key }) => key), onclick = () => this.send({ open: keys, is_open: !open.length });
    Object.assign(head, { hidden: !name || Boolean(only), ariaExpanded: String(open.length > 0), onclick });
    setText(head, `${name} · ${charts.length} chart${charts.length > 1 ? "s" : ""}`);
    const closed = name && !open.length ? [] : charts.filter((chart) => !chart.open);
    const label = ({ title, names }) => words(title, names > 1 && `· ${names} metrics`);
    const show = ({ key }) => () => this.send({ open: [key], is_open: true });
    const chip = (chart) => button(null, { textContent: label(chart), onclick: show(chart), dir: "auto" });
    if (isNew(folded, closed.map((chart) => [chart.key, label(chart)]))) folded.replaceChildren(...closed.map(chip));
    const drawn = open.map((chart) => this.charts.get(chart.key) ?? new Chart(this, chart.key));
    drawn.forEach((each, i) => each.update(open[i], Boolean(open[i].series[0]?.run), alt));
    this.open.push(...drawn);
    return [head, ...drawn.map(({ root }) => root), folded];
  }

  resize() {
    const width = this.root.clientWidth, scale = window.devicePixelRatio || 1;
    if (!width) return;
    this.retheme(); // outside of a page nothing has a colour
    const size = layout((this.width = width), this.open.length, Boolean(this.spec.only));
    const wanted = [size.width, size.height, scale];
    this.grid.style.gridTemplateColumns = `repeat(${size.columns}, ${size.width}px)`;
    for (const chart of this.open) if (isNew(chart, wanted)) chart.resize(...wanted);
    this.tellReady();
    const tell = () => this.send({ width: (this.sentWidth = this.width) });
    if (width !== this.sentWidth) this.later("width", this.sentWidth && 150, tell);
    this.request();
  }
  retheme() {
    const style = getComputedStyle(this.root), value = (name) => style.getPropertyValue(`--nbt-${name}`).trim();
    const ink = { text: style.color, muted: value("muted"), page: value("page"), accent: value("accent") };
    const palette = this.model.get("palette") ?? {}, family = style.fontFamily;
    if (!isNew(this, [ink, palette, family])) return;
    Object.assign(this, { ink, palette, family, isTopDirty: true });
    this.open.forEach((chart) => chart.showLegend());
    this.redraw();
  }
  colour = (role) => this.palette[role] ?? this.ink[role] ?? this.ink.text;
  font = (size) => `${size}px ${this.family}`;
  /** Let an entry of a legend raise its curve, or its run in all charts, while the pointer is on it. */
  raises(element, wanted) {
    const raise = (raised) => Object.assign(this, { raised }).redraw();
    return Object.assign(element, { onpointerenter: () => raise(wanted), onpointerleave: () => raise(null) });
  }

  request = () => this.frame || !this.isVisible || !this.width || (this.frame = requestAnimationFrame(this.paint));
  redraw() {
    for (const chart of this.open) chart.isDirty = true;
    this.request();
  }
  paint = () => {
    const waiting = this.open.filter((chart) => chart.isDirty && chart.isSeen);
    this.frame = 0;
    for (let cost = 0; waiting.length && cost < FRAME_COST;) cost += waiting.shift().draw();
    if (waiting.length) this.request();
    else { // for benchmarks and tests
      if (this.answered) this.el.dataset.zoomed = (performance.now() - this.answered).toFixed(1);
      this.el.dataset.version = this.model.get("version");
      this.answered = 0;
    }
    if (this.isTopDirty) this.paintTop();
  };
  paintTop() {
    const { cross, drag } = this, selection = drag?.kind === "select" && drag.isMoved && drag;
    Object.assign(this, { isTopDirty: false, hot: null }); // hot: the curve near the pointer
    const found = cross?.chart.drawTop(cross, selection); // the first: it says which curve is near
    for (const chart of this.open) if (chart !== cross?.chart && chart.isSeen) chart.drawTop(cross, selection);
    this.tip.hidden = !found;
    const said = found ? this.showTip(cross, found) : "";
    this.later("live", 500, () => setText(this.live, said));
    this.el.dataset.tip = said;
  }
  /** Show the values of the chart under the pointer beside the crosshair, within the canvas; return what is said. */
  showTip({ chart, x, y }, { rows, hot }) {
    const { root, tip, width, spec } = this, count = Math.max(1, ...rows.map(({ series }) => series.per_column));
    const mean = count >= 1.5 && `mean of ${Math.round(count).toLocaleString("en")} steps`;
    const position = words(spec.x.unit === "count" && spec.x.label, formatX(x, spec.x));
    const mark = chart.markAt({ x, y }), saved = mark && words(`▲ ${mark.label}`, mark.kind === "best" && "· best");
    const header = [position, mean, saved].filter(Boolean).join(" · ");
    const lines = rows.length > 6 ? [...rows].sort((a, b) => b.mean - a.mean) : rows;
    const said = lines.map((line) => [line.series.text, line.value, words(line.range, line.where)]);
    tip.replaceChildren(make("header", "", null, { textContent: header, dir: "auto" }));
    lines.forEach((line, index) => {
      const element = make("div", line === hot ? "nbt-hot" : "", tip);
      make("i", "", element).style.background = this.colour(line.series.colour);
      ["span", "b", "small"].forEach((tag, k) => make(tag, "", element, { textContent: said[index][k] }));
    });
    tip.classList.toggle("nbt-wide", lines.length > 12 && width > 620);
    const { offsetWidth: wide, offsetHeight: tall } = tip, { offsetLeft, offsetTop } = chart.root;
    const at = offsetLeft + chart.scales[0](x), lower = offsetTop + (y ?? 42), upper = lower - tall - 12;
    const left = at + 14 + wide > width ? at - 14 - wide : at + 14, top = upper < 0 ? lower + 14 : upper;
    const within = (value, room) => `${Math.round(Math.max(2, Math.min(room - 2, value)))}px`;
    tip.style.transform = `translate(${[within(left, width - wide), within(top, root.clientHeight - tall)]})`;
    return `${chart.spec.title}, ${header}: ${said.map((texts) => words(...texts)).join(", ")}`;
  }
  /** Show a span at once, as far as its columns are here, and ask the kernel for it; null is all. */
  zoom(span, isSent = true) {
    const [first, last] = this.spec.x.full, width = span ? span[1] - span[0] : Infinity;
    const from = span && Math.min(Math.max(span[0], first), last - width);
    const wanted = width < last - first ? [from, from + width] : null;
    this.asked = { span: wanted, patience: isSent ? 2 : Infinity, time: performance.now() };
    if (isSent) this.send({ zoom: wanted });
    this.isTopDirty = true;
    this.showChip();
    this.redraw();
  }
  /** Return to the kernel's limits once they are the ones asked for: an older refresh may arrive in between. */
  settle() {
    const { span, time } = this.asked ?? {}, { limits, is_zoomed: isZoomed } = this.spec.x;
    const isSame = span ? limits.every((x, i) => Math.abs(x - span[i]) <= 1e-6 * (span[1] - span[0])) : !isZoomed;
    if (!this.asked || (!isSame && --this.asked.patience > 0)) return;
    Object.assign(this, { answered: time, asked: null });
  }

  point = (cross) => Object.assign(this, { cross, isTopDirty: true }).request();
  /** Put the crosshair on the column of the chart's densest curve that is nearest to the pointer. */
  pointAt(chart, { offsetX, offsetY: y }) {
    const { plot, densest } = chart, x = chart.fromX(offsetX), i = nearest(densest.x, x);
    const isInside = offsetX > plot.left - 6 && offsetX < plot.right + 6;
    this.point(isInside || this.drag ? { x: i < 0 ? x : densest.x[i], chart, y } : null);
  }
  dblclick = () => this.zoom(null);
  blur = () => this.drag ?? this.point(null);
  pointerleave = (_, { pointerType }) => pointerType === "mouse" && this.blur(); // a finger leaves the crosshair there
  pointerdown(chart, event) {
    if (event.button !== 0) return;
    const { canvas } = chart.top, { offsetX: startPx } = event, { limits } = this, from = chart.fromX(startPx);
    event.preventDefault(); // no selection of the page's text
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    this.drag = { kind: event.shiftKey ? "pan" : "select", chart, from, to: from, startPx, limits, isMoved: false };
    this.pointAt(chart, event);
  }
  pointermove(chart, event) {
    const { drag } = this, { offsetX: px } = event;
    if (drag) {
      const { left, right } = chart.plot, [from, to] = drag.limits;
      const by = ((drag.startPx - px) * (to - from)) / (right - left);
      drag.to = chart.fromX(px);
      drag.isMoved ||= Math.abs(px - drag.startPx) >= 4; // else it is a click
      if (drag.isMoved && drag.kind === "pan") this.zoom([from + by, to + by], false);
    }
    this.pointAt(chart, event);
  }
  pointerup(chart, event) {
    const { kind, isMoved, from, to } = this.drag ?? {};
    this.drag = null;
    const mark = kind && !isMoved && chart.markAt({ x: from, y: event.offsetY });
    if (isMoved) this.zoom(kind === "pan" ? this.limits : [from, to].sort((a, b) => a - b));
    if (mark) this.send({ mark: mark.step });
    this.pointAt(chart, event);
  }
  pointercancel() {
    if (this.drag?.kind === "pan") this.zoom(this.drag.limits);
    this.drag = null;
    this.point(null);
  }
  /** Act on a key; one that is used is kept from the notebook, where 0 twice would restart the kernel. */
  keydown(chart, event) {
    const { key } = event, [from, to] = this.limits, pace = event.shiftKey ? 10 : 1;
    const centre = this.cross?.x ?? (from + to) / 2, scale = (by) => [from, to].map((x) => centre + (x - centre) * by);
    const mark = this.cross && chart.markAt({ ...this.cross, y: null });
    const escape = () => (this.drag ? this.pointercancel() : this.chip.hidden ? this.point(null) : this.zoom(null));
    const actions = {
      ...{ ArrowLeft: () => this.step(chart, -pace), ArrowRight: () => this.step(chart, pace) },
      ...{ Home: () => this.step(chart, -Infinity), End: () => this.step(chart, Infinity), 0: () => this.zoom(null) },
      ...{ "+": () => this.zoom(scale(0.5)), "=": () => this.zoom(scale(0.5)), "-": () => this.zoom(scale(2)) },
      ...(this.drag || this.cross || !this.chip.hidden ? { Escape: escape } : {}),
      ...(mark ? { Enter: () => this.send({ mark: mark.step }) } : {}),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(actions, key)) return;
    actions[key]();
    event.preventDefault();
    event.stopPropagation();
  }
  /** Move the crosshair by so many columns. */
  step(chart, count) {
    const { x } = chart.densest, [from, to] = this.limits, shown = x.filter((value) => value >= from && value <= to);
    if (!shown.length) return;
    const now = this.cross ? nearest(shown, this.cross.x) : count > 0 ? -1 : shown.length;
    this.point({ x: shown[Math.min(shown.length - 1, Math.max(0, now + count))], chart, y: null });
  }
}

export default { render: ({ model, el }) => new Canvas(model, el).close };
