"""What an evaluation must return, and what is derived from the roles of a model's parameters."""

import pickle
from fnmatch import fnmatchcase

import pytest
import torch
from fedapps.tasks.base import Evaluation, NodeData, evaluated, missing, with_features
from fedapps.tasks.profiles import head_inputs
from method_worlds import BodyAndHead, Points, Quadratics
from torch import nn
from toys import ToyTask

from fedapps.base.options import with_values
from fedapps.registry.tasks import task_class


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "evaluate of the task 'toy' returned NoneType: it must return an Evaluation"),
        (Evaluation({"test.x": torch.tensor(1.0)}), "gives test.x as Tensor: a metric must be a float"),
    ],
)
def test_an_evaluation_of_the_wrong_type_is_an_error_with_its_name(monkeypatch, returned, said):
    monkeypatch.setattr(ToyTask, "evaluate", lambda *_, **__: returned)
    with pytest.raises(TypeError, match=said):
        evaluated(ToyTask(), torch.nn.Linear(1, 1), NodeData("a", {}), run_seed=0, final=True)


class CountedOptions:
    """Options whose hash is counted."""

    counted = 0

    def __hash__(self) -> int:
        CountedOptions.counted += 1
        return 1


def test_a_task_hashes_its_options_once_in_each_process():
    task = ToyTask(CountedOptions())
    assert hash(task) == hash(task)
    assert CountedOptions.counted == 1
    copy = pickle.loads(pickle.dumps(task))
    hash(copy)
    assert CountedOptions.counted == 2


#: Every task, with the options that change its model.
MODELS = [
    ("lqr", {}), ("driving", {}), ("driving", {"posterior": "cvae"}), ("social", {}),
    ("social", {"graph": "relational"}), ("text", {}), ("vln", {}), ("vln", {"stage": "speaker"}), ("images", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_head_and_body_are_the_whole_model_and_do_not_overlap(name, options):
    kind = task_class(name)
    task = kind(with_values(kind.Options(), options))
    names = [name for name, _ in task.build_model().named_parameters()]
    roles = task.roles
    for patterns in (roles.head, roles.body):
        assert all(any(fnmatchcase(name, pattern) for name in names) for pattern in patterns)
    for own in names:
        assert sum(any(fnmatchcase(own, p) for p in patterns) for patterns in (roles.head, roles.body)) == 1, own


def test_the_features_are_what_the_head_is_given_and_take_no_second_pass():
    task = Points()
    model, batch = task.build_model(), task.node(0).splits["train"]
    expected = model.body(batch["x"])
    calls = []
    model.body.register_forward_hook(lambda *_: calls.append(1))
    loss, features = with_features(task, task.loss, model, batch)
    assert len(calls) == 1
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(task.features(model, batch), expected)
    torch.testing.assert_close(loss, task.loss(model, batch))
    features.sum().backward()
    assert model.body[0].weight.grad is not None


def test_features_of_a_sequence_are_its_mean():
    model = nn.ModuleDict({"body": nn.Linear(2, 3), "head": nn.Linear(3, 1)})
    inputs = torch.rand(4, 5, 2)
    with head_inputs(model, ["head.*"]) as features:
        model["head"](model["body"](inputs))
    torch.testing.assert_close(features(), model["body"](inputs).mean(dim=1))


def test_a_head_that_is_no_module_or_is_not_called_is_told():
    model = Points().build_model()
    with pytest.raises(ValueError, match=r"head = \['tail'\]: no module of the model"), head_inputs(model, ["tail"]):
        pass
    with head_inputs(model, ["head.*"]) as features, pytest.raises(ValueError, match="does not call it as a module"):
        features()


@pytest.mark.parametrize(
    ("task", "lacks"),
    [
        (Points, set()),
        (BodyAndHead, {"features", "classes", "normalisation"}),
        (Quadratics, {"head", "body", "features", "classes", "normalisation"}),
    ],
)
def test_what_a_task_lacks(task, lacks):
    roles = ("head", "body", "features", "classes", "normalisation")
    assert {role for role in roles if missing(task(), role)} == lacks
