"""Who a node is: the answer to the profile query, for which no torch is imported, no model built, no picture decoded.

A worker starts for every message. One that only says who its node is must not cost what training costs: many of them on
a small machine would keep each other from ever answering.
"""

from collections.abc import Mapping
from functools import lru_cache
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context
from flwr.common.logger import log

from clients.sources import DataSource, find_source
from tasks.options import parse_options
from tasks.profiles import DataError, TaskProfiles

from .catalogue import TASKS, privacy_of, profiles_class
from .run_config import RunConfig, with_source


def profile_record(context: Context) -> ConfigRecord:
    """The node's stable key, how much it has to learn from, its groups; see :func:`strategies.profiles.read_answer`.

    A deployed node whose data is missing or cannot be read says so, here and to the server, and is asked nothing more.
    """
    run, task = _run_and_task(tuple(sorted(context.run_config.items())))
    try:
        profile = data_source(run, task, context.node_config).profile(task)
    except (DataError, OSError) as error:
        if not has_own_folder(context.node_config):
            raise
        log(WARNING, "this node takes no part in the run, it has no data for it: %s", error)
        return ConfigRecord({"key": f"no-data-{context.node_id}", "num-examples": 0, "no-data": str(error)})
    groups = {f"group.{name}": label for name, label in profile.groups.items()}
    return ConfigRecord({"key": profile.key, "num-examples": profile.num_examples, **groups})


def has_own_folder(node_config: Mapping[str, Any]) -> bool:
    """Whether a node with this config is a deployed one, which learns from a folder of its own."""
    return bool(node_config.get("data-dir")) or "partition-id" not in node_config


def data_source(run: RunConfig, task: TaskProfiles, node_config: Mapping[str, Any]) -> DataSource:
    """Where a node with this config finds its data; see :func:`~clients.sources.find_source`."""
    cache_dir = Path(run.cache_dir or "~/fedapps/worlds").expanduser()
    return find_source(task, node_config, data_dir=run.data_dir, cache_dir=cache_dir, seed=run.seed)


@lru_cache(maxsize=8)
def _run_and_task(given: tuple[tuple[str, Any], ...]) -> tuple[RunConfig, TaskProfiles]:
    """The run, and the task as nodes of its first method see it.

    What cannot be combined is left to the server, and to the nodes once they train (:func:`fedapps.config.parse`).
    """
    general = {key: value for key, value in given if not key.startswith(tuple(f"{task}." for task in TASKS))}
    arguments, errors = parse_options(RunConfig, general)
    run = RunConfig(**arguments)
    prefix, cls = f"{run.task}.", profiles_class(run.task)
    own = {key.removeprefix(prefix): value for key, value in given if key.startswith(prefix)}
    chosen, wrong = parse_options(cls.Options, own, prefix)
    if errors + wrong:
        raise ValueError("\n".join(["the run config cannot be used:", *errors, *wrong]))
    first, *_ = run.method_names()
    return run, cls(with_source(cls.Options(**chosen), run)).under(privacy_of(first))
