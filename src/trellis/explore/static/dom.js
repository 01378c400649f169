// Elements of HTML and SVG. Text always becomes a text node, so no data is ever parsed as markup.

import { visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: h("a", { href: "#/map" }, "the map"). */
export function h(tag, props, ...children) {
  return build(document.createElement(tag), props, children);
}

/** An SVG element. */
export function s(tag, props, ...children) {
  return build(document.createElementNS(SVG, tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) set(element, name, value);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false).map(node));
  return element;
}

function node(child) {
  return child instanceof Node ? child : document.createTextNode(visible(String(child)));
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
  else if (name === "value") element.value = value;
  else element.setAttribute(name, value === true ? "" : visible(String(value)));
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((child) => child instanceof Node || (child ?? false) !== false).map(node));
  return element;
}

/** A horizontal bar for a share between 0 and 1; the number stands beside it as text. */
export function bar(share, extra = "") {
  const width = `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(2)}%`;
  return h("span", { class: `bar ${extra}`, "aria-hidden": "true" }, h("i", { style: { width } }));
}

/** A table with a caption for screen readers; cells of numbers are right-aligned. */
export function table(caption, heads, rows, look = "") {
  const cell = (value, tag, scope) =>
    h(tag, { scope, class: typeof value === "string" && NUMBER.test(value) ? "number" : null }, value);
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { class: look },
      h("caption", { class: "unseen" }, caption),
      h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((value, i) => (i === 0 ? cell(value, "th", "row") : cell(value, "td")))))),
    ),
  );
}

const NUMBER = /^[-+−∞–]?[\d,.]*(e[-+]?\d+)?%?$/;

/** A label with its control: both are needed for screen readers. */
export function field(name, control, hint) {
  return h("label", { class: "field" }, h("span", { class: "name" }, name), control, hint ? h("small", null, hint) : null);
}

/** A listener that runs `task` after `wait` ms without a further event, unless its control has left the page. */
export function debounce(task, wait) {
  let timer = 0;
  return ({ currentTarget }) => {
    clearTimeout(timer);
    timer = setTimeout(() => currentTarget.isConnected && task(), wait);
  };
}

/** A paragraph that reports a failed request. */
export function problem(error) {
  return h("p", { class: "problem", role: "alert" }, error.message);
}

/** A note about what is being computed, and how far it is. `tell` puts it into a box, and brings it up to date. */
export class Waiting {
  constructor() {
    this.doing = h("span");
    this.bar = h("progress", { max: 1, "aria-label": "Computed" });
    this.element = h("span", { class: "waiting" }, this.doing, this.bar);
  }

  tell(box, { doing, progress }) {
    if (this.element.parentNode !== box) fill(box, this.element);
    if (this.doing.textContent !== doing) this.doing.textContent = doing;
    this.bar.value = progress;
  }
}
