"""The loop of LSTM cells against torch's own LSTM."""

import pytest
import torch
from fedapps.tasks.text.loop_lstm import LoopLSTM, with_loop_lstms
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def both(**options):
    lstm = nn.LSTM(3, 4, **options).double()
    return lstm.eval(), with_loop_lstms(lstm)


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 3),
    time=st.integers(1, 4),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    bias=st.booleans(),
)
def test_the_loop_is_the_lstm(batch, time, layers, bidirectional, batch_first, bias):
    lstm, loop = both(num_layers=layers, bidirectional=bidirectional, batch_first=batch_first, bias=bias)
    assert type(loop) is LoopLSTM
    inputs = torch.randn((batch, time, 3) if batch_first else (time, batch, 3), dtype=torch.float64)
    start = tuple(torch.randn(layers * (1 + bidirectional), batch, 4, dtype=torch.float64) for _ in range(2))
    for hx in (None, start):
        for ours, theirs in zip(flat(loop(inputs, hx)), flat(lstm(inputs, hx)), strict=True):
            torch.testing.assert_close(ours, theirs)


def flat(result):
    output, (hidden, cell) = result
    return output, hidden, cell


def test_packed_and_padded_sequences_end_where_they_end():
    lstm, loop = both(bidirectional=True, batch_first=True)
    inputs, lengths = torch.randn(3, 5, 3, dtype=torch.float64), torch.tensor([2, 5, 3])
    packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
    truth, ours = lstm(packed), loop(packed)
    expected = pad_packed_sequence(truth[0], batch_first=True)[0]
    torch.testing.assert_close(pad_packed_sequence(ours[0], batch_first=True)[0], expected)
    # Torch packs from the longest sequence on, but hands the states back in the order of the batch.
    for state, true in zip(loop.padded(inputs, lengths)[1], truth[1], strict=True):
        torch.testing.assert_close(state, true)
    torch.testing.assert_close(ours[1], truth[1])
    torch.testing.assert_close(loop.padded(inputs, lengths)[0], expected)


def test_second_derivatives_are_right_and_come_in_batches():
    _, loop = both(bidirectional=True, batch_first=True)
    inputs = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)

    def norm(inputs):
        output = loop(inputs)[0].square().sum()
        gradients = torch.autograd.grad(output, list(loop.parameters()), create_graph=True)
        return sum(gradient.square().sum() for gradient in gradients)

    assert torch.autograd.gradcheck(norm, inputs)
    several = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    together = vmap(lambda one: loop(one)[0])(several)
    torch.testing.assert_close(together, torch.stack([loop(one)[0] for one in several]))


def test_parameters_keep_their_names_and_the_original_stays():
    model = nn.Sequential(nn.Dropout(), nn.LSTM(3, 4, dropout=0.5, num_layers=2))
    copy = with_loop_lstms(model)
    assert list(copy.state_dict()) == list(model.state_dict())
    assert type(model[1]) is nn.LSTM
    assert model.training
    assert not copy.training
    with pytest.raises(ValueError, match="proj_size = 2"):
        with_loop_lstms(nn.LSTM(3, 4, proj_size=2))
