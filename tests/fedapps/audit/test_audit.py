"""Audits from the command line: rows, files, tables, and invalid arguments."""

import contextlib
import csv
import io
import itertools
import json
import random

import pytest
import torch
from fedapps.tasks.privacy.audit import ATTACKERS
from fedapps.tasks.text.privacy import SHARINGS
from tiny_encoder import encoder_folder

import fedapps.audit.run
from fedapps.audit.plan import ATTACKS
from fedapps.audit.victim import has_words, trained_victim
from fedapps.cli.commands import main
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.inputs import resolve

AUDITED = ("fedavg", "fedrecon", "fedvocab")  # the default
WORDS = [f"{first}{second}" for first in "bdfgklmn" for second in ("ado", "elu", "imi", "oru")]
RECIPE = """task = "text"
num-nodes = 2
rounds = 1
collect-after = 0
evaluate-every = 1
epochs = 1
batch-size = 8
learning-rate = 0.005
[text]
dataset = "agnews"
embedding-width = 8
hidden = 12
dropout = 0.1
"""


def write_texts(folder, words=WORDS):
    rng = random.Random(0)
    for name, count in (("train", 32), ("test", 8)):
        with (folder / f"{name}.csv").open("w", newline="") as file:
            for number in range(count):
                digits = rng.sample(range(100, 140), 3)
                text = f"{rng.choice(words)} {digits[0]} {rng.choice(words)} {digits[1]} {digits[2]}"
                csv.writer(file).writerow([1 + number % 4, text, "!"])
    return folder


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipes") / "tiny.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture(scope="module")
def audited(recipe, texts, tmp_path_factory):
    """The output of an audit, its folder, and the file given with ``--json``."""
    folder = tmp_path_factory.mktemp("audits")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main(
            ["audit", str(recipe), "--sentences", "3", "--batch-sizes", "1,3", "--steps", "3",
             "--set", f"data-dir={texts}", "--output-dir", str(folder), "--json", str(folder / "new" / "asked.json")]
        )  # fmt: skip
    assert status == 0
    (made,) = folder.glob("audit-tiny-*")
    return printed.getvalue(), made, folder / "new" / "asked.json"


def rows_by(found, on="gradient"):
    return {
        (row["method"], row["attacker"], row["attack"], row["batch_size"]): row
        for row in found["rows"]
        if row["on"] == on
    }


def test_rows_and_recovered_sentences_are_written(audited):
    _, made, asked = audited
    found = json.loads(asked.read_text())
    assert json.loads((made / "audit.json").read_text()) == found
    assert found.keys() == {"recipe", "rows", "recovered"}
    assert found["recipe"] == "tiny"
    rows = rows_by(found)
    updates = rows_by(found, "update")
    assert len(found["rows"]) == len(rows) + len(updates)
    read = {
        (method, name, attack, size)
        for method in AUDITED
        for name, attack in [*itertools.product(ATTACKERS, ("subspace", "sparse")), ("anybody", "rows")]
        for size in (1, 3)
    }
    matched = {(method, name, "dlg", size) for method in AUDITED for name in ATTACKERS for size in (1, 3)}
    assert rows.keys() == read | matched
    assert updates.keys() == read
    for row in found["rows"]:
        assert row.keys() == {
            "method", "attacker", "attack", "on", "batch_size", "precision", "recall", "f1", "ptlr", "seconds",
            "sentences", "distance",
        }  # fmt: skip
        assert row["sentences"] == 3
        assert (row["distance"] is None) == (row["attack"] != "dlg")
    assert all(0 < row["distance"] < 1 for row in found["rows"] if row["attack"] == "dlg")
    for one in found["recovered"]:
        assert one.keys() == {"method", "attacker", "attack", "on", "batch_size", "target", "recovered"}
        assert len(one["target"].split()) >= 6


def test_shared_rows_reveal_all_words_or_all_but_digits_or_none(audited):
    found = json.loads(audited[2].read_text())
    for rows, size in itertools.product([rows_by(found), rows_by(found, "update")], (1, 3)):
        measures = ("precision", "recall", "ptlr")
        assert [rows["fedavg", "anybody", "rows", size][name] for name in measures] == [1, 1, 1]
        assert [rows["fedvocab", "anybody", "rows", size][name] for name in measures] == [0, 0, 0]
        assert [rows["fedrecon", "anybody", "rows", size][name] for name in measures] == [1, pytest.approx(0.5), 0]


def test_attackers_with_the_current_or_initial_table_read_words_and_a_foreign_table_does_not(audited):
    rows = rows_by(json.loads(audited[2].read_text()))
    recall = {name: rows["fedvocab", name, "dlg", 1]["recall"] for name in ATTACKERS}
    assert recall["known"] > 0.7
    assert recall["public"] > 0.7
    assert recall["foreign"] < 0.4
    # One search serves all methods, which share the same gradients of an LSTM.
    for name in ("public", "foreign"):
        assert len({rows[method, name, "dlg", 1]["recall"] for method in AUDITED}) == 1
    assert rows["fedavg", "known", "dlg", 1]["recall"] == recall["known"]
    assert rows["fedrecon", "known", "dlg", 1]["ptlr"] < rows["fedavg", "known", "dlg", 1]["ptlr"]
    # Five distinct words of eight dimensions: the subspace attack reads them exactly.
    assert (
        rows["fedvocab", "known", "subspace", 1]["recall"] == rows["fedvocab", "public", "subspace", 1]["recall"] == 1
    )
    assert rows["fedvocab", "known", "subspace", 1]["precision"] == 1


def test_sparse_words_are_read_by_who_has_the_vectors(audited):
    rows = rows_by(json.loads(audited[2].read_text()), "update")
    recall = {name: rows["fedvocab", name, "sparse", 3]["recall"] for name in ATTACKERS}
    assert min(recall["known"], recall["public"]) > recall["foreign"] + 0.2


def test_a_guess_is_printed_and_is_no_attack(recipe, texts, tmp_path, capsys):
    arguments = ["audit", str(recipe), "--sentences", "3", "--batch-sizes", "3", "--attack", "sparse-prior,frequency"]
    arguments += ["--on", "update", "--methods", "fedvocab", "--set", f"data-dir={texts}"]
    assert main([*arguments, "--output-dir", str(tmp_path), "--json", str(tmp_path / "asked.json")]) == 0
    rows = json.loads((tmp_path / "asked.json").read_text())["rows"]
    # With foreign vectors, nothing but the guess would be left.
    assert [(row["attack"], row["attacker"]) for row in rows] == [
        ("sparse-prior", "known"), ("sparse-prior", "public"), ("frequency", "guesser")
    ]  # fmt: skip
    # One word per token, of a table with more words.
    assert 3 / 18 <= rows[-1]["recall"] < 1
    verdict = capsys.readouterr().out.partition("by the strongest of the attacks")[2]
    assert verdict.startswith(" sparse-prior on update, batch sizes 3")
    assert "frequency" not in verdict


def test_progress_and_findings_are_printed(audited):
    printed = audited[0]
    lines = printed.splitlines()
    done = [number for number, line in enumerate(lines) if line.startswith("[")]
    assert len(done) == 14  # subspace, sparse and rows on gradient and update, dlg on gradient, for two batch sizes
    assert lines[done[0] + 1].startswith("  fedavg, known, subspace on gradient, batch size 1: precision ")
    assert "almost zero" in printed
    assert "original: " in printed
    assert "  fedvocab: words read by known (" in printed
    assert "audit.json" in lines[-1]


def test_results_are_saved_after_every_job(recipe, texts, tmp_path, monkeypatch):
    seen = []

    def cut_off(cells, work, *, jobs, watch):
        for cell in cells[:2]:
            work(**cell)
            watch.end(cell)
            (path,) = tmp_path.glob("audit-*/audit.json")
            seen.append({(row["attack"], row["batch_size"]) for row in json.loads(path.read_text())["rows"]})
        raise KeyboardInterrupt

    monkeypatch.setattr(fedapps.audit.run, "run_matrix", cut_off)
    few = ["--attack", "rows", "--on", "gradient", "--batch-sizes", "1,2", "--sentences", "4"]
    arguments = ["audit", str(recipe), *few]
    assert main([*arguments, "--set", f"data-dir={texts}", "--output-dir", str(tmp_path)]) == 130
    assert seen == [{("rows", 1)}, {("rows", 1), ("rows", 2)}]


def test_an_audit_runs_on_a_simulated_world(recipe, tmp_path):
    arguments = ["audit", str(recipe), "--attack", "rows", "--sentences", "2", "--output-dir", str(tmp_path)]
    sets = ["--set", "text.source=simulated", "--set", f"cache-dir={tmp_path}", "--set", "num-nodes=3"]
    assert main([*arguments, *sets]) == 0


@pytest.mark.slow
def test_special_tokens_of_a_tokenizer_do_not_count(recipe, tmp_path):
    model = encoder_folder(tmp_path / "model")
    tokenizer = (model / "tokenizer.json").read_text()
    for number, word in enumerate(("one", "two", "three"), start=1):
        tokenizer = tokenizer.replace(f'"{word}"', f'"{number}"')
    (model / "tokenizer.json").write_text(tokenizer)
    (tmp_path / "texts").mkdir()
    for name in ("train", "test"):
        rows = [f'"{1 + number % 4}","1 2 {1 + number % 3}","3"' for number in range(8)]
        (tmp_path / "texts" / f"{name}.csv").write_text("\n".join(rows))
    asked = tmp_path / "asked.json"
    # With seed 0, all units of the ReLU layer are 0, and so are the gradients below it.
    sets = [f"data-dir={tmp_path / 'texts'}", f"text.model={model}", "text.max-length=12", "seed=1"]
    arguments = ["audit", str(recipe), "--sentences", "2", "--batch-sizes", "2", "--steps", "1", "--json", str(asked)]
    few = ["--methods", "fedavg,fedvocab", "--attackers", "known", "--attack", "subspace,dlg,rows"]
    assert (
        main([*arguments, *few, *(part for one in sets for part in ("--set", one)), "--output-dir", str(tmp_path)]) == 0
    )
    found = json.loads(asked.read_text())
    assert len(found["rows"]) == 10
    assert all(set(one["target"].split()) <= {"1", "2", "3"} for one in found["recovered"])
    assert rows_by(found)["fedavg", "anybody", "rows", 2]["recall"] == 1


def test_a_victim_of_a_run_with_compression_sends_compressed_changes(recipe, texts):
    def changes(**keys):
        given = read_recipe(
            recipe, {"data-dir": str(texts), "name": "x", "methods": "fedavg", "optimizer": "sgd", **keys}
        )
        trained_victim.cache_clear()
        target = trained_victim(tuple(sorted(parse(resolve(given, ".")).flat().items())), 1)
        sentence = target.sentences[0]
        return target.updated.share([sentence.words], [sentence.label], SHARINGS["fedavg"])

    exact, rounded, top = (
        changes(),
        changes(compression="int8"),
        changes(**{"compression": "top-k", "compression-share": 0.1}),
    )
    for name, change in exact.gradients.items():
        step = float(change.abs().max()) / 127
        torch.testing.assert_close(rounded.gradients[name], (change / step).round() * step, rtol=1e-4, atol=1e-7)
        assert 0 < int(top.gradients[name].count_nonzero()) <= max(0.1 * change.numel() + 0.5, 1)
    assert not any(exact.rounding.values())
    assert rounded.rounding.keys() == exact.gradients.keys()


def test_the_victim_is_deterministic_and_trained(recipe, texts):
    flat = tuple(sorted(parse({"task": "text", "data-dir": str(texts), "num-nodes": 2, "rounds": 1, "collect-after": 0,
                               "evaluate-every": 1, "epochs": 1, "text.hidden": 4, "text.embedding-width": 4,
                               "methods": "fedvocab"}).flat().items()))  # fmt: skip
    first = trained_victim(flat, 3)
    trained_victim.cache_clear()
    again = trained_victim(flat, 3)
    assert first.sentences == again.sentences
    assert first.victim.table.words == first.before_training.table.words
    assert (first.victim.table.vectors == again.victim.table.vectors).all()
    moved = (first.victim.table.vectors != first.before_training.table.vectors).any(1)
    written = {word for sentence in first.sentences for word in sentence.words}
    assert all(moved[first.victim.table.index[word]] for word in written)
    assert not first.victim.body.training


# -- invalid arguments ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--methods", "fedavg,fedsgd"],
            "--methods fedsgd: unknown; must be among fedavg, lg-fedavg, fedrecon, fedvocab",
        ),
        (["--attackers", "clever"], "--attackers clever: unknown; must be among known, public, foreign"),
        (["--attack", "dlg,guess"], "--attack guess: unknown; must be among " + ", ".join(ATTACKS)),
        (["--attack", "dlg,dlg"], f"--attack 'dlg,dlg': name at least one of {', '.join(ATTACKS)}, and none twice"),
        (["--on", "weights"], "--on weights: unknown; must be among gradient, update"),
        (["--on", "update", "--attack", "dlg"], "--on update: dlg and tag match gradients only"),
        (["--methods", ""], "--methods '': name at least one"),
        (
            ["--methods", "fedavg,lg-fedavg", "--attack", "subspace"],
            "--methods lg-fedavg: the first layer stays on the "
            "node, but --attack subspace reads its gradient; add --attack dlg, tag or rows",
        ),
        (["--batch-sizes", "1,0"], "--batch-sizes 0: must be between 1 and 4, the number of sentences"),
        (["--batch-sizes", "5"], "--batch-sizes 5: must be between 1 and 4"),
        (["--batch-sizes", "1,1"], "--batch-sizes '1,1': name at least one, and none twice"),
        (["--batch-sizes", "two,--2"], "--batch-sizes two, --2: must be whole numbers, separated by commas"),
        (["--steps", "0"], "--steps 0: must be at least 1"),
        (["--restarts", "-1"], "--restarts -1: must be at least 1"),
        (["--sentences", "1000"], "--sentences 1000: sentences = 1000: only 3"),
        (["--set", "task=lqr", "--attack", "rows"], "task = 'lqr': must be one of text, vln, because"),
        (["--attack", "leakage", "--set", "num-nodes=1"], "num-nodes = 1: two nodes or more"),
        (["--attack", "leakage", "--steps", "0"], "--steps 0: must be at least 1"),
        (["--set", "data-dir="], "data-dir = '': this recipe needs recorded data; add --set data-dir=FOLDER"),
        (["--set", "data-dir=/no/where"], "no such folder"),
        (["--set", "text.hidden=0"], "text.hidden = 0: must be"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_runs(arguments, told, recipe, texts, tmp_path, capsys):
    common = ["audit", str(recipe), "--sentences", "4", "--set", f"data-dir={texts}", "--output-dir", str(tmp_path)]
    assert main([*common, *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_recipe_without_a_task_has_the_default_one(tmp_path, capsys):
    (tmp_path / "plain.toml").write_text("rounds = 2\n")
    assert not has_words(tmp_path / "plain.toml")
    assert main(["audit", str(tmp_path / "plain.toml"), "--attack", "rows"]) == 2
    assert "task = 'driving': must be one of text, vln" in capsys.readouterr().err


def test_all_errors_are_reported_at_once(recipe, capsys):
    assert main(["audit", str(recipe), "--methods", "x", "--attack", "y", "--steps", "0"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
