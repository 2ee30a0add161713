"""FedVLN: pre-exploration in drawn houses, two of them seen and two unseen, whose runs take seconds."""

import numpy as np
import pytest
import small_runs
import torch
from drawn_houses import run_keys, saved, speaking, task_with, write_world
from fedapps.clients.local_part import composed
from fedapps.clients.state import ContextState, DiskState
from fedapps.strategies import BaseStrategy, PartialAggregation, Profile
from fedapps.tasks.vln.agent import LanguageEncoder
from flwr.app import ArrayRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st
from run_outputs import assert_same
from safetensors.numpy import load_file
from small_runs import power_cut, run_inline
from toy_nodes import NAMES, at, initial
from toy_nodes import node as toy_node
from toys import ToyTask, same_bits

from fedapps.app.client_app import app as client_app
from fedapps.app.privacy import spent
from fedapps.app.strategy import build_strategy
from fedapps.config.parsing import ConfigError, parse
from fedapps.methods.fedvln import FedVlnPart
from fedapps.methods.spfl import Personalisation
from fedapps.registry.methods import canonical

SEEN, UNSEEN = ("houseA", "houseB"), ("houseC", "houseD")
HOUSES = (*SEEN, *UNSEEN)
EVERY_HOUSE = "seen-fraction=1,unseen-fraction=1"


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """The run config of a pre-exploration."""
    folder = write_world(tmp_path_factory.mktemp("world"), seen=SEEN, unseen=UNSEEN)
    torch.manual_seed(1)
    agent = saved(task_with().build_model(), folder / "agent.safetensors")
    return run_keys(folder, stage="pre-exploration", agent_file=agent, **speaking(folder)) | {"num-nodes": 4}


@pytest.fixture
def explore(keys, tmp_path):
    """Run pre-exploration by some methods; the run's folder."""

    def run(methods, place="run", **changes):
        given = keys | {"methods": methods} | {key.replace("_", "-"): value for key, value in changes.items()}
        return run_inline(given, tmp_path / place)

    return run


def agent_arrays():
    """The arrays of an agent of the same sizes."""
    return {name: tensor.numpy() for name, tensor in task_with().build_model().state_dict().items()}


def evaluated(folder, method):
    """Each node's metrics, by round."""
    rows = [row for row in folder.lines("nodes.jsonl") if (row["method"], row["phase"]) == (method, "evaluate")]
    return {n: {row["node"]: row["metrics"] for row in rows if row["round"] == n} for n in {r["round"] for r in rows}}


def trained(folder, method):
    """The nodes that trained, by round."""
    rows = [row for row in folder.lines("nodes.jsonl") if (row["method"], row["phase"]) == (method, "train")]
    return {n: [row["node"] for row in rows if row["round"] == n] for n in {r["round"] for r in rows}}


def kept(folder, method, node):
    """What a node kept after its last training."""
    versions = sorted(folder.path.glob(f"nodes/*/{method}/{node}/round-*.safetensors"))
    return load_file(versions[-1])


# -- who trains --------------------------------------------------------------------------------------------------


def strategy_of(keys, label):
    config = parse(keys | {"methods": label})
    (method,) = config.methods
    return build_strategy(config, method, agent_arrays())


def houses(seen, unseen):
    """Profiles of houses."""
    kinds = ["true"] * seen + ["false"] * unseen
    return [Profile(n, f"house{n:03d}", 10, {"seen": kind}) for n, kind in enumerate(kinds)]


@pytest.mark.parametrize(
    ("label", "counts"), [("fedvln", (11, 7)), ("fed-lan", (0, 7)), ("fedvln(unseen-fraction=0.5)", (11, 6))]
)
def test_of_61_seen_and_11_unseen_houses(keys, label, counts):
    """.18 of 61 are 10.98, .6 of 11 are 6.6, .5 of 11 are 5.5 houses."""
    sampler = strategy_of(keys, label).sampler
    for server_round in (1, 2):
        chosen = [house.groups["seen"] for house in sampler.sample(houses(61, 11), server_round, "train")]
        assert (chosen.count("true"), chosen.count("false")) == counts


@settings(max_examples=15)
@given(st.integers(1, 70), st.integers(1, 20), st.integers(1, 500))
def test_seen_houses_change_no_draw_of_unseen_ones(seen, unseen, server_round):
    """So the variants train the same unseen houses in each round."""
    config = {"task": "vln", "vln.stage": "pre-exploration", "collect-after": 0}
    drawn = []
    for label in ("fedvln", "fed-lan", "fed-full", "env-based"):
        sampler = strategy_of(config, label).sampler
        chosen = sampler.sample(houses(seen, unseen), server_round, "train")
        drawn.append([house.key for house in chosen if house.groups["seen"] == "false"])
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3] != []


def test_the_variants_of_the_paper(keys):
    assert canonical("fed-lan-seen") == "fedvln"
    assert canonical("fed-lan") == "fedvln(seen-fraction=0)"
    kinds = {
        "fedvln": (PartialAggregation, {"encoder"}),
        "fed-lan": (PartialAggregation, {"encoder"}),
        "fed-full": (BaseStrategy, {"*"}),
        "env-based": (BaseStrategy, set()),
    }
    for label, (kind, shared) in kinds.items():
        strategy = strategy_of(keys, label)
        assert type(strategy) is kind
        assert {name.partition(".")[0] for name in strategy.shared} == shared


# -- what travels ------------------------------------------------------------------------------------------------


def test_only_the_encoder_is_on_the_wire(explore, monkeypatch):
    names = set()

    def listened(message, context):
        reply = client_app(message, context)
        for content in (message.content, reply.content):
            names.update(name for record in content.array_records.values() for name in record)
        return reply

    monkeypatch.setattr(small_runs, "client_app", listened)
    folder = explore("fedvln")
    assert names == {name for name in agent_arrays() if name.startswith("encoder.")} != set()
    stored = folder.checkpoints("fedvln").latest().arrays
    assert all(name.startswith(("shared.encoder.", "state.")) for name in stored)
    assert not any(
        name.endswith(f".{array}") for name in stored for array in agent_arrays() if not array.startswith("encoder.")
    )


@pytest.mark.slow
def test_bytes_of_the_encoder_and_of_the_agent(explore):
    """A reply is as much smaller as the decoder and the critic are large."""
    folder = explore("fed-lan,fed-full,env-based")
    sent = {method: facts["final"]["bytes_per_client_round"] for method, facts in folder.summary()["methods"].items()}
    torch_arrays = task_with().build_model().state_dict()
    encoder = {name: tensor for name, tensor in torch_arrays.items() if name.startswith("encoder.")}
    sizes = [ArrayRecord(arrays).count_bytes() for arrays in ({}, encoder, torch_arrays)]
    assert sent["fed-lan"] - sent["env-based"] == sizes[1] - sizes[0]
    assert sent["fed-full"] - sent["env-based"] == sizes[2] - sizes[0]
    raw = sum(tensor.nbytes for tensor in torch_arrays.values())
    assert sent["fed-lan"] < raw < sent["fed-full"]


# -- degenerate cases ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_with_a_frozen_encoder_nothing_is_shared(keys, explore, monkeypatch):
    """Without a gradient the encoder stays the agent's, so the houses train as if each were alone."""
    forward = LanguageEncoder.forward
    monkeypatch.setattr(LanguageEncoder, "forward", lambda *given: tuple(each.detach() for each in forward(*given)))
    shared = explore("fedvln", "shared", rounds=3)
    alone = explore("fedvln(share=none)", "alone", rounds=3)
    assert evaluated(shared, "fedvln") == evaluated(alone, "fedvln(share=none)")
    for node in {node for nodes in trained(shared, "fedvln").values() for node in nodes}:
        one, other = kept(shared, "fedvln", node), kept(alone, "fedvln(share=none)", node)
        own = {name.removeprefix("memory.local."): array for name, array in one.items()}
        assert same_bits(own, other)
    agent = load_file(keys["vln.agent-file"])
    encoder = {f"shared.{name}": array for name, array in agent.items() if name.startswith("encoder.")}
    stored = shared.checkpoints("fedvln").latest().arrays
    assert same_bits({name: array for name, array in stored.items() if name.startswith("shared.")}, encoder)


@pytest.mark.slow
def test_with_all_shared_and_all_houses_the_server_is_fedavgs(explore):
    label = f"fedvln(share=all,{EVERY_HOUSE})"
    explored, averaged = explore(label, "a", rounds=3), explore("fedavg", "b", rounds=3)
    one, other = (folder.checkpoints(m).latest().arrays for folder, m in ((explored, label), (averaged, "fedavg")))
    assert same_bits(one, other)
    assert evaluated(explored, label)[3] != evaluated(averaged, "fedavg")[3]  # the local models before the average


@pytest.mark.slow
def test_with_nothing_shared_and_all_houses_it_is_local_training(explore):
    label = f"fedvln(share=none,{EVERY_HOUSE})"
    explored, local = explore(label, "a"), explore("local", "b")
    assert evaluated(explored, label) == evaluated(local, "local")
    assert all(same_bits(kept(explored, label, node), kept(local, "local", node)) for node in HOUSES)


# -- what is evaluated ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_house_that_was_not_drawn_is_evaluated_with_its_old_model(explore):
    folder = explore("fedvln(seen-fraction=0.5,unseen-fraction=0.5)", rounds=6)
    (label,) = folder.summary()["methods"]
    found, drawn = evaluated(folder, label), trained(folder, label)
    assert all(len(nodes) == 2 for nodes in drawn.values())
    before = explore("untrained", "before", rounds=1)
    untouched = evaluated(before, "untrained")[1]
    waited = 0
    for node in HOUSES:
        since = [n for n in drawn if node in drawn[n]]
        for server_round in range(2, 7):
            if server_round not in since and any(n < server_round for n in since):
                assert found[server_round][node] == found[server_round - 1][node]
                waited += 1
        assert any(found[n][node] != untouched[node] for n in since)
    assert waited > 4


@pytest.mark.slow
def test_a_run_that_was_cut_ends_as_if_nothing_had_happened(explore):
    given = {"rounds": 4, "server_optimizer": "momentum"}
    undisturbed = explore("fedvln,fed-full", "undisturbed", **given)
    with power_cut(3, "fedvln"):
        explore("fedvln,fed-full", "cut", **given)
    assert_same(undisturbed, explore("fedvln,fed-full", "cut", resume=True, **given))


# -- what rules it out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"vln.stage": "augmented"}, "vln.stage = 'augmented': must be 'pre-exploration' with the method fedvln; use "),
        (
            {"methods": "fed-lan(unseen-fraction=0)"},
            r"fedvln\.seen-fraction = 0, fedvln\.unseen-fraction = 0: no house trains with vln\.houses = 'all'",
        ),
        ({"methods": "fed-lan", "vln.houses": "seen"}, "unseen-fraction = 0.6: no house trains with vln.houses = 'see"),
        ({"drop-nodes": True}, "drop-nodes = true: must be false with the method fedvln"),
        ({"sampling": "poisson"}, "sampling = 'poisson': must be 'fixed' with the method fedvln"),
        ({"task": "text"}, "methods: 'fedvln' is for task 'vln', not 'text'"),
        ({"methods": "fedvln(share=decoder)"}, "fedvln.share = 'decoder': must be one of 'encoder', 'all', 'none'"),
        ({"methods": "fedvln(seen-fraction=1.2)"}, "fedvln.seen-fraction = 1.2: must be a number at least 0 and at "),
    ],
)
def test_what_cannot_be_combined_says_what_to_do(keys, changes, said):
    with pytest.raises(ConfigError, match=said):
        parse(keys | {"methods": "fedvln"} | changes)


def test_local_privacy_protects_what_travels(keys):
    config = parse(keys | {"methods": "fedvln,fed-full,env-based", "dp": "local", "weighting": "uniform"})
    assert [bool(spent(config, label, {1: 1, 2: 1, 3: 1})) for label in config.methods] == [True, True, False]


@pytest.mark.parametrize("dp", ["central-server", "central-client"])
def test_central_privacy_needs_an_expected_number_of_nodes(keys, dp):
    with pytest.raises(ConfigError, match=rf"dp = '{dp}': leave out of methods fedvln, .* expected number of nodes"):
        parse(keys | {"methods": "fedvln", "dp": dp, "weighting": "uniform"})


# -- a node ----------------------------------------------------------------------------------------------------

ENCODER = NAMES[:1]


def received(shift, names=ENCODER):
    """What a server sends in some round."""
    return {name: array + array.dtype.type(shift) for name, array in initial(names).items()}


def by_hand(weights, rate):
    """Encoder, head and bias after a step of gradient descent on (x E' h' + c - y)², in double precision."""
    encoder, head, bias = weights
    train = ToyTask().data(1).splits["train"]
    x, y = (train[name].double().numpy() for name in ("x", "y"))
    hidden = x @ encoder.T
    error = 2 * (hidden @ head.T + bias - y) / len(x)
    return encoder - rate * (error @ head).T @ x, head - rate * error.T @ hidden, bias - rate * error.sum(0)


def test_an_evaluation_by_hand(tmp_path):
    """After one step from what was received, the loss is that of the step's result, whatever comes next."""
    client = toy_node(tmp_path, FedVlnPart())
    sent = received(0.3)
    client.train_round(sent, at(1, epochs=1, batch_size=6, optimizer="sgd", learning_rate=0.05))
    weights = [sent["encoder.weight"], *(initial()[name] for name in NAMES[1:3])]
    encoder, head, bias = by_hand([array.astype(np.float64) for array in weights], 0.05)
    test = ToyTask().data(1).splits["test"]
    outputs = test["x"].double().numpy() @ encoder.T @ head.T + bias
    expected = np.square(outputs - test["y"].double().numpy()).mean()
    found = client.evaluate_round(received(5.0), at(1)).metrics["test.loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_node_that_never_trained_is_evaluated_with_what_it_receives(tmp_path):
    alone = toy_node(tmp_path / "part", FedVlnPart()).evaluate_round(received(2.0), at(3)).metrics
    assert alone == toy_node(tmp_path / "plain").evaluate_round(received(2.0), at(3)).metrics


@pytest.mark.slow
@settings(max_examples=30)
@given(drawn=st.lists(st.booleans(), min_size=1, max_size=6), names=st.sampled_from([ENCODER, NAMES, []]))
def test_whichever_rounds_a_node_trains_in_its_last_model_is_evaluated(tmp_path_factory, drawn, names):
    """Training, the reply and the private arrays are those of a plain node."""
    folder = tmp_path_factory.mktemp("nodes")
    client, plain = toy_node(folder / "part", FedVlnPart()), toy_node(folder / "plain")
    last = None
    for server_round, trains in enumerate(drawn, 1):
        sent = received(server_round / 10, names)
        if trains:
            found, expected = (each.train_round(sent, at(server_round)) for each in (client, plain))
            assert same_bits(found.arrays, expected.arrays)
            assert found.metrics == expected.metrics
            last = expected.arrays
        evaluated = received(server_round, names)
        found = client.evaluate_round(evaluated, at(server_round)).metrics
        assert found == plain.evaluate_round(evaluated if last is None else last, at(server_round)).metrics
    kept, expected = client.private.load(99), plain.private.load(99)
    if expected is not None:
        assert same_bits({name: kept[name] for name in expected}, expected)
        assert len(kept) == len(NAMES)


def test_a_repeated_round_evaluates_as_the_first_time(tmp_path):
    """A server that goes back to a snapshot finds the models of that round."""
    client = toy_node(tmp_path, FedVlnPart())
    sent, found = received(0.1), {}
    for server_round in (1, 2, 3):
        client.train_round(sent, at(server_round))
        found[server_round] = client.evaluate_round(sent, at(server_round)).metrics
    assert len({metrics["test.loss"] for metrics in found.values()}) == 3
    assert client.evaluate_round(sent, at(2)).metrics == found[2]
    client.train_round(sent, at(3))
    assert client.evaluate_round(sent, at(3)).metrics == found[3]


def test_a_context_keeps_the_model_as_a_disk_does(tmp_path):
    found = []
    for state in (DiskState(tmp_path), ContextState(RecordDict())):
        client = toy_node(state, FedVlnPart())
        client.train_round(received(0.1), at(1))
        again = toy_node(state, FedVlnPart())
        found.append(again.evaluate_round(received(3.0), at(2)).metrics)
    assert found[0] == found[1]


def test_no_other_part_may_choose_the_evaluated_model():
    with pytest.raises(ValueError, match="cannot be combined: both need the evaluated model for themselves"):
        composed([FedVlnPart(), Personalisation(1, 0.1)])
