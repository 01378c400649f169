// Questions with exact answers. Each answer has a link and the command line that gives the same.

import { latest } from "./api.js";
import { Waiting, field, fill, h, problem } from "./dom.js";
import { number, probability } from "./format.js";
import { bestSentence, predictions } from "./predictions.js";

const TOP = 10;
const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);
const text = (name, value, hint, extra = {}) => ({ name, hint, control: h("input", { type: "text", value, maxlength: 2000, autocomplete: "off", spellcheck: "false", ...extra }) });
const count = (name, value, most) => ({ name, control: h("input", { type: "number", value, min: name === "Seed" ? 0 : 1, max: most }) });
const check = (name, on) => ({ name, control: h("input", { type: "checkbox", checked: on }) });
const several = (name, values, hint) => ({ name, hint, control: h("textarea", { rows: 2, value: values.join("\n"), maxlength: 2000, spellcheck: "false" }) });

/** The questions: title, endpoint, form fields from the link, request from the form, answer as elements. */
const QUESTIONS = {
  infill: {
    title: "Gaps",
    about: "Which words belong in the gaps? The posterior given all other words, and the most probable sentence.",
    fields: (q) => ({ text: text("Sentence", q.get("text") ?? "the function ___ a list", "___ is a gap") }),
    ask: (app, f, waiting) => app.client.infill(app.model, f.text.control.value, TOP, false, waiting),
    params: (f) => ({ text: f.text.control.value }),
    show: (app, data) => [
      bestSentence(data.best),
      data.gaps.map((gap, i) => [h("h3", null, `Gap ${i + 1}`), predictions(app, gap.items, "use", null, `Words for gap ${i + 1}`)]),
    ],
  },
  generate: {
    title: "Constraints",
    about: "Sentences that satisfy constraints: their total probability, and exact samples or the most probable one.",
    fields: (q) => ({
      contains: several("Contains", q.has("words") || q.has("contains") ? q.getAll("contains") : ["a list"], "one word or phrase per line"),
      not: several("Does not contain", q.getAll("not"), "one per line"),
      regex: text("Matches", q.get("regex") ?? "", "a regular expression over words"),
      template: text("Template", q.get("template") ?? "", "such as: the ___ returns a ..."),
      ordered: check("In this order", q.get("ordered") === "true"),
      least: count("At least words", q.getAll("words")[0] ?? 1, 100),
      most: count("At most words", q.getAll("words")[1] ?? 12, 100),
      n: count("Samples", q.get("n") ?? 5, 50),
      seed: count("Seed", q.get("seed") ?? 0, 1e9),
      best: check("The most probable sentence instead", q.get("best") === "true"),
    }),
    request: (f) => ({
      contains: lines(f.contains.control.value), ordered: f.ordered.control.checked, not: lines(f.not.control.value), regex: f.regex.control.value.trim(), template: f.template.control.value.trim(),
      words: [Number(f.least.control.value), Number(f.most.control.value)], n: Number(f.n.control.value), best: f.best.control.checked, seed: Number(f.seed.control.value),
    }),
    ask: (app, f) => app.client.generate(app.model, QUESTIONS.generate.request(f)),
    params: (f) => QUESTIONS.generate.request(f),
    show: (app, data) => [h("p", { class: "best" }, data.log_prob === null ? null : [h("b", null, "Probability of the constraint: "), `${probability(Math.exp(data.log_prob))}`, h("small", null, ` log p = ${number(data.log_prob)}`)]), sentences(data.items)],
  },
  predict: {
    title: "Next words",
    about: "The most probable next words after the beginning of a sentence.",
    fields: (q) => ({ text: text("Beginning", q.get("text") ?? "return the first", "may be empty") }),
    ask: (app, f) => app.client.predict(app.model, f.text.control.value, TOP),
    params: (f) => ({ text: f.text.control.value }),
    show: (app, data) => predictions(app, data.items, "add", null, "Next words"),
  },
  score: {
    title: "Probability",
    about: "The exact log-probability of a sentence, its end included.",
    fields: (q) => ({ text: text("Sentence", q.get("text") ?? "return the first element of a list") }),
    ask: (app, f) => app.client.score(app.model, f.text.control.value),
    params: (f) => ({ text: f.text.control.value }),
    show: (app, data) => [
      h("p", { class: "best" }, h("b", null, `log p = ${number(data.log_prob)}`), h("small", null, ` perplexity ${number(data.perplexity, 1)}`)),
      h("p", null, h("a", { href: app.link("sentence", { text: data.words.filter((each) => each !== "<eos>").join(app.info.separator ?? " ") }) }, "Show it word by word")),
    ],
  },
  sample: {
    title: "Samples",
    about: "Sentences drawn from the model; the same seed gives the same sentences.",
    fields: (q) => ({ prompt: text("Beginning", q.get("prompt") ?? "", "may be empty"), n: count("Samples", q.get("n") ?? 5, 50), seed: count("Seed", q.get("seed") ?? 0, 1e9) }),
    ask: (app, f) => app.client.sample(app.model, Number(f.n.control.value), Number(f.seed.control.value), f.prompt.control.value.trim()),
    params: (f) => ({ prompt: f.prompt.control.value.trim(), n: f.n.control.value, seed: f.seed.control.value }),
    show: (app, data) => sentences(data.items),
  },
};

function sentences(items) {
  if (!items.length) return h("p", { class: "note" }, "No sentence satisfies the constraints.");
  return h("ol", { class: "sentences" }, items.map((item) => h("li", null, h("span", null, item.text || "(the empty sentence)"), item.log_prob === null || item.log_prob === undefined ? null : h("small", null, `log p = ${number(item.log_prob)}`))));
}

export function questionsView(app, params, query) {
  const offered = Object.keys(QUESTIONS).filter((name) => app.info.views.includes("states") || !["infill", "generate"].includes(name)); // one chain of states
  const chosen = offered.includes(params.ask) ? params.ask : offered[0];
  const question = QUESTIONS[chosen];
  const fields = question.fields(query);
  const answer = h("section", { class: "answer", "aria-live": "polite", "aria-label": "Answer" });
  const form = h("form", { class: "question" }, Object.values(fields).map((each) => field(each.name, each.control, each.hint)), h("button", { type: "submit", class: "main" }, "Ask"));
  const ask = latest();
  let asks = 0;
  const submit = (first = false) => {
    const asked = { ask: chosen, ...question.params(fields) };
    if (!first) app.note(asked);
    fill(answer, h("p", { class: "loading" }, "Computing …"));
    const note = new Waiting();
    const latestAsked = (asks += 1);
    const waiting = (data) => {
      const wanted = answer.isConnected && latestAsked === asks;
      if (wanted) note.tell(answer, data);
      return wanted;
    };
    ask(question.ask(app, fields, waiting), (data) => fill(answer, h("h2", null, "Answer"), question.show(app, data), reproduce(app, asked, data)), (error) => fill(answer, problem(error)));
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  if (app.client.live) submit(true);
  else fill(answer, h("p", { class: "note" }, "Questions need the server: trellis explore RUN"));
  const tabs = h("nav", { class: "tabs", "aria-label": "Questions" }, offered.map((name) => h("a", { href: app.link("questions", { ask: name }), "aria-current": name === chosen ? "page" : null }, QUESTIONS[name].title)));
  return h("div", { class: "questions" }, tabs, h("p", { class: "note" }, question.about), form, answer);
}

/** The link and the command line that give the same answer. */
function reproduce(app, asked, data) {
  const hash = app.link("questions", asked);
  const row = (name, value, shown) => h("p", null, h("b", null, name), shown, copy(value));
  const place = app.route.inMemory ? hash : `${location.origin === "null" ? "" : location.origin}${location.pathname}${hash}`;
  return h("div", { class: "reproduce" }, row("Link", place, h("a", { href: hash }, hash)), data.command ? row("Command", data.command, h("code", null, data.command)) : null);
}

function copy(value) {
  const button = h("button", { type: "button", class: "copy", onclick: async () => {
    try {
      await navigator.clipboard.writeText(value);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Copying is not allowed here";
    }
  } }, "Copy");
  return button;
}
