"""Adapters of a frozen transformer, made with the library PEFT: LoRA [1]_ and IA3 [2]_.

The adapters are put into the encoder's own modules. In the names of ``state_dict``, an adapted layer has its frozen
weights under ``base_layer`` and its factors under ``lora_A.default`` and ``lora_B.default``. With LoRA it computes
W x + (alpha / rank) B A x, and B starts at zero. With IA3 it scales inputs or outputs by ``ia3_l.default``, which
starts at one.

.. [1] Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, https://arxiv.org/abs/2106.09685.
.. [2] Liu et al., Few-Shot Parameter-Efficient Fine-Tuning is Better and Cheaper than In-Context Learning, NeurIPS
   2022, https://arxiv.org/abs/2205.05638.
"""

from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import nn

from fedapps.base.errors import DataError, need
from fedapps.base.options import split_names

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
    need("peft", "adapters", f"text.adapter = {options.adapter!r}")
    from peft import IA3Config, LoraConfig, inject_adapter_in_model

    alpha: Any = options.adapter_alpha  # PEFT divides it by the rank, whole or not
    targets = _targets(encoder, options)
    if options.adapter == "lora":
        config: Any = LoraConfig(r=options.adapter_rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0)
    else:
        inner = None if targets is None else [name for name in targets if name in _INNER]
        config = IA3Config(target_modules=targets, feedforward_modules=inner)
    try:
        inject_adapter_in_model(config, encoder)
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
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, layer.get_base_layer())
    return model
