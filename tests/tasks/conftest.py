import drawn_houses
import pytest
import text_world
from fedapps.tasks.text.task import TextTask
from fedapps.tasks.vln.instructions import Vocabulary
from striped_places import use_tiny_network, write_places
from striped_tasks import SPOTS


@pytest.fixture
def tiny_network(monkeypatch):
    """The network of the tests of visual place recognition is one of torchvision's."""
    use_tiny_network(monkeypatch)


@pytest.fixture(scope="session")
def striped(tmp_path_factory):
    """A table of places in three cities, of which the last is for the test."""
    folder = tmp_path_factory.mktemp("places")
    write_places(folder, cities=3, spots=SPOTS)
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """A simulated corpus of four classes for six nodes."""
    folder = tmp_path_factory.mktemp("corpus")
    TextTask(text_world.CORPUS).make_world(folder, text_world.CORPUS_NODES, seed=2)
    return folder


@pytest.fixture(scope="module")
def scores(tmp_path_factory):
    """Texts about scores for three nodes."""
    return text_world.write_world(tmp_path_factory.mktemp("scores"))


@pytest.fixture(scope="module")
def homes(tmp_path_factory):
    """Two seen houses and an unseen one."""
    return drawn_houses.write_world(tmp_path_factory.mktemp("houses"))


@pytest.fixture
def speaker(tmp_path):
    """Options with a speaker that says something."""
    return drawn_houses.speaking(tmp_path)


@pytest.fixture
def words(tmp_path):
    """A file of some words of the instructions."""
    Vocabulary(("walk", "the", *drawn_houses.THINGS)).write(tmp_path / "words.txt")
    return str(tmp_path / "words.txt")
