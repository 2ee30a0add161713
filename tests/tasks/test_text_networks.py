"""Classifiers: sizes, what padding must not do, and encoders in the format in which they are published."""

import pytest
import torch
from fedapps.tasks.base import DataError
from fedapps.tasks.text.encoder_network import Transformer
from fedapps.tasks.text.networks import BiLstm, LastStates, SplitEmbedding, places_of
from fedapps.tasks.text.options import Options
from fedapps.tasks.text.privacy import LoopLSTM, with_loop_lstms
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.text.transformer import embeddings_of, load_tokenizer
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from text_world import model_of
from tiny_encoder import classifier, encoder_folder
from torch import nn
from torch.func import vmap
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def numbers(module):
    return sum(parameter.numel() for parameter in module.parameters())


def groups(model):
    return {name.partition(".")[0] for name in model.state_dict()}


def small_lstm(dropout=0.0):
    torch.manual_seed(0)
    return BiLstm(nn.Embedding(11, 5), 3, hidden=4, dropout=dropout).eval()


def as_torch(encoder):
    lstm = nn.LSTM(encoder.input_size, encoder.hidden_size, batch_first=True, bidirectional=True)
    lstm.load_state_dict(encoder.state_dict())
    return lstm


def test_a_private_embedding_saves_what_the_paper_says_with_the_words_of_glove():
    """Up to 83 times less to send (FedVocab, abstract): GloVe 6B has 400,000 words of 300 numbers."""
    with torch.device("meta"):
        model = BiLstm(nn.Embedding(400_002, 300), 4, hidden=300, dropout=0.1)
    everything, embedding = 4 * numbers(model), 4 * numbers(model.embedding)
    assert (everything, everything - embedding) == (485_791_216, 5_788_816)
    assert everything / (everything - embedding) == pytest.approx(83.9, abs=0.05)


def test_the_lstm_has_the_size_of_the_papers():
    """4 gates x 300 x (300 inputs + 300 states + 2 biases) per direction."""
    model = BiLstm(nn.Embedding(2, 300), 20, hidden=300, dropout=0.5)
    assert numbers(model.encoder) == 1_444_800 == 2 * 4 * 300 * 602
    assert numbers(model.embedding) == 600
    assert numbers(model.classifier) == 601 * 20
    assert groups(model) == {"embedding", "encoder", "classifier"}


def test_distilbert_and_bert_have_the_sizes_of_the_papers():
    from transformers import AutoModel, BertConfig, DistilBertConfig

    with torch.device("meta"):
        distilbert = Transformer(AutoModel.from_config(DistilBertConfig()), 4, Options(model="distilbert"))
        bert = Transformer(AutoModel.from_config(BertConfig()), 4, Options(model="bert"))
    assert (numbers(distilbert.embedding), numbers(distilbert.encoder)) == (23_835_648, 42_527_232)
    assert (numbers(bert.embedding), numbers(bert.encoder)) == (23_837_184, 85_054_464 + 590_592)
    assert groups(distilbert) == {"embedding", "encoder", "pre_classifier", "classifier"}
    assert groups(bert) == {"embedding", "encoder", "classifier"}
    assert not [name for name in distilbert.state_dict() if "position_ids" in name]


def test_the_last_states_of_both_directions_are_classified():
    model, ids = small_lstm(), torch.tensor([[3, 1, 4], [2, 7, 7]])
    found = model(ids, torch.tensor([3, 1]))
    for row, length in ((0, 3), (1, 1)):
        states, _ = as_torch(model.encoder)(model.embedding(ids[row : row + 1, :length]))
        both = torch.cat((states[0, -1, :4], states[0, 0, 4:]))
        torch.testing.assert_close(found[row], model.classifier(both))


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
def test_padding_never_changes_what_a_transformer_says_or_learns(tmp_path, kind):
    model = classifier(encoder_folder(tmp_path, kind), 3).eval()
    texts = [[2, 4, 5, 3], [2, 6, 3], [2, 3]]
    length = torch.tensor([len(text) for text in texts])
    alone = torch.cat([model(torch.tensor([text]), torch.tensor([len(text)])) for text in texts])
    for filler in (0, 7):
        ids = torch.tensor([text + [filler] * (9 - len(text)) for text in texts], dtype=torch.int32)
        logits = model(ids, length)
        torch.testing.assert_close(logits, alone, atol=1e-5, rtol=1e-5)
        logits.sum().backward()
        words = model.embedding.word_embeddings.weight.grad
        assert words[[0, 1, 7]].abs().max() == 0
        assert words[[2, 3, 4, 5, 6]].abs().sum(dim=1).min() > 0
        model.zero_grad()


@pytest.mark.parametrize("kind", ["distilbert", "bert"])
def test_a_published_encoder_says_what_the_library_makes_of_it(tmp_path, kind):
    """The classifier's parts, put together again with the library's own model."""
    from transformers import AutoModel

    folder = encoder_folder(tmp_path, kind)
    torch.manual_seed(0)
    model = classifier(folder, 3, dropout=0.5).eval()
    ids, length = torch.tensor([[2, 4, 7, 3], [2, 6, 3, 0]]), torch.tensor([4, 3])
    original = AutoModel.from_pretrained(folder)
    output = original(input_ids=ids, attention_mask=(torch.arange(4) < length[:, None]).long())
    first = output.last_hidden_state[:, 0]
    pooled = output.pooler_output if kind == "bert" else model.pre_classifier(first).relu()
    torch.testing.assert_close(model(ids, length), model.classifier(pooled))
    own = {name.removeprefix("encoder.") for name in model.state_dict() if name.startswith("encoder.")}
    assert own == {name for name in original.state_dict() if not name.startswith("embeddings.")}


def test_weights_are_read_or_drawn_as_asked(tmp_path):
    folder = str(encoder_folder(tmp_path))

    def made(seed, pretrained):
        torch.manual_seed(seed)
        return classifier(folder, 3, weights="pretrained" if pretrained else "random").state_dict()

    def equal(one, other):
        return {name for name in one if torch.equal(one[name], other[name])}

    read = equal(made(0, True), made(1, True))
    assert {name for name in made(0, True) if name.startswith(("embedding.", "encoder."))} <= read
    assert not [name for name in read if name.endswith("classifier.weight")]
    drawn = equal(made(0, False), made(1, False))
    assert "embedding.word_embeddings.weight" not in drawn
    assert equal(made(0, False), made(0, False)) == set(made(0, False))
    (tmp_path / "model.safetensors").unlink()
    assert equal(made(2, False), made(2, False))


def test_a_model_that_was_trained_leaves_the_next_one_as_published(tmp_path):
    folder = str(encoder_folder(tmp_path))
    first = classifier(folder, 3)
    before = {name: tensor.clone() for name, tensor in first.state_dict().items() if name.startswith("encoder.")}
    assert first.training
    optimizer = torch.optim.SGD(first.parameters(), 1.0)
    cross_entropy(first(torch.tensor([[2, 4, 3]]), torch.tensor([3])), torch.tensor([0])).backward()
    optimizer.step()
    after = classifier(folder, 3).state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_an_encoder_is_read_again_once_its_files_have_changed(tmp_path):
    folder = str(encoder_folder(tmp_path))
    task = TextTask(Options(dataset="mine", classes=2, model=folder, max_length=8, frozen_embedding=True))
    before, digest = model_of(task), task.fixed_digest
    assert task.fixed_digest == digest
    assert load_tokenizer(folder) is load_tokenizer(folder)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: 2 * weight for name, weight in weights.items()}, tmp_path / "model.safetensors", {"format": "pt"})
    tokens = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(tokens.replace('"two"', '"second"'))
    table = "embedding.word_embeddings.weight"
    assert torch.equal(model_of(task).state_dict()[table], 2 * before.state_dict()[table])
    assert task.fixed_digest != digest
    assert load_tokenizer(folder).words[5] == "second"


def test_tokens_of_a_published_tokenizer(tmp_path):
    vocabulary = load_tokenizer(str(encoder_folder(tmp_path)))
    assert vocabulary.encode(["one twos four", ""], 12) == [[2, 4, 5, 7, 1, 3], [2, 3]]
    assert vocabulary.encode(["one two three"], 4) == [[2, 4, 5, 3]]
    assert vocabulary.words[4] == "one"


def test_the_embeddings_of_an_encoder_alone(tmp_path):
    folder = str(encoder_folder(tmp_path))
    whole = classifier(folder, 3).embedding.state_dict()
    alone = embeddings_of(folder, pretrained=True)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in alone.state_dict().items())
    with torch.no_grad():
        alone.word_embeddings.weight.zero_()
    assert torch.equal(embeddings_of(folder, pretrained=True).word_embeddings.weight, whole["word_embeddings.weight"])


def test_encoders_that_are_not_there(tmp_path):
    (tmp_path / "empty").mkdir()
    for pretrained in (True, False):
        with pytest.raises(DataError, match=r"'.*empty' \(text\.model, .*the folder has no readable config\.json"):
            classifier(tmp_path / "empty", 3, weights="pretrained" if pretrained else "random")
    with pytest.raises(DataError, match=r"encoder '.*empty' .*: the folder has no readable tokenizer\.json"):
        load_tokenizer(str(tmp_path / "empty"))
    with pytest.raises(DataError, match=r"encoder '.*absent' .*: no such folder"):
        load_tokenizer(str(tmp_path / "absent"))


def test_reading_an_encoder_draws_no_progress_bar(tmp_path, capfd):
    from transformers.utils import logging

    folder = str(encoder_folder(tmp_path))
    capfd.readouterr()
    classifier(folder, 3)
    assert capfd.readouterr().err == ""
    assert logging.is_progress_bar_enabled()


def test_a_model_without_embeddings_of_its_own(tmp_path):
    from transformers import GPT2Config

    GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9).save_pretrained(tmp_path)
    with pytest.raises(DataError, match="has no module `embeddings`; use an encoder such as BERT"):
        classifier(tmp_path, 3, weights="random")


def table(rows, width=3):
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows))


def test_only_the_two_parameters_are_state():
    split = SplitEmbedding.of(table(5), [False, True, False, True, True])
    assert {name: tuple(t.shape) for name, t in split.state_dict().items()} == {"weight": (2, 3), "private": (3, 3)}
    assert torch.equal(split.weight, table(5)[[0, 2]])
    assert torch.equal(split.private, table(5)[[1, 3, 4]])
    assert split.embedding_dim == 3


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_it_says_and_learns_what_one_table_would(private, data):
    whole = nn.Embedding(len(private), 3, _weight=table(len(private)))
    split = SplitEmbedding.of(whole.weight.detach(), private)
    numbers = st.integers(0, len(private) - 1)
    ids = torch.tensor(data.draw(st.lists(st.tuples(numbers, numbers), max_size=5)), dtype=torch.int32).reshape(-1, 2)
    found, expected = split(ids), whole(ids)
    assert torch.equal(found, expected)
    (found**2).sum().backward()
    (expected**2).sum().backward()
    mask = torch.tensor(private)
    for part, chosen in ((split.weight, ~mask), (split.private, mask)):
        rows = int(chosen.sum())
        torch.testing.assert_close(part.grad[:rows], whole.weight.grad[chosen])
        assert part.grad[rows:].abs().sum() == 0
        assert part[rows:].tolist() == [[0, 0, 0]] * (not rows), "an empty parameter cannot be sent"


def test_rows_beyond_the_words_are_allowed():
    split = SplitEmbedding(table(9), table(2), places_of([False, True, False]))
    assert torch.equal(split(torch.arange(3)), torch.stack([table(9)[0], table(2)[0], table(9)[1]]))


# The last states of padded texts against torch's own LSTM on packed ones, and one step worked out by hand.


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


def test_word_vectors_learn_below_a_layer_that_does_not():
    ours, theirs = drawn(torch.float32)
    inputs, length = torch.randn(3, 5, 3, requires_grad=True), torch.tensor([5, 1, 3])
    expected = torch.autograd.grad(packed(theirs, inputs, length).sum(), inputs)
    found = torch.autograd.grad(ours.requires_grad_(False)(inputs, length).sum(), inputs)
    torch.testing.assert_close(found, expected)


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
