"""How much a reply counts in the mean."""

from collections.abc import Callable

Weighting = Callable[[float], float]


def num_examples(examples: float) -> float:
    """A node counts as much as it has examples (Federated Averaging, McMahan et al. 2017, Algorithm 1)."""
    return float(examples)


def uniform(examples: float) -> float:
    """Every node counts the same, whatever it has."""
    return 1.0


WEIGHTINGS: dict[str, Weighting] = {"num-examples": num_examples, "uniform": uniform}


def weighting(name: str) -> Weighting:
    """The weighting of that name: "num-examples" or "uniform".

    It turns a reply's number of examples (> 0) into its weight (> 0). Raises ``ValueError`` for another name.
    """
    if name not in WEIGHTINGS:
        raise ValueError(f"weighting = {name!r}: must be one of {', '.join(WEIGHTINGS)}")
    return WEIGHTINGS[name]


def to_weighting(given: str | Weighting) -> Weighting:
    """A weighting that is given itself, or by its name."""
    return weighting(given) if isinstance(given, str) else given
