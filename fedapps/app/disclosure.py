"""What leaves a node beside the shared arrays, by the run's differential privacy and by the rules of its operator.

The text of an error can hold what must not leave a node: paths, lines of a data file, shapes and values of private
parameters. The server gets its kind and an identifier, the details stay in the node's log.
"""

import secrets
import traceback
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import cached_property, lru_cache
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.common import log

from fedapps.base.atomic import UnwritableError, path_name
from fedapps.base.errors import DataError
from fedapps.clients.data import Growth, newest_count
from fedapps.clients.kept_models import CHAMPIONS, KeptModels
from fedapps.clients.kept_runs import KeptRuns
from fedapps.clients.rules import SEND_ERRORS, LimitError, NodeRules, RulesError, is_simulated
from fedapps.clients.settings import RoundSettings
from fedapps.config.parsing import Config, read
from fedapps.strategies import SecureAggregationError, SecureRules, wire
from fedapps.strategies.checks import truncate
from fedapps.tasks.profiles import OtherFilesError

from .node_ledger import NodeLedger

Handler = Callable[[Message, Context], Message]


class UntrainedError(RuntimeError):
    """A node would use a model with private parameters that it never trained."""


#: Errors whose kind tells the server's operator enough to ask for the right thing. These texts hold no data.
_KINDS: Mapping[type[Exception], str] = {
    OtherFilesError: "the node has other files of the frozen weights than the server; give it the server's",
    DataError: "the node's data are missing or cannot be used",
    UnwritableError: "the node cannot write a file, its disk may be full",
    LimitError: "the message asks for more steps or time than the node gives",
    UntrainedError: "the node took no part in the run of this model, and would use untrained private parameters",
    MemoryError: "the message asks for more memory than the node gives",
}
_MAX_CHARACTERS = 20_000
#: Where a deployed node keeps its private state if its node config has no state-dir.
DEFAULT_STATE = "~/fedapps/nodes"
#: What :attr:`NodeRules.may_leave` calls the groups of the profile.
GROUPS = "groups"


def run_config_of(context: Context) -> Config:
    """The run config of a node, read once a process."""
    return _run(tuple(context.run_config.items()))[0]


def registry_label(config: Mapping[str, Any]) -> str:
    """The label of the registry that the generation in a message's config belongs to; empty if there is none.

    Raises ``ValueError`` if it is no text.
    """
    label = config.get(wire.REGISTRY, "")
    if not isinstance(label, str):
        raise ValueError(f"config {wire.REGISTRY} = {label!r}: must be a text")
    return label


class Disclosure:
    """What the messages of a run may take from a node.

    Under ``dp = "local"`` nothing that is computed from the data leaves without noise, and under secure aggregation
    nothing without a mask: of a reply to TRAIN only the clipped and noised, or masked arrays, of one to EVALUATE
    nothing, and of the profile only whether there are examples. What the operator names in ``may-leave`` leaves all the
    same. Simulated nodes have no data but the server's: their evaluations, profiles, steps and timings, with which an
    experiment is measured, are as without privacy.

    Parameters
    ----------
    config : Config
        The run config.
    node_config : mapping
    run_id : int

    Attributes
    ----------
    withholds : bool
        Whether a reply can have something that may not leave, so that it must pass :meth:`reply`.

    Raises
    ------
    RulesError
        The run protects less than the node's operator demands.
    ValueError
        The node config has a rule that cannot be used.
    """

    def __init__(self, config: Config, node_config: Mapping[str, Any], run_id: int) -> None:
        self.config, self.run, self.node_config = config, config.run, node_config
        self.rules = NodeRules.of(node_config)
        self.rules.check_run(self.run.dp, self.run.dp_noise, self.run.dp_clip, seeded=self.run.dp_seeded)
        self.simulated = is_simulated(node_config)
        self.hides = self.run.hides
        self.withholds = bool(self.hides or self.rules.may_leave)
        if SecureRules.of(node_config).required and not self.run.secure_aggregation:
            raise RulesError(
                'the node config of this node demands more of the run: secagg = "required" needs '
                "secure-aggregation = true"
            )
        self._run_id = run_id

    @classmethod
    def of(cls, context: Context) -> "Disclosure":
        """That of a node in a run, made once a process: neither config changes within a run."""
        config, known = _run(tuple(context.run_config.items()))
        key = (context.run_id, *context.node_config.items())
        if key not in known:
            known[key] = cls(config, dict(context.node_config), context.run_id)
        return known[key]

    @cached_property
    def root(self) -> Path:
        """Where the node keeps its private state: its own ``state-dir``, or in simulation the run's folder.

        The run config, which comes from the server, does not choose where a deployed node writes.

        Raises
        ------
        UnwritableError
            No folder can have the name in the node config, or this user may not look into it.
        """
        stated = str(self.node_config.get("state-dir") or "")
        if self._in_run:
            return self.run.folder(self._run_id) / "nodes"
        try:
            folder = Path(stated or DEFAULT_STATE).expanduser()
            with suppress(FileNotFoundError):  # it is made when it is needed
                folder.stat()
        except (OSError, ValueError, RuntimeError) as error:  # a name that cannot be, and the home of an unknown user
            raise UnwritableError(
                f"node config state-dir = {stated!r}: cannot be used ({error}); give a folder that this user may write"
            ) from error
        return folder

    def champions(self, key: str, label: str) -> KeptModels:
        """The models of the registry of a label that a node has in use; their folder is the same in every run."""
        registry = Path(self.run.registry)
        return KeptModels.of(registry if self._in_run else self.root, CHAMPIONS, registry.name, key, label)

    def note_run(self, key: str, settings: RoundSettings, *, trains: bool) -> bool:
        """Note the run of a message, and remove the private state and the models of runs that none can need any more.

        What cannot be removed stays, with a warning. Returns whether something was removed.
        """
        if self._in_run or not settings.registry:
            return False
        kept, keep = KeptRuns(self.root, settings.registry, key), self.run.keep_runs
        try:
            removed = kept.note(settings.run, settings.lineage, settings.champions, keep, trains=trains)
        except (UnwritableError, ValueError) as error:
            log(WARNING, "the state of earlier runs is not removed: %s", error)
            return False
        if removed:
            log(INFO, "removed the state of the runs %s (keep-runs = %s)", ", ".join(removed), keep)
        return bool(removed)

    @property
    def durable(self) -> bool:
        """Whether private state must survive a power failure, as it must on a node that keeps it in its own folder."""
        return not self._in_run

    @property
    def _in_run(self) -> bool:
        """Whether :attr:`root` is a part of the run's folder, where the server removes it."""
        return self.simulated and not self.node_config.get("state-dir")

    @property
    def notes(self) -> Path | None:
        """Where the node notes which exchanges of secure aggregation it has answered; ``None`` for a simulated node."""
        return None if self.simulated else self.root

    def trained(self, count: int) -> int:
        """How many of ``count`` training examples a node trains on at most: all but the newest, which are held back."""
        return count - int(self.run.held_back * count)

    def taken(self, key: str, count: int) -> int:
        """How many of ``count`` training examples of a node the run takes, the newest ones."""
        newest = self.run.newest
        if newest != "new":
            return newest_count(newest, count, 0)
        if self.simulated:
            raise DataError("newest = 'new': simulated nodes know no last run; take the number of the newest examples")
        return newest_count(newest, count, self._growth(key).before(self._run_name))

    def note_examples(self, key: str, count: int) -> None:
        """Note for the next run how many training examples a node has, and log once how many of them are new."""
        growth = self._growth(key)
        try:
            if growth.note(self._run_name, count):
                new = newest_count("new", count, growth.before(self._run_name))
                log(INFO, "data: %s training examples, %s of them new since the last run", count, new)
        except UnwritableError as error:
            log(WARNING, "the number of training examples is not noted for the next run: %s", error)

    def _growth(self, key: str) -> Growth:
        return Growth(self.root / "examples" / f"{path_name(key)}.json")

    @property
    def _run_name(self) -> str:
        return self.run.name or str(self._run_id)

    def check_budget(self) -> None:
        """Raise :class:`RulesError` if no further update may leave the node."""
        if self.rules.dp != "none":
            self._ledger().check(self.run.dp_noise)

    def count(self, message: Message) -> None:
        """Count the noised update that is about to answer a TRAIN message. Raises as :meth:`NodeLedger.add`."""
        if self.rules.dp == "none" or not message.content.array_records.get(wire.ARRAYS):
            return
        config = message.content.config_records.get(wire.CONFIG, ConfigRecord())
        named = {"run": str(config.get("run", "")), "method": str(config.get("method", ""))}
        self._ledger().add(self.run.dp_noise, **named, round=config.get(wire.SERVER_ROUND), clip=self.run.dp_clip)

    def lets_out(self, name: str, *, measured: bool = False) -> bool:
        """Whether something that is computed from the data without noise may leave.

        ``measured`` says that it is how an experiment with simulated nodes is measured.
        """
        return self.rules.lets_out(name, otherwise=not self.hides or (self.simulated and measured))

    def profile(self, num_examples: int, groups: Mapping[str, str]) -> dict[str, int | str]:
        """The number of training examples and the groups by their keys in a profile, as far as they may leave."""
        count = num_examples if self.lets_out(wire.NUM_EXAMPLES, measured=True) else min(num_examples, 1)
        shown = groups if self.lets_out(GROUPS, measured=True) else {}
        return {wire.NUM_EXAMPLES: count, **{wire.GROUP_PREFIX + name: label for name, label in shown.items()}}

    def reply(self, reply: Message) -> Message:
        """Remove from a reply to TRAIN, EVALUATE or a QUERY of a method what may not leave, and return it.

        The number of examples becomes 1 where it may not leave.

        Raises
        ------
        RulesError
            An array record beside the shared arrays may not leave; without it, the method does not work.
        """
        if not reply.has_content():
            return reply
        training, evaluation = map(reply.metadata.message_type.startswith, ("train", "evaluate"))
        for name, record in list(reply.content.items()):
            if isinstance(record, MetricRecord):
                shown = {key: value for key, value in record.items() if self._shows(key, evaluation)}
                if len(shown) < len(record):
                    reply.content[name] = MetricRecord({wire.NUM_EXAMPLES: 1, **shown})
            elif isinstance(record, ArrayRecord):
                noised = training and (
                    name in (wire.ARRAYS, wire.SECAGG_MASKED) or name.startswith(wire.COMPRESSED_PREFIX)
                )
                if self.hides and not noised and not self.lets_out(name):
                    raise RulesError(f"{name}: computed from the data without noise, which {self.hides} lets not leave")
            elif not self._shows(name, evaluation):
                del reply.content[name]
        return reply

    def _ledger(self) -> NodeLedger:
        return NodeLedger(self.root, self.rules)

    def _shows(self, name: str, evaluation: bool) -> bool:
        return self.lets_out(name, measured=evaluation or name in (wire.STEPS, wire.TIMINGS))


class NodeFailedError(RuntimeError):
    """Work on a node failed. The message is what the server may know."""


def sends_details(node_config: Mapping[str, Any]) -> bool:
    """Whether a node with this config sends the details of its errors.

    A simulated node does, because it runs on the machine of the server and has no data but the server's. No server can
    make a deployed node believe that it is simulated: ``partition-id`` and ``data-dir`` come from the node config,
    which is on the command line of the SuperNode, and not from messages or from the run config.
    """
    return bool(node_config.get(SEND_ERRORS, False)) or is_simulated(node_config)


def reported(error: Exception, what: str, node_config: Mapping[str, Any]) -> str:
    """Log an error on the node, and return what the server is sent.

    Parameters
    ----------
    error : Exception
        The error that is being handled.
    what : str
        What failed, for the log.
    node_config : mapping
        The node's.
    """
    refusal = isinstance(error, (RulesError, SecureAggregationError))  # what an operator demands is no secret
    plain = refusal or isinstance(error, (DataError, UnwritableError, LimitError, UntrainedError))
    details = str(error) if plain else f"{error}\n{''.join(traceback.format_exception(error))}"
    if sends_details(node_config):
        return details.encode(errors="backslashreplace").decode()  # a file name can have bytes that are no text
    if refusal:
        log(ERROR, "%s failed: %s", what, truncate(details, _MAX_CHARACTERS))
        return f"{type(error).__name__}: {details}"
    identifier = secrets.token_hex(4)
    log(ERROR, "%s failed, error %s: %s", what, identifier, truncate(details, _MAX_CHARACTERS))
    kind = next((f": {text}" for kind, text in _KINDS.items() if isinstance(error, kind)), "")
    return f"{type(error).__name__}{kind}; the node's log has the details of error {identifier}"


@lru_cache(maxsize=8)
def _run(run_config: tuple[tuple[str, Any], ...]) -> tuple[Config, dict[Hashable, Disclosure]]:
    """The run config, and the nodes of the run in this process."""
    return read(dict(run_config)), {}
