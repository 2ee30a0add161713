"""The forecaster of the human, other predictors, and the robot's planner before the lane change.

The forecaster is a conditional variational autoencoder of recurrent cells (APFL, Section IV-B, Figure 6). The encoder
reads the history of both cars and a candidate future of the robot, and returns a Gaussian over a latent variable z. The
decoder computes the human's controls from z and the robot's future. It is not autoregressive (the output of a step is
no input of the next), so each LSTM runs in a single call. Forecasts are scored on held-out windows, without simulation.

The planner (phase 1 of Section IV-B) is model-predictive control over candidate plans. Every :data:`TAU` steps the
robot chooses the plan with the lowest cost, summed over the horizon and averaged over the forecasts of the human. The
robot's own dynamics are known. Because the 9^20 control sequences are too many, the candidates are sequences that end
in a held control.
"""

from itertools import product
from typing import NamedTuple, Protocol

import torch
from fedapps.tasks.base import Batch, Metrics
from fedapps.tasks.driving.world.sessions import GRAY, HUMAN, ROBOT, Observation, Policy
from fedapps.tasks.driving.world.traffic import DT, pair_cost
from torch import Tensor, nn

from .data import past
from .options import Options, Setting, to_motion

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
        """Return the human's standardised controls ``[N, H, 2]`` for each of N windows, and the KL divergence ``[N]``
        in nats.

        The controls are those at the sample of z that is given by the standard normal ``noise [N, latent]``. In
        training, z may be inferred from the human's future.
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
        return self.decode(q.at(noise), robot_future, history[:, -1]), divergence

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


def elbo_parts(model: Forecaster, setting: Setting, options: Options, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the :func:`reconstruction` error and KL of each window, ``[N]`` each, at one sample of z from torch's
    global generator.
    """
    history = batch["history"]
    noise = torch.randn(len(history), model.latent, device=history.device)
    controls, divergence = model(history, batch["robot_future"], batch["human_future"], noise)
    return reconstruction(setting, options, batch, controls), divergence


def reconstruction(setting: Setting, options: Options, batch: Batch, controls: Tensor) -> Tensor:
    """Return the error ``[N]`` of the human's standardised ``controls [N, H, 2]`` of N windows, by ``driving.loss``.

    ``"controls"`` is their mean squared error (APFL, Section IV-B), ``"path"`` the mean distance in m between the
    positions to which they lead and the human's.
    """
    if options.loss == "controls":
        return ((controls - batch["human_future"]) ** 2).mean(dim=(1, 2))
    now = batch["current"][:, HUMAN]
    path = setting.roll_out(now, controls)[..., :2] - now[:, None, :2]
    distance: Tensor = torch.linalg.vector_norm(path - batch["human_path"], dim=-1)
    return distance.mean(dim=-1)


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
    parts = [elbo_parts(model, setting, options, batch) for _ in range(options.samples)]
    error, kl = torch.stack([torch.stack([part.mean() for part in draw]) for draw in parts]).mean(dim=0).tolist()
    metrics: Metrics = {
        f"{split}.elbo": error + options.kl_weight * kl,
        f"{split}.reconstruction": error,
        f"{split}.kl": kl,
    }
    human = batch["current"][:, 1]
    straight = constant_velocity(setting, options, batch, split)
    noise = torch.randn(len(human), options.samples, model.latent, device=device)
    controls = model.forecast(batch["history"], batch["robot_future"][:, None], noise)[:, 0]
    ahead = setting.roll_out(human[:, None], controls)[..., 1].mean(dim=1)
    for steps in TIMES:
        if steps <= options.horizon:
            truth, seconds = batch["human_path"][:, steps - 1, 1], steps / 10
            metrics[f"{split}.error_{seconds}s"] = float(((ahead[:, steps - 1] - truth) ** 2).mean())
            metrics[f"{split}.constant_velocity_{seconds}s"] = straight[f"{split}.error_{seconds}s"]
    return metrics


def constant_velocity(setting: Setting, options: Options, windows: Batch, split: str) -> dict[str, float]:
    """Return the metrics ``<split>.*`` of :func:`scores` for a human that keeps its velocity.

    Its controls are zero, and they are certain: ``elbo`` is the reconstruction error.
    """
    error = float(reconstruction(setting, options, windows, torch.zeros_like(windows["human_future"])).mean())
    metrics = {f"{split}.elbo": error, f"{split}.reconstruction": error}
    for steps in TIMES:
        if steps <= options.horizon:
            seconds = steps / 10
            straight = windows["current"][:, 1, 3] * seconds
            metrics[f"{split}.error_{seconds}s"] = float(
                ((straight - windows["human_path"][:, steps - 1, 1]) ** 2).mean()
            )
    return metrics


TAU = 3
"""Steps between two plans."""
LANE_ROOM = 0.75
"""Metres by which a car 2 m wide may be off the middle of a lane 3.5 m wide and still be within it."""
GRAY_ROOM = 6.0
"""Minimum distance in metres along the road from the gray car, which the paper's cost does not include."""


class Predictor(Protocol):
    """Predicts the motions of the human car."""

    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        """Return human motions ``[S, C, K, H, 4]`` at the next H steps; C and K are 1 if the prediction does not depend
        on them.
        Parameters
        ----------
        motions : Tensor [S, t, cars, 4]
            The observed motions.
        controls : Tensor [S, t, cars, 2]
            The observed controls, not standardised.
        plans : Tensor [S, C, H, 2]
            The standardised controls that the robot considers.
        """


class HoldLastControl:
    """The human keeps its current control. The first data are collected with this predictor (APFL, Section IV-B)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting

    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        present = controls[:, -1, HUMAN] / controls.new_tensor(self.setting.control)
        held = present[:, None].expand(-1, plans.shape[2], -1)
        return self.setting.roll_out(motions[:, -1, HUMAN], held)[:, None, None]


class ConstantVelocity:
    """The human keeps its current velocity. This is the non-proactive robot (APFL, Figure 8)."""

    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        now = motions[:, -1, HUMAN]
        ahead = DT * torch.arange(1, plans.shape[2] + 1, dtype=now.dtype, device=now.device)
        positions = now[:, None, :2] + ahead[:, None] * now[:, None, 2:]
        return torch.cat((positions, now[:, None, 2:].expand_as(positions)), dim=-1)[:, None, None]


class Forecast:
    """Predicts the human's controls with a forecaster, and its motions with the known dynamics.

    All plans share the ``samples`` draws of z. Until ``min_history`` steps have been observed, fewer than in any
    training window, the human is assumed to keep its control. The model may be on another device than the observations.
    """

    def __init__(self, model: Forecaster, setting: Setting, options: Options) -> None:
        self.model = model
        self.setting = setting
        self.options = options

    @torch.no_grad()
    def __call__(self, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
        if motions.shape[1] < min(self.options.min_history, self.options.history):
            return HoldLastControl(self.setting)(motions, controls, plans)
        device = next(self.model.parameters()).device
        history = past(self.setting, motions, controls, self.options.history).to(device)
        noise = torch.randn(len(motions), self.options.samples, self.model.latent, device=device)
        expected = self.model.forecast(history, plans.to(device), noise).to(motions.device)
        return self.setting.roll_out(motions[:, -1, HUMAN][:, None, None], expected)


def candidate_plans(kind: str, horizon: int) -> Tensor:
    """Return standardised control sequences ``[C, H, 2]``; the first one coasts straight ahead.

    ``"hold"`` gives 9 controls, each held over the horizon. ``"blocks"`` gives all 9^3 sequences of 3 controls, the
    last one held.
    """
    controls = list(product((0.0, 1.0, -1.0), repeat=2))
    heads = product(controls, repeat=1 if kind == "hold" else min(TAU, horizon))
    starts = torch.tensor(list(heads))
    return torch.cat((starts, starts[:, -1:].expand(-1, horizon - starts.shape[1], -1)), dim=1)


def mpc_policy(predictor: Predictor, setting: Setting, options: Options) -> Policy:
    """A policy for :func:`~.world.sessions.simulate`: first ``TAU`` controls of the best candidate plan.

    Plans that leave the robot's lane or come too close to the gray car are excluded. If all do, the plan with the
    smallest violation is chosen.
    """
    scenario = setting.scenario
    assert scenario is not None  # recorded trials have no encounters
    horizon = max(options.horizon, TAU)
    candidates = candidate_plans(options.candidates, horizon)

    def policy(observation: Observation) -> Tensor:
        plans = candidates.to(observation.states)
        answer = observation.controls.new_zeros(len(observation.states), TAU, 2)
        gap = (observation.states[:, :, ROBOT, 1] - observation.states[:, :, HUMAN, 1]).abs()
        negotiating = torch.ones_like(gap[:, 0], dtype=torch.bool)
        if scenario.robot_swaps:  # the other sessions are in phase 2, and the simulation ignores the policy there
            negotiating = (gap < scenario.gap_enough).all(dim=1)
        if not bool(negotiating.any()):
            return answer
        motions = to_motion(observation.states[negotiating, -options.history :])
        controls = observation.controls[negotiating, -options.history :]
        answer[negotiating] = next_controls(predictor, setting, motions, controls, plans)
        return answer

    return policy


def next_controls(predictor: Predictor, setting: Setting, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
    """Return the first :data:`TAU` controls ``[S, TAU, 2]`` of the best of ``plans [C, H, 2]``, not standardised."""
    best = best_plan(predictor, setting, motions, controls, plans)
    return plans[best, :TAU] * plans.new_tensor(setting.control)


def best_plan(predictor: Predictor, setting: Setting, motions: Tensor, controls: Tensor, plans: Tensor) -> Tensor:
    """Return the index ``[S]`` of the cheapest of ``plans [C, H, 2]`` after ``motions [S, t, cars, 4]``.

    Plans that are excluded in all sessions are not forecast. This changes no random draw, because all plans share their
    samples.
    """
    now = motions[:, -1]
    robot = setting.roll_out(now[:, None, ROBOT], plans.expand(len(now), -1, -1, -1))
    excess = _trespass(setting, robot, now)
    allowed = excess <= excess.min(dim=1, keepdim=True).values
    useful = torch.nonzero(allowed.any(dim=0))[:, 0]
    robot, allowed = robot[:, useful], allowed[:, useful]
    human = predictor(motions, controls, plans[useful].expand(len(now), -1, -1, -1))
    relative = robot[:, :, None] - human
    floor = setting.scenario.cost_floor if setting.scenario else None
    cost = pair_cost(relative[..., :2], relative[..., 2:], floor).sum(dim=-1).mean(dim=-1)
    return useful[cost.masked_fill(~allowed, torch.inf).argmin(dim=1)]


def _trespass(setting: Setting, robot: Tensor, now: Tensor) -> Tensor:
    """The violation in metres ``[S, C]`` of lane and distance by ``robot [S, C, H, 4]``."""
    lane = setting.scenario.robot_lane if setting.scenario else 0.0
    excess = ((robot[..., 0] - lane).abs() - LANE_ROOM).clamp_min(0.0).amax(dim=-1)
    if setting.cars > GRAY:
        steps = torch.arange(1, robot.shape[2] + 1, dtype=robot.dtype, device=robot.device)
        gray = now[:, None, GRAY, 1] + 0.1 * steps * now[:, None, GRAY, 3]
        distance = (robot[..., 1] - gray[:, None]).abs()
        excess = excess + (GRAY_ROOM - distance).clamp_min(0.0).amax(dim=-1)
    return excess
