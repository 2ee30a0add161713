"""Words of texts in all scripts; encoders whose files lack something, or that cannot be used."""

import json
import logging
import re
from dataclasses import replace
from unicodedata import category

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.language import doubtful_words, longest_text, marks, read_encoder, split_words
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vln.instructions import words_of
from fedapps.tasks.vln.layers import language_model
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny_encoder import classifier, encoder_folder

#: The rule for English, which all results on English texts follow.
ENGLISH = re.compile(r"\w+(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|\w+|[^\w\s]")
INSTRUCTION = re.compile(r"(\W+)")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 10:30, isn't it?", ["it", "'s", "10", ":", "30", ",", "is", "n't", "it", "?"]),
        ("'Sad' can't I'LL", ["'", "sad", "'", "ca", "n't", "i", "'ll"]),
        ("crème-brûlée do n't", ["crème", "-", "brûlée", "do", "n't"]),
        (" \n", []),
    ],
)
def test_words(text, words):
    assert split_words(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("यह अच्छी फिल्म है।", ["यह", "अच्छी", "फिल्म", "है", "।"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("తెలుగు భాష", ["తెలుగు", "భాష"]),
        ("كِتَابٌ جَمِيلٌ", ["كِتَابٌ", "جَمِيلٌ"]),
        ("می\u200cخواهم", ["می\u200cخواهم"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("Donau\u00addampf", ["donau\u00addampf"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("ไม่มี 25", ["ไ", "ม่", "มี", "25"]),
        ("๒๕ คน", ["๒๕", "ค", "น"]),
        ("中文，abc", ["中", "文", "，", "abc"]),
        ("これはテスト", ["こ", "れ", "は", "テスト"]),
        ("❤️ 👍🏽 👩\u200d💻!", ["❤️", "👍🏽", "👩\u200d💻", "!"]),
    ],
)
def test_marks_belong_to_the_letter_before_them(text, words):
    assert split_words(text) == words


@given(st.text(st.characters(max_codepoint=0x2FF, exclude_characters="\u00ad")) | st.text(st.sampled_from("an't s.é ")))
def test_texts_in_latin_letters_have_the_words_of_the_rule_for_english(text):
    assert split_words(text) == ENGLISH.findall(text.lower())


@given(st.text(st.sampled_from("ab'n t.!_1é ")))
def test_instructions_in_latin_letters_are_split_at_what_is_no_word(text):
    parts = [part.strip().lower() for part in INSTRUCTION.split(text.strip())]
    assert "".join(words_of(text)) == "".join(parts)
    assert [part for part in words_of(text) if part.isalnum()] == [part for part in parts if part.isalnum()]


def test_instructions_of_other_languages_have_whole_words():
    """Room-across-Room has instructions in Hindi and Telugu."""
    assert words_of("कमरे में जाओ।") == ["कमरे", "में", "जाओ", "।"]
    assert words_of("Turn left...! Stop.") == ["turn", "left", ".", ".", ".", "!", "stop", "."]


def test_no_letter_is_a_mark():
    pattern = re.compile(marks())
    letters = [chr(code) for code in range(0x300, 0x20000) if category(chr(code))[0] in "LN"]
    assert not any(map(pattern.match, letters))


def test_many_marks_cost_no_more_than_their_number():
    """A pattern that matches a text in several ways needs exponential time for a failure."""
    assert split_words("a" + "\u0301" * 5000) == ["a" + "\u0301" * 5000]


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["我们很喜欢这部电影" * 30], r"100% of the words are of one letter \('我', '们', '很'\): the language"),
        ([f"w{number}x" for number in range(300)], r"100% of the words occur once \('w0x', .*texts of words"),
        (["a film that we like " * 60], ""),
        (["we like it"], ""),
    ],
)
def test_texts_whose_words_are_hardly_words(texts, reason):
    found = doubtful_words(map(split_words, texts))
    assert re.match(reason, found) if reason else not found


PLAIN = Options(dataset="mine", classes=2, max_length=10)


def checked(folder, **changes):
    TextTask(replace(PLAIN, model=str(folder), **changes)).check_nodes(2)


def with_weights(folder, change):
    """The folder of an encoder with other weights in its file."""
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})
    return folder


def with_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
    return folder


def without(part):
    return lambda weights: {name: weight for name, weight in weights.items() if part not in name}


@pytest.mark.parametrize(
    ("change", "config", "reason"),
    [
        (without("layer.1."), {}, r"lack weights: encoder\.layer\.1\.attention.* and 12 more"),
        (without("word_embeddings"), {}, r"lack weights: embeddings\.word_embeddings\.weight\. Copy"),
        (lambda weights: {"x": torch.zeros(1)}, {}, "lack weights: embeddings"),
        (lambda weights: weights, {"num_hidden_layers": 1}, r"have layers that config\.json lacks: encoder\.layer\.1"),
        (lambda weights: weights, {"vocab_size": 9}, r"another shape than config\.json: .* \(8, 8\), not \(9, 8\)"),
        (lambda weights: weights | {"pooler.dense.bias": torch.full((8,), torch.nan)}, {}, "not finite: pooler"),
    ],
)
def test_weights_that_are_not_those_of_one_encoder(tmp_path, change, config, reason):
    folder = with_config(with_weights(encoder_folder(tmp_path, "bert"), change), **config)
    with pytest.raises(DataError, match=f"text.model.*not those of one BertModel; .*{reason}"):
        checked(folder)
    with pytest.raises(DataError, match=f"vln.language-model.*{reason}"):
        language_model(folder)


def test_a_pooler_may_be_missing_and_is_named(tmp_path, caplog):
    folder = with_weights(encoder_folder(tmp_path, "bert"), without("pooler"))
    with caplog.at_level(logging.WARNING, "fedapps.tasks.language"):
        read_encoder(folder, "text.model", pools=False)
        assert "are drawn" not in caplog.text
        checked(folder)
    assert "its file has no pooler, so the weights of the pooler are drawn (pooler.dense.bias)" in caplog.text


def test_a_head_for_another_purpose_is_left_out(tmp_path):
    folder = with_weights(
        encoder_folder(tmp_path, "bert"),
        lambda weights: {f"bert.{name}": weight for name, weight in weights.items()} | {"cls.bias": torch.ones(2)},
    )
    checked(folder)


def test_a_tokenizer_without_words(tmp_path):
    """The library makes one where the folder has none."""
    folder = encoder_folder(tmp_path, "bert")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match=r"tokenizer has no words, only \[CLS\], \[MASK\], .*copy tokenizer.json"):
        checked(folder)


def test_a_tokenizer_with_more_tokens_than_the_encoder_has_rows(tmp_path):
    folder = encoder_folder(tmp_path, "bert")
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"##s":7', '"##s":7,"##t":8').replace('"##s": 7', '"##s": 7,"##t": 8'))
    reason = "has the token '##t' with the number 8, but the encoder has 8 rows"
    with pytest.raises(DataError, match=reason):
        checked(folder)
    with pytest.raises(DataError, match=f"vln.language-model.*{reason}"):
        language_model(folder)


@pytest.mark.parametrize(
    ("kind", "longest"),
    [("bert", 12), ("distilbert", 12), ("Roberta", 10), ("MPNet", 10), ("XLNet", None), ("ModernBert", 12)],
)
def test_positions_that_texts_can_have(tmp_path, kind, longest):
    """Of RoBERTa and MPNet, the first two are for padding."""
    encoder = read_encoder(encoder_folder(tmp_path, kind), "text.model")
    assert longest_text(encoder) == longest


@pytest.mark.parametrize("kind", ["bert", "distilbert", "Roberta", "MPNet", "SqueezeBert", "ModernBert", "Electra"])
@pytest.mark.parametrize("pooling", ["first", "mean"])
def test_families_that_can_be_used(tmp_path, kind, pooling):
    folder = encoder_folder(tmp_path, kind)
    checked(folder, pooling=pooling)
    longest = 10 if kind in ("Roberta", "MPNet") else 12
    checked(folder, max_length=longest)
    with pytest.raises(DataError, match=f"text.max-length = {longest + 1}: must be at most {longest} for the encoder"):
        checked(folder, max_length=longest + 1)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("XLNet", "has no module `embeddings`; use an encoder such as BERT"),
        ("Longformer", r"\(LongformerModel\) needs more than the embeddings of a text and a mask .*; use an encoder"),
        ("FNet", r"\(FNetModel\) reads beyond the end of a text"),
    ],
)
def test_families_that_cannot(tmp_path, kind, reason):
    folder = encoder_folder(tmp_path, kind)
    with pytest.raises(DataError, match=reason):
        checked(folder)


def test_an_encoder_with_a_normalisation_above_all_layers_has_no_states_between_them(tmp_path):
    folder = with_weights(
        encoder_folder(tmp_path, "ModernBert"),
        lambda weights: weights | {"final_norm.weight": torch.linspace(0.5, 2, 8)},
    )
    checked(folder, frozen_layers=1, frozen_embedding=True)
    with pytest.raises(DataError, match=r"cached-states = true: .*ModernBertModel.* set text.cached-states = false"):
        checked(folder, frozen_layers=1, frozen_embedding=True, cached_states=True)


@pytest.mark.slow
def test_a_program_of_an_encoder_with_autocast_inside_is_the_encoder(tmp_path):
    from fedapps.tasks.answers import Network

    from fedapps.trained.programs import write_torch

    model = classifier(encoder_folder(tmp_path, "ModernBert"), 3)
    inputs = torch.tensor([[2, 4, 5, 3], [2, 3, 0, 0], [2, 6, 3, 0]], dtype=torch.int32), torch.tensor([4, 2, 3])
    dynamic = {"ids": {0: "batch", 1: "words"}, "length": {0: "batch"}}
    network = Network(model.eval(), inputs, ("ids", "length"), ("logits",), dynamic, "")
    write_torch(network, tmp_path / "model.pt2").check(1e-6, "the program")


def test_a_language_model_without_a_limit_reads_whole_texts(tmp_path):
    model = language_model(encoder_folder(tmp_path, "XLNet"))
    assert all(row.any() for row in model.states(("one",) * 30))


def test_a_language_model_reads_as_many_tokens_as_it_has_positions_for(tmp_path):
    """Of RoBERTa's twelve positions texts have ten, and two tokens are not words."""
    states = language_model(encoder_folder(tmp_path, "Roberta")).states(("one",) * 30)
    assert [bool(row.any()) for row in states] == [True] * 9 + [False] * 22 + [True]
