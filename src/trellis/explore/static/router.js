// Every view and every answer has a link: #/view?name=value&...

/** { view, params, query } of a hash, or null if it is not one of ours; `query` has the names that occur several times. */
export function parse(hash) {
  const match = /^#\/([\w-]*)(?:\?(.*))?$/s.exec(hash);
  if (!match) return null;
  const query = new URLSearchParams(match[2] ?? "");
  return { view: match[1], params: Object.fromEntries(query), query };
}

/** The hash of a view; empty parameters are left out, and lists are written as repeated names. */
export function link(view, params = {}) {
  const pairs = Object.entries(params).flatMap(([name, value]) => [value].flat().map((each) => [name, each]));
  const given = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value !== false);
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

/** The address bar as the place where the route is kept. */
export class AddressBar {
  get hash() {
    return location.hash;
  }
  listen(changed) {
    addEventListener("hashchange", changed);
  }
  go(hash) {
    location.hash = hash;
  }
  replace(hash) {
    history.replaceState(null, "", hash);
  }
}

/** A route that is kept in memory, for a page that belongs to someone else, such as a notebook. */
export class Memory {
  inMemory = true; // links have to be followed by hand
  hash = "";
  #changed = () => {};
  listen(changed) {
    this.#changed = changed;
  }
  go(hash) {
    this.hash = hash;
    this.#changed();
  }
  replace(hash) {
    this.hash = hash;
  }
}
