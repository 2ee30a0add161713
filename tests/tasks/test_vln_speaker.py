"""The speaker: what it sees of a path, that it learns to describe, and BLEU of what it says."""

import numpy as np
import pytest
import torch
from drawn_houses import NAMES, PATHS, THINGS, house_graph
from fedapps.tasks.base import DataError
from fedapps.tasks.vln.connectivity import Graph
from fedapps.tasks.vln.dataset import sample_paths
from fedapps.tasks.vln.houses import assemble
from fedapps.tasks.vln.instructions import PAD, UNKNOWN, InstructedPath, Vocabulary
from fedapps.tasks.vln.nodes import encode, label_paths, selected
from fedapps.tasks.vln.options import Sizes
from fedapps.tasks.vln.speaker import Speaker, load_speaker, moves_of
from fedapps.tasks.vln.walks import Walks, bleu, bleu_statistics
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy, pad

WIDTH = 6
WORDS = Vocabulary(("go", "to", "the", "from", *THINGS))
SIZES = Sizes(vocabulary=len(WORDS), features=WIDTH, words=16, hidden=32)


@pytest.fixture(scope="module")
def houses():
    features = np.random.default_rng(0).standard_normal((len(NAMES), 36, WIDTH)).astype(np.float32)
    return assemble([house_graph()], features)


def described():
    return [
        InstructedPath(
            "house",
            str(number),
            tuple(NAMES[stop] for stop in stops),
            1.0,
            (f"from the {THINGS[stops[0]]} go to the {THINGS[stops[-1]]}",),
        )
        for number, stops in enumerate(PATHS)
    ]


def drawn_speaker(**drops):
    torch.manual_seed(0)
    return Speaker(SIZES, **({"drop": 0.0, "feature_drop": 0.0} | drops))


def test_moves_are_those_of_an_agent_that_walks_the_path(houses):
    episodes = encode(described(), houses.rows, WORDS, 80)
    here, facing, candidate = moves_of(houses, episodes["path"], episodes["path_length"], episodes["facing"])
    walks = Walks(houses, episodes)
    for step in range(here.shape[1]):
        active = walks.active
        assert torch.equal(walks.here[active], here[active, step])
        assert torch.equal(walks.facing[active], facing[active, step])
        assert torch.equal(walks.teacher(), candidate[active, step])
        walks.step(walks.teacher())
    assert not len(walks.active)


def test_padding_changes_neither_what_is_said_nor_the_loss(houses):
    speaker, episodes = drawn_speaker().eval(), encode(described(), houses.rows, WORDS, 80)
    wider = episodes | {"path": pad(episodes["path"], (0, 3), value=-1), "tokens": pad(episodes["tokens"], (0, 5))}
    torch.testing.assert_close(speaker.loss(houses, episodes), speaker.loss(houses, wider))
    assert speaker.describe(houses, episodes, 12, len(WORDS)) == speaker.describe(houses, wider, 12, len(WORDS))
    for row in range(len(PATHS)):
        alone = speaker.describe(houses, selected(episodes, torch.tensor([row])), 12, len(WORDS))
        assert list(alone) == [speaker.describe(houses, episodes, 12, len(WORDS))[row]]


def test_words_one_by_one_are_words_at_once(houses):
    """The loss is the mean over words of what each says of the next."""
    speaker, episodes = drawn_speaker().eval(), encode(described(), houses.rows, WORDS, 80)
    context, mask = speaker.look(houses, episodes)
    tokens, state, losses = episodes["tokens"].long(), None, []
    for place in range(tokens.shape[1] - 1):
        logits, state = speaker.decoder(tokens[:, place : place + 1], context, mask, state)
        used = tokens[:, place + 1] != PAD
        losses.append(cross_entropy(logits[used, 0], tokens[used, place + 1], reduction="none"))
    torch.testing.assert_close(speaker.loss(houses, episodes), torch.cat(losses).mean())


def test_only_the_words_of_a_text_reach_the_output_layer(houses):
    """Loss and gradients are those of the logits of all places, of which padding does not count."""
    episodes = encode(described(), houses.rows, WORDS, 80)
    episodes = episodes | {"tokens": pad(episodes["tokens"], (0, 4))}
    gradients = []
    for plain in (False, True):
        speaker = drawn_speaker(drop=0.5, feature_drop=0.3).train()
        torch.manual_seed(1)
        if plain:
            tokens = episodes["tokens"].long()
            logits, _ = speaker.decoder(tokens[:, :-1], *speaker.look(houses, episodes))
            loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD)
        else:
            loss = speaker.loss(houses, episodes)
        loss.backward()
        gradients.append([loss.detach(), *(parameter.grad for parameter in speaker.parameters())])
    torch.testing.assert_close(*gradients)


@pytest.mark.slow
def test_a_speaker_learns_to_describe(houses):
    speaker, episodes = drawn_speaker().train(), encode(described(), houses.rows, WORDS, 80)
    optimizer = torch.optim.Adam(speaker.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        speaker.loss(houses, episodes).backward()
        optimizer.step()
    labelled = label_paths(speaker, houses, WORDS, described(), 80)
    assert [path.instructions for path in labelled] == [path.instructions for path in described()]


def test_unknown_words_are_never_said_and_long_sentences_end(houses):
    speaker, episodes = drawn_speaker().eval(), encode(described(), houses.rows, WORDS, 80)
    torch.nn.init.zeros_(speaker.decoder.output.weight)
    torch.nn.init.zeros_(speaker.decoder.output.bias)
    speaker.decoder.output.bias.data[UNKNOWN] = 9.0
    speaker.decoder.output.bias.data[-1] = 7.0
    speaker.decoder.output.bias.data[7] = 5.0
    assert speaker.describe(houses, episodes, 5, len(WORDS)) == [[len(WORDS) - 1] * 5] * len(PATHS)
    assert speaker.describe(houses, episodes, 5, len(WORDS) - 1) == [[7] * 5] * len(PATHS)


def test_sampled_paths_are_shortest_paths_of_the_length_of_r2r():
    graph = house_graph()
    paths = sample_paths(graph, 20, np.random.default_rng(0))
    assert len({path.path for path in paths}) == 20
    for path in paths:
        assert 5 <= len(path.path) <= 7
        rows = [NAMES.index(name) for name in path.path]
        assert graph.navigable[rows[:-1], rows[1:]].all()
    again = sample_paths(graph, 20, np.random.default_rng(0))
    assert paths == again
    assert len(sample_paths(graph, 10_000, np.random.default_rng(0))) < 13 * 12
    tiny = Graph("tiny", ("a", "b"), np.eye(3)[:2], np.eye(2, dtype=bool)[::-1], np.eye(2, dtype=bool)[::-1])
    assert sample_paths(tiny, 10, np.random.default_rng(0)) == []


def test_a_speaker_comes_back_from_its_file(houses, tmp_path):
    speaker = drawn_speaker()
    save_file(speaker.state_dict(), tmp_path / "speaker.safetensors")
    again = load_speaker(tmp_path / "speaker.safetensors", WIDTH)
    episodes = encode(described(), houses.rows, WORDS, 80)
    assert again.describe(houses, episodes, 9, len(WORDS)) == speaker.eval().describe(houses, episodes, 9, len(WORDS))
    with pytest.raises(DataError, match=r"a speaker for 6 features per view, but vln\.features has 98"):
        load_speaker(tmp_path / "speaker.safetensors", 98)
    save_file({"encoder.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="so no speaker"):
        load_speaker(tmp_path / "other.safetensors", WIDTH)
    (tmp_path / "text.safetensors").write_text("sorry")
    with pytest.raises(DataError, match="expected a safetensors file"):
        load_speaker(tmp_path / "text.safetensors", WIDTH)
    with pytest.raises(DataError, match="no such file"):
        load_speaker(tmp_path / "nowhere", WIDTH)


# -- BLEU ------------------------------------------------------------------------------------------------------

sentences = st.lists(st.sampled_from("abc"), min_size=4, max_size=9)


def test_bleu_by_hand():
    """a b c d e against a b c d f g h: 4 of 5 words, 3 of 4 pairs, 2 of 3, 1 of 2; the shortest reference has 7."""
    statistics = bleu_statistics([list("abcde")], [[list("abcdfgh"), list("zzzzzzzz")]])
    assert statistics.tolist() == [4, 3, 2, 1, 5, 4, 3, 2, 5, 7]
    expected = (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25 * np.exp(1 - 7 / 5)
    assert bleu(statistics) == pytest.approx(100 * expected)
    assert bleu(bleu_statistics([list("aaaa")], [[list("bbbb")]])) == 0
    assert bleu(bleu_statistics([list("abcd")], [[list("xyz"), list("abcd")]])) == pytest.approx(100)


@given(st.lists(st.tuples(sentences, sentences), min_size=1, max_size=4))
def test_with_one_reference_bleu_is_sacrebleus_own(pairs):
    import sacrebleu

    said, references = [pair[0] for pair in pairs], [[pair[1]] for pair in pairs]
    own = sacrebleu.corpus_bleu(
        [" ".join(each) for each in said],
        [[" ".join(each[0]) for each in references]],
        tokenize="none",
        smooth_method="none",
        force=True,
    )
    assert bleu(bleu_statistics(said, references)) == pytest.approx(own.score, abs=1e-6)


@given(st.lists(st.tuples(sentences, sentences), min_size=2, max_size=5), st.integers(1, 4))
def test_statistics_of_parts_add_up(pairs, cut):
    parts = [part for part in (pairs[:cut], pairs[cut:]) if part]
    sums = sum(bleu_statistics([p[0] for p in part], [[p[1], p[1][:4]] for p in part]) for part in parts)
    whole = bleu_statistics([p[0] for p in pairs], [[p[1], p[1][:4]] for p in pairs])
    np.testing.assert_array_equal(sums, whole)
    assert bleu(sums / 3) == pytest.approx(bleu(whole))
