"""The parsers of the commands for trained models."""

import argparse

from .arguments import Commands, Parser, add_command, add_json, add_method_files


def add_trained(commands: Commands) -> None:
    """Add the parsers of all commands for trained models."""
    _add_predict(commands)
    _add_evaluate(commands)
    _add_adapt(commands)
    _add_export(commands)


def _add_predict(commands: Commands) -> None:
    command = add_command(
        commands, "predict", "Write the predictions of a trained model for files or standard input.",
        "A row of JSON or CSV is written for each example, in their order. Texts are lines of a .txt file or of "
        "standard input, or rows of CSV, TSV and JSON-lines files; docs/use.md has the input of other tasks.",
        "predict runs/quickstart --method fedvocab --node client-003 mails.txt --output labels.csv",
        "predict runs/quickstart --method fedavg < mails.txt",
    )  # fmt: skip
    _add_model(command)
    # argparse gives the inputs after an option to no argument: they are among the rest
    command.set_defaults(takes_rest=True, refuse=command.error)
    command.add_argument(
        "inputs", nargs="*", metavar="INPUT", help="files, or folders of images; - is standard input (default)"
    )
    command.add_argument(
        "--output", default="", metavar="FILE", help="write to this .jsonl or .csv file (default: standard output)"
    )
    command.add_argument(
        "--batch-size", type=int, default=128, metavar="N", help="examples at a time (default: %(default)s)"
    )


def _add_evaluate(commands: Commands) -> None:
    command = add_command(
        commands, "evaluate", "Evaluate the models of a run on data that no node had.",
        "Print the metrics of the run with 95 % intervals, a row for each method and node.",
        "evaluate runs/lqr --data-dir /data/robot-9",
        "evaluate runs/lqr --data-dir /data/robot-8 /data/robot-9 --methods apfl,spfl",
    )  # fmt: skip
    _add_run(command)
    command.add_argument(
        "--data-dir",
        required=True,
        nargs="+",
        metavar="DIR",
        help="folders with test data, each in the format of a node's own data; with several, intervals are over them",
    )
    command.add_argument("--methods", default="", help="labels of methods, separated by commas (default: all)")
    command.add_argument("--nodes", default="", help="keys of nodes, separated by commas (default: all)")
    add_json(command, "all metrics")


def _add_adapt(commands: Commands) -> None:
    command = add_command(
        commands, "adapt", "Adapt a model to the data of a node that took no part in the run.",
        "The node starts from the shared parameters and the initial private ones, and trains what the method does not "
        "share: its head, vocabulary or adapters. Where all is shared, it trains all. Print the metrics before and "
        "after on the node's own data, and write the model.",
        "adapt runs/lane-swap-1 --method apfl --data-dir /data/car-8 --epochs 10 --output car-8-model",
    )  # fmt: skip
    _add_run(command)
    _add_method(command)
    command.add_argument("--data-dir", required=True, metavar="DIR", help="folder with the node's data")
    command.add_argument(
        "--epochs", type=int, required=True, metavar="N", help="passes over the node's training data, at least 0"
    )
    command.add_argument(
        "--learning-rate", type=float, default=0.0, metavar="RATE", help="in place of the method's (default: its own)"
    )
    command.add_argument("--output", metavar="FOLDER", help="write the model folder (default: only print)")


def _add_export(commands: Commands) -> None:
    command = add_command(
        commands, "export", "Write a trained model in a format of other programs, with a model card.",
        "onnx: the network for onnxruntime and others. torch: a program of torch.export. safetensors: the model "
        "folder, which needs no run folder. huggingface: a model of the library transformers. An exported network is "
        "run back, and refused if it differs from the model. The command names what stays outside the network.",
        "export runs/lqr --method spfl --node robot-3 --format onnx --output robot-3",
        "export runs/quickstart --method fedavg --format safetensors --output model --licence apache-2.0",
    )  # fmt: skip
    _add_model(command)
    command.add_argument("--format", required=True, metavar="FORMAT", help="onnx, torch, safetensors or huggingface")
    command.add_argument("--output", required=True, metavar="FOLDER", help="folder to write, new or empty")
    command.add_argument(
        "--tolerance",
        type=float,
        default=1e-5,
        metavar="SHARE",
        help="largest accepted difference of the network that is run back, as a share of the largest absolute value of "
        "an output (default: %(default)s)",
    )
    command.add_argument(
        "--licence", default="unknown", metavar="ID", help="licence for the card, such as apache-2.0 (default: unknown)"
    )
    command.add_argument(
        "--index",
        metavar="IMAGES",
        help="for place recognition: a folder or table of images with positions, whose index is exported, too",
    )
    command.add_argument(
        "--data-dir",
        metavar="DIR",
        help="data in the format of a node's own, for a task that does not describe the inputs of its network",
    )


# -- common arguments --------------------------------------------------------------------------------------------


def _add_model(command: Parser) -> None:
    """Add the arguments that say which model to use."""
    _add_run(command)
    _add_method(command)
    command.add_argument("--node", metavar="KEY", help="a node, for its personal model (default: the shared model)")


def _add_run(command: Parser) -> None:
    """Add the arguments that say which run and which round to use, and where."""
    command.add_argument("run", metavar="RUN", help="folder of a run, or of a model")
    command.add_argument("--round", type=_round, metavar="ROUND", help="a kept round, or best (default: the last)")
    add_method_files(command)
    command.add_argument("--device", default="auto", help="auto, cpu or cuda (default: %(default)s)")


def _add_method(command: Parser) -> None:
    command.add_argument("--method", metavar="LABEL", help="label of the method (default: the only one of the run)")


def _round(text: str) -> int | str:
    if text != "best" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}: must be the number of a round, or best")
    return text if text == "best" else int(text)
