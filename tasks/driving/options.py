"""Options of the driving task."""

from dataclasses import dataclass

from fedapps.base.errors import DataError
from fedapps.base.options import option, split_names

SCENARIOS = ("lane-swap", "three-cars", "trials")
#: Training and test sessions per driver in the paper (Sections IV-B and IV-C).
PAPER_SESSIONS = {"lane-swap": (40, 10), "three-cars": (45, 9), "trials": (0, 0)}


@dataclass(frozen=True)
class Road:
    """What recorded trials do not say themselves. The defaults are those of the published trials.

    Parameters
    ----------
    lane_line : float
        y in metres, as in the file, of the line between the lane of the robot and that of the human.
    demonstrations : frozenset of int
        Blocks that belong to no driver, and are left out.
    """

    lane_line: float = -4.0
    demonstrations: frozenset[int] = frozenset([99])


@dataclass(frozen=True)
class Options:
    """Options of the task "driving". Durations are in steps of 0.1 s."""

    scenario: str = option(
        "lane-swap",
        "lane-swap: simulated, two cars swap lanes; three-cars: simulated, with a third car that drives straight "
        "ahead; trials: recorded trials of people with a robot",
        choices=SCENARIOS,
        data=True,
    )
    posterior: str = option(
        "literal",
        "literal: infer the latent variable from history and robot future, as in the paper's Figure 6; cvae: also "
        "train a posterior that sees the human's future, with the literal encoder as learned prior",
        choices=("literal", "cvae"),
    )
    driver_style: str = option(
        "threshold",
        "Effect of a simulated driver's risk tolerance: threshold shifts the distance at which it overtakes; "
        "literal is the formula printed in the paper, in which only the sign matters",
        choices=("threshold", "literal"),
        data=True,
    )
    lane_line: float = option(
        Road.lane_line,
        "y in metres, in the files of recorded trials, of the line between the lanes of robot and human, which start "
        "on different sides of it",
        data=True,
    )
    demonstrations: str = option(
        "99",
        "Blocks of recorded trials that belong to no driver and are left out, separated by commas; '' = none",
        data=True,
    )
    history: int = option(10, "Past steps that the forecaster sees", minimum=1, data=True)
    min_history: int = option(
        5, "Minimum number of past steps of a window; missing steps are masked", minimum=1, data=True
    )
    horizon: int = option(20, "Future steps to forecast and to plan (H)", minimum=1, data=True)
    latent: int = option(8, "Dimension of the latent variable z", minimum=1)
    hidden: int = option(32, "Units of each LSTM", minimum=1)
    kl_weight: float = option(0.05, "Weight of the KL term in the loss; 0 = reconstruction only", minimum=0.0)
    window_stride: int = option(3, "Steps between consecutive windows of a session", minimum=1)
    samples: int = option(8, "Samples of z per forecast (K)", minimum=1)
    candidates: str = option(
        "hold",
        "Candidate plans of the robot: hold keeps each of 9 controls over the horizon; blocks tries all 729 "
        "sequences of 3 controls and holds the last one",
        choices=("hold", "blocks"),
    )
    non_proactive: str = option(
        "constant-velocity",
        "How the baseline robot without a forecaster predicts the human: constant-velocity or hold-control (the "
        "human keeps its current control)",
        choices=("constant-velocity", "hold-control"),
    )
    context: str = option(
        "state",
        "Additional input of the decoder: state (the current joint state) or none",
        choices=("state", "none"),
    )
    sessions_train: int = option(0, "Training sessions per simulated driver; 0 = as in the paper", minimum=0, data=True)
    sessions_test: int = option(0, "Test sessions per simulated driver; 0 = as in the paper", minimum=0, data=True)
    validation_share: float = option(
        0.0,
        "Share of a driver's training sessions held out for validation, the last ones, if the files name none",
        minimum=0,
        maximum=0.9,
    )

    @property
    def cars(self) -> int:
        """The number of cars in a session: the robot, the human and, in one scenario, a gray car."""
        return 3 if self.scenario == "three-cars" else 2

    @property
    def dynamics(self) -> str:
        """The dynamics of the cars: "bicycle" (throttle and steering) if they are simulated, otherwise "point"."""
        return "point" if self.scenario == "trials" else "bicycle"

    @property
    def road(self) -> Road:
        """What recorded trials do not say themselves.

        Raises
        ------
        DataError
            A block in ``demonstrations`` is no whole number.
        """
        blocks = split_names(self.demonstrations)
        if wrong := [block for block in blocks if not block.isdecimal()]:
            raise DataError(
                f"driving.demonstrations = {self.demonstrations!r}: {wrong[0]!r} is no block; list the numbers of "
                "blocks, separated by commas"
            )
        return Road(self.lane_line, frozenset(map(int, blocks)))

    def moments(self, steps: int) -> range:
        """Return the steps, counted from 0, at which a session of ``steps`` steps has a window; none if it is short."""
        return range(min(self.min_history, self.history) - 1, steps - self.horizon, self.window_stride)

    def sessions(self) -> tuple[int, int]:
        """Return the numbers of training and test sessions per driver, with the scenario's defaults filled in."""
        train, test = PAPER_SESSIONS[self.scenario]
        return self.sessions_train or train, self.sessions_test or test
