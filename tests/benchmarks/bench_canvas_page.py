"""Main-thread CPU time of the live canvas: a moving pointer, a zoom; beside uPlot with the same data.

Twenty curves in each of six charts, 378 columns each, half of them dashed. uPlot is taken from the npm registry, if
`npm` reaches it: six plots whose cursors are synchronized. It draws one line per curve and no band, tooltip or
checkpoint; its legend shows the values. Both are measured in one page, in turns, the other one hidden, since a frame
costs more with more layers on the page. Needs Playwright and a Chromium.

    python tests/benchmarks/bench_canvas_page.py
"""

import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))
from canvas_page import PALETTE, CanvasPage, Spec, loss_curve

UPLOT = "uplot@1.6.32"
ROUNDS, MOVES = 5, 60
# A frame's cost: the event itself, then from the first animation callback until the main thread is free again.
FRAMES = """
const free = () => new Promise(done => {
  const channel = new MessageChannel();
  channel.port1.onmessage = done;
  channel.port2.postMessage(0);
});
window.frame = async act => {
  let start = 0;
  const began = new Promise(done => requestAnimationFrame(() => { start = performance.now(); done(free()); }));
  const before = performance.now();
  act();
  const acted = performance.now() - before;
  await began;
  return acted + performance.now() - start;
};
window.frames = async (act, count) => {
  const costs = [await frame(act)];
  while (costs.length < count) costs.push(await frame(() => {}));
  return costs;
};
const box = element => element.getBoundingClientRect();
window.moves = async (target, type, count) => {
  const costs = [], {left, top, width, height} = box(target);
  for (let i = 0; i < count; i++) {
    const clientX = left + width * (0.15 + 0.8 * i / count), clientY = top + height * (0.4 + 0.2 * Math.sin(i));
    const init = {clientX, clientY, bubbles: true, pointerType: 'mouse'};
    const event = type === 'pointermove' ? new PointerEvent(type, init) : new MouseEvent(type, init);
    costs.push(await frame(() => target.dispatchEvent(event)));
  }
  return costs;
};
window.repeat = () => {
  state.version += 1;
  for (const action of model.listeners.get('change:version')) action();
};
window.alone = async name => {
  for (const id of ['el', 'peer']) {
    const element = document.getElementById(id);
    if (element) element.style.display = id === name ? '' : 'none';
  }
  await frames(() => {}, 5);
};
window.key = (target, key) => target.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
undefined;
"""
PEER = """async ([source, charts, colours]) => {
  const url = URL.createObjectURL(new Blob([source], {type: 'text/javascript'}));
  const {default: uPlot} = await import(url);
  const host = document.createElement('div');
  host.id = 'peer';
  host.style.cssText = 'position: absolute; top: 900px; columns: 2; column-gap: 0';
  document.body.append(host);
  const sync = uPlot.sync('all');
  window.plots = charts.map(({x, ys}) => new uPlot({
    width: 450, height: 248, cursor: {sync: {key: sync.key}}, scales: {x: {time: false}},
    series: [{}, ...ys.map((_, i) => ({label: `run ${i}`, stroke: colours[i], width: 1.6,
                                        dash: i < 10 ? [] : [9.6, 2.4]}))],
  }, [x, ...ys], host));
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
}"""


def compared_runs() -> Spec:
    """Twenty runs over each other in six charts."""
    spec = Spec(0, 1e6)
    for index in range(6):
        curves = [loss_curve(20_000, seed=7 * run + index, scale=5 + 0.3 * run) for run in range(20)]
        spec.chart(
            f"chart {index}",
            *[
                spec.series(
                    *("loss", 50 * x, y),
                    run=f"lr-{run}",
                    colour=f"run{run}",
                    dash=(6, 1.5) if run >= 10 else (),
                    label="train",
                    width=1.6,
                    smoothing=0.6,
                )
                for run, (x, y) in enumerate(curves)
            ],
        )
    return spec


def uplot(folder: Path) -> str | None:
    """The source of uPlot; None where the registry is out of reach."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    packed = subprocess.run([npm, "pack", "--silent", UPLOT], cwd=folder, capture_output=True, text=True, check=False)
    archives = list(folder.glob("uplot-*.tgz"))
    if packed.returncode or not archives:
        return None
    with tarfile.open(archives[0]) as archive:
        source = archive.extractfile("package/dist/uPlot.esm.js")
        return source.read().decode() if source else None


def columns(spec: Spec) -> list[dict[str, Any]]:
    """The bold lines of a spec as plain lists."""
    every = [chart.series for chart in spec.charts]
    return [{"x": traces[0].x.tolist(), "ys": [trace.bold.tolist() for trace in traces]} for traces in every]


def busy(session: Any) -> float:
    """CPU milliseconds of the page's main thread so far, in tasks."""
    found = {metric["name"]: metric["value"] for metric in session.send("Performance.getMetrics")["metrics"]}
    return 1e3 * float(found["TaskDuration"])


def main() -> None:
    """Measure and print."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("no Chromium: install it with `apt-get install chromium` (or google-chrome)")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        source = uplot(Path(folder))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 900, "height": 1700})
        spec = compared_runs()
        CanvasPage(page).start(spec)
        page.evaluate(FRAMES)
        if source is not None:
            colours = [PALETTE[f"run{run}"] for run in range(20)]
            page.evaluate(PEER, [source, columns(spec), colours])
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def cpu(script: str, argument: Any = None) -> float:
            """CPU milliseconds of the page's main thread."""
            before = busy(session)
            page.evaluate(script, argument)
            return busy(session) - before

        walls: list[float] = []
        costs: dict[str, list[float]] = {name: [] for name in ("move", "rows", "zoom", "peer move", "peer zoom")}
        upper = "document.querySelector('.nbt-chart canvas[role=img]')"
        for _ in range(ROUNDS):
            page.evaluate("alone('el')")
            costs["move"].append(cpu(f"moves({upper}, 'pointermove', {MOVES})") / MOVES)
            costs["rows"].append(cpu("frames(repeat, 15)"))
            for key in "+0":
                costs["zoom"].append(cpu(f"frames(() => key({upper}, '{key}'), 15)"))
                page.evaluate("frames(repeat, 15)")
            walls += page.evaluate(f"moves({upper}, 'pointermove', {MOVES})")
            if source is not None:
                page.evaluate("alone('peer')")
                costs["peer move"].append(cpu(f"moves(plots[0].over, 'mousemove', {MOVES})") / MOVES)
                for high in (5e5, 1e6):
                    zoom = f"plots.forEach(plot => plot.setScale('x', {{min: 0, max: {high}}}))"
                    costs["peer zoom"].append(cpu(f"frames(() => {zoom}, 15)"))
        browser.close()
        print("CPU time of the page's main thread, median of the rounds:")
        names = {"move": "a move of the pointer", "rows": "new columns, drawn", "zoom": "a zoom, drawn"}
        names |= {"peer move": "uPlot: a move of the pointer", "peer zoom": "uPlot: a zoom of the six plots"}
        for name, words in names.items():
            if costs[name]:
                print(f"{words:34} {statistics.median(costs[name]):7.1f} ms")
        p95 = statistics.quantiles(walls, n=20)[-1]
        print(f"{'a frame with a move, wall time':34} {statistics.median(walls):7.1f} ms, p95 {p95:.1f} (at most 16)")
        if source is None:
            print(f"{UPLOT} is not to be had from the npm registry here: no comparison")
        else:
            for name in ("move", "zoom"):
                ratio = statistics.median(costs[name]) / statistics.median(costs[f"peer {name}"])
                print(f"{name}: {ratio:.2f} of uPlot's time")


if __name__ == "__main__":
    main()
