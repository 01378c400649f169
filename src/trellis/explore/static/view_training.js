// Training: curves over tokens, epochs, seconds or steps, of one model or two, and the results.

import { RequestError } from "./api.js";
import { field, fill, h, table } from "./dom.js";
import { number, whole } from "./format.js";
import { curves } from "./plot_curves.js";

const AXES = { tokens: "tokens", epoch: "epochs", seconds: "seconds", step: "steps" };

export function trainingView(app, params) {
  const box = h("div", { class: "training" }, h("p", { class: "loading" }, "Loading …"));
  load(app, box, params);
  return box;
}

async function load(app, box, params) {
  const models = app.about.models.map((each, i) => [each, i]).filter(([each]) => each.views.includes("training"));
  const found = await Promise.all(models.map(async ([each, i]) => {
    try {
      return { name: each.name, index: i, series: (await app.client.training(i)).series };
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      return { name: each.name, index: i, series: [] };
    }
  }));
  const given = found.flatMap((each) => each.series);
  const has = (axis) => given.some((series) => series.points.some((point) => typeof point[axis] === "number"));
  const axes = Object.keys(AXES).filter(has);
  const groups = [...new Set(given.map((series) => groupOf(series.name)))];
  const chart = h("div");
  const pick = (names, current, label) => h("select", { "aria-label": label }, names.map(([value, text]) => h("option", { value, selected: value === current }, text)));
  const axis = pick(axes.map((name) => [name, AXES[name]]), params.by, "Horizontal axis");
  const what = pick(groups.map((name) => [name, name]), params.what, "Curves");
  const draw = (first = false) => {
    if (!first) app.note({ by: axis.value, what: what.value });
    fill(chart, curves(linesOf(found, axis.value, what.value), AXES[axis.value], what.value), asTable(found, what.value));
  };
  for (const control of [axis, what]) control.addEventListener("change", () => draw());
  const controls = h("div", { class: "controls" }, field("Over", axis), groups.length > 1 ? field("Show", what) : null);
  fill(box, given.length ? [controls, chart] : h("p", { class: "note" }, "This model has no training curves: there is no run folder with metrics.jsonl."), results(app));
  if (given.length) draw(true);
}

/** train_ppl and valid_ppl belong on one chart: what follows the split is the quantity. */
function groupOf(name) {
  const quantity = name.replace(/^(train|valid|test)_/, "");
  return { ppl: "perplexity", nats: "nats per token" }[quantity] ?? quantity;
}

function linesOf(found, axis, what) {
  return found.flatMap(({ name, index, series }) =>
    series.filter((each) => groupOf(each.name) === what).map((each) => ({
      name: `${found.length > 1 ? `${"AB"[index]} ` : ""}${each.name.split("_")[0]}`,
      look: `${index ? "two" : "one"} ${each.name.startsWith("train") ? "train" : "valid"}`,
      points: each.points.filter((point) => typeof point[axis] === "number" && typeof point.value === "number").map((point) => [point[axis], point.value]),
    })),
  );
}

function asTable(found, what) {
  const rows = found.flatMap(({ name, series }) => series.filter((each) => groupOf(each.name) === what).flatMap((each) => {
    const step = Math.ceil(each.points.length / 30);
    return each.points.filter((_, i) => i % step === 0 || i === each.points.length - 1).map((point) => [each.name, ...(found.length > 1 ? [name] : []), whole(point.step), number(point.epoch, 1), whole(point.tokens), number(point.seconds, 1), number(point.value)]);
  }));
  return h("details", null, h("summary", null, "The numbers as a table"), table("Training", ["series", ...(found.length > 1 ? ["model"] : []), "step", "epoch", "tokens", "seconds", "value"], rows));
}

/** What the run measured, and facts about each model. */
export function results(app) {
  return app.about.models.map((each) => {
    const rows = each.scores ?? [];
    const heads = rows.length ? Object.keys(rows[0]) : [];
    const cell = (value) => (typeof value === "number" ? number(value, Number.isInteger(value) ? 0 : 1) : value ?? "–");
    return h("section", null, h("h2", null, each.name), h("dl", { class: "factlist" }, each.facts.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
      rows.length ? table(`Results of ${each.name}`, heads, rows.map((row) => heads.map((head) => cell(row[head])))) : null);
  });
}
