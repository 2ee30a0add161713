"""What several commands of the command line share: how they are described, and their common arguments."""

import argparse
from textwrap import fill
from typing import TypeAlias

Parser: TypeAlias = argparse.ArgumentParser
Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

RECIPE = (
    "name of a recipe (see `fedapps list`) or path of a run-config file in TOML; RECIPE:STAGE names one stage of a "
    "pipeline"
)
_WIDTH = 100


def add_command(commands: Commands, name: str, line: str, details: str, *examples: str) -> Parser:
    return commands.add_parser(
        name,
        help=line,
        description=fill(f"{line} {details}", _WIDTH),
        epilog="\n".join([f"example{'s'[: len(examples) - 1]}:", *(f"  fedapps {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_set(command: Parser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the run config (see `fedapps list --keys`); can be repeated",
    )


def add_method_files(command: Parser) -> None:
    command.add_argument(
        "--method-file",
        action="append",
        default=[],
        metavar="FILE",
        help="Python file with a subclass of fedapps.methods.base.Method, to be used by its name; can be repeated",
    )


def add_vary(command: Parser, effect: str) -> None:
    command.add_argument(
        "--vary", default="", metavar="KEY=VALUE,...", help=f"{effect} (default: what the recipe varies)"
    )


def add_methods(command: Parser, action: str) -> None:
    command.add_argument(
        "--methods", default="", help=f"methods to {action}, separated by commas (default: the recipe's)"
    )


def add_seeds(command: Parser, default: int, of: str) -> None:
    command.add_argument(
        "--seeds", type=int, default=default, metavar="N", help=f"number of seeds{of} (default: %(default)s)"
    )
    command.add_argument(
        "--first-seed", type=int, default=0, metavar="SEED", help="first seed; the others follow it (default: 0)"
    )


def add_seed_keys(command: Parser) -> None:
    command.add_argument(
        "--seed-keys",
        default="",
        metavar="KEY,...",
        help="keys set to the seed of each run; text.partition-seed gives each seed its own partition "
        "(default: the recipe's keys)",
    )


def add_resume(command: Parser, what: str) -> None:
    command.add_argument("--resume", metavar="FOLDER", help=f"resume the {what} in this folder that was interrupted")


def add_output(command: Parser) -> None:
    command.add_argument(
        "--output-dir", default="runs", metavar="DIR", help="folder for the results (default: ./%(default)s)"
    )


def add_engine(command: Parser, default: str) -> None:
    command.add_argument(
        "--engine",
        choices=["inline", "ray"],
        default=default,
        help="inline: one process per run; ray: `flwr run` with Ray (default: %(default)s)",
    )


def add_jobs(command: Parser, what: str) -> None:
    command.add_argument(
        "--jobs",
        type=int,
        default=0,
        metavar="N",
        help=f"number of parallel {what}; 0 = one process per CPU core (default: 0)",
    )


def add_json(command: Parser, content: str) -> None:
    command.add_argument("--json", default="", metavar="FILE", help=f"also write {content} to this file")
