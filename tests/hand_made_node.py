"""A SuperNode made by hand, on Flower's own calls to the SuperLink, that sends what no real one would."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self

import numpy as np
from fedapps.sim.flower_internals import set_message_id
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.client.grpc_rere_client.connection import grpc_request_response
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.retry import RetryInvoker, exponential

ClientApp = Callable[[Message, Context], Message]


class HandMadeNode(threading.Thread):
    """Answers each message as ``client_app`` does.

    One that ``repeats`` does so once more with other arrays, and then answers its former message again with others.
    ``messages`` is how many it answers before it says goodbye, once ``fetched`` says that the server has its replies.
    ``answered`` counts the messages, ``ignored`` the second
    and late replies that the SuperLink did not want to have.
    """

    def __init__(
        self,
        address: str,
        client_app: ClientApp,
        node_config: Mapping[str, Any],
        run_config: Any,
        *,
        repeats: bool = False,
        messages: float = math.inf,
        fetched: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__()
        self.address, self.client_app = address, client_app
        self.node_config, self.run_config = dict(node_config), run_config
        self.repeats, self.messages, self.fetched = repeats, messages, fetched
        self.online, self.leaving = threading.Event(), threading.Event()
        self.answered = self.ignored = 0

    def run(self) -> None:
        retries = RetryInvoker(exponential, Exception, max_tries=1, max_time=None)
        with grpc_request_response(self.address, True, retries) as (node_id, receive, send, _, _, pull, push, confirm):
            context = Context(0, node_id, self.node_config, RecordDict(), self.run_config)
            self.online.set()
            former: Message | None = None
            while self.answered < self.messages and not self.leaving.is_set():
                if (received := receive()) is None:
                    time.sleep(0.05)
                    continue
                bare, tree = received
                run = bare.metadata.run_id
                message = pull_and_inflate_object_from_tree(
                    tree, partial(pull, run), partial(confirm, run), return_type=Message
                )
                set_message_id(message, tree.object_id)

                def tell(reply: Message, run: int = run) -> bool:
                    set_message_id(reply, reply.object_id)
                    wanted, session = send(reply, get_object_tree(reply), 0.0)
                    push_objects(get_all_nested_objects(reply), partial(push, run, session), object_ids_to_push=wanted)
                    return bool(wanted)

                self.answered += tell(self.client_app(message, context))
                for again in filter(None, (message, former) if self.repeats else ()):
                    self.ignored += not tell(_spoilt(self.client_app(again, context)))
                former = message
            while not self.fetched():
                time.sleep(0.05)

    def __enter__(self) -> Self:
        self.start()
        assert self.online.wait(240)
        return self

    def __exit__(self, *error: object) -> None:
        """Say goodbye to the SuperLink."""
        self.leaving.set()
        self.join()


def _spoilt(reply: Message) -> Message:
    """The same with arrays of another scale, so that it would change a mean."""
    for name, record in list(reply.content.array_records.items()):
        reply.content[name] = ArrayRecord([np.full_like(array, 1e6) for array in record.to_numpy_ndarrays()])
    return reply
