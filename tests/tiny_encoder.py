"""An encoder of the library transformers, small enough for tests."""

from pathlib import Path

import torch
from fedapps.tasks.text.encoder_network import Transformer
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.transformer import transformer


def classifier(folder: Path | str, classes: int, *, dropout: float = 0.0, weights: str = "pretrained") -> Transformer:
    """A classifier with the encoder of a folder; its layers above the encoder are drawn from torch's generator."""
    return transformer(Options(model=str(folder), dropout=dropout, weights=weights), classes)


def encoder_folder(folder: Path, kind: str = "distilbert") -> Path:
    """A tiny encoder with random weights: config.json, model.safetensors, tokenizer.json."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, DistilBertConfig, DistilBertModel

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "##s"]
    torch.manual_seed(5)
    if kind == "bert":
        config = BertConfig(
            vocab_size=len(words),
            hidden_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            max_position_embeddings=12,
        )
        BertModel(config).save_pretrained(folder)
    else:
        config = DistilBertConfig(
            vocab_size=len(words), dim=8, n_layers=2, n_heads=2, hidden_dim=16, max_position_embeddings=12
        )
        DistilBertModel(config).save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
