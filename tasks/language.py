"""Words of texts in any script, by the default rules of Unicode Standard Annex #29; and encoders of texts.

A word is a run of letters, digits and underscores with the marks on them. Marks never stand alone: a vowel sign of
Hindi or Tamil, a vowel point of Arabic and the joiners inside a word belong to the letter before them (rule WB4 of
Unicode Text Segmentation).

Chinese, Japanese, Thai, Lao, Khmer and Burmese are written without spaces, and only a dictionary knows their words. As
in the annex, each Chinese character, each Hiragana and each letter of the others with its marks is then a word of its
own, while Katakana stay together.

Encoders are those of the library transformers. It draws weights that a file lacks, leaves out layers that its
configuration does not name, and makes an empty tokenizer where there is none. Here each of these is an error, so that
what is loaded is what is in the files.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from unicodedata import category

import torch
from torch import nn

from fedapps.base.errors import DataError, listed
from fedapps.base.text_files import without_progress_bar

logger = logging.getLogger(__name__)

_NAMED = 4  # names that an error lists
#: Tokens that a tokenizer without any word may have: those for padding, the unknown word, the ends of a text.
_ROLES = 10
_ENOUGH = 200  # words from which their frequencies say something

#: Letters of scripts without spaces between words: Han, Hiragana, Thai, Lao, Burmese, Khmer. Their digits are not here,
#: because they form numbers.
_SINGLE = (
    "\u2e80-\u2fdf\u3005\u3007\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u3041-\u309f\u0e01-\u0e4e\u0e81-\u0ece\u0edc-\u0edf\u1000-\u103f\u1050-\u108f\u1780-\u17dd"
)
_LETTER = rf"[^\W{_SINGLE}]"
#: Formatting characters that end a word: a space without width, as in Khmer, and the byte-order mark.
_ENDING = "\u200b\ufeff"


@cache
def marks() -> str:
    """Return a regular expression for one mark: what extends the character before it."""
    low, high = (
        "".join(char for char in map(chr, codes) if category(char) in ("Mn", "Mc", "Me", "Cf") and char not in _ENDING)
        for codes in (range(0xAD, 0x10000), range(0x10000, 0x1F000))
    )
    # Two sets, because that of the characters below U+10000 is a table that is looked up at once. Skin tones of emoji
    # and variation selectors also extend what is before them.
    return f"(?:[{low}]|(?=[\U00010000-\U0010ffff])[{high}\U0001f3fb-\U0001f3ff\U000e0100-\U000e01ef])"


@cache
def run_of_letters() -> str:
    """Return a regular expression for a word of a script with spaces between words."""
    # Each text matches in one way only, so that a failure costs no more than the length of the word.
    return f"{_LETTER}+(?:{marks()}+{_LETTER}+)*{marks()}*"


@cache
def word() -> str:
    """Return a regular expression for a word of any script; it has no groups that capture."""
    return f"(?:{run_of_letters()}|[{_SINGLE}]{marks()}*)"


@cache
def other() -> str:
    """Return a regular expression for one other visible character with its marks, such as a full stop or an emoji."""
    # An emoji may consist of several, which U+200D joins (rule WB3c).
    return rf"[^\w\s{_ENDING}]{marks()}*(?:(?<=\u200d)[^\w\s]{marks()}*)*"


def _pattern(letters: str, word: str, other: str) -> re.Pattern[str]:
    # Contractions are split as in the Penn Treebank, and therefore in GloVe and SST-2: do n't, it 's.
    return re.compile(rf"{letters}(?=n't\b)|n't\b|'(?:s|re|ve|ll|d|m)\b|{word}|{other}")


_ASCII = _pattern(r"\w+", r"\w+", r"[^\w\s]")  # the same words, four times as fast


@cache
def _any_script() -> re.Pattern[str]:
    return _pattern(run_of_letters(), word(), other())


def split_words(text: str) -> list[str]:
    """Split a text into words, parts of English contractions and single other characters, in lower case."""
    pattern = _ASCII if text.isascii() else _any_script()
    return pattern.findall(text.lower())


def doubtful_words(texts: Iterable[Sequence[str]]) -> str:
    """Say why the words of texts are hardly words that a model could learn.

    Parameters
    ----------
    texts : iterable of sequence of str
        The words of each text.

    Returns
    -------
    str
        Why most of the words, counted as often as they occur, are of one letter or occur once; empty if they are
        neither, or fewer than 200.
    """
    counts = Counter(word for words in texts for word in words if any(map(str.isalpha, word)))
    total = counts.total()
    single = sum(count for word, count in counts.items() if sum(map(str.isalpha, word)) == 1)
    once = sum(count == 1 for count in counts.values())
    if total < _ENOUGH or 2 * max(single, once) <= total:
        return ""
    examples = ", ".join(repr(word) for word, _ in counts.most_common(3))
    if single >= once:
        return (
            f"{single / total:.0%} of the words are of one letter ({examples}): the language is written without spaces "
            "between words, or the texts with spaces between letters"
        )
    return f"{once / total:.0%} of the words occur once ({examples}): the texts are few, or no texts of words"


def read_encoder(name: str | Path, subject: str, *, local: bool = False, pools: bool = True) -> Any:
    """Read an encoder with all its weights, float32.

    Parameters
    ----------
    name : str or Path
        A folder, or a name on the Hugging Face hub.
    subject : str
        How messages name the encoder, with its key.
    local : bool
        Whether the hub is never asked.
    pools : bool
        Whether the weights of its pooler are used. Without them in the file they are drawn, and a warning says so.

    Raises
    ------
    DataError
        The file lacks weights other than those of a pooler, has them in other shapes, has more layers than the
        configuration, or has numbers that are not finite.
    OSError, ValueError
        The files are missing or cannot be read.
    """
    from transformers import AutoModel

    with without_progress_bar():
        encoder, loaded = AutoModel.from_pretrained(
            name,
            dtype=torch.float32,
            local_files_only=local,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # reported below, with their names
            output_loading_info=True,
        )
    missing = sorted(loaded["missing_keys"])
    reshaped = [f"{key} {tuple(file)}, not {tuple(model)}" for key, file, model in sorted(loaded["mismatched_keys"])]
    known = {_any_layer(key) for key in encoder.state_dict()}
    prefix = f"{encoder.base_model_prefix}."
    beyond = [key for key in sorted(loaded["unexpected_keys"]) if _any_layer(key.removeprefix(prefix)) in known]
    infinite = [key for key, weight in encoder.state_dict().items() if not weight.isfinite().all()]
    faults = {
        "lack weights": [key for key in missing if not key.startswith("pooler.")],
        "have weights of another shape than config.json": reshaped,
        "have layers that config.json lacks": beyond,
        "have weights that are not finite": infinite,
    }
    if lines := [f"they {fault}: {listed(keys, _NAMED)}" for fault, keys in faults.items() if keys]:
        raise DataError(
            f"{subject}: its files are not those of one {type(encoder).__name__}; {'; '.join(lines)}. Copy "
            "config.json and the weights again, from the same model"
        )
    if missing and pools:
        logger.warning("%s: its file has no pooler, so the weights of the pooler are drawn (%s)", subject, missing[0])
    return encoder


def _any_layer(key: str) -> str:
    """The name of a weight without the number of its layer."""
    return re.sub(r"\.\d+\.", ".*.", key)


def check_tokens(tokens: Mapping[str, int], encoder: Any, subject: str) -> None:
    """Check that a tokenizer fits an encoder, which may be on the device "meta".

    Parameters
    ----------
    tokens : mapping of str to int
        The number of each token.
    encoder : PreTrainedModel
    subject : str
        How messages name the encoder, with its key.

    Raises
    ------
    DataError
        The tokenizer has no tokens but those with a role, or one whose number is no row of the encoder's table.
    """
    if len(tokens) <= _ROLES and all(re.fullmatch(r"\[.*\]|<.*>", token) for token in tokens):
        raise DataError(
            f"{subject}: its tokenizer has no words, only {', '.join(sorted(tokens))}; copy tokenizer.json into the "
            "folder, as save_pretrained of the tokenizer writes it"
        )
    rows = len(encoder.get_input_embeddings().weight)
    last = max(tokens, key=lambda token: tokens[token])
    if tokens[last] >= rows:
        raise DataError(
            f"{subject}: its tokenizer has the token {last!r} with the number {tokens[last]}, but the encoder has "
            f"{rows} rows, from 0; take the tokenizer of this encoder, or save the encoder after "
            "resize_token_embeddings"
        )


def longest_text(encoder: Any) -> int | None:
    """Return how many tokens of a text an encoder can read, special tokens included; None for any number.

    RoBERTa and MPNet count positions from behind that of padding: of 514 positions, texts have 512.
    """
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    limit = getattr(encoder.config, "max_position_embeddings", None)
    return limit if limit and limit > 0 else None  # XLNet, which has no limit, gives -1
