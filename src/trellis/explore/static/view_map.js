// The map: all states in the plane, classes first; a list beside it says the same to keyboards and screen readers.

import { RequestError, latest } from "./api.js";
import { bar, debounce, field, fill, h, problem } from "./dom.js";
import { percent, whole, word } from "./format.js";
import { MapPlot, colourOf } from "./plot_map.js";
import { stateList } from "./view_states.js";

const PAGE = 40; // entries of the list
const FOUND = 24; // states that a search marks

export function mapView(app, params) {
  const box = h("div", { class: "map" }, h("p", { class: "loading", role: "status" }, "Laying out the states …"));
  let open = true;
  app.leave = () => (open = false);
  const waiting = ({ progress = 0 }) => {
    if (open) fill(box, h("p", { class: "loading", role: "status" }, `Laying out the states: ${percent(progress)}`), h("progress", { max: 1, value: progress, "aria-label": "Layout" }));
    return open;
  };
  const ask = async () => {
    try {
      const data = await app.client.map(app.model, waiting);
      if (open) new StateMap(app, box, data, params);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      fill(box, problem(error));
    }
  };
  ask();
  return box;
}

class StateMap {
  constructor(app, box, data, params) {
    Object.assign(this, { app, data });
    this.ask = latest();
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": `Map of ${data.x.length} states. Arrow keys move it, plus and minus zoom, 0 shows everything. The list has the same states.` });
    this.tip = h("p", { class: "tip", hidden: true });
    this.list = h("div", { class: "list" });
    this.search = h("input", { type: "search", value: params.query ?? "", maxlength: 200, oninput: debounce(() => this.find(), 150) });
    const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const tools = h("div", { class: "tools" }, button("+", "+ zoom in", () => this.plot.zoomBy(1.6)), button("−", "− zoom out", () => this.plot.zoomBy(1 / 1.6)), button("All", "All states", () => this.home()));
    fill(box, h("div", { class: "stage" }, this.canvas, tools, this.tip), h("div", { class: "side" }, field("Search by word", this.search), this.list));
    this.plot = new MapPlot(this.canvas, data, { onPick: (i, by) => this.pick(i, by), onHover: (i) => this.hover(i) });
    app.leave = () => this.plot.close();
    this.members = this.plot.byClass;
    this.shares = new Map([...this.members].map(([kind, ids]) => [kind, ids.reduce((sum, i) => sum + data.occupancy[i], 0)]));
    this.start(params);
  }

  start({ query, class: kind, state }) {
    if (query) this.find(true);
    else if (kind !== undefined && this.members.has(Number(kind))) this.openClass(Number(kind), true);
    else this.home(true);
    if (state !== undefined && this.data.x[Number(state)] !== undefined) {
      this.plot.found = new Set([Number(state)]);
      this.plot.centre([Number(state)], 4);
    }
  }

  home(first = false) {
    if (!first) this.app.note({});
    this.plot.kind = null;
    this.plot.found = new Set();
    this.search.value = "";
    this.plot.reset();
    if (this.data.classes?.length) this.listClasses(PAGE);
    else this.listStates("States", this.plot.order, PAGE);
  }

  name(i) {
    return word(this.data.labels?.[i] ?? `state ${i}`, 24);
  }

  hover(i) {
    this.tip.hidden = i === null;
    if (i === null) return;
    const kind = this.data.class[i];
    fill(this.tip, h("b", null, this.name(i)), ` state ${i}`, kind === null || kind === undefined ? "" : `, class ${kind}`, `, ${percent(this.data.occupancy[i])}`);
    const [x, y] = this.plot.toPixels(this.plot.x[i], this.plot.y[i]);
    this.tip.style.setProperty("left", `${Math.max(4, Math.min(x + 12, this.canvas.clientWidth - this.tip.offsetWidth - 4))}px`);
    this.tip.style.setProperty("top", `${Math.max(4, Math.min(y + 12, this.canvas.clientHeight - this.tip.offsetHeight - 4))}px`);
  }

  /** A mouse shows the numbers by hovering; a first tap does the same, a second one opens the state. */
  pick(i, by) {
    if (by === "mouse" || this.picked === i) this.app.go("state", { id: i });
    else this.hover(i);
    this.picked = i;
  }

  find(first = false) {
    const query = this.search.value.trim();
    if (!first) this.app.note({ query });
    if (!query) return this.home(first);
    this.plot.kind = null;
    this.ask(stateList(this.app, 0, { query, sort: "occupancy" }, FOUND), (page) => {
      const ids = page.items.map((state) => state.id);
      this.plot.found = new Set(ids);
      this.plot.draw();
      const title = page.total ? `States that emit “${word(query)}” most` : `No state emits “${word(query)}”`;
      this.listStates(title, ids, PAGE);
      this.app.announce(title);
    }, (error) => fill(this.list, problem(error)));
    return undefined;
  }

  openClass(kind, first = false) {
    const ids = this.members.get(kind);
    if (!first) this.app.note({ class: kind });
    this.plot.kind = kind;
    this.plot.found = new Set();
    this.plot.centre(ids);
    this.listStates(`Class ${kind}`, ids, PAGE);
  }

  listClasses(shown) {
    const classes = [...this.data.classes].sort((a, b) => (this.shares.get(b.id) ?? 0) - (this.shares.get(a.id) ?? 0));
    const most = Math.max(...this.shares.values());
    const entry = (each) => {
      const count = this.members.get(each.id)?.length ?? 0;
      const swatch = h("i", { class: "swatch", "aria-hidden": "true", style: { background: colourOf(each.id, this.plot.theme.matches) } });
      return h("li", null, h("button", { type: "button", class: "entry", onclick: () => this.openClass(each.id), onmouseenter: () => this.light(each.id), onmouseleave: () => this.light(null) },
        swatch, h("span", null, each.label), h("small", null, `${whole(count)} states`), bar((this.shares.get(each.id) ?? 0) / most)));
    };
    fill(this.list, h("h2", null, `${whole(classes.length)} classes`), h("ol", null, classes.slice(0, shown).map(entry)), this.more(classes.length, shown, (next) => this.listClasses(next)));
  }

  light(kind) {
    this.plot.kind = kind;
    this.plot.draw();
  }

  listStates(title, ids, shown) {
    const most = Math.max(...ids.slice(0, shown).map((i) => this.data.occupancy[i]), 1e-12);
    const point = (i) => {
      this.plot.hovered = i;
      this.plot.draw();
    };
    const entry = (i) =>
      h("li", null, h("a", { class: "entry", href: this.app.link("state", { id: i }), onmouseenter: () => point(i), onmouseleave: () => point(null), onfocus: () => point(i), onblur: () => point(null) },
        h("i", { class: "swatch", "aria-hidden": "true", style: { background: colourOf(this.data.class[i], this.plot.theme.matches) } }), h("span", null, this.name(i)), h("small", null, i), bar(this.data.occupancy[i] / most)));
    const back = this.data.classes?.length || title !== "States" ? h("button", { type: "button", class: "back", onclick: () => this.home() }, "Back to all") : null;
    fill(this.list, h("h2", null, title), back, h("ol", null, ids.slice(0, shown).map(entry)), this.more(ids.length, shown, (next) => this.listStates(title, ids, next)));
  }

  more(total, shown, show) {
    return total > shown ? h("button", { type: "button", onclick: () => show(shown + PAGE) }, `Show ${whole(Math.min(PAGE, total - shown))} more`) : null;
  }
}
