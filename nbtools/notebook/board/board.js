// The list of runs of a board: the kernel sends it as escaped HTML, and the page tells it what was pressed or ticked.

/** Make an element like another one; what is equal stays, and with it the focus and the place of a scroll bar. */
function liken(old, now) {
  for (const { name } of [...old.attributes]) if (!now.hasAttribute(name) && name !== "open") old.removeAttribute(name);
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

function render({ model, el }) {
  const find = () => {
    const words = el.querySelector("[type=search]")?.value.toLowerCase() ?? "";
    for (const label of el.querySelectorAll("label")) label.hidden = !label.textContent.toLowerCase().includes(words);
  };
  const parts = ["list", "menu"].map((name) => {
    const root = document.createElement("div"), told = `change:${name}`;
    const show = () => {
      const now = document.createElement("div");
      now.innerHTML = model.get(name);
      now.className = `nbt-board nbt-board-${name} mathjax_ignore tex2jax_ignore`;
      liken(root, now);
      find();
    };
    model.on(told, show);
    show();
    el.append(root);
    return () => model.off(told, show);
  });
  const tell = ({ type, target }) => {
    const control = target.closest("[data-act]");
    if (!control || (control.type === "checkbox") !== (type === "change")) return;
    const { act, key } = control.dataset;
    model.send({ [act]: key, is_on: control.checked ?? control.ariaPressed === "false" });
  };
  for (const type of ["click", "change"]) el.addEventListener(type, tell);
  el.addEventListener("input", find);
  // JupyterLab's own keys, such as Enter in command mode, are for a cell, not for a control in its output.
  el.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  model.send({ ready: true });
  return () => parts.forEach((stop) => stop());
}

export default { render };
