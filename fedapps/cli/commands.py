"""The commands of ``python -m fedapps``. Each returns an exit status."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from fedapps.base.errors import RunFailedError, accept_all_text
from fedapps.base.options import did_you_mean
from fedapps.deployment.flower_command import quick_imports

from .parser import command_parser

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
    if others and not arguments.takes_rest:
        parser.error(f"unrecognized arguments: {' '.join(others)}{_meant(others, arguments)}")
    arguments.rest = others

    try:
        if files := getattr(arguments, "method_file", ()):
            from fedapps.registry.methods import use_file

            for path in files:
                use_file(Path(path))
        with quick_imports():
            function = resolve_name(f"fedapps.cli.{arguments.function}")
        status: int = function(arguments)
        return status
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

    arguments_of_project = {name: getattr(arguments, name) for name in ("task", "method", "recipe", "deployment")}
    print(new_project(arguments.folder, **arguments_of_project))
    return 0


def keys(arguments: argparse.Namespace) -> int:
    """Create a SuperLink's certificates or a node's key, and print where each file belongs."""
    from fedapps.deployment.credentials import issue_certificates, issue_node_key

    certificates = arguments.kind == "certificates"
    print(
        issue_certificates(arguments.folder, arguments.host, arguments.days)
        if certificates
        else issue_node_key(arguments.folder, arguments.name)
    )
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write the report or the tables of a run or a comparison and print their paths."""
    from fedapps.report.paper import write_formats

    for path in write_formats(arguments.folder, [name.strip() for name in arguments.format.split(",")]):
        print(path)
    return 0


def board(arguments: argparse.Namespace) -> int:
    """Serve the page that follows the runs of a folder."""
    from fedapps.board.server import serve

    serve(arguments.folder, arguments.host, arguments.port)
    return 0


def import_logs(arguments: argparse.Namespace) -> int:
    """Import logs into the data folder of a task, or print the draft of a mapping."""
    from fedapps.registry.tasks import task_class, usable_tasks
    from fedapps.tasks.logs.folder import import_logs as imported
    from fedapps.tasks.logs.mapping import draft

    if not (name := task_class(arguments.task).log_import):
        known = ", ".join(name for name, task in usable_tasks().items() if task.log_import)
        raise ValueError(f"--task {arguments.task}: must be one of {known}; logs have no data for the others")
    importer = resolve_name(name)
    if arguments.show:
        print(draft(importer.advice, importer.signals, importer.Settings, arguments.logs[0]), end="")
        return 0
    if not arguments.mapping or not arguments.output:
        raise ValueError("--mapping and --output must be given; --show prints the draft of a mapping")
    complete = True
    for done, line in imported(importer, arguments.logs, arguments.mapping, arguments.output):
        print(line if done else f"fedapps: {line}", file=sys.stdout if done else sys.stderr, flush=True)
        complete &= done
    return 0 if complete else 1
