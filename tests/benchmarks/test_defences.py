"""The benchmark of defences: a small run, its table, and settings that are refused."""

import json

import pytest

import fedapps.audit.run
from benchmarks import defences
from fedapps.audit.victim import trained_victim

SMALL = """task = "text"
num-nodes = 2
rounds = 1
collect-after = 0
evaluate-every = 1
[text]
source = "simulated"
world-examples = 20
vocabulary-size = 60
embedding-width = 16
hidden = 4
"""


def in_this_process(cells, work, *, jobs, watch):
    return [work(**cell) for cell in cells]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    for module in (fedapps.audit.run, defences):
        monkeypatch.setattr(module, "run_matrix", in_this_process)
    chosen = {"none", "private encoder", "own start", "noise .01"}
    monkeypatch.setattr(defences, "DEFENCES", [one for one in defences.DEFENCES if one.name in chosen])
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    yield path
    trained_victim.cache_clear()


@pytest.mark.slow
def test_every_defence_is_attacked_and_run(recipe, tmp_path, capsys):
    given = ["--recipe", str(recipe), "--sentences", "2", "--per-update", "1", "--seeds", "1"]
    files = ["--json", str(tmp_path / "costs.json"), "--plot", str(tmp_path / "costs.png")]
    files += ["--set", f"cache-dir={tmp_path}"]
    assert defences.main([*given, *files]) == 0
    costs = json.loads((tmp_path / "costs.json").read_text())["methods"]
    assert list(costs) == ["none", "private encoder", "own start", "noise .01"]
    words = {
        name: {
            key.removeprefix("words, "): value
            for key, values in cost.items()
            for value in values
            if key.startswith("words, ")
        }
        for name, cost in costs.items()
    }
    assert words["none"]["rows"] == 1, "shared rows tell all words"
    assert words["private encoder"].keys() == {"rows", "frequency"}
    assert words["private encoder"]["rows"] == 0
    assert max(words["own start"][name] for name in ("subspace", "sparse", "rows")) < 0.5
    assert max(words["noise .01"].values()) < 1
    assert all(0 <= value <= 1 for cost in costs.values() for value in cost["local_accuracy"])
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
    assert "own start" in capsys.readouterr().out


def test_accuracies_of_an_earlier_run_are_taken_from_its_file(tmp_path, monkeypatch):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps({"methods": {"none": {"global_accuracy": [0.5, 0.75], "local_accuracy": []}}}))
    monkeypatch.setattr(defences, "DEFENCES", defences.DEFENCES[:1])
    assert defences.read_accuracies(path) == {"none": ([0.5, 0.75], [])}
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"costs.json: has no private vectors, "):
        defences.read_accuracies(path)


def test_a_task_without_words_is_refused_before_anything_runs(tmp_path, capsys):
    assert defences.main(["--recipe", "lqr", "--set", f"cache-dir={tmp_path}"]) == 2
    assert "lqr" in capsys.readouterr().err
