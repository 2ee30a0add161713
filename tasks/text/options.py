"""What can be chosen about the text task."""

from dataclasses import dataclass

from tasks.options import option
from tasks.profiles import DataError

from .files import FORMATS, Columns
from .known import KNOWN, Hub
from .partition import PARTITIONS

#: The files that a simulated corpus, or one from the hub, is written to.
WRITTEN = Columns(("text",), "label")
LSTM = "lstm"
DEFAULT_LENGTH = 128


@dataclass(frozen=True)
class Layout:
    """Where the examples are: candidate file names, columns, and the classes; no ``labels``: those found, sorted."""

    train: tuple[str, ...]
    test: tuple[str, ...]
    columns: Columns
    labels: tuple[str, ...]
    classes: int


@dataclass(frozen=True)
class Options:
    """Options of the task "text"; the defaults are those of Zhang et al., FedVocab, 2022."""

    source: str = option(
        "files",
        "files: texts in the folder data-dir; hub: without a data-dir, the data set is fetched from the Hugging Face "
        "hub; simulated: without a data-dir, made-up texts with as many classes as the data set",
        choices=("files", "hub", "simulated"),
    )
    dataset: str = option(
        "agnews",
        "agnews, sst2 or 20news, whose files, columns and classes are known; with any other name (that of the hub, "
        "for source 'hub'), text-columns, label-column and labels or classes tell them",
    )
    train_files: str = option(
        "", "name or pattern of the training files, train*.csv for example; '' = the data set's. Of the hub: a split"
    )
    test_files: str = option(
        "", "name or pattern of the test files; '' = the data set's. Of the hub: a split that has labels"
    )
    text_columns: str = option(
        "",
        "columns to read as text, separated by commas and joined by spaces: names, or numbers from 1 for a file "
        "without a header; '' = the data set's, or 'text'",
    )
    label_column: str = option("", "column of the label, like text-columns; '' = the data set's, or 'label'")
    labels: str = option(
        "", "the labels in the order of the classes, separated by commas; '' = the data set's, or those found, sorted"
    )
    classes: int = option(
        0, "number of classes of a data set that is not known and whose labels are not told", minimum=0
    )
    partition: str = option(
        "fednlp",
        "how examples are dealt to nodes: fednlp gives each equally many, with label shares from a Dirichlet "
        "distribution; iid, dirichlet, pathological and linear are those of flwr-datasets",
        choices=PARTITIONS,
    )
    alpha: float = option(
        1.0, "of the partitions fednlp and dirichlet: the smaller, the fewer labels per node", above=0
    )
    classes_per_node: int = option(2, "of the partition pathological", minimum=1)
    partition_seed: int = option(0, "seed of the partition and of the validation examples", minimum=0)
    validation_share: float = option(
        0.1, "share of a node's training examples kept for validation", minimum=0, maximum=0.9
    )
    model: str = option(
        LSTM,
        "lstm: bidirectional, over word vectors; or an encoder of the library transformers: the folder that holds it, "
        "or its name on the hub (distilbert-base-uncased)",
        path=True,
    )
    weights: str = option(
        "pretrained",
        "what a transformer starts from: pretrained weights, or random ones of which only the configuration is read",
        choices=("pretrained", "random"),
    )
    hidden: int = option(300, "units of the LSTM in each direction", minimum=1)
    embedding_width: int = option(300, "numbers per word vector of the LSTM", minimum=1)
    dropout: float = option(0.5, "share of units that are dropped in training", minimum=0, maximum=0.9)
    max_length: int = option(
        0,
        f"words of a text that are read; 0 = the paper's for the data set, or {DEFAULT_LENGTH}",
        minimum=0,
    )
    vocabulary: str = option(
        "auto",
        "own: each node's, the words of its training texts; shared: one of all nodes' training texts, for simulation; "
        "file: that of vocabulary-file, or the words of glove; auto: own under a method that keeps the embedding "
        "private, else file where there is one, else shared. A transformer has that of its tokenizer",
        choices=("auto", "own", "shared", "file"),
    )
    vocabulary_file: str = option(
        "",
        "the JSON of a tokenizer, or a word at the beginning of each line, as in files of GloVe vectors; where "
        "vocabulary = 'auto' comes to 'own', it is not read",
        path=True,
    )
    vocabulary_size: int = option(30_000, "most words of a vocabulary; 0 = all of a node's own or of a file", minimum=0)
    min_count: int = option(1, "how often a word occurs to be in a vocabulary", minimum=1)
    glove: str = option(
        "",
        "file of GloVe vectors that embeddings start from; '' = at random, as are words that the file has not",
        path=True,
    )
    own_starts: str = option(
        "",
        "under a method whose nodes begin with embeddings of their own: files of GloVe vectors, or encoders with "
        "embeddings of the width of model's, separated by commas and dealt to nodes at random; '' = every node draws "
        "all its vectors",
        path=True,
    )
    global_examples: int = option(
        0, "examples of the common test set that every node is tested on, drawn once for all nodes; 0 = all", minimum=0
    )
    world_examples: int = option(
        60, "training examples per node of a simulated corpus; it has a quarter as many test examples", minimum=4
    )

    @property
    def recurrent(self) -> bool:
        """Whether the model is the LSTM."""
        return self.model == LSTM

    @property
    def own_start_names(self) -> tuple[str, ...]:
        """The files or encoders of ``own_starts``."""
        return _listed(self.own_starts)

    @property
    def words_file(self) -> str:
        """The file whose words a shared vocabulary has, if any: its own, or that of the vectors it starts from."""
        return self.vocabulary_file or self.glove

    @property
    def length(self) -> int:
        """The longest text, with the data set's default filled in."""
        known = KNOWN.get(self.dataset)
        return self.max_length or (known.lengths[not self.recurrent] if known else DEFAULT_LENGTH)

    def check(self) -> None:
        """Raise :class:`DataError` for options that do not go together."""
        if not self.recurrent and self.vocabulary not in ("auto", "own"):
            raise DataError(
                f"text.vocabulary = {self.vocabulary!r}: a transformer ({self.model}) brings its own tokenizer; set "
                "text.vocabulary = 'auto', or text.model = 'lstm'"
            )
        if not self.recurrent and self.glove:
            raise DataError(f"text.glove = {self.glove!r}: only the LSTM starts from word vectors; leave it empty")
        if self.recurrent and self.weights == "random":
            raise DataError("text.weights = 'random' is for transformers: the LSTM always starts from random weights")
        if self.vocabulary == "file" and not self.words_file:
            raise DataError(
                "text.vocabulary = 'file': name the file in text.vocabulary-file, or in text.glove the vectors whose "
                "words it has"
            )
        if self.vocabulary in ("own", "shared") and self.vocabulary_file:
            raise DataError(
                f"text.vocabulary = {self.vocabulary!r} does not read text.vocabulary-file = {self.vocabulary_file!r}: "
                "set text.vocabulary = 'file' or 'auto', or leave it empty"
            )
        if self.vocabulary == "shared":
            self.check_shared()
        self.layout()

    def check_shared(self) -> None:
        """Raise :class:`DataError` where the server could not build the embedding of a vocabulary shared by all."""
        if self.vocabulary_size == 0:
            raise DataError(
                "text.vocabulary-size = 0: a vocabulary shared by all nodes needs a size of at least 1, which the "
                "server knows without the data"
            )
        if self.glove:
            raise DataError(
                f"text.glove = {self.glove!r} with text.vocabulary = 'shared': the server does not see the texts, and "
                "so cannot know which vectors to start from; set text.vocabulary = 'auto' to share their words"
            )

    def layout(self) -> Layout:
        """Where the examples are. Raises :class:`DataError` when nothing tells the number of classes."""
        known = KNOWN.get(self.dataset)
        labels = _listed(self.labels) or (known.labels if known else ())
        if len(set(labels)) != len(labels):
            raise DataError(f"text.labels = {self.labels!r}: a label stands there twice")
        classes = len(labels) or self.classes
        if classes < 2:
            raise DataError(
                f"text.dataset = {self.dataset!r} is none of {', '.join(KNOWN)}: list its labels in text.labels, or "
                "set text.classes to their number, at least 2"
            )
        if self.source != "files":
            told = _listed(self.labels) if self.source == "hub" else ()
            numbers = tuple(str(label) for label in range(classes))
            found = self.source == "hub" and known is None
            return Layout(("train.jsonl",), ("test.jsonl",), WRITTEN, told or (() if found else numbers), classes)
        columns = known.columns if known else WRITTEN
        return Layout(
            (self.train_files,) if self.train_files else known.train if known else _any_format("train"),
            (self.test_files,) if self.test_files else known.test if known else _any_format("test"),
            Columns(_listed(self.text_columns) or columns.text, self.label_column.strip() or columns.label),
            labels,
            classes,
        )

    def hub(self) -> tuple[str, Hub]:
        """The training split, and the data set's place on the hub."""
        known = KNOWN.get(self.dataset)
        hub = known.hub if known else Hub(self.dataset, WRITTEN)
        columns = Columns(
            _listed(self.text_columns) or hub.columns.text, self.label_column.strip() or hub.columns.label
        )
        return self.train_files or "train", Hub(hub.name, columns, self.test_files or hub.test)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


def _any_format(stem: str) -> tuple[str, ...]:
    return tuple(stem + suffix for suffix in FORMATS)
