"""Audits of an agent: instructions that shared rows and gradients tell, worked out by hand, and what is refused."""

from dataclasses import replace

import pytest
import torch
from drawn_houses import task_with, write_world
from fedapps.tasks.privacy.audit import attacker, row_reading, subspace
from fedapps.tasks.privacy.sharing import UpdatedVictim
from fedapps.tasks.vln.agent import LEARNING
from fedapps.tasks.vln.instructions import RESERVED
from fedapps.tasks.vln.nodes import selected
from fedapps.tasks.vln.privacy import SHARINGS, VlnSubject
from hypothesis import given, settings
from hypothesis import strategies as st

SUBJECT = VlnSubject()
WIDTH = 64  # more than all words
WORDS = (
    "walk past the sofa bed sink table lamp door stairs rug plant and stop at , leaving where you is go to . ! ... "
    "piano desk stove"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_world(tmp_path_factory.mktemp("houses"))
    (folder / "words.txt").write_text(WORDS.replace(" ", "\n"))
    return folder


def audited(folder, count=2, **changes):
    """A node that has not trained, and the instructions to attack."""
    task = task_with(
        **{"word_width": WIDTH, "learning": "imitation", "vocabulary_file": "words.txt", "vocabulary_size": 40}
        | changes
    )
    data = task.load_node(folder, 0, 3)
    data, sentences = SUBJECT.choose(task, data, folder, count, 0)
    torch.manual_seed(0)
    model = task.build_model_for(data)
    return task, data, model, sentences


def shared(victim, sentences, method):
    texts = [sentence.words for sentence in sentences]
    return victim.share(texts, [sentence.label for sentence in sentences], SHARINGS[method])


def read(attack, observation, body, table):
    (words,) = attack.run(observation, body).read(table)
    return set(words) - set(RESERVED)


def written(sentences):
    return {word for sentence in sentences for word in sentence.words} - set(RESERVED)


def test_instructions_are_those_of_the_house(folder):
    _, data, _, sentences = audited(folder, 12)
    assert len({sentence.label for sentence in sentences}) == 12
    texts = {text for path in data.extra["paths"]["train"] for text in path.instructions}
    for sentence in sentences:
        assert (sentence.words[0], sentence.words[-1]) == ("<BOS>", "<EOS>")
    assert " ".join(sentences[0].words[1:-1]) in {
        text.lower().replace(".", " .").replace(" . . .", " ...").strip() for text in texts
    }


@pytest.mark.parametrize("learning", sorted(LEARNING))
@pytest.mark.parametrize("method", SHARINGS)
def test_two_instructions_of_a_small_agent(folder, learning, method):
    task, data, model, sentences = audited(folder, learning=learning)
    victim = SUBJECT.victim(task, model, data)
    seen = shared(victim, sentences, method)
    assert read(row_reading, seen, victim.body, victim.table) == written(sentences)
    assert read(subspace, seen, victim.body, victim.table) == written(sentences)


def test_a_foreign_table_tells_nothing_beyond_chance(folder):
    """What ten tables name is among the written words as often as words that are drawn at random."""
    task, data, model, sentences = audited(folder)
    victim, words = SUBJECT.victim(task, model, data), written(sentences)
    seen = shared(victim, sentences, "fedvln")
    found = []
    for seed in range(10):
        foreign = attacker("foreign", SHARINGS["fedvln"], victim, victim, seed)
        found.append(read(subspace, seen, foreign.body, foreign.table))
    share = sum(len(words & names) for names in found) / sum(map(len, found))
    chance = len(words) / (len(victim.table.words) - len(RESERVED))
    assert share == pytest.approx(chance, abs=0.15)


def test_the_gradients_are_those_of_the_loss_in_evaluation_mode(folder):
    task, data, model, sentences = audited(folder)
    seen = shared(SUBJECT.victim(task, model, data), sentences, "fedavg")
    batch = selected(data.splits["train"], torch.tensor([sentence.label for sentence in sentences]))
    model.eval()
    task.loss(model, batch).backward()
    named = dict(model.named_parameters())
    rows = named.pop("encoder.embedding.weight").grad
    assert seen.gradients.keys() == named.keys()
    for name, parameter in named.items():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(seen.gradients[name], expected)
    torch.testing.assert_close(seen.rows, rows[: len(seen.row_words)])


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31), st.integers(1, 4), st.sampled_from(["imitation", "mixed"]))
def test_the_encoder_alone_tells_the_same_words_as_the_whole_agent(folder, seed, count, learning):
    task, data, model, _ = audited(folder, learning=learning)
    _, sentences = SUBJECT.choose(task, data, folder, count, seed)
    victim = SUBJECT.victim(task, model, data)
    alone, whole = (shared(victim, sentences, method) for method in ("fedvln", "fedavg"))
    assert set(alone.gradients) < set(whole.gradients)
    assert all(name.startswith("encoder.") for name in alone.gradients)
    for attack in (row_reading, subspace):
        told = [read(attack, seen, victim.body, victim.table) for seen in (alone, whole)]
        assert told[0] == told[1]
    assert read(row_reading, alone, victim.body, victim.table) == written(sentences)


@pytest.mark.parametrize("method", SHARINGS)
def test_a_step_of_training_tells_the_same_words(folder, method):
    task, data, model, sentences = audited(folder, dropout=0.0, feature_dropout=0.0)
    victim = SUBJECT.victim(task, model, data)

    def train(rows, lengths, labels):
        batch = SUBJECT.batch(data, rows, lengths, labels)
        assert torch.equal(batch["tokens"], rows)
        local = task.build_model_for(data)
        local.load_state_dict(model.state_dict())
        task.loss(local, batch).backward()
        torch.optim.SGD(local.parameters(), lr=0.1).step()
        return SUBJECT.victim(task, local, data), 1

    updated = UpdatedVictim(victim.body, victim.table, train, 0.0)
    seen = shared(updated, sentences, method)
    assert read(row_reading, seen, victim.body, victim.table) == written(sentences)
    assert read(subspace, seen, victim.body, victim.table) == written(sentences)


def test_what_cannot_be_attacked_is_refused(folder):
    task, data, _, _ = audited(folder)
    with pytest.raises(ValueError, match=r"only 12 of 12 training instructions of the house houseA .* use at most 12"):
        SUBJECT.choose(task, data, folder, 13, 0)
    few = replace(data, extra=data.extra, splits={})
    with pytest.raises(ValueError, match="only 0 of 0 training instructions"):
        SUBJECT.choose(task, few, folder, 1, 0)
    with pytest.raises(ValueError, match=r"vln.stage = 'speaker': must be 'agent', 'augmented' or 'pre-exploration'"):
        SUBJECT.choose(task_with(stage="speaker"), data, folder, 1, 0)


def test_unknown_words_and_cut_instructions_do_not_qualify(folder):
    _, data, _, _ = audited(folder)
    short = int((data.splits["train"]["length"] < 11).sum())
    assert 0 < short < 12
    with pytest.raises(ValueError, match=f"only {short} of 12 .* fewer than 11 tokens"):
        audited(folder, 12, max_length=11)
    (folder / "few.txt").write_text("go\nto\nthe\n")
    with pytest.raises(ValueError, match="only 0 of 12"):
        audited(folder, vocabulary_file="few.txt")
