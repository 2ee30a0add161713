"""Texts about scores for three nodes, and what the models of nodes begin with."""

import torch
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.sources import write_examples
from fedapps.tasks.text.task import TextTask

SMALL = Options(source="simulated", dataset="mine", classes=2, hidden=3, embedding_width=4, dropout=0.0)
#: A simulated corpus of four classes for six nodes.
CORPUS = Options(source="simulated", hidden=8, embedding_width=12, dropout=0.0, partition_seed=1)
CORPUS_NODES = 6
SHARED = PrivateParameters()
FEDRECON = PrivateParameters(("embedding*private",))
FEDVOCAB = PrivateParameters(("embedding.*",))
OWN_START = PrivateParameters(("embedding.*",), own_start=True)
NODES = 3
TEXTS = [f"{word} {number} goals in {1990 + number}" for word in ("win", "loss", "tie") for number in range(8)]


def write_world(folder):
    """Texts for three nodes, with words in common and digit words that others have not; gives the folder."""
    for name, texts in (("train", TEXTS), ("test", [*TEXTS[:6], "win 2050 goals"])):
        write_examples(folder / f"{name}.jsonl", texts, [i % 2 for i in range(len(texts))])
    return folder


def model_for(task, data, seed=0):
    torch.manual_seed(seed)
    return task.build_model_for(data).eval()


def model_of(task, seed=0):
    torch.manual_seed(seed)
    return task.build_model().eval()


def own_words(options):
    """The task under a method that keeps the embedding private."""
    return TextTask(options).under(FEDVOCAB)


def words_of(data):
    """The words of a node's vocabulary."""
    return data.extra["vocabulary"].words


def texts(data, split):
    """The examples as words, as a set of (label, text)."""
    part, words = data.splits[split], words_of(data)
    rows = zip(part["ids"].tolist(), part["length"].tolist(), part["label"].tolist(), strict=True)
    return {(label, " ".join(words[i] for i in ids[:length])) for ids, length, label in rows}


def nodes_of(task, world):
    return [task.load_node(world, k, NODES) for k in range(NODES)]


def vectors(model, data):
    """The embedding's vector of each of the node's words."""
    words = data.extra["vocabulary"].words
    return dict(zip(words, model.embedding(torch.arange(len(words))).detach(), strict=True))


def renamed(folder, file, names):
    """The folder of an encoder with other words in one of its files."""
    text = (folder / file).read_text()
    for name, new in names.items():
        text = text.replace(f'"{name}"', f'"{new}"')
    (folder / file).write_text(text)
    return str(folder)


def state(model, private):
    """Parameters that do not begin with ``private``."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(private)}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []
