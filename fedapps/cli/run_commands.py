"""The commands that run, compare and tune federations, and those that prepare it.

A function imports what only its command needs: a run starts without comparisons, tuning and attacks.
"""

import argparse

from fedapps.base.options import split_names
from fedapps.comparison.matrix import Vary, assignments
from fedapps.config.parsing import parse
from fedapps.config.recipe_files import read_recipe
from fedapps.launch.inputs import resolve
from fedapps.launch.launch import Simulation
from fedapps.launch.recipe import launch_recipe
from fedapps.registry.expressions import split_expressions


def nodes(arguments: argparse.Namespace) -> int:
    """Print the nodes of a recipe and how much data each of them has, and draw them if asked for."""
    from fedapps.comparison.nodes import RecipeNodes, check_format, nodes_figure, nodes_text, write_nodes

    if arguments.plot:
        check_format(arguments.plot)
    of_recipe = RecipeNodes.read(arguments.recipe, assignments(arguments.set), _varied(arguments))
    print(nodes_text(of_recipe))
    if arguments.write:
        print("\n".join(map(str, write_nodes(of_recipe, arguments.write))))
    if arguments.plot:
        nodes_figure(of_recipe, arguments.plot)
    return 0


def run(arguments: argparse.Namespace) -> int:
    """Run one federation, or the stages of a pipeline, on an engine and print the paths of the reports."""
    if not arguments.dry_run:
        launch_recipe(arguments.recipe, assignments(arguments.set), Simulation(arguments.engine), arguments.output_dir)
        return 0

    from fedapps.comparison.nodes import RecipeNodes, nodes_text
    from fedapps.launch.estimate import estimate_text

    if not arguments.recipe:
        raise ValueError("--dry-run: name a recipe (`fedapps list`) or a run-config file")
    resolved = resolve(read_recipe(arguments.recipe, assignments(arguments.set)), arguments.output_dir)
    config = parse(resolved)
    print(nodes_text(RecipeNodes.read(arguments.recipe, resolved)))
    print(estimate_text(config))
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Run methods with several seeds and print the table beside the paper's numbers."""
    from fedapps.comparison.compare import compare_recipe, resume_comparison

    carried_out = {"jobs": arguments.jobs, "cluster": arguments.cluster, "json_path": arguments.json}
    if _resumes(arguments, "--jobs", "--cluster", "--json"):
        resume_comparison(arguments.resume, **carried_out)
        return 0
    compare_recipe(
        arguments.recipe,
        methods=split_expressions(arguments.methods),
        seeds=arguments.seeds,
        first_seed=arguments.first_seed,
        engine=arguments.engine,
        overrides=assignments(arguments.set),
        vary=_varied(arguments),
        seed_keys=split_names(arguments.seed_keys),
        against=arguments.against,
        output_dir=arguments.output_dir,
        **carried_out,
    )
    return 0


def tune(arguments: argparse.Namespace) -> int:
    """Tune the methods of a recipe on validation data and write a recipe with the tuned settings."""
    from fedapps.tuning.tune import resume_tuning, tune_recipe

    if _resumes(arguments, "--jobs", "--write"):
        resume_tuning(arguments.resume, jobs=arguments.jobs, write=arguments.write)
        return 0
    if not arguments.trials:
        arguments.refuse("give the number of trials of each method: --trials N")
    tune_recipe(
        arguments.recipe,
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
        write=arguments.write,
    )
    return 0


def audit(arguments: argparse.Namespace) -> int:
    """Attack the gradients and updates that a node shares and print what was recovered."""
    from fedapps.audit.leakage import LEAKAGE, audit_leakage
    from fedapps.audit.plan import AuditPlan
    from fedapps.audit.run import audit_recipe
    from fedapps.audit.victim import has_words, recipe_subject

    overrides = assignments(arguments.set)
    if arguments.attack == LEAKAGE or (arguments.attack is None and not has_words(arguments.recipe, overrides)):
        audit_leakage(
            arguments.recipe,
            seeds=arguments.seeds,
            steps=arguments.steps,
            restarts=arguments.restarts,
            jobs=arguments.jobs,
            overrides=overrides,
            output_dir=arguments.output_dir,
            json_path=arguments.json,
        )
        return 0
    subject = recipe_subject(arguments.recipe, overrides)
    sizes = split_names(arguments.batch_sizes)
    if strange := [size for size in sizes if not size.removeprefix("-").isdecimal()]:
        raise ValueError(f"--batch-sizes {', '.join(strange)}: must be whole numbers, separated by commas")
    plan = AuditPlan(
        subject,
        methods=subject.methods if arguments.methods is None else split_names(arguments.methods),
        attackers=split_names(arguments.attackers),
        attacks=subject.attacks if arguments.attack is None else split_names(arguments.attack),
        on=split_names(arguments.on),
        batch_sizes=tuple(map(int, sizes)),
        sentences=arguments.sentences,
        steps=arguments.steps,
        restarts=arguments.restarts,
    )
    audit_recipe(
        arguments.recipe,
        plan,
        jobs=arguments.jobs,
        overrides=overrides,
        output_dir=arguments.output_dir,
        json_path=arguments.json,
    )
    return 0


def _varied(arguments: argparse.Namespace) -> list[Vary]:
    return [Vary.read(text) for text in arguments.vary]


def _resumes(arguments: argparse.Namespace, *anew: str) -> bool:
    """Whether a job is resumed; refuses arguments but those given ``anew``, and a command without a recipe."""
    fields = {option: option.removeprefix("--").replace("-", "_") for option in ("recipe", *arguments.known_options)}
    options = [option for option, name in fields.items() if getattr(arguments, name) != arguments.default_of(name)]
    changeable = {"--resume", "--method-file", *anew}
    fixed = [option for option in options if option not in changeable]
    if arguments.resume and fixed:
        arguments.refuse(f"--resume: the folder has what was given at first; leave out {', '.join(fixed)}")
    if not arguments.resume and not arguments.recipe:
        arguments.refuse("give a recipe (`fedapps list`), a run-config file, or --resume FOLDER")
    return bool(arguments.resume)
