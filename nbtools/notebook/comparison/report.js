// In a report this takes the kernel's place: it answers the canvas from the columns that the file has. The text of
// canvas.js, with `unpack`, `Canvas` and the formats, stands before it in one script.

const kept = JSON.parse(document.getElementById("charts").textContent);
const data = new DataView(Uint8Array.from(atob(kept.data), (c) => c.charCodeAt(0)).buffer);
const columns = new Map(unpack(kept.spec, data).map((chart) => [chart.key, chart.series]));
const listeners = new Set(), state = { spec: kept.spec, palette: kept.palette, data, version: 0 };

/** Round positions, 1, 2 or 5 times a power of ten apart, with their labels. */
function ticks(low, high, most, least, label) {
  const rough = Math.max((high - low) / most, least), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999), first = Math.ceil(low / step);
  const values = Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
  return values.map((value) => [value, label(Number(value.toPrecision(12)))]);
}

/** Fit the y axis of a chart to what lies within the limits of x. */
function fit(chart, x) {
  const [from, to] = x.limits, scaled = (y) => (chart.is_log ? Math.log10(y) : y), values = [];
  for (const { x: places, low, high } of columns.get(chart.key))
    places.forEach((at, i) => at >= from && at <= to && values.push(scaled(low[i]), scaled(high[i])));
  const known = values.filter(Number.isFinite), [low, high] = known.reduce(
    ([least, most], y) => [Math.min(least, y), Math.max(most, y)], [Infinity, -Infinity]);
  if (!known.length) return;
  const margin = 0.06 * (high - low) || Math.abs(high) || 1, label = (y) => formatNumber(chart.is_log ? 10 ** y : y);
  chart.is_fixed = Boolean(chart.limits);
  chart.y = chart.is_fixed ? chart.limits.map(scaled) : [low - margin, high + margin];
  chart.y_ticks = ticks(...chart.y, 6, chart.is_log ? 1 : 0, label);
  chart.x_ticks = ticks(from, to, x.unit === "clock" ? 3 : 6, x.unit === "count" ? 1 : 0, (value) => formatX(value, x));
}

function answer(message) {
  const { x, charts } = state.spec, named = (key) => charts.filter((chart) => chart.key === key);
  if ("zoom" in message) Object.assign(x, { limits: message.zoom ?? x.full, is_zoomed: message.zoom !== null });
  for (const chart of (message.open ?? []).flatMap(named)) chart.open = message.is_open;
  for (const chart of named(message.log)) chart.is_log = !chart.is_log;
  for (const chart of named(message.y)) chart.limits = message.limits;
  if ("only" in message) state.spec.only = message.only;
  if ("filter" in message) {
    const asked = (state.spec.filter = message.filter).toLowerCase().replaceAll("*", "").split(/[,\s]+/);
    const names = ({ key, title }) => [title, ...columns.get(key).map((s) => s.name)].join(" ").toLowerCase();
    for (const chart of charts) chart.open = asked.some((word) => names(chart).includes(word));
  }
  if (!["zoom", "open", "log", "y", "only", "filter"].some((name) => name in message)) return;
  for (const chart of charts) fit(chart, x);
  state.version++;
  for (const action of listeners) action();
}

const on = (name, action) => name === "change:version" && listeners.add(action);
new Canvas({ get: (name) => state[name], on, off() {}, send: answer }, document.getElementById("canvas"));
