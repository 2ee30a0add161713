"""FedBN: the normalisation layers stay on the nodes."""

from functools import lru_cache
from glob import escape
from typing import TYPE_CHECKING

from fedapps.tasks.profiles import PrivateParameters

from fedapps.methods.base import Method

if TYPE_CHECKING:
    from fedapps.tasks.base import Task


class FedBN(Method):
    """FedAvg over everything but the parameters and buffers of normalisation modules."""

    name = "fedbn"
    line = "FedBN: FedAvg, but parameters and statistics of normalisation layers stay on the nodes"
    citation = (
        "Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021, "
        "https://arxiv.org/abs/2102.07623"
    )
    needs_model = True

    def private(self, task: "Task") -> PrivateParameters:
        return PrivateParameters(tuple(map(escape, normalisation_names(task))))


@lru_cache(maxsize=32)
def normalisation_names(task: "Task") -> tuple[str, ...]:
    """The parameters and buffers of the normalisation modules of a task's model, in the order of its ``state_dict``.

    They are batch, instance, group, layer and RMS normalisation of ``torch.nn``, and subclasses of these.
    """
    import torch
    from torch import nn

    kinds = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
    with torch.random.fork_rng(devices=[]):  # only module types and names matter: leave the caller's draws alone
        model = task.build_model()
    prefixes = tuple(f"{name}." if name else "" for name, module in model.named_modules() if isinstance(module, kinds))
    return tuple(name for name in model.state_dict() if name.startswith(prefixes))
