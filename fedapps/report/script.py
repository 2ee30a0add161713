"""JavaScript of the report, as a Python string because Flower bundles do not include such files.

The page is complete without it: the script makes tables sortable by the titles of their columns.
"""

SCRIPT = """\
const NUMBER = /[-\\u2212]?(?:\\d[\\d,]*)?\\.?\\d+(?:e[-+]?\\d+)?/i;

function valueOf(row, column, numeric) {
    const text = row.cells[column].textContent.trim();
    const found = numeric && text.match(NUMBER);
    return found ? Number(found[0].replace("\\u2212", "-").replaceAll(",", "")) : numeric ? null : text;
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
"""
