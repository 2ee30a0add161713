"""The last states of padded texts against torch's own LSTM on packed ones, and one step worked out by hand."""

from math import exp, tanh

import pytest
import torch
from fedapps.tasks.text.networks import LastStates
from fedapps.tasks.text.privacy import LoopLSTM, with_loop_lstms
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.func import vmap
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

texts = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def drawn(dtype):
    torch.manual_seed(0)
    ours = LastStates(3, 4).to(dtype)
    theirs = nn.LSTM(3, 4, batch_first=True, bidirectional=True).to(dtype)
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def packed(lstm, inputs, length):
    _, (last, _) = lstm(pack_padded_sequence(inputs, length, batch_first=True, enforce_sorted=False))
    return torch.cat([last[0], last[1]], dim=1)


def gradients(states, inputs, lstm):
    weights = torch.arange(1.0, 1 + states.numel(), dtype=states.dtype).view_as(states)
    return torch.autograd.grad((weights * states.tanh()).mean(), [inputs, *lstm.parameters()], retain_graph=True)


# torch computes an LSTM of 32-bit numbers with other code than one of 64-bit numbers.
@settings(deadline=None, max_examples=40)
@given(texts, st.integers(0, 3), st.booleans(), st.sampled_from([torch.float32, torch.float64]))
@example([1], 0, True, torch.float32)
@example([1, 1, 1], 3, True, torch.float32)
@example([5, 5, 5], 0, False, torch.float32)
@example([1, 9], 2, True, torch.float64)
def test_states_and_gradients_are_those_of_packed_texts(lengths, padding, training, dtype):
    ours, theirs = drawn(dtype)
    inputs = torch.randn(len(lengths), max(lengths) + padding, 3, dtype=dtype, requires_grad=True)
    length = torch.tensor(lengths)
    expected = packed(theirs, inputs, length)
    ours.train(training)
    for read in (ours.padded, ours.packed, ours.untrimmed, ours):
        states = read(inputs, length)
        torch.testing.assert_close(states, expected)
        for mine, true in zip(gradients(states, inputs, ours), gradients(expected, inputs, theirs), strict=True):
            torch.testing.assert_close(mine, true)
    torch.testing.assert_close(with_loop_lstms(ours)(inputs, length), expected)


@settings(deadline=None, max_examples=25)
@given(texts, st.integers(0, 3), st.floats(-1e6, 1e6))
def test_padding_is_never_read(lengths, padding, filler):
    ours, _ = drawn(torch.float32)
    length = torch.tensor(lengths)
    padded = torch.arange(max(lengths) + padding) >= length[:, None]
    inputs = torch.randn(*padded.shape, 3)
    zeros, others = (inputs.masked_fill(padded[..., None], value).requires_grad_() for value in (0.0, filler))
    ours_on_zeros, ours_on_others = ours(zeros, length), ours(others, length)
    assert torch.equal(ours_on_zeros, ours_on_others)
    found = gradients(ours_on_others, others, ours)
    assert all(map(torch.equal, found, gradients(ours_on_zeros, zeros, ours)))
    assert not found[0][padded].any()


def test_word_vectors_learn_below_a_layer_that_does_not():
    ours, theirs = drawn(torch.float32)
    inputs, length = torch.randn(3, 5, 3, requires_grad=True), torch.tensor([5, 1, 3])
    expected = torch.autograd.grad(packed(theirs, inputs, length).sum(), inputs)
    found = torch.autograd.grad(ours.requires_grad_(False)(inputs, length).sum(), inputs)
    torch.testing.assert_close(found, expected)


def test_a_text_of_one_word_by_hand():
    """From the state 0, the cell is sigmoid(i) tanh(g) and the state sigmoid(o) tanh(cell); all weights are 1/2."""
    lstm = LastStates(1, 1)
    with torch.no_grad():
        for parameter in lstm.parameters():
            parameter.fill_(0.5)
    gate = 0.5 * 2.0 + 0.5 + 0.5
    sigmoid = 1 / (1 + exp(-gate))
    state = sigmoid * tanh(sigmoid * tanh(gate))
    found = lstm(torch.tensor([[[2.0], [77.0]]]), torch.tensor([1]))
    assert found.tolist() == [pytest.approx([state, state], rel=1e-6)]


def test_parameters_are_named_and_drawn_as_those_of_torch():
    torch.manual_seed(5)
    ours = LastStates(3, 4).state_dict()
    torch.manual_seed(5)
    theirs = nn.LSTM(3, 4, batch_first=True, bidirectional=True).state_dict()
    assert list(ours) == list(theirs)
    assert "weight_ih_l0_reverse" in ours
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


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
