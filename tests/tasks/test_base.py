"""What an evaluation must return."""

import pytest
import torch
from fedapps.tasks.base import Evaluation, NodeData, evaluated
from toys import ToyTask


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
