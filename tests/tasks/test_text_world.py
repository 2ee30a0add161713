"""Made-up texts."""

import json
from collections import Counter

import numpy as np
from fedapps.tasks.text.sources import COMMON, TOPIC, draw_text, write_corpus, write_examples


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_classes_are_equally_frequent_and_told_by_their_words(tmp_path):
    write_corpus(tmp_path, 3, 900, 30, seed=1)
    train, test = read(tmp_path / "train.jsonl"), read(tmp_path / "test.jsonl")
    assert Counter(example["label"] for example in train) == {0: 300, 1: 300, 2: 300}
    assert Counter(example["label"] for example in test) == {0: 10, 1: 10, 2: 10}
    words = [Counter(w for e in train if e["label"] == label for w in e["text"].split()) for label in range(3)]
    # A naive count of words that a class has more than twice as often as the others tells most test examples.
    telling = [
        {word for word in words[k] if words[k][word] > 2 * (1 + max(words[j][word] for j in range(3) if j != k))}
        for k in range(3)
    ]
    right = [
        np.argmax([sum(w in telling[k] for w in example["text"].split()) for k in range(3)]) == example["label"]
        for example in test
    ]
    assert np.mean(right) > 0.85


def test_texts_have_common_words_own_words_and_numbers():
    words = [f"w{i}" for i in range(COMMON + 2 * TOPIC)]
    rng = np.random.default_rng(0)
    texts = [draw_text(words, 1, rng).split() for _ in range(400)]
    assert {len(text) for text in texts} == set(range(8, 25))
    drawn = [word for text in texts for word in text]
    numbers = [word for word in drawn if word.isdigit()]
    own = [word for word in drawn if word[0] == "w" and int(word[1:]) >= COMMON]
    assert abs(len(numbers) / len(drawn) - 0.05) < 0.01
    assert abs(len(own) / len(drawn) - 0.25) < 0.02
    assert all(int(word[1:]) >= COMMON + TOPIC for word in own)
    assert Counter(own).most_common(1)[0][0] == f"w{COMMON + TOPIC}"


def test_examples_are_written_as_they_are(tmp_path):
    write_examples(tmp_path / "a.jsonl", ['é "\n', ""], ["x", 1])
    assert read(tmp_path / "a.jsonl") == [{"text": 'é "\n', "label": "x"}, {"text": "", "label": 1}]
