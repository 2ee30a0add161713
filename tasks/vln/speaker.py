"""The speaker: looks at a path and describes it, to label paths that nobody described (Tan et al., NAACL 2019 [1]_).

.. [1] https://arxiv.org/abs/1904.04195, Section 3.3; back-translation for navigation is Fried et al., NeurIPS 2018.

Its weights, and those of an agent, come from the file that an earlier stage left.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from fedapps.tasks.base import Batch, DataError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from . import layers
from .connectivity import HEADINGS
from .houses import Houses
from .instructions import BEGIN, END, PAD, UNKNOWN, Vocabulary, in_folder
from .options import Options, Sizes
from .walks import observe


class PathEncoder(nn.Module):
    """A bidirectional LSTM over the moves, attention to the views from each viewpoint, and another such LSTM."""

    def __init__(self, sizes: Sizes, drop: float) -> None:
        super().__init__()
        self.moves = layers.BiLSTM(sizes.features + layers.ANGLE_WIDTH, sizes.hidden // 2)
        self.views = layers.ViewAttention(sizes.hidden, sizes.features)
        self.lstm = layers.BiLSTM(sizes.features + layers.ANGLE_WIDTH, sizes.hidden // 2)
        self.drop = nn.Dropout(drop)

    def forward(self, houses: Houses, episodes: Batch, shown: Tensor) -> Tensor:
        """What was seen along each path, ``[n, P, hidden]``, given which features are ``shown [n, D]``."""
        path, lengths = episodes["path"], episodes["path_length"]
        visited, facing, candidate = moves_of(houses, path, lengths, episodes["facing"])
        seen = observe(houses, visited.flatten(), facing.flatten())
        rows = torch.arange(path.numel(), device=path.device)
        taken, angles = (each[rows, candidate.flatten()] for each in (seen.candidates, seen.candidate_angles))
        by_path = (each.unflatten(0, path.shape) for each in (taken, angles, seen.views, seen.view_angles))
        return self.look(*by_path, lengths=lengths, shown=shown)

    def look(
        self, taken: Tensor, angles: Tensor, views: Tensor, view_angles: Tensor, *, lengths: Tensor, shown: Tensor
    ) -> Tensor:
        """What was seen along n paths of P viewpoints at most, ``[n, P, hidden]``.

        Parameters
        ----------
        taken : Tensor [n, P, D]
            Features of the candidate that the path takes at each viewpoint; zeros where it stops.
        angles : Tensor [n, P, 4]
            Its angle features.
        views : Tensor [n, P, 36, D]
        view_angles : Tensor [n, P, 36, 4]
        lengths : int64 Tensor [n]
            How many viewpoints the paths have.
        shown : Tensor [n, D]
            Which features are shown.
        """
        moves = torch.cat([taken * shown.unsqueeze(1), layers.copied(angles)], dim=2)
        context = self.drop(self.moves(moves, lengths))
        seen = (each.flatten(0, 1) for each in (context, views, view_angles))
        looked = self.views(*seen, shown.unsqueeze(1).expand(-1, taken.shape[1], -1).flatten(0, 1))
        described: Tensor = self.drop(self.lstm(self.drop(looked.unflatten(0, taken.shape[:2])), lengths))
        return described


def moves_of(houses: Houses, path: Tensor, lengths: Tensor, facing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where one is, which column one faces, and the candidate that one takes, at each viewpoint of paths ``[n, P]``.

    The candidate at the last viewpoint is STOP. After the end of a path one stays there.
    """
    used = layers.mask_of(lengths, path.shape[1])
    last = path.gather(1, lengths.unsqueeze(1) - 1)
    visited = torch.where(used, path, last)
    following = torch.cat([visited[:, 1:], last], dim=1)
    candidate = torch.where(following == visited, torch.zeros_like(visited), houses.candidate_to(visited, following))
    turned = houses.view[visited, candidate] % HEADINGS
    faces = [facing]
    for step in range(path.shape[1] - 1):
        faces.append(torch.where(candidate[:, step] > 0, turned[:, step], faces[-1]))
    return visited, torch.stack(faces, dim=1), candidate


class WordDecoder(nn.Module):
    """An LSTM over words that attends to the path. The words are learned vectors or ``pretrained``."""

    def __init__(self, sizes: Sizes, drop: float, pretrained: layers.PretrainedVectors | None = None) -> None:
        super().__init__()
        self.embedding: nn.Module = pretrained or nn.Embedding(sizes.vocabulary, sizes.words, padding_idx=PAD)
        self.lstm = nn.LSTM(pretrained.model.width if pretrained else sizes.words, sizes.hidden, batch_first=True)
        self.path = layers.WordAttention(sizes.hidden)
        self.output = nn.Linear(sizes.hidden, sizes.vocabulary)
        self.drop = nn.Dropout(drop)

    def forward(
        self, words: Tensor, context: Tensor, mask: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits ``[n, L, vocabulary]`` of the words after ``words [n, L]``, and the state to go on from."""
        hidden, state = self.before_output(words, context, mask, state)
        return self.output(hidden), state

    def before_output(
        self, words: Tensor, context: Tensor, mask: Tensor, state: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """As :meth:`forward`, before the output layer: ``[n, L, hidden]``."""
        hidden, state = self.lstm(self.drop(self.embedding(words)), state)
        return self.drop(self.path(self.drop(hidden), context, mask)), state


class Speaker(nn.Module):
    """``encoder`` and ``decoder``: what looks at a path and what puts it into words.

    ``houses`` are those that the speaker is in; they are no part of the state that travels.
    """

    def __init__(
        self,
        sizes: Sizes,
        *,
        drop: float = 0.5,
        feature_drop: float = 0.3,
        pretrained: layers.PretrainedVectors | None = None,
    ) -> None:
        super().__init__()
        self.sizes, self.feature_drop = sizes, feature_drop
        self.encoder = PathEncoder(sizes, drop)
        self.decoder = WordDecoder(sizes, drop, pretrained)
        self.houses: Houses | None = None

    def learn_words(self, words: Vocabulary) -> None:
        """Take the words that numbers stand for, which only a speaker with pretrained vectors needs."""
        if isinstance(self.decoder.embedding, layers.PretrainedVectors):
            self.decoder.embedding.learn(words)

    def look(self, houses: Houses, episodes: Batch) -> tuple[Tensor, Tensor]:
        """What is seen along paths, ``[n, P, hidden]``, and where they are, bool ``[n, P]``."""
        path = episodes["path"]
        like = self.decoder.output.weight
        shown = layers.environment(len(path), self.sizes.features, self.feature_drop, self.training, like)
        return self.encoder(houses, episodes, shown), layers.mask_of(episodes["path_length"], path.shape[1])

    def loss(self, houses: Houses, episodes: Batch) -> Tensor:
        """The cross-entropy of the instructions' words, mean over words."""
        tokens = episodes["tokens"].long()
        hidden, _ = self.decoder.before_output(tokens[:, :-1], *self.look(houses, episodes))
        following = tokens[:, 1:].flatten()
        used = (following != PAD).nonzero().squeeze(1)
        return cross_entropy(self.decoder.output(hidden.flatten(0, 1).index_select(0, used)), following[used])

    @torch.no_grad()
    def describe(
        self, houses: Houses, episodes: Batch, max_length: int, known: int, temperature: float = 0.0
    ) -> Sequence[Sequence[int]]:
        """Word after word: numbers up to ``<EOS>``, for each path of a batch.

        The likeliest words, or at a ``temperature`` above 0 words by softmax(logits / temperature), drawn from torch's
        global generator.

        No description has more than ``max_length`` words, an unknown word, or one beyond the ``known`` numbers of the
        vocabulary.
        """
        context, mask = self.look(houses, episodes)
        words = torch.full((len(context), 1), BEGIN, device=context.device)
        ended = torch.zeros(len(context), dtype=torch.bool, device=context.device)
        state, columns = None, []
        for _ in range(max_length):
            logits, state = self.decoder(words, context, mask, state)
            logits[:, 0, [PAD, UNKNOWN, BEGIN]] = -torch.inf
            logits[:, 0, known:] = -torch.inf
            if temperature:
                words = torch.multinomial((logits[:, 0] / temperature).softmax(dim=1), 1)
            else:
                words = logits.argmax(dim=2)
            ended |= words.squeeze(1) == END
            columns.append(words.squeeze(1).masked_fill(ended, END))
            if ended.all():
                break
        return [row[: row.index(END)] if END in row else row for row in torch.stack(columns, dim=1).tolist()]


def speaker_of(options: Options, folder: Path | None = None) -> Speaker:
    """The speaker of the options with drawn weights; a language model may lie in the node's ``folder``."""
    pretrained = None
    if options.language_model:
        encoder = layers.language_model(in_folder(options.language_model, folder))
        pretrained = layers.PretrainedVectors(encoder, options.vocabulary_size)
    return Speaker(options.sizes, drop=options.dropout, feature_drop=options.feature_dropout, pretrained=pretrained)


#: What names start with in a snapshot of a run: those of the model's parameters, and those of the server's state.
_SHARED, _STATE = "shared.", "state."


def load_weights(model: nn.Module, file: Path, option: str) -> None:
    """Load all weights of ``model`` from a file of its weights or from a snapshot of a run.

    Raises :class:`DataError` where the file is missing, holds a part of the weights, or does not fit.
    """
    _load(model, _read(file, option), file, option)


def load_speaker(file: Path, width: int, encoder: Path | None = None) -> Speaker:
    """The speaker of a file, whose sizes are read off its weights.

    A speaker with the frozen word vectors of a language model, which is in the folder ``encoder``, has yet to learn
    the words.

    Raises :class:`DataError` where it is no speaker's, a speaker's for features of another width than ``width``, or
    one with such vectors without a folder.
    """
    tensors = _read(file, "vln.speaker-file")
    try:
        vocabulary, hidden = tensors["decoder.output.weight"].shape
        words = tensors["decoder.lstm.weight_ih_l0"].shape[1]
        features = tensors["encoder.moves.forwards.weight_ih_l0"].shape[1] - layers.ANGLE_WIDTH
    except KeyError as error:
        raise DataError(
            f"vln.speaker-file = {str(file)!r}: holds no {error}, so no speaker; name the file that "
            "vln.stage = 'speaker' left"
        ) from error
    if features != width:
        raise DataError(
            f"vln.speaker-file = {str(file)!r}: a speaker for {features} features per view, but vln.features has "
            f"{width}: take those that it was trained with"
        )
    pretrained = None
    if "decoder.embedding.weight" not in tensors:
        if encoder is None:
            raise DataError(
                f"vln.speaker-file = {str(file)!r}: this speaker has the word vectors of a language model; name its "
                "folder as vln.language-model"
            )
        pretrained = layers.PretrainedVectors(layers.language_model(encoder), vocabulary)
    sizes = Sizes(vocabulary=vocabulary, features=features, words=words, hidden=hidden)
    speaker = Speaker(sizes, drop=0, feature_drop=0, pretrained=pretrained)
    _load(speaker, tensors, file, "vln.speaker-file")
    return speaker.eval()


def _load(model: nn.Module, tensors: Mapping[str, Tensor], file: Path, option: str) -> None:
    expected = model.state_dict()
    fitting = [name for name in tensors if name in expected and tensors[name].shape == expected[name].shape]
    if len(fitting) == len(tensors) < len(expected):
        parts = ", ".join(sorted({f"{name.partition('.')[0]}.*" for name in fitting})) or "none"
        raise DataError(
            f"{option} = {str(file)!r}: holds {len(tensors)} of the model's {len(expected)} parameters ({parts}), as "
            "the snapshot of a method that keeps parameters on the nodes does; name the file of a method that averages "
            "all parameters, such as fedavg or centralized"
        )
    wrong = sorted((expected.keys() | tensors.keys()) - set(fitting))
    if wrong:
        shapes = ", ".join(
            f"{name} {_shape(tensors, name)} in the file, {_shape(expected, name)} here" for name in wrong[:3]
        )
        raise DataError(
            f"{option} = {str(file)!r}: {len(wrong)} parameters do not fit: {shapes}; set vln.hidden, vln.word-width, "
            "vln.vocabulary-size and vln.features to those that the file was trained with"
        )
    if infinite := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
        raise DataError(
            f"{option} = {str(file)!r}: {infinite[0]} has numbers that are not finite; name the file of a run that did "
            "not diverge"
        )
    model.load_state_dict(tensors)


def _read(file: Path, option: str) -> dict[str, Tensor]:
    if not file.is_file():
        raise DataError(f"{option} = {str(file)!r}: no such file; name the safetensors file of an earlier stage")
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise DataError(f"{option} = {str(file)!r}: cannot be read: {error}; expected a safetensors file") from error
    return {
        name.removeprefix(_SHARED): tensor.to(torch.float32)
        for name, tensor in tensors.items()
        if not name.startswith(_STATE)
    }


def _shape(tensors: Mapping[str, Tensor], name: str) -> object:
    return list(tensors[name].shape) if name in tensors else "missing"
