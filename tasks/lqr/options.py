"""The options of the task "lqr"."""

from dataclasses import dataclass

from fedapps.tasks.options import option


@dataclass(frozen=True)
class LqrOptions:
    """Options of the task "lqr". The defaults are the paper's, except for the range of initial states (ours)."""

    start_range: float = option(10.0, "Initial positions and velocities are uniform in ±start-range", above=0)
    trajectories: int = option(40, "Rollouts per robot; at least one is for training and one for testing", minimum=2)
    horizon: int = option(30, "Steps per rollout", minimum=1)
    test_fraction: float = option(0.1, "Share of each robot's rollouts held out for testing", minimum=0, maximum=1)
    validation_share: float = option(
        0.0,
        "Share of a robot's training steps held out for validation, the last ones of its file, if the file has no "
        "validation split",
        minimum=0,
        maximum=0.9,
    )
    noise_variance: float = option(
        0.01, "Variance of the noise on the control and on each component of the state", minimum=0
    )
