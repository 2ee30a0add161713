"""The forecaster: a conditional variational autoencoder of recurrent cells (APFL, Section IV-B, Figure 6).

The encoder reads the history of both cars and a candidate future of the robot, and returns a Gaussian over a latent
variable z. The decoder computes the human's controls from z and the robot's future. It is not autoregressive (the
output of a step is no input of the next), so each LSTM runs in a single call. Forecasts are scored on held-out windows,
without simulation.
"""

from typing import NamedTuple

import torch
from fedapps.tasks.base import Batch, Metrics
from torch import Tensor, nn

from .options import Options
from .setting import Setting

TIMES = (5, 10, 15)
"""Steps ahead at which the prediction error is reported."""


class Gaussian(NamedTuple):
    """A diagonal Gaussian with ``mean`` and ``log_variance``, both ``[..., latent]``."""

    mean: Tensor
    log_variance: Tensor

    def at(self, noise: Tensor) -> Tensor:
        """Map standard normal ``noise`` to a sample; shapes broadcast."""
        return self.mean + noise * torch.exp(0.5 * self.log_variance)


def kl_divergence(posterior: Gaussian, prior: Gaussian | None = None) -> Tensor:
    """Return KL(posterior || prior) in nats, summed over latent dimensions, ``[...]``. The default prior is N(0, I)."""
    if prior is None:
        prior = Gaussian(torch.zeros_like(posterior.mean), torch.zeros_like(posterior.mean))
    gap = posterior.log_variance - prior.log_variance
    shift = (posterior.mean - prior.mean) ** 2 * torch.exp(-prior.log_variance)
    return 0.5 * (torch.exp(gap) + shift - 1.0 - gap).sum(dim=-1)


class Forecaster(nn.Module):
    """The network.

    Parameters
    ----------
    features : int
        Numbers per step of history; the last is the mask.
    hidden : int
        Units of each LSTM.
    latent : int
        Dimension of z.
    posterior : str
        ``"literal"``: z is inferred from history and robot future, with prior N(0, I). ``"cvae"``: training infers z
        from the human's future as well, and the literal encoder is the learned prior.
    context : bool
        Whether every step of the decoder receives the latest state.
    """

    def __init__(self, features: int, *, hidden: int, latent: int, posterior: str, context: bool) -> None:
        super().__init__()
        self.latent = latent
        self.context = context
        self.past = nn.LSTM(features, hidden, batch_first=True)
        self.plan = nn.LSTM(2, hidden, batch_first=True)
        self.encoder = nn.Linear(2 * hidden, 2 * latent)
        if posterior == "cvae":
            self.outcome = nn.LSTM(2, hidden, batch_first=True)
            self.recognition = nn.Linear(3 * hidden, 2 * latent)
        self.posterior = posterior
        self.decoder = nn.LSTM(latent + 2 + (features - 1 if context else 0), hidden, batch_first=True)
        self.controls = nn.Linear(hidden, 2)

    def read_past(self, history: Tensor) -> Tensor:
        """Summarise ``history [N, T, features]`` as ``[N, hidden]``."""
        return _last(self.past, history)

    def infer(self, summary: Tensor, robot_future: Tensor) -> Gaussian:
        """Return q(z | history, robot future) from ``summary [N, hidden]`` and ``robot_future [N, H, 2]``."""
        return _gaussian(self.encoder, summary, _last(self.plan, robot_future))

    def decode(self, z: Tensor, robot_future: Tensor, newest: Tensor) -> Tensor:
        """Return the human's standardised controls ``[N, H, 2]`` in (-1, 1).

        Parameters
        ----------
        z : Tensor [N, latent]
            The latent variable.
        robot_future : Tensor [N, H, 2]
            The robot's standardised controls.
        newest : Tensor [N, features]
            The last row of the history.
        """
        constant = torch.cat((z, newest[:, :-1]), dim=-1) if self.context else z
        repeated = constant[:, None].expand(-1, robot_future.shape[1], -1)
        hidden, _ = self.decoder(torch.cat((repeated, robot_future), dim=-1))
        return torch.tanh(self.controls(hidden))

    def forward(
        self, history: Tensor, robot_future: Tensor, human_future: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the two parts of the negative ELBO for each of N windows, both ``[N]``.

        The first is the mean squared error of the standardised controls at the sample of z given by the standard normal
        ``noise [N, latent]``, the second the KL divergence in nats.
        """
        summary = self.read_past(history)
        if self.posterior == "cvae":
            robot = _last(self.plan, robot_future)
            prior = _gaussian(self.encoder, summary, robot)
            q = _gaussian(self.recognition, summary, robot, _last(self.outcome, human_future))
            divergence = kl_divergence(q, prior)
        else:
            q = self.infer(summary, robot_future)
            divergence = kl_divergence(q)
        predicted = self.decode(q.at(noise), robot_future, history[:, -1])
        return ((predicted - human_future) ** 2).mean(dim=(1, 2)), divergence

    def forecast(self, history: Tensor, plans: Tensor, noise: Tensor) -> Tensor:
        """Return the human's standardised controls ``[S, C, K, H, 2]`` for every plan and every sample.

        Parameters
        ----------
        history : Tensor [S, T, features]
            The history, which is encoded once.
        plans : Tensor [S, C, H, 2]
            Candidate futures of the robot.
        noise : Tensor [S, K, latent]
            Standard normal numbers. All plans share them, so that plans are compared under the same samples.
        """
        sessions, count, horizon, _ = plans.shape
        draws = noise.shape[1]
        summary = self.read_past(history).repeat_interleave(count, dim=0)
        mean, log_variance = self.infer(summary, plans.flatten(0, 1))
        spread = Gaussian(mean.view(sessions, count, 1, -1), log_variance.view(sessions, count, 1, -1))
        z = spread.at(noise[:, None]).flatten(0, 2)
        repeated = plans[:, :, None].expand(-1, -1, draws, -1, -1).flatten(0, 2)
        newest = history[:, -1].repeat_interleave(count * draws, dim=0)
        return self.decode(z, repeated, newest).view(sessions, count, draws, horizon, 2)


def _last(lstm: nn.LSTM, sequence: Tensor) -> Tensor:
    _, (hidden, _) = lstm(sequence)
    return torch.as_tensor(hidden[0])


def _gaussian(layer: nn.Linear, *summaries: Tensor) -> Gaussian:
    mean, log_variance = layer(torch.cat(summaries, dim=-1)).chunk(2, dim=-1)
    return Gaussian(mean, log_variance.clamp(-10.0, 10.0))


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
    straight = constant_velocity(batch, options, split)
    noise = torch.randn(len(human), options.samples, model.latent, device=device)
    controls = model.forecast(batch["history"], batch["robot_future"][:, None], noise)[:, 0]
    ahead = setting.roll_out(human[:, None], controls)[..., 1].mean(dim=1)
    for steps in TIMES:
        if steps <= options.horizon:
            truth, seconds = batch["human_path"][:, steps - 1, 1], steps / 10
            metrics[f"{split}.error_{seconds}s"] = float(((ahead[:, steps - 1] - truth) ** 2).mean())
            metrics[f"{split}.constant_velocity_{seconds}s"] = straight[f"{split}.error_{seconds}s"]
    return metrics


def constant_velocity(windows: Batch, options: Options, split: str) -> dict[str, float]:
    """Return the metrics ``<split>.*`` of :func:`scores` for a human that keeps its velocity.

    Its controls are zero, and they are certain: ``elbo`` is the reconstruction error.
    """
    error = float((windows["human_future"] ** 2).mean())
    metrics = {f"{split}.elbo": error, f"{split}.reconstruction": error}
    for steps in TIMES:
        if steps <= options.horizon:
            seconds = steps / 10
            straight = windows["current"][:, 1, 3] * seconds
            metrics[f"{split}.error_{seconds}s"] = float(
                ((straight - windows["human_path"][:, steps - 1, 1]) ** 2).mean()
            )
    return metrics
