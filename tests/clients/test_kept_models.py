"""The models that a node keeps: which, where ``current`` leads to, and that no fault takes the last good one away."""

import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest
import torch
from fedapps.clients.kept_models import KeptModels, check_accepted, keeps_models
from fedapps.clients.rules import ACCEPT_MODEL, KEEP_MODEL, RulesError
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.trained import Origin, TrainedModel
from full_disk import ROOM, full_disk
from killed_processes import KilledError, killed_before
from torch import nn

from fedapps.base import atomic
from fedapps.base.atomic import UnwritableError


def of_round(number, module=None):
    """A model of a round, whose first weight says of which."""
    task = LqrTask(LqrTask.Options())
    if module is None:
        module = task.build_model()
        with torch.no_grad():
            module.policy.K.fill_(number)
    return TrainedModel(task, module, origin=Origin(node="robot-00", round=number))


def current(folder):
    """The round of the current model, by its origin and by its weights."""
    model = TrainedModel.read(folder / "current", {"lqr": LqrTask}.__getitem__)
    assert model.module.policy.K.unique().tolist() == [model.origin.round]
    return model.origin.round


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_last_two_models_are_kept_and_current_leads_to_the_newer(tmp_path):
    kept = KeptModels(tmp_path / "models")
    for number in (1, 2, 3):
        kept.keep(of_round(number), "train")
        assert current(kept.folder) == number
    kept.keep(of_round(3), "evaluate")
    assert names(kept.folder) == ["current", "round-000003-evaluate", "round-000003-train"]
    assert os.readlink(kept.folder / "current") == "round-000003-evaluate", "the folder can be moved"


def test_a_model_that_may_be_in_use_is_not_replaced_when_its_round_is_repeated(tmp_path):
    kept = KeptModels(tmp_path)
    in_use = kept.keep(of_round(4), "train")
    again = kept.keep(of_round(4), "train")
    assert (in_use.name, again.name) == ("round-000004-train", "round-000004-train-2")
    kept.keep(of_round(2), "train")  # the server went back
    assert current(tmp_path) == 2
    assert names(tmp_path) == ["current", "round-000002-train", "round-000004-train-2"]


def test_other_files_of_the_folder_stay(tmp_path):
    (tmp_path / "backup").mkdir()
    (tmp_path / "round-000001-train.backup").mkdir()
    for number in (1, 2, 3):
        KeptModels(tmp_path).keep(of_round(number), "train")
    assert names(tmp_path) == [
        "backup", "current", "round-000001-train.backup", "round-000002-train", "round-000003-train",
    ]  # fmt: skip


def test_a_full_disk_leaves_the_last_model(tmp_path):
    kept = KeptModels(tmp_path)
    kept.keep(of_round(1), "train")
    big = nn.Linear(ROOM, 1)
    with full_disk(), pytest.raises(UnwritableError, match=r"round-000002-train cannot be written .*make room"):
        kept.keep(of_round(2, big), "train")
    assert current(tmp_path) == 1
    assert names(tmp_path) == ["current", "round-000001-train"]


def test_a_folder_that_cannot_be_written_is_an_error_with_its_name(tmp_path):
    (tmp_path / "models").write_text("in the way")
    with pytest.raises(UnwritableError, match="models/round-000001-train cannot be written"):
        KeptModels(tmp_path / "models").keep(of_round(1), "train")


def test_a_file_system_without_links_is_an_error_and_does_not_fill_up(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    for number in (1, 2, 3):
        with pytest.raises(UnwritableError, match=r"current cannot be written \(Operation not permitted\)"):
            KeptModels(tmp_path).keep(of_round(number), "train")
    assert names(tmp_path) == []


def kills(folder, begin, step):
    """Kill a step before its first change, then before its second, and so on until it ends; yield what each left.

    Every time, ``begin`` gets a new folder, and ``step`` gets what ``begin`` returns.
    """
    finished = False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic, "still_runs", lambda pid, started: False)  # the process that wrote is gone
        for write in count():
            begun = begin(folder / str(write))
            with killed_before(write) as changes, suppress(KilledError):
                step(begun)
                finished = True
            yield begun, changes
            if finished:
                return


def test_a_node_that_is_killed_at_any_moment_leaves_a_good_model_and_goes_on(tmp_path):
    def begin(folder):
        for number in (1, 2):
            KeptModels(folder).keep(of_round(number), "train")
        return KeptModels(folder)

    left, kinds = set(), set()
    for kept, changes in kills(tmp_path, begin, lambda kept: kept.keep(of_round(3), "train")):
        left.add(current(kept.folder))
        kinds |= {*changes}
        kept.keep(of_round(4), "train")
        assert current(kept.folder) == 4
        assert len(names(kept.folder)) == 3, "two models and the link"
    assert left == {2, 3}
    assert {"open", "os.mkdir", "os.rename", "os.symlink"} <= kinds


def test_a_link_that_has_changed_leads_to_a_model_also_if_it_cannot_be_put_on_the_disk(tmp_path, monkeypatch):
    def refuse(folder):
        raise OSError(5, "Input/output error")

    kept = KeptModels(tmp_path)
    kept.keep(of_round(1), "train")
    with monkeypatch.context() as patch:
        patch.setattr("fedapps.clients.kept_models.synced", refuse)
        with pytest.raises(UnwritableError, match="Input/output error"):
            kept.keep(of_round(2), "train")
    assert current(tmp_path) == 2


def promote(kept, generation):
    kept.keep(of_round(generation), f"generation{generation}", check=lambda folder: None)


def test_a_node_goes_back_to_a_generation_that_it_has_and_stays_with_its_own_otherwise(tmp_path):
    kept = KeptModels(tmp_path)
    assert kept.use(1) == 0
    promote(kept, 1)
    promote(kept, 2)
    assert (kept.use(0), current(tmp_path)) == (2, 2)
    assert (kept.use(1), current(tmp_path)) == (1, 1)
    assert (kept.use(3), current(tmp_path)) == (1, 1)
    promote(kept, 3)
    assert names(tmp_path) == ["current", "round-000001-generation1", "round-000003-generation3"]


def test_models_of_another_registry_of_the_same_name_are_replaced(tmp_path):
    first, second = (KeptModels(tmp_path, label) for label in ("champions-1a", "champions-2b"))
    for generation in (1, 2):
        promote(first, generation)
    assert [kept.use(1) for kept in (second, KeptModels(tmp_path), first)] == [0, 0, 1]
    promote(second, 2)
    assert names(tmp_path) == ["current", "registry", "round-000002-generation2-2"]
    assert [kept.use(2) for kept in (first, second)] == [0, 2]
    promote(second, 3)
    assert (second.use(2), second.use(3), first.use(3)) == (2, 3, 0)


def test_a_node_that_is_killed_while_it_changes_to_another_registry_does_not_take_one_model_for_another(tmp_path):
    def begin(folder):
        first, second = (KeptModels(folder, label) for label in ("champions-1a", "champions-2b"))
        promote(first, 1)
        return first, second

    def promote_second(both):
        both[1].keep(of_round(2), "generation1", check=lambda folder: None)

    left = set()
    for (first, second), _ in kills(tmp_path, begin, promote_second):
        left.add((current(first.folder), first.use(1), second.use(1)))
        promote_second((first, second))
        assert (current(first.folder), first.use(1), second.use(1)) == (2, 0, 1)
    # the model of a registry, or one that is taken for none and sent again
    assert left == {(1, 1, 0), (1, 0, 0), (2, 0, 0), (2, 0, 1)}


def test_a_model_that_the_node_refuses_leaves_nothing(tmp_path):
    def refuse(folder):
        assert TrainedModel.read(folder, {"lqr": LqrTask}.__getitem__).origin.round == 2
        raise RulesError("too fast")

    kept = KeptModels(tmp_path)
    promote(kept, 1)
    with pytest.raises(RulesError, match="too fast"):
        kept.keep(of_round(2), "generation2", check=refuse)
    assert names(tmp_path) == ["current", "round-000001-generation1"]


@pytest.mark.parametrize(
    ("before", "after"), [(2, 3), (2, 1), (1, 3)], ids=["promotion", "rollback", "promotion after a rollback"]
)
def test_a_node_that_is_killed_at_any_moment_of_a_promotion_or_a_rollback_uses_one_model(tmp_path, before, after):
    def begin(folder):
        kept = KeptModels(folder)
        promote(kept, 1)
        promote(kept, 2)
        kept.use(before)
        return kept

    def step(kept):
        if kept.use(after) != after:  # as the server does when it finds the node
            promote(kept, after)

    left = set()
    for kept, _ in kills(tmp_path, begin, step):
        left.add(current(kept.folder))
        for folder in kept.folder.glob("round-*"):  # any of them could be gone back to
            assert TrainedModel.read(folder, {"lqr": LqrTask}.__getitem__).origin.round in (1, 2, 3)
        step(kept)
        assert current(kept.folder) == after
        assert kept.use(before) == before
    assert left == {before, after}


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("false", "the command refuses the model with exit status 1"),
        ("no-such-command", "the command gave no answer .FileNotFoundError"),
    ],
)
def test_a_command_of_the_node_can_refuse_a_model(tmp_path, command, message):
    check_accepted({}, tmp_path)
    check_accepted({ACCEPT_MODEL: "test -d"}, tmp_path)
    with pytest.raises(RulesError, match=message):
        check_accepted({ACCEPT_MODEL: command}, tmp_path)


@pytest.mark.parametrize("wanted", [1, "true", "yes", ""])
def test_keep_model_is_true_or_false(wanted):
    assert [keeps_models(config) for config in ({}, {KEEP_MODEL: False}, {KEEP_MODEL: True})] == [False, False, True]
    with pytest.raises(ValueError, match=r"node config keep-model = .* must be true or false"):
        keeps_models({KEEP_MODEL: wanted})
