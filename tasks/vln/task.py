"""The task "vln": follow instructions through houses, or describe paths through them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from fedapps.tasks.base import Batch, Evaluation, MetricRule, Metrics, NodeData, Task
from fedapps.tasks.language import doubtful_words
from fedapps.tasks.model_folder import texts_of
from fedapps.tasks.profiles import ModelRoles, NodeProfile
from fedapps.tasks.vln.world.world import HouseWorld, write_houses
from torch import Tensor, nn

from fedapps.base.errors import DataError, require_package

from . import evaluation
from .agent import LEARNING, Agent, agent_of, houses_of
from .dataset import Dataset, house_of, own_house, read_dataset, require_houses
from .houses import Houses
from .instructions import RESERVED, InstructedPath, Vocabulary, find_dataset, in_folder, words_of
from .layers import language_model
from .nodes import TESTED, node_data, random_batches, sorted_batches
from .options import Options as VlnOptions
from .speaker import Speaker, load_weights, speaker_of
from .walks import CORPUS_BLEU


class VlnTask(Task):
    """Vision-and-language navigation with one house to a node (FedVLN [1]_).

    The model is the agent, with ``encoder.*`` (language), ``decoder.*`` (trajectory and decision) and ``critic.*``, or
    in the stage "speaker" the speaker, with ``encoder.*`` (path) and ``decoder.*`` (words). A node's house is part of
    its model (:meth:`build_model_for`) but not of the model's state.

    The key of a node is the name of its house. Examples are instructions with their paths
    (:mod:`fedapps.tasks.vln.nodes`). A house of the training split has
    the splits "train" and "val_seen"; any other has "val_unseen", and "train" in pre-exploration. Groups are
    ``house``, the scan, and ``seen``, "true" or "false".

    A profile does not check whether features, vocabularies and weights fit.

    .. [1] Zhou and Wang, FedVLN: Privacy-preserving Federated Vision-and-Language Navigation, ECCV 2022,
       https://arxiv.org/abs/2203.14936.
    """

    name: ClassVar[str] = "vln"
    Options: ClassVar[type] = VlnOptions
    options: VlnOptions
    files: ClassVar[Mapping[str, str]] = {
        "`R2R_SPLIT.json`, `rxr_SPLIT_guide.jsonl`, `SCAN_connectivity.json`": (
            "as in Room-to-Room, Room-across-Room and Matterport3D (m, radians)"
        ),
        "`bbox.json` and `rooms.csv`, or `vln.feature-file`": (
            "REVERIE's boxes and room labels, or features by `SCAN_VIEWPOINT` (HDF5, TSV, NumPy)"
        ),
    }
    floors: ClassVar[tuple[str, ...]] = ("random", "random walk", "forward", "constant sentence")
    headline: ClassVar[tuple[str, ...]] = (
        *("val_unseen.sr", "val_unseen.spl", "val_unseen.ndtw", "val_seen.sr"),
        *("val_unseen.bleu", "val_unseen.distinct", "val_seen.bleu", "val_seen.distinct"),
    )
    vectorises: ClassVar[bool] = False
    metric_means: ClassVar[Mapping[str, MetricRule]] = {f"{split}.bleu": CORPUS_BLEU for split in TESTED}
    audit_subject: ClassVar[str] = "fedapps.tasks.vln.privacy:VlnSubject"
    trained_model: ClassVar[str] = "fedapps.tasks.vln.trained:VlnTrained"

    def __init__(self, options: VlnOptions | None = None) -> None:
        """Raise :class:`DataError` if options are incompatible (:meth:`Options.check`)."""
        super().__init__(options)
        self.options.check()

    @property
    def roles(self) -> ModelRoles:
        """The body reads the instruction or the path, the head decides or speaks, step by step."""
        critic = () if self.options.speaks else ("critic.*",)
        return ModelRoles(head=("decoder.*", *critic), body=("encoder.*",))

    @property
    def has_world(self) -> bool:
        return self.options.source != "files"

    @property
    def world_options(self) -> dict[str, object]:
        """The options that :meth:`make_world` depends on."""
        return {
            name: value for name, value in asdict(self.options).items() if name.startswith("world_") or name == "houses"
        }

    def make_world(self, folder: Path, num_nodes: int, seed: int) -> None:
        """Simulate as many houses of the kind ``houses`` as there are nodes.

        Raise :class:`DataError` for the source "files".
        """
        options = self.options
        if not self.has_world:
            raise DataError(
                "vln.source = 'files': set data-dir to the folder of the houses, or set vln.source = 'simulated'"
            )
        unseen = options.world_unseen or max(1, num_nodes // 5)
        if options.houses == "all" and unseen >= num_nodes:
            raise DataError(f"vln.world-unseen = {unseen}: must leave a house to train in of num-nodes = {num_nodes}")
        seen = {"all": num_nodes - unseen, "seen": num_nodes, "unseen": 4 * num_nodes}[options.houses]
        world = HouseWorld(
            houses=seen,
            unseen_houses=num_nodes if options.houses == "unseen" else unseen,
            paths=options.world_paths,
            seen_paths=options.world_seen_paths,
            floors=options.world_floors,
        )
        write_houses(folder, world, seed)

    def node_profile(self, folder: Path, partition: int, num_partitions: int) -> NodeProfile:
        dataset = read_dataset(folder, self.options)
        return self._profile(dataset, house_of(dataset, self.options, partition, num_partitions))

    def own_profile(self, folder: Path) -> NodeProfile:
        dataset = read_dataset(folder, self.options)
        return self._profile(dataset, own_house(dataset, self.options))

    def describe_data(self, folder: Path, *, own: bool = False) -> str:
        dataset = read_dataset(folder, self.options)
        name = find_dataset(folder, self.options.dataset) or "no instructions"
        counts = ", ".join(f"{len(dataset.of(split, [*dataset.graphs]))} {split}" for split in dataset.paths)
        features = self.options.feature_file or "computed from the boxes of objects and rooms"
        line = (
            f"{name}, {len(dataset.graphs)} houses, {len(dataset.seen)} seen and {len(dataset.unseen)} unseen; paths: "
            f"{counts}; features of views {features}; m and radians"
        )
        doubt = doubtful_words(
            words_of(text) for split in dataset.paths for path in dataset.of(split, [*dataset.graphs])
            for text in path.instructions
        )  # fmt: skip
        return f"{line}; {doubt}" if doubt else line

    def _profile(self, dataset: Dataset, scan: str) -> NodeProfile:
        human, sampled = dataset.training_paths([scan], self.options)
        instructions = sum(len(path.instructions) for path in human) + len(sampled)
        return NodeProfile(scan, instructions, dataset.groups(scan))

    def build_model(self) -> nn.Module:
        """The agent or the speaker, in no house; from ``agent_file`` where one is named."""
        return self._model(None)

    def build_model_for(self, data: NodeData) -> nn.Module:
        """The same model in the node's houses; ``agent_file`` may lie in the node's folder."""
        model = self._model(cast(Path, data.extra["folder"]))
        model.houses = _houses(data)
        model.learn_words(_words(data))
        return model

    def facts(self, data: NodeData | None) -> Mapping[str, Any]:
        """Return the words of the ``vocabulary`` in their order.

        Raises
        ------
        DataError
            Without data, the options name no file of words.
        """
        if data is not None:
            return {"vocabulary": list(_words(data).words)}
        if not (named := self.options.vocabulary_file):
            raise DataError("vln.vocabulary-file = '': the words are those of training instructions, so give data")
        return {"vocabulary": list(Vocabulary.read(in_folder(named)).words)}

    def model_of(self, facts: Mapping[str, Any], files: Path | None) -> nn.Module:
        words = Vocabulary(texts_of(facts, "vocabulary", distinct=True))
        if len(words) > self.options.vocabulary_size:
            raise DataError(
                f"vocabulary has {len(words)} words with {len(RESERVED)} reserved ones: at most "
                f"vln.vocabulary-size = {self.options.vocabulary_size} are possible"
            )
        model = self._drawn(files)
        if self.options.language_model:
            with torch.device("cpu"):  # the vectors are computed, and are no part of the weights
                model.learn_words(words)
        return model

    def _model(self, folder: Path | None) -> Agent | Speaker:
        model = self._drawn(folder)
        if self.options.agent_file:
            load_weights(model, in_folder(self.options.agent_file, folder), "vln.agent-file")
        return model

    def _drawn(self, folder: Path | None) -> Agent | Speaker:
        options = self.options
        return speaker_of(options, folder) if options.speaks else agent_of(options, folder)

    # -- data ----------------------------------------------------------------------------------------------

    def check_nodes(self, num_nodes: int) -> None:
        """Raise :class:`DataError` if a package that the stage needs is not installed, or the language model cannot be
        read."""
        if self.options.speaks:
            require_package("sacrebleu", "vln", "vln.stage = 'speaker'")
        if self.options.language_model:
            language_model(in_folder(self.options.language_model))

    def load_node(self, folder: Path, partition: int, num_partitions: int) -> NodeData:
        """House ``partition`` of those that are nodes, whose name is the key.

        Raises :class:`DataError` when they are not ``num_partitions``.
        """
        dataset = read_dataset(folder, self.options)
        scan = house_of(dataset, self.options, partition, num_partitions)
        return node_data(dataset, [scan], self.options, scan)

    def load_all(self, folder: Path) -> NodeData:
        """All houses that are nodes, pooled: centralised training.

        In the stage "pre-exploration" these are the unseen houses only, because centralised pre-exploration trains on
        no instructions by people; seen houses take part through the method ``fedvln``. The key is the folder's name, or
        that of the house if there is only one: centralised training in one house draws what its node draws.
        """
        dataset = read_dataset(folder, self.options)
        scans = require_houses(dataset, dataset.pooled(self.options), self.options)
        key = scans[0] if len(scans) == 1 else folder.resolve().name
        return node_data(dataset, scans, self.options, key)

    def load_own(self, folder: Path) -> NodeData:
        """A deployed node's folder: the graph and features of its one house, and instructions if it has any
        (:func:`~fedapps.tasks.vln.dataset.own_house`)."""
        dataset = read_dataset(folder, self.options)
        scan = own_house(dataset, self.options)
        return node_data(dataset, [scan], self.options, scan)

    def sizes(self, data: NodeData) -> Mapping[str, int]:
        houses = _houses(data)
        counts = {f"{split} instructions": data.count(split) for split in data.splits}
        return {"houses": len(houses.scans), "viewpoints": len(houses.names), **counts}

    # -- learning ------------------------------------------------------------------------------------------

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The agent's loss by the option ``learning``, or the speaker's cross-entropy over words."""
        houses = houses_of(model, batch["path"].device)
        if isinstance(model, Speaker):
            return model.loss(houses, batch)
        return LEARNING[self.options.learning](cast(Agent, model), houses, batch, self.options.max_actions)

    def batches(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Batches of instructions of like length, which take the least padding, in a random order."""
        return random_batches(data.splits[split], batch_size)

    def examples(self, data: NodeData, split: str, batch_size: int) -> Iterator[Batch]:
        """Every instruction once, the shortest first."""
        return (batch for _, batch in sorted_batches(data.splits[split], batch_size))

    def evaluate(self, model: nn.Module, data: NodeData, *, seed: int, final: bool) -> Evaluation:
        """On ``val_seen`` and ``val_unseen``, where the node has them.

        Of an agent :data:`~fedapps.tasks.vln.walks.METRICS`, of a speaker BLEU-4
        (:func:`~fedapps.tasks.vln.evaluation.sentence_metrics`). ``final`` adds walks to draw, or sentences to read.
        """
        model.eval()
        houses = _houses(data).on(next(model.parameters()).device)
        metrics: Metrics = {}
        traces: dict[str, np.ndarray] = evaluation.house_traces(houses) if final else {}
        for split in TESTED:
            if split not in data.splits:
                continue
            episodes = data.splits[split]
            paths = cast(Mapping[str, Sequence[InstructedPath]], data.extra["paths"])[split]
            if isinstance(model, Speaker):
                sentences = evaluation.describe_all(model, houses, episodes, _words(data), self.options.max_length)
                metrics |= evaluation.sentence_metrics(split, sentences, paths)
                traces |= evaluation.sentence_traces(split, sentences, paths) if final else {}
            else:
                scores, trails = evaluation.walk_all(cast(Agent, model), houses, episodes, self.options.max_actions)
                metrics |= evaluation.means(split, scores)
                traces |= evaluation.walk_traces(split, trails, scores, episodes, paths) if final else {}
        return Evaluation(metrics, traces)

    def references(self, folder: Path) -> evaluation.References:
        """Of agents what walkers score, and of speakers BLEU of sentences that no speaker made."""
        dataset = read_dataset(folder, self.options)
        find = evaluation.sentence_references if self.options.speaks else evaluation.walker_references
        return find(dataset, self.options)


def _houses(data: NodeData) -> Houses:
    return cast(Houses, data.extra["houses"])


def _words(data: NodeData) -> Vocabulary:
    return cast(Vocabulary, data.extra["vocabulary"])
