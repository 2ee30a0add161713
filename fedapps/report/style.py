"""CSS of the report, as a Python string because Flower bundles do not include CSS files."""

STYLE = """\
:root {
    color-scheme: light dark;
    --paper: #fff; --ink: #1f2937; --soft: #6b7280; --line: #e5e7eb; --accent: #0072b2;
    --good: #007d5b; --bad: #c04f00; --warning: #fff7ed;
}
@media screen and (prefers-color-scheme: dark) {
    :root {
        --paper: #111827; --ink: #e5e7eb; --soft: #9ca3af; --line: #374151; --accent: #7cc4f0;
        --good: #34c79b; --bad: #f08a4b; --warning: #3a2413;
    }
    /* Charts are drawn on white: inverted, with their hues, and without the black that the white becomes. */
    figure svg, figure > img { filter: invert(1) hue-rotate(180deg); mix-blend-mode: screen; }
    .swatch { filter: invert(1) hue-rotate(180deg); }
}
* { box-sizing: border-box; }
body {
    margin: 0; background: var(--paper); color: var(--ink);
    font: 16px/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, "DejaVu Sans", sans-serif;
    font-variant-ligatures: none;
}
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 56px; }
h1 { font-size: 1.05rem; font-weight: 600; margin: 0; color: var(--soft); }
h1 b { color: var(--ink); }
h2 { font-size: 1.3rem; line-height: 1.25; margin: 0 0 4px; }
h3 { font-size: 1.05rem; margin: 22px 0 4px; }
section { margin: 44px 0 0; }
#result { margin-top: 14px; }
.headline { font-size: clamp(1.35rem, 3.4vw, 2rem); line-height: 1.25; margin: 0 0 20px; text-wrap: balance; }
.lead, .note { color: var(--soft); margin: 0 0 12px; max-width: 76ch; }
.note { font-size: .87rem; max-width: 100ch; margin-top: 8px; }
.facts {
    display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; margin: 4px 0 0; padding: 0;
    color: var(--soft); font-size: .9rem;
}
.warning { border-left: 4px solid #d55e00; background: var(--warning); padding: 10px 14px; margin: 16px 0 0; }
.instruction {
    margin: 20px 0 0; padding: 2px 0 2px 14px; max-width: 76ch; border-left: 3px solid var(--line);
}
.panels + .lead { margin-top: 20px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; min-width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem; }
th {
    text-align: left; vertical-align: bottom; font-weight: 600; font-size: .85rem;
    border-bottom: 2px solid var(--ink); padding: 6px 14px 6px 0;
}
td { border-bottom: 1px solid var(--line); padding: 8px 14px 8px 0; vertical-align: top; }
td:first-child { white-space: nowrap; font-weight: 600; }
th.n, td.n { text-align: right; padding: 8px 0 8px 14px; white-space: nowrap; }
th.n { white-space: normal; }
th button {
    font: inherit; color: inherit; text-align: inherit; background: none; border: 0; padding: 0; cursor: pointer;
}
th button:hover { text-decoration: underline; }
th[aria-sort] button::after { content: " \\2191"; color: var(--accent); }
th[aria-sort="descending"] button::after { content: " \\2193"; }
@media print { th button::after { content: none !important; } }
th small { display: block; font-weight: 400; color: var(--soft); white-space: nowrap; }
td small { color: var(--soft); }
.paper { display: block; color: var(--soft); font-size: .82rem; }
.best { white-space: nowrap; }
.swatch { display: inline-block; width: .78em; height: .78em; border-radius: 3px; margin-right: .5em; }
.legend {
    display: flex; flex-wrap: wrap; gap: 2px 18px; list-style: none; margin: 8px 0; padding: 0;
    font-size: .92rem;
}
.legend button {
    font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
}
.legend button:hover { text-decoration: underline; }
.legend button[aria-pressed="false"] { color: var(--soft); text-decoration: line-through; }
.tip {
    position: absolute; pointer-events: none; white-space: nowrap; padding: 1px 8px; border-radius: 4px;
    background: var(--ink); color: var(--paper); font-size: .82rem;
}
.panels {
    display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); gap: 18px 28px;
    margin-top: 12px; align-items: start;
}
.panels.wide { overflow-x: auto; grid-template-columns: minmax(0, 1fr); }
figure { position: relative; margin: 0; max-width: 560px; min-width: 0; }
.wide figure { max-width: 820px; min-width: 560px; }
figure svg, figure img { display: block; width: 100%; height: auto; }
.matches figcaption small { color: var(--soft); margin-left: .5em; }
.matches .grid { display: grid; gap: 8px 7px; margin-top: 4px; font-size: .82rem; line-height: 1.3; }
.matches .grid > small { color: var(--soft); }
.matches img { border: 4px solid var(--line); border-radius: 4px; }
.matches .correct img { border-color: #009e73; }
.matches .wrong img { border-color: #d55e00; }
.matches .correct b { color: var(--good); }
.matches .wrong b { color: var(--bad); }
figure svg text {
    font-family: system-ui, "Segoe UI", Roboto, Helvetica, Arial, "DejaVu Sans", sans-serif !important;
}
details { margin-top: 14px; }
summary { cursor: pointer; color: var(--accent); font-weight: 600; padding: 4px 0; }
code { font: .9em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-weight: 400; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
footer { margin-top: 56px; color: var(--soft); font-size: .85rem; }
@media (max-width: 560px) { main { padding: 18px 14px 40px; } section { margin-top: 34px; } }
@media print { details > * { display: block; } section { break-inside: avoid; } }
"""
