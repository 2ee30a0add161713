"""FedPer, FedRep and FedBABU: the head stays on the nodes, trained with the body, before it, or not at all."""

import pytest
from fedapps.clients.training import new_optimizer
from fedapps.tasks.profiles import ModelRoles
from hypothesis import given, settings
from hypothesis import strategies as st
from method_worlds import BodyAndHead, Points, Quadratics, run_method

near = lambda *numbers: pytest.approx(list(numbers), abs=2e-6)  # noqa: E731
METHODS = ["fedper", "fedrep", "fedbabu"]


class HalfHead(BodyAndHead):
    """The head starts at a half."""

    name = "half-head"
    head_start = 0.5


class NoHead(BodyAndHead):
    """Nothing is a head."""

    name = "no-head"

    @property
    def roles(self):
        return ModelRoles()


def test_fedper():
    run = run_method("fedper", BodyAndHead)
    assert run.values("body.u") == near(-0.03, -0.00385)
    assert run.private("head.v") == near(0.5661, -0.5538)
    assert run_method("fedper", BodyAndHead, rounds=1).private("head.v") == near(0.34, -0.39)


def test_fedrep_trains_the_head_then_the_body():
    options = {"steps": 0, "epochs": 1}
    run = run_method("fedrep(head-epochs=2)", BodyAndHead, **options)
    assert run.values("body.u") == near(0.004, 0.021924)
    assert run.private("head.v") == near(0.58968, -0.65472)
    assert run_method("fedrep(head-epochs=2)", BodyAndHead, rounds=1, **options).private("head.v") == near(0.36, -0.48)


def test_fedbabu_never_trains_the_head_with_others_and_fine_tunes_the_whole_model(tmp_path):
    run = run_method("fedbabu(fine-tune-epochs=2)", HalfHead, folder=tmp_path)
    assert run.values("body.u") == near(-0.24, -0.396)
    assert run.private("head.v") == [0.5, 0.5]
    # Two joint steps from u = -.396 and v = .5; the loss is ½ a (u + v - b)² + ½ v².
    tuned = [(-0.04972, 0.73232), (-0.84468, -0.01056)]
    losses = [0.5 * a * (u + v - b) ** 2 + 0.5 * v**2 for (u, v), (a, b) in zip(tuned, BodyAndHead.nodes, strict=True)]
    rows = [row for row in run.folder.lines("nodes.jsonl") if row["phase"] == "evaluate" and row["round"] == 2]
    assert [row["metrics"]["test.loss"] for row in rows] == near(*losses)
    before = [0.5 * a * (-0.396 + 0.5 - b) ** 2 + 0.125 for a, b in BodyAndHead.nodes]
    assert [row["metrics"]["stale.test.loss"] for row in rows] == near(*before)


@pytest.mark.parametrize("method", METHODS)
def test_only_the_body_travels(method):
    run = run_method(method, BodyAndHead)
    assert {name for _, _, sent, _ in run.messages if "arrays" in sent for name in sent["arrays"]} == {"body.u"}
    assert {name for _, _, _, reply in run.messages if "arrays" in reply for name in reply["arrays"]} == {"body.u"}


@pytest.mark.parametrize("method", METHODS)
def test_a_model_without_a_head_is_refused_before_the_run(method):
    with pytest.raises(Exception, match="its model has no head"):
        run_method(method, NoHead)
    with pytest.raises(Exception, match="its model has no head"):
        run_method(method, Quadratics)


def test_fedbabu_without_fine_tuning_is_fedavg_below_a_frozen_head():
    class FrozenHead(HalfHead):
        name = "frozen-head"
        fixed = ("head.*",)

        def build_model(self):
            model = super().build_model()
            model["head"].requires_grad_(False)
            return model

    frozen = run_method("fedavg", FrozenHead)
    assert run_method("fedbabu(fine-tune-epochs=0)", HalfHead).values("body.u") == frozen.values("body.u")


def test_fedrep_is_fedavg_where_the_head_has_no_gradient():
    class FlatHead(HalfHead):
        name = "flat-head"

        def loss(self, model, batch):
            u, v = model["body"].u, model["head"].v
            return (0.5 * batch["a"] * (u + v.detach() - batch["b"]) ** 2 + 0 * v).mean()

    fedrep, fedavg = (run_method(name, FlatHead, steps=0, epochs=2) for name in ("fedrep", "fedavg"))
    assert fedrep.values("body.u") == fedavg.values("body.u")


def test_fedper_with_one_node_is_fedavg():
    alone, fedavg = (run_method(name, BodyAndHead, num_nodes=1) for name in ("fedper", "fedavg"))
    assert alone.values("body.u") == fedavg.values("body.u")
    assert alone.private("head.v") == [fedavg.values("head.v")[-1]]


@settings(deadline=None, max_examples=9)
@given(st.sampled_from(METHODS), st.integers(1, 4), st.integers(1, 3))
def test_head_and_body_are_trained_in_the_order_of_the_method(method, head_epochs, epochs):
    """FedRep trains the head on the received body, then the body on the new head; FedPer both, FedBABU the body."""
    label = f"fedrep(head-epochs={head_epochs})" if method == "fedrep" else method
    run = run_method(label, HalfHead, rounds=1, steps=0, epochs=epochs)
    heads, bodies = [], []
    for a, b in BodyAndHead.nodes:
        u, v = 0.0, 0.5
        for _ in range(head_epochs if method == "fedrep" else 0):
            v -= 0.1 * (a * (u + v - b) + v)
        for _ in range(epochs):
            gap = a * (u + v - b)
            u, v = u - 0.1 * gap, v - 0.1 * (gap + v if method == "fedper" else 0)
        heads.append(v)
        bodies.append(u)
    assert run.private("head.v") == pytest.approx(heads)
    assert run.values("body.u") == pytest.approx([sum(bodies) / 2])


@pytest.mark.parametrize("method", ["fedrep(head-epochs=1)", "fedbabu(fine-tune-epochs=1)"])
def test_all_phases_have_the_rate_to_which_the_plateau_fell(method, monkeypatch):
    rates: dict[bool, list[float]] = {True: [], False: []}

    def noted(phase, named):
        rates["head.weight" in named].append(phase.rate)
        return new_optimizer(phase, named)

    monkeypatch.setattr("fedapps.clients.training.new_optimizer", noted)
    keys = {"rounds": 6, "plateau_patience": 1, "steps": 0, "epochs": 3, "learning_rate": 0.5}
    run_method(method, Points, **keys)
    body, head = rates[False], rates[True]
    assert body[-1] < 0.1
    assert head[-1] < 0.1
