"""Which method has which defence: every method with rogue nodes that know its records and its bounds.

Rogue nodes are drawn with the seed and reply with an attack on all that their method sends. ``huge`` has no bound: the
update times 1e13, with prototypes of 9e29, a loss of 100, a Fisher information times 1e13. ``just-below`` is the
strongest within ``size-bound``: it points away from the honest mean, and every part of it has 90 % of the size that is
accepted. ``just-below-once`` sends it in one round alone, so that the last round shows whether the run recovers. The
others are those of :mod:`benchmarks.attacks`. In asynchronous runs, rogue nodes reply at once. Methods with adapters
need a recipe with texts, for which ``--tiny-encoder`` makes an encoder.

    python -m benchmarks.rogue --recipe images-digits --seeds 3 --json rows.json
    python -m benchmarks.rogue --recipe quickstart --methods flora --tiny-encoder --set text.adapter=lora
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
from fedapps.sim.matrix import Lines, run_matrix
from fedapps.strategies import Arrays, RunEndedError, from_record, is_float, to_record, wire
from fedapps.strategies.arrays import Buffers
from fedapps.strategies.bounds import SizeBound, norm, norms_of
from flwr.app import MetricRecord, RecordDict

from fedapps.base.seeding import torch_seed
from fedapps.comparison.matrix import assignments
from fedapps.config.recipe_files import Value, read_recipe
from fedapps.launch.inputs import resolve

from .attacks import ATTACKS, Attack, Knowledge, Values
from .byzantine import NO_ATTACK, attacked_grid, attackers_of
from .commands import add_seeds, recipe_parser, run, show_methods
from .recipe_runs import final_metrics

METRIC = "test.global_accuracy"
ASYNCHRONOUS: dict[str, Value] = {"mode": "async", "concurrency": 20, "buffer": 10, "clock-step-seconds": "1"}
_TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
#: The methods, and the keys without which they do not run.
METHODS: dict[str, dict[str, Value]] = {
    "fedavg": {},
    "scaffold": {},
    "feddyn": {},
    "fednova": {},
    "q-ffl": {"methods": "q-ffl(q=1.0)"},
    "ifca": {},
    "fedcurv": {"methods": "fedcurv(estimator=loss-per-batch)"},
    "fedproto": {},
    "ditto": {},
    "fedbuff": {"methods": "fedavg", **ASYNCHRONOUS},
}
_BOUND = 100.0
_UNBOUNDED: dict[str, Value] = {"size-bound": 0.0, "node-share": 1.0, "q-ffl.weight-bound": 0.0}
_ONCE = 4  # the round of the attack
_RECOVERY: dict[str, Value] = {"rounds": 24, "evaluate-every": 24}  # twice as long as other runs
_KNOWING = [("just-below", 0.1), ("sign-flip", 0.1), ("sign-flip", 0.2)]
#: The defences, and the attacks on them with the shares of rogue nodes.
DEFENCES: dict[str, tuple[dict[str, Value], Sequence[tuple[str, float]]]] = {
    "no bounds": (_UNBOUNDED, [("huge", 0.1)]),
    "bounds": ({"size-bound": _BOUND}, [(NO_ATTACK, 0.0), ("huge", 0.2), *_KNOWING, ("just-below-once", 0.1)]),
    "trimmed-mean": ({"aggregation": "trimmed-mean", "byzantine-fraction": 0.2}, _KNOWING),
}
_ROBUST = ("fedavg", "ditto")  # a robust aggregation is refused with the others


class Huge(Attack):
    """The node's own update times 1e13, and further records to match."""

    def update(self, name: str, known: Knowledge) -> Values:
        return 1e13 * (known.trained[name].astype(np.float64) - known.sent[name])

    def spoil(self, content: RecordDict, known: Knowledge) -> None:
        super().spoil(content, known)
        _change(content, wire.FISHER_PRECISION, lambda array: array * np.float32(1e13))
        _change(content, wire.FEDPROTO_LOCAL, lambda array: np.full_like(array, 9e29))
        _state(content, wire.Q_FFL_LOSS, 100.0)
        _state(content, wire.FEDNOVA_NORM, 1e9)


@dataclass
class JustBelow(Attack):
    """The opposite of the honest mean, as large as the server accepts.

    Parameters
    ----------
    bound : float
        The server's ``size-bound``, of which 90 % are used.
    only : int
        The only round of the attack, 0 for all.
    """

    bound: float = _BOUND
    only: int = 0
    _seen: SizeBound = field(default_factory=SizeBound, repr=False)  # what the server sees
    _round: int = 0

    def update(self, name: str, known: Knowledge) -> Values:
        return np.asarray(
            -np.mean([reply[name].astype(np.float64) - known.sent[name] for reply in known.honest], axis=0)
        )

    def spoil(self, content: RecordDict, known: Knowledge) -> None:
        server_round = int(str(known.message.config_records[wire.CONFIG][wire.SERVER_ROUND]))
        if server_round != self._round:
            self._round = server_round
            self._seen.begin_round()
            for arrays, (message, honest) in zip(known.honest, known.exchanges, strict=True):
                for part, size in _sizes(arrays, honest, message).items():
                    self._seen.note(part, size)
        if self.only not in (0, server_round):
            return
        parts = _sizes(known.trained, content, known.message)
        most = {part: 0.9 * self.bound * (self._seen.median(part) or 0.0) for part in parts}
        content[wire.ARRAYS] = to_record(self._scaled(known, content, most))
        for record in (wire.FISHER_PRECISION, wire.FEDPROTO_LOCAL):
            if record in content.array_records:
                sign = -1 if record == wire.FEDPROTO_LOCAL else 1
                scale = sign * most[record] / (norm(from_record(content.array_records[record])) or 1.0)
                _change(content, record, lambda array, scale=scale: (array * scale).astype(array.dtype))
        _state(content, wire.Q_FFL_LOSS, 100.0)
        _state(content, wire.FEDNOVA_NORM, 1.0)  # divides the update by as little as possible

    def _scaled(self, known: Knowledge, content: RecordDict, most: Mapping[str, float]) -> Arrays:
        """The reply whose update and, in SCAFFOLD, control variate are as large as accepted."""
        updates = {name: self.update(name, known) for name, array in known.trained.items() if is_float(array)}
        size = most.get("the update", 0.0)
        if _CONTROL in most:
            size = min(size, _length(content) * max(most[_CONTROL] - norm(_correction(known.message)), 0.0))
        scale = size / (norm(updates) or 1.0)
        while True:
            scaled = {n: np.asarray(known.sent[n] + scale * u).astype(known.sent[n].dtype) for n, u in updates.items()}
            products = _products(scaled, known.message)
            if all(of_part <= most[part] for part, of_part in products.items()):
                return known.trained | scaled
            scale *= 0.9


_CONTROL = "the control variate"


def _sizes(arrays: Arrays, content: RecordDict, message: RecordDict) -> dict[str, float]:
    """The sizes of the parts of a reply, as the server computes them."""
    sent = from_record(message.array_records[wire.ARRAYS])
    sizes = norms_of(arrays, sent, content, Buffers()) | _products(arrays, message)
    if correction := _correction(message):
        moved = {name: sent[name].astype(np.float64) - arrays[name] for name in correction}
        sizes[_CONTROL] = norm({name: moved[name] / _length(content) - c for name, c in correction.items()})
    return sizes


def _correction(message: RecordDict) -> Arrays:
    """What SCAFFOLD sends to a node."""
    record = message.array_records.get(wire.SCAFFOLD_CONTROL)
    return {} if record is None else from_record(record)


def _products(arrays: Arrays, message: RecordDict) -> dict[str, float]:
    """The size of the products of adapters, where the server takes these, so that nodes do not train the weights."""
    if wire.UNTRAINED not in message.config_records[wire.CONFIG]:
        return {}
    factors = {name.replace("lora_A", "lora_B"): a for name, a in arrays.items() if "lora_A" in name}
    return {
        "the products of adapters": norm({name: arrays[name].astype(np.float64) @ a for name, a in factors.items()})
    }


def _length(content: RecordDict) -> float:
    return float(str(content.metric_records["metrics"][wire.SCAFFOLD_LENGTH]))


def _change(content: RecordDict, name: str, change: Any) -> None:
    """Change the floating-point arrays of a record, if there is one."""
    if name in content.array_records:
        arrays = from_record(content.array_records[name])
        content[name] = to_record({key: change(array) if is_float(array) else array for key, array in arrays.items()})


def _state(content: RecordDict, name: str, value: float) -> None:
    """State another value of a metric, if there is one."""
    if name in content.metric_records["metrics"]:
        content["metrics"] = MetricRecord({**content.metric_records["metrics"], name: value})


def attack_of(name: str) -> Attack:
    """A new attack."""
    own: dict[str, Callable[[], Attack]] = {
        "huge": Huge,
        "just-below": JustBelow,
        "just-below-once": lambda: JustBelow(only=_ONCE),
    }
    return (own | ATTACKS)[name]()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if the settings are invalid, else 0."""
    parser = recipe_parser("rogue", __doc__)
    add_seeds(parser, jobs=True)
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas (default all)")
    parser.add_argument("--attacks", default="", help="only these, separated by commas (default all)")
    parser.add_argument("--tiny-encoder", action="store_true", help="make an encoder and set text.model to its folder")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    with TemporaryDirectory() as folder:
        encoder = {"text.model": random_encoder(Path(folder))} if options.tiny_encoder else {}
        cells = _cells(options, encoder)
        accuracies = run_matrix(cells, accuracy, jobs=options.jobs, watch=Lines(len(cells)))
    conditions: dict[str, dict[str, list[float]]] = {}
    for cell, value in zip(cells, accuracies, strict=True):
        name = f"{cell['method']} with {cell['defence']} at {cell['attack']} {cell['share']:g}"
        of_condition = conditions.setdefault(name, {METRIC: [], "ended": []})
        of_condition["ended"].append(float(value is None))
        of_condition[METRIC] += [] if value is None else [value]
    show_methods(conditions, options.json)


def _cells(options: argparse.Namespace, encoder: Mapping[str, Value]) -> list[dict[str, Any]]:
    """The arguments of :func:`accuracy` for every run."""
    settings = {**assignments(options.set), **encoder, "name": "rogue", "in-flight": 0}
    recipe = {**read_recipe(Path(options.recipe)), **settings}
    wanted = options.attacks.split(",") if options.attacks else []
    return [
        {"method": method, "defence": defence, "attack": attack, "share": share, "seed": seed, "config": config}
        for method in options.methods.split(",")
        for defence, (keys, attacks) in DEFENCES.items()
        if defence != "trimmed-mean" or method in _ROBUST
        for attack, share in attacks
        for more in [_RECOVERY if attack.endswith("-once") else {}]
        for config in [resolve({**recipe, "methods": method, **METHODS.get(method, {}), **keys, **more}, ".")]
        if not wanted or attack in wanted
        for seed in range(options.seeds)
    ]


def random_encoder(folder: Path, sizes: Mapping[str, int] = MappingProxyType(_TINY)) -> str:
    """Write a BERT of these sizes with random weights, whose tokens are syllables of simulated texts, into a folder."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    syllables = list(map("".join, product("bdfgklmnprstvz", "aeiou")))
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *map("".join, product(syllables, repeat=2)),
        *map("##{}".format, syllables),
    ]
    values = {"vocab_size": len(pieces), "max_position_embeddings": 64, "initializer_range": 0.2, **sizes}
    config = transformers.BertConfig(**values)
    with torch_seed(0):
        transformers.BertModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return str(folder)


def accuracy(
    *, method: str, defence: str, attack: str, share: float, seed: int, config: Mapping[str, Value]
) -> float | None:
    """The accuracy after the last round, or ``None`` if the run has ended before."""
    with TemporaryDirectory() as folder:
        if METHODS.get(method, {}).get("mode") == "async":
            count, rogue = int(str(config["num-nodes"])), set()
            if attack != NO_ATTACK:
                rogue = set(attackers_of(seed, count, share))
            rows = [f"{node},{0.001 if node in rogue else 1.0},," for node in range(count)]
            devices = Path(folder) / "devices.csv"
            devices.write_text("\n".join(["device,speed,up,down", *rows]) + "\n", encoding="utf-8")
            config = {**config, "clock-step-seconds": "", "clock-devices": str(devices)}
        try:
            make = None if attack == NO_ATTACK else attack_of(attack)
            return final_metrics(config, seed, lambda parsed: attacked_grid(parsed, make, share)).get(METRIC)
        except RunEndedError:
            return None


if __name__ == "__main__":
    sys.exit(main())
