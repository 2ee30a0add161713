"""Use a trained model of the task "text": labels and probabilities of texts; export it as one of transformers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, TextIO

import numpy as np
import torch
from fedapps.tasks.answers import Network, Predictions, Pretrained, finite_answer, several
from fedapps.tasks.base import NodeData
from fedapps.tasks.partitioners import added_logits, for_own_label_shares, own_label_shares
from fedapps.tasks.trained import TrainedModel
from torch import Tensor
from torch.nn.functional import softmax

from fedapps.base.errors import DataError
from fedapps.base.rows import lines_of, with_kind
from fedapps.base.seeding import torch_seed
from fedapps.base.tables import stream_rows

from .encoder_network import Transformer, merged
from .networks import OwnRows, SplitEmbedding
from .task import TextTask
from .vocabulary import TOKENIZER, TokenizerVocabulary, Vocabulary, padded

#: How tokenizers spell the tokens that have a role.
_ROLES = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def sequence_classifier(model: Transformer, classes: Sequence[str]) -> Any:
    """Return a classifier of the library with the same weights, in evaluation mode.

    The added logits of a node are in its biases.

    Raises
    ------
    DataError
        The classifier reads the mean of all tokens, or the library's for this encoder has other layers above it.
    """
    from transformers import AutoModelForSequenceClassification

    encoder = model.encoder
    if model.means:
        raise DataError(
            "text.pooling = 'mean': the library transformers has no classifier on the mean of all tokens; export as "
            "onnx, torch or safetensors, or train with text.pooling = 'first'"
        )
    config = deepcopy(encoder.config)
    tables = {name: len(weight) for name, weight in _embeddings(model).items() if weight.ndim == 2}
    config.vocab_size = tables.get("word_embeddings.weight", config.vocab_size)
    config.max_position_embeddings = tables.get("position_embeddings.weight", config.max_position_embeddings)
    config.num_labels = len(classes)
    config.id2label = dict(enumerate(classes))
    config.label2id = {name: label for label, name in enumerate(classes)}
    classifier = AutoModelForSequenceClassification.from_config(config)
    prefix = classifier.base_model_prefix
    weights = {f"{prefix}.{name}": weight for name, weight in encoder.state_dict().items()}
    weights |= {f"{prefix}.embeddings.{name}": weight for name, weight in _embeddings(model).items()}
    weights |= {name: weight for name, weight in model.state_dict().items() if "classifier." in name}
    if (added := added_logits(model)) is not None:
        weights["classifier.bias"] = weights["classifier.bias"] + added.to(weights["classifier.bias"])
    if "classifier.out_proj.weight" in classifier.state_dict():  # RoBERTa calls its pooler a part of the classifier
        names = {f"{prefix}.pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
        weights = {_renamed(name, names): weight for name, weight in weights.items()}
    try:
        classifier.load_state_dict(weights)
    except RuntimeError as error:
        raise DataError(
            f"{type(classifier).__name__} of the library transformers has other layers than this model, whose encoder "
            f"is a {type(encoder).__name__}; use another format"
        ) from error
    return classifier.eval()


def _embeddings(model: Transformer) -> dict[str, Tensor]:
    """The state of the embeddings, with one table where rows of digits were private."""
    state = model.embedding.state_dict()
    for name, part in model.embedding.named_modules():
        if isinstance(part, SplitEmbedding):
            del state[f"{name}.private"]
            with torch.no_grad():
                state[f"{name}.weight"] = part(torch.arange(len(part.places), device=part.places.device))
        if isinstance(part, OwnRows):
            del state[f"{name}.public"]
            state[f"{name}.weight"] = part.whole()
    return state


def _renamed(name: str, names: dict[str, str]) -> str:
    module, _, kind = name.rpartition(".")
    return f"{names.get(module, module)}.{kind}"


def pretrained_tokenizer(vocabulary: TokenizerVocabulary, length: int) -> Any:
    """Return the tokenizer as one of the library, which cuts texts to ``length`` tokens."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = deepcopy(vocabulary.tokenizer)
    tokenizer.no_truncation()
    known = tokenizer.get_vocab()
    roles = {role: next(filter(known.__contains__, names), None) for role, names in _ROLES.items()}
    special = {role: token for role, token in roles.items() if token is not None}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=length, **special)


def logits_of(classifier: Any, inputs: Sequence[Tensor]) -> list[np.ndarray]:
    """The logits ``[n, classes]`` of ``ids [n, L]`` and ``length [n]``."""
    ids, length = inputs
    mask = torch.arange(ids.shape[1]) < length[:, None]
    with torch.no_grad():
        return [classifier(input_ids=ids.long(), attention_mask=mask.long()).logits.numpy()]


#: The ending of files with a text on each line.
PLAIN = ".txt"


class TextTrained(TrainedModel):
    """A classifier of texts with its vocabulary, which may be that of one node."""

    task: TextTask
    pipeline_tag: ClassVar[str] = "text-classification"
    file_sizes: ClassVar[Mapping[str, int]] = {TOKENIZER: 1 << 27}

    def __init__(self, *arguments: Any, **further: Any) -> None:
        super().__init__(*arguments, **further)
        if self.files:  # read now: the folder may be deleted or hold another model later
            self.vocabulary = self.task.vocabulary_of(self.facts, self.files)

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of their numbers."""
        return tuple(self.facts["classes"])

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words, in the order of the rows of the embedding."""
        return self.task.vocabulary_of(self.facts, self.files)

    def predict(self, texts: Sequence[str], batch_size: int = 128, *, own_shares: bool = True) -> Predictions:
        """Classify texts.

        Parameters
        ----------
        texts : sequence of str
            As written; words beyond ``text.max-length`` are ignored.
        batch_size : int
            ≥ 1. Texts of similar length are computed together.
        own_shares : bool
            Whether the texts have the label shares of the model's node, as the node's own test examples have. This
            matters only to a model with the added logits of its node (``logit-adjustment``), which predicts for
            balanced labels otherwise. ``fedapps predict`` and exports predict as with ``True``.

        Returns
        -------
        Predictions

        Raises
        ------
        DataError
            ``texts`` is a single text, an example is no text, or the model has no finite answer to it.
        """
        several(texts, "texts", str)
        if batch_size < 1:
            raise DataError(f"batch_size = {batch_size}: must be at least 1")
        examples = padded(self.vocabulary.encode(texts, self.task.options.length))
        order = examples["length"].argsort(stable=True)
        probabilities = torch.empty(len(texts), len(self.classes))
        with torch.no_grad(), own_label_shares(self.module) if own_shares else nullcontext():
            for rows in torch.split(order, batch_size) if len(texts) else ():
                length = examples["length"][rows]
                ids = examples["ids"][rows, : int(length.max())]
                probabilities[rows] = softmax(self.module(ids.to(self.device), length), dim=1).cpu()
        return Predictions.of(finite_answer(probabilities.numpy(), "probabilities"), self.classes)

    def rows(self, inputs: Sequence[Path | TextIO], batch_size: int = 128) -> Iterator[dict[str, Any]]:
        """Yield ``text``, ``label``, ``probability`` and ``probability.<label>`` of every class, for each text.

        A text is a line of a ``.txt`` file or of a stream, or a row of a CSV, TSV or JSON-lines file with the columns
        of the training files (``text.text-columns``); JSON lines have ``text`` where those are numbered. A stream that
        begins with ``{`` has JSON lines.
        """
        texts = (text for source in inputs for text in self._texts(source))
        while batch := list(islice(texts, batch_size)):
            predictions = self.predict(batch, batch_size)
            yield from ({"text": text} | row for text, row in zip(batch, predictions.rows(self.classes), strict=True))

    def _texts(self, source: Path | TextIO) -> Iterator[str]:
        layout = self.task.layout.columns
        table: Path | Iterable[str] = source
        if isinstance(source, Path):
            plain, is_json = source.suffix == PLAIN, ".jsonl" in source.suffixes
        else:
            is_json, table = with_kind(source)
            plain = not is_json
        if plain:
            yield from _plain(table)
            return
        columns = ("text",) if is_json and layout.numbered else layout.text  # an object has no numbered columns
        hint = "text.text-columns names the columns to read; a .txt file has a text on each line"
        for row in stream_rows(table, columns, header=not layout.numbered, hint=hint):
            yield " ".join(row.cells[name] for name in columns)

    def data(self, folder: str | Path, partition: int | None = None, num_partitions: int = 1) -> NodeData:
        """As :meth:`fedapps.tasks.trained.TrainedModel.data`, in the model's vocabulary and with its classes."""
        path = Path(folder).expanduser()
        return self.task.read_with(self.vocabulary, self.classes, path, partition, num_partitions)

    def network(self, example: NodeData | None = None) -> Network:
        """Map ``ids`` int32 ``[n, L]`` and ``length`` int64 ``[n]`` to ``logits`` ``[n, classes]``.

        Adapters are merged into the layers of the encoder. The logits include the added logits of the node, if the
        model has them.
        """
        encoder = self.facts.get("embedding") or self.facts.get("encoder") or {}
        rows = encoder.get("vocab_size", len(self.vocabulary.words))  # a tokenizer may have more tokens
        with torch_seed(0, "text", "network"):
            ids = torch.randint(rows, (3, 4), dtype=torch.int32)
        inputs = ids, torch.tensor([4, 1, 3])
        how = (
            "ids = tokenizers.Tokenizer.from_file('files/tokenizer.json').encode(text).ids"
            if isinstance(self.vocabulary, TokenizerVocabulary)
            else "config.json has them"
        )
        outside = f"The splitting of texts into words and the numbers of these stay outside: {how}. Logits are in the "
        outside += "order of facts.classes in config.json."
        dynamic = {"ids": {0: "batch", 1: "words"}, "length": {0: "batch"}}
        module = merged(self.module).cpu()
        if isinstance(module, Transformer):
            module.precision = "float32"  # programs compute in float32
        return Network(for_own_label_shares(module), inputs, ("ids", "length"), ("logits",), dynamic, outside)

    def pretrained(self) -> Pretrained | None:
        """The classifier as one of the library transformers, with merged adapters; ``None`` for an LSTM.

        Raises
        ------
        DataError
            The library has no such classifier.
        """
        vocabulary, module = self.vocabulary, self.module
        if not isinstance(module, Transformer) or not isinstance(vocabulary, TokenizerVocabulary):
            return None
        classifier = sequence_classifier(merged(module).cpu(), self.classes)
        return Pretrained(classifier, pretrained_tokenizer(vocabulary, self.task.options.length), logits_of)

    def save_files(self, folder: Path) -> None:
        """Write the tokenizer, which cuts texts to the run's length, where the vocabulary is one."""
        if isinstance(self.vocabulary, TokenizerVocabulary):
            self.vocabulary.tokenizer.enable_truncation(self.task.options.length)
            (folder / TOKENIZER).write_text(self.vocabulary.tokenizer.to_str(), encoding="utf-8")


def _plain(source: Path | Iterable[str]) -> Iterator[str]:
    """The lines that are not blank."""
    with lines_of(source) as lines:
        yield from (text for line in lines if (text := line.strip()))
