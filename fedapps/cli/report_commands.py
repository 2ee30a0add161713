"""The commands that show what runs left."""

import argparse
from pathlib import Path

from fedapps.board.server import serve
from fedapps.report.paper import write_formats


def report(arguments: argparse.Namespace) -> int:
    """Write the report or the tables of a run or a comparison and print their paths."""
    for path in write_formats(Path(arguments.folder), [name.strip() for name in arguments.format.split(",")]):
        print(path)
    return 0


def board(arguments: argparse.Namespace) -> int:
    """Serve the page that follows the runs of a folder."""
    serve(Path(arguments.folder), arguments.host, arguments.port)
    return 0
