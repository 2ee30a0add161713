"""The node: what it gives back, what it keeps, and that its work depends on the message and its state alone."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from fedapps.clients.arrays import get_arrays
from fedapps.clients.state import DiskState
from fedapps.tasks.base import DataError, evaluated
from toy_nodes import NAMES, SETTINGS, at, initial, staged
from toy_nodes import node as node_of
from toys import ToyOptions, ToyTask, same_bits

from fedapps.base.errors import DivergedError
from fedapps.methods.apd import Decomposition
from fedapps.methods.spfl import Personalisation

ENCODER = ["encoder.weight"]


@pytest.fixture
def make(tmp_path):
    """Clients of partition 1, each with a fresh state unless one is given."""
    numbers = itertools.count()

    def client(state=None, *, parts=(), partition=1, options=None, **more):
        task, state = ToyTask(options), state or tmp_path / "run" / f"node-{next(numbers)}"
        return node_of(state, *parts, task=task, data=task.data(partition), **more)

    return client


# -- training --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("names", [NAMES, ENCODER, ["head.bias", "encoder.weight"], ["passes"], []])
def test_exactly_the_received_names_come_back(make, names):
    sent = initial(names)
    reply = make().train_round(sent, SETTINGS)
    assert sorted(reply.arrays) == sorted(names)
    for name, array in reply.arrays.items():
        assert (array.shape, array.dtype) == (sent[name].shape, sent[name].dtype)
        assert (array != sent[name]).any()
    assert reply.num_examples == 6
    assert reply.metrics["steps"] == 4
    assert reply.metrics["loss"] > 0


def test_what_never_changes_is_not_kept(make, tmp_path, monkeypatch):
    monkeypatch.setattr(ToyTask, "fixed", ("head.*",))
    state = DiskState(tmp_path / "node")
    make(state).train_round(initial(ENCODER), SETTINGS)
    assert set(state.load(2)) == set(NAMES) - {*ENCODER, "head.weight", "head.bias"}


def test_a_task_may_choose_the_batches_by_the_model_that_it_trains(make, monkeypatch):
    seen = []

    def training_batches(self, model, data, batch_size):
        seen.append((model.encoder.weight.detach().clone(), batch_size))
        return self.batches(data, "train", batch_size)

    plain = make().train_round(initial(), SETTINGS)
    monkeypatch.setattr(ToyTask, "training_batches", training_batches)
    assert same_bits(make().train_round(initial(), SETTINGS).arrays, plain.arrays)
    (first, size), (second, _) = seen  # one for each of two epochs
    assert size == 4
    assert not torch.equal(first, second)


def test_training_starts_from_what_was_received(make):
    far = {name: array + array.dtype.type(5) for name, array in initial().items()}
    reply = make().train_round(far, at(1, epochs=0))
    assert same_bits(reply.arrays, far)


def test_an_unknown_name_and_a_wrong_shape_are_errors_that_name_both(make):
    received = {"tail.weight": np.zeros(1), "head.bias": np.zeros(2)}
    with pytest.raises(ValueError, match=r"(?s)tail\.weight: not a parameter.*head\.bias: shape \(2,\).*\(1,\)"):
        make().train_round(received, SETTINGS)


def test_private_parameters_survive_from_round_to_round(make):
    client = make()
    client.train_round(initial(ENCODER), at(1))
    kept = client.private.load(before=2)
    assert sorted(kept) == ["head.bias", "head.weight", "passes"]
    assert kept["head.weight"].tobytes() != initial()["head.weight"].tobytes()
    assert int(kept["passes"]) == 4
    client.train_round(initial(ENCODER), at(2, epochs=0))
    assert same_bits(client.private.load(before=3), kept)
    client.train_round(initial(ENCODER), at(3))
    assert int(client.private.load(before=4)["passes"]) == 8


def test_a_repetition_goes_on_from_its_private_parameters_with_other_draws(make):
    client = make()
    first = client.train_round(initial(ENCODER), at(1))
    same = client.train_round(initial(ENCODER), at(1))  # a server that went back: the node begins with the same arrays
    assert same_bits(first.arrays, same.arrays)
    again = client.train_round(initial(ENCODER), at(1, repeat=1))
    assert int(client.private.load(before=2)["passes"]) == 8
    assert not same_bits(again.arrays, first.arrays)
    whole = [make().train_round(initial(), at(1, repeat=repeat)) for repeat in (0, 1, 1, 2)]  # nothing private
    assert same_bits(whole[1].arrays, whole[2].arrays)
    assert len({reply.arrays["encoder.weight"].tobytes() for reply in whole}) == 3


def test_a_node_that_starts_again_goes_on_where_it_was(make):
    undisturbed, first = make(), make()
    for server_round in (1, 2):
        whole = undisturbed.train_round(initial(ENCODER), at(server_round))
    first.train_round(initial(ENCODER), at(1))
    again = make(DiskState(first.private.folder))
    assert same_bits(again.train_round(initial(ENCODER), at(2)).arrays, whole.arrays)


def test_a_round_that_is_asked_for_again_gives_the_same_bits(make):
    client, replies = make(), {}
    for server_round in (1, 2, 3):
        settings = at(server_round, durable_round=server_round - 1)
        replies[server_round] = client.train_round(initial(ENCODER), settings)
    after = client.private.load(before=4)
    repeated = client.train_round(initial(ENCODER), at(3, durable_round=2))
    assert repeated.metrics == replies[3].metrics
    assert same_bits(repeated.arrays, replies[3].arrays)
    assert same_bits(client.private.load(before=4), after)
    assert not same_bits(replies[2].arrays, replies[3].arrays)


def test_nothing_is_kept_where_everything_is_shared(make):
    client = make()
    client.train_round(initial(), SETTINGS)
    assert client.private.load(before=2) is None


def test_the_draws_depend_on_seed_round_and_node_and_nothing_else(make):
    def bits(seed=3, server_round=1, partition=1):
        client = make(seed=seed, partition=partition)
        reply = client.train_round(initial(), at(server_round, batch_size=1))
        return reply.arrays["head.weight"].tobytes()

    torch.manual_seed(0)
    reference = bits()
    torch.manual_seed(1)
    torch_state = torch.get_rng_state()
    assert bits() == reference
    assert torch.equal(torch.get_rng_state(), torch_state)  # put back
    assert len({reference, bits(seed=4), bits(server_round=2), bits(partition=2)}) == 4


def test_a_node_without_examples_says_so(make):
    with pytest.raises(ValueError, match="node toy-1 has no training examples"):
        make(options=ToyOptions(examples=0)).train_round(initial(), SETTINGS)


def test_what_goes_wrong_in_training_comes_out_and_keeps_no_state(make):
    for options, error, told in (
        (ToyOptions(failing=(1,)), RuntimeError, "toy-1 fails on demand"),
        (ToyOptions(poisoned=(1,)), DivergedError, "training loss is nan"),
    ):
        client = make(options=options)
        with pytest.raises(error, match=told):
            client.train_round(initial(ENCODER), SETTINGS)
        assert client.private.load(before=9) is None


def test_a_number_of_steps_takes_the_place_of_epochs(make):
    assert make().train_round(initial(), at(1, steps=3)).metrics["steps"] == 3


# -- evaluation -------------------------------------------------------------------------------------------------


def test_an_evaluation_uses_the_private_parameters_of_its_round(make):
    client = make()
    fresh = client.evaluate_round(initial(ENCODER), at(1)).metrics["test.loss"]
    losses = []
    for server_round in (1, 2):
        client.train_round(initial(ENCODER), at(server_round))
        losses.append(client.evaluate_round(initial(ENCODER), at(server_round)).metrics["test.loss"])
    assert len({fresh, *losses}) == 3
    # Asked about round 1 again, it answers with the state of round 1.
    assert client.evaluate_round(initial(ENCODER), at(1)).metrics["test.loss"] == losses[0]


def test_an_evaluation_sends_no_arrays_and_leaves_its_traces_on_the_node(make):
    client = make()
    reply = client.evaluate_round(initial(), SETTINGS)
    assert reply.arrays == {}
    assert reply.num_examples == 3
    assert client.private.load_extra("traces")["outputs"].shape == (3, 1)
    assert "test.final" not in reply.metrics
    assert client.evaluate_round(initial(), at(1, final=True)).metrics["test.final"] == 1.0


def test_evaluations_draw_the_same_in_every_round_and_differently_on_every_node(make):
    def draws(partition, server_round):
        torch.manual_seed(server_round)
        metrics = make(partition=partition).evaluate_round(initial(), at(server_round)).metrics
        return metrics["test.draw"], metrics["test.torch_draw"]

    assert draws(1, 1) == draws(1, 2) == draws(1, 3)
    assert all(mine != other for mine, other in zip(draws(1, 1), draws(2, 1), strict=True))


# -- stages ----------------------------------------------------------------------------------------------------


def test_the_next_stage_trains_on_what_was_collected(make):
    client = make()
    assert client.train_round(initial(), at(1)).num_examples == 6
    client.evaluate_round(initial(), at(1, collect=True))
    assert client.private.load_extra("collected-1")["x"].shape == (4, 2)
    reply = client.train_round(initial(), at(2, stage=1))
    assert reply.num_examples == 6 + 4
    assert client.train_round(initial(), at(2, stage=0)).num_examples == 6


def test_a_message_that_asks_a_task_to_collect_which_cannot_is_refused(make, monkeypatch):
    monkeypatch.setattr(ToyTask, "can_collect", False)
    with pytest.raises(ValueError, match="config collect = True: task 'toy' only learns from given data"):
        make().evaluate_round(initial(), at(1, collect=True))


def test_stages_add_up(make):
    client = make()
    client.evaluate_round(initial(), at(1, collect=True))
    client.evaluate_round(initial(), at(2, stage=1, collect=True))
    assert client.train_round(initial(), at(3, stage=2)).num_examples == 6 + 4 + 4
    first, second = (client.private.load_extra(f"collected-{stage}") for stage in (1, 2))
    assert (first["x"] != second["x"]).any()


def test_a_collection_can_be_repeated(make):
    def collected(seed_before):
        client = make()
        torch.manual_seed(seed_before)
        client.evaluate_round(initial(), at(1, collect=True))
        return client.private.load_extra("collected-1")

    assert same_bits(collected(0), collected(1))


def test_a_stage_without_collection_is_an_error(make):
    with pytest.raises(ValueError, match=r"node toy-1 cannot train in stage 1: it has no data collected for stage 1"):
        make().train_round(initial(), at(2, stage=1))


def test_pooled_training_takes_the_collections_of_all_nodes(make):
    nodes = [make(partition=partition) for partition in (0, 1)]
    for node in nodes:
        node.evaluate_round(initial(), at(1, collect=True))
    pooled = make(nodes[0].private, collectors=nodes[0].private.siblings())
    assert pooled.train_round(initial(), at(2, stage=1)).num_examples == 6 + 4 + 4


# -- what is kept for other programs ---------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [(), (Personalisation(1, 0.001),), (Decomposition(0.0, 0.0),)])
def test_the_model_of_an_evaluation_is_the_evaluated_one(make, parts):
    kept = []
    client = make(parts=parts, keep=lambda *given: kept.append(given))
    client.train_round(initial(ENCODER), at(1))
    result = client.evaluate_round(initial(ENCODER), at(3))
    phase, model, settings, same = kept[-1]
    assert (phase, settings.server_round, same) == ("evaluate", 3, result)
    assert set(model.state_dict()) == set(NAMES), "a model of the task, without what a part adds for training"
    assert evaluated(client.task, model, client.data, run_seed=3, final=False).metrics.items() <= result.metrics.items()


def test_the_model_of_training_is_what_the_node_would_evaluate_if_its_parameters_came_back(make):
    kept = []
    client = make(keep=lambda *given: kept.append(given))
    sent_back = client.train_round(initial(ENCODER), at(1)).arrays
    metrics = client.evaluate_round(sent_back, at(1)).metrics
    trained, _ = (model for _, model, *_ in kept)
    assert evaluated(client.task, trained, client.data, run_seed=3, final=False).metrics == metrics


def test_the_initial_model_is_built_once_for_all_nodes_and_no_node_sees_what_another_did_to_it(make, monkeypatch):
    builds, options, start = [], ToyOptions(examples=7), initial(NAMES)
    build = ToyTask.build_model
    monkeypatch.setattr(ToyTask, "build_model", lambda self: builds.append(self) or build(self))
    first = make(partition=1, options=options).prepared_model({}, SETTINGS).model
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.requires_grad_(False).fill_(7)
    second = make(partition=2, options=options).prepared_model({}, SETTINGS).model
    assert len(builds) == 1
    assert same_bits(get_arrays(second, NAMES), start)
    assert all(parameter.requires_grad for parameter in second.parameters())
    other = make(partition=2, options=options, seed=4).prepared_model({}, SETTINGS).model
    assert len(builds) == 2
    assert not same_bits(get_arrays(other, NAMES), start)


def test_a_model_that_depends_on_the_data_is_built_anew(make, monkeypatch):
    monkeypatch.setattr(ToyTask, "build_model_for", lambda self, data: _with_bias(self.build_model(), data.key))
    models = [make(partition=k).prepared_model({}, SETTINGS).model for k in (1, 2, 1)]
    assert [model.get_parameter("head.bias").tolist() for model in models] == [[1.0], [2.0], [1.0]]


def _with_bias(model, key):
    torch.nn.init.constant_(model.get_parameter("head.bias"), int(key.removeprefix("toy-")))
    return model


# A node whose data comes in stages: what it trains on, what it is evaluated on, and its learning rate.


def node(folder):
    return node_of(folder, data=staged(1))


def test_a_stage_is_trained_on_its_own_data(tmp_path):
    plain = node_of(tmp_path / "plain", data=replace(ToyTask().data(4), key="toy-1"))
    expected = plain.train_round(initial(), at(1, 0))
    assert same_bits(node(tmp_path / "staged").train_round(initial(), at(1, 1)).arrays, expected.arrays)


def test_a_stage_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(DataError, match="toy-1 has 3 stages of data: there is no stage 4"):
        node(tmp_path).train_round(initial(), at(1, 3))


def test_every_evaluation_covers_all_stages(tmp_path):
    client = node(tmp_path)
    trained = client.train_round(initial(), at(1, 1)).arrays
    metrics = client.evaluate_round(trained, at(1, 1)).metrics
    model = ToyTask().build_model()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trained.items()})
    model.eval()
    for stage, splits in enumerate(staged(1).stages):
        expected = ToyTask().loss(model, splits["test"]).item()
        assert metrics[f"stage-{stage + 1}.test.loss"] == pytest.approx(expected)
    assert metrics["test.loss"] == metrics["stage-2.test.loss"]


def test_only_the_final_evaluation_repeats_the_current_stage(tmp_path, monkeypatch):
    finals, evaluate = [], ToyTask.evaluate

    def counted(self, model, data, *, seed, final):
        finals.append(final)
        return evaluate(self, model, data, seed=seed, final=final)

    monkeypatch.setattr(ToyTask, "evaluate", counted)
    node(tmp_path).evaluate_round(initial(), at(1, 1))
    assert finals == [False, False, False]
    finals.clear()
    metrics = node(tmp_path).evaluate_round(initial(), at(1, 1, final=True)).metrics
    assert finals == [True, False, False, False]
    assert "test.final" in metrics
    assert "stage-2.test.final" not in metrics


def test_the_learning_rate_falls_across_rounds_and_starts_again_with_a_stage(tmp_path):
    client, seen = node(tmp_path), []
    for server_round, stage in ((1, 0), (2, 0), (3, 0), (4, 1)):
        # No step can improve anything: every epoch is stale but the first of a stage.
        rates = {"learning_rate": 1e-30, "min_learning_rate": 0.0}
        client.train_round(initial(), at(server_round, stage, plateau_patience=2, epochs=1, **rates))
        seen.append(float(client.private.load(server_round + 1)["memory.plateau"][0]))
    assert seen == [1e-30, 1e-30, 0.5e-30, 1e-30]


def test_a_plateau_needs_validation_examples(tmp_path):
    with pytest.raises(ValueError, match="plateau-patience = 2: node toy-1 has no validation examples"):
        node_of(tmp_path).train_round(initial(), at(1, 0, plateau_patience=2))
