"""Runs that start from another run, in one process."""

import json
from pathlib import Path

import numpy as np
import pytest
from fedapps.strategies import TooFewRepliesError
from fedapps.tasks.lqr.world import COLUMNS
from fedapps.tasks.text.sources import write_examples
from image_files import drawn, write_folders
from killed_processes import killed_in
from method_worlds import METHODS, MORE, AdaptedPoints, Quadratics, StagedPoints, registered, run_method, world_of
from safetensors.numpy import load_file
from small_runs import LQR, run_inline, timed_runs, with_changes
from toys import same_bits

from fedapps import load
from fedapps.config.recipe_files import read_recipe
from fedapps.registry.methods import method_class
from fedapps.report import read_run
from fedapps.report.sections.simulated_time import fleet_use
from fedapps.runs.champions import Registry
from fedapps.runs.run_folder import STARTED, RunFolder, read_label, read_object

#: What runs have in common with which the server, the samplers and the compression keep something between rounds.
PLAIN = {"track_metric": "test.loss"}
#: One round of texts of two classes.
SMALL_TEXT = {
    "task": "text", "rounds": 1, "epochs": 1, "batch-size": 2, "learning-rate": 0.01, "evaluate-every": 1,
    "collect-after": 0, "text.dataset": "mine", "text.classes": 2, "text.embedding-width": 4, "text.hidden": 3,
    "text.max-length": 6, "max-failed-evaluations": 0,
}  # fmt: skip

#: One round of small images.
SMALL_IMAGES = {
    "task": "images", "num-nodes": 1, "rounds": 1, "epochs": 1, "learning-rate": 0.1, "optimizer": "sgd",
    "evaluate-every": 1, "collect-after": 0, "images.model": "mlp", "images.dataset": "own", "images.height": 6,
    "images.width": 5,
}  # fmt: skip


def states_of(folder):
    """The newest private arrays of each node under each method."""
    newest = {path.parent.parts[-2:]: path for path in sorted(folder.glob("nodes/*/*/*/round-*.safetensors"))}
    errors = {path.parent.parts[-3:]: path for path in sorted(folder.glob("nodes/*/*/*/*/round-*.safetensors"))}
    return {name: (path.name, load_file(path)) for name, path in (newest | errors).items()}


def assert_goes_on(folder, method, task, rounds, **keys):
    """Assert that a run and one that starts from it end as one with the rounds of both."""
    run_method(method, task, rounds=2 * rounds, folder=folder, name="whole", **keys)
    run_method(method, task, rounds=rounds, folder=folder, name="first", **keys)
    run_method(method, task, rounds=rounds, folder=folder, name="second", start="first", **keys)
    whole, second = (RunFolder(folder / name, "") for name in ("whole", "second"))
    one, two = (run.checkpoints(method).last() for run in (whole, second))
    assert two.round == 2 * rounds
    assert one.arrays.keys() == two.arrays.keys()
    assert [name for name in one.arrays if not np.array_equal(one.arrays[name], two.arrays[name])] == []
    mine, other = states_of(whole.path), states_of(second.path)
    assert mine.keys() == other.keys()
    for name, (version, arrays) in mine.items():
        assert version == other[name][0]
        assert same_bits(arrays, other[name][1]), name
    own = [row for row in whole.lines("nodes.jsonl") if row["round"] > rounds]
    assert second.lines("nodes.jsonl") == own


@pytest.mark.parametrize("method", [name for name in METHODS if not method_class(name).needs_stages])
def test_a_run_that_starts_from_another_ends_as_one_with_the_rounds_of_both(method, tmp_path):
    assert_goes_on(tmp_path, method, world_of(method), 1, **MORE.get(method, {}), **PLAIN)


@pytest.mark.parametrize(
    "keys",
    [
        {"server_optimizer": "adam", "server_learning_rate": 0.1},
        {"fraction_train": 0.5},
        {"drop_nodes": True},
        {"sampling": "poisson", "fraction_train": 0.5, "min_replies": 0},
        {"compression": "top-k", "compression_share": 0.5},
    ],
)
def test_so_does_what_the_server_the_samplers_and_the_compression_keep(keys, tmp_path):
    assert_goes_on(tmp_path, "fedavg", world_of("fedavg"), 2, **keys)


def test_stages_begin_again_from_what_the_methods_carry_over(tmp_path):
    run_method("fedcurv", StagedPoints, folder=tmp_path, name="first")
    run_method("fedcurv", StagedPoints, folder=tmp_path, name="second", start="first")
    lines = RunFolder(tmp_path / "second", "").lines("metrics.jsonl")
    assert [(row["round"], row["stage"]) for row in lines] == [(3, "stage 1 of 2"), (4, "stage 2 of 2")]
    assert all(not row["refused"] for row in lines)


def test_a_run_that_begins_again_starts_once_more_from_the_other_and_forgets_no_release(tmp_path):
    """Round 1 is of the first run, round 2 of the second, whose nodes release it in both of its attempts."""
    keys = with_changes(LQR, {"methods": "fedavg", "rounds": 1, "dp": "local", "cache-dir": str(tmp_path / "worlds")})
    run_inline(keys | {"name": "first"}, tmp_path)
    keys |= {"name": "second", "start": str(tmp_path / "first")}
    second = run_inline(keys, tmp_path)
    assert second.releases("fedavg").by_round() == {1: 1, 2: 1}
    second.begin_again()
    assert not second.finished("fedavg")
    assert not list((second.path / "checkpoints").glob("**/*"))
    run_inline(keys | {"resume": True}, tmp_path)
    assert second.releases("fedavg").by_round() == {1: 1, 2: 2}
    assert [row["round"] for row in second.lines("metrics.jsonl")] == [2]


def test_the_simulated_time_of_a_run_is_its_own(tmp_path):
    """With 1 s a step and as many steps in each round, both runs reach the target as soon and take as long."""
    timed = {"methods": "fedavg", "rounds": 2, "evaluate-every": 1, "clock-step-seconds": "1", "target": 1e6}
    keys = with_changes(LQR, timed | {"track-metric": "test.total_loss", "cache-dir": str(tmp_path / "worlds")})
    first = run_inline(keys | {"name": "first"}, tmp_path)
    second = run_inline(keys | {"name": "second", "start": str(first.path)}, tmp_path)
    one, two = (run.summary()["methods"]["fedavg"]["final"] for run in (first, second))
    assert two["simulated_time"] == one["simulated_time"] == 2 * one["time_to_target"] > 0
    assert two["time_to_target"] == one["time_to_target"]
    assert second.lines("metrics.jsonl")[-1]["clock"] == 2 * one["simulated_time"], "the clock goes on"
    use = fleet_use(read_run(second.path), "fedavg", None)
    assert set(use.busy.values()) == {1.0}


# -- what does not fit -------------------------------------------------------------------------------------------


class Shifted(Quadratics):
    """The same robots with other optima: data that changed."""

    nodes = ((1.0, 4.0), (3.0, 1.0))


@pytest.fixture
def first(tmp_path):
    run_method("ditto", Quadratics, folder=tmp_path, name="first")
    return tmp_path


def start(folder, method="ditto", task=Quadratics, **keys):
    return run_method(method, task, folder=folder, **({"name": "second", "start": "first"} | keys))


def test_a_node_carries_on_with_its_private_arrays_and_a_new_node_has_none(first):
    before = states_of(first / "first")
    # the second node is replaced by one that took no part
    (node,) = (first / "first").glob("nodes/*/ditto/node-1")
    node.rename(node.with_name("node-9"))
    rounds = start(first, task=Shifted, rounds=1)
    assert rounds.arrays[0].keys() == {"theta"}  # the copied checkpoint
    kept = [load_file(path) for path in sorted((first / "second").glob("nodes/*/ditto/node-0/*.safetensors"))]
    assert same_bits(kept[0], before["ditto", "node-0"][1])
    assert not list((first / "second").glob("nodes/*/ditto/node-1/round-000002*"))
    assert same_bits(load_file(node.with_name("node-9") / "round-000002.safetensors"), before["ditto", "node-1"][1])


def test_a_chain_of_runs_needs_only_the_last_one_and_names_only_the_last_runs(first, monkeypatch):
    monkeypatch.setattr("fedapps.app.start._LINEAGE", 2)
    start(first, rounds=1)
    (first / "first").rename(first / "gone")
    start(first, rounds=1, name="third", start="second")
    assert [row["round"] for row in RunFolder(first / "third", "").lines("metrics.jsonl")] == [4]
    start(first, rounds=1, name="fourth", start="third")
    labels = [read_label(first / name / "label") for name in ("third", "second")]
    assert read_object(first / "fourth" / STARTED)["lineage"] == labels


def test_the_best_checkpoint_and_the_private_state_that_belongs_to_it(tmp_path):
    keys = {"track_metric": "test.loss", "learning_rate": 0.5, "steps": 4}
    run_method("ditto", Quadratics, folder=tmp_path, name="first", rounds=3, track_mode="max", **keys)
    best = RunFolder(tmp_path / "first", "").checkpoints("ditto").best().round
    assert best < 3
    rounds = start(tmp_path, rounds=1, start_from="best", track_mode="max", **keys)
    assert rounds.folder.path.exists() is False
    assert RunFolder(tmp_path / "second", "").checkpoints("ditto").rounds() == [best, best + 1]
    assert {version for version, _ in states_of(tmp_path / "second").values()} == {f"round-{best + 1:06d}.safetensors"}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"start": "none"}, "none is neither a run folder nor a model folder"),
        ({"seed": 1}, "seed = 1: must be 0"),
        ({"held_out_nodes": "node-1,"}, "held-out-nodes = 'node-1,': must be '' to start from .* have trained"),
        ({"method": "fedavg"}, "'fedavg' is no finished method of the run .*first, which has ditto"),
        ({"start_from": "best"}, "start-from = 'best': the run .* has no such checkpoint"),
        ({"dp": "central-server", "method": "fedavg"}, "dp = 'central-server': must be 'none' to start from"),
        ({"state_backend": "context"}, "state-backend = 'context': must be 'disk' with start"),
        ({"newest": "new"}, "newest = 'new': must be 'all', because the examples of task 'quadratics' have no order"),
        ({"newest": "0"}, "newest = '0': must be 'all', 'new' or a number above 0"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(first, keys, message):
    with pytest.raises(ValueError, match=message):
        start(first, **keys)
    assert not (first / "second").exists()


class Wide(Quadratics):
    """A model of another shape."""

    def build_model(self):
        model = super().build_model()
        model.theta = type(model.theta)(model.theta.detach().repeat(2))
        return model


def test_another_shape_is_refused(first):
    with pytest.raises(
        ValueError, match=r"start = .*ditto cannot go on: the checkpoint of round 2 does not fit.*theta"
    ):
        start(first, task=Wide)


def test_an_unfinished_run_is_resumed_first(tmp_path):
    run_method("ditto", Quadratics, folder=tmp_path, name="first")
    (tmp_path / "first" / "summary.json").unlink()
    with pytest.raises(ValueError, match="which has none: resume that run first"):
        start(tmp_path)


def test_more_rounds_of_a_finished_run_are_a_start(tmp_path):
    run_method("ditto", Quadratics, folder=tmp_path)
    with pytest.raises(ValueError, match=r"(?s)go on from the finished run with start = .*rounds: was 2, is 4"):
        run_method("ditto", Quadratics, folder=tmp_path, rounds=4, resume=True)


@pytest.mark.parametrize("step", ["runs.checkpoints.DiskCheckpoints.save", "app.start.whole_folder"])
def test_a_server_that_is_killed_while_it_copies_copies_again(first, step):
    undisturbed = start(first, rounds=1, name="third")
    assert undisturbed.arrays
    with killed_in(step):
        run_method("ditto", folder=first, rounds=1, name="second", start="first")
    start(first, rounds=1, resume=True)
    one, two = (RunFolder(first / name, "").checkpoints("ditto").last() for name in ("second", "third"))
    assert same_bits(one.arrays, two.arrays)


def test_the_server_optimizer_can_change(first):
    assert len(start(first, server_optimizer="adam", server_learning_rate=0.1).arrays) == 3


# -- model folders -----------------------------------------------------------------------------------------------


def test_a_model_folder_gives_the_shared_arrays(tmp_path):
    run_method("fedavg", Quadratics, folder=tmp_path, name="first")
    with registered(Quadratics):
        load(tmp_path / "first").save(tmp_path / "model")
    before = RunFolder(tmp_path / "first", "").checkpoints("fedavg").last().arrays["shared.theta"]
    rounds = start(tmp_path, "fedprox(mu=0)", start=str(tmp_path / "model"), rounds=1)
    (message, *_) = [sent for kind, _, sent, _ in rounds.messages if kind == "train"]
    assert np.array_equal(message["arrays"]["theta"].numpy(), before)
    assert message["config"]["server-round"] == 1


def test_flora_starts_from_the_weights_that_it_has_changed_and_no_other_method_without_them(tmp_path):
    keys = {"steps": 1, "rounds": 1}
    first = run_method("flora", AdaptedPoints, folder=tmp_path, name="first", learning_rate=0.2, rounds=3)
    with registered(AdaptedPoints):
        load(tmp_path / "first", "flora").save(tmp_path / "model")
    second = start(tmp_path, "flora", AdaptedPoints, start=str(tmp_path / "model"), **keys)
    sent = next(message for kind, _, message, _ in second.messages if kind == "train")["arrays"]
    weight = "body.0.base.weight"
    assert np.array_equal(sent[weight].numpy(), first.arrays[-1][weight])
    with pytest.raises(ValueError, match=f"has another {weight} than the nodes build, and this method does not send"):
        start(tmp_path, "fedit", AdaptedPoints, start=str(tmp_path / "model"), name="third", **keys)


@pytest.mark.parametrize("mode", [{"mode": "async", "buffer": 2}, {"deadline": 9.0}])
def test_without_simulated_time_no_reply_of_the_run_before_is_in_flight(mode, tmp_path):
    run = timed_runs(tmp_path, {"robot-00": 30.0, "robot-01": 1.0, "robot-02": 2.0}, rounds=2)
    run("first", **mode)
    second = run("second", start="first", clock_devices="", **mode)
    assert [row["round"] for row in second.lines("metrics.jsonl")] == [3, 4]


# -- nodes with their own data -----------------------------------------------------------------------------------


def node_config(folder):
    return {"data-dir": str(folder), "state-dir": str(folder.with_name("state"))}


def write_robot(folder, steps):
    """A robot's file with so many training steps, and one test step."""
    folder.mkdir(exist_ok=True)
    rows = [f"robot-7,2,train,0,{step},{step / 10},0.1,0.2,{step / 9},0.3" for step in range(steps)]
    lines = [",".join(COLUMNS), *rows, "robot-7,2,test,1,0,1,0,0,1,0"]
    (folder / "robot-7.csv").write_text("\n".join(lines) + "\n")


def run_robot(folder, name, **keys):
    """Run one robot in one process; the numbers of its training examples by round."""
    given = with_changes(LQR, {"num_nodes": 1, "rounds": 1, "name": name, "methods": "ditto", **keys})
    run = run_inline(given, folder, [node_config(folder / "robot")])
    return [row["num_examples"] for row in run.lines("nodes.jsonl") if row["phase"] == "train"]


def test_a_node_finds_its_state_of_the_run_before_and_says_how_many_examples_are_new(tmp_path, caplog):
    write_robot(tmp_path / "robot", 5)
    assert run_robot(tmp_path, "week-1") == [5]
    write_robot(tmp_path / "robot", 8)
    caplog.clear()
    assert run_robot(tmp_path, "week-2", start="week-1", newest="new") == [3]
    assert "data: 8 training examples, 3 of them new since the last run" in caplog.text
    assert run_robot(tmp_path, "week-3", start="week-2", newest="2") == [2]
    (second,) = (tmp_path / "state").glob("week-2-*/ditto/*")
    (third,) = (tmp_path / "state").glob("week-3-*/ditto/*")
    assert sorted(path.name for path in second.iterdir()) == ["round-000001.safetensors", "round-000002.safetensors"]
    same = [load_file(path / "round-000002.safetensors") for path in (second, third)]
    assert same_bits(*same)
    write_robot(tmp_path / "robot", 4)  # it has lost its disk
    assert run_robot(tmp_path, "week-4", newest="new") == [4]
    write_robot(tmp_path / "robot", 5)
    assert run_robot(tmp_path, "week-5", newest="new") == [1]


def test_a_node_removes_what_no_run_of_the_registry_can_need(tmp_path, caplog):
    write_robot(tmp_path / "robot", 5)
    registry = Registry(tmp_path / "champions").labelled()
    registry.write()
    there = Registry(tmp_path / "there" / "champions").labelled()
    there.write()
    keys = {"registry": str(registry.folder), "keep_runs": 1}
    for number in range(1, 6):
        run_robot(tmp_path, f"week-{number}", **keys, start="week-1" if number > 1 else "")
        if number <= 2:
            registry = registry.promoted(registry.challenger(tmp_path / f"week-{number}", "ditto", number))
            registry.write()
    kept = [path.name.rpartition("-")[0] for path in sorted((tmp_path / "state").glob("week-*"))]
    assert kept == ["week-1", "week-2", "week-4", "week-5"]
    assert "removed the state of the runs week-3-" in caplog.text
    # the runs of another registry of the same name are no others of this one
    run_robot(tmp_path, "week-1-there", registry=str(there.folder), keep_runs=1, start="week-1")
    assert len(list((tmp_path / "state").glob("week-*"))) == 5
    (listed,) = (tmp_path / "state" / "runs" / registry.label).glob("*.json")
    listed.write_text("[")
    run_robot(tmp_path, "week-6", **keys, start="week-1")
    assert "the state of earlier runs is not removed: " in caplog.text
    assert len(list((tmp_path / "state").glob("week-*"))) == 6


def test_simulated_nodes_know_no_last_run(tmp_path):
    with pytest.raises(TooFewRepliesError, match="newest = 'new': simulated nodes know no last run"):
        run_inline(with_changes(LQR, {"newest": "new", "methods": "fedavg"}), tmp_path)


def test_a_new_class_is_refused_by_name_and_goes_on_as_the_refusal_says(tmp_path):
    def run(name, classes, **more):
        labels = ("cat", "dog", "owl")[:classes]
        write_folders(tmp_path / "robot" / "train", *drawn(12, classes=classes))
        keys = SMALL_IMAGES | {"images.labels": ",".join(labels), "name": name, **more}
        return run_inline(keys, tmp_path, [node_config(tmp_path / "robot")]).checkpoints

    before = run("week-1", 2, methods="fedavg")("fedavg").last().arrays
    with pytest.raises(
        ValueError,
        match=r"images.labels = 'cat,dog,owl': must be 'cat,dog' to start from .*week-1: .* For a new class train a "
        r"new model, or export this one and start from its folder with a method that keeps the head on the nodes",
    ):
        run("week-2", 3, methods="fedavg", start="week-1")
    assert not (tmp_path / "week-2").exists()
    load(tmp_path / "week-1").save(tmp_path / "model")
    after = run("week-2", 3, methods="fedrep", start=str(tmp_path / "model"), **{"learning-rate": 1e-12})(
        "fedrep"
    ).last()
    body = [name for name in before if name.startswith("shared.body.")]
    assert body == [name for name in after.arrays if name.startswith("shared.")]  # all but the head
    assert all(np.allclose(after.arrays[name], before[name], atol=1e-9) for name in body)


@pytest.mark.parametrize("simulated", [False, True])
def test_new_words_extend_a_private_vocabulary(tmp_path, simulated):
    few = {"num-nodes": 2, "text.global-examples": 2} if simulated else {"num-nodes": 1}
    few |= {"methods": "fedvocab", "fraction-train": 1.0, "track-metric": "", "target": 0.0}
    keys = read_recipe(Path("fedvocab-small"), SMALL_TEXT | few)
    data = tmp_path / "node"

    def run(name, texts, **more):
        data.mkdir(exist_ok=True)
        for split in ("train", "test") if simulated else ("train",):
            write_examples(data / f"{split}.jsonl", texts, [number % 2 for number in range(len(texts))])
        where = {"data-dir": str(data)} if simulated else {}
        run_inline(keys | where | {"name": name, **more}, tmp_path, [] if simulated else [node_config(data)])
        root = tmp_path / name / "nodes" if simulated else tmp_path / "state"
        return {folder.name: private(folder) for folder in root.glob(f"{name}-*/fedvocab/*")}

    def private(folder):
        """The words that a node knows, and their vectors by round."""
        words = json.loads(load_file(folder / "known-words.safetensors")["words"].tobytes())
        arrays = {path.stem: load_file(path) for path in folder.glob("round-*")}
        (name,) = {name for of_round in arrays.values() for name in of_round if name.startswith("embedding")}
        return words, {stem: of_round[name] for stem, of_round in arrays.items()}

    before = run("week-1", ["good 1", "bad 2"] * 8)
    after = run("week-2", ["good 3", "fine 3"] * 8, start="week-1")
    assert len(before) == few["num-nodes"]
    for node, (words, old) in before.items():
        more, new = after[node]
        assert more[: len(words)] == words
        extra, lacking = len(more) - len(words), set(words) & {"bad", "1", "2"}
        assert {"3"} <= set(more) - set(words) <= {"good", "fine", "3"}
        assert lacking
        assert np.array_equal(new["round-000001"], old["round-000001"])
        first, grown = old["round-000001"], new["round-000002"]
        assert len(grown) == len(first) + extra
        # words that the new texts lack keep their vectors, to the bit; they are the last rows
        rows = {word: words.index(word) - len(words) for word in words}
        same = {word for word, row in rows.items() if np.array_equal(grown[row - extra], first[row])}
        assert lacking <= same
        assert "good" not in same
