"""Exported models: networks that come back from ONNX and torch.export, refusals, and what another process computes."""

import inspect
import json
import subprocess
import sys
import zipfile

import numpy as np
import onnxruntime
import pytest
import torch
from fedapps.tasks.answers import Network
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.model_folder import StoredModel
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.networks import SplitEmbedding
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.trained import TextTrained
from fedapps.tasks.trained import TrainedModel, trained_class
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoder import encoder_folder
from torch import nn
from trained_runs import last_evaluation

import fedapps
from fedapps.cli.commands import main
from fedapps.cli.parser import command_parser
from fedapps.registry.tasks import task_class
from fedapps.trained.export import FORMATS
from fedapps.trained.export import export as export_model
from fedapps.trained.programs import (
    TOLERANCE,
    Difference,
    captured,
    checked_inputs,
    difference,
    write_onnx,
    write_torch,
)


class Tripled(TrainedModel):
    """A model whose network is the given module of one input ``[n, 3]``."""

    def __init__(self, module):
        super().__init__(LqrTask(), module)

    def network(self, example=None):
        return Network(self.module, (torch.eye(3),), ("x",), ("y",), {"x": {0: "batch"}})


class WrongConstant(nn.Module):
    """Captured with another constant than it computes with."""

    def forward(self, x):
        return x * (3.003 if torch.compiler.is_exporting() else 3.0)


class FixedNumber(nn.Module):
    def forward(self, x):
        return torch.stack([x[row] * row for row in range(int(x.shape[0]))])


class Constant(nn.Module):
    def forward(self, x):
        return x * 3.0


def run_onnx(path, names, inputs):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, (each.numpy() for each in inputs), strict=True)))


# -- every task ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("task", ["lqr", "text", "driving", "social", "vln", "vpr"])
def test_the_shared_network_of_a_run_comes_back(runs, tmp_path, task):
    """Of another number of examples than the check's, and of more steps, nodes or words."""
    model = fedapps.load(runs(task).path, "fedavg")
    network = model.network()
    exported = fedapps.export(model, "onnx", tmp_path / "onnx")
    program = fedapps.export(model, "torch", tmp_path / "torch")
    assert max(exported.written.difference.absolute, program.written.difference.absolute) < 1e-5
    assert (network.outside or "no part outside") in f"{exported} no part outside"
    rows = torch.arange(5) % len(network.inputs[0])
    inputs = [each[rows] for each in network.inputs]
    with torch.no_grad():
        wanted = network.module(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for outputs in (
        run_onnx(tmp_path / "onnx" / "model.onnx", network.input_names, inputs),
        torch.export.load(tmp_path / "torch" / "model.pt2").module()(*inputs),
    ):
        for output, true in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(output), true.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method"), [("social", "fedweit"), ("vpr", "local")])
def test_the_personal_network_of_a_node_comes_back(runs, tmp_path, task, method):
    node = min(last_evaluation(runs(task), method))
    model = fedapps.load(runs(task).path, method, node)
    assert fedapps.export(model, "onnx", tmp_path / "model").written.difference.absolute < 1e-5


NETWORKS = {
    "images": {"model": "resnet8", "norm": "batch", "normalise": "image"},
    "driving": {"hidden": 4, "latent": 2, "samples": 2, "posterior": "cvae", "context": "none"},
    "social": {"hidden": 4, "layers": 1, "graph": "relational"},
    "vln": {"hidden": 8, "word_width": 4, "action_width": 4, "vocabulary_size": 20, "stage": "speaker"},
}


@pytest.mark.slow
@pytest.mark.parametrize("task", NETWORKS)
def test_other_networks_of_a_task_come_back(tmp_path, task):
    """A CVAE with a learned prior, a graph network with relations, the words of a speaker, and batch normalisation."""
    kind = task_class(task)
    chosen = kind(kind.Options(**NETWORKS[task]))
    torch.manual_seed(0)
    model = trained_class(chosen)(chosen, chosen.build_model(), {})
    assert fedapps.export(model, "onnx", tmp_path / "model").written.difference.absolute < 1e-5


@pytest.mark.slow
def test_a_transformer_with_private_digits_comes_back(tmp_path):
    """Its table of words has two parts, which the library transformers does not know."""
    encoder = encoder_folder(tmp_path / "encoder", "bert")
    tokenizer = json.loads((encoder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {word if word != "two" else "2": i for word, i in tokenizer["model"]["vocab"].items()}
    (encoder / "tokenizer.json").write_text(json.dumps(tokenizer))
    private = PrivateParameters(("embedding.word_embeddings.private",))
    options = TextTask.Options(model=str(encoder), max_length=6, labels="up,down", dataset="")
    task = TextTask(options).under(private)
    torch.manual_seed(0)
    model = TextTrained(task, task.build_model(), task.facts(None), private=private)
    assert isinstance(model.module.embedding.word_embeddings, SplitEmbedding)
    for format in ("onnx", "huggingface"):
        assert fedapps.export(model, format, tmp_path / format).written.difference.absolute < 1e-5


PREDICT = """
import json, sys
import numpy as np, onnxruntime

folder, texts = sys.argv[1], json.loads(sys.argv[2])
facts = json.load(open(f"{folder}/config.json", encoding="utf-8"))["facts"]
number = {word: place for place, word in enumerate(facts["words"])}
rows = [[number.get(word, 1) for word in text.split()] for text in texts]
length = np.array([len(row) for row in rows])
ids = np.array([row + [0] * (length.max() - len(row)) for row in rows], dtype=np.int32)
(logits,) = onnxruntime.InferenceSession(f"{folder}/model.onnx").run(None, {"ids": ids, "length": length})
shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
assert not {"fedapps", "torch"} & set(sys.modules)
print(json.dumps({"names": [facts["classes"][row.argmax()] for row in logits], "shares": shares.tolist()}))
"""


@pytest.mark.slow
@pytest.mark.subprocesses
def test_another_process_predicts_with_onnxruntime_alone(runs, tmp_path):
    model = fedapps.load(runs("text").path, "fedvocab", "client-001")
    fedapps.export(model, "onnx", tmp_path / "model")
    words = model.facts["words"][2:]
    texts = [" ".join(words[:5]), "neverseen", " ".join(words[3:9])]
    command = [sys.executable, "-I", "-c", PREDICT, str(tmp_path / "model"), json.dumps(texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, expected = json.loads(done.stdout), model.predict(texts)
    assert tuple(found["names"]) == expected.names
    np.testing.assert_allclose(found["shares"], expected.probabilities, atol=1e-6)
    session = onnxruntime.InferenceSession(tmp_path / "model" / "model.onnx")
    sizes = {each.name: each.shape for each in (*session.get_inputs(), *session.get_outputs())}
    assert sizes == {"ids": ["batch", "words"], "length": ["batch"], "logits": ["batch", 4]}


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("format", [pytest.param("onnx", marks=pytest.mark.slow), "torch"])
def test_a_network_that_differs_is_refused_and_nothing_is_left(tmp_path, format):
    model = Tripled(WrongConstant())
    with pytest.raises(ValueError, match=r"differs from the model: by 0\.003, which is 0\.001 of the largest output"):
        export_model(model, format, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    tolerated = export_model(model, format, tmp_path / "model", tolerance=0.0011)
    assert tolerated.written.difference.relative == pytest.approx(0.001, rel=1e-4)


def test_a_network_that_fixes_the_number_of_examples_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot be captured as a program: .*batch|cannot be captured as a program"):
        export_model(Tripled(FixedNumber()), "torch", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_bad_input_is_refused_before_work_starts(tmp_path, monkeypatch):
    model = Tripled(Constant())
    monkeypatch.setattr(model, "network", lambda example: pytest.fail("work has started"))
    with pytest.raises(ValueError, match="format = 'tflite': must be one of 'onnx', 'torch', 'safetensors', 'hugg"):
        fedapps.export(model, "tflite", tmp_path / "model")
    with pytest.raises(ValueError, match="tolerance = nan: must be at least 0"):
        fedapps.export(model, "onnx", tmp_path / "model", tolerance=float("nan"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ValueError, match="is not empty: choose another folder"):
        fedapps.export(model, "onnx", tmp_path / "full")
    with pytest.raises(ValueError, match="none of the library transformers; use 'onnx', 'torch' or 'safetensors'"):
        fedapps.export(model, "huggingface", tmp_path / "model")
    monkeypatch.setattr("fedapps.base.errors.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"'onnx' needs the package onnx, .* pip install 'fedapps\[export\]'"):
        fedapps.export(model, "onnx", tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_the_command_refuses_a_full_folder_before_it_loads_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("fedapps.cli.model_commands.load_model", lambda *_: pytest.fail("work has started"))
    (tmp_path / "file").touch()
    assert main(["export", "run", "--format", "onnx", "--output", str(tmp_path)]) != 0
    assert "is not empty: choose another folder" in capsys.readouterr().err


# -- the comparison --------------------------------------------------------------------------------------------


def test_a_difference_by_hand():
    """Outputs are 3 on the diagonal of the first and the third inputs, so 0.3 more is a tenth."""
    network = Tripled(Constant()).network()
    found = difference(network, lambda inputs: [inputs[0].numpy() * 3.0 + np.float32(0.3)])
    assert found.absolute == pytest.approx(0.3, rel=1e-6)
    assert found.relative >= 0.1
    found.check(0.2, "it")
    for bad in (np.nan, np.inf):
        assert difference(network, lambda inputs, bad=bad: [inputs[0].numpy() * bad]).absolute == np.inf
    assert difference(network, lambda inputs: [inputs[0].numpy()[:0]]).absolute == np.inf
    assert difference(network, lambda inputs: [inputs[0].double().numpy() * 3]).absolute == np.inf
    with pytest.raises(ValueError, match="nothing is kept"):
        Difference(float("nan"), float("nan")).check(1.0, "it")


def test_infinite_outputs_come_back_as_they_are():
    class Masked(nn.Module):
        def forward(self, x):
            return x.masked_fill(x == 0, -torch.inf)

    network = Tripled(Masked()).network()
    assert difference(network, lambda inputs: [network.module(*inputs).numpy()]) == Difference(0.0, 0.0)


@settings(max_examples=25)
@given(st.integers(1, 4), st.integers(1, 5), st.data())
def test_checked_inputs_stay_in_the_ranges_of_the_example(count, size, data):
    numbers = st.lists(st.lists(st.integers(0, 9), min_size=size, max_size=size), min_size=count, max_size=count)
    ids = torch.tensor(data.draw(numbers))
    mask = torch.arange(size)[None] < 1 + ids[:, :1] % size
    dynamic = {"ids": {0: "batch", 1: "words"}, "mask": {0: "batch", 1: "words"}}
    network = Network(nn.Identity(), (ids, mask), ("ids", "mask"), ("y",), dynamic)
    first, alone, many = checked_inputs(network)
    assert first == (ids, mask)
    assert torch.equal(alone[0], ids[:1])
    assert many[0].shape == many[1].shape == (2 * count + 1, size + 2)
    assert (many[0][:, :size] >= ids.amin(0)).all()
    assert (many[0][:, :size] <= ids.amax(0)).all()
    assert not many[0][:, size:].any()
    rows = {tuple(row) for row in mask.tolist()}
    assert {tuple(row[:size]) for row in many[1].tolist()} <= rows


# -- LSTM layers -----------------------------------------------------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 3, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        outputs, (hidden, cell) = self.lstm(x)
        return outputs, hidden.transpose(0, 1), cell.transpose(0, 1)


@pytest.mark.slow
def test_an_lstm_is_one_operation_and_reads_any_number_of_steps(tmp_path):
    import onnx

    torch.manual_seed(0)
    module = Recurrent().eval()
    inputs = (torch.randn(3, 4, 2),)
    network = Network(module, inputs, ("x",), ("outputs", "hidden", "cell"), {"x": {0: "batch", 1: "steps"}})
    targets = [str(node.target) for node in captured(network).graph.nodes]
    assert targets.count("aten.lstm.input") == 1
    assert write_torch(network, tmp_path / "model.pt2").relative < 1e-6
    assert write_onnx(network, tmp_path / "model.onnx").relative < 1e-5
    operations = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert operations.count("LSTM") == 2
    assert "Loop" not in operations
    x = torch.randn(2, 17, 2)
    with torch.no_grad():
        wanted = module(x)
    for output, true in zip(run_onnx(tmp_path / "model.onnx", ("x",), [x]), wanted, strict=True):
        np.testing.assert_allclose(output, true.numpy(), atol=1e-5)


def test_a_capture_leaves_lstms_as_they_were():
    torch.manual_seed(0)
    module = Recurrent().eval()
    x = torch.randn(2, 5, 2)
    operation = torch.ops.aten.lstm.input
    before = dict(operation.py_kernels)
    captured(Network(module, (x,), ("x",), ("a", "b", "c"), {"x": {0: "batch"}}))
    assert operation.py_kernels == before
    assert torch.export.export(module, (x,)).module()(x)[0].shape == (2, 5, 6)


def test_a_program_has_no_numbers_of_the_example_and_no_paths(tmp_path):
    """The example may be a node's own data."""
    network = Network(Constant(), (torch.full((2, 3), 7.0),), ("x",), ("y",), {"x": {0: "batch"}})
    write_torch(network, tmp_path / "model.pt2")
    write_onnx(network, tmp_path / "model.onnx")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        content = b"".join(archive.read(name) for name in archive.namelist())
    for program in (content, (tmp_path / "model.onnx").read_bytes()):
        assert b".py" not in program
    (arguments, _) = torch.export.load(tmp_path / "model.pt2").example_inputs
    assert not torch.stack(torch.utils._pytree.tree_leaves(arguments)).any()


# -- the other formats -----------------------------------------------------------------------------------------


def test_a_model_folder_needs_no_run(runs, tmp_path):
    model = fedapps.load(runs("lqr").path, "apfl", "robot-01")
    exported = fedapps.export(model, "safetensors", tmp_path / "model")
    assert StoredModel.is_in(exported.folder)
    read = fedapps.load(exported.folder)
    assert all(map(torch.equal, read.module.parameters(), model.module.parameters()))
    assert read.origin == model.origin
    again = fedapps.export(read, "safetensors", tmp_path / "again")
    assert (again.folder / "README.md").read_text() == (exported.folder / "README.md").read_text()


@pytest.mark.parametrize("kind", ["distilbert", pytest.param("bert", marks=pytest.mark.slow)])
def test_a_transformer_is_one_of_the_library_transformers(tmp_path, kind):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    encoder = encoder_folder(tmp_path / "encoder", kind)
    task = TextTask(TextTask.Options(model=str(encoder), max_length=6, labels="up,down,left", dataset=""))
    torch.manual_seed(0)
    model = TextTrained(task, task.build_model(), task.facts(None))
    exported = fedapps.export(model, "huggingface", tmp_path / "model")
    assert exported.written.difference.relative < 1e-5
    texts = ["one two", "threes", "one two three one two three one"]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        logits = classifier(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits
    expected = model.predict(texts)
    np.testing.assert_allclose(logits.softmax(dim=1).numpy(), expected.probabilities, atol=1e-6)
    assert tuple(classifier.config.id2label[int(label)] for label in logits.argmax(dim=1)) == expected.names


def test_data_show_the_inputs_of_a_task_that_does_not_describe_them(runs, tmp_path):
    run = fedapps.load(runs("lqr").path, "fedavg", "robot-01")
    model = TrainedModel(run.task, run.module)
    with pytest.raises(ValueError, match="does not describe its inputs: give data"):
        export_model(model, "torch", tmp_path / "model")
    exported = export_model(model, "torch", tmp_path / "model", data=run.own)
    config = json.loads((exported.folder / "config.json").read_text())
    assert config["inputs"] == [{"name": "input", "dtype": "float32", "shape": ["batch", 3]}]
    assert config["outputs"] == ["output_0", "output_1"]


def test_the_command_says_what_it_wrote(runs, tmp_path, capsys):
    run, folder = str(runs("lqr").path), str(tmp_path / "model")
    given = ["export", run, "--method", "apfl", "--node", "robot-01", "--format", "torch", "--output", folder]
    assert main([*given, "--tolerance", "1e-6", "--licence", "mit"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out == [f"{folder}: model.pt2, config.json, README.md", "run back, the largest absolute difference is 0"]
    assert main(given) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main([*given[:-1], f"{folder}-2", "--index", run]) == 2
    assert "task 'lqr' has no index of places" in capsys.readouterr().err


def test_every_format_is_in_the_help(capsys):
    given = command_parser().parse_args(["export", "run", "--format", "onnx", "--output", "model"])
    assert given.tolerance == TOLERANCE == inspect.signature(fedapps.export).parameters["tolerance"].default
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in FORMATS)
