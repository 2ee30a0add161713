"""A text classifier with an encoder of the library ``transformers``, whose layers may be frozen or adapted.

The adapters are made with the library PEFT: LoRA [1]_ and IA3 [2]_, and put into the encoder's own modules. In the
names of ``state_dict``, an adapted layer has its frozen weights under ``base_layer`` and its factors under
``lora_A.default`` and ``lora_B.default``. With LoRA it computes W x + (alpha / rank) B A x, and B starts at zero. With
IA3 it scales inputs or outputs by ``ia3_l.default``, which starts at one.

.. [1] Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, https://arxiv.org/abs/2106.09685.
.. [2] Liu et al., Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning, NeurIPS
   2022, https://arxiv.org/abs/2205.05638.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from math import sqrt
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedapps.base.errors import DataError, need
from fedapps.base.options import split_names

from .networks import TextClassifier
from .options import ALL_LINEAR, Options

Model = TypeVar("Model", bound=nn.Module)
#: The layers that get adapters in kinds of encoders for which PEFT chooses none: those that it chooses in a BERT.
_FURTHER = {("distilbert", "lora"): ["q_lin", "v_lin"], ("distilbert", "ia3"): ["k_lin", "v_lin", "lin2"]}
#: The layers whose inputs IA3 scales, not their outputs.
_INNER = ("lin2",)


def add_adapters(encoder: nn.Module, options: Options) -> None:
    """Freeze an encoder and put adapters into it, in place. Draws come from torch's global generator.

    Parameters
    ----------
    encoder : Module
        Of the library transformers.
    options : Options
        ``adapter`` is "lora" or "ia3".

    Raises
    ------
    DataError
        PEFT is not installed, or the encoder has no layers of the names in ``adapter_targets``.
    """
    peft = need("peft", "adapters", f"text.adapter = {options.adapter!r}")
    alpha: Any = options.adapter_alpha  # PEFT divides it by the rank, whole or not
    targets = _targets(encoder, options)
    if options.adapter == "lora":
        config: Any = peft.LoraConfig(
            r=options.adapter_rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0
        )
    else:
        inner = None if targets is None else [name for name in targets if name in _INNER]
        config = peft.IA3Config(target_modules=targets, feedforward_modules=inner)
    try:
        peft.inject_adapter_in_model(config, encoder)
    except ValueError as error:
        raise DataError(
            f"text.adapter-targets = {options.adapter_targets!r}: name layers of the encoder {options.model!r}, as "
            f"{', '.join(linear_layers(encoder)[:4])}, or '{ALL_LINEAR}' ({error})"
        ) from error


def linear_layers(encoder: nn.Module) -> list[str]:
    """The last parts of the names of an encoder's linear layers, each once, in their order."""
    names = [name.rpartition(".")[2] for name, module in encoder.named_modules() if isinstance(module, nn.Linear)]
    return list(dict.fromkeys(names))


def _targets(encoder: Any, options: Options) -> list[str] | str | None:
    """The layers to adapt; ``None`` for those that PEFT chooses for the kind of encoder."""
    if options.adapter_targets == ALL_LINEAR:
        return ALL_LINEAR
    return list(split_names(options.adapter_targets)) or _FURTHER.get((encoder.config.model_type, options.adapter))


def adapter_layers(module: nn.Module) -> list[tuple[str, Any]]:
    """The adapted layers of a model with their names; none without adapters."""
    layers = [(name, layer) for name, layer in module.named_modules() if hasattr(layer, "base_layer")]
    return [(name, layer) for name, layer in layers if hasattr(layer, "merge")]


def merged(model: Model) -> Model:
    """A copy of a model whose layers have taken up their adapters: the same function with the plain layers."""
    model = deepcopy(model)
    with torch.no_grad():
        for name, layer in adapter_layers(model):
            layer.merge()
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layer.get_base_layer())
    return model


def layers_of(encoder: Any, name: str) -> tuple[str, nn.ModuleList]:
    """Return the path of the list of an encoder's layers, and the list.

    Raises
    ------
    DataError
        The encoder, called ``name`` in the message, has no such list.
    """
    count = encoder.config.num_hidden_layers
    for path, module in encoder.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return path, module
    raise DataError(
        f"text.frozen-layers: the encoder {name!r} has no list of its {count} layers; set text.frozen-layers = 0"
    )


def frozen_patterns(encoder: Any, name: str, frozen: int, *, embedding: bool) -> tuple[str, ...]:
    """Return glob patterns of the parameters below the first trained layer, as a classifier names them.

    Parameters
    ----------
    encoder : PreTrainedModel
    name : str
        Its name, for messages.
    frozen : int
        How many of the lowest layers are frozen.
    embedding : bool
        Whether the embedding is frozen, too.

    Raises
    ------
    DataError
        The encoder has fewer layers, or no list of them.
    """
    patterns = ("embedding.*",) if embedding else ()
    if not frozen:
        return patterns
    path, layers = layers_of(encoder, name)
    if frozen > len(layers):
        raise DataError(f"text.frozen-layers = {frozen}: the encoder {name!r} has {len(layers)} layers; use fewer")
    return (*patterns, *(f"encoder.{path}.{layer}.*" for layer in range(frozen)))


@contextmanager
def only_layers(encoder: Any, name: str, start: int, stop: int | None) -> Iterator[None]:
    """Let the encoder within this context have the layers ``start`` to ``stop`` (exclusive) alone."""
    path, layers = layers_of(encoder, name)
    parent, _, last = path.rpartition(".")
    holder = encoder.get_submodule(parent)
    setattr(holder, last, layers[start:stop])
    try:
        yield
    finally:
        setattr(holder, last, layers)


_SPLIT = 8  # texts from which a batch is computed in two halves if they are of different lengths


class Transformer(TextClassifier):
    """An encoder of the library ``transformers`` with a classifier on its first token, or on the mean of its tokens.

    ``embedding`` is the encoder's module ``embeddings``: words, positions, normalisation. The state of the first token
    passes through the encoder's pooler, as in BERT, or, without a pooler, as in DistilBERT, through a layer
    ``pre_classifier`` with ReLU; the mean of all states passes through neither, but is scaled to unit variance. Then
    follow ``dropout`` in [0, 1) and ``classifier``.

    Parameters
    ----------
    encoder : PreTrainedModel
    classes : int
    options : Options
        Those of the head (``pooling``, ``dropout``), of what is frozen, and of the ``precision``. Frozen layers are
        computed without dropout.
    """

    def __init__(self, encoder: Any, classes: int, options: Options) -> None:
        super().__init__()
        width = encoder.config.hidden_size
        self.embedding = encoder.embeddings
        self.encoder = encoder
        self.encoder.embeddings = _Given()
        self.means = options.pooling == "mean"
        self.pools = not self.means and getattr(encoder, "pooler", None) is not None
        if self.means and hasattr(encoder, "pooler"):
            encoder.pooler = nn.Identity()  # SqueezeBERT calls it always
        if not self.pools and not self.means:
            self.pre_classifier = nn.Linear(width, width)
        self.dropout = nn.Dropout(options.dropout)
        self.classifier = nn.Linear(width, classes)
        self.precision = options.precision
        self.encoder_name, self.frozen = options.model, options.frozen_layers
        self.still: tuple[nn.Module, ...] = ()
        if self.frozen:
            frozen_patterns(encoder, self.encoder_name, self.frozen, embedding=False)  # checks the number
            self.still = tuple(layers_of(encoder, self.encoder_name)[1][: self.frozen])
        if options.frozen_embedding:
            self.still = (*self.still, self.embedding)
        for module in self.still:
            module.requires_grad_(False)
        self.train()

    def train(self, mode: bool = True) -> "Transformer":
        """Set the mode; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self.still:
            module.eval()
        return self

    def forward(self, ids: Tensor, length: Tensor, states: Tensor | None = None) -> Tensor:
        """Compute logits ``[b, classes]`` of ``ids [b, L]``, or of the ``states [b, L, width]`` above frozen layers."""
        inputs, vectors = (ids, self.vectors) if states is None else (states, self.vectors_above)
        if torch.compiler.is_compiling() or not _padded_much(length):
            return self.head(vectors(inputs, length))
        length = length.to(inputs.device)
        order = length.argsort(descending=True, stable=True)
        halves = [
            vectors(inputs.index_select(0, rows)[:, : int(length[rows[0]])], length[rows]) for rows in order.chunk(2)
        ]
        return self.head(torch.cat(halves).index_select(0, order.argsort()))

    def vectors(self, ids: Tensor, length: Tensor) -> Tensor:
        """Compute a vector of each text, ``[b, width]``, from ids ``[b, L]``."""
        with self._products(ids.device.type):
            return self.pooled(self.embedding(ids), length)

    def vectors_above(self, states: Tensor, length: Tensor) -> Tensor:
        """Compute a vector of each text, ``[b, width]``, from the states above frozen layers, ``[b, L, width]``."""
        with self._products(states.device.type), only_layers(self.encoder, self.encoder_name, self.frozen, None):
            return self.pooled(states, length)

    @torch.no_grad()
    def frozen_states(self, ids: Tensor, length: Tensor) -> Tensor:
        """Compute the states ``[b, L, width]`` above a frozen embedding and frozen layers."""
        with self._products(ids.device.type), only_layers(self.encoder, self.encoder_name, 0, self.frozen):
            states: Tensor = self._states(self.embedding(ids), length).last_hidden_state
            return states.float()

    def _products(self, device: str) -> torch.autocast:
        """The context in which products are computed on a type of device."""
        brief = self.precision == "bfloat16" or (self.precision == "auto" and has_bfloat16(device))
        return torch.autocast(device, torch.bfloat16, enabled=brief)

    def head(self, vectors: Tensor) -> Tensor:
        """Compute logits ``[b, classes]`` from vectors of texts ``[b, width]``."""
        logits: Tensor = self.classifier(self.dropout(vectors))
        return logits

    def body(self, embedded: Tensor, length: Tensor) -> Tensor:
        return self.head(self.pooled(embedded, length))

    def pooled(self, embedded: Tensor, length: Tensor) -> Tensor:
        """Compute a vector of each text, ``[b, width]``, from what goes into the encoder, ``[b, L, width]``."""
        output = self._states(embedded, length)
        if self.means:
            states: Tensor = output.last_hidden_state
            mask = _mask(states, length)[..., None]
            mean = (states.float() * mask).sum(1) / mask.sum(1)
            return nn.functional.normalize(mean) * sqrt(mean.shape[1])
        if self.pools:
            pooled: Tensor = output.pooler_output
            return pooled.float()
        first: Tensor = self.pre_classifier(output.last_hidden_state[:, 0])
        return first.relu().float()

    def _states(self, embedded: Tensor, length: Tensor) -> Any:
        return self.encoder(inputs_embeds=embedded, attention_mask=_mask(embedded, length).long())


@cache
def has_bfloat16(device: str) -> bool:
    """Whether a type of device computes products of bfloat16 itself; another one takes longer than for float32."""
    if device == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch have none
    return device == "cpu" and any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _mask(states: Tensor, length: Tensor) -> Tensor:
    """Which places ``[b, L]`` are within their texts."""
    return torch.arange(states.shape[1], device=states.device) < length.to(states.device)[:, None]


def _padded_much(length: Tensor) -> bool:
    """Whether a batch costs at least a fifth less as two, of its longer and of its shorter texts."""
    if len(length) < _SPLIT:
        return False
    longest = length.sort(descending=True).values
    halves = longest.chunk(2)
    cost = sum(len(half) * int(half[0]) for half in halves)
    return cost <= 0.8 * len(length) * int(longest[0])


class _Given(nn.Module):
    """Replaces the embeddings of an encoder and passes its ``inputs_embeds`` on."""

    def forward(self, *inputs: Any, **named: Any) -> Tensor:
        (embedded,) = (x for x in (*inputs, *named.values()) if isinstance(x, Tensor) and x.is_floating_point())
        assert isinstance(embedded, Tensor)
        return embedded
