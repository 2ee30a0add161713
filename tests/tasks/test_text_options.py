"""Options that are incompatible with each other or with a method, and defaults."""

from dataclasses import replace

import pytest
from fedapps.tasks.base import DataError
from fedapps.tasks.profiles import PrivateParameters
from fedapps.tasks.text.options import Options, PrivateWords, private_words, vocabulary_source
from fedapps.tasks.text.task import TextTask
from text_world import CORPUS, CORPUS_NODES, FEDVOCAB, model_of, own_words, words_of


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(dataset="mine"), r"text\.dataset = 'mine' is not one of agnews, sst2, 20news: list its labels"),
        (Options(classes=7), r"text\.classes = 7: there are 4 labels \(1, 2, 3, 4\); leave it 0, or list the labels"),
        (Options(labels="a,b,a"), r"text\.labels = 'a,b,a': a label occurs twice"),
        (Options(model="bert", vocabulary="shared"), r"text\.vocabulary = 'shared': a transformer \(bert\) uses"),
        (Options(model="bert", glove="g.txt"), r"text\.glove = 'g\.txt': only the LSTM"),
        (Options(model="bert", unknown="mean"), r"text\.unknown = 'mean': only the LSTM has an unknown word"),
        (Options(weights="random"), r"text\.weights = 'random' applies to transformers only"),
        (Options(vocabulary="file"), r"text\.vocabulary = 'file': name the file in text\.vocabulary-file"),
        (Options(vocabulary="own", vocabulary_file="a"), r"text\.vocabulary = 'own' does not read .*-file = 'a'"),
        (Options(vocabulary="shared", glove="g"), r"text\.glove = 'g' with text\.vocabulary = 'shared': the server"),
        (Options(vocabulary="shared", vocabulary_size=0), r"text\.vocabulary-size = 0"),
    ],
)
def test_options_that_do_not_go_together(options, message):
    with pytest.raises(DataError, match=message):
        TextTask(options)


@pytest.mark.parametrize(
    ("options", "private", "source"),
    [
        (Options(), ("embedding.*",), "own"),
        (Options(vocabulary_file="f"), ("embedding.weight",), "own"),
        (Options(vocabulary_file="f"), ("encoder.*",), "file"),
        (Options(glove="g"), ("encoder.*",), "file"),
        (Options(glove="g"), ("embedding.*",), "own"),
        (Options(), (), "shared"),
        (Options(), ("embedding*private",), "shared"),
        (Options(vocabulary="shared"), ("*",), "shared"),
        (Options(vocabulary="file", vocabulary_file="f"), ("*",), "file"),
        (Options(vocabulary="file", glove="f"), ("embedding.*",), "file"),
        (Options(model="bert"), (), "tokenizer"),
        (Options(model="bert", vocabulary="own"), ("*",), "tokenizer"),
    ],
)
def test_where_words_come_from_under_a_method(options, private, source):
    assert vocabulary_source(options, PrivateParameters(private)) == source


@pytest.mark.parametrize(
    ("model", "private", "kept"),
    [
        ("lstm", ("embedding.*",), PrivateWords.ALL),
        ("lstm", ("embedding*private",), PrivateWords.DIGITS),
        ("lstm", ("encoder.*",), PrivateWords.NONE),
        ("bert", ("embedding.*",), PrivateWords.ALL),
        ("bert", ("embedding.weight",), PrivateWords.NONE),
        ("bert", ("embedding.word_embeddings.weight", "x"), PrivateWords.ALL),
        ("bert", ("embedding*private",), PrivateWords.DIGITS),
    ],
)
def test_what_of_the_words_a_method_keeps(model, private, kept):
    assert private_words(Options(model=model), PrivateParameters(private)) is kept


@pytest.mark.parametrize(
    ("options", "private", "message"),
    [
        (Options(vocabulary="own"), (), r"text\.vocabulary = 'own': .*cannot share .*embedding\.weight.*here: none\)"),
        (Options(vocabulary="own"), ("embedding*private",), r"set text\.vocabulary = 'auto', 'shared' or 'file'"),
        (Options(vocabulary_size=0), ("encoder.*",), r"text\.vocabulary-size = 0: a vocabulary shared by all"),
    ],
)
def test_a_method_that_does_not_go_with_the_options_is_refused_at_once(options, private, message):
    with pytest.raises(DataError, match=message):
        TextTask(options).under(PrivateParameters(private))


def test_a_nodes_own_folder_cannot_tell_the_words_of_all_nodes(corpus):
    with pytest.raises(DataError, match=r"text\.vocabulary: deployed nodes do not know the words"):
        TextTask(replace(CORPUS, glove="")).load_own(corpus)
    data = own_words(CORPUS).load_own(corpus)
    assert {*range(2, len(words_of(data)))} <= {*data.splits["train"]["ids"].flatten().tolist()}


def test_the_vectors_that_a_shared_embedding_starts_from_name_its_words(corpus, tmp_path):
    (tmp_path / "glove.txt").write_text("".join(f"{word} " + "0.5 " * 11 + "1\n" for word in ("one", "two")))
    task = TextTask(replace(CORPUS, glove=str(tmp_path / "glove.txt")))
    assert words_of(task.load_node(corpus, 0, CORPUS_NODES)) == ("<pad>", "<unk>", "one", "two")
    assert model_of(task).embedding.weight[2].tolist() == [0.5] * 11 + [1.0]
    (tmp_path / "glove.txt").write_text("".join(f"{word} " + "2.5 " * 11 + "1\n" for word in ("one", "two")))
    assert model_of(task).embedding.weight[2].tolist() == [2.5] * 11 + [1.0]


def test_vectors_that_are_not_there_are_told_by_their_own_key(tmp_path):
    task = TextTask(Options(glove=str(tmp_path / "none.txt")))
    with pytest.raises(DataError, match=r"text\.glove = '.*none\.txt': cannot be read"):
        task.build_model()


def test_a_made_up_corpus_serves_all_that_differ_only_in_what_is_learned_from_it():
    facts = TextTask(CORPUS).world_options
    assert TextTask(replace(CORPUS, hidden=9, alpha=2.0, glove="g")).world_options == facts
    assert TextTask(replace(CORPUS, dataset="sst2")).world_options != facts
    assert TextTask(replace(CORPUS, world_examples=9)).world_options != facts


def test_the_same_options_under_another_privacy_are_another_task():
    task, other = TextTask(CORPUS), TextTask(CORPUS).under(FEDVOCAB)
    assert task == TextTask(CORPUS).under(PrivateParameters())
    assert other == TextTask(CORPUS).under(FEDVOCAB)
    assert task != other
    assert other != TextTask(CORPUS).under(replace(FEDVOCAB, own_start=True))
    assert len({task, other, TextTask(CORPUS)}) == 2
    assert other.options is CORPUS
    assert other.under(PrivateParameters()) == task


def test_one_configuration_serves_methods_that_share_words_and_methods_that_do_not(corpus, tmp_path):
    (tmp_path / "words.txt").write_text("the\nof\n")
    task = TextTask(replace(CORPUS, vocabulary_file=str(tmp_path / "words.txt")))
    assert words_of(task.load_node(corpus, 0, CORPUS_NODES)) == ("<pad>", "<unk>", "the", "of")
    assert len(words_of(task.under(FEDVOCAB).load_node(corpus, 0, CORPUS_NODES))) > 10


def test_the_papers_lengths_are_the_defaults():
    assert [Options(dataset=name).length for name in ("20news", "agnews", "sst2")] == [512, 128, 32]
    assert [Options(dataset=name, model="bert").length for name in ("20news", "agnews", "sst2")] == [256, 128, 32]
    assert (Options(dataset="mine").length, Options(max_length=7).length) == (128, 7)
