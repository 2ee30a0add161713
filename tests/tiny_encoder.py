"""An encoder of the library transformers, small enough for tests."""

from pathlib import Path

import torch
from fedapps.tasks.text.encoder_network import Transformer
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.transformer import transformer


def classifier(folder: Path | str, classes: int, *, dropout: float = 0.0, weights: str = "pretrained") -> Transformer:
    """A classifier with the encoder of a folder; its layers above the encoder are drawn from torch's generator."""
    return transformer(Options(model=str(folder), dropout=dropout, weights=weights), classes)


_USUAL = {
    "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16,
    "max_position_embeddings": 12,
}  # fmt: skip
#: The sizes of tiny encoders, by the names of their configurations.
_SIZES: dict[str, dict[str, object]] = {
    "DistilBert": {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 12},
    "XLNet": {"d_model": 8, "n_layer": 2, "n_head": 2, "d_inner": 16},
    "SqueezeBert": _USUAL
    | {"embedding_size": 8}
    | {f"{part}_groups": 1 for part in ("q", "k", "v", "post_attention", "intermediate", "output")},
    "Longformer": _USUAL | {"attention_window": 4},
    "ModernBert": _USUAL
    | {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}


def encoder_folder(folder: Path, kind: str = "distilbert") -> Path:
    """A tiny encoder with random weights: config.json, model.safetensors, tokenizer.json.

    ``kind`` is "distilbert", "bert", or the name of a configuration of the library without ``Config``.
    """
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "##s"]
    torch.manual_seed(5)
    name = {"distilbert": "DistilBert", "bert": "Bert"}.get(kind, kind)
    config = getattr(transformers, f"{name}Config")(vocab_size=len(words), **_SIZES.get(name, _USUAL))
    getattr(transformers, f"{name}Model")(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    if name == kind:  # else the tokenizer of the family would add its own spellings of special tokens
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return folder
