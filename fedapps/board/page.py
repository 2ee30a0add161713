"""The page of the board, its script and its style, as Python strings because Flower bundles have no other files.

The script builds all elements from the state of the runs and writes names as text only, never as markup.
"""

from fedapps.report.style import STYLE as REPORT_STYLE

PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fedapps board</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/board.css">
</head>
<body>
<main>
<header class="top"><h1><b>fedapps board</b></h1><p id="link" role="status">connecting</p></header>
<p id="empty" class="lead" hidden>No runs in this folder yet. A run appears here as soon as it starts.</p>
<nav aria-label="runs"><ul id="runs"></ul></nav>
<div id="shown"></div>
<noscript><p class="warning">The board needs JavaScript. The reports in the run folders do not.</p></noscript>
</main>
<script src="/board.js"></script>
</body>
</html>
"""

STYLE = (
    REPORT_STYLE
    + """
.top { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: baseline; justify-content: space-between; }
.top p { margin: 0; font-size: .9rem; color: var(--soft); }
.top p::before, .state::before {
    content: ""; display: inline-block; width: .6em; height: .6em; border-radius: 50%; margin-right: .45em;
    background: var(--soft);
}
.top p.live::before, .state.running::before { background: var(--good); }
.top p.lost::before, .state.unreadable::before { background: var(--bad); }
.state.quiet::before { background: none; border: 2px solid var(--bad); }
#runs { list-style: none; margin: 18px 0 0; padding: 0; display: grid; gap: 8px; }
#runs button {
    width: 100%; display: grid; gap: 2px 16px; align-items: center; text-align: left; font: inherit; cursor: pointer;
    grid-template-columns: minmax(8rem, 3fr) minmax(6.5rem, 1fr) minmax(6rem, 2fr) minmax(9rem, 2fr);
    color: inherit; background: none; border: 1px solid var(--line); border-radius: 8px; padding: 9px 14px;
}
#runs button[aria-pressed="true"] { border-color: var(--accent); box-shadow: inset 3px 0 0 var(--accent); }
#runs b { overflow-wrap: anywhere; }
#runs small, .now { color: var(--soft); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
progress { width: 100%; height: 8px; accent-color: var(--accent); }
#shown { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 460px), 1fr)); gap: 10px 36px; }
#shown section { margin-top: 30px; min-width: 0; max-width: 720px; }
#shown h2 { overflow-wrap: anywhere; }
#shown td { overflow-wrap: anywhere; }
#shown a, #runs a { color: var(--accent); }
.chart { max-width: 640px; width: 100%; height: auto; display: block; }
.chart line { stroke: var(--line); }
.chart text { fill: var(--soft); font-size: 12px; }
.chart path { fill: none; stroke-width: 2; vector-effect: non-scaling-stroke; }
.refused { color: var(--bad); }
.dot { display: inline-block; width: .78em; height: .78em; border-radius: 3px; margin-right: .5em; }
#runs summary { font-weight: 400; color: inherit; padding: 6px 0; }
#runs details { margin: 0; }
#runs ul { list-style: none; margin: 4px 0 0; padding: 0 0 0 14px; display: grid; gap: 8px; }
@media (max-width: 620px) {
    #runs button { grid-template-columns: 1fr auto; }
    #runs progress, #runs button > small { grid-column: 1 / -1; }
}
"""
)

SCRIPT = """\
"use strict";
const SVG = "http://www.w3.org/2000/svg";
const STATES = {running: "running", finished: "finished", quiet: "no news", unreadable: "unreadable"};
const chosen = new Set(), opened = new Map();
let touched = false, runs = [], reports = [];

function element(name, content = [], attributes = {}) {
    const made = document.createElement(name);
    made.append(...[content].flat());
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
}

function drawn(name, attributes, text = "") {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
}

const number = value => value === null ? "" : String(Number(value.toPrecision(4)));
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function duration(seconds) {
    if (seconds < 60) return `${Math.ceil(seconds)} s`;
    if (seconds < 3600) return `${Math.ceil(seconds / 60)} min`;
    return `${Math.floor(seconds / 3600)} h ${String(Math.floor(seconds % 3600 / 60)).padStart(2, "0")} min`;
}

function size(bytes) {
    for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]])
        if (bytes >= scale) return `${number(bytes / scale)} ${unit}`;
    return `${Math.round(bytes)} B`;
}

const rounds = run => run.methods.reduce((sum, method) => sum + method.rounds, 0);
const wanted = run => run.methods.reduce((sum, method) => sum + (method.of || method.rounds), 0);
const refusals = run => run.nodes.reduce((sum, node) => sum + node.refused, 0);

function progressText(run) {
    if (run.state === "unreadable") return run.problem;
    if (!run.methods.length) return "no round yet";
    const left = run.seconds_left === null ? "" : `, about ${duration(run.seconds_left)} to go`;
    return `round ${rounds(run)} of ${wanted(run)}${left}`;
}

const refused = text => element("span", text, {class: "refused"});
const reportLink = path =>
    element("a", "report", {href: "/reports/" + path.split("/").map(encodeURIComponent).join("/")});

function entry(run) {
    const known = wanted(run), bar = element("progress", [], {"aria-label": "rounds", max: known || 1,
        value: run.state === "finished" ? known || 1 : rounds(run)});
    const bad = refusals(run);
    const button = element("button", [
        element("span", [element("b", run.path), " ", element("small", run.task)]),
        element("span", STATES[run.state], {class: `state ${run.state}`}),
        bar,
        element("small", bad ? [progressText(run), ", ", refused(`${bad} refused`)] : progressText(run)),
    ], {type: "button", "aria-pressed": String(chosen.has(run.path)), "data-run": run.path});
    button.addEventListener("click", () => {
        touched = true;
        chosen.has(run.path) ? chosen.delete(run.path) : chosen.add(run.path);
        show();
    });
    return element("li", button);
}

// The runs of a folder, such as a comparison, below one line; open while one of them goes on.
function group(folder, members) {
    const done = members.filter(run => run.state === "finished").length;
    const goesOn = members.some(run => run.state === "running");
    const summary = element("summary", [element("b", folder), ` ${done} of ${counted(members.length, "run")} finished `,
        ...(reports.includes(folder) ? [reportLink(folder)] : [])]);
    const details = element("details", [summary, element("ul", members.map(entry))]);
    details.open = opened.has(folder) ? opened.get(folder) : goesOn;
    details.addEventListener("toggle", () => { if (details.isConnected) opened.set(folder, details.open); });
    return element("li", details);
}

function entries() {
    const parents = new Map();
    for (const run of runs) {
        const parent = run.path.slice(0, Math.max(0, run.path.lastIndexOf("/")));
        if (!parents.has(parent)) parents.set(parent, []);
        parents.get(parent).push(run);
    }
    return [...parents].flatMap(([parent, members]) => parent ? [group(parent, members)] : members.map(entry));
}

function chart(run) {
    const points = run.methods.flatMap(method => method.points);
    if (!points.length) return element("p", "No evaluation yet.", {class: "now"});
    const [W, H, LEFT, BOTTOM] = [460, 230, 58, 24];
    const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    let [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    const room = (y1 - y0 || Math.abs(y1) || 1) * .05;
    [y0, y1] = [y0 - room, y1 + room];
    const px = x => LEFT + 8 + (W - LEFT - 16) * (x1 > x0 ? (x - x0) / (x1 - x0) : .5);
    const py = y => 8 + (H - BOTTOM - 16) * (y1 - y) / (y1 - y0);
    const ends = run.methods.filter(m => m.points.length).map(m => `${m.name} ${number(m.value)}`).join(", ");
    const svg = drawn("svg", {viewBox: `0 0 ${W} ${H}`, role: "img", class: "chart",
        "aria-label": `${run.metric} by round, last: ${ends}`});
    for (const part of [0, .5, 1]) {
        const y = y0 + room + (y1 - y0 - 2 * room) * part;
        svg.append(drawn("line", {x1: LEFT, x2: W, y1: py(y), y2: py(y)}));
        svg.append(drawn("text", {x: LEFT - 6, y: py(y) + 4, "text-anchor": "end"}, number(y)));
    }
    for (const x of x1 > x0 ? [x0, x1] : [x0])
        svg.append(drawn("text", {x: px(x), y: H - 6, "text-anchor": x === x1 ? "end" : "start"}, `round ${x}`));
    for (const method of run.methods) {
        const places = method.points.map(([x, y]) => `${px(x).toFixed(1)} ${py(y).toFixed(1)}`);
        svg.append(drawn("path", {d: "M" + places.join("L"), stroke: method.colour, "data-method": method.name}));
        const last = method.points.at(-1);
        if (last) svg.append(drawn("circle", {cx: px(last[0]), cy: py(last[1]), r: 3.5, fill: method.colour}));
    }
    return svg;
}

function table(titles, rows, texts) {
    const line = (cells, tag) => element("tr", cells.map((cell, place) =>
        element(tag, cell, place < texts ? {} : {class: "n"})));
    return element("div", element("table", [
        element("thead", line(titles, "th")), element("tbody", rows.map(row => line(row, "td")))]), {class: "scroll"});
}

function methodsTable(run) {
    return table(["method", "round", run.metric || "metric"], run.methods.map(method => {
        const dot = element("i", [], {class: "dot"});
        dot.style.background = method.colour;
        const round = method.of ? `${method.rounds} of ${method.of}` : String(method.rounds);
        return [[dot, method.name], round, number(method.value)];
    }), 1);
}

function nodesTable(run) {
    const timed = run.nodes.some(node => node.seconds);
    const rows = run.nodes.map(node => [node.name, String(node.round || ""), node.method ? number(node.examples) : "",
        node.method ? size(node.bytes) : "", ...(timed ? [node.seconds ? `${number(node.seconds)} s` : ""] : []),
        node.refused ? refused(`${node.refused}: ${node.reason}`) : "0"]);
    const heads = ["node", "last round", "examples", "last reply", ...(timed ? ["work on it"] : []), "refused replies"];
    const found = [table(heads, rows, 1)];
    if (run.hidden_nodes) found.push(element("p", `and ${counted(run.hidden_nodes, "other node")}`, {class: "now"}));
    return found;
}

function section(run) {
    const facts = [STATES[run.state], progressText(run)];
    if (run.seconds_per_round)
        facts.push(`${number(run.seconds_per_round)} s and ${size(run.bytes_per_round)} per round`);
    const parts = [element("h2", run.path), element("p", facts.join(" \\u00b7 "), {class: "now"})];
    if (run.report) parts.push(element("p", reportLink(run.path)));
    if (run.methods.length) parts.push(element("h3", run.metric || "Rounds"), chart(run), methodsTable(run));
    const nodes = run.nodes.length + run.hidden_nodes;
    if (nodes) parts.push(element("h3", counted(nodes, "node")), ...nodesTable(run));
    return element("section", parts, {"data-run": run.path});
}

function show() {
    const focused = document.activeElement?.dataset?.run, known = new Set(runs.map(run => run.path));
    for (const path of chosen) if (!known.has(path)) chosen.delete(path);
    if (!touched && runs.length) {  // until the reader chooses: what runs, or else the last run
        chosen.clear();
        const running = runs.filter(run => run.state === "running").slice(0, 2);
        for (const run of running.length ? running : runs.slice(0, 1)) chosen.add(run.path);
    }
    document.getElementById("empty").hidden = runs.length > 0;
    document.getElementById("runs").replaceChildren(...entries());
    document.getElementById("shown").replaceChildren(...runs.filter(run => chosen.has(run.path)).map(section));
    if (focused) [...document.querySelectorAll("#runs button")].find(button => button.dataset.run === focused)?.focus();
}

const link = document.getElementById("link");
function tell(text, state) {
    link.textContent = text;
    link.className = state;
}

const source = new EventSource("/events");
source.onopen = () => tell("reading the runs", "");
source.onerror = () => tell("connection lost; trying again", "lost");
source.onmessage = event => {
    ({runs, reports} = JSON.parse(event.data));
    tell("live", "live");
    show();
};
"""
