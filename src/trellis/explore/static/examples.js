// Sentences to choose from: a few with a server, all that were computed beforehand without one.

import { OFFLINE } from "./api.js";
import { h } from "./dom.js";
import { cut } from "./format.js";

const LONGEST = 60;

/** Buttons for the examples, or a list of choices if there are many; says so if typing needs the server. */
export function examples(app, choose) {
  const given = app.info.examples ?? [];
  const pick = h("select", { "aria-label": "Example sentences", onchange: (event) => event.target.value && choose(given[Number(event.target.value)]) },
    h("option", { value: "" }, app.client.live ? "examples" : `choose one of ${given.length} sentences`),
    given.map((text, i) => h("option", { value: i }, cut(text, LONGEST))));
  const list = given.length ? pick : null;
  return h("div", { class: "examples" }, list, app.client.live ? null : h("p", { class: "note" }, OFFLINE));
}
