"""The arguments of ``fedapps tune``."""

from .shared_arguments import (
    RECIPE,
    Commands,
    add_command,
    add_engine,
    add_jobs,
    add_methods,
    add_output,
    add_resume,
    add_seeds,
    add_set,
)


def add_tune(commands: Commands) -> None:
    """Add the command ``tune``."""
    command = add_command(
        commands, "tune", "Search the best settings of each method on validation data.",
        "Every method gets the same number of trials, the first with its current settings; no trial reads test data. "
        "Print the settings of each method and write a recipe with them for `fedapps compare`. An argument in the name "
        "of a method, as in fedprox(mu=0.1), is fixed.",
        "tune lqr --methods fedavg,fedprox,apfl --trials 20 --write lqr-tuned.toml",
        "tune lane-swap --trials 20 --range apfl.power=0.25..2 --range epochs=5,10,30 --set-trials evaluate-every=1",
        "tune --resume runs/tune-lqr-20250101-120000",
    )  # fmt: skip
    command.set_defaults(refuse=command.error)
    command.add_argument("recipe", nargs="?", help=RECIPE)
    command.add_argument("--trials", type=int, default=0, metavar="N", help="number of trials of each method")
    add_methods(command, "tune")
    command.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="KEY=LOW..HIGH[,log]",
        help="search range of a method's option or of a key that methods can set for themselves, such as epochs; "
        "KEY=VALUE,... for a few values; can be repeated (default: the ranges in `fedapps list --keys`)",
    )
    add_seeds(command, 1, " of each trial")
    command.add_argument("--write", default="", metavar="FILE", help="also write the tuned recipe to this file")
    add_resume(command, "tuning")
    add_jobs(command, "methods")
    add_engine(command, "inline")
    add_set(command)
    command.add_argument(
        "--set-trials",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key in the trials only, not in the tuned recipe; can be repeated",
    )
    add_output(command)
