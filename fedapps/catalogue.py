"""The names a user can say: tasks and methods."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from tasks.profiles import Privacy, TaskProfiles

if TYPE_CHECKING:
    from tasks.base import Task

#: Where each task lives; imported when it is used.
TASKS: Mapping[str, str] = {
    "driving": "tasks.driving.task:DrivingTask",
    "lqr": "tasks.lqr.task:LqrTask",
    "social": "tasks.social.task:SocialTask",
    "text": "tasks.text.task:TextTask",
    "vpr": "tasks.vpr.task:VprTask",
}

#: The half of each task that needs no torch.
PROFILES: Mapping[str, str] = {
    "driving": "tasks.driving.profile:DrivingProfiles",
    "lqr": "tasks.lqr.profile:LqrProfiles",
    "social": "tasks.social.profile:SocialProfiles",
    "text": "tasks.text.profile:TextProfiles",
    "vpr": "tasks.vpr.profile:VprProfiles",
}

TASK_LINES: Mapping[str, str] = {
    "driving": "forecast a human driver with a CVAE, and plan lane swaps around the forecast (APFL, IV-B and IV-C)",
    "lqr": "learn the dynamics and the gain of linear-quadratic robots (APFL, IV-A)",
    "social": "rate how much a robot disturbs people, one person's taste after another (Elastic Transfer, SocNav1)",
    "text": "classify texts with vocabularies and embeddings that stay on the nodes (FedVocab)",
    "vpr": "find the place where a picture was taken, with triplets mined on the nodes (FedVPR)",
}

Memory = Literal["nothing", "fresh", "ewc", "l2", "apd", "fedweit"]
Federation = Literal["plain", "virtual", "tiers", "clusters"]
EVERYTHING = ("*",)
_EMBEDDING = ("embedding.*",)


@dataclass(frozen=True)
class Method:
    """A way to federate, made of the strategy's and the nodes' parts.

    ``private`` are glob patterns of the parameters that stay on their node; ``own_start`` lets it begin with values of
    its own for them. ``trains`` says who: every sampled node, one node with everybody's data, or nobody. ``adapts`` is
    FedVocab's adaptive updating, ``reconstructs`` FedRecon. ``task`` names the only task that a method is for, if any.
    ``personalise`` trains a copy of the shared model before each evaluation, at ``personal_rate`` times the
    learning rate; ``rate_power`` scales that per parameter by adaptive rates (``None``: the same for all).
    ``proximal`` is FedProx. ``memory`` is what nodes do with earlier stages: "fresh" forgets them, "ewc" and "l2" are
    held near them, "apd" and "fedweit" give each stage parameters of its own. ``fisher`` are the weights of a Fisher
    exchange (own past, others' past, others' present), numbers or fields of the run config; ``None``: no exchange.
    ``server`` is a server optimizer in place of the run config's, with the field of its learning rate. ``federation``
    is how nodes come together: as one, as virtual clients of equal work, in the tiers of given groups, in clusters
    that are found.
    """

    line: str
    private: tuple[str, ...] = ()
    own_start: bool = False
    trains: Literal["nodes", "pooled", "nobody"] = "nodes"
    adapts: bool = False
    reconstructs: bool = False
    personalise: bool = False
    personal_rate: float = 1.0
    rate_power: float | None = None
    proximal: bool = False
    memory: Memory = "nothing"
    fisher: tuple[float | str, float | str, float | str] | None = None
    server: tuple[str, str] | None = None
    federation: Federation = "plain"
    task: str = ""

    @property
    def privacy(self) -> Privacy:
        """What the method leaves to each node."""
        return Privacy(self.private, self.own_start)

    @property
    def decomposes(self) -> bool:
        """Whether each stage has parameters of its own beside the shared weights."""
        return self.memory in ("apd", "fedweit")


_GRID = (0.5, 0.05, 0.0)
_ELASTIC = "elastic-transfer"
_METHODS: Mapping[str, Method] = {
    "local": Method("every node alone with its own data", private=EVERYTHING),
    "cloud": Method("one node trains on everybody's data; no privacy", trains="pooled"),
    "sfl": Method("standard federated learning: FedAvg, or another server optimizer"),
    "spfl": Method("sfl, then each node personalises at a uniform rate", personalise=True),
    "spfl-low": Method("spfl at a fifth of the rate: the control for adaptive rates", personalise=True,
                       personal_rate=0.2),
    "apfl": Method("adaptive personalisation: rates from the variance across nodes", personalise=True,
                   rate_power=1.0),
    "apfl-sqrt": Method("apfl with the ratio of standard deviations in place of variances", personalise=True,
                        rate_power=0.5),
    "stl": Method("single-task learning: every node alone, a fresh model in every stage", private=EVERYTHING,
                  memory="fresh"),
    "fedavg": Method("FedAvg; no continual learning (FedAvg-SGD in the paper of Elastic Transfer)"),
    "fedprox": Method("FedProx: nodes are tied to the shared model with weight fedprox-mu", proximal=True),
    "untrained": Method("nobody trains: the model as it is given, such as with weights from a file", trains="nobody"),
    "fedavgm": Method("FedAvgM: momentum at the server, learning rate fedavgm-rate",
                      server=("momentum", "fedavgm_rate")),
    "fedadam": Method("FedAdam: Adam at the server, learning rate fedadam-rate", server=("adam", "fedadam_rate")),
    "fedadagrad": Method("FedAdagrad: AdaGrad at the server, learning rate fedadagrad-rate",
                         server=("adagrad", "fedadagrad_rate")),
    "fedyogi": Method("FedYogi: Yogi at the server, learning rate fedyogi-rate", server=("yogi", "fedyogi_rate")),
    "fedvc": Method("FedVC: nodes drawn in proportion to their size, equal work, equal weights",
                    federation="virtual"),
    "h-fl": Method("hierarchical FL: a model for each of cluster-groups, averaged every cluster-intervals rounds",
                   federation="tiers"),
    "clustered": Method("clustered FL: num-clusters models for nodes whose updates are alike",
                        federation="clusters"),
    "local-ewc": Method("every node alone, tied to its own earlier stages by their Fisher information",
                        private=EVERYTHING, memory="ewc"),
    "fedavg-ewc": Method("FedAvg of nodes under EWC", memory="ewc"),
    "fedprox-ewc": Method("FedProx of nodes under EWC", proximal=True, memory="ewc"),
    "local-l2t": Method("every node alone, tied to its last stage's parameters (L2 transfer)", private=EVERYTHING,
                        memory="l2"),
    "fedavg-l2t": Method("FedAvg of nodes under L2 transfer", memory="l2"),
    "local-apd": Method("additive parameter decomposition, every node alone", private=EVERYTHING, memory="apd"),
    "fedavg-apd": Method("APD with FedAvg of the shared weights", memory="apd"),
    "fedprox-apd": Method("APD with FedProx on the shared weights", proximal=True, memory="apd"),
    "fedweit": Method("FedWeIT: masked shared weights, other nodes' adaptive parameters by attention",
                      memory="fedweit"),
    "fedcurv": Method("FedCurv: nodes are tied to the others' present solutions, weight fedcurv-lambda",
                      fisher=(0.0, 0.0, "fedcurv_lambda")),
    _ELASTIC: Method("Elastic Transfer with the weights elastic-own-past, -others-past and -others-now",
                     fisher=("elastic_own_past", "elastic_others_past", "elastic_others_now")),
    "lg-fedavg": Method("LG-FedAvg: embedding and encoder stay on the nodes, only the classifier is averaged",
                        private=(*_EMBEDDING, "encoder.*"), task="text"),
    "fedrecon": Method("FedRecon: the embeddings of digit words stay private, reconstructed in every round",
                       private=("embedding*private",), reconstructs=True, task="text"),
    "fedvocab": Method("FedVocab: vocabulary and embedding stay private, with adaptive updating", private=_EMBEDDING,
                       adapts=True, task="text"),
    "fedvocab-no-adapt": Method("FedVocab without adaptive updating", private=_EMBEDDING, task="text"),
    "fedvocab-own-start": Method("FedVocab whose nodes begin with embeddings of their own (Different init)",
                                 private=_EMBEDDING, own_start=True, adapts=True, task="text"),
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


def privacy_of(method: str) -> Privacy:
    """What a method leaves to each node; nothing where the name is not one of ours, as under other strategies."""
    return METHODS[method].privacy if method in METHODS else Privacy()


def profiles_class(name: str) -> type[TaskProfiles]:
    """The half of a task that needs no torch, by the task's name; the whole task where it has no such half."""
    if name not in PROFILES:
        return task_class(name)
    module, _, attribute = PROFILES[name].partition(":")
    found: type[TaskProfiles] = getattr(import_module(module), attribute)
    return found


def task_class(name: str) -> "type[Task]":
    """The class of a task by its name."""
    module, _, attribute = TASKS[name].partition(":")
    found: type[Task] = getattr(import_module(module), attribute)
    return found
