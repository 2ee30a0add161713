"""The app of Flower's PyTorch template keeps its head at home: one import on the server, one mod on the client."""

import numpy as np
import pytest
import torch
from fedapps.clients.guard import keep_private
from fedapps.strategies import BaseStrategy, BFloat16, Int8, PartialAggregation, TopK, compression_mod
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn
from torch.nn.functional import cross_entropy
from toys import arrays_of, federate, same_bits

pytestmark = pytest.mark.usefixtures("flower_identity")
SHARED = ["conv1.*", "conv2.*", "fc1.*", "fc2.*"]
HEAD = ["fc3.weight", "fc3.bias"]
EXAMPLES = (3, 5, 8)


class Net(nn.Module):
    """The network of Flower's template: 62,006 parameters, 850 of them in the head."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = x.flatten(1)
        return self.fc3(torch.relu(self.fc2(torch.relu(self.fc1(x)))))


class WiderNet(Net):
    """A node that has another network than the server."""

    def __init__(self):
        super().__init__()
        self.fc2 = nn.Linear(120, 90)


def template(mods, seen=None, returns=lambda state: ArrayRecord(state), net=Net):
    """``client_app.py`` of the template on random images; ``seen`` collects what its functions saw and gave."""
    app = ClientApp(mods=mods)
    seen = [] if seen is None else seen

    def load(message, context):
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        partition = int(context.node_config["partition-id"])
        draw = torch.Generator().manual_seed(partition)
        images = torch.randn(EXAMPLES[partition], 3, 32, 32, generator=draw)
        return model, images, torch.randint(10, (len(images),), generator=draw), partition

    @app.train()
    def train(message, context):
        model, images, labels, partition = load(message, context)
        before = arrays_of(ArrayRecord(model.state_dict()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        seen.append(("train", partition, before, arrays_of(ArrayRecord(model.state_dict()))))
        metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(images)})
        return Message(RecordDict({"arrays": returns(model.state_dict()), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        model, images, labels, partition = load(message, context)
        seen.append(("evaluate", partition, arrays_of(ArrayRecord(model.state_dict())), None))
        with torch.no_grad():
            loss = cross_entropy(model(images), labels).item()
        metrics = MetricRecord({"eval_loss": loss, "num-examples": len(images)})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def tapped(app, wire):
    """The app behind a wire on which everything is written down, in both directions."""

    def answer(message, context):
        incoming = {name: record.copy() for name, record in message.content.items()}
        wire.append((message.metadata.message_type, "down", RecordDict(incoming)))
        reply = app(message, context)
        wire.append((message.metadata.message_type, "up", reply.content))
        return reply

    return answer


def initial():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return ArrayRecord(Net().state_dict())


def run(strategy, app, num_rounds=2):
    return federate(
        strategy, app, initial(), num_nodes=3, num_rounds=num_rounds, train_config=ConfigRecord({"lr": 0.1})
    )  # fmt: skip


def of_round(seen, kind, server_round):
    """What each partition saw and gave in a round."""
    mine = [entry for entry in seen if entry[0] == kind]
    return {entry[1]: entry[2:] for entry in mine[3 * (server_round - 1) : 3 * server_round]}


def named(arrays, names):
    return {name: arrays[name] for name in names}


def test_the_head_stays_and_the_rest_is_averaged():
    seen = []
    strategy = PartialAggregation(shared=SHARED)
    result = run(strategy, template([keep_private(Net)], seen))
    assert not strategy.report.refused
    first, second = of_round(seen, "train", 1), of_round(seen, "train", 2)
    for partition in range(3):
        # Everybody starts with the same head, and goes on with the own one.
        assert same_bits(named(first[partition][0], HEAD), named(first[0][0], HEAD))
        assert same_bits(named(second[partition][0], HEAD), named(first[partition][1], HEAD))
        # The head is evaluated as it was trained.
        evaluated = of_round(seen, "evaluate", 2)[partition][0]
        assert same_bits(named(evaluated, HEAD), named(second[partition][1], HEAD))
    heads = [second[partition][1]["fc3.weight"] for partition in range(3)]
    assert all((heads[0] != other).any() for other in heads[1:])
    shared = arrays_of(result.arrays)
    assert not set(shared) & set(HEAD)
    for name, array in shared.items():
        trained = [second[partition][1][name].astype(np.float64) for partition in range(3)]
        mean = sum(n * a for n, a in zip(EXAMPLES, trained, strict=True)) / sum(EXAMPLES)
        np.testing.assert_allclose(array, mean, rtol=1e-6, atol=1e-7)
        assert all((a == array).all() for a in (of_round(seen, "evaluate", 2)[k][0][name] for k in range(3)))


@pytest.mark.parametrize("compression", [BFloat16(), Int8(), TopK(0.5)], ids=str)
def test_the_head_is_not_compressed(compression):
    seen = []
    strategy = PartialAggregation(shared=SHARED, compression=compression)
    run(strategy, template([keep_private(Net), compression_mod], seen))
    assert not strategy.report.refused
    first, second = of_round(seen, "train", 1), of_round(seen, "train", 2)
    for partition in range(3):
        assert same_bits(named(second[partition][0], HEAD), named(first[partition][1], HEAD))


def test_messages_hold_the_shared_tensors_and_at_most_two_percent_more():
    wire, seen = [], []
    strategy = PartialAggregation(shared=SHARED)
    run(strategy, tapped(template([keep_private(Net)], seen), wire))
    values = sum(tensor.numel() * 4 for name, tensor in Net().state_dict().items() if name not in HEAD)
    private = [
        array.tobytes() for _, _, *states in seen for state in states if state for array in named(state, HEAD).values()
    ]
    carrying = 0
    for kind, way, content in wire:
        data = b"".join(
            array.data for record in content.values() if isinstance(record, ArrayRecord) for array in record.values()
        )
        assert not any(secret in data for secret in private)
        for record in content.array_records.values():
            assert not set(record) & set(HEAD)
        if kind == "query" or "arrays" not in content:
            continue
        carrying += 1
        size = sum(record.count_bytes() for record in content.values())
        assert values < size <= 1.02 * values, (kind, way)
    assert carrying == 2 * (3 + 3 + 3)
    assert strategy.report.bytes_up < 1.02 * 3 * values + 3 * 200  # three trained models, six sets of metrics


def test_where_everything_is_shared_the_mod_changes_no_bit():
    plain = run(BaseStrategy(), template([]))
    assert same_bits(arrays_of(run(BaseStrategy(), template([keep_private(Net)])).arrays), arrays_of(plain.arrays))


def test_the_fractions_of_flowers_fedavg_are_understood():
    seen = []
    strategy = PartialAggregation(shared=SHARED, fraction_train=0.3, fraction_evaluate=0.7)
    run(strategy, template([keep_private(Net)], seen), num_rounds=1)
    assert [kind for kind, *_ in seen] == ["train", "evaluate", "evaluate"]


def test_without_the_mod_the_template_cannot_load_a_part_of_its_model():
    strategy = PartialAggregation(shared=SHARED)
    with pytest.raises(RuntimeError, match=r"(?s)0 usable replies.*Missing key\(s\) in state_dict: \"fc3\.weight\""):
        run(strategy, template([]))


def test_a_client_that_returns_a_part_of_its_model_is_told():
    def without_head(state):
        return ArrayRecord({name: tensor for name, tensor in state.items() if name not in HEAD})

    with pytest.raises(RuntimeError, match=r"did not return fc3\.weight, fc3\.bias: it must return its whole model"):
        run(PartialAggregation(shared=SHARED), template([keep_private(Net)], returns=without_head))


def test_a_node_with_another_network_is_told_both_shapes():
    with pytest.raises(RuntimeError, match=r"fc2\.weight: shape \(84, 120\), the model has \(90, 120\)"):
        run(PartialAggregation(shared=SHARED), template([keep_private(WiderNet)], net=WiderNet))
