// The JavaScript side of a panel and of a board: scrolling, position in a log, copying, saves, notifications, a list.

const HOUR_MS = 3_600_000, TOLD = "nbtools-notices";

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

/** Show a notification; return whether the browser allows it: "granted", "missing" and others. */
function show(title, body, tag) {
  if (!isSecureContext || !window.Notification) return "missing";
  const { permission } = Notification;
  try {
    if (permission === "granted") new Notification(title, { body, tag }).onclick = () => window.focus();
  } catch { return "missing"; } // on phones only a service worker may show one
  return permission;
}

/** Show a notice of a run, unless this browser has shown one of its kind within the hour, in any page. */
function tell({ run, kind, title, text }) {
  const now = Date.now(), name = `${run} ${kind}`, kept = JSON.parse(localStorage.getItem(TOLD) ?? "{}");
  const told = Object.fromEntries(Object.entries(kept).filter(([, at]) => now - at < HOUR_MS));
  if (name in told) return;
  if (show(title, text, name) === "granted") localStorage.setItem(TOLD, JSON.stringify({ ...told, [name]: now }));
}

/** Make an element like another one; what is equal stays, and with it the focus and the place of a scroll bar. */
function liken(old, now) {
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.type === "checkbox") old.checked = now.hasAttribute("checked");
  const [mine, theirs] = [[...old.childNodes], [...now.childNodes]];
  for (const node of mine.slice(theirs.length)) node.remove();
  theirs.forEach((node, i) => {
    const own = mine[i];
    if (own?.nodeName !== node.nodeName) own ? own.replaceWith(node) : old.append(node);
    else if (node.nodeType === Node.ELEMENT_NODE) liken(own, node);
    else if (own.data !== node.data) own.data = node.data;
  });
}

const PLAY = { play: "Play or pause", stop: "To the first frame", retweet: "Repeat" };

/** Name the handle of each slider by its label, and the buttons that play frames, as ipywidgets does not. */
function nameSliders(root, stopping) {
  const all = () => {
    for (const slider of root.querySelectorAll(".widget-hslider"))
      slider.querySelector(".noUi-handle")?.setAttribute("aria-label", slider.querySelector("label").textContent);
    for (const [icon, ariaLabel] of Object.entries(PLAY))
      for (const sign of root.querySelectorAll(`button > .fa-${icon}:only-child`))
        if (!sign.parentElement.textContent.trim()) Object.assign(sign.parentElement, { ariaLabel });
  };
  const added = new MutationObserver(all);
  added.observe(root, { childList: true, subtree: true });
  stopping.addEventListener("abort", () => added.disconnect());
  all();
}

function render({ model, el }) {
  const ending = new AbortController(), { signal } = ending, options = { signal };
  let root = null;
  const list = document.createElement("div");
  const showList = () => liken(list, new DOMParser().parseFromString(model.get("list"), "text/html").body);
  const start = () => {
    if (signal.aborted) return;
    if (!(root = el.closest(".nbtools-live"))) return requestAnimationFrame(start);
    root.addEventListener("click", ({ target }) => {
      if (target.closest?.(".nbtools-live") !== root) return; // of a panel in a board
      const button = target.closest("[data-copy]");
      if (button) copy(button);
      if (target.closest(".nbt-notify")) ask();
      const control = target.closest("[data-act]");
      if (list.contains(control)) model.send({ ...control.dataset });
      const number = target.closest("[data-n]"); // one of the log, or of the editor's line
      if (number) model.send({ number: +number.dataset.n, line: number.closest("[data-line]")?.textContent ?? "" });
    }, options);
    document.addEventListener("keydown", ({ key, ctrlKey, metaKey }) => {
      if (key === "s" && (ctrlKey || metaKey)) model.send({ saving: true }); // JupyterLab tells no kernel of a save
    }, { signal, capture: true });
    for (const scroller of root.querySelectorAll(".nbt-log")) keepPlace(scroller, signal);
    nameSliders(root, signal);
    seek();
  };
  const ask = async () => { // within a click, as browsers require
    await window.Notification?.requestPermission();
    model.send({ permission: show("nbtools", "Notifications arrive: this is a test", "nbtools") });
  };
  const seek = () => {
    if (!root || !model.get("is_sought")) return;
    model.set("is_sought", false); // once, not in each view
    model.save_changes();
    const isSeen = root.getBoundingClientRect().top < innerHeight / 2;
    if (!isSeen) root.scrollIntoView({ block: "start", behavior: "smooth" });
  };
  // JupyterLab's own keys, such as Enter in command mode, are for a cell, not for a control in its output.
  list.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  el.append(list);
  showList();
  const heard = Object.entries({ "change:list": showList, "change:is_sought": seek, "msg:custom": tell });
  for (const [name, action] of heard) model.on(name, action);
  start();
  return () => {
    ending.abort();
    for (const [name, action] of heard) model.off(name, action);
  };
}

export default { render };
