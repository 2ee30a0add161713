"""Jobs of an audit, and what their results say together."""

import itertools
import json
from dataclasses import replace

from fedapps.tasks.privacy.audit import ATTACKERS
from fedapps.tasks.text.privacy import SHARINGS, TextSubject
from hypothesis import given
from hypothesis import strategies as st

from fedapps.audit.plan import AuditPlan
from fedapps.audit.run import finished
from fedapps.audit.text import audit_text, row_line, statement

PLAN = AuditPlan(
    TextSubject(),
    tuple(SHARINGS),
    tuple(ATTACKERS),
    ("subspace", "dlg", "rows"),
    on=("gradient", "update"),
    batch_sizes=(1, 2),
    sentences=4,
    steps=8,
    restarts=1,
)


@given(st.integers(1, 40), st.data())
def test_jobs_cover_every_sentence_once_in_whole_batches(sentences, data):
    size = data.draw(st.integers(1, sentences))
    plan = replace(PLAN, sentences=sentences, batch_sizes=(size,))
    for attack, on in itertools.product(plan.attacks, plan.on):
        jobs = [job for job in plan.jobs() if (job["attack"], job["on"]) == (attack, on)]
        if (attack, on) == ("dlg", "update"):
            assert not jobs
            continue
        assert [n for job in jobs for n in range(job["start"], job["stop"])] == list(range(sentences))
        assert all(job["start"] % size == 0 for job in jobs)


def write_result(folder, name, **facts):
    part = {"method": "fedavg", "attacker": "known", "attack": "dlg", "on": "gradient", "batch_size": 1} | facts
    part = {"distances": [], "private": ["7"]} | part
    (folder / f"{name}.json").write_text(json.dumps([part]))


def test_results_of_jobs_are_combined_into_rows(tmp_path):
    write_result(
        tmp_path, "b", start=1, sentences=1, seconds=4.0, distances=[0.25], recoveries=[[["c", "d"], ["c", "x"]]]
    )
    write_result(
        tmp_path, "a", start=0, sentences=1, seconds=2.0, distances=[0.5], recoveries=[[["a", "7"], ["a", "7"]]]
    )
    write_result(tmp_path, "c", attacker="foreign", start=0, sentences=1, seconds=1.0, recoveries=[[["a"], ["b"]]])
    found = finished(tmp_path, "r")
    first, second = found["rows"]
    assert (first["precision"], first["recall"], first["ptlr"]) == (0.75, 0.75, 1)
    assert (first["seconds"], first["sentences"], first["distance"]) == (3, 2, 0.375)
    assert second["distance"] is None
    assert (second["attacker"], second["recall"], second["ptlr"]) == ("foreign", 0, None)
    assert [one["recovered"] for one in found["recovered"]] == ["a 7", "c x", "b"]
    text = audit_text(found)
    assert "original: c d\n  fedavg/known: C x" in text
    assert "words read by known (0.750, dlg on gradient); protected from foreign (0.000, dlg on gradient)\n" in text
    assert "    digit tokens read by known (1.000, dlg on gradient)" in text
    assert "by the strongest of the attacks dlg on gradient, batch sizes 1 (" in text
    assert row_line(second).startswith(
        "fedavg, foreign, dlg on gradient, batch size 1: precision 0.000, recall 0.000, digit tokens -"
    )


def test_the_statement_is_that_of_the_strongest_attack():
    dlg = {"method": "fedvocab", "attacker": "public", "attack": "dlg", "on": "gradient", "batch_size": 1, "ptlr": None}
    rows = dlg | {"attack": "subspace", "on": "update", "batch_size": 8}
    assert "fedvocab: words protected from public (0.100, dlg on gradient)" in statement([dlg | {"recall": 0.1}])
    both = statement([dlg | {"recall": 0.1}, rows | {"recall": 0.3}])
    assert "fedvocab: words partly read by public (0.300, subspace on update)" in both
    assert "attacks dlg on gradient, subspace on update, batch sizes 1, 8" in both
    assert "words read by public (0.500, dlg on gradient)" in statement([dlg | {"recall": 0.5}, rows | {"recall": 0.3}])
