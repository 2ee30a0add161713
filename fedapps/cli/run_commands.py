"""The commands that run, compare and tune federations, and those that prepare it."""

import argparse
from pathlib import Path

from fedapps.audit import AuditPlan, audit_recipe, recipe_subject
from fedapps.base.options import split_names
from fedapps.comparison.compare import compare_recipe, resume_comparison
from fedapps.comparison.matrix import Vary, assignments
from fedapps.comparison.nodes import RecipeNodes, check_format, nodes_figure, nodes_text, write_nodes
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.deployment.fleet import LocalFleet
from fedapps.launch.estimate import estimate_text
from fedapps.launch.inputs import resolve
from fedapps.launch.launch import Runner, Simulation
from fedapps.launch.recipe import launch_recipe
from fedapps.project.writing import new_project
from fedapps.registry.expressions import split_expressions
from fedapps.tuning.tune import resume_tuning, tune_recipe


def new(arguments: argparse.Namespace) -> int:
    """Write a project and print its files."""
    print(
        new_project(
            Path(arguments.folder), task=arguments.task, method=arguments.method, deployment=arguments.deployment
        )
    )
    return 0


def nodes(arguments: argparse.Namespace) -> int:
    """Print the nodes of a recipe and how much data each of them has, and draw them if asked for."""
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
    return _dry_run(arguments) if arguments.dry_run else _launch(arguments, Simulation(arguments.engine))


def _dry_run(arguments: argparse.Namespace) -> int:
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
    return _launch(arguments, LocalFleet(arguments.nodes, arguments.node_data, arguments.tls, arguments.auth))


def audit(arguments: argparse.Namespace) -> int:
    """Attack the gradients and updates that a node with sentences shares and print what was recovered."""
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


def _launch(arguments: argparse.Namespace, runner: Runner) -> int:
    launch_recipe(
        Path(arguments.recipe) if arguments.recipe else None, assignments(arguments.set), runner, arguments.output_dir
    )
    return 0
