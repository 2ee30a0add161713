"""What a node refuses of a server that does not follow the protocol of secure aggregation, and what it keeps."""

import logging
import os
import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from fedapps.strategies import SecureAggregation
from fedapps.strategies.masking import PRIME, SHARE_BYTES, Cohort, combine, mask, new_key, public_key
from fedapps.strategies.masking import Encoding as Integers
from fedapps.strategies.secure_node import (
    SecureAggregationError,
    SecureRules,
    encoding_record,
    least_threshold,
    masked,
    secagg_mod,
    secagg_query,
)
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from toys import arrays_of, record_of

pytestmark = pytest.mark.usefixtures("flower_identity")
START = {"w": np.zeros(8, np.float32)}


class Server:
    """A server that asks nodes what it likes; without changes it follows the protocol."""

    def __init__(self, nodes=4, neighbours=3, threshold=3, rules=None, **node_config):
        configs = rules or [node_config] * nodes
        self.contexts = [Context(7, node, dict(config), RecordDict(), {}) for node, config in enumerate(configs)]
        self.neighbours, self.threshold = neighbours, threshold
        self.session, self.round, self.attempts = bytes(range(16)), 1, "0:aa"
        self.keys, self.answers, self.sealed, self.masked = [], [], [], []

    @property
    def cohort(self):
        return Cohort(self.session, tuple(self.keys), self.neighbours, self.threshold)

    def _records(self, **entries):
        config = ConfigRecord({"server-round": self.round, "attempts": self.attempts})
        return {"config": config, "secagg": ConfigRecord({"session": self.session, **entries})}

    def ask(self, node, step, **entries):
        message = Message(RecordDict(self._records(step=step, **entries)), 1, "query.secagg")
        return secagg_query(message, self.contexts[node]).content["secagg"]

    def train(self, node, work=lambda arrays: arrays, least_noise=0.0, start=START, config=(), **entries):
        others = self.cohort.neighbours_of(node)
        shares = [self.sealed[other][self.cohort.neighbours_of(other).index(node)] for other in others]
        asked = {"senders": others, "shares": shares, **encoding_record(Integers()), **entries}
        content = {"arrays": record_of(start), **self._records(**asked)}
        content["config"].update(config)

        def trained(message, context):
            assert "secagg" not in message.content
            arrays = record_of(work(arrays_of(message.content["arrays"])))
            return Message(
                RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 3})}), reply_to=message
            )

        reply = masked(Message(RecordDict(content), 1, "train"), self.contexts[node], trained, None, least_noise)
        assert list(reply.content) == ["secagg.masked"]
        return arrays_of(reply.content["secagg.masked"])["sum"]

    def share(self, node, **changes):
        others = self.cohort.neighbours_of(node)
        signed = {name + "s": [self.answers[other][name] for other in others] for name in ("signature", "signer")}
        facts = {"keys": b"".join(self.keys), "neighbours": self.neighbours, "threshold": self.threshold}
        return list(self.ask(node, "shares", **{**facts, **signed, **changes})["shares"])

    def after(self, *steps):
        """The server after all nodes have taken these steps."""
        nodes = range(len(self.contexts))
        if "keys" in steps:
            self.answers = [self.ask(node, "keys") for node in nodes]
            self.keys = [answer["keys"] for answer in self.answers]
        if "shares" in steps:
            self.sealed = [self.share(node) for node in nodes]
        if "masked" in steps:
            self.masked = [self.train(node) for node in nodes]
        return self

    def unmask(self, node, survivors, dropped=()):
        return self.ask(node, "unmask", survivors=list(survivors), dropped=list(dropped))

    def sum(self):
        """The sum of the masked vectors of all nodes, without the own mask of each: that of the updates."""
        nodes = range(len(self.contexts))
        answers = [self.unmask(node, nodes)["of-survivors"] for node in nodes]
        total = sum(self.masked[1:], self.masked[0].copy())
        for node in nodes:
            shares = {other + 1: answers[other][node] for other in nodes}
            total -= mask(combine(shares, self.threshold), total.size, total.dtype)
        return total.astype(np.int64)


def refused(match):
    return pytest.raises(SecureAggregationError, match=match)


KEYS = ("keys",)
SHARES = (*KEYS, "shares")
MASKED = (*SHARES, "masked")


# -- the last exchange ------------------------------------------------------------------------------------------------


def test_shares_of_the_survivors_give_their_seeds_and_of_the_others_their_keys():
    server = Server().after(*MASKED)
    answers = {node: server.unmask(node, [0, 1, 3], [2]) for node in (0, 1, 3)}
    key = combine({node + 1: answer["of-dropped"][0] for node, answer in answers.items()}, 3)
    assert public_key(key) == server.keys[2][32:]
    assert all(len(answer["of-survivors"]) == 3 for answer in answers.values())


def test_a_node_in_both_lists_is_refused():
    # Flower 1.42's secaggplus_mod answers this: both secrets of node 2, so its update.
    server = Server().after(*MASKED)
    with refused("a node is in both lists"):
        server.unmask(0, [0, 1, 2, 3], [2])
    with refused("or this node is among those that dropped out"):
        server.unmask(0, [1, 2, 3], [0])
    assert len(server.unmask(0, [0, 1, 2, 3])["of-survivors"]) == 4  # a refusal ends nothing


def test_fewer_survivors_than_the_threshold_are_refused():
    server = Server().after(*MASKED)
    with refused("2 nodes are in the sum: at least 3 must be"):
        server.unmask(0, [0, 1], [2, 3])


@pytest.mark.parametrize(
    ("survivors", "dropped"), [([0, 1, 2], []), ([0, 1, 2, 3], [9]), ([0, 1, 2, 2], [3]), ([0, 1, 2, 3, 3], [])]
)
def test_unknown_missing_and_repeated_nodes_are_refused(survivors, dropped):
    server = Server().after(*MASKED)
    with refused("must have the nodes that this one shares masks with, each once"):
        server.unmask(0, survivors, dropped)


def test_a_second_unmasking_is_refused_and_nothing_is_kept():
    server = Server().after(*MASKED)
    kept = server.contexts[0].state["secagg.session"]
    assert set(kept) == {"round", "attempts", "step", "session", "number", "threshold", "members", "held"}
    server.unmask(0, [0, 1, 2], [3])
    with refused("answers each once"):
        server.unmask(0, [0, 1, 3], [2])
    assert dict(server.contexts[0].state["secagg.session"]) == {"round": 1, "attempts": "0:aa", "step": "done"}


# -- keys and shares --------------------------------------------------------------------------------------------------


def test_an_own_key_that_was_replaced_is_refused():
    server = Server().after(*KEYS)
    server.keys[0] = public_key(new_key()) + server.keys[0][32:]
    with refused("the keys of this node are not among those of the round"):
        server.share(0)


def test_a_repeated_key_is_refused():
    server = Server().after(*KEYS)
    for keys in ([*server.keys[:3], server.keys[2]], [*server.keys[:3], server.keys[2][:32] + server.keys[3][32:]]):
        with refused("must be distinct"):
            server.share(0, keys=b"".join(keys))


def test_a_key_that_gives_the_same_mask_to_all_is_refused():
    server = Server().after(*KEYS)
    server.keys[1] = bytes(32) + server.keys[1][32:]  # of low order
    with pytest.raises(ValueError, match="computing shared key"):
        server.share(0)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_cohort_of_one_or_two_is_refused(nodes):
    server = Server(nodes, nodes - 1, nodes).after(*KEYS)
    facts = {"keys": b"".join(server.keys), "neighbours": nodes - 1, "threshold": nodes}
    with refused("neighbours = "):
        server.ask(0, "shares", **facts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"threshold": 2}, "threshold = 2: must be above half of 4"),
        ({"threshold": 5}, "threshold = 5"),
        ({"neighbours": 4}, "neighbours = 4"),
        ({"neighbours": 1}, "neighbours = 1"),
        ({"neighbours": -2}, "neighbours = -2"),
        ({"neighbours": 2.0}, "secagg neighbours: must be an integer"),
        ({"threshold": True}, "secagg threshold: must be an integer"),
        ({"keys": "text"}, "secagg keys: must be bytes"),
    ],
)
def test_wrong_numbers_of_neighbours_and_shares_are_refused(changes, message):
    server = Server().after(*KEYS)
    with refused(message):
        server.share(0, **changes)


def test_the_operator_sets_the_smallest_cohort_and_threshold():
    server = Server(**{"secagg-min-cohort": 5}).after(*KEYS)
    with refused("4 nodes share masks: this node hides among at least secagg-min-cohort = 5"):
        server.share(0)
    server = Server(7, 6, 4).after(*KEYS)
    with refused("threshold = 4 of 7: must be at least 5, by secagg-min-threshold = 0.666667"):
        server.share(0)
    assert len(Server(7, 6, 4, **{"secagg-min-threshold": 0.5}).after(*KEYS).share(0)) == 6


def test_the_neighbours_of_a_node_count_and_not_the_cohort():
    server = Server(20, 4, 4, **{"secagg-min-cohort": 6}).after(*KEYS)
    with refused("5 nodes share masks"):
        server.share(0)


def test_the_share_of_another_node_round_or_receiver_is_refused():
    server = Server().after(*SHARES)
    server.sealed[1][0], server.sealed[2][0] = server.sealed[2][0], server.sealed[1][0]
    with refused("node 1: a share was not sealed by its node for this one in this round"):
        server.train(0)


def test_nodes_that_do_not_see_the_same_keys_share_nothing():
    """A server that puts nodes of several cohorts together gets no masked update: each seals for what it sees."""
    server = Server().after(*KEYS)
    server.sealed = [server.share(node) for node in range(3)]
    other = Server().after(*KEYS)
    seen = [*server.keys[:2], other.keys[2], server.keys[3]]
    server.sealed.append(server.share(3, keys=b"".join(seen)))
    with refused("node 3: a share was not sealed"):
        server.train(0)


@pytest.mark.parametrize("senders", [[1, 1, 2], [2, 1, 3], [0, 1, 2], [1, 2, 9]])
def test_shares_of_others_than_the_neighbours_are_refused(senders):
    server = Server().after(*SHARES)
    with refused("not those of its neighbours, one of each"):
        server.train(0, senders=senders)


def test_too_few_shares_are_refused():
    server = Server().after(*SHARES)
    with refused("2 nodes are left of 4: 3 are needed"):
        server.train(0, senders=[1], shares=[server.sealed[1][0]])


# -- what a node is asked ----------------------------------------------------------------------------------------------

ASKED_OTHERWISE = {
    "scale": {"clip": 1e30},
    "bits": {"bits": 13},
    "arrays": {"start": {"w": np.full(8, np.nan, np.float32)}},
    "config": {"config": {"learning-rate": 0.0}},
}


@pytest.mark.parametrize("otherwise", [{}, *ASKED_OTHERWISE.values(), "run config"], ids=["", *ASKED_OTHERWISE, "run"])
def test_a_node_that_is_asked_otherwise_than_its_neighbours_is_in_no_sum_that_can_be_read(otherwise):
    """Pasquini et al. 2022: with nothing from the others, the sum would be the update of the first node."""
    server = Server().after(*SHARES)
    if otherwise == "run config":
        for context in server.contexts[1:]:
            context.run_config["epochs"] = 0
    others = otherwise if isinstance(otherwise, dict) else {}
    learned = np.arange(1, 9, dtype=np.float32) / 8
    server.masked = [server.train(0, lambda arrays: {"w": arrays["w"] + learned})]
    server.masked += [server.train(node, **others) for node in (1, 2, 3)]
    step, total = Integers()._step(10.0), server.sum()
    assert np.allclose(total[:8].astype(np.uint32).view(np.int32) * step, learned, atol=4 * step) == (not otherwise)
    assert (total[8] == 4) == (not otherwise)


def test_the_order_of_the_keys_chooses_no_neighbours():
    server = Server(9, 4, 4).after(*KEYS)
    first = server.cohort
    server.keys = server.keys[::-1]
    for node in range(9):
        expected = {first.keys[other] for other in first.neighbours_of(node)}
        assert {server.keys[other] for other in server.cohort.neighbours_of(8 - node)} == expected


def test_where_not_all_are_neighbours_three_quarters_must_be_in_the_sum():
    server = Server(40, 12, 9).after(*KEYS)
    with refused("threshold = 9 of 13: must be at least 10, .*, in a round of 40 nodes"):
        server.share(0)
    assert len(Server(40, 12, 10).after(*KEYS).share(0)) == 12
    assert len(Server(40, 12, 9, **{"secagg-min-threshold": 0.6}).after(*KEYS).share(0)) == 12
    assert [SecureAggregation(12).plan(nodes)[1] for nodes in (13, 40)] == [9, 10]


@pytest.mark.parametrize("neighbours", [4, 12, 64, 300])
def test_different_lists_of_who_has_dropped_out_show_no_single_update(neighbours):
    """All t - 1 neighbours of a node would need t nodes each that call them dropped, of 2 k nodes in reach."""
    least = least_threshold(2 / 3, neighbours, 2 * neighbours)
    assert (least - 1) * least > 2 * neighbours * (neighbours + 1 - least)


@pytest.mark.parametrize("step", ["shares", "masked", "unmask"])
def test_a_worker_that_reads_the_state_of_before_answers_nothing_again(step, tmp_path):
    server = Server(**{"state-dir": "each"})
    for node, context in enumerate(server.contexts):
        context.node_config["state-dir"] = str(tmp_path / str(node))
    server.after(*{"shares": KEYS, "masked": SHARES, "unmask": MASKED}[step])
    answer = {"shares": server.share, "masked": server.train, "unmask": lambda node: server.unmask(node, range(4))}[
        step
    ]
    before = server.contexts[0].state["secagg.session"]
    answer(0)
    server.contexts[0].state["secagg.session"] = before
    with refused("it was answered before"):
        answer(0)


def test_notes_of_a_week_ago_are_removed_and_a_folder_that_cannot_be_written_refuses(tmp_path):
    server = Server(**{"state-dir": str(tmp_path)})
    server.after(*KEYS)
    server.share(0)
    (old,) = (tmp_path / "secagg").iterdir()
    os.utime(old, (0, 0))
    server.contexts[1].node_config["state-dir"] = str(tmp_path / "file" / "no")
    (tmp_path / "file").touch()
    with refused("cannot note in its state folder what it answers"):
        server.share(1)
    server.session = bytes(16)
    server.round = 2
    server.keys = [server.ask(node, "keys")["keys"] for node in range(4)]
    server.share(0)
    assert old not in (tmp_path / "secagg").iterdir()


# -- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_that_was_taken_part_in_is_refused():
    server = Server().after(*MASKED)
    server.session = bytes(16)
    with refused("round 1: this node has already taken part in 1"):
        server.ask(0, "keys")
    server.round = 2
    server.after(*MASKED)
    server.round = 1
    with refused("round 1: this node has already taken part in 2"):
        server.ask(0, "keys")


def test_a_resumed_server_repeats_a_round_with_new_keys():
    server = Server().after(*MASKED)
    keys, masked = server.keys, server.masked
    server.attempts, server.session = "0:bb", bytes(16)
    server.after(*MASKED)
    assert not set(keys) & set(server.keys)
    assert all((one != other).any() for one, other in zip(masked, server.masked, strict=True))


@pytest.mark.parametrize("step", ["session", "round", "attempts"])
def test_a_message_of_another_session_is_refused(step):
    server = Server().after(*MASKED)
    setattr(server, step, {"session": bytes(16), "round": 2, "attempts": "0:bb"}[step])
    with refused(r"session of this node"):
        server.unmask(0, [0, 1, 2, 3])


def test_each_message_is_answered_once_and_in_its_turn():
    server = Server().after(*KEYS)
    with refused("answers each once"):
        server.unmask(0, [0, 1, 2])
    server.after("shares")
    with refused("answers each once"):
        server.share(0)
    server.after("masked")
    with refused("answers each once"):
        server.train(0)
    with refused("step = 'other': must be one of keys, shares, unmask"):
        server.ask(0, "other")


def test_a_second_update_under_the_same_masks_is_refused_even_if_the_first_training_failed():
    def fail(arrays):
        raise RuntimeError("no memory")

    server = Server().after(*SHARES)
    with pytest.raises(RuntimeError, match="no memory"):
        server.train(0, fail)
    with refused("answers each once"):
        server.train(0)


# -- what the node demands and shows ----------------------------------------------------------------------------------


def test_a_node_that_requires_it_sends_nothing_in_the_clear():
    context = Context(1, 1, {"secagg": "required"}, RecordDict(), {})
    content = {"arrays": record_of(START), "config": ConfigRecord({"server-round": 1})}

    def work(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.25, "num-examples": 12})}), reply_to=message)

    with refused('secagg = "required": the server asks for an update that only it sees'):
        secagg_mod(Message(RecordDict(content), 1, "train"), context, work)
    evaluated = Message(RecordDict(content), 1, "evaluate")
    reply = secagg_mod(evaluated, context, work)
    assert {name: dict(record) for name, record in reply.content.items()} == {"metrics": {"num-examples": 1}}
    free = Context(1, 1, {}, RecordDict(), {})
    assert secagg_mod(Message(RecordDict(content), 1, "train"), free, work).content["metrics"]["loss"] == 0.25


@pytest.mark.parametrize(
    ("node_config", "message"),
    [
        ({"secagg": "yes"}, "secagg = 'yes': must be one of 'optional', 'required'"),
        ({"secagg-min-cohort": 2}, "secagg-min-cohort = 2: must be an integer from 3"),
        ({"secagg-min-cohort": "9"}, "secagg-min-cohort = '9'"),
        ({"secagg-min-threshold": 0.4}, "secagg-min-threshold = 0.4"),
        ({"secagg-peers": "file"}, "secagg-peers: needs secagg-key"),
    ],
)
def test_rules_that_cannot_be_used_are_refused(node_config, message):
    with pytest.raises(ValueError, match=message):
        SecureRules.of(node_config)


def test_no_secret_is_in_an_error_or_a_log(caplog):
    server = Server().after(*SHARES)
    state = server.contexts[0].state["secagg.session"]
    known = [bytes(state[name]).hex() for name in ("masking", "sealing", "seed")]
    caplog.set_level(logging.DEBUG)
    texts = []
    for call in (lambda: server.train(0, senders=[1, 2, 9]), lambda: server.unmask(0, [0])):
        with pytest.raises(SecureAggregationError) as error:
            call()
        texts.append(repr(error.value))
    assert not any(text in caplog.text + "".join(texts) for text in known)


def test_keys_seeds_and_shares_do_not_follow_from_any_seed():
    random.seed(0)
    first = Server().after(*SHARES)
    random.seed(0)
    second = Server().after(*SHARES)
    for name in ("masking", "sealing", "seed", "own"):
        one, other = (server.contexts[0].state["secagg.session"][name] for server in (first, second))
        assert one != other
    assert PRIME.bit_length() <= 8 * SHARE_BYTES


def test_masked_integers_have_the_size_that_the_sum_needs():
    small = encoding_record(Integers(bits=12))
    assert Server().after(*SHARES).train(0, **small).dtype == np.uint16
    assert Server().after(*SHARES).train(0).dtype == np.uint32


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"bits": 40}, "bits = 40"),
        ({"clip": 1}, "does not say how updates become integers"),
        ({"max-weight": 2**20}, "needs"),
        ({"metrics": ["loss"]}, "does not say how updates become integers"),
    ],
)
def test_an_encoding_that_cannot_be_used_is_refused(entries, message):
    server = Server().after(*SHARES)
    with pytest.raises((SecureAggregationError, ValueError), match=message):
        server.train(0, **entries)


def test_less_noise_than_the_node_expects_of_the_sum_is_refused():
    server = Server().after(*SHARES)
    with refused("noise = 1 of each node: the run promises 2 of the sum"):  # 3 of 4 must stay: 1.73 in the sum
        server.train(0, least_noise=2.0, **encoding_record(Integers(noise=1.0)))
    assert server.train(0, least_noise=1.7, **encoding_record(Integers(noise=1.0))).any()


# -- signed keys ------------------------------------------------------------------------------------------------------


@pytest.fixture
def signers(tmp_path):
    """The node configs of four nodes that sign their keys and know each other's, and one of a stranger."""
    configs, lines = [], []
    for node in range(5):
        key = ec.generate_private_key(ec.SECP384R1())
        form = PrivateFormat.OpenSSH if node % 2 else PrivateFormat.PKCS8
        (tmp_path / f"{node}").write_bytes(key.private_bytes(Encoding.PEM, form, NoEncryption()))
        if node < 4:
            lines.append(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b" a comment")
        configs.append({"secagg-key": str(tmp_path / f"{node}"), "secagg-peers": str(tmp_path / "peers")})
    (tmp_path / "peers").write_bytes(b"\n".join(lines) + b"\n")
    return configs


def test_signed_keys_of_known_nodes_are_accepted(signers):
    server = Server(rules=signers[:4]).after(*MASKED)
    assert len(server.unmask(0, [0, 1, 2, 3])["of-survivors"]) == 4


def test_the_key_of_a_stranger_or_of_the_server_is_refused(signers):
    server = Server(rules=[*signers[:3], signers[4]]).after(*KEYS)
    with refused("node 3: its keys are signed by nobody in secagg-peers"):
        server.share(0)
    server = Server(rules=signers[:4]).after(*KEYS)
    server.keys[1] = public_key(new_key()) + public_key(new_key())
    with refused("node 1: the signature of its keys is wrong"):
        server.share(0)
    unsigned = [{"signature": b"", "signer": b""} for _ in range(4)]
    server = Server(rules=signers[:4]).after(*KEYS)
    server.answers = unsigned
    with refused("node 1: its keys are signed by nobody"):
        server.share(0)
    with refused("the keys of the neighbours are not signed"):
        server.share(0, signers=[], signatures=[])


def test_one_signer_is_one_node(signers):
    server = Server(rules=[signers[0], signers[1], signers[2], signers[2]]).after(*KEYS)
    with refused("node 3: its keys are signed by nobody in secagg-peers, or by another node"):
        server.share(0)
    with refused("or by another node"):
        Server(rules=[signers[0], signers[0], signers[1], signers[2]]).after(*KEYS).share(0)


@pytest.mark.parametrize("step", ["round", "attempts"])
def test_a_signature_is_for_one_attempt_of_one_round(signers, step):
    """Keys of an earlier round, whose secrets a server may have learned, are not accepted again."""
    server = Server(rules=signers[:4]).after(*MASKED)
    old = server.keys, server.answers
    setattr(server, step, {"round": 2, "attempts": "0:aa 1:bb"}[step])
    server.after(*KEYS)
    server.keys[1], server.answers[1] = old[0][1], old[1][1]
    with refused("node 1: the signature of its keys is wrong"):
        server.share(0)


def test_files_of_keys_that_cannot_be_read_are_named_without_their_content(tmp_path):
    (tmp_path / "bad").write_text("secret stuff")
    other = ed25519.Ed25519PrivateKey.generate()
    (tmp_path / "other").write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for name, message in (("none", "cannot be read"), ("bad", "cannot be read"), ("other", "must be an ECDSA key")):
        with pytest.raises(ValueError, match=f"secagg-key = .*{name}.*{message}") as error:
            Server(**{"secagg-key": str(tmp_path / name)}).after(*KEYS)
        assert "stuff" not in str(error.value)
