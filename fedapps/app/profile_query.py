"""The answer to the profile query: no model is built, no picture decoded."""

from logging import INFO

from flwr.app import ConfigRecord, Context
from flwr.common.logger import log

from fedapps.base.errors import DataError
from fedapps.clients.data import is_simulated
from fedapps.clients.rules import RulesError
from fedapps.strategies.wire import KEY, NO_DATA, NUM_EXAMPLES, OWN_DATA

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
        task = config.task_of(next(iter(config.methods.values())))
        source = config.run.source(task, context.node_config)
        profile = source.profile(task)
        if source.partition is None and (line := task.describe_data(source.folder, own=True)):
            log(INFO, "data: %s", line)
    except (DataError, RulesError, OSError) as error:
        if is_simulated(context.node_config):
            raise
        why = reported(error, "the profile: this node takes no part in the run, which", context.node_config)
        return ConfigRecord({KEY: f"no-data-{context.node_id}", NUM_EXAMPLES: 0, NO_DATA: why})
    own = {OWN_DATA: True} if source.partition is None else {}
    return ConfigRecord({KEY: profile.key, **own, **disclosure.profile(profile.num_examples, profile.groups)})
