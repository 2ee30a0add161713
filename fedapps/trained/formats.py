"""The formats of ``fedapps export``: one small class each."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from fedapps.base.errors import need
from fedapps.tasks.answers import Network
from fedapps.tasks.base import NodeData
from fedapps.tasks.model_folder import CONFIG, FILES, WEIGHTS
from fedapps.tasks.trained import TrainedModel

from .programs import Difference, difference, write_onnx, write_torch

FILES_HELP = "further files that inputs need, such as a tokenizer"


@dataclass(frozen=True)
class Written:
    """What a format wrote into a folder.

    Parameters
    ----------
    files : mapping of str to str
        What each file has, by its name.
    use : str
        Python code that uses the files, without fedapps where the format needs none.
    network : Network, optional
        The exported network, of formats that have one.
    difference : Difference, optional
        How far it is from the model when it is run back.
    """

    files: Mapping[str, str]
    use: str
    network: Network | None = None
    difference: Difference | None = None


@dataclass(frozen=True)
class Request:
    """What is asked of a format.

    Parameters
    ----------
    model : TrainedModel
    folder : Path
        An empty folder.
    tolerance : float
        The largest accepted difference, relative to the largest absolute value of an output.
    example : NodeData, optional
        For tasks that do not describe their inputs.
    """

    model: TrainedModel
    folder: Path
    tolerance: float
    example: NodeData | None = field(default=None, repr=False)


class Format(ABC):
    """A format of exported models."""

    name: ClassVar[str]
    #: What Hugging Face calls the library that reads the format.
    library: ClassVar[str]
    #: Packages that must be installed, all of the extra "export".
    needs: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        """Raise :class:`DataError` if a package is missing."""
        for package in self.needs:
            need(package, "export", f"the format {self.name!r}")

    @abstractmethod
    def write(self, request: Request) -> Written:
        """Write the model. Raise ``ValueError`` if it has no such form, or if the file differs from the model."""


class Onnx(Format):
    """ONNX, run back in onnxruntime."""

    name = "onnx"
    library = "onnx"
    needs = ("onnx", "onnxscript", "onnxruntime")

    def write(self, request: Request) -> Written:
        network = request.model.network(request.example)
        compared = write_onnx(network, request.folder / "model.onnx")
        compared.check(request.tolerance, "the ONNX model, run in onnxruntime,")
        described = _write_description(request, self.name, network)
        feed = ", ".join(f'"{name}": {name}' for name in network.input_names)
        use = (
            'import onnxruntime\n\nsession = onnxruntime.InferenceSession("model.onnx")\n'
            f"{_outputs(network)} = session.run(None, {{{feed}}})"
        )
        return Written({"model.onnx": "the network"} | described, use, network, compared)


class TorchProgram(Format):
    """A program of ``torch.export``, run back."""

    name = "torch"
    library = "pytorch"

    def write(self, request: Request) -> Written:
        network = request.model.network(request.example)
        compared = write_torch(network, request.folder / "model.pt2")
        compared.check(request.tolerance, "the program of torch.export")
        described = _write_description(request, self.name, network)
        use = (
            'import torch\n\nnetwork = torch.export.load("model.pt2").module()\n'
            f"{_outputs(network)} = network({', '.join(network.input_names)})"
        )
        return Written({"model.pt2": "the network"} | described, use, network, compared)


class Safetensors(Format):
    """The model folder."""

    name = "safetensors"
    library = "fedapps"

    def write(self, request: Request) -> Written:
        request.model.write(request.folder)
        use = 'import fedapps\n\nmodel = fedapps.load(".")'
        files = {WEIGHTS: "all weights", CONFIG: "task, options, what inputs need, and origin"}
        return Written(files | ({f"{FILES}/": FILES_HELP} if (request.folder / FILES).is_dir() else {}), use)


class HuggingFace(Format):
    """What ``save_pretrained`` of the library transformers writes."""

    name = "huggingface"
    library = "transformers"

    def write(self, request: Request) -> Written:
        pretrained = request.model.pretrained()
        if pretrained is None:
            raise ValueError(
                f"format = 'huggingface': the model of task {request.model.task.name!r} is none of the library "
                "transformers; use 'onnx', 'torch' or 'safetensors'"
            )
        pretrained.model.save_pretrained(request.folder)
        pretrained.tokenizer.save_pretrained(request.folder)
        kind = type(pretrained.model)
        back = kind.from_pretrained(request.folder).eval()
        compared = difference(request.model.network(), lambda inputs: pretrained.run(back, inputs))
        compared.check(request.tolerance, f"the {kind.__name__} of transformers")
        use = (
            "from transformers import AutoModelForSequenceClassification, AutoTokenizer\n\n"
            'tokenizer = AutoTokenizer.from_pretrained(".")\n'
            'model = AutoModelForSequenceClassification.from_pretrained(".")'
        )
        return Written({path.name: "" for path in sorted(request.folder.iterdir())}, use, difference=compared)


def _outputs(network: Network) -> str:
    return ", ".join(network.output_names) + ("," if len(network.output_names) == 1 else "")


def _write_description(request: Request, name: str, network: Network) -> dict[str, str]:
    """Write ``config.json``: what inputs and outputs are, and what inputs need, such as the words of a vocabulary."""
    model, pairs = request.model, zip(network.inputs, network.input_names, strict=True)
    content = {
        "format": name,
        "task": model.task.name,
        "inputs": [described(example, label, network) for example, label in pairs],
        "outputs": list(network.output_names),
        "outside": network.outside,
        "facts": dict(model.facts),
    }
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    (request.folder / CONFIG).write_text(text, encoding="utf-8")
    files = model.write_files(request.folder)
    return {CONFIG: "inputs and outputs, and what inputs need"} | ({f"{FILES}/": FILES_HELP} if files else {})


def described(example: Tensor, name: str, network: Network) -> dict[str, Any]:
    """The name, type and shape of an input; a size that may differ is given by its label."""
    labels = network.dynamic.get(name, {})
    shape = [labels.get(dim, size) for dim, size in enumerate(example.shape)]
    return {"name": name, "dtype": str(example.dtype).removeprefix("torch."), "shape": shape}
