"""What can be chosen about vision-and-language navigation."""

from dataclasses import dataclass
from pathlib import Path

from tasks.options import option
from tasks.profiles import DataError

from .feature_cache import DEFAULT_FOLDER
from .features import WIDTHS
from .object_features import WIDTH as OBJECT_WIDTH
from .sizes import Sizes

STAGES = ("agent", "speaker", "augmented", "pre-exploration")


@dataclass(frozen=True)
class Options:
    """Options of the task "vln"; the defaults are those of FedVLN's Envdrop agent (Zhou and Wang, ECCV 2022)."""

    source: str = option(
        "auto",
        "files: the folder data-dir; simulated: without one, made-up houses; auto: files where data-dir is given",
        choices=("auto", "files", "simulated"),
    )
    dataset: str = option(
        "auto",
        "r2r: R2R_<split>.json; rxr: rxr_<split>_guide.jsonl; auto: what is there",
        choices=("auto", "r2r", "rxr"),
    )
    languages: str = option("en", "languages of RxR that are read, separated by commas; '' = all")
    stage: str = option(
        "agent",
        "agent: the agent, on what people wrote; speaker: the speaker, on the same; augmented: the agent, on that and "
        "on sampled paths which a speaker labelled; pre-exploration: the agent, in unseen houses on labelled paths",
        choices=STAGES,
    )
    houses: str = option(
        "all",
        "which houses are nodes: seen, those of the training split; unseen, those of val_unseen alone; all. A house "
        "without paths to train on takes part in evaluation",
        choices=("all", "seen", "unseen"),
    )

    features: str = option(
        "objects",
        "what is seen in a view: objects, from REVERIE's boxes and Matterport3D's rooms; resnet152 or clip-vit-b32, "
        "from pictures; file: others, of feature-width",
        choices=("objects", *WIDTHS, "file"),
    )
    feature_file: str = option(
        "",
        "file of features, .hdf5, .npz or .tsv, perhaps in the data folder; '' = made, which only objects can be",
        path=True,
    )
    feature_width: int = option(0, "numbers per view where features = 'file'", minimum=0)
    label_width: int = option(0, "numbers of a random projection of the labels' names, added to objects", minimum=0)
    feature_cache: str = option("", f"folder where made features are kept; '' = {DEFAULT_FOLDER}", path=True)

    # A node looks for these files in its own folder first.
    vocabulary_file: str = option(
        "", "file with one word to a line, which all nodes have; '' = words of the training instructions", path=True
    )
    vocabulary_size: int = option(
        992, "rows of the word embedding; where there are more words, the most frequent count", minimum=5
    )
    max_length: int = option(80, "tokens of an instruction that are read (RxR: 160)", minimum=3)
    agent_file: str = option("", "safetensors file of the agent's first weights; '' = drawn", path=True)
    speaker_file: str = option(
        "", "safetensors file of the speaker that labels paths, in the stages augmented and pre-exploration", path=True
    )
    sampled_paths: int = option(300, "most paths that are sampled and labelled in a house", minimum=1)
    sample_seed: int = option(0, "seed of the sampled paths, the same in all rounds", minimum=0)

    hidden: int = option(512, "units of the decoder, twice those of each direction of the encoder", minimum=2)
    word_width: int = option(256, "numbers per word vector", minimum=1)
    action_width: int = option(64, "numbers that the last move is described by", minimum=1)
    dropout: float = option(0.5, "share of units that are dropped in training", minimum=0, maximum=0.9)
    feature_dropout: float = option(
        0.3, "share of visual features that are dropped from a whole episode in training", minimum=0, maximum=0.9
    )
    learning: str = option(
        "actor-critic",
        "actor-critic: the teacher's choices, and rewards on the agent's own walk; imitation: the teacher's choices on "
        "the described path; mixed: on that path in half of the episodes, on the agent's own walk in the others",
        choices=("actor-critic", "imitation", "mixed"),
    )
    imitation_weight: float = option(0.2, "weight of the teacher's choices (RxR: 0.4)", minimum=0)
    augmented_weight: float = option(0.6, "weight of the teacher's choices on labelled paths", minimum=0)
    max_actions: int = option(35, "most actions of a walk, STOP included, in training and in evaluation", minimum=1)
    ablation: str = option(
        "none",
        "angles-only: no features but directions; no-instructions: no words; shuffled-instructions: those of other "
        "paths of the house, in evaluation",
        choices=("none", "angles-only", "no-instructions", "shuffled-instructions"),
    )

    world_unseen: int = option(0, "unseen houses of a made-up world; 0 = one in five, at least one", minimum=0)
    world_paths: int = option(60, "paths to train on of a made-up house", minimum=1)
    world_seen_paths: int = option(6, "paths of a made-up house's val_seen", minimum=0)
    world_floors: int = option(2, "most floors of a made-up house", minimum=1)

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
    def spoken(self) -> tuple[str, ...]:
        """The languages that are read; none for all."""
        return tuple(name.strip() for name in self.languages.split(",") if name.strip())

    @property
    def cache_folder(self) -> Path:
        """Where made features are kept."""
        return Path(self.feature_cache or DEFAULT_FOLDER).expanduser()

    def check(self) -> None:
        """Raise :class:`DataError` for options that do not go together."""
        if self.features != "objects" and not self.feature_file:
            raise DataError(
                f"vln.features = {self.features!r}: name their file in vln.feature-file, or set vln.features = "
                "'objects', which are made from annotations"
            )
        if (self.features == "file") != (self.feature_width > 0):
            raise DataError(
                f"vln.feature-width = {self.feature_width} with vln.features = {self.features!r}: must be the numbers "
                "per view where vln.features = 'file', and 0 otherwise"
            )
        if self.label_width and self.features != "objects":
            raise DataError(
                f"vln.label-width = {self.label_width}: only vln.features = 'objects' have labels; set it to 0"
            )
        if self.hidden % 2:
            raise DataError(f"vln.hidden = {self.hidden}: must be even, one half for each direction of the encoder")
        if self.agent_file and self.speaks:
            raise DataError(
                f"vln.agent-file = {self.agent_file!r}: the stage 'speaker' trains no agent; leave it empty"
            )
