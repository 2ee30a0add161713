"""Layers that the agent and the speaker share; padding never changes what they give."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

ANGLE_COPIES = 32  # of the four angle features, so that they are 128 (Tan et al., 2019)
ANGLE_WIDTH = 4 * ANGLE_COPIES


def mask_of(lengths: Tensor, size: int) -> Tensor:
    """Which of ``size`` places are used, bool ``[n, size]``."""
    return torch.arange(size, device=lengths.device) < lengths.unsqueeze(1)


class BiLSTM(nn.Module):
    """A bidirectional LSTM over sequences ``[n, L, inputs]`` of different lengths, ``[n, L, 2 width]``.

    What it gives after a sequence's end is zero. Sequences are reversed within their lengths in place of packing them,
    which is faster on a CPU.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.forwards = nn.LSTM(inputs, width, batch_first=True)
        self.backwards = nn.LSTM(inputs, width, batch_first=True)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        position = torch.arange(sequences.shape[1], device=sequences.device)
        used = mask_of(lengths, sequences.shape[1])
        mirrored = torch.where(used, lengths.unsqueeze(1) - 1 - position, position)
        forwards, _ = self.forwards(sequences)
        back, _ = self.backwards(_reordered(sequences, mirrored))
        return torch.cat([forwards, _reordered(back, mirrored)], dim=-1) * used.unsqueeze(-1)


def _reordered(sequences: Tensor, places: Tensor) -> Tensor:
    """Whole rows are copied; ``gather`` would look up each number."""
    starts = torch.arange(sequences.shape[0], device=places.device).unsqueeze(1) * sequences.shape[1]
    return sequences.flatten(0, 1).index_select(0, (starts + places).flatten()).view_as(sequences)


class WordAttention(nn.Module):
    """Soft dot attention (Luong et al., EMNLP 2015): tanh W [mean; query] with the mean of the context as the query
    weighs it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(2 * width, width, bias=False)

    def forward(self, queries: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        """``[n, Q, width]`` of queries ``[n, Q, width]`` in contexts ``[n, L, width]``; ``mask`` bool ``[n, L]`` says
        where there is any."""
        scores = torch.bmm(self.query(queries), context.transpose(1, 2)).masked_fill(~mask.unsqueeze(1), -torch.inf)
        means = torch.bmm(scores.softmax(dim=2), context)
        return torch.tanh(self.output(torch.cat([means, queries], dim=2)))


def environment(count: int, width: int, drop: float, training: bool, like: Tensor) -> Tensor:
    """Which features ``[count, width]`` an episode shows: environmental dropout (Tan et al., 2019, Section 3.4).

    In training a share ``drop`` of them is 0 in all views of all viewpoints, as if the house looked different, and the
    others are scaled by 1 / (1 - drop).
    """
    return dropout(like.new_ones(count, width), drop, training)


class DirectedQuery(nn.Module):
    """Products of a query with inputs that are features ``[D]`` and 32 copies of four angle features.

    Neither the copies nor features that are dropped are ever made: the query's parts for them are added up or dropped
    instead.
    """

    def __init__(self, width: int, feature_width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, feature_width + ANGLE_WIDTH, bias=False)
        self._features = feature_width

    def forward(self, query: Tensor, features: Tensor, angles: Tensor, shown: Tensor) -> Tensor:
        """Products ``[n, K]`` of queries ``[n, width]`` with features ``[n, K, D]``, times ``shown [n, D]``, and angles
        ``[n, K, 4]``."""
        wanted = self.query(query)
        direction = wanted[:, self._features :].unflatten(1, (ANGLE_COPIES, 4)).sum(dim=1)
        look = wanted[:, : self._features] * shown
        return torch.baddbmm(torch.bmm(features, look.unsqueeze(2)), angles, direction.unsqueeze(2)).squeeze(2)


class ViewAttention(nn.Module):
    """The mean of 36 views as the query weighs them, with the copies of its angles: ``[n, D + 128]``."""

    def __init__(self, width: int, feature_width: int) -> None:
        super().__init__()
        self.scores = DirectedQuery(width, feature_width)

    def forward(self, query: Tensor, views: Tensor, angles: Tensor, shown: Tensor) -> Tensor:
        """Arguments as :meth:`DirectedQuery.forward`'s."""
        weights = self.scores(query, views, angles, shown).softmax(dim=1).unsqueeze(1)
        looked = torch.bmm(weights, views).squeeze(1) * shown
        return torch.cat([looked, copied(torch.bmm(weights, angles).squeeze(1))], dim=1)


def copied(angles: Tensor) -> Tensor:
    """Angle features ``[..., 4]`` as 32 copies, ``[..., 128]``."""
    return angles.repeat(*[1] * (angles.dim() - 1), ANGLE_COPIES)
