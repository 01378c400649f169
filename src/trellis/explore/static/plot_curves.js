// Line charts: a value over steps, epochs, tokens or seconds.

import { h, s } from "./dom.js";
import { compact, logTicks, number, ticks } from "./format.js";

const [WIDTH, HEIGHT] = [720, 320];
const [LEFT, RIGHT, TOP, BOTTOM] = [56, 110, 14, 40];

/** lines: [{ name, look, points: [[x, y], ...] }]; look is a class of the style sheet. */
export function curves(lines, xName, yName) {
  const all = lines.flatMap((line) => line.points);
  if (!all.length) return h("p", { class: "note" }, "Nothing was logged on this scale.");
  const [xs, ys] = [all.map(([x]) => x), all.map(([, y]) => y)];
  const [left, right] = [Math.min(...xs, 0), Math.max(...xs)];
  const [low, high] = [Math.min(...ys), Math.max(...ys)];
  const logarithmic = low > 0 && high / low > 3;
  const scale = logarithmic ? Math.log : (value) => value;
  const x = (value) => LEFT + ((WIDTH - LEFT - RIGHT) * (value - left)) / Math.max(right - left, 1e-12);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (scale(value) - scale(low))) / Math.max(scale(high) - scale(low), 1e-12);
  const grid = (logarithmic ? logTicks(low, high) : ticks(low, high, 5)).map((tick) => [
    s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(tick), y2: y(tick) }),
    s("text", { x: LEFT - 8, y: y(tick) + 4, "text-anchor": "end" }, compact(tick)),
  ]);
  const below = ticks(left, right, 6).map((tick) => s("text", { x: x(tick), y: HEIGHT - BOTTOM + 20, "text-anchor": "middle" }, compact(tick)));
  const names = spread(lines.filter((line) => line.points.length).map((line) => [y(line.points.at(-1)[1]), line]));
  const drawn = lines.filter((line) => line.points.length).map((line) =>
    s("g", { class: `line ${line.look}` }, s("polyline", { points: thin(line.points).map(([a, b]) => `${x(a).toFixed(1)},${y(b).toFixed(1)}`).join(" ") }), s("circle", { cx: x(line.points.at(-1)[0]), cy: y(line.points.at(-1)[1]), r: 3.5 })));
  const labels = names.map(([at, line]) => s("text", { class: `label ${line.look}`, x: x(line.points.at(-1)[0]) + 9, y: at + 4 }, `${line.name} ${number(line.points.at(-1)[1], 1)}`));
  const label = `${yName} by ${xName}: ${lines.map((line) => `${line.name} ends at ${line.points.length ? number(line.points.at(-1)[1], 1) : "nothing"}`).join(", ")}`;
  return h("figure", { class: "chart" }, s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label }, grid, below, s("text", { x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, xName), drawn, labels));
}

/** At most 600 points: a screen shows no more. */
function thin(points) {
  const step = Math.ceil(points.length / 600);
  return points.filter((_, i) => i % step === 0 || i === points.length - 1);
}

/** Labels at least 15 pixels apart. */
function spread(placed) {
  const sorted = placed.sort((a, b) => a[0] - b[0]);
  for (let i = 1; i < sorted.length; i += 1) sorted[i][0] = Math.max(sorted[i][0], sorted[i - 1][0] + 15);
  return sorted;
}
