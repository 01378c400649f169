// Surprisal of each word as bars, for one model or two.

import { h } from "./dom.js";
import { number, word } from "./format.js";

const TALL = 120;

/** data: { words, surprisal }; second: surprisals of the other model, or null. */
export function surprisalChart(data, second, app) {
  const highest = Math.max(...data.surprisal, ...(second ?? []), 1);
  const one = (bits, side) => h("i", { class: side, style: { height: `${((TALL * bits) / highest).toFixed(1)}px` } });
  const columns = data.words.map((token, t) =>
    h("li", null,
      h("span", { class: "bars", "aria-hidden": "true" }, one(data.surprisal[t], "one"), second ? one(second[t], "two") : null),
      h("small", null, number(data.surprisal[t], 1), second ? h("em", null, ` ${number(second[t], 1)}`) : null),
      h("span", { class: "word" }, word(token, 16)),
    ),
  );
  const names = second ? [h("b", { class: "one" }, app.about.models[app.model].name), " ", h("b", { class: "two" }, app.about.models[app.other].name)] : [];
  return h("figure", { class: "bits" }, h("figcaption", null, "Surprisal of each word, bits. ", names), h("ol", { class: "columns" }, columns));
}
