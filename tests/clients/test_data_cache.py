"""What the process keeps of the data of its nodes."""

import torch
from fedapps.clients.data_cache import DataCache
from fedapps.tasks.base import NodeData


def used(cache, *keys):
    """Use keys in this order; the keys that had to be loaded. Each node has 24 bytes, in a split, a stage and extra."""
    loaded = []

    def load(key):
        loaded.append(key)
        one = {"x": torch.zeros(2)}
        return NodeData(key, {"train": one}, stages=({"train": one},), extra={"start": torch.zeros(2), "name": "a"})

    for key in keys:
        assert cache.get(key, lambda key=key: load(key)).key == key
    return "".join(loaded)


def test_nodes_that_take_turns_are_loaded_once_while_there_is_room():
    assert used(DataCache(nodes=1, size=72), *"abcabcabc") == "abc"


def test_a_number_of_nodes_is_kept_whatever_their_size():
    assert used(DataCache(nodes=2, size=0), *"abababab") == "ab"


def test_beyond_both_limits_the_data_used_longest_ago_goes():
    assert used(DataCache(nodes=2, size=71), *"abacbacab") == "abcbacb"
