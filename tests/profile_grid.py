"""A grid whose nodes answer the profile query and nothing else."""

from collections.abc import Mapping
from typing import Any

from fedapps.sim.flower_internals import set_message_id
from flwr.app import ConfigRecord, Message, RecordDict


class ProfileGrid:
    """Connected nodes by their ids, with their answers, which a test may change.

    An answer is a key, the entries of a profile, a RecordDict or an Error; a node with ``None`` is silent.
    """

    def __init__(self, nodes: Mapping[int, Any] | None = None):
        self.nodes = dict(nodes or {})
        #: The nodes that were asked, in order.
        self.asked: list[int] = []
        self._sent: dict[str, Message] = {}

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        ids = []
        for message in messages:
            assert message.metadata.message_type == "query.profile"
            ids.append(f"id-{len(self._sent)}")
            set_message_id(message, ids[-1])
            self._sent[ids[-1]] = message
            self.asked.append(message.metadata.dst_node_id)
        return ids

    def pull_messages(self, message_ids):
        sent = [self._sent[message_id] for message_id in message_ids]
        answers = [(message, self.answer(message.metadata.dst_node_id)) for message in sent]
        return [Message(_content(answer), reply_to=message) for message, answer in answers if answer is not None]

    def answer(self, node):
        return self.nodes.get(node)


def _content(answer):
    if isinstance(answer, str):
        answer = {"key": answer}
    return RecordDict({"profile": ConfigRecord(answer)}) if isinstance(answer, dict) else answer
