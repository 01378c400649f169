// States: a list that can be searched and sorted, and the page of one state.

import { latest } from "./api.js";
import { bar, debounce, field, fill, h, problem, table } from "./dom.js";
import { number, percent, probability, whole, word } from "./format.js";

const PAGE = 50;
const SHOWN = 30; // words of a state
const SORTS = { occupancy: "how often they occur", class: "class", id: "number" };

export function statesView(app, params) {
  const { query = "", sort = "occupancy" } = params;
  let offset = Math.max(0, Number.parseInt(params.offset ?? "0", 10) || 0);
  const list = h("div", { "aria-live": "polite" });
  const ask = latest();
  const input = h("input", { type: "search", value: query, maxlength: 200, oninput: debounce(() => update(0), 150) });
  const order = h("select", { onchange: () => update(0) }, Object.entries(SORTS).map(([name, text]) => h("option", { value: name, selected: name === sort }, text)));
  const update = (from, first = false) => {
    offset = from;
    const asked = { query: input.value.trim(), sort: order.value };
    if (!first) app.note({ ...asked, offset: from || "" });
    ask(stateList(app, from, asked), (page) => fill(list, stateTable(app, page, (next) => (update(next), list.scrollIntoView({ block: "start" })))), (error) => fill(list, problem(error)));
  };
  update(offset, true);
  return h("div", null, h("div", { class: "controls" }, field("Search by word", input), field("Sort by", order)), list);
}

/** One page of states; without a server, searched and sorted among those that the page contains. */
export async function stateList(app, offset, { query, sort }, limit = PAGE) {
  if (app.client.live) return app.client.states(app.model, offset, limit, query, sort);
  const found = app.client.packed?.list(query) ?? [];
  const keys = { occupancy: (state) => -(state.share ?? state.occupancy), class: (state) => state.class ?? 0, id: (state) => state.id };
  const sorted = found.sort((a, b) => keys[sort](a) - keys[sort](b) || b.occupancy - a.occupancy || a.id - b.id);
  return { items: sorted.slice(offset, offset + limit).map(({ id }) => app.client.packed.summary(id)), total: sorted.length, offset };
}

function stateTable(app, page, turn) {
  if (!page.items.length) return h("p", { class: "note" }, "No state emits this word.");
  const most = Math.max(...page.items.map((state) => state.occupancy));
  const classed = page.items.some((state) => state.class !== null && state.class !== undefined);
  const rows = page.items.map((state) => [
    h("a", { href: app.link("state", { id: state.id }) }, state.id),
    h("a", { href: app.link("state", { id: state.id }) }, state.label),
    h("span", { class: "share" }, bar(state.occupancy / most), h("span", { class: "number" }, percent(state.occupancy))),
    ...(classed ? [h("span", { class: "class" }, state.class ?? "–")] : []),
  ]);
  const last = page.offset + page.items.length;
  const button = (label, to, off) => h("button", { type: "button", disabled: off, onclick: () => turn(to) }, label);
  return [
    table("States", ["state", "words", "occupancy", ...(classed ? ["class"] : [])], rows, "states"),
    h("p", { class: "pages" }, button("Previous", Math.max(0, page.offset - PAGE), page.offset === 0), h("span", null, `${whole(page.offset + 1)}–${whole(last)} of ${whole(page.total)}`), button("Next", last, last >= page.total)),
  ];
}

export function stateView(app, params) {
  const box = h("div", { class: "state" }, h("p", { class: "loading" }, "Loading …"));
  const id = Number.parseInt(params.id ?? "0", 10) || 0;
  latest()(app.client.state(app.model, id), (state) => fill(box, statePage(app, state, params)), (error) => fill(box, problem(error)));
  return box;
}

function statePage(app, state, params) {
  const merged = () => h("small", null, " states with the same first word as one");
  const facts = [["occupancy", percent(state.occupancy)], ...(state.class === null || state.class === undefined ? [] : [["class", h("a", { href: app.link("map", { class: state.class }) }, state.class)]])];
  const step = (id, text) => (id >= 0 && id < app.info.states ? h("a", { href: app.link("state", { id }) }, text) : null);
  return [
    h("h2", { class: "title" }, `State ${state.id}`, h("span", { class: "label" }, state.label)),
    h("p", { class: "facts" }, facts.map(([name, value]) => h("span", null, `${name} `, h("b", null, value))), step(state.id - 1, "previous"), step(state.id + 1, "next"), app.info.views.includes("map") ? h("a", { href: app.link("map", { state: state.id }) }, "on the map") : null),
    h("div", { class: "columns two" },
      h("section", { "aria-labelledby": "words" }, h("h3", { id: "words" }, "Words"), relevance(app, state, params)),
      h("div", null,
        h("section", { "aria-labelledby": "outgoing" }, h("h3", { id: "outgoing" }, "Goes to", merged()), linked(app, state.outgoing, "prob", "States that follow")),
        h("section", { "aria-labelledby": "incoming" }, h("h3", { id: "incoming" }, "Comes from", merged()), linked(app, state.incoming, "prob", "States that precede")),
        state.neighbours?.length ? h("section", { "aria-labelledby": "neighbours" }, h("h3", { id: "neighbours" }, "Similar states"), linked(app, state.neighbours, "similarity", "Similar states")) : null,
      ),
    ),
    h("section", { "aria-labelledby": "contexts" }, h("h3", { id: "contexts" }, "In the corpus"), contexts(app, state.contexts)),
  ];
}

/** Words by lambda log p + (1 - lambda) log(p / base), as in pyLDAvis. */
export function byRelevance(words, lambda) {
  const score = ({ prob, base }) => lambda * Math.log(prob) + (1 - lambda) * Math.log(prob / Math.max(base, 1e-12));
  return words.filter((each) => each.prob > 0).map((each) => [score(each), each]).sort((a, b) => b[0] - a[0]).map(([, each]) => each);
}

function relevance(app, state, params) {
  const list = h("ol", { class: "relevance", "aria-label": "Words by relevance" });
  const given = Number(params.lambda ?? 0.6);
  const start = given >= 0 && given <= 1 ? given : 0.6;
  const shown = h("output", null, start.toFixed(2));
  const draw = (lambda) => {
    const words = byRelevance(state.words, lambda).slice(0, SHOWN);
    const most = Math.max(...words.map((each) => each.prob), 1e-12);
    fill(list, words.map((each) => h("li", null, h("span", { class: "word" }, word(each.word, 24)), bar(each.prob / most), h("span", { class: "number" }, probability(each.prob)), h("small", { title: "lift: p(word | state) / p(word)" }, lift(each)))));
  };
  const slider = h("input", { type: "range", min: 0, max: 1, step: 0.05, oninput: () => {
    shown.textContent = Number(slider.value).toFixed(2);
    draw(Number(slider.value));
    app.note({ id: state.id, lambda: slider.value });
  } });
  slider.value = String(start);
  draw(start);
  return [
    h("label", { class: "slider" }, h("span", null, "lift"), slider, h("span", null, "probability"), h("span", { class: "unseen" }, "Relevance: from lift to probability"), shown),
    h("p", { class: "heads", "aria-hidden": "true" }, h("span", null, "word"), h("span", null, "p(word | state)"), h("span", null, "lift")),
    list,
  ];
}

function lift({ prob, base }) {
  if (!(base > 0)) return "–";
  return `×${number(prob / base, prob / base < 9.95 ? 1 : 0)}`;
}

function linked(app, items, key, label) {
  if (!items) return missing(app);
  if (!items.length) return h("p", { class: "note" }, "None.");
  const most = Math.max(...items.map((each) => each[key]), 1e-12);
  return h("ol", { class: "linked", "aria-label": label }, items.map((each) => h("li", null, h("a", { href: app.link("state", { id: each.id }) }, each.label), bar(each[key] / most), h("span", { class: "number" }, probability(each[key])))));
}

/** What stands in place of an answer that is not there. */
function missing(app) {
  return h("p", { class: "note" }, app.client.live ? "Being computed; open this page again in a minute." : "Not stored in this page; run trellis explore RUN.");
}

function contexts(app, found) {
  if (!found) return missing(app);
  if (!found?.length) return h("p", { class: "note" }, "There are no examples: the corpus is not at hand.");
  const row = ({ before, word: token, after, prob }) =>
    h("tr", null, h("td", { class: "before" }, before.join(" ")), h("th", { scope: "row" }, word(token)), h("td", { class: "after" }, after.join(" ")), h("td", { class: "number" }, probability(prob)));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Examples from the corpus" },
    h("table", { class: "contexts" }, h("caption", { class: "unseen" }, "Words in context, with the posterior probability of the state"),
      h("thead", { class: "unseen" }, h("tr", null, ["before", "word", "after", "posterior"].map((head) => h("th", { scope: "col" }, head)))),
      h("tbody", null, found.map(row))));
}
