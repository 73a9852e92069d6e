// Sizes, formats and columns of the live canvas, without a page. canvas.js follows in the same script.

const SCALES = [[1e12, 1e12, "T"], [1e9, 1e9, "G"], [1e6, 1e6, "M"], [1e4, 1e3, "k"], [0, 1, ""]];
const UNITS = [[86400, Infinity, "d"], [3600, 24, "h"], [60, 60, "min"], [1, 60, "s"]];
const CLOCK = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" };

/** Size of a chart in CSS pixels; the kernel computes the same, to send one value per pixel column. */
export function layout(width, numOpen, isWhole = false) {
  const most = width >= 1200 ? 3 : width >= 700 ? 2 : 1, columns = Math.min(most, Math.max(1, numOpen));
  const chart = Math.floor(width / columns);
  return { columns, width: chart, height: Math.min(isWhole ? 480 : 255, Math.max(180, Math.round(0.55 * chart))) };
}

/** A number in few characters, as the pictures have it: 0.25, 31.74k, 3e-4. */
export function formatNumber(value, digits = 4) {
  const size = Math.abs(value), [, scale, suffix] = SCALES.find(([least]) => size >= least) ?? [];
  if (!Number.isFinite(value)) return String(value).replace("Infinity", "∞");
  if (size === 0 || (size >= 1e-3 && size < 1e15)) return `${Number((value / scale).toPrecision(digits))}${suffix}`;
  return value.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
}

/** The two limits in a text such as "0 to 3"; null unless it has two that ascend. */
export function limitsIn(text) {
  const found = text.split(/[^\d.eE+-]+/).filter(Boolean).map(Number);
  return found.length === 2 && found[0] < found[1] ? found : null;
}

/** A position on the x axis in words: a count, seconds since the start, or the clock of a kernel `ahead` of UTC. */
export function formatX(x, { unit, ahead }) {
  if (unit === "clock") return new Date(1000 * (x + ahead)).toLocaleString("en-GB", { ...CLOCK, timeZone: "UTC" });
  if (unit === "count") return Math.round(x).toLocaleString("en");
  const size = Math.abs(x), sign = x < 0 ? "−" : "";
  if (size < 59.5) return `${sign}${size < 10 ? Number(size.toFixed(1)) : Math.round(size)} s`;
  const parts = UNITS.map(([length, modulus, name]) => [Math.floor(Math.round(size) / length) % modulus, name]);
  const first = parts.findIndex(([count]) => count > 0);
  return sign + parts.slice(first, first + 3).map(([count, name]) => `${count} ${name}`).join(" ");
}

/** Index of the value of an ascending array that is nearest to x; -1 of an empty one. */
export function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    [low, high] = xs[middle] <= x ? [middle, high] : [low, middle];
  }
  return high < 0 || x - xs[low] <= xs[high] - x ? Math.min(low, high) : high;
}

/** The charts of a spec, each series with its columns; `data` may begin anywhere in its buffer, so it is copied. */
export function unpack(spec, { buffer, byteOffset, byteLength }) {
  const bytes = buffer.slice(byteOffset, byteOffset + byteLength);
  const columns = ({ at, n, ...series }) => {
    const [x, low, high, mean, bold] = at.map((place) => new Float64Array(bytes, place, n));
    return { ...series, n, x, low, high, mean, bold };
  };
  return spec.charts.map((chart) => ({ ...chart, series: (chart.series ?? []).map(columns) }));
}
