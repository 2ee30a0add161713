"""What people and speakers say about the same paths of seen houses: FedVLN's Table 1 and Figure 4.

Lengths count words and punctuation marks, as the paper's do for people; a sentence ends with a full stop, an
exclamation or a question mark, and what follows the last one counts. Shares of verbs are of all of :data:`VERBS` that
occur, in their base form, as instructions have them.

    python -m benchmarks.descriptions runs/speakers --data-dir /data/vln --method centralized --seeds 3
"""

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from fedapps.tasks.vln.dataset import read_dataset
from fedapps.tasks.vln.houses import HousePath
from fedapps.tasks.vln.instructions import words_of
from fedapps.tasks.vln.options import Options
from fedapps.tasks.vln.trained import VlnTrained

import fedapps

from .commands import comparison_parser, run, show

SPLIT = "val_seen"
VERBS = (
    *("climb", "continue", "cross", "enter", "exit", "face", "follow", "go", "head", "leave", "make", "move", "pass"),
    *("stand", "stay", "step", "stop", "take", "turn", "wait", "walk"),
)
_ENDS = frozenset(".!?")


def statistics(texts: Sequence[str]) -> dict[str, Any]:
    """Means and variances of lengths and numbers of sentences of texts, and the share of each verb among verbs."""
    lengths, sentences, verbs = [], [], Counter[str]()
    for text in texts:
        words = words_of(text)
        lengths.append(len(words))
        ends = [index for index, word in enumerate(words) if set(word) <= _ENDS]
        sentences.append(len(ends) + bool(words and (not ends or ends[-1] < len(words) - 1)))
        verbs.update(word for word in words if word in VERBS)
    return {
        "length": fmean(lengths),
        "length_variance": pvariance(lengths),
        "sentences": fmean(sentences),
        "sentences_variance": pvariance(sentences),
        "verbs": {verb: verbs[verb] / max(verbs.total(), 1) for verb in VERBS},
    }


def apart(ours: Mapping[str, float], theirs: Mapping[str, float]) -> float:
    """Total variation distance of two distributions over verbs, in [0, 1]."""
    return sum(abs(ours[verb] - theirs[verb]) for verb in VERBS) / 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and print its table; returns 2 if an argument is invalid, else 0."""
    parser = comparison_parser("descriptions", __doc__)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder of houses and instructions")
    parser.add_argument("--method", default="centralized", help="the method that trained (default centralized)")
    return run(parser, _run, arguments)


def _run(options: argparse.Namespace) -> None:
    speakers = [fedapps.load(options.comparison / f"{options.method}-{seed}") for seed in range(options.seeds)]
    described = []
    for speaker in speakers:
        if not isinstance(speaker, VlnTrained) or not isinstance(speaker.task.options, Options):
            raise ValueError(f"{options.comparison}: no speaker of the task 'vln'")
        dataset = read_dataset(options.data_dir, speaker.task.options)
        paths = dataset.of(SPLIT, dataset.seen)
        speaker.enter(options.data_dir, sorted({path.scan for path in paths}))
        walks = [HousePath(path.scan, path.path, path.heading) for path in paths]
        described.append(statistics(speaker.describe_all(walks)))
    people = statistics([text for path in paths for text in path.instructions])
    said = {"people": [people], "speaker": described}
    measures = [name for name in people if name != "verbs"]
    rows = [
        {
            "who": who,
            **{name: [one[name] for one in of] for name in measures},
            "verbs": {verb: [one["verbs"][verb] for one in of] for verb in VERBS},
            "apart": [apart(one["verbs"], people["verbs"]) for one in of],
        }
        for who, of in said.items()
    ]
    show(rows, options.json)


if __name__ == "__main__":
    sys.exit(main())
