"""The names a user can say: tasks, methods, recipes."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Literal

from tasks.base import Task

RECIPES = Path(__file__).parent / "recipes"

#: Where each task lives; imported when it is used.
TASKS: Mapping[str, str] = {
    "driving": "tasks.driving.task:DrivingTask",
    "lqr": "tasks.lqr.task:LqrTask",
    "social": "tasks.social.task:SocialTask",
}

TASK_LINES: Mapping[str, str] = {
    "driving": "forecast a human driver with a CVAE, and plan lane swaps around the forecast (APFL, IV-B and IV-C)",
    "lqr": "learn the dynamics and the gain of linear-quadratic robots (APFL, IV-A)",
    "social": "rate how much a robot disturbs people, one person's taste after another (Elastic Transfer, SocNav1)",
}


Memory = Literal["nothing", "fresh", "ewc", "l2", "apd", "fedweit"]


@dataclass(frozen=True)
class Method:
    """A way to federate, made of the strategy's and the nodes' parts.

    ``share`` says what travels; ``trains`` who: every sampled node, or one node with everybody's data.
    ``personalise`` trains a copy of the shared model before each evaluation, at ``personal_rate`` times the
    learning rate; ``rate_power`` scales that per parameter by adaptive rates (``None``: the same for all).
    ``proximal`` is FedProx. ``memory`` is what nodes do with earlier stages: "fresh" forgets them, "ewc" and "l2" are
    held near them, "apd" and "fedweit" give each stage parameters of its own. ``fisher`` are the weights of a Fisher
    exchange (own past, others' past, others' present), numbers or fields of the run config; ``None``: no exchange.
    """

    line: str
    share: Literal["all", "nothing"] = "all"
    trains: Literal["nodes", "pooled"] = "nodes"
    personalise: bool = False
    personal_rate: float = 1.0
    rate_power: float | None = None
    proximal: bool = False
    memory: Memory = "nothing"
    fisher: tuple[float | str, float | str, float | str] | None = None

    @property
    def decomposes(self) -> bool:
        """Whether each stage has parameters of its own beside the shared weights."""
        return self.memory in ("apd", "fedweit")


_GRID = (0.5, 0.05, 0.0)
_ELASTIC = "elastic-transfer"
_METHODS: Mapping[str, Method] = {
    "local": Method("every node alone with its own data", share="nothing"),
    "cloud": Method("one node trains on everybody's data; no privacy", trains="pooled"),
    "sfl": Method("standard federated learning: FedAvg, or another server optimizer"),
    "spfl": Method("sfl, then each node personalises at a uniform rate", personalise=True),
    "spfl-low": Method("spfl at a fifth of the rate: the control for adaptive rates", personalise=True,
                       personal_rate=0.2),
    "apfl": Method("adaptive personalisation: rates from the variance across nodes", personalise=True,
                   rate_power=1.0),
    "apfl-sqrt": Method("apfl with the ratio of standard deviations in place of variances", personalise=True,
                        rate_power=0.5),
    "stl": Method("single-task learning: every node alone, a fresh model in every stage", share="nothing",
                  memory="fresh"),
    "fedavg": Method("FedAvg; no continual learning (FedAvg-SGD in the paper of Elastic Transfer)"),
    "fedprox": Method("FedProx: nodes are tied to the shared model with weight fedprox-mu", proximal=True),
    "local-ewc": Method("every node alone, tied to its own earlier stages by their Fisher information",
                        share="nothing", memory="ewc"),
    "fedavg-ewc": Method("FedAvg of nodes under EWC", memory="ewc"),
    "fedprox-ewc": Method("FedProx of nodes under EWC", proximal=True, memory="ewc"),
    "local-l2t": Method("every node alone, tied to its last stage's parameters (L2 transfer)", share="nothing",
                        memory="l2"),
    "fedavg-l2t": Method("FedAvg of nodes under L2 transfer", memory="l2"),
    "local-apd": Method("additive parameter decomposition, every node alone", share="nothing", memory="apd"),
    "fedavg-apd": Method("APD with FedAvg of the shared weights", memory="apd"),
    "fedprox-apd": Method("APD with FedProx on the shared weights", proximal=True, memory="apd"),
    "fedweit": Method("FedWeIT: masked shared weights, other nodes' adaptive parameters by attention",
                      memory="fedweit"),
    "fedcurv": Method("FedCurv: nodes are tied to the others' present solutions, weight fedcurv-lambda",
                      fisher=(0.0, 0.0, "fedcurv_lambda")),
    _ELASTIC: Method("Elastic Transfer with the weights elastic-own-past, -others-past and -others-now",
                     fisher=("elastic_own_past", "elastic_others_past", "elastic_others_now")),
}  # fmt: skip

#: Every setting of Elastic Transfer's Table 4, λ1-λ2-λ3.
GRID: Mapping[str, Method] = {
    f"{_ELASTIC}-{own:g}-{others:g}-{now:g}": Method(
        f"Elastic Transfer with λ1 = {own:g}, λ2 = {others:g}, λ3 = {now:g}", fisher=(own, others, now)
    )
    for own in _GRID
    for others in _GRID
    for now in _GRID
}
METHODS: Mapping[str, Method] = {**_METHODS, **GRID}
#: One line for each method, and one for the whole grid.
METHOD_LINES: Mapping[str, str] = {
    **{name: method.line for name, method in _METHODS.items()},
    f"{_ELASTIC}-A-B-C": "Elastic Transfer with λ1 = A, λ2 = B, λ3 = C, each of 0.5, 0.05, 0 (Table 4)",
}


def task_class(name: str) -> type[Task]:
    """The class of a task by its name."""
    module, _, attribute = TASKS[name].partition(":")
    found: type[Task] = getattr(import_module(module), attribute)
    return found


def recipes() -> dict[str, str]:
    """Names of the recipes that come with fedapps, with the comment on their first line."""
    lines = {path.stem: path.read_text().splitlines()[0] for path in sorted(RECIPES.glob("*.toml"))}
    return {name: line.removeprefix("#").strip() for name, line in lines.items()}


def read_recipe(path: Path) -> dict[str, bool | int | float | str]:
    """The flat run config in a recipe file. Raises ``ValueError`` that names the file when it cannot be read."""
    if not path.exists() and (RECIPES / f"{path.name.removesuffix('.toml')}.toml").exists():
        path = RECIPES / f"{path.name.removesuffix('.toml')}.toml"
    try:
        return _flatten(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = ", ".join(recipes())
        raise ValueError(f"no recipe {path}: give a run-config file, or one of {known}") from None
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"recipe {path} cannot be read: {error}") from error


def _flatten(table: Mapping[str, object], prefix: str = "") -> dict[str, bool | int | float | str]:
    flat: dict[str, bool | int | float | str] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        elif isinstance(value, (bool, int, float, str)):
            flat[prefix + key] = value
        else:
            raise ValueError(f"{prefix}{key} = {value!r}: must be a number, a string, true or false")
    return flat
