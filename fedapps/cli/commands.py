"""The commands of ``python -m fedapps``. Each returns an exit status."""

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.base.console import accept_all_text
from fedapps.base.options import did_you_mean
from fedapps.registry.expressions import split_expressions

from .parser import command_parser
from .trained import COMMANDS as TRAINED

if TYPE_CHECKING:
    from fedapps.config.recipe_files import Value
    from fedapps.launch.runner import Runner

_INTERRUPTED = (
    "fedapps: interrupted; the folder of the run has everything that was trained. Resume a run with "
    "--set name=NAME --set resume=true, a comparison with compare --resume FOLDER, a tuning with tune --resume FOLDER"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command and return its exit status.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command line without the program's name; that of this process if missing.

    Returns
    -------
    int
        0 after success, 1 if a run or a check failed, 2 for bad input, 130 after an interruption.
    """
    accept_all_text()
    parser = command_parser()
    given, others = parser.parse_known_args(arguments)
    if others and not getattr(given, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(others)}{_meant(others, given)}")
    given.rest = others
    from fedapps.launch.runner import RunFailedError  # `--help` has ended above, without it

    try:
        if files := getattr(given, "method_file", ()):
            from fedapps.registry.local_methods import use_file

            for path in files:
                use_file(Path(path))
        return _COMMANDS[given.command](given)
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python's end would fail to write the rest
        return 0
    except (ValueError, OSError) as error:
        print(f"fedapps: {error}", file=sys.stderr)
        return 2
    except RunFailedError as error:
        print(f"\nfedapps: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        return 130


def _meant(others: Sequence[str], given: argparse.Namespace) -> str:
    """What the first unknown option may stand for: a key of the run config, or another option; empty if nothing."""
    from fedapps.config.keys import defaults

    name = next((word for word in others if word.startswith("--")), "").partition("=")[0]
    if name.removeprefix("--") in defaults() and "--set" in given.known_options:
        return f"; {name.removeprefix('--')} is a key of the run config: write --set {name.removeprefix('--')}=VALUE"
    return did_you_mean(name, given.known_options)


def new(given: argparse.Namespace) -> int:
    """Write a project and print its files."""
    from fedapps.project.writing import new_project

    print(new_project(Path(given.folder), task=given.task, method=given.method, deployment=given.deployment))
    return 0


def list_names(given: argparse.Namespace) -> int:
    """Print tasks, methods and recipes, or the keys of the run config, or what is known of one name."""
    from .listing import described_name, keys_text, overview

    if (given.task or given.methods) and not given.keys:
        raise ValueError("--task and --methods choose the keys to list: add --keys")
    if given.name:
        print(described_name(given.name))
    elif given.for_task:
        from fedapps.launch.choice import choice_text

        print(choice_text(given.for_task))
    else:
        print(keys_text(given.task, given.methods) if given.keys else overview())
    return 0


def nodes(given: argparse.Namespace) -> int:
    """Print the nodes of a recipe and how much data each of them has, and draw them if asked for."""
    from fedapps.comparison.matrix import Vary
    from fedapps.comparison.nodes import RecipeNodes, check_format, nodes_figure, nodes_text, write_nodes

    if given.plot:
        check_format(Path(given.plot))
    found = RecipeNodes.read(Path(given.recipe), assignments(given.set), Vary.read(given.vary))
    print(nodes_text(found))
    if given.write:
        print("\n".join(map(str, write_nodes(found, Path(given.write)))))
    if given.plot:
        nodes_figure(found, Path(given.plot))
    return 0


def run(given: argparse.Namespace) -> int:
    """Run one federation, or the stages of a pipeline, on an engine and print the paths of the reports."""
    from fedapps.launch.launch import Simulation

    return _dry_run(given) if given.dry_run else _launch(given, Simulation(given.engine))


def _dry_run(given: argparse.Namespace) -> int:
    from fedapps.comparison.nodes import RecipeNodes, nodes_text
    from fedapps.config.parsing import parse
    from fedapps.config.recipe_files import read_recipe
    from fedapps.launch.estimate import estimate_text
    from fedapps.launch.inputs import resolve

    if not given.recipe:
        raise ValueError("--dry-run: name a recipe (`fedapps list`) or a run-config file")
    recipe, overrides = Path(given.recipe), assignments(given.set)
    resolved = resolve(read_recipe(recipe, overrides), given.output_dir)
    config = parse(resolved)
    print(nodes_text(RecipeNodes.read(recipe, resolved)))
    print(estimate_text(config))
    return 0


def compare(given: argparse.Namespace) -> int:
    """Run methods with several seeds and print the table beside the paper's numbers."""
    from fedapps.base.options import listed
    from fedapps.comparison.compare import compare_recipe, resume_comparison
    from fedapps.comparison.matrix import Vary

    json_path = Path(given.json) if given.json else None
    if given.resume:
        if given.recipe or given.set or given.vary or given.seed_keys or given.methods:
            given.refuse("--resume: the folder has the recipe, methods, keys and values; leave them out")
        resume_comparison(Path(given.resume), jobs=given.jobs, cluster=given.cluster, json_path=json_path)
        return 0
    if not given.recipe:
        given.refuse("give a recipe (`fedapps list`), a run-config file, or --resume FOLDER")
    compare_recipe(
        Path(given.recipe),
        methods=split_expressions(given.methods),
        seeds=given.seeds,
        first_seed=given.first_seed,
        engine=given.engine,
        jobs=given.jobs,
        cluster=given.cluster,
        overrides=assignments(given.set),
        vary=Vary.read(given.vary),
        seed_keys=listed(given.seed_keys),
        output_dir=given.output_dir,
        json_path=json_path,
    )
    return 0


def tune(given: argparse.Namespace) -> int:
    """Tune the methods of a recipe on validation data and write a recipe with the tuned settings."""
    from fedapps.base.options import listed
    from fedapps.tuning.tune import resume_tuning, tune_recipe

    write = Path(given.write) if given.write else None
    if given.resume:
        if given.recipe or given.set or given.set_trials or given.range or given.methods or given.trials:
            given.refuse("--resume: the folder has the recipe, methods, trials, ranges and keys; leave them out")
        resume_tuning(Path(given.resume), jobs=given.jobs, write=write)
        return 0
    if not given.recipe:
        given.refuse("give a recipe (`fedapps list`), a run-config file, or --resume FOLDER")
    if not given.trials:
        given.refuse("give the number of trials of each method: --trials N")
    tune_recipe(
        Path(given.recipe),
        trials=given.trials,
        methods=split_expressions(given.methods),
        seeds=given.seeds,
        first_seed=given.first_seed,
        seed_keys=listed(given.seed_keys),
        finalists=given.finalists,
        finalist_seeds=given.finalist_seeds,
        ranges=given.range,
        engine=given.engine,
        jobs=given.jobs,
        overrides=assignments(given.set),
        trial_overrides=assignments(given.set_trials, "--set-trials"),
        output_dir=given.output_dir,
        write=write,
    )
    return 0


def fleet(given: argparse.Namespace) -> int:
    """Run one federation, or the stages of a pipeline, on a SuperLink and SuperNodes of this machine."""
    from fedapps.deployment.fleet import LocalFleet

    return _launch(given, LocalFleet(given.nodes, given.node_data, given.tls, given.auth))


def config(given: argparse.Namespace) -> int:
    """Print a recipe as the flat file that ``flwr run`` takes."""
    from fedapps.deployment.flwr_commands import run_config_text

    print(run_config_text(Path(given.recipe), assignments(given.set)), end="")
    return 0


def deploy(given: argparse.Namespace) -> int:
    """Run a recipe on a SuperLink."""
    from fedapps.deployment.flwr_commands import deploy

    return deploy(Path(given.recipe), given.federation, assignments(given.set), stream=given.stream)


def check_node(given: argparse.Namespace) -> int:
    """Check whether this machine can take part in a run as a node."""
    from fedapps.deployment.check_node import check

    further = {"private": given.private, "keep-model": given.keep_model, **assignments(given.node_config)}
    return check(Path(given.recipe), assignments(given.set), Path(given.data_dir), given.state_dir, further)


def supernode(given: argparse.Namespace) -> int:
    """Become a SuperNode that imports the libraries of its workers once."""
    from fedapps.deployment.node_options import check_options
    from fedapps.deployment.supernode import SuperNode

    libraries = [name for name in given.preload.split(",") if name]
    command = SuperNode(libraries, given.poll_interval).command(given.rest)
    check_options(command)
    os.execv(command[0], command)


def keys(given: argparse.Namespace) -> int:
    """Create a SuperLink's certificates or a node's key, and print where each file belongs."""
    from fedapps.deployment.credentials import issue_certificates, issue_node_key

    folder = Path(given.folder)
    certificates = given.kind == "certificates"
    print(issue_certificates(folder, given.host, given.days) if certificates else issue_node_key(folder, given.name))
    return 0


def audit(given: argparse.Namespace) -> int:
    """Attack the gradients and updates that a node with sentences shares and print what was recovered."""
    from fedapps.audit import AuditPlan, audit_recipe, recipe_subject

    recipe, overrides = Path(given.recipe), assignments(given.set)
    plan = AuditPlan.read(
        recipe_subject(recipe, overrides),
        methods=given.methods,
        attackers=given.attackers,
        attacks=given.attack,
        on=given.on,
        batch_sizes=given.batch_sizes,
        sentences=given.sentences,
        steps=given.steps,
        restarts=given.restarts,
    )
    audit_recipe(
        recipe,
        plan,
        jobs=given.jobs,
        overrides=overrides,
        output_dir=given.output_dir,
        json_path=Path(given.json) if given.json else None,
    )
    return 0


def report(given: argparse.Namespace) -> int:
    """Write the report or the tables of a run or a comparison and print their paths."""
    from fedapps.report.paper import write_formats

    for path in write_formats(Path(given.folder), [name.strip() for name in given.format.split(",")]):
        print(path)
    return 0


def board(given: argparse.Namespace) -> int:
    """Serve the page that follows the runs of a folder."""
    from fedapps.board.server import serve

    serve(Path(given.folder), given.host, given.port)
    return 0


_COMMANDS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "new": new,
    "list": list_names,
    "nodes": nodes,
    "run": run,
    "compare": compare,
    "tune": tune,
    "fleet": fleet,
    "config": config,
    "deploy": deploy,
    "check-node": check_node,
    "supernode": supernode,
    "keys": keys,
    "audit": audit,
    "report": report,
    "board": board,
    **TRAINED,
}


def _launch(given: argparse.Namespace, runner: "Runner") -> int:
    from fedapps.launch.recipe import launch_recipe

    launch_recipe(Path(given.recipe) if given.recipe else None, assignments(given.set), runner, given.output_dir)
    return 0


def assignments(pairs: Sequence[str], argument: str = "--set") -> "dict[str, Value]":
    """The values of ``--set``, or another argument. Raises ``ValueError`` for a pair that is not ``key=value``."""
    from fedapps.comparison.matrix import read_value

    found: dict[str, Value] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{argument} {pair!r}: write it as key=value")
        found[key.strip()] = read_value(key.strip(), text.strip())
    return found
