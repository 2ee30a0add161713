"""Checks, before training, that weights and image size fit the network."""

from pathlib import Path

import torch

from tasks.base import DataError

from .features import map_shape
from .images import Size
from .networks import place_network


def check_network(backbone: str, pooling: str, weights: Path | None, size: Size) -> None:
    """Check a network without allocating it.

    Raises
    ------
    DataError
        The weights do not fit the network, or images of ``size`` are too small for it.
    """
    with torch.device("meta"):
        network = place_network(backbone, pooling, weights=weights)
        try:
            map_shape(network, *size)
        except ValueError as error:
            raise DataError(
                f"vpr.height = {size[0]}, vpr.width = {size[1]}: too small for vpr.backbone = {backbone!r}; "
                "increase them, or use a backbone with a smaller stride (squeezenet1_1-stride8)"
            ) from error
