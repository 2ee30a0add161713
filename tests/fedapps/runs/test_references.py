"""References of a run: in its folder, its tables and its report, and in comparisons."""

import json
from itertools import count

import pytest
from drawn_houses import OPTIONS, write_world
from report_pages import page, section

import fedapps.comparison.summary
from fedapps.base.options import key_of
from fedapps.base.report.numbers import Estimate
from fedapps.comparison.matrix import Plan, Vary
from fedapps.comparison.summary import references_of, summarise
from fedapps.config.parsing import parse
from fedapps.launch.launch import Simulation, find_references, launch
from fedapps.report import write_report
from fedapps.report.comparison_tables import comparison_text
from fedapps.runs.run_folder import RunFolder
from fedapps.runs.tables import summary_table

pytestmark = pytest.mark.slow

NAMES = ("features", "feature_file", "feature_width", "vocabulary_size", "hidden", "word_width", "action_width")
SMALL = {
    "task": "vln", "methods": "fedavg", "num-nodes": 3, "rounds": 1, "steps": 1, "batch-size": 4, "collect-after": 0,
    "evaluate-every": 1, "name": "run", "vln.max-actions": 4, "vln.learning": "imitation", "vln.max-length": 12,
} | {f"vln.{key_of(name)}": getattr(OPTIONS, name) for name in NAMES}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module", params=["agent", "speaker"])
def run(request, world, tmp_path_factory, reports):
    """A launched run of a stage: its run config and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    given = SMALL | {"data-dir": str(world), "vln.stage": request.param, "output-dir": str(folder)}
    with reports():
        launch(given, Simulation("inline"), "")
    return given, folder / "run"


def test_a_run_leaves_its_references(run):
    given, folder = run
    found = json.loads((folder / "references.json").read_text())
    assert found == find_references(parse(given)) == RunFolder(folder, "").references()
    expected = {"agent": "shortest path", "speaker": "one person"}[given["vln.stage"]]
    assert f"<td>reference: {expected}</td>" in section((folder / "report.html").read_text(), "result")


def test_the_last_evaluation_leaves_something_to_draw(run):
    given, folder = run
    name = {"agent": "houses", "speaker": "sentences"}[given["vln.stage"]]
    assert section((folder / "report.html").read_text(), name)


def test_the_table_of_a_run_shows_its_references(run):
    given, folder = run
    table = summary_table(RunFolder(folder, "")).splitlines()
    references = RunFolder(folder, "").references()
    first = {"agent": "val_unseen.sr", "speaker": "val_unseen.bleu"}[given["vln.stage"]]
    for line, (name, metrics) in zip(table[-len(references) :], references.items(), strict=True):
        assert line.startswith(f"reference: {name} ")
        shown = line.removeprefix(f"reference: {name}").split()[0]
        assert float(shown) == pytest.approx(metrics[first], abs=0.5 * 10.0 ** -len(shown.partition(".")[2]))
        assert line.split()[-4:] == ["–"] * 4


def test_a_resumed_run_keeps_its_references(run, monkeypatch):
    given, folder = run
    kept = (folder / "references.json").read_bytes()

    def never(config):
        raise AssertionError

    monkeypatch.setattr("fedapps.launch.launch.find_references", never)
    launch(given | {"resume": True}, Simulation("inline"), "")
    assert (folder / "references.json").read_bytes() == kept


def test_a_report_is_written_once(world, tmp_path, monkeypatch):
    written = []
    monkeypatch.setattr("fedapps.app.server_app.write_report", lambda folder: written.append(write_report(folder)))
    launch(SMALL | {"data-dir": str(world), "output-dir": str(tmp_path)}, Simulation("inline"), "")
    assert written == [tmp_path / "run" / "report.html"]


def test_a_run_that_does_not_begin_leaves_no_references(world, tmp_path, monkeypatch):
    def refused(config, engine):
        raise ValueError(engine)

    monkeypatch.setattr("fedapps.launch.launch.execute", refused)
    with pytest.raises(ValueError, match="inline"):
        launch(SMALL | {"data-dir": str(world), "output-dir": str(tmp_path)}, Simulation("inline"), "")
    assert not list(tmp_path.rglob("references.json"))


@pytest.mark.parametrize(
    ("data_dir", "seed_keys", "seeds"),
    [("", (), [3, 5]), ("here", (), [3]), ("here", ("text.partition-seed",), [3, 5])],
    ids=["simulated", "recorded", "recorded, with a seed that changes them"],
)
def test_references_are_found_once_for_each_seed_that_has_others(tmp_path, monkeypatch, data_dir, seed_keys, seeds):
    asked = []

    def found(config):
        asked.append(config.run.seed)
        return {"forward": {"test.x": float(config.run.seed)}}

    monkeypatch.setattr(fedapps.comparison.summary, "find_references", found)
    config = {"task": "text", "collect-after": 0, "text.source": "simulated", "data-dir": data_dir}
    plan = Plan("mine", config, ("fedavg",), (3, 5), "inline", seed_keys=seed_keys)
    for _ in range(2):  # the second time, as after an interruption, they are in the folder
        assert references_of(plan, tmp_path)[0]["forward"]["x"].mean == sum(seeds) / len(seeds)
        assert asked == seeds


def test_points_with_the_same_task_and_weights_of_nodes_have_the_same_references(tmp_path, monkeypatch):
    asked = []

    def found(config):
        asked.append((config.options.hidden, config.run.weighting))
        return {"forward": {"test.x": config.options.hidden + 0.5 * (config.run.weighting == "uniform")}}

    monkeypatch.setattr(fedapps.comparison.summary, "find_references", found)
    config = {"task": "text", "collect-after": 0, "text.source": "simulated", "data-dir": "here"}
    weights = Vary("weighting", ("uniform", "num-examples"))
    vary = (Vary("epochs", (1, 2)), Vary("text.hidden", (8, 16)), weights)
    plan = Plan("mine", config, ("fedavg",), (3,), "inline", vary=vary)
    tables = references_of(plan, tmp_path)
    assert references_of(plan, tmp_path) == tables  # from the folder
    assert [table["forward"]["x"].mean for table in tables] == 2 * [8.5, 8, 16.5, 16]
    assert asked == [(hidden, weighting) for hidden in (8, 16) for weighting in weights.values]


def test_long_references_say_how_far_they_are(tmp_path, monkeypatch, capsys):
    clock = count(0, 20)
    monkeypatch.setattr(fedapps.comparison.summary.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(fedapps.comparison.summary, "find_references", lambda config: {"forward": {"test.x": 1.0}})
    config = {"task": "text", "collect-after": 0, "text.source": "simulated", "data-dir": ""}
    references_of(Plan("mine", config, ("fedavg",), (3, 5, 7), "inline"), tmp_path)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "1 of 3 results without federated training; about 40 s to go",
        "2 of 3 results without federated training; about 20 s to go",
    ]


def test_a_comparison_carries_its_references(tmp_path):
    plan = Plan("fedvln-none", {"task": "vln"}, ("fedavg",), (0,), "inline")
    rows = [{"method": "fedavg", "seed": 0, "metrics": {"val_unseen.sr": 0.25}, "curves": {}, "nodes": []}]
    references = {"forward": {"val_unseen.sr": Estimate(0.125)}}
    comparison = summarise(plan, rows, [references])
    assert comparison.references == references
    assert "references" not in summarise(plan, rows, [{}]).text()
    assert comparison_text(comparison).splitlines() == [
        "method              val unseen SR",
        "---------------------------------",
        "fedavg                     0.2500",
        "reference: forward         0.1250",
    ]
    worse = summarise(plan, rows, [{"random": {"val_unseen.sr": Estimate(0.5)}}])
    assert list(worse.notes) == ["Worse than the reference 'random' (0.5) in val_unseen.sr: fedavg (0.25)."]
    assert comparison_text(worse).splitlines()[-1] == worse.notes[0]
    (tmp_path / "compare.json").write_text(comparison.text())
    shown = section(page(tmp_path), "comparison")
    assert '<td>reference: forward</td><td class="n">0.1250</td>' in shown


def test_each_value_of_a_varied_key_has_its_references():
    vary = Vary("vln.houses", ("all", "seen"))
    plan = Plan("fedvln-none", {"task": "vln"}, ("fedavg",), (0,), "inline", (vary,))
    rows = [
        {"method": "fedavg", "seed": 0, "metrics": {"val_seen.sr": 0.25}, "curves": {}, "nodes": []}
        for _ in vary.values
    ]
    comparison = summarise(plan, rows, [{"forward": {"val_seen.sr": Estimate(share)}} for share in (0.5, 0.75)])
    found = [part.references["forward"]["val_seen.sr"].mean for part in comparison.varied]
    assert found == [0.5, 0.75]
    assert comparison.references == {}
