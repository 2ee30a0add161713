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


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command and return its exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The command line without the program's name; that of this process if missing.

    Returns
    -------
    int
        0 after success, 1 if a run or a check failed, 2 for bad input, 130 after an interruption.
    """
    accept_all_text()
    parser = command_parser()
    arguments, others = parser.parse_known_args(argv)
    if others and not getattr(arguments, "takes_rest", False):
        parser.error(f"unrecognized arguments: {' '.join(others)}{_meant(others, arguments)}")
    arguments.rest = others
    from fedapps.launch.runner import RunFailedError  # `--help` has ended above, without it

    try:
        if files := getattr(arguments, "method_file", ()):
            from fedapps.registry.local_methods import use_file

            for path in files:
                use_file(Path(path))
        return _COMMANDS[arguments.command](arguments)
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


def _meant(others: Sequence[str], arguments: argparse.Namespace) -> str:
    """What the first unknown option may stand for: a key of the run config, or another option; empty if nothing."""
    from fedapps.config.keys import defaults

    name = next((word for word in others if word.startswith("--")), "").partition("=")[0]
    if name.removeprefix("--") in defaults() and "--set" in arguments.known_options:
        return f"; {name.removeprefix('--')} is a key of the run config: write --set {name.removeprefix('--')}=VALUE"
    return did_you_mean(name, arguments.known_options)


def new(arguments: argparse.Namespace) -> int:
    """Write a project and print its files."""
    from fedapps.project.writing import new_project

    print(
        new_project(
            Path(arguments.folder), task=arguments.task, method=arguments.method, deployment=arguments.deployment
        )
    )
    return 0


def list_names(arguments: argparse.Namespace) -> int:
    """Print tasks, methods and recipes, or the keys of the run config, or what is known of one name."""
    from .listing import described_name, keys_text, overview

    if (arguments.task or arguments.methods) and not arguments.keys:
        raise ValueError("--task and --methods choose the keys to list: add --keys")
    if arguments.name:
        print(described_name(arguments.name))
    elif arguments.for_task:
        from fedapps.launch.choice import choice_text

        print(choice_text(arguments.for_task))
    else:
        print(keys_text(arguments.task, arguments.methods) if arguments.keys else overview())
    return 0


def nodes(arguments: argparse.Namespace) -> int:
    """Print the nodes of a recipe and how much data each of them has, and draw them if asked for."""
    from fedapps.comparison.matrix import Vary
    from fedapps.comparison.nodes import RecipeNodes, check_format, nodes_figure, nodes_text, write_nodes

    if arguments.plot:
        check_format(Path(arguments.plot))
    of_recipe = RecipeNodes.read(Path(arguments.recipe), assignments(arguments.set), Vary.read(arguments.vary))
    print(nodes_text(of_recipe))
    if arguments.write:
        print("\n".join(map(str, write_nodes(of_recipe, Path(arguments.write)))))
    if arguments.plot:
        nodes_figure(of_recipe, Path(arguments.plot))
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run one federation, or the stages of a pipeline, on an engine and print the paths of the reports."""
    from fedapps.launch.launch import Simulation

    return _dry_run(arguments) if arguments.dry_run else _launch(arguments, Simulation(arguments.engine))


def _dry_run(arguments: argparse.Namespace) -> int:
    from fedapps.comparison.nodes import RecipeNodes, nodes_text
    from fedapps.config.parsing import parse
    from fedapps.config.recipe_files import read_recipe
    from fedapps.launch.estimate import estimate_text
    from fedapps.launch.inputs import resolve

    if not arguments.recipe:
        raise ValueError("--dry-run: name a recipe (`fedapps list`) or a run-config file")
    recipe, overrides = Path(arguments.recipe), assignments(arguments.set)
    resolved = resolve(read_recipe(recipe, overrides), arguments.output_dir)
    config = parse(resolved)
    print(nodes_text(RecipeNodes.read(recipe, resolved)))
    print(estimate_text(config))
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Run methods with several seeds and print the table beside the paper's numbers."""
    from fedapps.base.options import split_names
    from fedapps.comparison.compare import compare_recipe, resume_comparison
    from fedapps.comparison.matrix import Vary

    json_path = Path(arguments.json) if arguments.json else None
    if arguments.resume:
        if arguments.recipe or arguments.set or arguments.vary or arguments.seed_keys or arguments.methods:
            arguments.refuse("--resume: the folder has the recipe, methods, keys and values; leave them out")
        resume_comparison(Path(arguments.resume), jobs=arguments.jobs, cluster=arguments.cluster, json_path=json_path)
        return 0
    if not arguments.recipe:
        arguments.refuse("give a recipe (`fedapps list`), a run-config file, or --resume FOLDER")
    compare_recipe(
        Path(arguments.recipe),
        methods=split_expressions(arguments.methods),
        seeds=arguments.seeds,
        first_seed=arguments.first_seed,
        engine=arguments.engine,
        jobs=arguments.jobs,
        cluster=arguments.cluster,
        overrides=assignments(arguments.set),
        vary=Vary.read(arguments.vary),
        seed_keys=split_names(arguments.seed_keys),
        output_dir=arguments.output_dir,
        json_path=json_path,
    )
    return 0


def tune(arguments: argparse.Namespace) -> int:
    """Tune the methods of a recipe on validation data and write a recipe with the tuned settings."""
    from fedapps.base.options import split_names
    from fedapps.tuning.tune import resume_tuning, tune_recipe

    write = Path(arguments.write) if arguments.write else None
    if arguments.resume:
        if (
            arguments.recipe
            or arguments.set
            or arguments.set_trials
            or arguments.range
            or arguments.methods
            or arguments.trials
        ):
            arguments.refuse("--resume: the folder has the recipe, methods, trials, ranges and keys; leave them out")
        resume_tuning(Path(arguments.resume), jobs=arguments.jobs, write=write)
        return 0
    if not arguments.recipe:
        arguments.refuse("give a recipe (`fedapps list`), a run-config file, or --resume FOLDER")
    if not arguments.trials:
        arguments.refuse("give the number of trials of each method: --trials N")
    tune_recipe(
        Path(arguments.recipe),
        trials=arguments.trials,
        methods=split_expressions(arguments.methods),
        seeds=arguments.seeds,
        first_seed=arguments.first_seed,
        seed_keys=split_names(arguments.seed_keys),
        finalists=arguments.finalists,
        finalist_seeds=arguments.finalist_seeds,
        ranges=arguments.range,
        engine=arguments.engine,
        jobs=arguments.jobs,
        overrides=assignments(arguments.set),
        trial_overrides=assignments(arguments.set_trials, "--set-trials"),
        output_dir=arguments.output_dir,
        write=write,
    )
    return 0


def fleet(arguments: argparse.Namespace) -> int:
    """Run one federation, or the stages of a pipeline, on a SuperLink and SuperNodes of this machine."""
    from fedapps.deployment.fleet import LocalFleet

    return _launch(arguments, LocalFleet(arguments.nodes, arguments.node_data, arguments.tls, arguments.auth))


def config(arguments: argparse.Namespace) -> int:
    """Print a recipe as the flat file that ``flwr run`` takes."""
    from fedapps.deployment.flwr_commands import run_config_text

    print(run_config_text(Path(arguments.recipe), assignments(arguments.set)), end="")
    return 0


def deploy(arguments: argparse.Namespace) -> int:
    """Run a recipe on a SuperLink."""
    from fedapps.deployment.flwr_commands import deploy

    return deploy(Path(arguments.recipe), arguments.federation, assignments(arguments.set), stream=arguments.stream)


def check_node(arguments: argparse.Namespace) -> int:
    """Check whether this machine can take part in a run as a node."""
    from fedapps.deployment.check_node import check

    further = {"private": arguments.private, "keep-model": arguments.keep_model, **assignments(arguments.node_config)}
    return check(
        Path(arguments.recipe), assignments(arguments.set), Path(arguments.data_dir), arguments.state_dir, further
    )


def supernode(arguments: argparse.Namespace) -> int:
    """Become a SuperNode that imports the libraries of its workers once."""
    from fedapps.deployment.node_options import check_options
    from fedapps.deployment.supernode import SuperNode

    libraries = [name for name in arguments.preload.split(",") if name]
    command = SuperNode(libraries, arguments.poll_interval).command(arguments.rest)
    check_options(command)
    os.execv(command[0], command)


def keys(arguments: argparse.Namespace) -> int:
    """Create a SuperLink's certificates or a node's key, and print where each file belongs."""
    from fedapps.deployment.credentials import issue_certificates, issue_node_key

    folder = Path(arguments.folder)
    certificates = arguments.kind == "certificates"
    print(
        issue_certificates(folder, arguments.host, arguments.days)
        if certificates
        else issue_node_key(folder, arguments.name)
    )
    return 0


def audit(arguments: argparse.Namespace) -> int:
    """Attack the gradients and updates that a node with sentences shares and print what was recovered."""
    from fedapps.audit import AuditPlan, audit_recipe, recipe_subject

    recipe, overrides = Path(arguments.recipe), assignments(arguments.set)
    plan = AuditPlan.read(
        recipe_subject(recipe, overrides),
        methods=arguments.methods,
        attackers=arguments.attackers,
        attacks=arguments.attack,
        on=arguments.on,
        batch_sizes=arguments.batch_sizes,
        sentences=arguments.sentences,
        steps=arguments.steps,
        restarts=arguments.restarts,
    )
    audit_recipe(
        recipe,
        plan,
        jobs=arguments.jobs,
        overrides=overrides,
        output_dir=arguments.output_dir,
        json_path=Path(arguments.json) if arguments.json else None,
    )
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write the report or the tables of a run or a comparison and print their paths."""
    from fedapps.report.paper import write_formats

    for path in write_formats(Path(arguments.folder), [name.strip() for name in arguments.format.split(",")]):
        print(path)
    return 0


def board(arguments: argparse.Namespace) -> int:
    """Serve the page that follows the runs of a folder."""
    from fedapps.board.server import serve

    serve(Path(arguments.folder), arguments.host, arguments.port)
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


def _launch(arguments: argparse.Namespace, runner: "Runner") -> int:
    from fedapps.launch.recipe import launch_recipe

    launch_recipe(
        Path(arguments.recipe) if arguments.recipe else None, assignments(arguments.set), runner, arguments.output_dir
    )
    return 0


def assignments(pairs: Sequence[str], argument: str = "--set") -> "dict[str, Value]":
    """The values of ``--set``, or another argument. Raises ``ValueError`` for a pair that is not ``key=value``."""
    from fedapps.comparison.matrix import read_value

    keys_by_name: dict[str, Value] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"{argument} {pair!r}: write it as key=value")
        keys_by_name[key.strip()] = read_value(key.strip(), text.strip())
    return keys_by_name
