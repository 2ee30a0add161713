"""What nodes begin with: alike word by word, with digits of their own, or with embeddings of their own."""

import time
from collections import Counter
from dataclasses import replace

import pytest
import torch
from tiny_encoder import encoder_folder

from sim.corpus import write_examples
from tasks.base import DataError, NodeData, Privacy
from tasks.text import Options, TextTask
from tasks.text.split_embedding import SplitEmbedding
from tasks.text.starts import dealt_start
from tasks.text.vocabulary import DIGITS, SPECIAL, WordVocabulary

SMALL = Options(source="simulated", dataset="mine", classes=2, hidden=3, embedding_width=4, dropout=0.0)
SHARED, FEDRECON = Privacy(), Privacy(("embedding*private",))
FEDVOCAB, OWN_START = Privacy(("embedding.*",)), Privacy(("embedding.*",), own_start=True)
NODES = 3
TEXTS = [f"{word} {number} goals in {1990 + number}" for word in ("win", "loss", "tie") for number in range(8)]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Three nodes whose texts have words in common and digit words that others have not."""
    folder = tmp_path_factory.mktemp("scores")
    for name, texts in (("train", TEXTS), ("test", [*TEXTS[:6], "win 2050 goals"])):
        write_examples(folder / f"{name}.jsonl", texts, [i % 2 for i in range(len(texts))])
    return folder


@pytest.fixture
def words_file(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("win\n1990\nloss\ngoals\n3\nin\n")
    return path


def model_for(task, data, seed=0):
    torch.manual_seed(seed)
    return task.build_model_for(data).eval()


def model_of(task, seed=0):
    torch.manual_seed(seed)
    return task.build_model().eval()


def nodes_of(task, world):
    return [task.load_node(world, k, NODES) for k in range(NODES)]


def vectors(model, data):
    """The embedding's vector of each of the node's words."""
    words = data.extra["vocabulary"].words
    return dict(zip(words, model.embedding(torch.arange(len(words))).detach(), strict=True))


def renamed(folder, file, names):
    """The folder of an encoder with other words in one of its files."""
    text = (folder / file).read_text()
    for name, new in names.items():
        text = text.replace(f'"{name}"', f'"{new}"')
    (folder / file).write_text(text)
    return str(folder)


def state(model, private):
    """Parameters that do not begin with ``private``."""
    return {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(private)}


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


class TestSameStart:
    """All nodes begin alike."""

    @pytest.mark.parametrize("glove", [False, True])
    def test_a_word_has_the_same_vector_on_every_node(self, world, tmp_path, glove):
        (tmp_path / "glove.txt").write_text("win 1 2 3 4\ngoals 5 6 7 8\n")
        task = TextTask(replace(SMALL, glove=str(tmp_path / "glove.txt") if glove else "")).under(FEDVOCAB)
        nodes = nodes_of(task, world)
        assert len({node.extra["vocabulary"].words for node in nodes}) == NODES
        one, other = (vectors(model_for(task, node), node) for node in nodes[:2])
        common = set(one) & set(other)
        assert {*SPECIAL, "win", "goals", "in"} <= common < set(one)
        assert all(torch.equal(one[word], other[word]) for word in common)
        assert (one["goals"].tolist() == [5, 6, 7, 8]) is glove
        again = vectors(model_for(task, nodes[0], seed=1), nodes[0])
        assert not torch.equal(again["in"], one["in"])

    @pytest.mark.parametrize("privacy", [SHARED, FEDVOCAB, FEDRECON, OWN_START])
    @pytest.mark.parametrize("file", [False, True])
    def test_shared_parameters_begin_as_the_servers(self, world, words_file, privacy, file):
        task = TextTask(replace(SMALL, vocabulary_size=40, vocabulary_file=str(words_file) if file else ""))
        task = task.under(privacy)
        private = {SHARED: "none", FEDRECON: "embedding.private"}.get(privacy, "embedding.")
        server = state(model_of(task), private)
        for node in nodes_of(task, world):
            assert_equal(state(model_for(task, node), private), server)

    def test_encoders_begin_alike_under_every_method(self, world):
        encoders = []
        for privacy in (SHARED, FEDVOCAB, FEDRECON, OWN_START):
            task = TextTask(SMALL).under(privacy)
            encoders.append(state(model_for(task, task.load_node(world, 0, NODES)), "embedding."))
        for encoder in encoders[1:]:
            assert_equal(encoder, encoders[0])

    def test_a_message_waits_little_for_its_model(self):
        task = TextTask(replace(SMALL, embedding_width=100, hidden=100)).under(FEDVOCAB)
        words = WordVocabulary(SPECIAL + tuple(f"w{i}" for i in range(6000)))
        data = NodeData("client-000", {}, extra={"vocabulary": words})
        model_for(task, data)
        took = []
        for _ in range(5):
            begun = time.process_time()
            model_for(task, data)
            took.append(time.process_time() - begun)
        assert min(took) < 0.05


class TestDigitsOfTheirOwn:
    """FedRecon: all is shared but the vectors of digit words."""

    def test_nodes_have_rows_for_their_own_digits_only(self, world):
        task = TextTask(replace(SMALL, vocabulary_size=40)).under(FEDRECON)
        nodes = nodes_of(task, world)
        everybody = {word for text in TEXTS for word in text.split()}
        for node in nodes:
            words = node.extra["vocabulary"].words
            own = words[words.index(DIGITS) + 1 :]
            assert all(word.isdigit() for word in own)
            assert set(words) - set(own) == {*SPECIAL, DIGITS, *(w for w in everybody if not w.isdigit())}
            seen = {words[i] for i in node.splits["train"]["ids"].flatten().tolist()}
            assert set(own) == {word for word in seen if word.isdigit()}
            model = model_for(task, node)
            assert model.embedding.weight.shape == (42, 4)
            assert model.embedding.private.shape == (1 + len(own), 4)
        assert len({node.extra["vocabulary"].words for node in nodes}) == NODES
        assert model_of(task).embedding.private.shape == (1, 4)

    def test_common_tests_are_in_the_nodes_own_numbers(self, world):
        """The test 'win 2050 goals': nobody has seen 2050."""
        task = TextTask(replace(SMALL, vocabulary_size=40)).under(FEDRECON)
        written = sorted([*TEXTS[:6], "win 2050 goals"])
        for node in nodes_of(task, world):
            words = node.extra["vocabulary"].words
            (batch,) = node.extra["common_test"].batches(99)
            rows = zip(batch["ids"].tolist(), batch["length"].tolist(), strict=True)
            found = sorted(tuple(words[i] for i in ids[:length]) for ids, length in rows)
            expected = sorted(
                tuple(word if word in words or not word.isdigit() else DIGITS for word in text.split())
                for text in written
            )
            assert found == expected
            assert ("win", DIGITS, "goals") in found

    def test_unseen_digits_share_a_private_vector(self, world):
        task = TextTask(SMALL).under(FEDRECON)
        node = task.load_node(world, 0, NODES)
        model, vocabulary = model_for(task, node), node.extra["vocabulary"]
        unknown = model.embedding(torch.tensor(vocabulary.encode(["31415"], 9)))
        assert torch.equal(unknown[0, 0], model.embedding.private[0])

    def test_with_words_in_common_it_is_the_model_of_one_table(self, world, words_file):
        """Digits of the file that are the node's too, so that both models have rows for the words of these texts."""
        words_file.write_text("win\n" + "\n".join(str(n) for n in [*range(8), *range(1990, 1998)]) + "\ngoals\nin\n")
        whole = TextTask(replace(SMALL, vocabulary_file=str(words_file)))
        split = whole.under(FEDRECON)
        one, other = whole.load_all(world), split.load_all(world)
        assert isinstance(model_for(split, other).embedding, SplitEmbedding)
        texts = [text for text in TEXTS if all(w in other.extra["vocabulary"].words for w in text.split())]
        assert texts
        logits = []
        for task, data in ((whole, one), (split, other)):
            encoded = data.extra["vocabulary"].encode(texts, 9)
            lengths = torch.tensor([len(ids) for ids in encoded])
            logits.append(model_for(task, data)(torch.tensor(encoded), lengths))
        assert torch.equal(*logits)

    def test_it_learns_and_is_evaluated(self, world):
        task = TextTask(SMALL).under(FEDRECON)
        node = task.load_node(world, 0, NODES)
        model = model_for(task, node)
        (batch,) = task.examples(node, "train", 99)
        task.loss(model, batch).backward()
        assert model.embedding.private.grad.abs().sum(dim=1).ne(0).tolist() == [False] + [True] * (
            len(model.embedding.private) - 1
        )
        words = [word for word in node.extra["vocabulary"].words if word not in {*SPECIAL, DIGITS}]
        assert task.evaluate(model, node, seed=0, final=True).metrics["vocabulary.words"] == len(words)

    def test_an_lstm_with_the_tokens_of_a_file(self, world, tmp_path):
        renamed(encoder_folder(tmp_path), "tokenizer.json", {"two": "##1", "three": "7"})
        task = TextTask(replace(SMALL, vocabulary_file=str(tmp_path / "tokenizer.json"))).under(FEDRECON)
        model = model_for(task, task.load_node(world, 0, NODES))
        assert (model.embedding.weight.shape, model.embedding.private.shape) == ((6, 4), (2, 4))
        assert_equal(model.state_dict(), model_of(task).state_dict())

    def test_digits_of_a_tokenizer_are_the_same_everywhere(self, world, tmp_path):
        folder = renamed(encoder_folder(tmp_path), "tokenizer.json", {"two": "##1", "three": "7"})
        whole = TextTask(replace(SMALL, model=folder, max_length=8))
        split = whole.under(FEDRECON)
        server = model_of(split)
        assert server.embedding.word_embeddings.weight.shape == (6, 8)
        assert server.embedding.word_embeddings.private.shape == (2, 8)
        node = split.load_node(world, 0, NODES)
        model = model_for(split, node)
        assert_equal(state(model, "none"), state(server, "none"))
        (batch,) = split.examples(node, "train", 99)
        expected = model_for(whole, node)(batch["ids"], batch["length"])
        assert torch.equal(model(batch["ids"], batch["length"]), expected)


class TestOwnStart:
    """Every node begins with an embedding of its own."""

    def test_each_node_draws_its_own_vectors_and_always_the_same(self, world):
        task = TextTask(SMALL).under(OWN_START)
        nodes = nodes_of(task, world)
        one, other = (vectors(model_for(task, node), node) for node in nodes[:2])
        assert not any(torch.equal(one[word], other[word]) for word in set(one) & set(other))
        again = vectors(model_for(task, nodes[0]), nodes[0])
        assert all(torch.equal(one[word], again[word]) for word in one)

    def test_of_digits_alone_only_these_are_drawn_by_the_node(self, world):
        task = TextTask(SMALL).under(replace(FEDRECON, own_start=True))
        one, other = (model_for(task, node).embedding for node in nodes_of(task, world)[:2])
        assert torch.equal(one.weight, other.weight)
        assert not torch.equal(one.private[0], other.private[0])

    def test_files_of_vectors_are_dealt_by_key(self, world, tmp_path):
        for name, number in (("a", 1), ("b", 2)):
            (tmp_path / f"{name}.txt").write_text(f"win {number} 0 0 0\n{name} 1 1 1 1\n")
        starts = f"{tmp_path / 'a.txt'}, {tmp_path / 'b.txt'}"
        task = TextTask(replace(SMALL, own_starts=starts)).under(OWN_START)
        for node in nodes_of(task, world):
            dealt = dealt_start(task.options, OWN_START, node.key)
            model = model_for(task, node)
            assert vectors(model, node)["win"].tolist() == [1 if dealt.endswith("a.txt") else 2, 0, 0, 0]
            assert_equal(state(model, "embedding."), state(model_of(task), "embedding."))
            assert task.evaluate(model, node, seed=0, final=True).metrics["vocabulary.in_glove"] > 0
        plain = TextTask(replace(SMALL, own_starts=starts)).under(FEDVOCAB)
        node = plain.load_node(world, 0, NODES)
        assert vectors(model_for(plain, node), node)["win"][1] != 0

    def test_a_deal_is_about_even_and_needs_a_private_embedding(self):
        options = replace(SMALL, own_starts="a,b,c")
        dealt = Counter(dealt_start(options, OWN_START, f"client-{k:03d}") for k in range(300))
        assert set(dealt) == {"a", "b", "c"}
        assert min(dealt.values()) > 70
        assert {dealt_start(options, privacy, "k") for privacy in (SHARED, FEDVOCAB, Privacy((), True))} == {""}
        assert dealt_start(SMALL, OWN_START, "k") == ""

    def test_files_for_digits_alone_are_refused(self):
        with pytest.raises(DataError, match=r"text\.own-starts = 'a': the method keeps only the vectors of digits"):
            TextTask(replace(SMALL, own_starts="a")).under(replace(FEDRECON, own_start=True))


class TestOwnStartOfTransformers:
    """Embeddings of other encoders under one body."""

    @pytest.fixture
    def model(self, tmp_path):
        return str(encoder_folder(tmp_path / "model"))

    def test_each_node_draws_its_own_tables(self, world, model):
        task = TextTask(replace(SMALL, model=model, max_length=8)).under(OWN_START)
        one, other = (model_for(task, node) for node in nodes_of(task, world)[:2])
        same = {name for name, tensor in one.state_dict().items() if torch.equal(tensor, other.state_dict()[name])}
        drawn = {"embedding.word_embeddings.weight", "embedding.position_embeddings.weight"}
        assert set(one.state_dict()) - same == drawn
        assert_equal(state(one, "embedding."), state(model_of(task), "embedding."))
        assert one.embedding.word_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.3)

    def test_of_a_private_table_of_words_alone_only_this_is_drawn(self, world, model):
        table = "embedding.word_embeddings.weight"
        task = TextTask(replace(SMALL, model=model, max_length=8)).under(Privacy((table,), own_start=True))
        assert_equal(
            state(model_for(task, task.load_node(world, 0, NODES)), table),
            state(model_of(task), table),
        )

    @pytest.mark.parametrize("weights", ["pretrained", "random"])
    def test_a_node_has_the_tokens_and_embeddings_of_the_encoder_dealt_to_it(self, world, tmp_path, model, weights):
        other = encoder_folder(tmp_path / "dealt", "bert")
        dealt = renamed(other, "tokenizer.json", {"one": "win", "two": "goals", "three": "in"})
        options = replace(SMALL, model=model, own_starts=dealt, max_length=8, weights=weights)
        task = TextTask(options).under(OWN_START)
        node = task.load_node(world, 0, NODES)
        assert node.extra["vocabulary"].words[4:8] == ("win", "goals", "in", "##s")
        built = model_for(task, node)
        assert "embedding.token_type_embeddings.weight" in built.state_dict()
        assert_equal(state(built, "embedding."), state(model_of(task), "embedding."))
        assert_equal(state(model_for(task, node), "none"), state(built, "none"))
        metrics = task.evaluate(built, node, seed=0, final=True).metrics
        assert metrics["test.global_total"] == 7

    def test_embeddings_that_do_not_fit(self, world, tmp_path, model):
        wide = str(encoder_folder(tmp_path / "wide", "bert"))
        config = tmp_path / "wide" / "config.json"
        config.write_text(config.read_text().replace('"hidden_size": 8', '"hidden_size": 12'))
        task = TextTask(replace(SMALL, model=model, own_starts=wide, max_length=8)).under(OWN_START)
        with pytest.raises(DataError, match=r"'.*wide' have 12 numbers per token, but .* '.*model' reads 8; name enc"):
            model_for(task, task.load_node(world, 0, NODES))
        words_alone = Privacy(("embedding.word_embeddings.*",), own_start=True)
        task = TextTask(replace(SMALL, model=model, own_starts=model, max_length=8)).under(words_alone)
        with pytest.raises(DataError, match=r"cannot share embedding\.LayerNorm\.bias, .*leave it empty"):
            model_for(task, task.load_node(world, 0, NODES))
