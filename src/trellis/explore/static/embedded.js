// The explorer inside another page: the report of a run, or a notebook. A shadow root keeps the style sheets apart.

import { mount } from "./app.js";
import { Client, RequestError } from "./api.js";
import { AddressBar, Memory } from "./router.js";

/** The explorer of a report: all answers are in `table`. */
export function embed(host, css, table) {
  return shadowed(host, css, new Client(table), new AddressBar());
}

/** The notebook widget: questions go to Python by messages. */
export function render({ model, el }) {
  const waiting = new Map();
  let asked = 0;
  model.on("msg:custom", ({ id, answer, error }) => {
    const { done, failed } = waiting.get(id) ?? {};
    if (!waiting.delete(id)) return;
    if (error) failed(new RequestError(error));
    else done(answer);
  });
  const ask = (method, path, body) =>
    new Promise((done, failed) => {
      asked += 1;
      waiting.set(asked, { done, failed });
      model.send({ id: asked, method, path, body: body ?? null });
    });
  const host = document.createElement("div");
  el.append(host);
  shadowed(host, model.get("css"), new Client(null, ask), new Memory());
}

function shadowed(host, css, client, route) {
  const shadow = host.attachShadow({ mode: "open" });
  const style = document.createElement("style");
  const root = document.createElement("div");
  style.textContent = css;
  root.className = "embedded";
  shadow.append(style, root);
  return mount(root, client, route, { embedded: true, focus: true });
}
