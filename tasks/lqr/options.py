"""What can be chosen about the world of the point masses."""

from dataclasses import dataclass

from tasks.options import option


@dataclass(frozen=True)
class LqrOptions:
    """The world of the point masses; the defaults are the paper's, the range of starts is ours."""

    start_range: float = option(10.0, "starts are uniform in ±start-range, in position and velocity", above=0)
    trajectories: int = option(40, "rollouts per robot, of which at least one trains and one tests", minimum=2)
    horizon: int = option(30, "steps per rollout", minimum=1)
    test_fraction: float = option(0.1, "share of a robot's rollouts held out for testing", minimum=0, maximum=1)
    noise_variance: float = option(
        0.01, "variance of the noise on the control and on each component of the state", minimum=0
    )
