"""What can be chosen about the driving task."""

from dataclasses import dataclass

from tasks.options import option

SCENARIOS = ("lane-swap", "three-cars", "trials")
# Sessions per driver, training and test, that the paper used (Sections IV-B and IV-C).
PAPER_SESSIONS = {"lane-swap": (40, 10), "three-cars": (45, 9), "trials": (0, 0)}


@dataclass(frozen=True)
class Options:
    """Options of the task "driving". Lengths of time are in steps of 0.1 s."""

    scenario: str = option(
        "lane-swap",
        "lane-swap: simulated, two cars swap lanes; three-cars: simulated, a third car drives straight "
        "ahead; trials: recorded trials of people against a robot",
        choices=SCENARIOS,
    )
    posterior: str = option(
        "literal",
        "literal: the latent variable is inferred from history and robot future, as in the paper's figure 6; "
        "cvae: training adds a posterior that also sees the human's future, with the former as learned prior",
        choices=("literal", "cvae"),
    )
    driver_style: str = option(
        "threshold",
        "how a simulated driver's risk tolerance acts: threshold grades the styles, literal is the printed "
        "rule, where only its sign matters",
        choices=("threshold", "literal"),
    )
    history: int = option(10, "past steps the forecaster sees", minimum=1)
    min_history: int = option(5, "fewest past steps for a window; the rest is masked", minimum=1)
    horizon: int = option(20, "future steps that are forecast and planned over (H)", minimum=1)
    latent: int = option(8, "size of the latent variable z", minimum=1)
    hidden: int = option(32, "units of each LSTM", minimum=1)
    kl_weight: float = option(0.05, "weight of the KL term; 0 leaves the reconstruction alone", minimum=0.0)
    window_stride: int = option(3, "steps between two windows of a session", minimum=1)
    samples: int = option(8, "draws of z per forecast (K)", minimum=1)
    candidates: str = option(
        "hold",
        "robot plans: hold keeps each of 9 controls over the horizon; blocks tries all 729 sequences of "
        "3 controls, the last one then held",
        choices=("hold", "blocks"),
    )
    non_proactive: str = option(
        "constant-velocity",
        "what the robot without a forecaster, the yardstick of the closed loop, expects of the human: "
        "constant-velocity keeps its velocity, hold-control keeps its present control",
        choices=("constant-velocity", "hold-control"),
    )
    context: str = option(
        "state",
        "the decoder's optional context: state feeds it the current joint state, none leaves it out",
        choices=("state", "none"),
    )
    sessions_train: int = option(0, "training sessions per simulated driver; 0 = the paper's", minimum=0)
    sessions_test: int = option(0, "test sessions per simulated driver; 0 = the paper's", minimum=0)

    @property
    def cars(self) -> int:
        """How many cars are in a session: robot, human, and perhaps a gray one."""
        return 3 if self.scenario == "three-cars" else 2

    @property
    def dynamics(self) -> str:
        """How cars move: a "bicycle" with throttle and steering where they are simulated, else a "point"."""
        return "point" if self.scenario == "trials" else "bicycle"

    def moments(self, steps: int) -> range:
        """The steps, counted from 0, of a session of ``steps`` at which there is a window; none in a short one."""
        return range(min(self.min_history, self.history) - 1, steps - self.horizon, self.window_stride)

    def sessions(self) -> tuple[int, int]:
        """Training and test sessions per driver, with the scenario's defaults filled in."""
        train, test = PAPER_SESSIONS[self.scenario]
        return self.sessions_train or train, self.sessions_test or test
