"""The in-process engine, with a server and clients that know nothing of this project."""

import re

import numpy as np
import pytest
from fedapps.sim.inprocess import InProcessGrid, NodeError, run_inprocess
from fedapps.sim.joint_work import jointly
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from inprocess_apps import ask, asked, client, metrics, partition, server

# -- messages --------------------------------------------------------------------------------------------------


def test_every_node_answers_in_the_order_asked():
    replies = asked(client(partition), num_nodes=3)
    assert metrics(replies) == [{"partition": 0}, {"partition": 1}, {"partition": 2}]
    assert len({reply.metadata.src_node_id for reply in replies}) == 3
    assert len({reply.metadata.reply_to_message_id for reply in replies}) == 3


def test_the_server_has_a_context_of_its_own():
    seen = []
    run_inprocess(server(lambda _, context: seen.append(context)), client(partition), num_nodes=1, run_config={"a": 1})
    assert seen[0].run_config == {"a": 1}
    assert seen[0].node_config == {}


def test_a_message_is_answered_once_and_only_when_its_reply_is_pulled():
    work = []

    def main(grid, _):
        first, second = grid.get_node_ids()
        messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (first, second)]
        ids = list(grid.push_messages(messages))
        assert ids == [message.metadata.message_id for message in messages]
        assert work == []
        (reply,) = grid.pull_messages([ids[1]])
        assert reply.metadata.src_node_id == second
        assert reply.metadata.reply_to_message_id == ids[1]
        assert work == [1]
        assert list(grid.pull_messages([ids[1], "never pushed"])) == []
        assert len(list(grid.pull_messages(ids))) == 1
        assert work == [1, 0]

    def answer(message, context):
        work.append(context.node_config["partition-id"])
        return {}

    run_inprocess(server(main), client(answer), num_nodes=2)
    assert work == [1, 0]


def test_a_node_works_on_its_own_copy():
    kept = []

    def vandal(message, context):
        message.content["config"]["lr"] = 99.0
        message.content["arrays"]["w"] = Array(np.zeros(2))
        message.content["more"] = ConfigRecord()
        return {}

    def main(grid, _):
        for node in grid.get_node_ids():
            content = RecordDict({"config": ConfigRecord({"lr": 0.1}), "arrays": ArrayRecord({"w": Array(np.ones(2))})})
            kept.append(content)
            list(grid.send_and_receive([Message(content, dst_node_id=node, message_type="train")]))

    run_inprocess(server(main), client(vandal), num_nodes=2)
    for content in kept:
        assert content.keys() == {"config", "arrays"}
        assert content["config"]["lr"] == 0.1
        assert content["arrays"]["w"].numpy().tolist() == [1.0, 1.0]


def test_a_record_that_goes_to_many_nodes_reaches_each_unchanged():
    def count(message, context):
        message.content["config"]["seen"] += 1
        return {"seen": message.content["config"]["seen"]}

    def main(grid, _):
        shared = ConfigRecord({"seen": 0})
        messages = [Message(RecordDict({"config": shared}), dst_node_id=n, message_type="train")
                    for n in grid.get_node_ids()]  # fmt: skip
        assert metrics(grid.send_and_receive(messages)) == [{"seen": 1}] * 3
        assert shared["seen"] == 0

    run_inprocess(server(main), client(count), num_nodes=3)


def test_the_state_of_a_context_is_its_nodes_own_and_lasts():
    def count(message, context):
        before = context.state["count"]["n"] if "count" in context.state else 0
        context.state["count"] = MetricRecord({"n": before + 1 + context.node_config["partition-id"]})
        return dict(context.state["count"])

    replies = asked(client(count), num_nodes=2, times=3)
    assert [m["n"] for m in metrics(replies)] == [1, 2, 2, 4, 3, 6]


# -- the fleet -------------------------------------------------------------------------------------------------


def test_node_configs_say_who_is_who():
    seen = []

    def look(message, context):
        seen.append((dict(context.node_config), dict(context.run_config)))
        return {}

    asked(
        client(look), node_configs=[{"data-dir": "/a"}, {"partition-id": 7, "num-partitions": 9}], run_config={"k": 1}
    )
    assert seen == [
        ({"partition-id": 0, "num-partitions": 2, "data-dir": "/a"}, {"k": 1}),
        ({"partition-id": 7, "num-partitions": 9}, {"k": 1}),
    ]


def test_a_thousand_nodes():
    replies = asked(client(partition), num_nodes=1000)
    assert [m["partition"] for m in metrics(replies)] == list(range(1000))


@pytest.mark.parametrize("fleet", [{}, {"num_nodes": 0}, {"node_configs": []}])
def test_no_node_is_an_error(fleet):
    with pytest.raises(ValueError, match="a federation needs at least one node"):
        run_inprocess(server(lambda *_: pytest.fail("started")), client(partition), **fleet)


def test_a_node_that_does_not_exist():
    with pytest.raises(ValueError, match="message to node 77, which does not exist"):
        run_inprocess(server(lambda grid, _: ask(grid, [77])), client(partition), num_nodes=2)


# -- failures --------------------------------------------------------------------------------------------------


def fail_in_second_round(message, context):
    if (message.content["config"]["server-round"], context.node_config["partition-id"]) == (1, 2):
        raise KeyError("the culprit")
    return {"partition": context.node_config["partition-id"]}


def test_an_error_is_raised_with_node_round_and_traceback():
    with pytest.raises(NodeError) as caught:
        asked(client(fail_in_second_round), num_nodes=3, times=2)
    said = str(caught.value)
    assert re.match(r"node \d+ \(partition 2\) failed in round 1 on a 'train' message:\n", said)
    assert "fail_in_second_round" in said
    assert 'raise KeyError("the culprit")' in said
    assert isinstance(caught.value.__cause__, Exception)


def test_an_error_without_a_config_is_raised_too():
    def main(grid, _):
        list(grid.send_and_receive([Message(RecordDict(), dst_node_id=n, message_type="train")
                                    for n in grid.get_node_ids()]))  # fmt: skip

    with pytest.raises(NodeError, match=r"failed in round \? on a 'train' message"):
        run_inprocess(server(main), client(lambda *_: 1 / 0), num_nodes=1)


def test_or_sent_as_an_error_reply():
    replies = asked(client(fail_in_second_round), num_nodes=3, times=2, errors="reply")
    assert [reply.has_error() for reply in replies] == [False] * 5 + [True]
    reason = replies[-1].error.reason
    assert "fail_in_second_round" in reason
    assert "KeyError: 'the culprit'" in reason
    assert replies[-1].metadata.reply_to_message_id


def test_what_the_client_app_does_not_handle_is_an_error():
    with pytest.raises(NodeError, match="failed in round 3 on a 'evaluate' message"):
        run_inprocess(server(lambda g, _: ask(g, kind="evaluate", **{"server-round": 3})), client(partition),
                      num_nodes=1)  # fmt: skip


def test_another_way_with_errors_is_refused():
    with pytest.raises(ValueError, match="errors = 'ignore': must be 'raise' or 'reply'"):
        InProcessGrid(client(partition), [{}], {}, errors="ignore")


def test_what_the_server_raises_comes_through():
    def main(grid, _):
        raise ArithmeticError("server")

    with pytest.raises(ArithmeticError, match="server"):
        run_inprocess(server(main), client(partition), num_nodes=1)


def test_two_federations_one_after_the_other_share_nothing():
    def state(message, context):
        found = "mark" in context.state
        context.state["mark"] = MetricRecord({"x": 1})
        return {"found": int(found)}

    app = client(state)
    assert metrics(asked(app, num_nodes=2)) == metrics(asked(app, num_nodes=2)) == [{"found": 0}] * 2


def groups(jobs, states):
    """Tell each job with which others it was done."""
    return [list(jobs)] * len(jobs)


def met(message, context):
    return {"with": jointly(groups, context.node_config["partition-id"])}


@pytest.mark.parametrize(
    ("batch", "expected"), [(1, [[0], [1], [2]]), (2, [[0, 1], [0, 1], [2]]), (9, [[0, 1, 2]] * 3)]
)
def test_as_many_nodes_as_a_batch_has_work_together(batch, expected):
    replies = asked(client(met), num_nodes=3, batch=batch)
    assert metrics(replies) == [{"with": group} for group in expected]


def test_a_node_with_two_messages_runs_once_at_a_time():
    found = []
    first, second, third = range(2, 5)
    run_inprocess(
        server(lambda grid, _: found.extend(ask(grid, [first, second, first, third]))),
        client(met),
        num_nodes=3,
        batch=9,
    )
    assert metrics(found) == [{"with": [0, 1]}, {"with": [0, 1]}, {"with": [0, 2]}, {"with": [0, 2]}]


def test_a_node_that_fails_ends_alone():
    def failing(message, context):
        if context.node_config["partition-id"] == 1:
            raise KeyError("the culprit")
        return met(message, context)

    replies = asked(client(failing), num_nodes=3, batch=3, errors="reply")
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert metrics([replies[0], replies[2]]) == [{"with": [0, 2]}] * 2
    with pytest.raises(NodeError, match=r"(?s)partition 1.*the culprit"):
        asked(client(failing), num_nodes=3, batch=3)


def test_a_batch_of_no_nodes_is_refused():
    with pytest.raises(ValueError, match="batch = 0: must be at least 1"):
        InProcessGrid(client(partition), [{}], {}, batch=0)
