"""The page around the sections: title, facts of the run, warnings, style. No network, no script."""

from __future__ import annotations

from html import escape

from .run_data import RunData
from .sections import sections
from .style import STYLE


def render(run: RunData) -> str:
    """The report of a run as one HTML document."""
    body = [markup for module in sections() if (markup := module.section(run))]
    if not body or (not run.rounds and not run.summary and not run.comparison):
        body.insert(0, '<p class="headline">No round has finished yet.</p>')
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(run.name)}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>",
            f"<header><h1><b>{escape(run.name)}</b></h1>{_facts(run)}</header>",
            *(f'<p class="warning" role="status">{escape(warning)}</p>' for warning in _warnings(run)),
            *body,
            "<footer>Written by fedapps from the files of the run folder.</footer>",
            "</main>\n</body>\n</html>\n",
        ]
    )


def _facts(run: RunData) -> str:
    clients = len({record.node for record in run.nodes})
    rounds = max((record.round for record in run.rounds), default=0)
    facts = [
        f"task {run.task}" if run.task else "",
        f"{len(run.methods)} methods" if len(run.methods) > 1 else "",
        f"{clients} client{'' if clients == 1 else 's'}" if clients else "",
        f"{rounds} round{'' if rounds == 1 else 's'}" if rounds else "",
        f"seed {run.config['seed']}" if "seed" in run.config else "",
    ]
    return f'<ul class="facts">{"".join(f"<li>{escape(fact)}</li>" for fact in facts if fact)}</ul>'


def _warnings(run: RunData) -> list[str]:
    warnings = list(run.notes)
    if run.comparison is None:
        wanted = {name.strip() for name in str(run.config.get("methods", "")).split(",")} - {""}
        if absent := sorted(wanted - set(run.methods)):
            warnings.insert(0, f"Nothing was written yet for: {', '.join(absent)}.")
        if run.summary is None:
            warnings.insert(0, "This run has not finished (no summary.json): this is what it wrote so far.")
        elif not run.finished:
            under_way = [method for method in run.methods if method not in run.summary]
            warnings.insert(0, f"Has not finished: {', '.join(under_way)}. This is what it wrote so far.")
    return warnings
