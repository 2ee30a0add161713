"""The node with the lowest accuracy under each method."""

from markupsafe import Markup

ORDER = 75


def section(run):
    """One line per method; None if no node reported an accuracy."""
    lines = []
    for method in run.methods:
        nodes = [n for n in run.nodes if n.method == method and "test.accuracy" in n.metrics]
        last = [n for n in nodes if n.round == max(other.round for other in nodes)]
        if last:
            worst = min(last, key=lambda n: n.metrics["test.accuracy"])
            line = Markup("<li>{}: {}, accuracy {:.2f}</li>")
            lines.append(line.format(method, worst.node, worst.metrics["test.accuracy"]))
    whole = Markup('<section id="worst-node"><h2>Worst node</h2><ul>{}</ul></section>')
    return whole.format(Markup().join(lines)) if lines else None
