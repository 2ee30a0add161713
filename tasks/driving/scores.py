"""Metrics of a forecaster on held-out windows, without simulation."""

import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor

from .forecaster import Forecaster
from .options import Options
from .setting import Setting

TIMES = (5, 10, 15)
"""Steps ahead at which the prediction error is reported."""


def elbo_parts(model: Forecaster, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the reconstruction error and KL of each window, ``[N]`` each, at one sample of z from torch's global
    generator.
    """
    history = batch["history"]
    noise = torch.randn(len(history), model.latent, device=history.device)
    parts: tuple[Tensor, Tensor] = model(history, batch["robot_future"], batch["human_future"], noise)
    return parts


@torch.no_grad()
def scores(model: Forecaster, setting: Setting, options: Options, windows: Batch, split: str) -> Metrics:
    """Return the metrics ``<split>.*`` of held-out windows, computed on the model's device; empty without windows.

    ``elbo`` is the training loss (reconstruction + weight x KL); ``reconstruction`` and ``kl`` are its parts; all are
    means over ``samples`` draws of z. ``error_<t>s`` is the squared error along the road, in m², of the mean predicted
    position t seconds ahead, with z drawn without the human's future. ``constant_velocity_<t>s`` is the same for a
    human that keeps its velocity.
    """
    if not len(windows["history"]):
        return {}
    device = next(model.parameters()).device
    batch = {name: tensor.to(device) for name, tensor in windows.items()}
    draws = [torch.stack([part.mean() for part in elbo_parts(model, batch)]) for _ in range(options.samples)]
    reconstruction, kl = torch.stack(draws).mean(dim=0).tolist()
    metrics: Metrics = {
        f"{split}.elbo": reconstruction + options.kl_weight * kl,
        f"{split}.reconstruction": reconstruction,
        f"{split}.kl": kl,
    }
    human = batch["current"][:, 1]
    noise = torch.randn(len(human), options.samples, model.latent, device=device)
    controls = model.forecast(batch["history"], batch["robot_future"][:, None], noise)[:, 0]
    ahead = setting.roll_out(human[:, None], controls)[..., 1].mean(dim=1)
    for steps in TIMES:
        if steps <= options.horizon:
            truth, seconds = batch["human_path"][:, steps - 1, 1], steps / 10
            straight = human[:, 3] * seconds
            metrics[f"{split}.error_{seconds}s"] = float(((ahead[:, steps - 1] - truth) ** 2).mean())
            metrics[f"{split}.constant_velocity_{seconds}s"] = float(((straight - truth) ** 2).mean())
    return metrics
