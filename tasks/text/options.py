"""Options of the text task, and what they mean for the words of an embedding that a method keeps on the nodes."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from fedapps.tasks.partitioners import StageOptions
from fedapps.tasks.profiles import PrivateParameters

from fedapps.base.errors import DataError
from fedapps.base.options import matches, option, split_names
from fedapps.base.tables import table_names

from .corpus import Columns, Layout
from .sources import PUBLISHED, HubDataset

#: The columns of the files of a simulated or downloaded corpus.
WRITTEN = Columns(("text",), "label")
MADE = ("train.jsonl",)
#: FedNLP's partition, then those of flwr-datasets.
PARTITIONS = ("fednlp", "iid", "dirichlet", "pathological", "linear")
#: The tensor of a split with the states of its texts above frozen layers, float32 ``[n, L, width]``.
STATES = "states"
LSTM = "lstm"
#: The value of ``adapter_targets`` for all linear layers of the encoder.
ALL_LINEAR = "all-linear"
DEFAULT_LENGTH = 128


@dataclass(frozen=True)
class Options(StageOptions):
    """Options of the task "text". The defaults are those of Zhang et al., FedVocab, 2022."""

    source: str = option(
        "files",
        "files: texts in the folder data-dir; hub: download the data set from the Hugging Face hub if data-dir is "
        "not set; simulated: generate texts with the data set's number of classes if data-dir is not set",
        choices=("files", "hub", "simulated"),
        data=True,
    )
    dataset: str = option(
        "agnews",
        "agnews, sst2 or 20news, whose files, columns and classes are known; for any other name (with source "
        "'hub', its name on the hub), set text-columns, label-column, and labels or classes",
        data=True,
    )
    train_files: str = option(
        "",
        "Name or pattern of the training files, for example train*.csv; '' = the data set's; with source 'hub', a "
        "split",
        data=True,
    )
    test_files: str = option(
        "", "Name or pattern of the test files; '' = the data set's; with source 'hub', a split with labels", data=True
    )
    text_columns: str = option(
        "",
        "Columns of the text, separated by commas and joined by spaces: names, or numbers from 1 for files "
        "without a header line; '' = the data set's, or 'text'",
        data=True,
    )
    label_column: str = option(
        "", "Column of the label: a name or number, as for text-columns; '' = the data set's, or 'label'", data=True
    )
    labels: str = option(
        "",
        "Labels in the order of the classes, separated by commas; '' = the data set's, or in a simulation those in "
        "data-dir, sorted",
        data=True,
    )
    classes: int = option(
        0, "Number of classes of a data set that is not known, if labels is empty", minimum=0, maximum=10**5, data=True
    )
    partition: str = option(
        "fednlp",
        "How examples are partitioned among nodes: fednlp gives equal sizes and label shares from a Dirichlet "
        "distribution; iid, dirichlet, pathological and linear are the partitioners of flwr-datasets",
        choices=PARTITIONS,
        data=True,
    )
    alpha: float = option(
        1.0,
        "Concentration of the partitions fednlp and dirichlet; smaller values give fewer labels per node",
        above=0,
        data=True,
    )
    classes_per_node: int = option(2, "Classes per node of the partition pathological", minimum=1, data=True)
    test_share: float = option(
        0.2, "Share of the training texts held out for the test, if there are no test files", minimum=0, maximum=0.8
    )
    validation_share: float = option(
        0.1, "Share of a node's training examples held out for validation", minimum=0, maximum=0.9
    )
    model: str = option(
        LSTM,
        "lstm: bidirectional LSTM over word vectors; or an encoder of the library transformers, given by its "
        "folder or its name on the hub (distilbert-base-uncased)",
        path=True,
    )
    weights: str = option(
        "pretrained",
        "Initial weights of a transformer: pretrained, or random ones according to its configuration",
        choices=("pretrained", "random"),
    )
    pooling: str = option(
        "first",
        "What a transformer's classifier reads: the state of the first token, through the encoder's pooler if it has "
        "one; or the mean of the states of all tokens, scaled to unit variance, for encoders tuned for it",
        choices=("first", "mean"),
    )
    frozen_layers: int = option(
        0,
        "Lowest layers of a transformer that are not trained and have no dropout; every node reads them from its own "
        "files, and they are neither sent nor kept",
        minimum=0,
    )
    frozen_embedding: bool = option(False, "The same for the embedding of a transformer, under methods that share it")
    cached_states: bool = option(
        False,
        "Compute the states of each text above the frozen embedding and layers once and keep them in memory, 4 bytes a "
        "number; training gives the same results",
    )
    precision: str = option(
        "float32",
        "Numbers of a transformer's matrix products; weights and sums are float32. auto: bfloat16 on devices that "
        "compute it themselves, which are then faster, otherwise float32",
        choices=("float32", "bfloat16", "auto"),
    )
    adapter: str = option(
        "",
        "Freeze a pretrained transformer and train adapters in it and the classifier, which alone are sent and kept: "
        "lora or ia3, made by PEFT; '' = train the whole model. All nodes need the same encoder files",
        choices=("", "lora", "ia3"),
    )
    adapter_rank: int = option(8, "Rank of the LoRA adapters", minimum=1, maximum=1024)
    adapter_alpha: float = option(16.0, "Scale of the LoRA adapters, divided by their rank", above=0)
    adapter_targets: str = option(
        "",
        "Layers with adapters: the last parts of their names, separated by commas (query,value), or all-linear; '' = "
        "those that PEFT chooses for the kind of encoder",
    )
    hidden: int = option(300, "Units of the LSTM in each direction", minimum=1)
    embedding_width: int = option(300, "Numbers per word vector of the LSTM", minimum=1)
    dropout: float = option(0.5, "Dropout rate in training", minimum=0, maximum=0.9)
    max_length: int = option(
        0, f"Maximum number of words of a text; 0 = the paper's for the data set, or {DEFAULT_LENGTH}", minimum=0
    )
    vocabulary: str = option(
        "auto",
        "own: the words of each node's training texts; shared: the words of all nodes' training texts, for "
        "simulation; file: the words of vocabulary-file, or of glove; auto: own if the method keeps the embedding "
        "private, otherwise file if one is set, otherwise shared. A transformer uses its tokenizer",
        choices=("auto", "own", "shared", "file"),
    )
    vocabulary_file: str = option(
        "",
        "JSON file of a tokenizer, word vectors as in glove, or a file with a word at the start of each line; not "
        "read if vocabulary = 'auto' selects own",
        path=True,
    )
    vocabulary_size: int = option(
        30_000, "Maximum number of words; 0 = all, for vocabularies of a node or from a file", minimum=0
    )
    min_count: int = option(1, "Minimum number of occurrences of a word", minimum=1)
    glove: str = option(
        "",
        "File of word vectors for the initial embeddings: of GloVe, word2vec, fastText or gensim; '' = random, as are "
        "words that the file lacks",
        path=True,
    )
    unknown: str = option(
        "drawn",
        "Initial vector of the unknown word, which stands for all words of a text that the vocabulary lacks: drawn as "
        "that of any word; mean, of the initial vectors of the other words; or zeros",
        choices=("drawn", "mean", "zeros"),
    )
    own_starts: str = option(
        "",
        "For methods whose nodes start with different embeddings: files of word vectors, or encoders with "
        "embeddings of the model's width, separated by commas and assigned to nodes at random; '' = every node "
        "draws random vectors",
        path=True,
    )
    train_examples: int = option(0, "Training examples of each node that are used, drawn once; 0 = all", minimum=0)
    test_examples: int = option(
        0, "Test examples with its own label shares on which a node is evaluated, drawn once; 0 = all", minimum=0
    )
    global_examples: int = option(
        0, "Examples of the common test set on which every node is evaluated, drawn once; 0 = all", minimum=0
    )
    world_examples: int = option(
        60,
        "Training examples per node of a simulated corpus, which has a quarter as many test examples",
        minimum=4,
        data=True,
    )

    @property
    def recurrent(self) -> bool:
        """Whether the model is the LSTM."""
        return self.model == LSTM

    @property
    def own_start_names(self) -> tuple[str, ...]:
        """The files or encoders of ``own_starts``."""
        return split_names(self.own_starts)

    @property
    def words_file(self) -> str:
        """The file of a shared vocabulary: ``vocabulary_file``, or the file of the initial vectors; "" if there is
        none.
        """
        return self.vocabulary_file or self.glove

    @property
    def length(self) -> int:
        """The maximum text length, with the data set's default filled in."""
        known = PUBLISHED.get(self.dataset)
        return self.max_length or (known.lengths[not self.recurrent] if known else DEFAULT_LENGTH)

    def check(self) -> None:
        """Raise :class:`DataError` if options are incompatible."""
        if not self.recurrent and self.vocabulary not in ("auto", "own"):
            raise DataError(
                f"text.vocabulary = {self.vocabulary!r}: a transformer ({self.model}) uses its own tokenizer; set "
                "text.vocabulary = 'auto', or text.model = 'lstm'"
            )
        if not self.recurrent and self.glove:
            raise DataError(f"text.glove = {self.glove!r}: only the LSTM uses word vectors; leave it empty")
        if not self.recurrent and self.unknown != "drawn":
            raise DataError(
                f"text.unknown = {self.unknown!r}: only the LSTM has an unknown word, because a tokenizer takes words "
                "apart; set text.unknown = 'drawn'"
            )
        if self.recurrent and self.weights == "random":
            raise DataError(
                "text.weights = 'random' applies to transformers only, because the LSTM always starts from random "
                "weights: set text.weights = 'pretrained'"
            )
        self.check_frozen()
        if self.adapter and (self.recurrent or self.weights == "random"):
            has = f"text.model = {self.model!r}" if self.recurrent else "text.weights = 'random'"
            raise DataError(
                f"text.adapter = {self.adapter!r} with {has}: adapters change a frozen pretrained encoder; name its "
                "folder or its name on the hub in text.model with text.weights = 'pretrained', or leave text.adapter "
                "empty"
            )
        if self.vocabulary == "file" and not self.words_file:
            raise DataError(
                "text.vocabulary = 'file': name the file in text.vocabulary-file, or a file of vectors in text.glove"
            )
        if self.vocabulary in ("own", "shared") and self.vocabulary_file:
            raise DataError(
                f"text.vocabulary = {self.vocabulary!r} does not read text.vocabulary-file = {self.vocabulary_file!r}: "
                "set text.vocabulary = 'file' or 'auto', or leave it empty"
            )
        if self.vocabulary == "shared":
            self.check_shared()
        self.layout()

    def check_frozen(self) -> None:
        """Raise :class:`DataError` for options of transformers with the LSTM, or states that are no result of frozen
        parameters alone.
        """
        for name in ("pooling", "frozen_layers", "frozen_embedding", "cached_states", "precision"):
            if self.recurrent and (value := getattr(self, name)) != getattr(Options, name):
                key = name.replace("_", "-")
                raise DataError(f"text.{key} = {value!r} applies to transformers only: name one in text.model")
        if self.cached_states and self.weights == "random":
            raise DataError(
                "text.cached-states = true with text.weights = 'random': states are computed with the pretrained "
                "weights; set text.weights = 'pretrained', or text.cached-states = false"
            )
        if self.cached_states and not self.frozen_embedding:
            raise DataError(
                "text.cached-states = true: the states of texts change while the embedding is trained; set "
                "text.frozen-embedding = true, or text.cached-states = false"
            )

    def check_shared(self) -> None:
        """Raise :class:`DataError` if the server could not build the embedding of a vocabulary shared by all nodes."""
        if self.vocabulary_size == 0:
            raise DataError(
                "text.vocabulary-size = 0: a vocabulary shared by all nodes needs a size of at least 1, because the "
                "server does not see the texts"
            )
        if self.glove:
            raise DataError(
                f"text.glove = {self.glove!r} with text.vocabulary = 'shared': the server does not see the texts and "
                "cannot select their vectors; set text.vocabulary = 'auto' to share the words of the file"
            )

    def layout(self) -> Layout:
        """Return where the examples are. Raise :class:`DataError` if the number of classes is unknown."""
        known = PUBLISHED.get(self.dataset)
        labels = split_names(self.labels) or (known.labels if known else ())
        if len(set(labels)) != len(labels):
            raise DataError(f"text.labels = {self.labels!r}: a label occurs twice; list each label once")
        classes = len(labels) or self.classes
        if classes < 2:
            raise DataError(
                f"text.dataset = {self.dataset!r} is not one of {', '.join(PUBLISHED)}: list its labels in "
                "text.labels, or set text.classes to their number, at least 2 (a simulation finds them in data-dir; "
                "fedapps nodes RECIPE --set data-dir=FOLDER prints the line)"
            )
        if self.classes not in (0, classes):
            raise DataError(
                f"text.classes = {self.classes}: there are {classes} labels ({', '.join(labels[:9])}); leave it 0, or "
                "list the labels of your data in text.labels"
            )
        if self.source != "files":
            own_labels = split_names(self.labels) if self.source == "hub" else ()
            numbers = tuple(str(label) for label in range(classes))
            unknown = self.source == "hub" and known is None
            return Layout(
                MADE, ("test.jsonl",), WRITTEN, own_labels or (() if unknown else numbers), classes, self.hint
            )
        return Layout(
            self.train_candidates,
            (self.test_files,) if self.test_files else known.test if known else table_names("test"),
            self.columns,
            labels,
            classes,
            self.hint,
            "text.labels"
            if split_names(self.labels) or not known
            else f"those of text.dataset = {self.dataset!r}; for texts "
            "of your own, choose another name for text.dataset",
            self.test_share,
            self.partition_seed,
        )

    @property
    def columns(self) -> Columns:
        """The columns of files that people have."""
        known = PUBLISHED.get(self.dataset)
        columns = known.columns if known else WRITTEN
        return Columns(split_names(self.text_columns) or columns.text, self.label_column.strip() or columns.label)

    @property
    def train_candidates(self) -> tuple[str, ...]:
        """The names of the training files that people have."""
        known = PUBLISHED.get(self.dataset)
        return (self.train_files,) if self.train_files else known.train if known else table_names("train")

    @property
    def hint(self) -> str:
        """The key that decides the names of the files, for the error if there are none."""
        if self.source != "files":
            return (
                f"text.source = {self.source!r} reads only what it made itself; for files of your own, set text.source "
                "= 'files'"
            )
        if self.dataset in PUBLISHED and not self.train_files:
            return (
                f"these are the files of text.dataset = {self.dataset!r}; for others, choose another name for "
                "text.dataset, or name the files in text.train-files"
            )
        return "text.train-files names the files"

    @property
    def finds_labels(self) -> bool:
        """Whether the classes are still to be found in files that people have."""
        return self.source == "files" and self.dataset not in PUBLISHED and not self.labels and not self.classes

    def hub(self) -> tuple[str, HubDataset]:
        """Return the training split, and the data set on the hub."""
        known = PUBLISHED.get(self.dataset)
        hub = known.hub if known else HubDataset(self.dataset, WRITTEN)
        columns = Columns(
            split_names(self.text_columns) or hub.columns.text, self.label_column.strip() or hub.columns.label
        )
        return self.train_files or "train", HubDataset(hub.name, columns, self.test_files or hub.test)


#: The source of the words of an embedding: each node's texts, all nodes' texts, a file, or a transformer's tokenizer.
VocabularySource = Literal["own", "shared", "file", "tokenizer"]


class PrivateWords(Enum):
    """The words whose vectors never leave the node."""

    NONE = "none"
    DIGITS = "digits"
    ALL = "all"


def word_table(options: Options) -> str:
    """Return the name of the module with the word vectors."""
    return "embedding" if options.recurrent else "embedding.word_embeddings"


def is_private(name: str, privacy: PrivateParameters) -> bool:
    """Return whether the parameter ``name`` stays on the node."""
    return matches(name, privacy.patterns)


def private_words(options: Options, privacy: PrivateParameters) -> PrivateWords:
    """Return ``ALL`` if the table ``weight`` is private, ``DIGITS`` if only a separate table ``private`` would be."""
    table = word_table(options)
    if is_private(f"{table}.weight", privacy):
        return PrivateWords.ALL
    return PrivateWords.DIGITS if is_private(f"{table}.private", privacy) else PrivateWords.NONE


def vocabulary_source(options: Options, privacy: PrivateParameters) -> VocabularySource:
    """Return the source of the words, with "auto" resolved.

    Raises
    ------
    DataError
        Nodes would have different words in an embedding that they share, or the server lacks information to build a
        shared vocabulary (:meth:`Options.check_shared`).
    """
    if not options.recurrent:
        return "tokenizer"
    vocabulary = options.vocabulary
    private = private_words(options, privacy) is PrivateWords.ALL
    if vocabulary == "own" or (vocabulary == "auto" and private):
        if not private:
            raise DataError(
                "text.vocabulary = 'own': nodes with different words cannot share the parameter embedding.weight, "
                "whose rows would stand for different words; set text.vocabulary = 'auto', 'shared' or 'file', or "
                f"use a method that keeps embedding.* private (private here: {', '.join(privacy.patterns) or 'none'})"
            )
        return "own"
    if vocabulary == "file" or (vocabulary == "auto" and options.words_file):
        return "file"
    options.check_shared()
    return "shared"


def check_trained_words(options: Options, privacy: PrivateParameters) -> None:
    """Raise :class:`DataError` if all that a method keeps private is a frozen embedding."""
    if options.frozen_embedding and privacy.patterns and all(one.startswith("embedding") for one in privacy.patterns):
        raise DataError(
            f"text.frozen-embedding = true: the method keeps only {', '.join(privacy.patterns)} private, which would "
            "not be trained; set it to false for this method"
        )


def check_initial_vectors(options: Options, privacy: PrivateParameters) -> None:
    """Raise :class:`DataError` for ``own_starts`` under a method that keeps only the rows of digits private."""
    if privacy.own_start and options.own_starts and private_words(options, privacy) is PrivateWords.DIGITS:
        raise DataError(
            f"text.own-starts = {options.own_starts!r}: the method keeps only the vectors of digits private, which "
            "must match the shared ones; leave it empty, or use a method that keeps embedding.* private"
        )
