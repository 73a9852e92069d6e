// The JavaScript side of a panel: scrolling, position in a log, copying, saves.

/** Keep the first visible line in its place while lines are added and removed; a log at its end stays there. */
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

/** Copy a text; without a secure context, as on a page without TLS, through a selection. */
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
    root.addEventListener("click", ({ target }) => {
      const button = target.closest?.("[data-copy]");
      if (button) copy(button);
      const number = target.closest?.("[data-n]"); // one of the log, or of the editor's line
      if (number) model.send({ number: +number.dataset.n, line: number.closest("[data-line]")?.textContent ?? "" });
    }, options);
    document.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => {
      if (key === "s" && (ctrlKey || metaKey)) model.send({ saving: true }); // JupyterLab tells no kernel of a save
    }, { signal, capture: true });
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
  model.on("change:is_sought", seek);
  start();
  return () => {
    ending.abort();
    model.off("change:is_sought", seek);
  };
}

export default { render };
