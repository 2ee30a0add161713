"""Published numbers and curves beside ours: the functions of the table on the page of all methods.

The numbers are those of PFLlib's benchmark (https://www.pfllib.com/benchmark.html), and of the README files of Flower's
baselines ``moon`` and ``niid_bench``; what is said in words is in the abstracts of the papers. Those of the corridor
follow from the matches that VPR-Bench stores (M. Zaffar et al., IJCV 2021).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean

from fedapps.registry.expressions import read_expression

from .claims import verdict
from .numbers import FUNCTIONS, change_with_half, direction, over_seeds, shown
from .ranks import DATA_SETS, name_of
from .results import Result, result

#: Test accuracy in percent on the nodes' own data of Fashion-MNIST and CIFAR-100, practical label skew.
PFLLIB: Mapping[str, tuple[float, float]] = {
    "fedavg": (85.85, 31.89),
    "per-fedavg": (95.10, 44.28),
    "pfedme": (97.25, 47.34),
    "ditto": (97.47, 52.87),
    "apfl-deng": (97.25, 46.74),
    "fedala": (97.66, 55.92),
    "fedper": (97.44, 49.63),
    "fedrep": (97.56, 52.39),
    "fedbabu": (97.46, 55.02),
    "fedproto": (97.40, 52.70),
}

#: FedAvg's accuracy on CIFAR-10, ten nodes, Dirichlet .5: the best of 50 rounds of ten local epochs, mean over seeds.
NIID_BENCH = 0.6247
OWN = "local_accuracy"

#: Recall at 1 on the corridor.
CORRIDOR: Mapping[str, float] = {
    "HybridNet": 0.901,
    "AMOSNet": 0.847,
    "DenseVLAD": 0.703,
    "AlexNet": 0.685,
    "NetVLAD": 0.676,
    "CoHOG": 0.622,
    "AP-GeM": 0.532,
    "HOG": 0.477,
    "RegionVLAD": 0.432,
    "CALC": 0.324,
}

#: Mean distance in m of forecasts of pedestrians at ETH, HOTEL, UNIV, ZARA1 and ZARA2; of the last two, the best of 20.
#: From the repository of Trajectron++ (its issue 53 has its own, corrected numbers) and A. Gupta et al., CVPR 2018.
PEDESTRIANS: Mapping[str, Sequence[float]] = {
    "linear": (1.33, 0.39, 0.82, 0.62, 0.77),
    "LSTM": (1.09, 0.86, 0.61, 0.41, 0.52),
    "Social LSTM": (1.09, 0.79, 0.67, 0.47, 0.56),
    "Social GAN": (0.81, 0.72, 0.60, 0.34, 0.42),
    "Trajectron++": (0.67, 0.18, 0.30, 0.25, 0.18),
}

#: Means and variances of lengths and numbers of sentences of instructions, of people and a speaker (FedVLN, Table 1).
DESCRIPTIONS: Mapping[str, Sequence[float]] = {
    "people": (29.58, 155.70, 2.44, 1.21),
    "speaker": (21.89, 20.88, 2.42, 0.47),
}


def gains() -> str:
    """Rows of a table: gains in accuracy on own data over FedAvg, in PFLlib, on digits and on CIFAR-10.

    On CIFAR-10 also over training alone, the control, which is the first row.
    """
    data, cifar = DATA_SETS[0], result("cifar10-own")
    tuned = {name: {OWN: row["own"]} for name, row in data.rows().items() if name not in data.lacking()}
    digits = Result("", "", methods=tuned)
    rows = [f"| `local` | – | {_gain(digits, 'local')} | {_gain(cifar, 'local')} | |"]
    for method, published in list(PFLLIB.items())[1:]:
        pairs = zip(published, PFLLIB["fedavg"], strict=True)
        theirs = [shown((one - base) / 100, 2, sign=True) for one, base in pairs]
        ours = _gain(digits, method), _gain(cifar, method), _gain(cifar, method, "local")
        rows.append(f"| `{method}` | {', '.join(theirs)} | {' | '.join(ours)} |")
    return "\n".join(rows)


def silos(name: str) -> str:
    """FedAvg's last accuracy on CIFAR-10 in a result of one run, the published one in brackets, and the round."""
    last, accuracy = result(name).rows[0]["curves"]["test.global_accuracy"][-1]
    return f"{shown(accuracy)} [{shown(NIID_BENCH)}] after {last} rounds"


def _gain(content: Result, method: str, over: str = "fedavg") -> str:
    """The gain in accuracy on own data with half of its interval; a dash for a method that was not measured."""
    labels = _label(content, method), _label(content, over)
    if not all(labels):
        return "–"
    return change_with_half(content.difference(OWN, *labels), 2)


def _label(content: Result, method: str) -> str:
    """The first label of a method in a result, with its arguments; empty without one."""
    return next((label for label in content.methods if name_of(label) == method), "")


def ordered(name: str, metric: str, *chains: Sequence[str]) -> str:
    """The verdict that in each chain every method is better in a metric than the next one.

    With several seeds, every interval of a paired difference must be on the better side of 0. With one, as problems
    without random draws have, the difference decides.
    """
    content, sign = result(name), direction(metric)
    verdicts = []
    for better, worse in (pair for chain in chains for pair in pairwise(chain)):
        gap = content.difference(metric, better, worse)
        ours = gap if sign > 0 else gap.negated()
        verdicts.append(verdict(ours, 0) if ours.seeds > 1 else "holds" if ours.mean > 0 else "does not hold")
    return next((one for one in ("does not hold", "within noise") if one in verdicts), "holds")


def argument(name: str, method: str, key: str) -> str:
    """The argument that a method has in its label in a result, as it is written there."""
    labels = [label for label in result(name).methods if name_of(label) == method and ": " not in label]
    return dict(read_expression(labels[0]).arguments)[key]


def corridor(name: str) -> str:
    """Recall at 1 of each method of an experiment on the corridor."""
    return ", ".join(f"`{row['method']}` {over_seeds(row['recall_at_1'])}" for row in result(name).rows)


def corridor_published() -> str:
    """The same of published methods, the best first."""
    return ", ".join(f"{method} {shown(recall)}" for method, recall in CORRIDOR.items())


def described(name: str) -> str:
    """Rows of a table: what people and a speaker say in a result, the published numbers in brackets."""
    lines = []
    for row in result(name).rows:
        measures = ("length", "length_variance", "sentences", "sentences_variance")
        published = zip(measures, DESCRIPTIONS[row["who"]], strict=True)
        cells = [f"{over_seeds(row[name], 1)} [{shown(theirs, 1)}]" for name, theirs in published]
        far = over_seeds(row["apart"], 2) if row["who"] != "people" else ""
        lines.append(f"| {row['who']} | {' | '.join(cells)} | {far} |")
    return "\n".join(lines)


def pedestrians_published(method: str, place: int | None = None) -> str:
    """The distance at a place, or the mean over all places."""
    errors = PEDESTRIANS[method]
    return shown(fmean(errors) if place is None else errors[place], 2)


FUNCTIONS.update(
    {
        function.__name__: function
        for function in (
            argument,
            corridor,
            corridor_published,
            described,
            gains,
            ordered,
            pedestrians_published,
            silos,
        )
    }
)
