"""FedProx on a node: the proximal term by autograd, at µ = 0, and at a large µ."""

import numpy as np
import pytest
from fedapps.clients.state import ContextState
from flwr.app import RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_nodes import NAMES, at, initial, node, steps_by_autograd
from toys import same_bits

from fedapps.config.parsing import ConfigError, parse
from fedapps.methods.fedprox import FedProx, Proximal


def distance(arrays):
    return sum(float(np.square(arrays[name] - initial()[name]).sum()) for name in NAMES[:3])


@settings(max_examples=10, deadline=None)
@given(mu=st.floats(0, 4))
def test_the_gradient_is_that_of_autograd(mu):
    found = node(ContextState(RecordDict()), Proximal(mu)).train_round(
        initial(), at(1, epochs=3, batch_size=6, optimizer="sgd")
    )  # fmt: skip
    expected = steps_by_autograd(
        lambda named, start: sum((mu * (p - start[n]) ** 2).sum() / 2 for n, p in named.items())
    )
    for name, values in expected.items():
        np.testing.assert_allclose(found.arrays[name], values, rtol=1e-4, atol=1e-6)


def test_with_mu_zero_it_is_fedavg_and_a_large_mu_holds_back(tmp_path):
    def reply(*parts):
        return node(tmp_path / str(parts), *parts).train_round(initial(), at(1, epochs=5, optimizer="sgd")).arrays

    fedavg = reply()
    assert same_bits(reply(Proximal(0.0)), fedavg)
    # Each step of size 0.05 shrinks the way back to the anchor by 1 − 0.05 µ.
    assert 0 < distance(reply(Proximal(10.0))) < 0.5 * distance(fedavg)


def test_private_parameters_are_free(tmp_path):
    """At a learning rate of 1/µ every step of SGD lands the encoder next to where it came from, but not the head."""
    client = node(tmp_path, Proximal(1e3))
    encoder = initial(NAMES[:1])
    reply = client.train_round(encoder, at(1, optimizer="sgd", learning_rate=1e-3, epochs=50))
    np.testing.assert_allclose(reply.arrays["encoder.weight"], encoder["encoder.weight"], atol=1e-2)
    assert np.abs(client.private.load(2)["head.weight"] - initial()["head.weight"]).max() > 2e-2


def test_a_negative_mu_is_an_error_that_names_the_key():
    with pytest.raises(ConfigError, match=r"fedprox\.mu = -0\.5: must be a number at least 0"):
        parse({"methods": "fedprox", "fedprox.mu": -0.5})


def test_the_nodes_build_the_term_from_the_options_and_no_message_changes_it():
    (part,) = FedProx(mu=0.5).local_parts()
    assert part == Proximal(0.5)
    assert part.read({"mu": 0.0, "proximal": 0.0}, RecordDict()) is part
