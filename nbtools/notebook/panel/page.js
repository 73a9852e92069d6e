// What the page does for a panel: the title of the browser's tab, scrolling to it, the place of a log that is
// read, and copying.

/** The titles that panels wish for, of all panels of the page; the panel that was last active has its title shown. */
const titles = (globalThis[Symbol.for("nbtools.titles")] ??= { wanted: new Map(), base: document.title, shown: "" });

function showTitle() {
  if (document.title !== titles.shown) titles.base = document.title; // JupyterLab's own, or the user's
  const text = [...titles.wanted.values()].at(-1);
  titles.shown = text ? `${text} · ${titles.base}` : titles.base;
  if (document.title !== titles.shown) document.title = titles.shown;
}

titles.watch ??= new MutationObserver(() => document.title !== titles.shown && showTitle());
titles.watch.observe(document.head, { childList: true, characterData: true, subtree: true });

/** Wish for a title; an active panel comes before the others. */
function wish(panel, text, isActive) {
  if (isActive) titles.wanted.delete(panel);
  if (text) titles.wanted.set(panel, text);
  else titles.wanted.delete(panel);
  showTitle();
}

/** Keep the line that is read in its place while others come and go; the end stays the end. */
function keepPlace(scroller, stopping) {
  let seen = null;
  const top = () => scroller.getBoundingClientRect().top;
  const remember = () => {
    if (!scroller.clientHeight) return;
    const isAtEnd = Math.abs(scroller.scrollTop) < 8; // 0 is the end: the box is a reversed column
    const isRead = (line) => line.getBoundingClientRect().bottom > top();
    const line = isAtEnd ? null : [...scroller.querySelectorAll("[data-line]")].find(isRead);
    seen = line && { name: line.dataset.line, y: line.getBoundingClientRect().top - top() };
  };
  const settle = () => {
    const line = seen && scroller.querySelector(`[data-line="${seen.name}"]`);
    if (line) scroller.scrollTop += line.getBoundingClientRect().top - top() - seen.y;
    else if (!seen) scroller.scrollTop = 0;
  };
  const changes = new MutationObserver(settle), sizes = new ResizeObserver(settle);
  scroller.addEventListener("scroll", remember, { signal: stopping });
  changes.observe(scroller, { childList: true, subtree: true });
  sizes.observe(scroller);
  stopping.addEventListener("abort", () => [changes, sizes].forEach((each) => each.disconnect()));
}

/** Copy a text; without a secure context, as on a plain http address, through a selection. */
async function copy(button) {
  const before = button.textContent, text = button.dataset.copy;
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = before), 1500);
}

function render({ model, el }) {
  const ending = new AbortController(), { signal } = ending, options = { signal };
  let root = null;
  const start = () => {
    if (signal.aborted) return;
    if (!(root = el.closest(".nbtools-live"))) return requestAnimationFrame(start);
    root = root.parentElement.closest(".nbtools-live") ?? root;
    root.addEventListener("pointerdown", () => wish(el, model.get("title"), true), options);
    root.addEventListener("click", ({ target }) => {
      const button = target.closest?.("[data-copy]");
      if (button) copy(button);
    }, options);
    for (const scroller of root.querySelectorAll(".nbt-log")) keepPlace(scroller, signal);
    seek();
  };
  const seek = () => {
    if (!root || !model.get("is_sought")) return;
    model.set("is_sought", false); // once, not in each view
    model.save_changes();
    const isSeen = root.getBoundingClientRect().top < innerHeight / 2;
    if (!isSeen) root.scrollIntoView({ block: "start", behavior: "smooth" });
  };
  const change = () => wish(el, model.get("title"), false);
  const lose = () => el.closest(".jupyter-widgets-disconnected") && wish(el, "", false);
  model.on("change:title", change);
  model.on("change:is_sought", seek);
  model.on("comm_live_update", () => setTimeout(lose)); // a kernel that is gone tells no progress
  start();
  wish(el, model.get("title"), true);
  return () => {
    ending.abort();
    model.off("change:title", change);
    model.off("change:is_sought", seek);
    wish(el, "", false);
  };
}

export default { render };
