// A ranked list of words; each opens the states that carry it.

import { bar, h } from "./dom.js";
import { number, percent, probability, word } from "./format.js";

const FAINTEST = 0.0005; // share of a state that is shown

/** items: [{ word, prob, states }]; use(word) is called by the button `verb`. */
export function predictions(app, items, verb, use, label) {
  if (!items.length) return h("p", { class: "note" }, "No word has a positive probability here.");
  const most = Math.max(...items.map((item) => item.prob));
  return h("ol", { class: "predictions", "aria-label": label }, items.map((item) => prediction(app, item, most, verb, use)));
}

function prediction(app, item, most, verb, use) {
  const carried = h("div", { class: "carried", hidden: true });
  const states = item.states ?? [];
  const toggle = () => {
    if (!carried.childNodes.length) carried.append(carriers(app, item));
    carried.hidden = !carried.hidden;
    button.setAttribute("aria-expanded", String(!carried.hidden));
  };
  const shown = word(item.word);
  const button = states.length
    ? h("button", { type: "button", class: "word", "aria-expanded": "false", title: "the states that carry it", onclick: toggle }, shown)
    : h("span", { class: "word" }, shown);
  const action = use && item.word !== "<eos>" ? h("button", { type: "button", class: "use", "aria-label": `${verb} ${shown}`, onclick: () => use(item.word) }, verb) : use && h("span", { class: "unused" });
  return h("li", null, h("div", { class: "row" }, button, bar(item.prob / most), h("span", { class: "number" }, probability(item.prob)), action), carried);
}

function carriers(app, item) {
  return h(
    "ul",
    { "aria-label": `States that carry ${word(item.word)}` },
    item.states.filter((state, i) => i === 0 || state.prob >= FAINTEST).map((state) =>
      h("li", null, h("a", { href: app.link("state", { id: state.id }) }, `${state.label}`), h("small", null, ` state ${state.id}`), bar(state.prob), h("span", { class: "number" }, percent(state.prob))),
    ),
  );
}

/** The sentence with the most probable words in all its gaps. */
export function bestSentence(best) {
  if (!best) return null;
  const facts = ` log p = ${number(best.log_prob)}${best.proved ? "" : ", not proved"}`;
  return h("p", { class: "best" }, h("b", null, "Best: "), best.text, h("small", null, facts));
}
