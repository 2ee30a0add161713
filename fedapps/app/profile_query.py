"""The answer to the profile query: no torch is imported, no model built, no picture decoded.

A deployed node starts a worker for every message. A worker that only answers this query must not cost what training
costs: on a small machine many of them would keep each other from answering in time.
"""

from logging import INFO

from flwr.app import ConfigRecord, Context
from flwr.common.logger import log

from fedapps.base.errors import DataError
from fedapps.clients.data import is_simulated
from fedapps.clients.rules import RulesError
from fedapps.config.parsing import Config
from fedapps.strategies.wire import KEY, NO_DATA, NUM_EXAMPLES
from fedapps.tasks.profiles import TaskProfiles

from .disclosure import Disclosure, config_read
from .errors import reported


def profile_record(context: Context) -> ConfigRecord:
    """The node's stable key, its number of training examples and its groups (:mod:`fedapps.strategies.nodes.profiles`).

    A deployed node whose data is missing or cannot be read says so: why in its log, and to the server that it has none,
    which then asks it nothing more. So does a node whose operator demands more privacy than the run has, or whose
    budget is spent. The first method of the run decides how the data are read.
    """
    config = config_read(context)
    try:
        disclosure = Disclosure(context)
        disclosure.check_budget()
        task = _task(config)
        source = config.run.source(task, context.node_config)
        profile = source.profile(task)
        if source.partition is None and (line := task.describe_data(source.folder, own=True)):
            log(INFO, "data: %s", line)
    except (DataError, RulesError, OSError) as error:
        if is_simulated(context.node_config):
            raise
        why = reported(error, "the profile: this node takes no part in the run, which", context.node_config)
        return ConfigRecord({KEY: f"no-data-{context.node_id}", NUM_EXAMPLES: 0, NO_DATA: why})
    return ConfigRecord({KEY: profile.key, **disclosure.profile(profile.num_examples, profile.groups)})


def _task(config: Config) -> TaskProfiles:
    """The task as the nodes of the first method see it; the whole task where the method looks at its model."""
    first = next(iter(config.methods.values()))
    if first.needs_model:
        return config.task_of(first)
    return config.profiles.under(first.private(config.profiles))
