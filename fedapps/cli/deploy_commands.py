"""The commands that deploy a run to a SuperLink and its nodes."""

import argparse
import os
from pathlib import Path

from fedapps.comparison.matrix import assignments
from fedapps.deployment import fleet
from fedapps.deployment.check_node import check
from fedapps.deployment.gate import generation as next_generation
from fedapps.deployment.gate import steer
from fedapps.deployment.supernode import SuperNode, check_options
from fedapps.launch.recipe import launch_recipe


def config(arguments: argparse.Namespace) -> int:
    """Print a recipe as the flat file that ``flwr run`` takes."""
    print(fleet.run_config_text(arguments.recipe, assignments(arguments.set)), end="")
    return 0


def deploy(arguments: argparse.Namespace) -> int:
    """Run a recipe on a SuperLink."""
    fleet.deploy(arguments.recipe, arguments.federation, assignments(arguments.set), stream=arguments.stream)
    return 0


def gate(arguments: argparse.Namespace) -> int:
    """Compare a run with the champion and let the nodes use the better one; without a run, the champion."""
    action = ("dry-run" if arguments.dry_run else "compare") if arguments.run else "deliver"
    keys = {
        "gate-margin": arguments.margin,
        "gate-group-margin": arguments.group_margin,
        "gate-method": arguments.method or "",
        **assignments(arguments.set),
    }
    steer(arguments.registry, arguments.run, action, arguments.federation, keys)
    return 0


def generation(arguments: argparse.Namespace) -> int:
    """Train from the champion, and let the nodes use the better model."""
    run = next_generation(arguments.recipe, arguments.federation, assignments(arguments.set), arguments.output_dir)
    print(f"report: {run / 'report.html'}")
    return 0


def rollback(arguments: argparse.Namespace) -> int:
    """Let nodes go back to the champion before."""
    keys = {"gate-nodes": arguments.nodes, **assignments(arguments.set)}
    steer(arguments.registry, None, "rollback", arguments.federation, keys)
    return 0


def run_fleet(arguments: argparse.Namespace) -> int:
    """Run one federation, or the stages of a pipeline, on a SuperLink and SuperNodes of this machine."""
    runner = fleet.LocalFleet(arguments.nodes, arguments.node_data, arguments.tls, arguments.auth)
    launch_recipe(arguments.recipe, assignments(arguments.set), runner, arguments.output_dir)
    return 0


def check_node(arguments: argparse.Namespace) -> int:
    """Check whether this machine can take part in a run as a node."""
    further = {
        "private": arguments.private,
        "keep-model": arguments.keep_model,
        **assignments(arguments.node_config, "--node-config"),
    }
    return check(arguments.recipe, assignments(arguments.set), Path(arguments.data_dir), arguments.state_dir, further)


def supernode(arguments: argparse.Namespace) -> int:
    """Become a SuperNode that imports the libraries of its workers once."""
    libraries = [name for name in arguments.preload.split(",") if name]
    command = SuperNode(libraries, arguments.poll_interval).command(arguments.rest)
    check_options(command)
    os.execv(command[0], command)
