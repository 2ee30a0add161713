"""LSTM layers as loops of cells, for gradient matching, which differentiates a gradient.

cuDNN's LSTM has no second derivative; torch's LSTM on the CPU has one, but no batching rule for ``torch.func.vmap``. A
loop of cells has both on every device, but is slower.
"""

from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .networks import LastStates

State = tuple[Tensor, Tensor]
Module = TypeVar("Module", bound=nn.Module)


class LoopLSTM(nn.LSTM):
    """``nn.LSTM`` as a loop over time, with the same parameters, inputs (padded or packed) and outputs, up to rounding.

    Dropout between layers is not applied, as in evaluation mode.
    """

    def forward(self, input: Tensor | PackedSequence, hx: State | None = None):  # type: ignore[no-untyped-def]
        if isinstance(input, PackedSequence):
            padded, lengths = pad_packed_sequence(input, batch_first=True)
            output, state = self.padded(padded, lengths, hx)
            return pack_padded_sequence(output, lengths, batch_first=True, enforce_sorted=False), state
        padded = input if self.batch_first else input.transpose(0, 1)
        output, state = self._layers(padded, None, hx)
        return output if self.batch_first else output.transpose(0, 1), state

    def padded(self, inputs: Tensor, lengths: Tensor, hx: State | None = None) -> tuple[Tensor, State]:
        """Compute what packed sequences would give, without packing, which ``vmap`` does not support.

        ``inputs`` [B, T, d] are padded to T >= ``lengths`` [B]. Outputs [B, T, ·] are 0 beyond the lengths, and the
        state is that at the last token (the first, backwards).
        """
        steps = torch.arange(inputs.shape[1], device=inputs.device)
        return self._layers(inputs, steps[None] < lengths.to(inputs.device)[:, None], hx)

    def _layers(self, inputs: Tensor, valid: Tensor | None, hx: State | None) -> tuple[Tensor, State]:
        directions = ("", "_reverse")[: 1 + self.bidirectional]
        ends: list[State] = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in directions:
                index = len(ends)
                start = (hx[0][index], hx[1][index]) if hx is not None else None
                output, end = self._scan(inputs, valid, f"l{layer}{direction}", start)
                outputs.append(output)
                ends.append(end)
            inputs = torch.cat(outputs, -1)
        hidden, cell = zip(*ends, strict=True)
        return inputs, (torch.stack(hidden), torch.stack(cell))

    def _scan(self, inputs: Tensor, valid: Tensor | None, suffix: str, start: State | None) -> tuple[Tensor, State]:
        """Run one direction of one layer over [B, T, ·]; beyond ``valid`` [B, T] the state stays and outputs are 0."""
        recurrent = getattr(self, f"weight_hh_{suffix}")
        driven = inputs @ getattr(self, f"weight_ih_{suffix}").T
        if self.bias:
            driven = driven + getattr(self, f"bias_ih_{suffix}") + getattr(self, f"bias_hh_{suffix}")
        zeros = inputs.new_zeros(len(inputs), self.hidden_size)
        hidden, cell = start if start is not None else (zeros, zeros)
        steps = range(inputs.shape[1])
        outputs: dict[int, Tensor] = {}
        for step in reversed(steps) if suffix.endswith("_reverse") else steps:
            enter, forget, candidate, leave = (driven[:, step] + hidden @ recurrent.T).chunk(4, -1)
            new_cell = forget.sigmoid() * cell + enter.sigmoid() * candidate.tanh()
            new_hidden = leave.sigmoid() * new_cell.tanh()
            if valid is None:
                hidden, cell, outputs[step] = new_hidden, new_cell, new_hidden
            else:
                active = valid[:, step, None]
                hidden, cell = torch.where(active, new_hidden, hidden), torch.where(active, new_cell, cell)
                outputs[step] = torch.where(active, new_hidden, zeros)
        return torch.stack([outputs[step] for step in steps], 1), (hidden, cell)


class LoopLastStates(LoopLSTM):
    """:class:`.networks.LastStates` as a loop over time, with the same parameters, inputs and result."""

    def forward(self, inputs: Tensor, length: Tensor) -> Tensor:  # type: ignore[override]
        _, (last, _) = self.padded(inputs, length)
        return last.transpose(0, 1).flatten(1)


#: The loop for each class of LSTMs. The two differ only in their methods.
_LOOPS = {nn.LSTM: LoopLSTM, LastStates: LoopLastStates}


def with_loop_lstms(module: Module) -> Module:
    """Return a copy of ``module`` in evaluation mode whose LSTMs are loops. Names and values of parameters stay.

    Raises
    ------
    ValueError
        An LSTM has projections.
    """
    copy = deepcopy(module).eval()
    for part in list(copy.modules()):
        if isinstance(part, nn.LSTM) and (loop := _LOOPS.get(type(part))):
            if part.proj_size:
                raise ValueError(f"an LSTM with proj_size = {part.proj_size} cannot be turned into a loop: must be 0")
            part.__class__ = loop
    return copy
