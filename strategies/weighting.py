"""Weights of replies in means."""

from collections.abc import Callable

#: Maps the number of examples of a reply (> 0) to its weight (> 0).
Weighting = Callable[[float], float]


def num_examples(examples: float) -> float:
    """Weight a reply by its number of examples (Federated Averaging, McMahan et al. 2017, Algorithm 1)."""
    return float(examples)


def uniform(examples: float) -> float:
    """Give all replies the weight 1."""
    return 1.0


WEIGHTINGS: dict[str, Weighting] = {"num-examples": num_examples, "uniform": uniform}


def weighting(name: str) -> Weighting:
    """The weighting with a given name, "num-examples" or "uniform".

    Raises
    ------
    ValueError
        The name is unknown.
    """
    if name not in WEIGHTINGS:
        raise ValueError(f"weighting = {name!r}: must be one of {', '.join(WEIGHTINGS)}")
    return WEIGHTINGS[name]


def to_weighting(given: str | Weighting) -> Weighting:
    """A weighting from its name; a function is returned unchanged."""
    return weighting(given) if isinstance(given, str) else given
