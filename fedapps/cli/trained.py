"""The commands for trained models: their options, and what they do."""

import argparse
from pathlib import Path

from .arguments import Commands, Parser, add_command

RUN = "folder of a run, or of a model"


def add_adapt(commands: Commands) -> None:
    command = add_command(
        commands, "adapt", "Let a node that took no part in a run fit its personal part to its data.",
        "The node starts from the shared parameters and the initial private ones, and trains what the method does not "
        "share: its head, vocabulary or adapters. Where all is shared, it trains all. Print the metrics before and "
        "after on the node's own data, and write the model.",
        "adapt runs/lane-swap-1 --method apfl --data-dir /data/car-8 --epochs 10 --output car-8-model",
    )  # fmt: skip
    command.add_argument("run", metavar="RUN", help=RUN)
    command.add_argument("--method", metavar="LABEL", help="method of the run (default: the only one)")
    command.add_argument("--data-dir", required=True, metavar="DIR", help="folder with the node's data")
    command.add_argument(
        "--epochs", type=int, required=True, metavar="N", help="passes over the node's training data, at least 0"
    )
    command.add_argument(
        "--learning-rate", type=float, default=0.0, metavar="RATE", help="in place of the method's (default: its own)"
    )
    command.add_argument("--round", metavar="ROUND", help="a kept round, or best (default: the last round)")
    command.add_argument("--output", metavar="FOLDER", help="write the model folder (default: only print)")


def add_export(commands: Commands) -> None:
    command = add_command(
        commands, "export", "Write a trained model in a format of other programs, with a model card.",
        "onnx: the network for onnxruntime and others. torch: a program of torch.export. safetensors: the model "
        "folder, which needs no run folder. huggingface: a model of the library transformers. An exported network is "
        "run back, and refused if it differs from the model. The command names what stays outside the network.",
        "export runs/lqr --method spfl --node robot-3 --format onnx --output robot-3",
        "export runs/quickstart --method fedavg --format safetensors --output model --licence apache-2.0",
    )  # fmt: skip
    add_model(command)
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


def adapt(given: argparse.Namespace) -> int:
    """Adapt a model to a new node's data, print its metrics before and after, and write it."""
    from fedapps.runs.tables import number, text_table
    from fedapps.trained.adapt import adapt_model

    models = {
        f"{epochs} epochs": adapt_model(
            given.run,
            given.data_dir,
            given.method,
            epochs=epochs,
            learning_rate=given.learning_rate,
            round=checked_round(given.round),
        )
        for epochs in dict.fromkeys((0, given.epochs))
    }
    metrics = {name: model.evaluate() for name, model in models.items()}
    names = [name for name, value in next(iter(metrics.values())).items() if isinstance(value, (int, float))]
    origin = next(iter(models.values())).origin
    print(f"node {origin.node}, {origin.examples} training examples; {origin.method} after round {origin.round}")
    print(text_table(["", *models], [[name, *(number(of[name]) for of in metrics.values())] for name in names]))
    if given.output:
        print(f"model: {list(models.values())[-1].save(given.output)}")
    return 0


def export(given: argparse.Namespace) -> int:
    """Export a trained model and print what was written."""
    from fedapps.trained.export import export_model
    from fedapps.trained.load import load_model

    model = load_model(given.run, given.method, given.node, checked_round(given.round))
    if given.index:
        model.keep_index(Path(given.index))
    example = model.data(given.data_dir) if given.data_dir else None
    print(
        export_model(
            model, given.format, given.output, tolerance=given.tolerance, licence=given.licence, example=example
        )
    )
    return 0


def add_model(command: Parser) -> None:
    """Add the arguments that say which trained model to use."""
    command.add_argument("run", metavar="RUN", help=RUN)
    command.add_argument("--method", metavar="LABEL", help="method of the run (default: the only one)")
    command.add_argument("--node", metavar="KEY", help="a node, for its personal model (default: the shared model)")
    command.add_argument("--round", metavar="ROUND", help="a kept round, or best (default: the last round)")


def checked_round(text: str | None) -> int | str | None:
    """A round from the command line: a number, ``best``, or nothing. Raise ``ValueError`` for other texts."""
    if text is None or text == "best":
        return text
    if not text.isdecimal():
        raise ValueError(f"--round {text}: must be the number of a round, or best")
    return int(text)
