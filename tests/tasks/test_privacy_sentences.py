"""Which sentences are attacked, and what it means that a node has them."""

import numpy as np
import pytest
import torch
from fedapps.tasks.base import NodeData
from fedapps.tasks.privacy.sharing import Sentence
from fedapps.tasks.text.corpus import Examples
from fedapps.tasks.text.privacy import draw_sentences, special_tokens, with_sentences
from fedapps.tasks.text.transformer import load_tokenizer
from fedapps.tasks.text.vocabulary import WordVocabulary, padded
from tiny_encoder import encoder_folder

TEXTS = ("Sold 12 of 40 in 2004. No digits here! On 1 May, 2 of 3 fell by 4.5 percent", "Only 7.", "3 3 3 three")
EXAMPLES = Examples(TEXTS, np.array([2, 0, 1]))
ALL = WordVocabulary.of(TEXTS)


def test_texts_are_cut_into_sentences_and_three_digit_tokens_qualify():
    found = draw_sentences(EXAMPLES, ALL, 3, own=False, seed=0)
    assert {(one.label, " ".join(one.words)) for one in found} == {
        (2, "sold 12 of 40 in 2004 ."),
        (2, "on 1 may , 2 of 3 fell by 4 . 5 percent"),
        (1, "3 3 3 three"),
    }
    assert draw_sentences(EXAMPLES, ALL, 3, own=False, seed=0) == found
    with pytest.raises(ValueError, match=r"sentences = 4: only 3 of 4 have .*use at most 3"):
        draw_sentences(EXAMPLES, ALL, 4, own=False, seed=0)


def test_all_words_are_known_unless_the_vocabulary_is_the_nodes_own():
    few = WordVocabulary.of(TEXTS[2:])
    assert [one.words for one in draw_sentences(EXAMPLES, few, 1, own=False, seed=0)] == [("3", "3", "3", "three")]
    with pytest.raises(ValueError, match="only 1 of 1"):
        draw_sentences(EXAMPLES, few, 2, own=False, seed=0)
    assert len(draw_sentences(EXAMPLES, few, 3, own=True, seed=0)) == 3


def node(vocabulary, texts):
    train = {**padded(vocabulary.encode(texts, 30)), "label": torch.zeros(len(texts), dtype=torch.int64)}
    return NodeData("node", {"train": train}, extra={"vocabulary": vocabulary})


def test_a_node_that_holds_sentences_knows_their_words_and_trains_on_them():
    vocabulary = WordVocabulary.of(["b a"])
    given = node(vocabulary, ["a b", "b"])
    held = with_sentences(given, [Sentence(("7", "a", "7", "8"), 3)])
    words = held.extra["vocabulary"].words
    assert words == (*vocabulary.words, "7", "8")
    train = held.splits["train"]
    texts = [[words[i] for i in ids[:n]] for ids, n in zip(train["ids"], train["length"], strict=True)]
    assert texts == [["a", "b"], ["b"], ["7", "a", "7", "8"]]
    assert train["label"].tolist() == [0, 0, 3]
    assert train["ids"].dtype == torch.int32
    assert given.count("train") == 2
    assert with_sentences(given, [Sentence(("a",), 0)]).extra["vocabulary"] is vocabulary


def test_what_a_tokenizer_adds_is_no_text(tmp_path):
    tokenizer = load_tokenizer(str(encoder_folder(tmp_path)))
    assert special_tokens(tokenizer) == {"[CLS]", "[SEP]"}
    assert special_tokens(ALL) == frozenset()
    assert with_sentences(node(tokenizer, ["one"]), [Sentence(("[CLS]", "two", "[SEP]"), 1)]).splits["train"][
        "ids"
    ].tolist() == [
        [2, 4, 3],
        [2, 5, 3],
    ]
