// The tree of a sentence: words at the bottom, constituents above the middle of their words.

import { s } from "./dom.js";
import { word } from "./format.js";

const COLUMN = 84;
const ROW = 46;
const MARGIN = 16;

/** An SVG of constituents { symbol, start, stop }, parents first. */
export function treePlot({ words, constituents }) {
  const open = [];
  const placed = constituents.map((each) => {
    while (open.length && open.at(-1).stop <= each.start) open.pop();
    const node = { ...each, x: MARGIN + (COLUMN * (each.start + each.stop)) / 2, level: open.length, above: open.at(-1) ?? null };
    open.push(node);
    return node;
  });
  const lowest = Math.max(...placed.map((node) => node.level), 0);
  const y = (level) => MARGIN + ROW * (level + 0.5);
  const line = (x1, y1, x2, y2) => s("line", { x1, y1, x2, y2 });
  const parts = placed.flatMap((node) => {
    const above = node.above ? [line(node.above.x, y(node.above.level) + 7, node.x, y(node.level) - 14)] : [];
    if (node.stop - node.start > 1) return above;
    return [...above, line(node.x, y(node.level) + 7, node.x, y(lowest + 1) - 14)];
  });
  const names = placed.map((node) => s("text", { x: node.x, y: y(node.level), class: "symbol" }, s("title", null, `${node.symbol}: ${words.slice(node.start, node.stop).join(" ")}`), node.symbol));
  const leaves = words.map((token, t) => s("text", { x: MARGIN + COLUMN * (t + 0.5), y: y(lowest + 1), class: "leaf" }, word(token, 11)));
  const width = 2 * MARGIN + COLUMN * Math.max(1, words.length);
  const height = 2 * MARGIN + ROW * (lowest + 2);
  return s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The tree of ${words.length} words. The constituents are in the table below.` }, s("g", null, parts), names, leaves);
}
