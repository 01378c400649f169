// Views of the other families: neighbours (LDS), layers (factorial HMM), tags (taggers), n-grams and trees (grammars).

import { latest } from "./api.js";
import { bar, debounce, field, fill, h, problem, table } from "./dom.js";
import { number, percent, probability, word } from "./format.js";
import { treePlot } from "./plot_tree.js";
import { examples } from "./examples.js";

const TOP = 20;

/** An input whose answer is shown while it is typed. */
function asked(app, { name, key, first, request, show, empty }) {
  const answer = h("div", { "aria-live": "polite" }, h("p", { class: "loading" }, "Computing …"));
  const ask = latest();
  const input = h("input", { type: "text", id: "asked", value: first, maxlength: 2000, autocomplete: "off", spellcheck: "false", oninput: debounce(() => update(), 150) });
  const update = (begin = false) => {
    if (!begin) app.note({ [key]: input.value });
    if (!input.value.trim() && empty) fill(answer, h("p", { class: "note" }, empty));
    else ask(request(input.value), (data) => fill(answer, show(data, set)), (error) => fill(answer, problem(error)));
  };
  const set = (value) => {
    input.value = value;
    update();
    input.focus();
  };
  update(true);
  return { element: [h("div", { class: "asking" }, h("label", { for: "asked" }, name), input), answer], set };
}

export function neighboursView(app, params) {
  const { element } = asked(app, {
    name: "Word", key: "word", first: params.word ?? "",
    request: (token) => app.client.neighbours(app.model, token.trim(), TOP),
    show: (data, set) => {
      const most = Math.max(...data.items.map((item) => Math.abs(item.similarity)), 1e-12);
      return [h("p", { class: "note" }, `The words whose vectors are most similar to that of “${word(data.word)}”, by cosine.`), h("ol", { class: "linked wide", "aria-label": "Words by similarity" }, data.items.map((item) => h("li", null, h("button", { type: "button", class: "word", onclick: () => set(item.word) }, word(item.word)), bar(item.similarity / most), h("span", { class: "number" }, item.similarity.toFixed(3)))))];
    },
  });
  return h("div", null, element);
}

export function ngramsView(app, params) {
  const { element } = asked(app, {
    name: "Beginning", key: "prompt", first: params.prompt ?? "",
    request: (prompt) => app.client.ngrams(app.model, prompt),
    show: (data) => {
      const rows = data.items.map((item) => [word(item.word), probability(item.prob), String(item.order), h("span", { class: "share" }, bar(item.prob / data.items[0].prob))]);
      return [h("p", { class: "note" }, `The most probable next words. The order is the length of the longest n-gram that was seen in training${data.order ? `, at most ${data.order}` : ""}.`), rows.length ? table("Next words", ["word", "probability", "order", ""], rows) : h("p", null, "No word follows.")];
    },
  });
  return h("div", null, element);
}

export function tagsView(app, params) {
  const { element, set } = asked(app, {
    name: "Sentence", key: "text", first: params.text ?? app.info.examples?.[0] ?? "", empty: "Type a sentence to see its tags.",
    request: (text) => app.client.tag(app.model, text),
    show: (data) => {
      const kinds = [...new Set(data.tags)];
      const hue = (tag) => (kinds.indexOf(tag) * 137.5) % 360;
      const one = (token, t) => h("li", { style: { "--hue": hue(data.tags[t]).toFixed(0) } }, h("span", { class: "word" }, word(token)), h("b", null, data.tags[t]), h("small", null, probability(data.probs?.[t])));
      const others = data.alternatives ? table("Tags by probability", ["word", "tags"], data.words.map((token, t) => [word(token), data.alternatives[t].map((each) => `${each.tag} ${probability(each.prob)}`).join(", ")])) : null;
      return [h("ol", { class: "tagged" }, data.words.map(one)), others];
    },
  });
  return h("div", null, element[0], examples(app, set), element[1]);
}

const METHODS = { mbr: "most correct constituents expected", viterbi: "most probable tree" };

export function treeView(app, params) {
  const method = h("select", { onchange: () => set(asking.value) }, Object.entries(METHODS).map(([name, text]) => h("option", { value: name, selected: name === params.method }, text)));
  const { element, set } = asked(app, {
    name: "Sentence", key: "text", first: params.text ?? app.info.examples?.[0] ?? "", empty: "Type a sentence to see its tree.",
    request: (text) => app.client.parse(app.model, text.trim(), method.value),
    show: (data) => {
      const rows = data.constituents.map((each) => [each.symbol, data.words.slice(each.start, each.stop).join(" ")]);
      return [
        h("p", { class: "summary" }, `log p(tree, words) = ${number(data.log_prob)}`),
        h("div", { class: "tree scroll", tabindex: "0", role: "region", "aria-label": "Tree" }, treePlot(data)),
        h("details", null, h("summary", null, "The constituents as a table"), table("Constituents", ["symbol", "words"], rows)),
        h("p", { class: "note" }, h("code", null, data.command)),
      ];
    },
  });
  const asking = element[0].querySelector("input");
  return h("div", null, element[0], examples(app, set), app.client.live ? h("div", { class: "controls" }, field("Method", method)) : null, element[1]);
}

export function layersView(app, params) {
  const box = h("div", { "aria-live": "polite" });
  const ask = latest();
  const choice = h("select", { onchange: () => update() });
  const update = (first = false) => {
    const layer = first ? Number.parseInt(params.layer ?? "0", 10) || 0 : Number(choice.value);
    if (!first) app.note({ layer });
    ask(app.client.layers(app.model, layer), (data) => {
      fill(choice, Array.from({ length: data.layers }, (_, i) => h("option", { value: i, selected: i === layer }, `Layer ${i + 1} of ${data.layers}`)));
      fill(box, layerTable(data));
    }, (error) => fill(box, problem(error)));
  };
  update(true);
  return h("div", null, h("div", { class: "controls" }, field("Layer", choice)), box);
}

function layerTable({ items }) {
  const most = Math.max(...items.map((item) => item.occupancy ?? 0), 1e-12);
  const words = (item) => (item.words ?? []).slice(0, 10).map((each) => word(each.word, 20)).join(", ") || item.label;
  const next = (item) => (item.outgoing ?? []).slice(0, 3).map((each) => `${each.id} ${probability(each.prob)}`).join(", ");
  const rows = items.map((item) => [String(item.id), words(item), h("span", { class: "share" }, bar((item.occupancy ?? 0) / most), h("span", { class: "number" }, percent(item.occupancy))), next(item)]);
  return table("States of the layer", ["state", "words that it makes more probable", "occupancy", "next states"], rows, "states");
}
