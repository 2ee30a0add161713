"""What one run does: the keys of the run config that are no task's."""

from dataclasses import dataclass, replace
from typing import Any

from tasks.options import option

from .catalogue import TASKS

OPTIMIZERS = ("sgd", "momentum", "adam", "adagrad", "yogi")


@dataclass(frozen=True)
class RunConfig:
    """What one run does. Each field is a key of Flower's run config, written with hyphens.

    Options of a task are further keys that start with the task's name (``driving.scenario``).
    """

    name: str = option("", "name of the run's folder; empty: task and Flower's run id")
    task: str = option("driving", "what is learned", choices=sorted(TASKS))
    methods: str = option("local,sfl,spfl,apfl", "methods to run one after the other, separated by commas; see `list`")
    seed: int = option(0, "seed of every random draw", minimum=0)
    rounds: int = option(10, "communication rounds", minimum=1)
    num_nodes: int = option(7, "nodes that must be connected before the first round; see node-wait", minimum=1)
    output_dir: str = option("", "folder of the run folders; empty: ~/fedapps/runs")
    data_dir: str = option("", "folder with the data of all nodes; empty: a simulated world")
    cache_dir: str = option("", "folder of simulated worlds; empty: ~/fedapps/worlds")
    resume: bool = option(False, "go on from the last checkpoint of the run of this name")
    device: str = option("auto", "where nodes train: a GPU when there is one", choices=["auto", "cpu", "cuda"])
    node_cpus: int = option(1, "torch threads of a node; same number, same bits", minimum=1)
    state_backend: str = option("disk", "where nodes keep private parameters", choices=["disk", "context"])

    epochs: int = option(10, "local epochs per round", minimum=1)
    steps: int = option(0, "local optimizer steps per round in place of epochs; 0: epochs", minimum=0)
    total_steps: int = option(
        0,
        "steps times rounds, which sets rounds where steps are given: the trade of one for the other; 0: rounds",
        minimum=0,
    )
    learning_rate: float = option(0.001, "local learning rate", above=0)
    batch_size: int = option(128, "examples per local step", minimum=1)
    optimizer: str = option("adam", "local optimizer", choices=["adam", "adamw", "sgd"])
    weight_decay: float = option(0.0, "the local optimizer's weight decay", minimum=0)
    clip_norm: float = option(0.0, "largest norm of a local gradient; 0: any", minimum=0)
    linear_decay: bool = option(False, "let the local learning rate fall to 0 within each round, step by step")
    plateau_patience: int = option(
        0, "epochs without a lower validation loss before the local learning rate falls; 0: never", minimum=0
    )
    plateau_factor: float = option(0.5, "what it is multiplied by then", above=0, maximum=1)
    min_learning_rate: float = option(1e-5, "the local learning rate never falls below this", above=0)
    personal_epochs: int = option(10, "epochs of personalisation before an evaluation", minimum=1)
    personal_learning_rate: float = option(0.001, "learning rate L of personalisation", above=0)
    collect_after: int = option(6, "round after which nodes collect new data with their model; 0: never", minimum=0)

    fraction_train: float = option(1.0, "fraction of the nodes that train in a round", above=0, maximum=1)
    fraction_evaluate: float = option(1.0, "fraction of the nodes that evaluate", above=0, maximum=1)
    evaluate_every: int = option(2, "rounds from one evaluation to the next; the last is evaluated", minimum=1)
    min_replies: int = option(1, "usable replies below which a round fails", minimum=1)
    max_examples: int = option(
        0, "examples beyond which a node that says it has more is not believed; 0: any number", minimum=0
    )
    weighting: str = option("uniform", "weight of a node in means", choices=["num-examples", "uniform"])
    dp: str = option(
        "none",
        "differential privacy: noise by the nodes, or by the server once, updates being clipped by server or node",
        choices=["none", "local", "central-server", "central-client"],
    )
    dp_clip: float = option(1.0, "largest L2 norm of a node's update under dp", above=0)
    dp_noise: float = option(1.0, "noise multiplier: the noise's standard deviation in units of dp-clip", minimum=0)
    dp_delta: float = option(1e-5, "delta for which the epsilon of dp is told", above=0, maximum=0.5)
    dp_seeded: bool = option(
        False, "draw the noise from seed, to repeat an experiment; no privacy from anybody who knows the seed"
    )
    secure_aggregation: bool = option(False, "must be false: Flower's SecAgg+ works with its older strategies only")
    server_optimizer: str = option("sgd", "server optimizer", choices=OPTIMIZERS)
    server_learning_rate: float = option(1.0, "server learning rate; 1 with sgd is FedAvg", above=0)
    server_tau: float = option(0.001, "tau of the server optimizers adam, adagrad and yogi", above=0)
    fedavgm_rate: float = option(0.1, "server learning rate of the method fedavgm", above=0)
    fedadam_rate: float = option(0.1, "server learning rate of the method fedadam", above=0)
    fedadagrad_rate: float = option(0.01, "server learning rate of the method fedadagrad", above=0)
    fedyogi_rate: float = option(0.1, "server learning rate of the method fedyogi", above=0)
    rate_granularity: str = option("tensor", "adaptive rates per", choices=["tensor", "parameter"])
    drop_nodes: bool = option(False, "leave a node, drawn anew each round, out of training: the same for every method")
    fedprox_mu: float = option(0.05, "mu of the methods fedprox*; 0 is FedAvg", minimum=0)
    adapt_epochs: int = option(1, "epochs of the methods fedvocab* with the shared parameters frozen", minimum=1)
    reconstruct_epochs: int = option(1, "epochs in which fedrecon's nodes train their private parameters", minimum=1)
    support_share: float = option(
        0.5, "share of a node's examples that they do it on; the rest trains the shared ones", above=0, maximum=0.99
    )
    virtual_examples: int = option(
        256, "examples that each virtual client of fedvc trains on, where steps are not given", minimum=1
    )
    cluster_groups: str = option(
        "city", "groups of nodes that are h-fl's clusters, the finest first, separated by commas (city,continent)"
    )
    cluster_intervals: str = option(
        "15", "for each of them, every how many rounds its clusters are averaged; 0: never (5,15)"
    )
    cluster_cohort: int = option(
        0, "nodes of each cluster that h-fl trains in a round; 0: the same nodes as other methods", minimum=0
    )
    num_clusters: int = option(2, "clusters that clustered finds, at most", minimum=1)
    cluster_first: int = option(1, "round after which it finds them", minimum=1)
    cluster_every: int = option(0, "rounds until it finds them anew; 0: never", minimum=0)
    cluster_optimizer: str = option(
        "sgd",
        "server optimizer of each cluster, server-optimizer being that of the clusters' average",
        choices=OPTIMIZERS,
    )
    cluster_learning_rate: float = option(1.0, "its server learning rate", above=0)
    fisher_estimator: str = option(
        "per-sample",
        "Fisher information from the gradients of single examples or of batches (scaled: times the batch size)",
        choices=["per-sample", "per-batch", "per-batch-scaled"],
    )
    ewc_lambda: float = option(0.05, "weight of a node's earlier stages in the methods *-ewc", minimum=0)
    ewc_anchors: str = option(
        "separate",
        "earlier stages: each held at its own solution, or all at the newest (Online-EWC)",
        choices=["separate", "online"],
    )
    l2t_lambda: float = option(0.05, "weight of the pull to the last stage in the methods *-l2t", minimum=0)
    fedcurv_lambda: float = option(0.5, "fedcurv's weight, with the 1/2 of a quadratic penalty before it", minimum=0)
    elastic_own_past: float = option(0.0, "elastic-transfer's lambda 1: a node's own earlier stages", minimum=0)
    elastic_others_past: float = option(0.5, "its lambda 2: other nodes' earlier stages", minimum=0)
    elastic_others_now: float = option(0.0, "its lambda 3: other nodes' last round", minimum=0)
    elastic_anchors: str = option(
        "online", "elastic-transfer's earlier stages, as in ewc-anchors", choices=["online", "separate"]
    )
    apd_l1: float = option(1e-4, "weight of the adaptive parameters' absolute values in the methods *-apd", minimum=0)
    apd_drift: float = option(1e-4, "weight of changes to earlier stages' parameters in *-apd", minimum=0)
    fedweit_l1_mask: float = option(1e-2, "fedweit's lambda 1 on masks", minimum=0)
    fedweit_l1_adaptive: float = option(
        1e-4, "its lambda 1 on adaptive parameters, and the absolute value up to which they are not sent", minimum=0
    )
    fedweit_drift: float = option(1e-4, "its lambda 2: weight of changes to earlier stages' parameters", minimum=0)
    fedweit_mask_share: float = option(0.7, "share of a layer's units that a fedweit node sends", above=0, maximum=1)
    track_metric: str = option("", "evaluation metric of the best round and of early stopping; empty: none")
    track_mode: str = option("min", "whether the tracked metric is better smaller", choices=["min", "max"])
    patience: int = option(0, "evaluations without improvement before stopping; 0: never stop", minimum=0)
    target: float = option(0.0, "value of the tracked metric whose first round is reported; 0: none", minimum=0)
    timeout: float = option(3600.0, "seconds to wait for a node's reply, to the profile query too", above=0)
    in_flight: int = option(
        0,
        "nodes that work at a time, on profile queries too: the next is sent its message when one has replied; "
        "0: all at once",
        minimum=0,
    )
    node_wait: float = option(
        60.0,
        "seconds without a sign of life after which the run stops waiting for num-nodes and their profiles: a node "
        "that joins or answers is one, and while too few are known a connected node that has yet to answer",
        minimum=0,
    )

    def method_names(self) -> list[str]:
        """The methods in the order given."""
        return [name.strip() for name in self.methods.split(",") if name.strip()]


def with_source(options: Any, run: RunConfig) -> Any:
    """A task's options with what ``source = "auto"`` stands for: files where the run has a data-dir."""
    if getattr(options, "source", "") != "auto":
        return options
    return replace(options, source="files" if run.data_dir else "simulated")
