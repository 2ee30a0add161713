"""The runs whose private state a node keeps: enough for all that may come, and no more."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from fedapps.clients.kept_runs import KeptRuns
from fedapps.clients.state import DiskState
from hypothesis import given, settings
from hypothesis import strategies as st
from killed_processes import KilledError, killed_before

from fedapps.base import atomic
from fedapps.runs.champions import Registry

METHOD, NODE = "apfl", "robot/7"


def state(root, label):
    """The state of the node in a run; its text says in which runs the node has trained."""
    return DiskState.of(root, label, METHOD, NODE).folder / "trained"


def write(root, label, model=False):
    state(root, label).parent.mkdir(parents=True, exist_ok=True)
    state(root, label).write_text(label)
    if model:
        (DiskState.of(root, "models", label.rpartition("-")[0], METHOD, NODE).folder / "round-1").mkdir(parents=True)


def labels(root):
    """The runs under which the node has state."""
    return sorted(path.parents[2].name for path in root.glob("*/*/*/trained"))


def test_the_last_runs_the_champions_and_what_the_run_goes_on_from_are_kept(tmp_path):
    kept = KeptRuns(tmp_path, "champions", NODE)
    runs = [f"week-{number}-ab" for number in range(1, 8)]
    for number, label in enumerate(runs):
        # the first run is the champion, the second was none, the third is what each later run goes on from
        lineage = [runs[2]] if number > 2 else []
        removed = kept.note(label, lineage, [[runs[0]]], keep=2, trains=True)
        assert removed == ([runs[1]] if number == 5 else [runs[3]] if number == 6 else [])
        write(tmp_path, label, model=True)
    assert labels(tmp_path) == [runs[index] for index in (0, 2, 4, 5, 6)]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [f"week-{n}" for n in (1, 3, 5, 6, 7)]
    assert json.loads(kept.path.read_text()) == labels(tmp_path)


def test_zero_keeps_all_and_what_is_not_in_the_list_stays(tmp_path):
    write(tmp_path, "first-ab")
    other = DiskState.of(tmp_path, "week-1-ab", METHOD, "robot-8").folder
    other.mkdir(parents=True)
    for keep in (0, 1):
        for number in range(1, 5):
            KeptRuns(tmp_path, "champions", NODE).note(f"week-{number}-ab", [], [], keep, trains=True)
            write(tmp_path, f"week-{number}-ab")
        assert len(labels(tmp_path)) == (5 if keep == 0 else 3)
    assert labels(tmp_path) == ["first-ab", "week-3-ab", "week-4-ab"]
    assert other.exists()


def test_a_node_that_took_no_part_in_the_champions_run_keeps_what_it_begins_from(tmp_path):
    kept = KeptRuns(tmp_path, "champions", NODE)
    write(tmp_path, "week-1-ab")
    kept.note("week-1-ab", [], [], keep=1, trains=True)
    for number in (3, 4, 5, 6):
        kept.note(f"week-{number}-ab", ["week-2-ab", "week-1-ab"], [["week-2-ab", "week-1-ab"]], keep=1, trains=True)
        write(tmp_path, f"week-{number}-ab")
    assert labels(tmp_path) == ["week-1-ab", "week-5-ab", "week-6-ab"]


def test_models_of_a_name_that_another_run_has_stay_and_so_do_those_of_champions(tmp_path):
    kept = KeptRuns(tmp_path, "champions", NODE)
    for label in ("champions-1a", "week-2a", "other-3a", "week-4a", "other-5a"):
        kept.note(label, [], [], keep=1, trains=True)
        write(tmp_path, label, model=label in ("champions-1a", "week-2a", "other-3a"))
    assert labels(tmp_path) == ["other-5a", "week-4a"]
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["champions", "other", "week"]


@pytest.mark.parametrize("content", ["[", "{}", "[1]", '"week"'])
def test_a_damaged_list_is_an_error_and_removes_nothing(tmp_path, content):
    kept = KeptRuns(tmp_path, "champions", NODE)
    kept.path.parent.mkdir(parents=True)
    kept.path.write_text(content)
    write(tmp_path, "week-1-ab")
    with pytest.raises(ValueError, match=r"robot%2F7.json is damaged: remove it"):
        kept.note("week-2-ab", [], [], keep=1, trains=True)
    assert labels(tmp_path) == ["week-1-ab"]


class Fleet:
    """A server with a registry, and a node beside one that removes nothing."""

    keep = 2

    def __init__(self, folder):
        self.roots = {"node": folder / "node", "all": folder / "all"}
        self.registry, self.lineages = Registry(folder), {}

    def chain(self, run):
        return [run, *self.lineages[run]]

    def message(self, run, *, trains, kill=None):
        """The node gets a message of a run; it may be killed before one of its writes, and gets it again."""
        if kill is not None:
            with killed_before(kill), suppress(KilledError):
                self._handled("node", run, trains)
        for root in self.roots:
            self._handled(root, run, trains)

    def _handled(self, root, run, trains):
        folder, lineage = self.roots[root], self.lineages[run]
        if root == "node":
            champions = [self.chain(one.run) for one in self.registry.generations]
            KeptRuns(folder, "champions", NODE).note(run, lineage, champions, self.keep, trains=trains)
        begun = DiskState.of(folder, run, METHOD, NODE)
        begun.begin_from(state(folder, label).parent for label in lineage)
        if trains:
            write(folder, run)

    def week(self, number, trains, compares, promotes, delivered, back, kill):
        """A run from the champion, a gate, and perhaps a promotion or a way back; the node is there, or is not."""
        run = f"week-{number}-ab"
        champion = self.registry.of(self.registry.champion).run if self.registry.champion else None
        self.lineages[run] = self.chain(champion) if champion else []
        if trains:
            self.message(run, trains=True, kill=kill)
        if compares and champion:
            self.message(champion, trains=False, kill=kill)
            self.message(run, trains=False)
        if promotes:
            self.registry = self.registry.promoted(self.registry.challenger(Path(run), METHOD, 1))
        if back and self.registry.champion and self.registry.champion != self.registry.generations[0].generation:
            self.registry = self.registry.rolled_back()
        if delivered and self.registry.champion:
            self.message(self.registry.of(self.registry.champion).run, trains=False, kill=kill)

    def begins_with(self, root, run):
        """The runs in which the node has trained by its state when a run begins."""
        paths = (state(self.roots[root], label) for label in self.chain(run))
        return next((path.read_text() for path in paths if path.exists()), None)


often = st.sampled_from([True, True, True, False])
seldom = st.sampled_from([False, False, True])
weeks = st.tuples(often, often, st.booleans(), often, seldom, st.none() | st.integers(0, 25))


@settings(max_examples=8)
@given(st.lists(weeks, min_size=5, max_size=10))
def test_after_any_sequence_all_that_may_be_used_is_there_and_the_disk_is_bounded(sequence):
    folder = Path(mkdtemp())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic, "still_runs", lambda pid, started: False)  # the process that wrote is gone
        patch.setattr(atomic, "synced", lambda path: None)
        fleet = Fleet(folder)
        for number, week in enumerate(sequence, 1):
            fleet.week(number, *week)
            for one in fleet.registry.generations:  # a run starts from either, or a node goes back to it
                assert fleet.begins_with("node", one.run) == fleet.begins_with("all", one.run)
            trained = [label for label in fleet.lineages if fleet.begins_with("all", label) == label]
            assert set(trained[-fleet.keep :]) <= set(labels(fleet.roots["node"]))
            # the last ones; the champions, or what they begin from; the present run, and what it begins from
            assert len(labels(fleet.roots["node"])) <= fleet.keep + 2 + 2
            listed = KeptRuns(fleet.roots["node"], "champions", NODE).path
            assert not listed.exists() or set(labels(fleet.roots["node"])) <= set(json.loads(listed.read_text()))
    shutil.rmtree(folder)
