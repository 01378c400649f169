// The frame of the explorer: header, navigation, and the view that the route names.

import { fill, h, problem } from "./dom.js";
import { RequestError } from "./api.js";
import { compact, visible } from "./format.js";
import { link, parse } from "./router.js";
import { sentenceView } from "./view_sentence.js";
import { stateView, statesView } from "./view_states.js";
import { mapView } from "./view_map.js";
import { questionsView } from "./view_questions.js";
import { trainingView } from "./view_training.js";
import { compareView } from "./view_compare.js";
import { layersView, neighboursView, ngramsView, tagsView, treeView } from "./view_families.js";

const VIEWS = {
  tree: ["A tree", treeView],
  sentence: ["A sentence", sentenceView],
  tags: ["Tags", tagsView],
  ngrams: ["N-grams", ngramsView],
  neighbours: ["Neighbours", neighboursView],
  layers: ["Layers", layersView],
  states: ["States", statesView],
  map: ["The map", mapView],
  questions: ["Questions", questionsView],
  training: ["Training", trainingView],
  compare: ["Comparison", compareView],
};
const HIDDEN = { state: ["State", stateView] }; // reached by links only

/** Build the explorer inside `root`. `options.focus`: move the focus to the view after following a link. */
export async function mount(root, client, route, options = {}) {
  root.classList.add("explorer");
  let about;
  try {
    about = await client.about();
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    fill(root, problem(error));
    return;
  }
  const app = new App(root, client, route, about, options);
  route.listen(() => app.show(true));
  if (route.inMemory) root.addEventListener("click", (event) => follow(event, route));
  app.show(false);
}

function follow(event, route) {
  const anchor = event.composedPath().find((each) => each instanceof HTMLAnchorElement);
  const hash = anchor?.getAttribute("href") ?? "";
  if (!parse(hash)) return;
  event.preventDefault();
  route.go(hash);
}

class App {
  constructor(root, client, route, about, options) {
    Object.assign(this, { root, client, route, about, options });
    this.header = h("header", { class: "top" });
    this.main = h("main", { id: "view", tabindex: "-1" });
    this.live = h("p", { class: "unseen", role: "status", "aria-live": "polite" });
    if (options.embedded) this.main = h("div", { class: "main" });
    fill(root, this.header, this.main, this.live);
    this.leave = null;
  }

  /** Show the view of the current route; `moved` after following a link. */
  show(moved) {
    const asked = parse(this.route.hash);
    if (moved && !asked) return; // an anchor of the page around the explorer
    const { view, params, query } = asked ?? { view: "", params: {}, query: new URLSearchParams() };
    this.model = Math.min(Math.max(Number.parseInt(params.model ?? "0", 10) || 0, 0), this.about.models.length - 1);
    this.info = this.about.models[this.model];
    const shared = { compare: this.comparable, training: this.about.models.some((each) => each.views.includes("training")) };
    const offered = Object.keys(VIEWS).filter((name) => shared[name] ?? this.info.views.includes(name));
    const hidden = Object.hasOwn(HIDDEN, view);
    const name = hidden || offered.includes(view) ? view : offered[0];
    const [title, build] = VIEWS[name] ?? HIDDEN[name] ?? ["Nothing to show", () => h("p", null, "This model has no views.")];
    this.name = name;
    this.leave?.();
    this.leave = null;
    fill(this.header, ...this.head(name, offered, params));
    const heading = h(this.options.embedded ? "h3" : "h1", { tabindex: "-1", class: hidden ? "heading unseen" : "heading" }, title);
    fill(this.main, heading);
    if (view && name !== view) this.main.append(h("p", { class: "note" }, `This ${this.info.family} model has no view “${view}”; this is ${title.toLowerCase()}.`));
    this.main.append(build(this, params, query));
    if (this.options.title) document.title = `${title} · ${visible(this.info.name)} · Trellis`;
    if (moved && this.options.focus) heading.focus({ preventScroll: name === this.shown });
    this.shown = name;
  }

  head(current, offered, params) {
    const { name, family, states, vocabulary } = this.info;
    const facts = [family, states ? `${compact(states)} states` : null, `${compact(vocabulary)} words`].filter(Boolean);
    const second = this.about.models.length > 1;
    const choice = h(
      "select",
      { "aria-label": "Model", onchange: (event) => this.go(current, { ...params, model: event.target.value }) },
      this.about.models.map((each, i) => h("option", { value: i, selected: i === this.model }, `${"AB"[i]}: ${each.name}`)),
    );
    return [
      this.options.embedded ? null : h("a", { class: "skip", href: "#view", onclick: (event) => this.skip(event) }, "Skip to the view"),
      h("p", { class: "model" }, h("span", { class: "kicker" }, "Trellis"), second ? choice : h("b", null, name), h("span", { class: "facts" }, facts.join(" · "))),
      h(
        "nav",
        { "aria-label": "Views of the model" },
        offered.map((view) =>
          h("a", { href: this.link(view), "aria-current": view === current || (current === "state" && view === "states") ? "page" : null }, VIEWS[view][0]),
        ),
      ),
    ];
  }

  skip(event) {
    event.preventDefault();
    this.main.querySelector(".heading").focus();
  }

  /** The link to a view of the current model. */
  link(view, params = {}) {
    return link(view, { ...(this.model ? { model: this.model } : {}), ...params });
  }

  go(view, params = {}) {
    this.route.go(this.link(view, params));
  }

  /** Keep the link up to date while the reader types, without building the view again. */
  note(params) {
    this.route.replace(this.link(this.name, params));
  }

  announce(text) {
    this.live.textContent = visible(text);
  }

  /** Whether there are two models that score sentences. */
  get comparable() {
    return this.about.models.length > 1 && this.about.models.every((each) => each.views.includes("sentence"));
  }

  get other() {
    return this.about.models.length > 1 ? 1 - this.model : null;
  }
}
