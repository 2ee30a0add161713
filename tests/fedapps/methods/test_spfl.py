"""A node that trains a copy of the model before it evaluates it (SPFL, APFL)."""

from dataclasses import replace

import numpy as np
from flwr.app import RecordDict
from toy_nodes import NAMES, SETTINGS, at, initial, node
from toys import ToyTask, record_of, same_bits

from fedapps.methods.fedrecon import FedReconOptions, FedReconPart
from fedapps.methods.h_fl import SharedEvaluation
from fedapps.methods.spfl import Personalisation

ENCODER = NAMES[:1]


def part(rates=None):
    """As a message sets it."""
    content = RecordDict({} if rates is None else {"adaptive.rates": record_of(rates)})
    return Personalisation(3, 0.1).read({}, content)


def rates(value):
    return {name: np.full(array.shape, value) for name, array in initial(NAMES[:3]).items()}


def personal(folder, given=None):
    client = node(folder, part(given))
    return client.evaluate_round(initial(), SETTINGS).metrics, client.private.load_extra("personal")


def test_the_copy_is_trained_as_in_a_round_of_training(tmp_path):
    """With the whole data in one batch no draw matters: the copy is what a round of so many epochs trains."""
    whole = at(1, batch_size=6)
    client = node(tmp_path / "personal", part())
    client.evaluate_round(initial(), whole)
    copy = client.private.load_extra("personal")
    trained = node(tmp_path / "plain").train_round(initial(), at(1, batch_size=6, epochs=3, learning_rate=0.1)).arrays
    for name in NAMES[:3]:
        np.testing.assert_allclose(copy[name], trained[name], rtol=1e-5)


def test_rates_of_one_personalise_as_none_bit_for_bit(tmp_path):
    metrics, arrays = personal(tmp_path / "none")
    for number, given in enumerate(({}, rates(1.0), {name: np.ones(()) for name in NAMES[:3]})):
        with_rates = personal(tmp_path / str(number), given)
        assert with_rates[0] == metrics
        assert same_bits(with_rates[1], arrays)
    plain = node(tmp_path / "plain").evaluate_round(initial(), SETTINGS).metrics
    assert metrics["test.loss"] < plain["test.loss"]
    assert metrics["test.draw"] == plain["test.draw"]
    assert metrics["test.torch_draw"] == plain["test.torch_draw"]


def test_rates_of_zero_evaluate_the_received_model(tmp_path):
    metrics, arrays = personal(tmp_path / "zero", rates(0.0))
    plain = node(tmp_path / "plain").evaluate_round(initial(), SETTINGS).metrics
    assert metrics["test.loss"] == plain["test.loss"]
    assert same_bits({n: arrays[n] for n in NAMES[:3]}, initial(NAMES[:3]))


def test_a_node_without_training_data_evaluates_the_received_model(tmp_path):
    data = ToyTask().data(1)
    untrained = replace(data, splits={"test": data.splits["test"]})
    client = node(tmp_path, part(), data=untrained)
    plain = node(tmp_path / "plain", data=untrained)
    found, expected = (one.evaluate_round(initial(), SETTINGS).metrics for one in (client, plain))
    assert found["test.loss"] == expected["test.loss"]


def test_one_rate_per_tensor_holds_that_tensor(tmp_path):
    _, arrays = personal(tmp_path, {"encoder.weight": np.zeros(())})
    assert arrays["encoder.weight"].tobytes() == initial()["encoder.weight"].tobytes()
    assert (arrays["head.weight"] != initial()["head.weight"]).all()


def test_personalisation_never_changes_what_is_trained(tmp_path):
    plain, personalised = node(tmp_path / "plain"), node(tmp_path / "personalised", part(rates(0.5)))
    for server_round in (1, 2, 3):
        expected = plain.train_round(initial(ENCODER), at(server_round))
        found = personalised.train_round(initial(ENCODER), at(server_round))
        assert same_bits(found.arrays, expected.arrays)
        assert found.metrics == expected.metrics
        personalised.evaluate_round(initial(ENCODER), at(server_round))
    assert same_bits(personalised.private.load(before=9), plain.private.load(before=9))


def test_the_node_keeps_the_personal_copy_of_the_model_of_its_cluster(tmp_path):
    """The model that all clusters share is personalised for its metrics, too, but its copy is not kept."""
    far = {name: array + array.dtype.type(3) for name, array in initial().items()}
    both = node(tmp_path / "both", part(), SharedEvaluation(far))
    metrics = both.evaluate_round(initial(), SETTINGS).metrics
    expected, copy = personal(tmp_path / "one")
    assert {name: value for name, value in metrics.items() if not name.startswith("shared.")} == expected
    assert same_bits(both.private.load_extra("personal"), copy)
    assert metrics["shared.test.loss"] == node(tmp_path / "far", part()).evaluate_round(far, SETTINGS).metrics[
        "test.loss"
    ]  # fmt: skip


def test_reconstructed_parameters_are_personalised_in_turn(tmp_path):
    reconstruction = FedReconPart(FedReconOptions(epochs=2))
    alone = node(tmp_path / "alone", reconstruction).evaluate_round(initial(ENCODER), SETTINGS).metrics
    frozen = part(rates(0.0))
    held = node(tmp_path / "held", reconstruction, frozen).evaluate_round(initial(ENCODER), SETTINGS).metrics
    assert held["test.loss"] == alone["test.loss"]
    free = node(tmp_path / "free", reconstruction, part()).evaluate_round(initial(ENCODER), SETTINGS).metrics
    assert free["test.loss"] != alone["test.loss"]
