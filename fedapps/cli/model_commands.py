"""The commands for trained models."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from fedapps.base.atomic import check_replaceable, write_whole
from fedapps.base.options import split_names
from fedapps.base.report.numbers import number, numbers
from fedapps.base.report.tables import text_table
from fedapps.registry.expressions import split_expressions
from fedapps.trained.adapt import adapt as adapt_model
from fedapps.trained.evaluate import STDIN, PredictionFiles, evaluate_run, evaluation_text
from fedapps.trained.export import export as export_model
from fedapps.trained.load import load as load_model


def predict(arguments: argparse.Namespace) -> int:
    """Write the model's answers."""
    if unknown := [text for text in arguments.rest if text.startswith("-") and text != STDIN]:
        arguments.refuse(f"unrecognized arguments: {' '.join(unknown)}")
    files = PredictionFiles.read([*arguments.inputs, *arguments.rest], arguments.output, arguments.batch_size)
    files.write(load_model(arguments.run, arguments.method, arguments.node, arguments.round, arguments.device))
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Print the metrics of the models on the data, and write them if asked for."""
    rows = list(
        evaluate_run(
            arguments.run,
            arguments.data_dir,
            methods=split_expressions(arguments.methods),
            nodes=split_names(arguments.nodes),
            round=arguments.round,
            device=arguments.device,
        )
    )
    print(evaluation_text(rows, len(arguments.data_dir)))
    if arguments.json:
        write_whole(arguments.json, (json.dumps(list(map(asdict, rows)), indent=2) + "\n").encode())
    return 0


def adapt(arguments: argparse.Namespace) -> int:
    """Adapt a model to a new node's data, print its metrics before and after, and write it."""
    models = {
        f"{epochs} epochs": adapt_model(
            arguments.run,
            arguments.data_dir,
            arguments.method,
            epochs=epochs,
            learning_rate=arguments.learning_rate,
            round=arguments.round,
            device=arguments.device,
            output=arguments.output if epochs == arguments.epochs else None,
        )
        for epochs in dict.fromkeys((0, arguments.epochs))
    }
    metrics = {name: numbers(model.origin.metrics) for name, model in models.items()}
    names = next(iter(metrics.values()))
    origin = next(iter(models.values())).origin
    print(f"node {origin.node}, {origin.examples} training examples; {origin.method} after round {origin.round}")
    print(text_table(["", *models], [[name, *(number(of[name]) for of in metrics.values())] for name in names]))
    if arguments.output:
        print(f"model: {Path(arguments.output).expanduser()}")
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Export a trained model and print what was written."""
    check_replaceable(Path(arguments.output).expanduser())
    model = load_model(arguments.run, arguments.method, arguments.node, arguments.round, arguments.device)
    if arguments.index:
        model.keep_index(Path(arguments.index))
    print(
        export_model(
            model,
            arguments.format,
            arguments.output,
            tolerance=arguments.tolerance,
            licence=arguments.licence,
            data=arguments.data_dir or None,
        )
    )
    return 0
