"""The model of eight parameters: shared dynamics and a personal gain (APFL, Section IV-A)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


class Dynamics(nn.Module):
    """The matrices ``A [2, 2]`` and ``B [2, 1]`` of ``x' = A x + B u``."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.empty(2, 2))
        self.B = nn.Parameter(torch.empty(2, 1))


class Policy(nn.Module):
    """The gain ``K [1, 2]`` of ``u = -K x``."""

    def __init__(self) -> None:
        super().__init__()
        self.K = nn.Parameter(torch.empty(1, 2))


class LqrModel(nn.Module):
    """Predicts the next state and the control, with the parameters ``dynamics.A``, ``dynamics.B`` and ``policy.K``.

    Initial values are uniform in ``±1 / sqrt(inputs)``, as in torch's linear layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dynamics = Dynamics()
        self.policy = Policy()
        with torch.no_grad():
            for parameter, inputs in ((self.dynamics.A, 3), (self.dynamics.B, 3), (self.policy.K, 2)):
                parameter.uniform_(-(inputs**-0.5), inputs**-0.5)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next state ``[N, 2]`` and the control ``[N, 1]`` from ``inputs [N, 3] = (y, v, u)``."""
        state = inputs[:, :2]
        following = linear(inputs, torch.cat((self.dynamics.A, self.dynamics.B), dim=1))
        return following, linear(state, -self.policy.K)
