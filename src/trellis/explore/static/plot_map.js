// The states as points on a canvas: pan, zoom, pick. Smooth with 65,536 points.

import { cut } from "./format.js";

const MARGIN = 36; // pixels around the points
const ZOOMS = [1, 400];
const LABELS = 60; // names that are drawn at most
const SMALL = 150; // states that have names at any zoom
const CLOSE = 1.9; // zoom from which states have names instead of classes

/** The colour of a class: hues far apart for neighbouring numbers. */
export function colourOf(kind, dark) {
  if (kind === null || kind === undefined) return dark ? "#7db8e3" : "#1c5d8c";
  const hue = (kind * 137.508) % 360;
  return `hsl(${hue.toFixed(0)} ${dark ? "60% 66%" : "58% 42%"})`;
}

/** Points in the unit square: { x, y } scaled so that both axes keep their proportion. */
export function normalise(xs, ys) {
  const [left, right] = extent(xs);
  const [low, high] = extent(ys);
  const size = Math.max(right - left, high - low, 1e-9);
  const place = (value, from, to) => (value - (from + to) / 2) / size + 0.5;
  return { x: Float32Array.from(xs, (x) => place(x, left, right)), y: Float32Array.from(ys, (y) => place(y, low, high)), place: (x, y) => [place(x, left, right), place(y, low, high)] };
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [0, 0];
}

export class MapPlot {
  #waiting = false;

  constructor(canvas, data, { onPick, onHover, onMove }) {
    Object.assign(this, { canvas, data, onPick, onHover, onMove });
    Object.assign(this, normalise(data.x, data.y));
    this.view = { x: 0.5, y: 0.5, zoom: 1 };
    this.found = new Set();
    this.hovered = null;
    this.kind = null; // the class that is emphasised
    const [, most] = extent(data.occupancy);
    const largest = Math.min(16, 5 + 220 / Math.sqrt(data.x.length));
    this.size = Float32Array.from(data.occupancy, (share) => Math.max(0.5, largest * Math.sqrt(share / Math.max(most, 1e-12))));
    this.order = Array.from(data.x.keys()).sort((a, b) => data.occupancy[b] - data.occupancy[a]);
    this.byClass = grouped(this.order, (i) => data.class[i] ?? null);
    this.#listen();
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(canvas);
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.draw();
    this.theme.addEventListener("change", this.repaint);
  }

  close() {
    this.watch.disconnect();
    this.theme.removeEventListener("change", this.repaint);
  }

  /** Pixels of a point in the unit square. */
  toPixels(x, y) {
    const { scale, width, height } = this.#frame();
    return [width / 2 + (x - this.view.x) * scale, height / 2 + (y - this.view.y) * scale];
  }

  #frame() {
    const [width, height] = [this.canvas.clientWidth, this.canvas.clientHeight];
    return { width, height, scale: (Math.min(width, height) - 2 * MARGIN) * this.view.zoom };
  }

  /** Show one state, or all states of a class, in the middle. */
  centre(ids, zoom = null) {
    const [left, right] = extent(ids.map((i) => this.x[i]));
    const [low, high] = extent(ids.map((i) => this.y[i]));
    const wide = Math.max(right - left, high - low, 0.02);
    this.view = { x: (left + right) / 2, y: (low + high) / 2, zoom: clamp(zoom ?? 0.8 / wide, ...ZOOMS) };
    this.draw();
  }

  reset() {
    this.view = { x: 0.5, y: 0.5, zoom: 1 };
    this.draw();
  }

  zoomBy(factor, at = null) {
    const { width, height, scale } = this.#frame();
    const [px, py] = at ?? [width / 2, height / 2];
    const zoom = clamp(this.view.zoom * factor, ...ZOOMS);
    const [x, y] = [this.view.x + (px - width / 2) / scale, this.view.y + (py - height / 2) / scale];
    const next = (scale / this.view.zoom) * zoom;
    this.view = { x: x - (px - width / 2) / next, y: y - (py - height / 2) / next, zoom };
    this.draw();
  }

  panBy(right, down) {
    const { scale } = this.#frame();
    this.view = { ...this.view, x: this.view.x + right / scale, y: this.view.y + down / scale };
    this.draw();
  }

  #listen() {
    const { canvas } = this;
    const held = new Map(); // pointers that are down
    let [moved, spread] = [0, 0];
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoomBy(Math.exp(-event.deltaY / 400), [event.offsetX, event.offsetY]);
    }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      held.set(event.pointerId, event);
      [moved, spread] = [0, 0];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!held.has(event.pointerId)) return this.#hover(this.nearest(event.offsetX, event.offsetY));
      const before = held.get(event.pointerId);
      held.set(event.pointerId, event);
      const share = 1 / held.size;
      const [right, down] = [event.clientX - before.clientX, event.clientY - before.clientY];
      moved += Math.abs(right) + Math.abs(down);
      this.panBy(-right * share, -down * share);
      if (held.size === 2) {
        const [a, b] = [...held.values()];
        const apart = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
        if (spread) this.zoomBy(apart / spread);
        spread = apart;
      }
      return undefined;
    });
    const release = (event) => {
      if (held.delete(event.pointerId) && event.type === "pointerup" && moved < 6) {
        const picked = this.nearest(event.offsetX, event.offsetY);
        if (picked !== null) this.onPick(picked, event.pointerType);
      }
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => this.#hover(null));
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    const step = 60;
    const actions = {
      ArrowLeft: () => this.panBy(-step, 0), ArrowRight: () => this.panBy(step, 0), ArrowUp: () => this.panBy(0, -step), ArrowDown: () => this.panBy(0, step),
      "+": () => this.zoomBy(1.5), "=": () => this.zoomBy(1.5), "-": () => this.zoomBy(1 / 1.5), 0: () => this.reset(),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }

  #hover(id) {
    if (id === this.hovered) return;
    this.hovered = id;
    this.canvas.classList.toggle("pointing", id !== null);
    this.onHover(id);
    this.draw();
  }

  /** The state at a pixel, or null. */
  nearest(px, py) {
    let [best, least] = [null, 14 ** 2];
    const { width, height, scale } = this.#frame();
    const [x, y] = [this.view.x + (px - width / 2) / scale, this.view.y + (py - height / 2) / scale];
    const reach = 14 / scale;
    for (let i = 0; i < this.x.length; i += 1) {
      const [right, down] = [this.x[i] - x, this.y[i] - y];
      if (right > reach || right < -reach || down > reach || down < -reach) continue;
      const apart = (right * right + down * down) * scale * scale;
      if (apart < least) [best, least] = [i, apart];
    }
    return best;
  }

  radius(i) {
    return this.size[i] * Math.min(this.view.zoom ** 0.4, 3);
  }

  /** Draw in the next frame. */
  draw() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      if (this.canvas.isConnected) this.paint();
    });
  }

  paint() {
    const { width, height, scale } = this.#frame();
    if (!width || !height) return;
    const sharp = Math.min(devicePixelRatio || 1, 2);
    if (this.canvas.width !== Math.round(width * sharp) || this.canvas.height !== Math.round(height * sharp)) {
      this.canvas.width = Math.round(width * sharp);
      this.canvas.height = Math.round(height * sharp);
    }
    const pen = this.canvas.getContext("2d");
    pen.setTransform(sharp, 0, 0, sharp, 0, 0);
    pen.clearRect(0, 0, width, height);
    const dark = this.theme.matches;
    const seen = [];
    const dim = this.found.size > 0 || this.kind !== null;
    for (const [kind, members] of this.byClass) {
      pen.fillStyle = colourOf(kind, dark);
      pen.globalAlpha = dim && kind !== this.kind ? 0.16 : 0.72;
      pen.beginPath();
      for (const i of members) {
        const [px, py] = [width / 2 + (this.x[i] - this.view.x) * scale, height / 2 + (this.y[i] - this.view.y) * scale];
        if (px < -20 || py < -20 || px > width + 20 || py > height + 20) continue;
        if (seen.length < LABELS * 4) seen.push(i);
        dot(pen, px, py, this.radius(i));
      }
      pen.fill();
    }
    this.#emphasise(pen, dark);
    this.#names(pen, dark, seen);
    this.onMove?.(this.view);
  }

  #emphasise(pen, dark) {
    pen.globalAlpha = 1;
    for (const i of this.hovered === null ? this.found : [...this.found, this.hovered]) {
      const [px, py] = this.toPixels(this.x[i], this.y[i]);
      pen.beginPath();
      pen.arc(px, py, Math.max(this.radius(i), 3), 0, 7);
      pen.fillStyle = colourOf(this.data.class[i], dark);
      pen.fill();
      pen.lineWidth = i === this.hovered ? 3 : 1.5;
      pen.strokeStyle = dark ? "#ee9a72" : "#b3471f";
      pen.stroke();
    }
  }

  /** Names of classes first; those of states when few of them are in sight. */
  #names(pen, dark, seen) {
    const classes = this.data.classes ?? [];
    const few = !classes.length || this.x.length <= SMALL || this.view.zoom >= CLOSE;
    const close = this.data.labels && seen.length < LABELS * 4 && few;
    const states = [...this.found, ...seen.filter((i) => !this.found.has(i)).sort((a, b) => this.data.occupancy[b] - this.data.occupancy[a])];
    const wanted = close
      ? states.map((i) => [this.data.labels?.[i] ?? "", this.x[i], this.y[i], this.radius(i)])
      : [...this.found].map((i) => [this.data.labels?.[i] ?? "", this.x[i], this.y[i], this.radius(i)]).concat(classes.map((each) => [each.label, ...this.place(each.x, each.y), 0]));
    pen.globalAlpha = 1;
    pen.font = close ? "12px system-ui, sans-serif" : "600 13px system-ui, sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const taken = [];
    for (const [label, x, y, r] of wanted) {
      const name = cut(label, 24);
      if (!name || taken.length >= LABELS) continue;
      const [px, py] = this.toPixels(x, y);
      const wide = pen.measureText(name).width / 2 + 4;
      const at = [px - wide, py + (r ? r + 9 : 0) - 8, px + wide, py + (r ? r + 9 : 0) + 8];
      if (at[0] < 0 || at[2] > this.canvas.clientWidth || at[1] < 0 || at[3] > this.canvas.clientHeight || taken.some((other) => overlap(at, other))) continue;
      taken.push(at);
      pen.lineWidth = 4;
      pen.strokeStyle = dark ? "#15171a" : "#fdfcfa";
      pen.strokeText(name, px, (at[1] + at[3]) / 2);
      pen.fillStyle = dark ? "#e7e5e0" : "#1f2328";
      pen.fillText(name, px, (at[1] + at[3]) / 2);
    }
  }
}

/** Small points are squares, which are much faster than circles. */
function dot(pen, x, y, r) {
  if (r < 2) pen.fillRect(x - r, y - r, 2 * r, 2 * r);
  else {
    pen.moveTo(x + r, y);
    pen.arc(x, y, r, 0, 7);
  }
}

function overlap(a, b) {
  return a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3];
}

function clamp(value, low, high) {
  return Math.min(Math.max(value, low), high);
}

function grouped(items, key) {
  const found = new Map();
  for (const item of items) {
    const name = key(item);
    if (found.has(name)) found.get(name).push(item);
    else found.set(name, [item]);
  }
  return found;
}
