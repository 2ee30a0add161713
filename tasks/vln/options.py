"""Options of vision-and-language navigation, and the widths of its networks."""

from dataclasses import dataclass
from pathlib import Path

from fedapps.base.errors import DataError
from fedapps.base.options import option

from .features import WIDTHS
from .instructions import DEFAULT_FOLDER
from .object_features import WIDTH as OBJECT_WIDTH

STAGES = ("agent", "speaker", "augmented", "pre-exploration")


@dataclass(frozen=True)
class Sizes:
    """Widths of the networks; the defaults are the paper's."""

    vocabulary: int = 992
    features: int = 2048
    words: int = 256
    hidden: int = 512
    action: int = 64


@dataclass(frozen=True)
class Options:
    """Options of the task "vln"; the defaults are those of FedVLN's Envdrop agent (Zhou and Wang, ECCV 2022)."""

    source: str = option(
        "auto",
        "files: houses in the folder data-dir; simulated: simulated houses, generated if data-dir is not set; "
        "auto: files if data-dir is set, otherwise simulated",
        choices=("auto", "files", "simulated"),
        data=True,
    )
    dataset: str = option(
        "auto",
        "r2r: R2R_<split>.json; rxr: rxr_<split>_guide.jsonl; auto: recognise the data set",
        choices=("auto", "r2r", "rxr"),
        data=True,
    )
    languages: str = option("en", "Languages of RxR to read, separated by commas; '' = all", data=True)
    stage: str = option(
        "agent",
        "agent: train the agent on instructions by people; speaker: train the speaker on the same instructions; "
        "augmented: train the agent on these and on sampled paths with a speaker's instructions; pre-exploration: "
        "train the agent in unseen houses on sampled paths with a speaker's instructions; the method fedvln adds seen "
        "houses, on instructions by people, and centralized pools the unseen houses only",
        choices=STAGES,
    )
    houses: str = option(
        "all",
        "Houses that are nodes: seen, those of the training split; unseen, those of val_unseen only; all. A house "
        "without training paths takes part in evaluation only",
        choices=("all", "seen", "unseen"),
        data=True,
    )

    features: str = option(
        "objects",
        "Features of a view: objects, computed from REVERIE's boxes and Matterport3D's rooms; resnet152 or "
        "clip-vit-b32, computed from images, in feature-file; file: any others in feature-file, of feature-width",
        choices=("objects", *WIDTHS, "file"),
    )
    feature_file: str = option(
        "",
        "File of features, .hdf5, .npz or .tsv, looked up in the data folder first; '' = compute them, which only "
        "features = 'objects' allows",
        path=True,
    )
    feature_width: int = option(0, "Numbers per view if features = 'file', otherwise 0", minimum=0)
    label_width: int = option(
        0, "Numbers per view of a random projection of labels, added to features = 'objects'; 0 = none", minimum=0
    )
    feature_cache: str = option(
        "", f"Folder in which computed features and a speaker's labels are cached; '' = {DEFAULT_FOLDER}", path=True
    )

    # A node looks for these files in its own folder first.
    vocabulary_file: str = option(
        "",
        "File with one word per line, the same on all nodes; '' = the words of the training instructions. `python -m "
        "fedapps.tasks.vln.dataset FOLDER words.txt` writes those of a folder, "
        "for nodes that have one house each",
        path=True,
    )
    vocabulary_size: int = option(
        992, "Rows of the word embedding; if there are more words, the most frequent ones are used", minimum=5
    )
    max_length: int = option(80, "Maximum number of tokens of an instruction (RxR: 160)", minimum=3)
    agent_file: str = option(
        "",
        "File of the agent's initial weights, such as checkpoints/fedavg/best.safetensors of a run; '' = random "
        "weights",
        path=True,
    )
    speaker_file: str = option(
        "",
        "File of the speaker that labels paths in the stages augmented and pre-exploration, such as "
        "checkpoints/fedavg/best.safetensors of a run of the stage speaker",
        path=True,
    )
    sampled_paths: int = option(
        300,
        "Maximum number of paths to sample and label per house; 0 = all shortest paths of 4 to 6 edges, among which "
        "those of the tests are",
        minimum=0,
    )
    described_share: float = option(
        0.0,
        "Pre-exploration on people's instructions: the share of an unseen house's test paths that train in place of "
        "labelled ones and are left out of the tests; 0 = none",
        minimum=0,
        maximum=0.9,
    )
    speaker_temperature: float = option(
        0.0, "Temperature at which the speaker samples words; 0 = the likeliest words", minimum=0
    )
    speaker_samples: int = option(
        1,
        "Descriptions that the speaker samples per path; the one with which the agent of listener-file most likely "
        "walks the path is kept",
        minimum=1,
    )
    listener_file: str = option(
        "", "File of the agent that chooses among sampled descriptions; '' = that of agent-file", path=True
    )
    sample_seed: int = option(0, "Seed of the sampled paths, the same in all rounds", minimum=0)

    language_model: str = option(
        "",
        "Folder of an encoder of the library transformers, on every node: the agent reads its frozen states of words "
        "in context, and a speaker has its frozen word vectors; '' = learned word vectors of word-width",
        path=True,
    )
    hidden: int = option(512, "Units of the decoder; each direction of the encoder has half as many", minimum=2)
    word_width: int = option(256, "Numbers per word vector", minimum=1)
    action_width: int = option(64, "Width of the embedding of the last move", minimum=1)
    dropout: float = option(0.5, "Dropout rate in training", minimum=0, maximum=0.9)
    feature_dropout: float = option(
        0.3,
        "Share of visual features dropped for a whole episode in training (environmental dropout)",
        minimum=0,
        maximum=0.9,
    )
    learning: str = option(
        "actor-critic",
        "actor-critic: imitate the teacher, and reinforce by the rewards of a walk that the agent samples; imitation: "
        "imitate the teacher on the described path; mixed: imitate it on that path in half of the episodes, and on a "
        "walk that the agent samples in the others",
        choices=("actor-critic", "imitation", "mixed"),
    )
    imitation_weight: float = option(
        0.2, "Weight of the imitation loss on paths that people described (RxR: 0.4)", minimum=0
    )
    augmented_weight: float = option(0.6, "Weight of the imitation loss on paths that a speaker labelled", minimum=0)
    max_actions: int = option(35, "Maximum number of actions of a walk, including STOP", minimum=1)
    ablation: str = option(
        "none",
        "angles-only: all features of views are 0, directions remain; no-instructions: instructions are empty; "
        "shuffled-instructions: evaluate with the instructions of other paths in the house",
        choices=("none", "angles-only", "no-instructions", "shuffled-instructions"),
    )

    world_unseen: int = option(
        0, "Unseen houses of a simulated world; 0 = one in five, at least one", minimum=0, data=True
    )
    world_paths: int = option(60, "Training paths per simulated house", minimum=1, data=True)
    world_seen_paths: int = option(6, "Paths in val_seen per simulated house", minimum=0, data=True)
    world_floors: int = option(2, "Maximum number of floors of a simulated house", minimum=1, data=True)

    @property
    def speaks(self) -> bool:
        """Whether the model is the speaker."""
        return self.stage == "speaker"

    @property
    def width(self) -> int:
        """Numbers per view."""
        if self.features == "objects":
            return OBJECT_WIDTH + self.label_width
        return WIDTHS.get(self.features, self.feature_width)

    @property
    def sizes(self) -> Sizes:
        """Widths of the networks."""
        return Sizes(self.vocabulary_size, self.width, self.word_width, self.hidden, self.action_width)

    @property
    def cache_folder(self) -> Path:
        """The folder in which computed features and a speaker's labels are cached."""
        return Path(self.feature_cache or DEFAULT_FOLDER).expanduser()

    def check(self) -> None:
        """Raise :class:`DataError` if options are incompatible."""
        if self.features != "objects" and not self.feature_file:
            raise DataError(
                f"vln.features = {self.features!r}: name their file in vln.feature-file, or set vln.features = "
                "'objects', which are computed from annotations"
            )
        if (self.features == "file") != (self.feature_width > 0):
            raise DataError(
                f"vln.feature-width = {self.feature_width} with vln.features = {self.features!r}: must be the number "
                "of values per view if vln.features = 'file', and 0 otherwise"
            )
        if self.label_width and self.features != "objects":
            raise DataError(
                f"vln.label-width = {self.label_width}: only vln.features = 'objects' have labels; set it to 0"
            )
        if self.hidden % 2:
            raise DataError(f"vln.hidden = {self.hidden}: must be even, one half for each direction of the encoder")
        if self.speaker_samples > 1 and not self.speaker_temperature:
            raise DataError(
                f"vln.speaker-samples = {self.speaker_samples} with vln.speaker-temperature = 0: the likeliest words "
                "are always the same; set a temperature above 0, such as 1"
            )
        if self.speaker_samples > 1 and not (self.listener_file or self.agent_file):
            raise DataError(
                f"vln.speaker-samples = {self.speaker_samples}: name the agent that chooses among descriptions as "
                "vln.listener-file or vln.agent-file"
            )
        if self.listener_file and self.speaker_samples == 1:
            raise DataError(
                f"vln.listener-file = {self.listener_file!r} with vln.speaker-samples = 1: there is nothing to choose "
                "from; leave it empty, or let the speaker sample more descriptions"
            )
        if self.described_share and self.stage != "pre-exploration":
            raise DataError(
                f"vln.described-share = {self.described_share:g} with vln.stage = {self.stage!r}: only the stage "
                "'pre-exploration' trains on test paths; set it to 0"
            )
        if self.agent_file and self.speaks:
            raise DataError(
                f"vln.agent-file = {self.agent_file!r}: the stage 'speaker' trains no agent; leave it empty"
            )
