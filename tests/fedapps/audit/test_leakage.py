import itertools
import json
from dataclasses import replace

import pytest
import torch
from drawn_houses import run_keys, write_world
from fedapps.tasks.base import Secret
from fedapps.tasks.privacy.audit import ATTACKERS
from fedapps.tasks.text.privacy import SHARINGS, TextSubject
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedapps.audit.counts import input_errors, label_counts, linear_inputs, mean_answers, right_share
from fedapps.audit.matching import Search, decibels, errors, matched
from fedapps.audit.plan import AuditPlan
from fedapps.audit.run import finished
from fedapps.audit.text import audit_text, row_line, statement
from fedapps.cli.commands import main


def gradients(layer, inputs, labels):
    loss = nn.functional.cross_entropy(layer(inputs), labels)
    return torch.autograd.grad(loss, [layer.weight, layer.bias], create_graph=True)


def test_one_example_of_a_linear_layer_is_read_exactly():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(4, 3).double(), torch.rand(1, 4, dtype=torch.float64)
    weight, bias = (one.detach() for one in gradients(layer, inputs, torch.tensor([1])))
    read = linear_inputs(weight, bias)
    torch.testing.assert_close(read, inputs.expand(3, 4))
    assert input_errors(inputs, read) < 1e-12
    assert input_errors(torch.rand(1, 4), read) > 0.1  # another node's


def test_label_counts_of_a_worked_case():
    """Two examples of class 0 and one of class 2, all with p = (1/2, 1/4, 1/4): p - (2, 0, 1) / 3."""
    answers = torch.tensor([[0.5, 0.25, 0.25]]).expand(3, 3)
    gradient = torch.tensor([0.5 - 2 / 3, 0.25, 0.25 - 1 / 3])
    assert label_counts(gradient, answers, 3).tolist() == [2, 0, 1]
    assert label_counts(gradient * 0.1, answers, 3, scaled=True).tolist() == [2, 0, 1]


def test_label_counts_sum_to_the_examples_whatever_the_gradient():
    answers = mean_answers(torch.zeros(2, 3), torch.tensor([0, 0]))
    assert answers.tolist() == [[pytest.approx(1 / 3)] * 3] * 3
    assert int(label_counts(torch.zeros(3), answers, 4, scaled=True).sum()) == 4
    assert right_share(torch.tensor([2, 0, 1]), torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)


def test_matching_finds_an_image_and_not_that_of_another_node():
    torch.manual_seed(0)
    layer, label = nn.Linear(16, 3).double(), torch.tensor([1])
    image, other = torch.rand(2, 1, 4, 4, dtype=torch.float64)

    def simulate(batches):
        return torch.cat([one.flatten() for one in gradients(layer, batches[0]["image"].flatten(1), label)])

    target = simulate([{"image": image[None]}]).detach()
    secret = Secret("image", "images", 0.1)
    generator = torch.Generator().manual_seed(0)
    (read,), distance = matched(simulate, target, [{"image": image[None]}], [secret], Search(100, 50), generator)
    assert distance < 1e-8
    assert decibels(float(errors(image[None], read["image"]))) > 60
    assert float(errors(other[None], read["image"])) > secret.near


def test_errors_assign_what_was_read_to_the_examples():
    pixels = torch.tensor([[0, 255]], dtype=torch.uint8).T[:, :, None, None]
    read = torch.tensor([1.0, 0.5, 0.25])[:, None, None, None]
    assert errors(pixels, read).tolist() == [0.25, 0.0]
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0.0) == pytest.approx(200)


# Jobs of an audit, and what their results say together.


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


# Audits of a recipe of the task "vln" from the command line.


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = write_world(tmp_path_factory.mktemp("houses"))
    words = (
        "walk past the sofa bed sink table lamp door stairs rug plant and stop at , leaving where you is go to . ! ..."
    )
    (folder / "words.txt").write_text("\n".join([*words.split(), "stove", "desk", "piano", "shelf"]))
    keys = run_keys(folder, vocabulary_file="words.txt", vocabulary_size=40, word_width=64) | {"num-nodes": 3}
    path = folder / "tiny.toml"
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items() if "." not in key))
    with path.open("a") as file:
        file.write("[vln]\n")
        file.writelines(f"{k.removeprefix('vln.')} = {json.dumps(v)}\n" for k, v in keys.items() if "." in k)
    return path


@pytest.mark.slow
def test_the_words_of_instructions_are_read(recipe, tmp_path, capsys):
    asked = tmp_path / "asked.json"
    arguments = ["audit", str(recipe), "--sentences", "4", "--batch-sizes", "1,2", "--json", str(asked)]
    assert main([*arguments, "--output-dir", str(tmp_path)]) == 0
    found = json.loads(asked.read_text())
    assert {row["attack"] for row in found["rows"]} == {"subspace", "sparse", "rows"}
    assert {row["on"] for row in found["rows"]} == {"gradient", "update"}
    assert list(dict.fromkeys(row["method"] for row in found["rows"])) == ["fedavg", "fedvln"]
    for row in found["rows"]:
        assert row.keys() == {
            "method", "attacker", "attack", "on", "batch_size", "precision", "recall", "f1", "ptlr", "seconds",
            "sentences", "distance",
        }  # fmt: skip
        assert row["ptlr"] is None
        if row["attack"] == "rows" or (row["attack"], row["attacker"], row["on"]) == ("subspace", "known", "gradient"):
            assert (row["precision"], row["recall"]) == (1, 1)
    printed = capsys.readouterr().out
    assert "  fedvln: words read by known (1.000, subspace on gradient)" in printed
    assert "    digit tokens" not in printed
    assert "almost zero" not in printed  # a claim of another paper


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--attack", "dlg,rows"], "--attack dlg: matches gradients, which needs second derivatives through the agent"),
        (["--attack", "frequency"], "--attack frequency: needs public text of the same kind"),
        (["--attack", "tag"], "add --attack subspace or rows, which read the gradient itself"),
        (["--methods", "fedvocab"], "--methods fedvocab: unknown; must be among fedavg, fedvln"),
        (["--sentences", "1000"], "--sentences 1000: only 12 of 12 training instructions of the house houseA"),
        (["--set", "vln.stage=speaker"], "vln.stage = 'speaker': must be 'agent', 'augmented' or 'pre-exploration'"),
        (["--set", "task=social"], "task = 'social': --attack leakage reads what a task declares"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_runs(recipe, arguments, told, tmp_path, capsys):
    given = ["audit", str(recipe), "--sentences", "4", "--output-dir", str(tmp_path / "runs"), *arguments]
    assert main(given) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
