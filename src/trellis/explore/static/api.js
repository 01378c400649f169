// Requests to the server, or look-ups in the table of a page without one.

import { Packed } from "./packed.js";

export const OFFLINE = "Typing needs the server: trellis explore RUN";
const KEPT = 200; // answers that are kept in memory
const POLL = 1000; // ms between requests for an answer that is being computed

/** An error whose message is one sentence for the reader. */
export class RequestError extends Error {}

/** The key of a request in the table of answers: the method, the path with its query, and the body. */
export function keyOf(method, path, body) {
  return body === undefined ? `${method} ${path}` : `${method} ${path} ${JSON.stringify(body)}`;
}

/** Asks the server over HTTP. Where a token is needed, the page was opened with it, and a cookie has it since. */
export async function overHTTP(method, path, body) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  let response;
  try {
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body) });
  } catch {
    throw new RequestError("The server does not answer; is trellis explore still running?");
  }
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) throw new RequestError(answer.error ?? `The server answered with status ${response.status}.`);
  return answer;
}

/** The requests of the page, under the names of the Python methods. */
export class Client {
  #kept = new Map();

  constructor(table = null, ask = null) {
    this.table = table;
    this.packed = table?.states ? new Packed(table.states) : null;
    this.ask = ask;
  }

  get live() {
    return this.ask !== null;
  }

  async request(method, path, body) {
    const key = keyOf(method, path, body);
    if (this.table && Object.hasOwn(this.table, key)) return this.table[key];
    if (this.#kept.has(key)) return this.#kept.get(key);
    const found = this.packed?.answer(path);
    if (found !== undefined) return found;
    if (!this.ask) throw new RequestError(OFFLINE);
    const answer = await this.ask(method, path, body);
    if (answer.ready !== false) this.#keep(key, answer);
    return answer;
  }

  #keep(key, answer) {
    if (this.#kept.size >= KEPT) this.#kept.delete(this.#kept.keys().next().value);
    this.#kept.set(key, answer);
  }

  get(path, query = {}) {
    const written = new URLSearchParams(Object.entries(query).map(([name, value]) => [name, String(value)])).toString();
    return this.request("GET", written ? `${path}?${written}` : path);
  }

  post(path, body) {
    return this.request("POST", path, body);
  }

  about = () => this.get("/api/about");
  smooth = (model, text, waiting) => patient(() => this.post("/api/smooth", { model, text }), waiting);
  score = (model, text) => this.post("/api/score", { model, text });
  predict = (model, text, top) => this.post("/api/predict", { model, text, top });
  infill = (model, text, top, complete = false, waiting = undefined) => patient(() => this.post("/api/infill", { model, text, top, complete }), waiting);
  generate = (model, asked) => this.post("/api/generate", { model, ...asked });
  sample = (model, n, seed, prompt) => this.post("/api/sample", { model, n, seed, prompt });
  states = (model, offset, limit, query, sort) => this.get("/api/states", { model, offset, limit, query, sort });
  state = (model, id) => this.get(`/api/states/${id}`, { model });
  classes = (model) => this.get("/api/classes", { model });
  map = (model, waiting) => patient(() => this.get("/api/map", { model }), waiting);
  training = (model) => this.get("/api/training", { model });
  compare = (text) => this.post("/api/compare", text === undefined ? {} : { text });
  neighbours = (model, word, top) => this.get("/api/neighbours", { model, word, top });
  layers = (model, layer) => this.get("/api/layers", { model, layer });
  tag = (model, text) => this.post("/api/tag", { model, text });
  parse = (model, text, method) => this.post("/api/parse", { model, text, method });
  ngrams = (model, prompt) => this.get("/api/ngrams", { model, prompt });
}

/** An answer that may take longer than a request: it is asked for until it is there. Meanwhile, `waiting` is told how
 * far it is, and returns whether it is still wanted. */
async function patient(ask, waiting = () => true) {
  for (;;) {
    const answer = await ask();
    if (answer.ready !== false) return answer;
    if (!waiting(answer)) throw new RequestError("The question was left.");
    await new Promise((done) => setTimeout(done, POLL));
  }
}

/** A wrapper that passes on only the answer to the latest of several calls. */
export function latest() {
  let current = 0;
  return async (promise, done, failed) => {
    current += 1;
    const mine = current;
    try {
      const answer = await promise;
      if (mine === current) done(answer);
    } catch (error) {
      if (mine !== current) return;
      if (!(error instanceof RequestError)) throw error;
      failed(error);
    }
  };
}
