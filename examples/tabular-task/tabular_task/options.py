"""The options of the task ``tabular``."""

from dataclasses import dataclass

from fedapps.base.options import option

#: Classes of each dataset.
CLASSES = {"digits": 10, "breast-cancer": 2, "synthetic": 10}
#: Features of each dataset.
FEATURES = {"digits": 64, "breast-cancer": 30, "synthetic": 60}


@dataclass(frozen=True)
class TabularOptions:
    """Dataset, partition and model."""

    dataset: str = option(
        "digits",
        "digits and breast-cancer come with scikit-learn; synthetic is drawn for each node, as in FedProx",
        choices=tuple(CLASSES),
    )
    partition: str = option("dirichlet", "partitioner of flwr-datasets", choices=["dirichlet", "iid"])
    alpha: float = option(0.5, "concentration of the Dirichlet partition; small = few labels per node", above=0)
    shift: float = option(
        0.0, "standard deviation of each node's offset and log scale per feature; 0 = no feature shift", minimum=0
    )
    model_spread: float = option(
        1.0, "standard deviation of the mean of each node's true weights in synthetic data, α of FedProx", minimum=0
    )
    input_spread: float = option(
        1.0, "standard deviation of the mean of each node's inputs in synthetic data, β of FedProx", minimum=0
    )
    test_fraction: float = option(0.25, "share of a node's examples held out for testing", minimum=0.1, maximum=0.5)
    hidden: int = option(32, "hidden units; 0 = a linear model", minimum=0)
    batch_norm: bool = option(True, "normalise the hidden units over the batch")
