// All states of a model in columns of integers, as explore/packed.py writes them, for a page without a server.

const PER_NAT = 200;
const NEVER = 9999;
const PLACES = 1000;
const COSINES = 1000;
const LABEL = 3; // words of a label

const prob = (stored) => (stored >= NEVER ? 0 : Math.exp(-stored / PER_NAT));

export class Packed {
  constructor(data) {
    this.data = data;
    this.size = data.x.length;
  }

  /** The answer to a request about states; undefined if it is about something else. */
  answer(path) {
    if (/^\/api\/map\b/.test(path)) return this.map();
    if (/^\/api\/classes\b/.test(path)) return { items: this.data.classes, ready: true };
    const id = /^\/api\/states\/(\d+)\b/.exec(path)?.[1];
    return id !== undefined && Number(id) < this.size ? this.state(Number(id)) : undefined;
  }

  #part({ n, ids }, state) {
    return Array.from(ids.slice(state * n, state * n + n), (id, i) => [id, state * n + i]).filter(([id]) => id >= 0);
  }

  words(state) {
    const { words, base, top } = this.data;
    return this.#part(top, state).map(([id, at]) => ({ word: words[id], prob: prob(top.probs[at]), base: prob(base[id]) }));
  }

  label(state) {
    return this.words(state).slice(0, LABEL).map((each) => each.word).join(", ");
  }

  summary(state) {
    return { id: state, label: this.label(state), class: this.data.class[state], occupancy: prob(this.data.occupancy[state]) };
  }

  /** All states; those that emit a word have its probability. */
  list(query) {
    const word = this.data.words.indexOf(query);
    const { n, ids, probs } = this.data.top;
    const all = Array.from({ length: this.size }, (_, id) => ({ id, class: this.data.class[id], occupancy: prob(this.data.occupancy[id]) }));
    if (!query) return all;
    return all.flatMap((each) => {
      const at = ids.slice(each.id * n, each.id * n + n).indexOf(word);
      return word < 0 || at < 0 ? [] : [{ ...each, share: prob(probs[each.id * n + at]) }];
    });
  }

  links(name, state, key) {
    const part = this.data[name];
    if (!part) return null;
    const value = (stored) => (key === "similarity" ? stored / COSINES : prob(stored));
    return this.#part(part, state).map(([id, at]) => ({ id, label: this.label(id), [key]: value(part.values[at]) }));
  }

  state(id) {
    const { words, contexts } = this.data;
    const text = (ids) => ids.map((each) => words[each]);
    return {
      ...this.summary(id),
      words: this.words(id),
      outgoing: this.links("outgoing", id, "prob"),
      incoming: this.links("incoming", id, "prob"),
      neighbours: this.links("neighbours", id, "similarity"),
      contexts: contexts ? contexts[id].map(([before, token, after, p]) => ({ before: text(before), word: words[token], after: text(after), prob: p })) : null,
    };
  }

  map() {
    const { x, y, classes } = this.data;
    const place = (stored) => stored / PLACES - 1;
    return {
      x: x.map(place), y: y.map(place), class: this.data.class, occupancy: this.data.occupancy.map(prob), classes, ready: true,
      labels: x.map((_, i) => this.words(i).find((each) => each.word !== "<unk>")?.word ?? ""),
    };
  }
}
