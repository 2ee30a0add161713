"""Audits of a recipe of the task "vln" from the command line."""

import json

import pytest
from drawn_houses import run_keys, write_world

from fedapps.cli.commands import main


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
        (["--set", "task=social", "--attack", "rows"], "task = 'social': must be one of text, vln"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_runs(recipe, arguments, told, tmp_path, capsys):
    given = ["audit", str(recipe), "--sentences", "4", "--output-dir", str(tmp_path / "runs"), *arguments]
    assert main(given) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
