"""The options of the task ``tabular``."""

from dataclasses import dataclass

from fedapps.tasks.options import option

#: Classes of each dataset.
CLASSES = {"digits": 10, "breast-cancer": 2}
#: Features of each dataset.
FEATURES = {"digits": 64, "breast-cancer": 30}


@dataclass(frozen=True)
class TabularOptions:
    """Dataset, partition and model."""

    dataset: str = option("digits", "dataset of scikit-learn", choices=tuple(CLASSES))
    partition: str = option("dirichlet", "partitioner of flwr-datasets", choices=["dirichlet", "iid"])
    alpha: float = option(0.5, "concentration of the Dirichlet partition; small = few labels per node", above=0)
    shift: float = option(
        0.0, "standard deviation of each node's offset and log scale per feature; 0 = no feature shift", minimum=0
    )
    test_fraction: float = option(0.25, "share of a node's examples held out for testing", minimum=0.1, maximum=0.5)
    hidden: int = option(32, "hidden units", minimum=1)
    batch_norm: bool = option(True, "normalise the hidden units over the batch")
