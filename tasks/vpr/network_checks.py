"""Checks, before training, that weights and image size fit the network."""

import torch
from fedapps.tasks.base import DataError

from .networks import network_of
from .options import Options


def check_network(options: Options) -> None:
    """Check the network of ``options`` without allocating it.

    Raises
    ------
    DataError
        The backbone cannot be divided, the weights do not fit it, or images are too small for it.
    """
    height, width = options.size
    with torch.device("meta"), torch.no_grad():
        network = network_of(options).eval()
        try:
            network(torch.zeros(1, 3, height, width, dtype=torch.uint8))
        except RuntimeError as error:
            raise DataError(
                f"vpr.height = {height}, vpr.width = {width}: too small for vpr.backbone = {options.backbone!r}; "
                "increase them, or use a backbone with a smaller stride (squeezenet1_1-stride8)"
            ) from error
