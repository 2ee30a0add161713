"""Encoders of the library ``transformers``: their files, and classifiers made of them (:mod:`.encoder_network`)."""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from functools import lru_cache, wraps
from itertools import chain
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from fedapps.tasks.language import check_tokens, longest_text, read_encoder
from fedapps.tasks.model_folder import field_of
from fedapps.tasks.profiles import PrivateParameters
from torch import nn

from fedapps.base.errors import DataError, need
from fedapps.base.seeding import torch_seed
from fedapps.base.text_files import shown

from .encoder_network import Transformer, add_adapters, frozen_patterns, only_layers
from .networks import SplitEmbedding, keep_own_rows
from .options import Options, PrivateWords, is_private, private_words
from .vocabulary import PieceVocabulary, TokenizerVocabulary, Vocabulary, is_digits
from .word_vectors import assigned_start, private_seed

P = ParamSpec("P")
R = TypeVar("R")
#: The limits of the numbers in a configuration of a stranger, and the ends of the names of counts that may be 0.
_MOST_WHOLE, _MOST = 2**20, 1e9
_MAY_BE_ZERO = ("token_id", "type_vocab_size")


def cached_by_files(maxsize: int) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """As :func:`functools.lru_cache`, for a function of the name of an encoder or of the options that have it. If the
    encoder is a folder, the function is called again once files in it have changed.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @lru_cache(maxsize)
        def cached(state: tuple[tuple[str, int, int], ...], *arguments: P.args, **named: P.kwargs) -> R:
            return function(*arguments, **named)

        @wraps(function)
        def current(*arguments: P.args, **named: P.kwargs) -> R:
            names = (one.model if isinstance(one, Options) else one for one in arguments)
            files = _files_of(next(name for name in names if isinstance(name, str)))
            return cached(files, *arguments, **named)  # type: ignore[arg-type]  # all arguments can be hashed

        return current

    return decorate


def _files_of(name: str) -> tuple[tuple[str, int, int], ...]:
    """The files of an encoder in a folder, with the times of their last change in ns and their sizes."""
    if not Path(name).is_dir():
        return ()
    entries = sorted((entry for entry in os.scandir(name) if entry.is_file()), key=lambda entry: entry.name)
    status = ((entry.name, entry.stat()) for entry in entries)
    return tuple((file, found.st_mtime_ns, found.st_size) for file, found in status)


def transformer(options: Options, classes: int) -> Transformer:
    """Return an encoder, from a folder or by its name on the Hugging Face hub, as a classifier.

    Its weights are loaded, or drawn from torch's global generator according to the configuration
    (``options.weights``). The layers above are always drawn.

    Parameters
    ----------
    options : Options
        ``model`` is the folder or the name.
    classes : int
        The number of classes.

    Raises
    ------
    DataError
        The encoder is not available or has no embeddings.
    """
    name = options.model
    encoder = deepcopy(_pretrained(name)) if options.weights == "pretrained" else _drawn(name)
    _embeddings(encoder, name)
    return Transformer(encoder, classes, options)


def embeddings_of(name: str, *, pretrained: bool) -> nn.Module:
    """Return only the embeddings of an encoder; the parameters are those of :func:`transformer`."""
    return deepcopy(_embeddings(_pretrained(name) if pretrained else _drawn(name), name))


def _embeddings(encoder: Any, name: str) -> nn.Module:
    embeddings = getattr(encoder, "embeddings", None)
    if not isinstance(embeddings, nn.Module):
        raise DataError(f"the encoder {name!r} has no module `embeddings`; use an encoder such as BERT or DistilBERT")
    return embeddings


@cached_by_files(16)
def load_tokenizer(name: str) -> TokenizerVocabulary:
    """Return the tokens of the encoder ``name`` (a folder, or on the hub).

    Raises
    ------
    DataError
        There is no tokenizer, or it does not fit the encoder (:func:`fedapps.tasks.language.check_tokens`).
    """
    library = _library(f"the encoder {name!r}")
    try:
        loaded = library.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        content = json.loads(loaded.backend_tokenizer.to_str())
    except (OSError, ValueError, AttributeError) as error:
        raise _unavailable(name, "tokenizer.json", error) from error
    encoder = _outline(name)
    _embeddings(encoder, name)
    # The library adds a token for masks where the file has none. No text needs it, and the encoder has no row for it.
    rows = len(encoder.get_input_embeddings().weight)
    content["added_tokens"] = [
        token for token in content["added_tokens"] if token["content"] != loaded.mask_token or token["id"] < rows
    ]
    tokenizer = type(loaded.backend_tokenizer).from_str(json.dumps(content))
    check_tokens(tokenizer.get_vocab(), encoder, _subject(name))
    return TokenizerVocabulary(tokenizer)


@cached_by_files(4)
def _pretrained(name: str) -> Any:
    _library(f"the encoder {name!r}")
    # The weights of a pooler that the file lacks are drawn, identically in every process.
    with torch_seed(0, "text", "pretrained"):
        try:
            return read_encoder(name, _subject(name))
        except DataError:
            raise
        except (OSError, ValueError) as error:
            raise _unavailable(name, "config.json, model.safetensors", error) from error


def _drawn(name: str) -> Any:
    return _library(f"the encoder {name!r}").AutoModel.from_config(load_config(name), trust_remote_code=False)


@cached_by_files(16)
def _outline(name: str) -> Any:
    """The encoder without memory for its weights."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return _drawn(name)


def longest_of(name: str) -> int | None:
    """Return how many tokens the encoder ``name`` reads at most (:func:`fedapps.tasks.language.longest_text`)."""
    return longest_text(_outline(name))


@cached_by_files(16)
def load_config(name: str) -> Any:
    """Return the configuration of the encoder ``name`` (a folder, or on the hub). Raise :class:`DataError` if none."""
    library = _library(f"the encoder {name!r}")
    try:
        return library.AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise _unavailable(name, "config.json", error) from error


def _library(purpose: str) -> Any:
    """The library transformers. Raise :class:`DataError` if it is not installed."""
    return need("transformers", "text", purpose)


def _subject(name: str) -> str:
    return f"the encoder {name!r} (text.model, text.own-starts)"


def _unavailable(name: str, files: str, error: Exception) -> DataError:
    subject = _subject(name)
    if Path(name).is_dir():
        return DataError(
            f"{subject}: the folder has no readable {files}; it must hold what save_pretrained of an encoder and its "
            f"tokenizer write. ({error})"
        )
    if name.startswith((".", "~", "/")) or Path(name).is_absolute():
        return DataError(f"{subject}: no such folder; name one with the files that save_pretrained writes")
    return DataError(
        f"{subject}: {files} found neither in a folder of that name nor on the Hugging Face hub. If the hub is "
        f"unreachable, download the model elsewhere and name its folder. ({error})"
    )


def facts_of(name: str) -> dict[str, Any]:
    """Return the configuration of an encoder as JSON, from which :func:`shaped` builds it on any machine."""
    facts: dict[str, Any] = json.loads(load_config(name).to_json_string())
    return facts


def shaped(
    encoder: Mapping[str, Any],
    embedding: Mapping[str, Any] | None,
    words: Sequence[str],
    options: Options,
    kept: PrivateWords,
    classes: int,
) -> Transformer:
    """Return a classifier of the right shapes, with random weights and without reading a file.

    Parameters
    ----------
    encoder, embedding : mapping
        The configurations of the encoder, and of the one that gave the embeddings if it is another (:func:`facts_of`).
    words : sequence of str
        The tokens.
    options : Options
    kept : PrivateWords
        The words whose vectors stayed on the node.
    classes : int
    """
    model = Transformer(_of_config(encoder, "encoder"), classes, options)
    if options.adapter:
        _adapt(model, options)
    if embedding is not None:
        model.embedding = _of_config(embedding, "embedding").embeddings
    if kept is PrivateWords.DIGITS:
        _split(model.embedding, tuple(words), options)
    return model


def _of_config(facts: Mapping[str, Any], name: str) -> Any:
    """The encoder of a configuration that anybody may have written; ``name`` is that of the fact.

    Only what describes the network is taken from it, in the ranges in which the library builds one. Switches, such as
    that of the implementation of attention, and the names of code and files are left out.
    """
    library = _library(f"facts.{name}")
    errors = need("huggingface_hub.errors", "text", f"facts.{name}")
    families = library.models.auto.modeling_auto
    kind = field_of(facts, "model_type", str)
    known = families.MODEL_FOR_MASKED_LM_MAPPING_NAMES.keys() | families.MODEL_FOR_TEXT_ENCODING_MAPPING_NAMES.keys()
    if kind not in known:
        raise DataError(
            f"{name}.model_type = {shown(kind)}: must be a kind of text encoder of the library transformers"
        )
    default = library.AutoConfig.for_model(kind)
    settings = {field.name for field in fields(default)} - {field.name for field in fields(library.PreTrainedConfig)}
    values = {key: value for key, value in facts.items() if key in settings}
    try:
        for key, value in values.items():
            _check_setting(f"{name}.{key}", value, getattr(default, key))
        config = type(default)(**values)
        _check_config(config, name)
        encoder = library.AutoModel.from_config(config, trust_remote_code=False)
    except errors.StrictDataclassError as error:
        raise DataError(f"{name}: {error}") from error
    _embeddings(encoder, name)
    return encoder


def _check_setting(name: str, value: object, default: object) -> None:
    """Raise :class:`DataError` for a value of a configuration that is out of the range in which networks are built."""
    activations = _library(name).activations.ACT2FN
    if isinstance(value, dict | list):
        members = value.items() if isinstance(value, dict) else enumerate(value)
        for key, member in members:
            _check_setting(f"{name}.{key}", member, None)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        counts = type(default) is int and default > 0 and not name.endswith(_MAY_BE_ZERO)
        least = 1 if counts else min(0, default) if isinstance(default, int | float) else 0
        most = _MOST_WHOLE if isinstance(value, int) else _MOST
        if not least <= value <= most:
            raise DataError(f"{name} = {value!r}: must be from {least} to {most}")
    elif isinstance(value, str) and default in activations and value not in activations:
        raise DataError(f"{name} = {shown(value)}: must be a name of an activation, such as {default!r}")


def _check_config(config: Any, name: str) -> None:
    """Raise :class:`DataError` if the numbers of a configuration do not fit each other."""
    rows, width, heads = config.vocab_size, config.hidden_size, config.num_attention_heads
    if width % heads:
        raise DataError(f"{name}: a width of {width} cannot be divided among {heads} heads of attention")
    for token in ("pad_token_id", "bos_token_id", "eos_token_id"):
        number = getattr(config, token, None)
        if number is not None and not number < rows:
            raise DataError(f"{name}.{token} = {shown(number)}: must be below {rows}, the number of tokens")


@cached_by_files(8)
def frozen_of(options: Options) -> tuple[str, ...]:
    """Return glob patterns of what the options freeze."""
    if not options.frozen_layers:
        return ("embedding.*",) if options.frozen_embedding else ()
    return frozen_patterns(
        _outline(options.model), options.model, options.frozen_layers, embedding=options.frozen_embedding
    )


def transformer_model(
    options: Options, privacy: PrivateParameters, classes: int, vocabulary: Vocabulary, key: str | None
) -> Transformer:
    """Return the pretrained or random encoder as a classifier; the parameters are those of :func:`recurrent_model`.

    Raises
    ------
    DataError
        The embeddings do not suit the method: they have no table of words, another width than the encoder's, or a
        shared part although the node starts with the embeddings of another encoder.
    """
    model = transformer(options, classes)
    seed = private_seed(int(torch.randint(2**62, ())), privacy, key)
    if options.adapter:
        _adapt(model, options)
    if private_words(options, privacy) is PrivateWords.DIGITS:
        _split(model.embedding, vocabulary.words, options)
    if privacy.own_start and key is not None:
        if dealt := assigned_start(options, privacy, key):
            _exchange(model, dealt, options, privacy, seed)
        else:
            _draw(model.embedding, privacy, seed, load_config(options.model))
    if isinstance(vocabulary, PieceVocabulary):
        keep_own_rows(model.embedding, vocabulary.own)
    if options.adapter:
        for name, weight in model.embedding.named_parameters(prefix="embedding"):
            weight.requires_grad_(not privacy.everything and is_private(name, privacy))
    return model


def _adapt(model: Transformer, options: Options) -> None:
    """Put adapters into the layers that are not frozen."""
    if not options.frozen_layers:
        add_adapters(model.encoder, options)
        return
    with only_layers(model.encoder, options.model, options.frozen_layers, None):
        add_adapters(model.encoder, options)


@cached_by_files(8)
def frozen_below(options: Options, privacy: PrivateParameters) -> tuple[str, ...]:
    """Glob patterns of what is not trained below adapters: the encoder, and what of the embedding is not private."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = Transformer(_drawn(options.model), 2, options)
        _adapt(model, options)
    encoder = (f"encoder.{name}" for name, weight in model.encoder.named_parameters() if not weight.requires_grad)
    words = (f"embedding.{name}" for name in model.embedding.state_dict())
    names = (*encoder, *(name for name in words if privacy.everything or not is_private(name, privacy)))
    return tuple(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", name) for name in names))  # the layers have the same names


@cached_by_files(4)
def digest_of(name: str) -> str:
    """The SHA-256 of the weights of an encoder, as it is loaded, with their names and shapes."""
    digest = hashlib.sha256()
    for own, weight in sorted(_pretrained(name).state_dict().items()):
        digest.update(f"{own} {tuple(weight.shape)}".encode())
        digest.update(weight.contiguous().numpy())
    return digest.hexdigest()


def _split(embedding: Any, words: tuple[str, ...], options: Options) -> None:
    table = getattr(embedding, "word_embeddings", None)
    if not isinstance(table, nn.Embedding):
        raise DataError(
            f"text.model = {options.model!r}: its embeddings have no table `word_embeddings` in which the rows of "
            "digits could stay private; use an encoder such as BERT or DistilBERT"
        )
    rows = len(table.weight)
    private = [is_digits(word) for word in words[:rows]]
    embedding.word_embeddings = SplitEmbedding.of(table.weight.detach(), private + [False] * (rows - len(private)))


def _exchange(model: Transformer, dealt: str, options: Options, privacy: PrivateParameters, seed: int) -> None:
    wanted, width = (load_config(name).hidden_size for name in (options.model, dealt))
    if width != wanted:
        raise DataError(
            f"text.own-starts: the embeddings of {dealt!r} have {width} numbers per token, but the encoder text.model "
            f"= {options.model!r} expects {wanted}; name encoders of the same width"
        )
    with torch_seed(seed):
        embedding = embeddings_of(dealt, pretrained=options.weights == "pretrained")
    names = {f"embedding.{name}" for name, _ in chain(model.embedding.named_parameters(), embedding.named_parameters())}
    if shared := sorted(name for name in names if not is_private(name, privacy)):
        raise DataError(
            f"text.own-starts = {options.own_starts!r}: nodes with embeddings of different encoders cannot share "
            f"{', '.join(shared)}; leave it empty, or use a method that keeps embedding.* private"
        )
    model.embedding = embedding.train()


@torch.no_grad()
def _draw(embedding: nn.Module, privacy: PrivateParameters, seed: int, config: Any) -> None:
    """Draw new private tables as in the encoder's configuration; normalisation keeps its initial values."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in embedding.named_parameters():
        if parameter.ndim > 1 and is_private(f"embedding.{name}", privacy):
            parameter.normal_(0, config.initializer_range, generator=generator)
