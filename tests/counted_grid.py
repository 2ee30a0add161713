"""A grid whose replies arrive after a given number of attempts."""

from fedapps.sim.flower_internals import set_message_id
from fedapps.strategies.mailbox import Mailbox
from fedapps.strategies.profiles import Profile
from fedapps.strategies.transport import NodeFailure
from flwr.app import Error, Message, RecordDict


class CountedGrid:
    """Replies by node: a number of looks until the reply is there, an Error, or None for silence.

    Messages to `refused` nodes are left out of the ids ("left-out") or have an empty id ("empty"; "unmarked":
    the same, from a grid that writes no ids into messages).
    """

    def __init__(self, replies, refused=(), style="left-out"):
        self.replies, self.refused, self.style = replies, set(refused), style
        self.sent, self.pulls, self.pushes = {}, [], []

    def push_messages(self, messages):
        ids = []
        self.pushes.append([message.metadata.dst_node_id for message in messages])
        for message in messages:
            node = message.metadata.dst_node_id
            message_id = f"id-{node}"
            if self.style != "unmarked":
                set_message_id(message, message_id)
            if node not in self.refused:
                self.sent[message_id] = [message, self.replies.get(node)]
                ids.append(message_id)
            elif self.style != "left-out":
                ids.append("")
        return ids

    def pull_messages(self, message_ids):
        (message_id,) = message_ids
        self.pulls.append(message_id)
        message, state = self.sent[message_id]
        if state is None:
            return []
        if isinstance(state, int) and state > 0:
            self.sent[message_id][1] -= 1
            return []
        if isinstance(state, Exception):
            raise state
        set_message_id(message, message_id)
        content = state if isinstance(state, Error) else RecordDict()
        stray = Message(RecordDict(), dst_node_id=1, message_type="query")
        return [stray, Message(content, reply_to=message)]


def messages(*nodes):
    return [Message(RecordDict(), dst_node_id=node, message_type="train") for node in nodes]


def outcome(items):
    return [item if isinstance(item, NodeFailure) else item.metadata.src_node_id for item in items]


def exchange(grid, messages, timeout, poll=0.02, *, ahead=0, together=1, on_wait=lambda working: None, **limits):
    """Send messages, and yield a reply or a failure for each, in the order of the messages."""
    mailbox = Mailbox(grid, in_order=True, poll=poll, **limits)
    letters = [(Profile.unknown(message.metadata.dst_node_id), message) for message in messages]
    mailbox.post(letters, timeout, ahead=ahead, together=together)

    def outcomes():
        while mailbox:
            arrival = mailbox.next()
            if arrival is not None:
                yield arrival.outcome
            else:
                on_wait(mailbox.working)
                mailbox.wait()
            del arrival

    return outcomes()
