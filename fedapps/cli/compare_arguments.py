"""The arguments of ``fedapps compare``."""

from .shared_arguments import (
    RECIPE,
    Commands,
    add_command,
    add_engine,
    add_jobs,
    add_json,
    add_methods,
    add_output,
    add_resume,
    add_seeds,
    add_set,
    add_vary,
)


def add_compare(commands: Commands) -> None:
    """Add the command ``compare``."""
    command = add_command(
        commands, "compare", "Compare methods over several seeds, beside the paper's numbers.",
        "Run every method with every seed, print means, standard deviations, the paper's claims and tests, and write a "
        "report. Tests are paired over seeds. Five seeds give no p-value below 0.0625; use ten where a claim depends "
        "on it. On recorded data, results hold for new training runs on these data, not for other data. In the path of "
        "a file, {method} and {seed} stand for those of each run.",
        "compare lqr --methods fedavg,spfl,apfl --seeds 10",
        'compare lqr --methods "spfl,spfl(rate-scale=0.2),apfl(power=0.5)"',
        "compare fedvln-augmented --set vln.speaker-file=speaker.safetensors "
        "--set vln.agent-file=runs/agents/{method}-{seed}/checkpoints/{method}/best.safetensors",
        "compare --resume runs/compare-lqr-20250101-120000",
    )  # fmt: skip
    command.set_defaults(refuse=command.error)
    command.add_argument("recipe", nargs="?", help=RECIPE)
    add_methods(command, "compare")
    add_seeds(command, 3, "")
    add_vary(command, "repeat the comparison for each of these values of a key")
    command.add_argument(
        "--seed-keys",
        default="",
        metavar="KEY,...",
        help="keys set to the seed of each run; text.partition-seed gives each seed its own partition "
        "(default: the recipe's keys)",
    )
    add_resume(command, "comparison")
    add_jobs(command, "runs")
    command.add_argument(
        "--cluster",
        default="",
        metavar="ADDRESS",
        help="execute the runs on this Ray cluster, HOST:PORT or auto, whose machines share the folders of data and "
        "results (default: this machine)",
    )
    add_json(command, "rows, table, tests, the paper's numbers and claims")
    add_engine(command, "inline")
    add_set(command)
    add_output(command)
