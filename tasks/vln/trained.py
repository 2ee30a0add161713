"""A trained model of the task "vln" in use: it follows instructions through houses, or describes paths."""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, Self, TextIO, cast

from fedapps.tasks.answers import Network, several
from fedapps.tasks.base import NodeData
from fedapps.tasks.trained import TrainedModel

from fedapps.base.errors import DataError, listed

from .agent import Agent
from .dataset import Dataset, house_of, read_dataset, require_houses
from .evaluation import CHUNK, describe_all, walk_all
from .exported import agent_network, speaker_network
from .houses import SHOWN, HousePath, Houses, Start, check_path, check_stop, path_of, starts_of, walked
from .instructions import InstructedPath, Vocabulary, entries_of, entry_field
from .nodes import encode, node_data, read_houses, without_words
from .options import Options
from .speaker import Speaker


class VlnTrained(TrainedModel):
    """An agent that follows instructions, or the speaker of ``vln.stage = "speaker"``, which describes paths.

    Both look around in houses: in those of the node whose model was loaded, or in those of a folder (:meth:`enter`).
    """

    pipeline_tag: ClassVar[str] = "robotics"

    def enter(self, folder: str | Path, scans: Sequence[str] | None = None) -> Self:
        """Go into the houses of a folder, and return the model.

        Parameters
        ----------
        folder : str or Path
            Graphs of houses and what their features are made of, in the format of a node's data. Features are those of
            the options, with ``vln.feature-file`` looked up in the folder first.
        scans : sequence of str, optional
            The houses to enter, by default all. Their features are in memory.

        Raises
        ------
        DataError
            A file is missing or malformed, or there is no such house.
        """
        dataset = self._dataset(folder)
        entered = tuple(dataset.graphs) if scans is None else tuple(scans)
        if unknown := [scan for scan in entered if scan not in dataset.graphs]:
            raise DataError(f"{folder}: no graph of {', '.join(unknown)}; found {listed(dataset.graphs, SHOWN)}")
        self._walker.houses = read_houses(dataset, entered, self._options)
        return self

    def follow(self, instruction: str, scan: str, viewpoint: str, heading: float = 0.0) -> HousePath:
        """Follow an instruction by the likeliest action after the likeliest action.

        Parameters
        ----------
        instruction : str
            In the language of the training instructions. Words that the model does not know count as one, and words
            after the first ``vln.max-length`` - 2 do not count.
        scan, viewpoint : str
            Where to start.
        heading : float
            The direction that one faces there, in radians, clockwise from +y.

        Raises
        ------
        DataError
            The model is a speaker, it is in no house or not in this one, or there is no such viewpoint.
        """
        return self.follow_all([Start(instruction, scan, viewpoint, heading)])[0]

    def follow_all(self, starts: Sequence[Start]) -> list[HousePath]:
        """Follow several instructions at once, as :meth:`follow` does each."""
        several(starts, "starts", Start)
        agent = self._walker
        if isinstance(agent, Speaker):
            raise DataError("vln.stage = 'speaker' trained a speaker, which follows no instruction: use describe()")
        if not starts:
            return []
        agent.learn_words(self._words())
        houses = self._houses()
        for start in starts:
            if not isinstance(start.instruction, str) or not start.instruction.strip():
                raise DataError(f"house {start.scan}, viewpoint {start.viewpoint}: the instruction has no text")
            check_stop(houses, start.scan, start.viewpoint, start.heading)
        paths = [
            InstructedPath(start.scan, str(number), (start.viewpoint,), start.heading, (start.instruction,))
            for number, start in enumerate(starts)
        ]
        episodes = encode(paths, houses.rows, self._words(), self._options.max_length)
        if self._options.ablation == "no-instructions":
            episodes = without_words(episodes)
        _, trails = walk_all(agent, houses.on(self.device), episodes, self._options.max_actions)
        return [
            walked(houses, start, trail[trail >= 0], self._options.max_actions)
            for start, trail in zip(starts, trails, strict=True)
        ]

    def describe(self, path: HousePath) -> str:
        """Describe a path by the likeliest word after the likeliest word.

        Parameters
        ----------
        path : HousePath
            At least two viewpoints, each joined to the next.

        Returns
        -------
        str
            Lower-case words and punctuation marks, separated by spaces; perhaps none.

        Raises
        ------
        DataError
            The model is no speaker, it is in no house or not in this one, or the path cannot be walked.
        """
        return self.describe_all([path])[0]

    def describe_all(self, paths: Sequence[HousePath]) -> list[str]:
        """Describe several paths at once, as :meth:`describe` does each."""
        several(paths, "paths", HousePath)
        speaker = self._walker
        if isinstance(speaker, Agent):
            raise DataError(
                f"vln.stage = {self._options.stage!r} trained an agent, which describes no path: use follow(), or "
                "train with vln.stage = 'speaker'"
            )
        if not paths:
            return []
        houses = self._houses()
        for path in paths:
            check_path(houses, path)
        instructed = [
            InstructedPath(path.scan, str(number), path.viewpoints, path.heading, ("",))
            for number, path in enumerate(paths)
        ]
        episodes = encode(instructed, houses.rows, self._words(), self._options.max_length)
        sentences = describe_all(speaker, houses.on(self.device), episodes, self._words(), self._options.max_length)
        return [" ".join(words) for words in sentences]

    def data(self, folder: str | Path, partition: int | None = None, num_partitions: int = 1) -> NodeData:
        """As :meth:`TrainedModel.data`, with the words that the model knows.

        Without ``partition``, a folder with one house is that of a node; of several houses all that are nodes are read.
        """
        if "vocabulary" not in self.facts:
            return super().data(folder, partition, num_partitions)
        dataset = self._dataset(folder)
        if partition is not None:
            scans: Sequence[str] = (house_of(dataset, self._options, partition, num_partitions),)
        elif len(dataset.graphs) == 1:
            scans = tuple(dataset.graphs)
        else:
            scans = require_houses(dataset, dataset.nodes(self._options), self._options)
        key = scans[0] if len(scans) == 1 else dataset.folder.resolve().name
        return node_data(dataset, scans, self._options, key, self._words())

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = CHUNK) -> Iterator[dict[str, Any]]:
        """Yield the path of each instruction, or the description of each path.

        An input that is a folder has the houses to be in, of which those that occur are read. Other inputs are files or
        streams of JSON lines, or a JSON array as R2R has. For an agent, an object has ``instruction`` (or
        ``instructions``, a list), ``scan``, ``viewpoint`` (or ``path``, whose first viewpoint is the start) and perhaps
        ``heading``; for a speaker ``scan``, ``path`` and perhaps ``heading``.

        Yields
        ------
        dict
            ``scan``, ``path`` (names of viewpoints) and ``heading``; of an agent also ``instruction``, ``positions``
            (metres) and ``stopped``, of a speaker ``description``.
        """
        folders = [source for source in inputs if isinstance(source, Path) and source.is_dir()]
        files = [source for source in inputs if source not in folders]
        if not files:
            raise DataError("there is no instruction and no path: name a file of JSON lines")
        if len(folders) > 1:
            raise DataError(f"{folders[1]}: a second folder of houses; give one with all of them")
        entries: Iterator[tuple[str, Mapping[str, Any]]] = chain.from_iterable(map(entries_of, files))
        if folders:
            all_entries = list(entries)
            self.enter(
                folders[0], sorted({entry_field(location, entry, "scan", str) for location, entry in all_entries})
            )
            entries = iter(all_entries)
        while some := list(islice(entries, batch_size)):
            yield from self._answers(some)

    def network(self, example: NodeData | None = None) -> Network:
        """An agent's step (:class:`~fedapps.tasks.vln.exported.AgentStep`), or a speaker's words
        (:class:`~fedapps.tasks.vln.exported.SpeakerWords`).
        """
        walker = deepcopy(self._walker).cpu()
        walker.houses = None
        if isinstance(walker, Speaker):
            return speaker_network(walker)
        if self._options.language_model:
            raise DataError(
                f"vln.language-model = {self._options.language_model!r}: the encoder and its tokenizer are no part of "
                "a network that other programs run; export a model with learned word vectors, or use safetensors"
            )
        return agent_network(walker)

    # -- steps ---------------------------------------------------------------------------------------------------

    @property
    def _options(self) -> Options:
        return cast(Options, self.task.options)

    @property
    def _walker(self) -> Agent | Speaker:
        return cast(Agent | Speaker, self.module)

    def _dataset(self, folder: str | Path) -> Dataset:
        return read_dataset(Path(folder).expanduser(), self._options)

    def _houses(self) -> Houses:
        if self._walker.houses is None:
            raise DataError("the model is in no house: enter(folder) those of a folder with graphs and features")
        return self._walker.houses

    def _words(self) -> Vocabulary:
        if "vocabulary" not in self.facts:
            raise DataError(
                "the words of the model are unknown: load it beside the data of its run, or name the file of its words "
                "as vln.vocabulary-file"
            )
        return Vocabulary(tuple(self.facts["vocabulary"]))

    def _answers(self, entries: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[dict[str, Any]]:
        if isinstance(self._walker, Speaker):
            paths = [path_of(location, entry) for location, entry in entries]
            for path, sentence in zip(paths, self.describe_all(paths), strict=True):
                yield {**_row(path), "description": sentence}
            return
        starts = [start for location, entry in entries for start in starts_of(location, entry)]
        for start, path in zip(starts, self.follow_all(starts), strict=True):
            positions = [list(position) for position in path.positions]
            yield {"instruction": start.instruction, **_row(path), "positions": positions, "stopped": path.stopped}


def _row(path: HousePath) -> dict[str, Any]:
    return {"scan": path.scan, "path": list(path.viewpoints), "heading": path.heading}
