"""The parser of the command line. ``commands.toml`` has every command with its options, its help and examples."""

import argparse
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, TypeAlias

from fedapps.deployment.flower_command import LIBRARIES, POLL_INTERVAL

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Settings: TypeAlias = Mapping[str, Any]

_WIDTH = 100
#: Defaults that stand where they are used.
_DEFAULTS = {"--preload": ",".join(LIBRARIES), "--poll-interval": POLL_INTERVAL}


def command_parser() -> argparse.ArgumentParser:
    """The parser.

    Of its result, ``command`` is the name of a command, ``kind`` that of a command of ``keys``, ``function`` the
    ``MODULE:FUNCTION`` in ``fedapps.cli`` that takes the result, ``refuse`` ends the process with a message, and
    ``default_of`` gives the default of an argument.
    """
    declared = tomllib.loads(Path(__file__).with_name("commands.toml").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(
        prog="fedapps",
        description="Run federated learning, compare methods, deploy to nodes and audit privacy.",
        epilog="`fedapps COMMAND --help` shows the options of a command and an example.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in declared["commands"].items():
        _add_command(commands, name, command, declared["shared"])
    return parser


def _add_command(commands: Commands, name: str, command: Settings, shared: Mapping[str, Settings]) -> None:
    examples = command["examples"]
    parser = commands.add_parser(
        name,
        help=command["summary"],
        description=fill(f"{command['summary']} {command['details']}", _WIDTH),
        epilog="\n".join([f"example{'s'[: len(examples) - 1]}:", *(f"  fedapps {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, argparse._MutuallyExclusiveGroup] = {}
    for argument, own in command.get("arguments", {}).items():
        settings = dict(own) if "help" in own else {**shared[argument], **own}
        group = settings.pop("group", "")
        if group and group not in groups:
            groups[group] = parser.add_mutually_exclusive_group()
        (groups[group] if group else parser).add_argument(argument, **_settings(argument, settings))
    if "commands" in command:
        kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
        for kind, of_kind in command["commands"].items():
            _add_command(kinds, kind, of_kind, shared)
    parser.set_defaults(
        function=command["function"],
        refuse=parser.error,
        default_of=parser.get_default,
        takes_rest=command.get("takes-rest", False),
        known_options=re.findall(r"--[\w-]+", parser.format_usage()),
    )


def _settings(name: str, declared: Settings) -> dict[str, Any]:
    """What ``add_argument`` takes."""
    settings = {"default": _DEFAULTS[name], **declared} if name in _DEFAULTS else dict(declared)
    settings["help"] = settings["help"].replace("{what}", settings.pop("what", ""))
    default = settings.get("default")
    if default is False:
        settings["action"] = "store_true"
    elif isinstance(default, list):
        settings["action"] = "append"
    elif "type" in settings:
        settings["type"] = {"int": int, "path": Path, "file": _file, "round": _round, "count": _count}[settings["type"]]
    elif isinstance(default, int | float):
        settings["type"] = type(default)
    return settings


def _file(text: str) -> Path:
    """A file that is written after the work, which would be in vain if a folder has this name."""
    if Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: is a folder; give the name of a file")
    return Path(text)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number of at least 0")
    return int(text)


def _round(text: str) -> int | str:
    if text != "best" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: must be the number of a round, or best")
    return text if text == "best" else int(text)
