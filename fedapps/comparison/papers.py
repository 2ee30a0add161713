"""The numbers that the papers print, by recipe and method, under our metric names."""

from collections.abc import Mapping

from fedapps.catalogue import GRID
from fedapps.config.recipe_files import Value

Table = Mapping[str, Mapping[str, float]]

#: Nakanoya et al., Table II: prediction loss on test data, mean of 10 trials.
_LQR: Table = {
    "local": {"state_loss": 0.01101, "control_loss": 0.01251, "total_loss": 0.02352},
    "cloud": {"state_loss": 0.01012, "control_loss": 0.19666, "total_loss": 0.20678},
    "sfl": {"state_loss": 0.01023, "control_loss": 0.20123, "total_loss": 0.21146},
    "spfl": {"state_loss": 0.01023, "control_loss": 0.01095, "total_loss": 0.02118},
    "apfl": {"state_loss": 0.01018, "control_loss": 0.01096, "total_loss": 0.02114},
}

#: Nakanoya et al., Table III: prediction loss on test data of the three-car scenario in CARLA.
_THREE_CARS: Table = {
    "cloud": {"elbo": 0.01643},
    "sfl": {"elbo": 0.01760},
    "spfl": {"elbo": 0.01600},
    "apfl": {"elbo": 0.01160},
}


def _continual(amse: float, bwt: float, fwt: float, static: int, trainable: int) -> Mapping[str, float]:
    """A line of the tables of Guerdan and Gunes."""
    overhead = {"static_parameters": static, "trainable_parameters": trainable}
    return {"amse": amse, "bwt": bwt, "fwt": fwt, **overhead}


#: Guerdan and Gunes, section 4.1: test error of one model that has all data at once.
_SOCIAL_CENTRALISED: Table = {"cloud": {"mse": 0.0296}}

#: Guerdan and Gunes, Table 1 (experiment 1).
_SOCIAL_METHODS: Table = {
    "stl": _continual(0.0615, 0.0110, 0.4175, 0, 30_724),
    "fedavg": _continual(0.0426, -0.0031, 0.0483, 0, 7_681),
    "fedprox": _continual(0.0431, -0.0024, 0.0508, 7_681, 7_681),
    "local-ewc": _continual(0.0497, 0.0134, 0.0819, 61_448, 7_681),
    "fedavg-ewc": _continual(0.0410, 0.0003, 0.0446, 61_448, 7_681),
    "fedprox-ewc": _continual(0.0419, -0.0019, 0.0495, 69_129, 7_681),
    "local-apd": _continual(0.0521, 0.1159, 0.1838, 0, 39_176),
    "fedavg-apd": _continual(0.0480, 0.2230, 0.5101, 0, 39_176),
    "fedprox-apd": _continual(0.0495, 0.1625, 0.2263, 7_424, 39_176),
    "fedweit": _continual(0.0959, 0.2259, 0.6610, 89_100, 39_272),
}

# Guerdan and Gunes, Table 4 (experiment 3), errors in the printed order: λ1, then λ2, then λ3 from 0.5 over 0.05 to 0.
# Which λ is which case: the line (0.05, 0, 0) repeats FedAvg-EWC, so λ1 weighs a node's own past; (0, 0, 0.5) repeats
# FedCurv, so λ3 weighs the others' present; the others' past is left for λ2. Section 4.2 says the same, while
# section 3.4 exchanges cases 2 and 3 below its equation 4. Our text of the paper repeats λ2 in the column λ3 of the
# first nine lines, where it must fall from 0.5 to 0 as in the others: they are read in that order.
_TABLE_4 = (
    (0.0408, 0.0120, 0.0380), (0.0389, 0.0108, 0.0407), (0.0383, 0.0107, 0.0383),
    (0.0392, 0.0114, 0.0391), (0.0385, 0.0115, 0.0390), (0.0369, 0.0124, 0.0355),
    (0.0389, 0.0103, 0.0395), (0.0397, 0.0113, 0.0450), (0.0391, 0.0085, 0.0362),
    (0.0396, 0.0062, 0.0400), (0.0402, 0.0115, 0.0381), (0.0376, 0.0107, 0.0375),
    (0.0400, 0.0111, 0.0395), (0.0390, 0.0080, 0.0392), (0.0390, 0.0091, 0.0391),
    (0.0384, 0.0115, 0.0390), (0.0391, 0.0086, 0.0382), (0.0386, 0.0128, 0.0373),
    (0.0403, 0.0112, 0.0412), (0.0388, 0.0122, 0.0396), (0.0363, 0.0083, 0.0352),
    (0.0392, 0.0118, 0.0380), (0.0374, 0.0108, 0.0384), (0.0374, 0.0101, 0.0358),
    (0.0378, 0.0092, 0.0382), (0.0404, 0.0137, 0.0411), (0.0388, 0.0122, 0.0355),
)  # fmt: skip

#: Guerdan and Gunes, Tables 2 and 4 (experiment 3). FedAvg stands there twice, the second time as λ = (0, 0, 0).
_SOCIAL_ELASTIC: Table = {
    "fedavg": _continual(0.0391, 0.0088, 0.0369, 0, 7_681),
    "fedprox": _continual(0.0408, 0.0093, 0.3711, 7_681, 7_681),  # a misprinted FWT, probably 0.0371
    "fedcurv": _continual(0.0378, 0.0092, 0.0382, 20_043, 7_681),  # a misprint for 23,043, three times the model
    "fedavg-ewc": _continual(0.0386, 0.0128, 0.0373, 61_448, 7_681),
    # The default weights are those of the paper's choice.
    "elastic-transfer": _continual(0.0363, 0.0083, 0.0352, 115_215, 7_681),
    **{method: _continual(*errors, 115_215, 7_681) for method, errors in zip(GRID, _TABLE_4, strict=True)},
}

#: Dutto et al., Table 3 (Proximity split of 2000 m, 300 rounds of 5 clients) and section 5.2.
_PLACES: Table = {
    "cloud": {"recall_at_1": 0.660},
    "fedavg": {"recall_at_1": 0.610},
    "fedavgm": {"recall_at_1": 0.612},
    "fedadam": {"recall_at_1": 0.611},
    "fedadagrad": {"recall_at_1": 0.616},
}

#: Dutto et al., Tables 3 and 9: 75 rounds of 20 clients, clusters being continents.
_PLACES_IN_TIERS: Table = {"fedavg": {"recall_at_1": 0.556}, "h-fl": {"recall_at_1": 0.469}}


def _recalls(method: str, **printed: float) -> Mapping[Value, Table]:
    return {value.replace("_", "-"): {method: {"recall_at_1": recall}} for value, recall in printed.items()}


#: Dutto et al., where a study varies a key: by the key, its values and the methods.
_PLACES_VARIED: Mapping[str, Mapping[Value, Table]] = {
    "vpr.split": _recalls("fedavg", random=0.402, clustering=0.573, proximity=0.610),  # Table 1
    "vpr.radius": {  # Table 1
        1000.0: {"fedavg": {"recall_at_1": 0.517}},
        2000.0: {"fedavg": {"recall_at_1": 0.610}},
        4000.0: {"fedavg": {"recall_at_1": 0.661}},
    },
    "steps": {  # Table 4, 400,000 steps in all
        steps: {"fedavg": {"recall_at_1": fedavg}, "fedvc": {"recall_at_1": fedvc}}
        for steps, fedavg, fedvc in (
            (125, 0.666, 0.623),
            (250, 0.660, 0.659),
            (500, 0.664, 0.677),
            (1000, 0.617, 0.668),
            (2000, 0.588, 0.652),
            (4000, 0.573, 0.606),
        )
    },
    "vpr.augment": _recalls("fedavg", none=0.610, client_jitter=0.535, jitter=0.647, jitter_crop=0.657),  # Table 5
    "vpr.nearest-sequences": {  # Table 6, of 333 and 20
        sequences: {"cloud": {"recall_at_1": recall}} for sequences, recall in ((0, 0.660), (333, 0.688), (20, 0.580))
    },
    "cluster-intervals": {  # Table 10; its rounds are not told, and it contradicts Table 3
        str(interval): {"h-fl": {"recall_at_1": recall}}
        for interval, recall in ((5, 0.601), (10, 0.604), (15, 0.611), (20, 0.600), (25, 0.603))
    },
    "cluster-groups": {  # Tables 3 and 9, 15 rounds of 105 clients for cities
        "continent": _PLACES_IN_TIERS,
        "city": {"fedavg": {"recall_at_1": 0.442}, "h-fl": {"recall_at_1": 0.333}},
    },
}

PAPERS: Mapping[str, Table] = {
    "lqr": _LQR,
    "three-cars": _THREE_CARS,
    "social-centralised": _SOCIAL_CENTRALISED,
    "social-methods": _SOCIAL_METHODS,
    "social-elastic": _SOCIAL_ELASTIC,
    "social-grid": _SOCIAL_ELASTIC,
    "fedvpr": _PLACES,
    "fedvpr-nordland": _PLACES,
    "fedvpr-streets": _PLACES,
    "fedvpr-optimizers": _PLACES,
    "fedvpr-hierarchy": _PLACES_IN_TIERS,
}


def papers_of(recipe: str, key: str, value: Value) -> Table:
    """What the paper prints where a study of ``recipe`` varies ``key``, at one of its values."""
    return _PLACES_VARIED.get(key, {}).get(value, {}) if recipe.startswith("fedvpr") else {}
