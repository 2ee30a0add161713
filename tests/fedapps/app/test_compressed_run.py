"""Runs with the key compression: what travels, what stays on the node, and what it cannot be combined with."""

import numpy as np
import pytest
from fedapps.clients.settings import RoundSettings
from fedapps.clients.state import DiskState
from fedapps.strategies import BFloat16, Int8, TopK
from run_outputs import assert_same
from safetensors.numpy import load_file
from small_runs import LQR, power_cut
from toys import same_bits

from fedapps.app.client_app import StateMemory
from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import ConfigError, parse
from fedapps.registry.methods import method_class, method_names

REFUSED = {
    "apfl": "the deviation of the replies", "clustered": "the models of their clusters",
    "h-fl": "the models of their clusters", "fedcurv": "its exact parameters",
    "elastic-transfer": "its exact parameters", "fedweit": "the units of their masks",
    "fedvc": "one compression error for several replies", "ifca": "the model that they choose",
    "scaffold": "from their exact updates",
}  # fmt: skip


def shared(folder, method):
    return folder.checkpoints(method).latest().arrays


def errors(folder, method):
    """The errors that the nodes keep, by node and round."""
    paths = (folder.path / "nodes").glob(f"*/{method}/*/compression/round-*.safetensors")
    return {(path.parts[-3], path.stem): load_file(path) for path in sorted(paths)}


def test_a_method_can_be_compared_with_itself_compressed(federate):
    methods = {
        "none": "fedavg", "bf16": "fedavg(run.compression=bf16)", "int8": "fedavg(run.compression=int8)",
        "top-k": "fedavg(run.compression=top-k,run.compression-share=0.5)",
        "all": "fedavg(run.compression=top-k,run.compression-share=1.0)",
    }  # fmt: skip
    folder = federate(methods=",".join(methods.values()))
    labels = dict(zip(methods, folder.summary()["methods"], strict=True))
    arrays = {name: shared(folder, label) for name, label in labels.items()}
    for name, close in (("bf16", 1e-3), ("int8", 1e-2), ("top-k", 0.1), ("all", 1e-6)):
        assert name == "all" or not same_bits(arrays[name], arrays["none"]), name
        for key, array in arrays["none"].items():
            np.testing.assert_allclose(arrays[name][key], array, atol=close)
    assert not errors(folder, labels["none"])
    assert not errors(folder, labels["bf16"])
    for name in ("int8", "top-k"):
        assert {node for node, _ in errors(folder, labels[name])} == {"robot-00", "robot-01", "robot-02"}
        assert any(array.any() for error in errors(folder, labels[name]).values() for array in error.values())


@pytest.mark.parametrize("changes", [{}, {"dp": "local", "dp_seeded": True, "dp_noise": 0.01}], ids=["", "local dp"])
def test_a_resumed_run_has_the_errors_of_an_undisturbed_one(federate, changes):
    given = {"methods": "spfl", "compression": "top-k", "compression_share": 0.4, "fraction_train": 0.7} | changes
    undisturbed = federate("undisturbed", **given)
    with power_cut(2, while_saving=True):
        federate("cut", **given)
    resumed = federate("cut", resume=True, **given)
    assert_same(undisturbed, resumed)
    kept, again = errors(undisturbed, "spfl"), errors(resumed, "spfl")
    assert kept.keys() == again.keys() != set()
    assert all(same_bits(kept[key], again[key]) for key in kept)


def test_a_repeated_message_goes_on_with_the_newest_error_and_the_best_round_keeps_its_own(tmp_path):
    def memory(server_round, **more):
        return StateMemory(DiskState(tmp_path), RoundSettings(server_round=server_round, **more))

    for number, error in enumerate(([1.0], [2.0], [3.0], [4.0]), start=1):
        memory(number, durable_round=number - 1, best_round=1).save({"w": np.array(error)})
    assert memory(4, repeat=0).load()["w"] == [3.0]
    assert memory(4, repeat=1).load()["w"] == [4.0]
    assert memory(2).load()["w"] == [1.0]


def test_errors_in_the_context_compute_the_same(federate):
    given = {"methods": "fedavg", "compression": "int8"}
    disk, context = (federate(kind, state_backend=kind, **given) for kind in ("disk", "context"))
    assert same_bits(shared(disk, "fedavg"), shared(context, "fedavg"))
    assert not (context.path / "nodes").exists()


def test_local_and_private_parameters_are_not_compressed(federate):
    folder = federate(methods="local", compression="int8")
    assert not errors(folder, "local")
    plain = federate("plain", methods="local")
    assert_same(folder, plain)


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"compression": "bf16"}, BFloat16()),
        ({"compression": "int8"}, Int8()),
        ({"compression": "top-k", "compression-share": 0.2}, TopK(0.2)),
    ],
)
def test_the_strategy_has_the_compression_of_the_run(keys, expected):
    config = parse(LQR | keys | {"methods": "fedavg,spfl,fedvc(draws=without-replacement)"})
    assert [build_strategy(config, label).compression for label in config.methods] == [expected] * 3


def test_methods_that_need_exact_updates_are_named_with_the_reason():
    assert {name for name in method_names() if method_class(name)().compression_conflict()} == REFUSED.keys()
    plain_sgd = LQR | {"optimizer": "sgd", "weighting": "uniform"}  # as scaffold needs
    for name, reason in REFUSED.items():
        if not method_class(name).needs_stages:
            with pytest.raises(ConfigError, match=f"compression = 'int8': leave out of methods {name}.*{reason}"):
                parse(plain_sgd | {"methods": f"sfl,{name}", "compression": "int8"})
            parse(plain_sgd | {"methods": f"sfl,{name}"})
            with pytest.raises(ConfigError, match=f"compression = 'bf16': leave out of methods {name}"):
                parse(plain_sgd | {"methods": f"sfl,{name}(run.compression=bf16)"})


def test_values_are_checked():
    with pytest.raises(ConfigError, match="compression = 'zip': must be one of 'none', 'bf16', 'int8', 'top-k'"):
        parse(LQR | {"compression": "zip"})
    with pytest.raises(ConfigError, match=r"compression-share = 0\.0: must be a number above 0 and at most 1"):
        parse(LQR | {"compression": "top-k", "compression-share": 0.0})
