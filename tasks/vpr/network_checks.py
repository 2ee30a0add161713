"""Whether weights and images fit a network, found out before training."""

from pathlib import Path

import torch

from tasks.base import DataError

from .features import map_shape
from .images import Size
from .networks import place_network


def check_network(backbone: str, pooling: str, weights: Path | None, size: Size) -> None:
    """Raise :class:`DataError` where a file of weights or images of ``size`` do not fit; nothing is drawn or kept."""
    with torch.device("meta"):
        network = place_network(backbone, pooling, weights=weights)
        try:
            map_shape(network, *size)
        except ValueError as error:
            raise DataError(
                f"vpr.height = {size[0]}, vpr.width = {size[1]}: too small for vpr.backbone = {backbone!r}; "
                "raise them, or take a backbone of a finer stride (squeezenet1_1-stride8)"
            ) from error
