"""What an audit attacks in a text task: sentences with digits, and the classifier that reads them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from fedapps.tasks.base import Batch, NodeData
from fedapps.tasks.privacy.sharing import Victim
from fedapps.tasks.privacy.subject import AuditSubject, Sentence
from fedapps.tasks.privacy.tokens import TokenTable
from fedapps.tasks.private_parameters import PrivateParameters
from fedapps.tasks.text.corpus import read_corpus
from fedapps.tasks.text.networks import TextClassifier
from fedapps.tasks.text.private_words import vocabulary_source, word_table
from fedapps.tasks.text.vocabulary import Vocabulary, is_digits
from torch import Tensor, nn

from .body import above_words
from .sentences import draw_sentences, special_tokens, with_sentences, word_counts
from .sharing import SHARINGS

if TYPE_CHECKING:
    from fedapps.tasks.text.task import TextTask

_PADDING = ("<pad>", "[PAD]")


class TextSubject(AuditSubject):
    """A classifier of texts. The victim keeps its word vectors for all methods; digit tokens are private."""

    sharings = SHARINGS
    methods = ("fedavg", "fedrecon", "fedvocab")
    attacks = ("subspace", "sparse", "dlg", "rows")
    private = PrivateParameters(("embedding.*",))
    #: How the paper describes its Table 2 and Figure 3 (Zhang et al., FedVocab, Section 4.2 and Appendix B.3).
    paper: ClassVar[Mapping[tuple[str, str], str]] = {
        ("fedavg", "known"): "almost all, digits too",
        ("fedrecon", "known"): "high, except digits",
        ("fedvocab", "foreign"): "almost zero",
    }

    def choose(
        self, task: "TextTask", data: NodeData, folder: Path, count: int, seed: int
    ) -> tuple[NodeData, Sequence[Sentence]]:
        """Draw sentences of all texts and add them to the node's (:func:`.draw_sentences`)."""
        own = vocabulary_source(task.options, self.private) == "own"
        texts = read_corpus(folder, task.layout).train
        sentences = draw_sentences(texts, _vocabulary(data), count, own=own, seed=seed)
        return with_sentences(data, sentences), sentences

    def victim(self, task: "TextTask", model: nn.Module, data: NodeData) -> Victim:
        vectors = model.get_submodule(word_table(task.options)).weight
        assert isinstance(vectors, Tensor)
        # Every row of the table needs a distinct name, including ids that have no token.
        named = _vocabulary(data).words[: len(vectors)]
        words = tuple(word or f"[no. {number}]" for number, word in enumerate(named))
        padding = next((word for word in _PADDING if word in words), None)
        table = TokenTable(words, vectors.detach()[: len(words)].clone(), padding)
        return Victim(above_words(cast(TextClassifier, model)), table)

    def batch(self, data: NodeData, rows: Tensor, lengths: Tensor, labels: Tensor) -> Batch:
        return {"ids": rows.int(), "length": lengths, "label": labels}

    def special_tokens(self, data: NodeData) -> frozenset[str]:
        return special_tokens(_vocabulary(data))

    def frequencies(self, task: "TextTask", data: NodeData, folder: Path) -> Mapping[str, int]:
        """Return the counts of the words of the test texts, on which no node trains."""
        texts = read_corpus(folder, task.layout).test.texts
        if not len(texts):
            raise ValueError(f"{folder}: has no test texts, which stand for public text")
        return word_counts(texts, _vocabulary(data))

    def is_private(self, word: str) -> bool:
        return is_digits(word)


def _vocabulary(data: NodeData) -> Vocabulary:
    return cast(Vocabulary, data.extra["vocabulary"])
