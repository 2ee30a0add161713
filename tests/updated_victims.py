"""Nodes that train on a few sentences without dropout, and what they do to the change of their weights."""

import torch
from fedapps.tasks.privacy.sharing import ClippedNoise, UpdatedVictim, Victim
from fedapps.tasks.privacy.tokens import TokenTable
from fedapps.tasks.text.networks import BiLstm
from fedapps.tasks.text.privacy import above_words
from torch import nn

RATE = 0.01
WORDS = ("<pad>", *(f"word{number}" for number in range(30)), *map(str, range(9)))
SENTENCES = [["word3", "1", "word7", "2"], ["word9", "word7", "word19", "8", "word0"]]
WRITTEN = {word for sentence in SENTENCES for word in sentence}


def victim_of(model):
    return Victim(above_words(model), TokenTable(WORDS, model.embedding.weight.detach().clone(), "<pad>"))


def updated_victim(optimizer, steps=1, width=24):
    """A node that trains without dropout."""
    torch.manual_seed(0)
    start = BiLstm(nn.Embedding(len(WORDS), width), 4, hidden=10, dropout=0.0)

    def train(rows, lengths, labels):
        model = BiLstm(nn.Embedding(len(WORDS), width), 4, hidden=10, dropout=0.0)
        model.load_state_dict(start.state_dict())
        stepper = optimizer(model.parameters(), lr=RATE)
        for _ in range(steps):
            stepper.zero_grad()
            nn.functional.cross_entropy(model(rows, lengths), labels).backward()
            stepper.step()
        return victim_of(model), steps

    victim = victim_of(start)
    return UpdatedVictim(victim.body, victim.table, train, RATE if optimizer is torch.optim.Adam else 0.0)


def clipped_noise(clip, deviation, seed=0):
    return ClippedNoise(clip, deviation, torch.Generator().manual_seed(seed))


def rounded_to(step):
    return lambda changes: {name: (change / step).round() * step for name, change in changes.items()}
