"""MOON: the contrast by hand, rounds by hand, its own last model, and where it is FedAvg."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fedapps.clients.settings import RoundSettings
from fedapps.tasks.base import NodeData
from fedapps.tasks.profiles import ModelRoles
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import Points, Quadratics, run_method
from torch import nn
from toys import same_bits, same_rounds

from fedapps.methods.moon import MoonOptions, MoonPart

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731


class Plane(Quadratics):
    """Node i minimises ½ |z - t_i|²; the model is its own representation z."""

    name = "plane"
    targets = ((2.0, 0.0), (0.0, 1.0))

    @property
    def roles(self):
        return ModelRoles(features=True)

    def node(self, index):
        split = {"t": torch.tensor([self.targets[index]] * 2, dtype=torch.float64)}
        return NodeData(f"node-{index}", {"train": split, "test": split})

    def build_model(self):
        model = nn.Module()
        model.z = nn.Parameter(torch.tensor([1.0, 0.5], dtype=torch.float64))
        return model

    def loss(self, model, batch):
        return 0.5 * ((model.z - batch["t"]) ** 2).sum(dim=1).mean()

    def features(self, model, batch):
        return model.z.expand(len(batch["t"]), 2)


def contrast(z, received, last, temperature=0.5, mu=1.0):
    """The contrast alone, and its gradient, at z."""
    task, model = Plane(), Plane().build_model()
    memory = {"memory.moon.last.z": np.array(last)}
    node_round = SimpleNamespace(kept=memory, task=task, settings=RoundSettings())
    model.z.data = torch.tensor(received, dtype=torch.float64)
    part = MoonPart(MoonOptions(mu=mu, temperature=temperature))
    loss = part.loss(lambda model, batch: (0 * model.z).sum(), model, node_round)
    model.z.data = torch.tensor(z, dtype=torch.float64)
    value = loss(model, {"t": torch.zeros(2, 2, dtype=torch.float64)})
    value.backward()
    return float(value.detach()), model.z.grad.tolist()


def test_the_contrast_by_hand():
    value, gradient = contrast((1.0, 0.0), (0.6, 0.8), (0.0, 1.0))
    assert value == pytest.approx(0.263282, abs=1e-6)
    assert gradient == near(0.0, 0.092590)
    assert contrast((1.0, 0.0), (1.0, 1.0), (0.0, 1.0))[0] == pytest.approx(0.217622, abs=1e-6)


def test_two_rounds():
    run = run_method("moon(mu=1, temperature=0.5)", Plane)
    assert [a["z"].tolist() for a in run.arrays] == [near(1.0, 0.5), near(1.002468, 0.497166)]
    first = run_method("moon", Plane, rounds=1)
    assert [first.kept[node]["memory.moon.last.z"].tolist() for node in (0, 1)] == [
        near(1.19, 0.405),
        near(0.81, 0.595),
    ]


def test_a_node_that_was_away_contrasts_with_the_model_that_it_trained_last():
    run = run_method("moon", Plane, rounds=2, absent={(2, 1)})
    assert run.kept[1]["memory.moon.last.z"].tolist() == near(0.81, 0.595)


@settings(deadline=None, max_examples=10)
@given(st.floats(0.1, 10), st.floats(0.1, 2), st.tuples(st.floats(0.1, 3), st.floats(0.1, 3)), st.floats(0.1, 5))
def test_the_contrast_ignores_lengths_and_vanishes_where_both_references_agree(mu, temperature, z, length):
    value, gradient = contrast(z, (1.0, 1.0), (0.0, 2.0), temperature, mu)
    longer, of_longer = contrast(tuple(length * x for x in z), (3.0, 3.0), (0.0, 1.0), temperature, mu)
    assert longer == pytest.approx(value, rel=1e-6)
    assert np.multiply(of_longer, length) == pytest.approx(gradient, rel=1e-5, abs=1e-9)
    assert np.dot(gradient, z) == pytest.approx(0, abs=1e-9)
    value, gradient = contrast(z, (1.0, 1.0), (2.0, 2.0), temperature, mu)
    assert value == pytest.approx(mu * np.log(2))
    assert gradient == pytest.approx([0, 0], abs=1e-12)


def test_without_weight_and_in_the_first_round_it_is_fedavg():
    still, fedavg = run_method("moon(mu=0)", Points), run_method("fedavg", Points)
    assert same_rounds(still.arrays, fedavg.arrays)
    assert not any(name.startswith("memory.moon") for name in still.kept.get(0, {}))
    moon = run_method("moon(mu=5)", Points)
    assert same_bits(moon.arrays[0], fedavg.arrays[0])
    assert not same_bits(moon.arrays[1], fedavg.arrays[1])


def test_the_references_do_not_change():
    run = run_method("moon", Points, rounds=2, epochs=1, steps=0, batch_size=4)
    sent = {name for _, _, _, reply in run.messages if "arrays" in reply for name in reply["arrays"]}
    assert sent == set(Points().build_model().state_dict())
    assert run.kept[0].keys() == {f"memory.moon.last.{name}" for name in sent}
    _, node, _, reply = next(m for m in reversed(run.messages) if m[0] == "train")
    for name, array in reply["arrays"].items():
        np.testing.assert_array_equal(run.kept[node][f"memory.moon.last.{name}"], array.numpy())


def test_a_model_without_a_representation_is_refused_before_the_run():
    with pytest.raises(Exception, match="no representation of single examples"):
        run_method("moon")
