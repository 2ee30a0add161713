"""JavaScript of the report, as a Python string because Flower bundles do not include such files.

The page is complete without it. The script makes tables sortable by the titles of their columns, makes the entries of
legends switches for their series, and shows the values of the point that is nearest to the pointer.
"""

SCRIPT = """\
const UNITS = {B: 1, kB: 1e3, MB: 1e6, GB: 1e9, s: 1, min: 60, h: 3600};
const NUMBER = /(-?(?:\\u221e|(?:\\d[\\d,]*)?\\.?\\d+(?:e[-+]?\\d+)?))(?: (B|kB|MB|GB|s|min|h)\\b)?/g;

// The first number of a text; with a unit, the sum of all numbers with units, as in "1 h 02 min".
function numberIn(text) {
    const found = [...text.replaceAll("\\u2212", "-").matchAll(NUMBER)];
    const parts = found.length && found[0][2] ? found.filter(part => part[2]) : found.slice(0, 1);
    const values = parts.map(([, digits, unit]) =>
        Number(digits.replaceAll(",", "").replace("\\u221e", "Infinity")) * (UNITS[unit] || 1));
    return values.length ? values.reduce((sum, value) => sum + value) : null;
}

function valueOf(row, column, numeric) {
    const text = row.cells[column].textContent.trim();
    return numeric ? numberIn(text) : text;
}

function compare(left, right) {
    if (typeof left === "number" && typeof right === "number") return left - right;
    return String(left).localeCompare(String(right), "en", {numeric: true});
}

function sortBy(title) {
    const column = title.cellIndex, body = title.closest("table").tBodies[0];
    const sign = title.ariaSort === "ascending" ? -1 : 1, numeric = title.classList.contains("n");
    const rows = [...body.rows].map(row => [valueOf(row, column, numeric), row]);
    const empty = rows.filter(([value]) => value === null || value === "");
    const sorted = rows.filter(pair => !empty.includes(pair)).sort(([a], [b]) => sign * compare(a, b));
    body.append(...[...sorted, ...empty].map(([, row]) => row));
    for (const other of title.parentNode.cells) other.removeAttribute("aria-sort");
    title.ariaSort = sign > 0 ? "ascending" : "descending";
}

for (const title of document.querySelectorAll("thead th")) {
    const body = title.closest("table").tBodies[0];
    if (!body || body.rows.length < 2 || !title.textContent.trim()) continue;
    const button = document.createElement("button");
    button.append(...title.childNodes);
    button.title = "sort by this column";
    button.addEventListener("click", () => sortBy(title));
    title.append(button);
}

const seriesIn = (part, name) =>
    [...part.querySelectorAll("[data-series]")].filter(group => name === undefined || group.dataset.series === name);

// An entry of a legend shows or hides its series in the figures of the section.
for (const entry of document.querySelectorAll(".legend li")) {
    const found = seriesIn(entry.closest("section"), entry.textContent);
    if (!found.length) continue;
    const button = document.createElement("button");
    button.append(...entry.childNodes);
    button.ariaPressed = "true";
    button.title = "show or hide";
    button.addEventListener("click", () => {
        button.ariaPressed = String(button.ariaPressed !== "true");
        for (const group of found) group.style.display = button.ariaPressed === "true" ? "" : "none";
    });
    entry.append(button);
}

const REACH = 24;  // the greatest distance in pixels from the pointer to a point

function nearest(svg, event) {
    let best = null;
    for (const group of seriesIn(svg)) {
        const matrix = group.getScreenCTM();
        if (group.style.display === "none" || !matrix) continue;
        for (const [x, y, text] of JSON.parse(group.dataset.points || "[]")) {
            const place = new DOMPoint(x, y).matrixTransform(matrix);
            const distance = Math.hypot(place.x - event.clientX, place.y - event.clientY);
            if (distance <= (best ? best.distance : REACH)) best = {distance, place, name: group.dataset.series, text};
        }
    }
    return best;
}

for (const figure of document.querySelectorAll("figure:has([data-points])")) {
    const tip = document.createElement("output");
    tip.className = "tip";
    tip.hidden = true;
    figure.append(tip);
    const svg = figure.querySelector("svg");
    svg.addEventListener("pointermove", event => {
        const best = nearest(svg, event), box = figure.getBoundingClientRect();
        tip.hidden = !best;
        if (!best) return;
        tip.textContent = `${best.name}, ${best.text}`;
        tip.style.left = `${Math.min(best.place.x - box.left, box.width - tip.offsetWidth)}px`;
        tip.style.top = `${best.place.y - box.top - tip.offsetHeight - 8}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}
"""
