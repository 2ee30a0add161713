"""The share of texts that a model classifies correctly, and what it should exceed: the most frequent class, and linear
models on TF-IDF and on the vectors of a pretrained encoder.

Texts are in batches of similar length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch
from fedapps.tasks.base import Batch, Metrics
from fedapps.tasks.language import word
from fedapps.tasks.partitioners import Part, right_in_stage
from fedapps.tasks.profiles import fingerprint
from torch import Tensor, nn

from fedapps.base.seeding import generator

from .corpus import Corpus
from .nodes import CommonTest, common_rows, mean_vectors, node_key, partitions, splits_of, translated
from .options import STATES, Options
from .transformer import cached_by_files, load_tokenizer
from .vocabulary import padded

CHUNK = 128  # examples per batch in evaluation


def logits_of(model: nn.Module, batch: Batch) -> Tensor:
    """The logits of a batch, from the states above frozen layers where these are kept."""
    inputs = [batch["ids"], batch["length"], *([batch[STATES]] if STATES in batch else [])]
    logits: Tensor = model(*inputs)
    return logits


def trimmed(examples: Batch, order: Tensor, batch_size: int) -> Iterator[Batch]:
    """Yield batches of ``examples`` (``ids``, ``length``, ``label``) in this order, padded to their longest text."""
    for rows in torch.split(order, batch_size):
        longest = int(examples["length"][rows].max())
        batch = {name: tensor[rows] for name, tensor in examples.items()}
        yield {**batch, **{name: batch[name][:, :longest] for name in ("ids", STATES) if name in batch}}


def by_length(examples: Batch, batch_size: int) -> Iterator[Batch]:
    """Yield batches of texts of similar length."""
    yield from trimmed(examples, examples["length"].argsort(stable=True), batch_size)


def on_common(model: nn.Module, common: CommonTest, stage_of: np.ndarray | None, *, private: bool) -> Metrics:
    """The accuracy on the common test examples, computed once for a model that several nodes have.

    It is not looked up for a model with a ``private`` embedding, because each node has another one.
    """
    key = b"" if private or model.training else fingerprint(model.state_dict().values())
    if key and key in common.scores:
        return common.scores[key]
    batches = (translated(batch, common.translation) for batch in by_length(common.examples, CHUNK))
    metrics = accuracy("test.global_", model, batches, stage_of)
    if key:
        common.scores.clear()
        common.scores[key] = metrics
    return metrics


def accuracy(prefix: str, model: nn.Module, batches: Iterator[Batch], stage_of: np.ndarray | None = None) -> Metrics:
    """The share of correctly classified examples, and the number of examples.

    With ``stage_of``, the stage of each class, ``stage_accuracy`` is the share among the classes of their stage.
    """
    device = next(model.parameters()).device
    right, total = {"accuracy": 0} | ({} if stage_of is None else {"stage_accuracy": 0}), 0
    for batch in batches:
        logits, labels = logits_of(model, {name: tensor.to(device) for name, tensor in batch.items()}), batch["label"]
        right["accuracy"] += int((logits.argmax(dim=1).cpu() == labels).sum())
        if stage_of is not None:
            right["stage_accuracy"] += int(right_in_stage(logits.cpu(), labels, stage_of).sum())
        total += len(labels)
    shares: Metrics = {f"{prefix}{name}": count / total for name, count in right.items()}
    return shares | {f"{name}.count": float(total) for name in shares}


#: The floors of a comparison (:func:`node_floors`).
FREQUENT, TFIDF, PROBE = "most frequent class", "TF-IDF, pooled", "linear probe, pooled"
#: Inverse regularisation and maximum number of iterations of the logistic regression.
_INVERSE, _ITERATIONS = 10.0, 200
#: The same of that on vectors of norm 1, and how many training texts it reads at most.
_INVERSE_PROBE, _PROBED = 1.0, 4000


def node_floors(corpus: Corpus, options: Options, num_nodes: int) -> Mapping[str, Sequence[Metrics]]:
    """Return the accuracies that each node measures for two predictions without federated learning.

    ``most frequent class`` predicts, for test texts with the node's label shares, the class of most of the node's
    training texts, and for the common test texts that of all nodes' training texts. ``TF-IDF, pooled`` is a logistic
    regression of scikit-learn on the TF-IDF of words, fitted to the training texts of all nodes; it is left out without
    scikit-learn, and where the training texts have one class or no words. ``linear probe, pooled`` is the same on the
    mean vectors of a pretrained encoder without training, fitted to 4,000 of the training texts at most; it is left out
    without one. Validation texts are not used. With ``text.stages``, the most frequent class is that of a stage.

    Raises
    ------
    DataError
        There are fewer training or test examples than nodes.
    """
    trained, tested = partitions(corpus, options, num_nodes)
    train = [splits_of(part, options, node_key(node))["train"] for node, part in enumerate(trained)]
    common = common_rows(len(corpus.test.texts), options.global_examples, options.partition_seed)
    pooled, asked = np.sort(np.concatenate(train)), np.union1d(common, np.concatenate(tested))
    pooled_models = {TFIDF: _by_tfidf(corpus, pooled, asked), PROBE: _by_probe(corpus, pooled, asked, options)}
    floors: dict[str, list[Metrics]] = {FREQUENT: [{} for _ in train]}
    floors |= {name: [{} for _ in train] for name, predicted in pooled_models.items() if predicted is not None}
    stage_of = options.stage_of("text", len(corpus.classes))
    for stage in range(options.stages):
        prefix = f"stage-{stage + 1}." if options.stages > 1 else ""
        own = [rows[stage_of[corpus.train.labels[rows]] == stage] for rows in train]
        everywhere = np.full(len(corpus.test.texts), _most_frequent(corpus, np.concatenate(own)))
        test = [rows[stage_of[corpus.test.labels[rows]] == stage] for rows in (common, *tested)]
        for name, of_nodes in floors.items():
            for node, metrics in enumerate(of_nodes):
                at_node = np.full(len(everywhere), _most_frequent(corpus, own[node]))
                predicted = pooled_models.get(name)
                pair = (everywhere, at_node) if predicted is None else (predicted, predicted)
                measured = _measured(corpus, test[0], pair[0], test[node + 1], pair[1])
                metrics |= {f"{prefix}{metric}": value for metric, value in measured.items()}
    return floors


def _most_frequent(corpus: Corpus, rows: Part) -> int:
    """The class of most of some training texts; the first of several."""
    return int(np.bincount(corpus.train.labels[rows], minlength=len(corpus.classes)).argmax())


def _measured(corpus: Corpus, common: Part, everywhere: np.ndarray, test: Part, own: np.ndarray) -> Metrics:
    """The metrics of a node; predictions are of all test texts, for the common ones and for the node's own."""
    metrics: Metrics = {}
    for name, rows, predicted in (("global", common, everywhere), ("local", test, own)):
        if len(rows):
            right = predicted[rows] == corpus.test.labels[rows]
            metrics |= {f"test.{name}_accuracy": float(right.mean()), f"test.{name}_accuracy.count": float(len(rows))}
    return metrics


def _by_tfidf(corpus: Corpus, train: Part, test: Part) -> np.ndarray | None:
    """The predicted class of the test texts ``test``, int64, -1 for all others; ``None`` if nothing can be fitted."""
    labels = corpus.train.labels[train]
    if find_spec("sklearn") is None or len(np.unique(labels)) < 2:
        return None
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression

    words = TfidfVectorizer(sublinear_tf=True, token_pattern=word())
    texts = corpus.train.texts_at(train)
    analyse = words.build_analyzer()
    if not any(analyse(text) for text in texts):
        return None
    model = LogisticRegression(C=_INVERSE, max_iter=_ITERATIONS).fit(words.fit_transform(texts), labels)
    predicted = np.full(len(corpus.test.texts), -1)
    predicted[test] = model.predict(words.transform(corpus.test.texts_at(test)))
    return predicted


def _by_probe(corpus: Corpus, train: Part, test: Part, options: Options) -> np.ndarray | None:
    """The predicted class of the test texts ``test``, int64, -1 for all others; ``None`` without a pretrained encoder
    or with one class.
    """
    rows = train[np.sort(generator(options.partition_seed, "text.probe").permutation(len(train))[:_PROBED])]
    labels = corpus.train.labels[rows]
    if options.recurrent or options.weights == "random" or find_spec("sklearn") is None or len(np.unique(labels)) < 2:
        return None
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=_INVERSE_PROBE, max_iter=_ITERATIONS)
    model.fit(_vectors(corpus.train.texts_at(rows), options), labels)
    predicted = np.full(len(corpus.test.texts), -1)
    if len(test) < len(predicted):
        predicted[test] = model.predict(_vectors(corpus.test.texts_at(test), options))
        return predicted
    return np.asarray(model.predict(_test_vectors(corpus, replace(options, partition_seed=0))))


@cached_by_files(1)
def _test_vectors(corpus: Corpus, options: Options) -> np.ndarray:
    """The vectors of all test texts, which are the same in every partition."""
    return _vectors(corpus.test.texts, options)


def _vectors(texts: Sequence[str], options: Options) -> np.ndarray:
    examples = padded(load_tokenizer(options.model).encode(texts, options.length))
    return mean_vectors(examples, options).numpy()
