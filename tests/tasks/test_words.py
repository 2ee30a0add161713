"""Words of texts in all scripts, and texts whose words are none."""

import re
from unicodedata import category

import pytest
from fedapps.tasks.language import doubtful_words, marks, split_words
from fedapps.tasks.vln.instructions import words_of
from hypothesis import given
from hypothesis import strategies as st

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
        (
            ["我们很喜欢这部电影" * 30],
            r"100% of the words are of one letter \('我', '们', '很'\): the language",
        ),
        ([f"w{number}x" for number in range(300)], r"100% of the words occur once \('w0x', .*texts of words"),
        (["a film that we like " * 60], ""),
        (["we like it"], ""),
    ],
)
def test_texts_whose_words_are_hardly_words(texts, reason):
    found = doubtful_words(map(split_words, texts))
    assert re.match(reason, found) if reason else not found
