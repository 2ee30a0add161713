// Landmarks of one kind need different names. The theme gives none to the buttons of code blocks, and modules share some.
const nameLandmarks = () => {
    const seen = new Map();
    for (const nav of document.querySelectorAll("nav:not([aria-hidden])")) {
        nav.dataset.name ??= nav.getAttribute("aria-label") ?? (nav.matches(".md-code__nav") ? "Code" : "");
        if (!nav.dataset.name) continue;
        const count = (seen.get(nav.dataset.name) ?? 0) + 1;
        seen.set(nav.dataset.name, count);
        nav.setAttribute("aria-label", count > 1 ? `${nav.dataset.name} ${count}` : nav.dataset.name);
    }
};
new MutationObserver(nameLandmarks).observe(document.body, {childList: true, subtree: true});
nameLandmarks();
