"""The style sheet of the report: light and dark, system fonts only."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfcfa; --ink: #1f2328; --soft: #6a6f77; --line: #e4e1da; --ground: #f4f2ed;
  --one: #1c5d8c; --two: #c2542d;
  --serif: "Iowan Old Style", "Palatino Linotype", Palatino, "URW Palladio L", "Source Serif 4", Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #15171a; --ink: #e7e5e0; --soft: #989da5; --line: #2d3136; --ground: #1c1f23;
    --one: #7db8e3; --two: #ee9a72;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.5 var(--sans); }
main { max-width: 1040px; margin: 0 auto; padding: 72px 40px 96px; }
h1, h2, h3 { font-family: var(--serif); font-weight: 500; line-height: 1.15; margin: 0; }
h1 { font-size: 44px; letter-spacing: -.012em; }
h2 { font-size: 25px; }
h3 { font-size: 19px; margin-top: 40px; }
a { color: inherit; text-decoration: none; }
a:hover { color: var(--two); }
.kicker { margin: 0 0 10px; color: var(--one); font-size: 13px; font-weight: 600; letter-spacing: .09em; }
.corpus { margin: 14px 0 0; color: var(--soft); font-size: 16px; overflow-wrap: anywhere; text-wrap: balance; }
dl { display: flex; flex-wrap: wrap; gap: 20px 56px; margin: 36px 0 0; padding: 24px 0;
  border: solid var(--line); border-width: 1px 0; }
dt { color: var(--soft); font-size: 13px; }
dd { margin: 2px 0 0; font: 30px/1.2 var(--serif); font-variant-numeric: lining-nums tabular-nums; }
dl div:first-child dd { color: var(--one); }
section { margin-top: 68px; }
.caption { max-width: 68ch; margin: 8px 0 24px; color: var(--soft); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { padding: 0 16px 8px 0; border-bottom: 1px solid var(--ink); color: var(--soft); font-size: 13px;
  font-weight: 400; text-align: left; white-space: nowrap; }
td { padding: 9px 16px 9px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
.number { text-align: right; }
.results td { font-size: 16px; }
.results .this td:first-child { font-weight: 600; }
strong { color: var(--one); font-weight: 600; border-bottom: 2px solid var(--one); }
.states .number { width: 3em; padding-right: 24px; color: var(--soft); }
.states tr:target td { background: var(--ground); }
.share { display: flex; align-items: center; gap: 10px; width: 150px; color: var(--soft); font-size: 13px;
  line-height: 22px; }
.share b { width: 4em; font-weight: 400; text-align: right; }
.bar { flex: 1; height: 6px; background: var(--ground); }
.bar i { display: block; height: 100%; min-width: 1px; background: var(--one); }
.words span, .answers span { display: inline-block; margin: 0 4px 3px 0; padding: 0 6px; border-radius: 3px;
  white-space: nowrap; background: color-mix(in srgb, var(--one) calc(var(--p) * 55%), transparent); }
.next { width: 1%; white-space: nowrap; }
.next div { display: inline-block; margin-left: 18px; }
.next div:first-child { margin-left: 0; }
.next a { color: var(--one); }
.next a:hover { color: var(--two); }
.next small { margin-left: 5px; }
small { color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; font: 12px var(--sans); font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); }
.grid { stroke: var(--line); }
.axis { stroke: var(--soft); }
.baseline { stroke: var(--soft); stroke-dasharray: 2 4; }
text.baseline { stroke: none; }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
.train polyline { stroke: var(--one); }
.train .lowest { display: none; }
.valid polyline, .valid .lowest { stroke: var(--two); }
.lowest { fill: var(--paper); stroke-width: 2; }
.train .end, .label.train { fill: var(--one); }
.valid .end, .label.valid { fill: var(--two); }
.label { font-size: 13px; }
.value { font-weight: 600; }
.heatmap rect { fill: var(--one); }
.heatmap rect.ground { fill: var(--ground); }
.heatmap a:hover text { fill: var(--two); }
.heatmap rect:hover { stroke: var(--two); stroke-width: 2; }
.heatmap .ground:hover { stroke: none; }
blockquote { max-width: 68ch; margin: 0 0 14px; padding-left: 18px; border-left: 2px solid var(--line);
  font: 18px/1.5 var(--serif); overflow-wrap: anywhere; }
.answers { display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 18px 0 0; padding: 0; list-style: none; }
details { margin: 0; }
summary { color: var(--soft); font-size: 13px; cursor: pointer; }
.drawer > td { padding: 0 0 12px 6px; }
.drawer details[open] { padding-bottom: 6px; }
.drawer table { margin: 10px 0 0 20px; width: calc(100% - 20px); font-size: 14px; }
tr:has(+ .drawer) td { border-bottom: 0; padding-bottom: 3px; }
.facts { width: auto; margin-bottom: 18px; }
.facts th { padding: 7px 32px 7px 0; border-bottom: 0; vertical-align: top; }
.facts td { border-bottom: 0; padding: 5px 0; overflow-wrap: anywhere; }
.command, pre { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { overflow-x: auto; margin: 12px 0 0; padding: 16px 20px; background: var(--ground); }
.narrow { display: none; }
.heatmap, .trellis, .dynamics { max-width: 100%; }
@media (max-width: 700px) {
  main { padding: 32px 20px 64px; }
  h1 { font-size: 34px; }
  dl { gap: 16px 32px; margin-top: 24px; padding: 16px 0; }
  dd { font-size: 24px; }
  section { margin-top: 48px; }
  .broad { display: none; }
  .narrow { display: block; }
  .wide .heatmap, .wide .trellis, .wide .dynamics { width: auto; max-width: none; }
  .results td, .results th { padding-right: 10px; font-size: 13px; }
  .states, .states tbody, .states tr, .states td { display: block; width: auto; }
  .states thead { display: none; }
  .states tr { display: grid; grid-template-columns: 3.2em 1fr; padding: 10px 0; border-bottom: 1px solid var(--line); }
  .states tr:has(+ .drawer) { border-bottom: 0; padding-bottom: 0; }
  .states td { padding: 2px 0; border: 0; grid-column: 2; }
  .states td.number { grid-column: 1; grid-row: 1; width: auto; padding: 2px 0; text-align: left; }
  .states .drawer > td { padding: 0 0 6px; }
  .drawer table { margin-left: 0; width: 100%; }
  .next { white-space: normal; }
  .next::before { content: "then"; margin-right: 12px; color: var(--soft); font-size: 13px; }
  .facts tr, .facts th, .facts td { display: block; padding: 0; }
  .facts td { padding-bottom: 10px; }
}
"""
