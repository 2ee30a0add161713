"""FisherExchange: its traffic per node, and runs that are resumed."""

import numpy as np
import pytest
from fedapps.strategies.algorithms import fisher_exchange
from fedapps.strategies.algorithms.fisher_exchange import FisherExchange
from fedapps.strategies.nodes.samplers import DropSchedule
from fedapps.strategies.replies import count_bytes
from fisher_nodes import START, SURE, published, stages, trained
from flwr.app import ConfigRecord
from grouped import MemoryCheckpoints
from toys import arithmetic_app, arrays_of, federate, same_bits

pytestmark = pytest.mark.usefixtures("flower_identity")


@pytest.mark.parametrize("weights", [{"others_now": 0.5}, {"own_past": 0.1, "others_past": 0.5, "others_now": 0.5}])
def test_bytes_of_a_node_do_not_depend_on_how_many_there_are(weights):
    def train(partition, arrays, config):
        return published([partition, -partition], [partition, 1])

    down, up = set(), set()
    for num_nodes in (3, 10, 100):
        seen, reports = [], []
        federate(
            FisherExchange(**weights),
            arithmetic_app(train, seen=seen),
            START,
            num_nodes=num_nodes,
            num_rounds=4,
            evaluate_every=4,
            train_config=lambda r: ConfigRecord({"stage": r // 3}),
            on_round=reports.append,
        )
        down |= {
            count_bytes(message.content)
            for message in seen
            if message.metadata.message_type == "train" and message.content["config"]["server-round"] == 2
        }
        second = reports[1]
        assert second.bytes_down == num_nodes * min(down)
        up.add(second.bytes_up / num_nodes)
        assert second.strategy["fisher"]["published"] == num_nodes
    assert len(down) == len(up) == 1


@pytest.mark.parametrize("cut_after", [1, 2, 3, 4])
@pytest.mark.parametrize("anchors", ["online", "separate"])
def test_a_resumed_run_sends_and_ends_bit_for_bit_the_same(cut_after, anchors):
    options = {"train_config": stages}

    def held(partition, arrays, config):
        server_round = config["server-round"]
        return published(arrays["w"] / 3 + np.float32(partition / 7), np.array(SURE[partition]) / (3 * server_round))

    def strategy():
        weights = {"own_past": 0.05, "others_past": 0.5, "others_now": 0.3}
        return FisherExchange(**weights, anchors=anchors, sampler=DropSchedule(["part-1", "part-0", "part-2"]))

    whole, parts = MemoryCheckpoints(), MemoryCheckpoints()
    result, priors = trained(strategy(), held, num_rounds=5, checkpoints=whole, **options)
    trained(strategy(), held, num_rounds=cut_after, checkpoints=parts, **options)
    again, later = trained(strategy(), held, num_rounds=5, checkpoints=parts, resume=True, **options)
    assert same_bits(arrays_of(again.arrays), arrays_of(result.arrays))
    assert later == {key: prior for key, prior in priors.items() if key[0] > cut_after}
    assert same_bits(parts.latest().arrays, whole.latest().arrays)


def test_keys_and_names_of_any_form_survive_a_restart():
    before = FisherExchange(others_now=1.0)
    for key in ("node.1", "a/b %2E", "ü"):
        arrays = {"enc.0.weight": np.ones(2, np.float32), "fisher.now.x": np.ones((), np.float32)}
        before._now[key] = fisher_exchange._Published(arrays, arrays)
    after = FisherExchange(others_now=1.0)
    after.load_state(before.state())
    assert same_bits(after.state(), before.state())
    assert sorted(after._now) == sorted(before._now)
