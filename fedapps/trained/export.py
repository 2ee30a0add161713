"""Export a trained model: ``fedapps export``.

The folder has the model in one format, what its inputs need, and a model card. It is written completely or not at all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedapps.base.atomic import whole_folder
from fedapps.tasks.base import NodeData
from fedapps.tasks.trained import TrainedModel

from .card import CARD, card
from .formats import Format, HuggingFace, Onnx, Request, Safetensors, TorchProgram, Written
from .programs import TOLERANCE

FORMATS: Mapping[str, type[Format]] = {kind.name: kind for kind in (Onnx, TorchProgram, Safetensors, HuggingFace)}
#: What a card says if nobody states a licence.
UNKNOWN_LICENCE = "unknown"


@dataclass(frozen=True)
class Export:
    """An exported model.

    Parameters
    ----------
    folder : Path
    written : Written
        Its files, and how far the network is from the model when it is run back.
    """

    folder: Path
    written: Written

    def __str__(self) -> str:
        lines = [f"{self.folder}: {', '.join([*self.written.files, CARD])}"]
        if self.written.difference:
            lines.append(f"run back, the largest absolute difference is {self.written.difference.absolute:.3g}")
        if self.written.network and self.written.network.outside:
            lines.append(self.written.network.outside)
        return "\n".join(lines)


def export_model(
    model: TrainedModel,
    format: str,
    folder: str | Path,
    *,
    tolerance: float = TOLERANCE,
    licence: str = UNKNOWN_LICENCE,
    example: NodeData | None = None,
) -> Export:
    """Export a model; :func:`fedapps.api.export` describes it."""
    if format not in FORMATS:
        raise ValueError(f"format = {format!r}: must be one of {', '.join(map(repr, FORMATS))}")
    if not tolerance >= 0:
        raise ValueError(f"tolerance = {tolerance}: must be at least 0")
    path, chosen = Path(folder).expanduser(), FORMATS[format]()
    chosen.check()
    with whole_folder(path) as unfinished:
        written = chosen.write(Request(model, unfinished, tolerance, example or model.own))
        (unfinished / CARD).write_text(card(model, chosen, written, licence), encoding="utf-8")
    return Export(path, written)
