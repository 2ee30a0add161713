"""Nodes of which a run has used nothing."""

from fedapps.runs.tables import refused_nodes


def refusal(node, phase="train", reason="no data", answered=True):
    return {"node": node, "phase": phase, "reason": reason, "answered": answered}


def test_a_node_counts_whose_every_reply_was_refused():
    rounds = [
        {"refused": [refusal("bad"), refusal("once"), refusal("late", answered=False), refusal("blind", "evaluate")]},
        {
            "refused": [
                refusal("bad", reason="NaN\nat line 3"),
                refusal("bad", "evaluate"),
                refusal("late", answered=False),
            ]
        },
    ]
    nodes = [{"node": "once", "phase": "train"}, {"node": "blind", "phase": "train"}]
    assert refused_nodes(rounds, nodes) == {
        "bad": "training refused 2 times: NaN",
        "blind": "evaluation refused 1 times: no data",
    }


def test_a_node_that_was_absent_and_then_refused_counts():
    rounds = [{"refused": [refusal("a", answered=False)]}, {"refused": [refusal("a")]}]
    assert refused_nodes(rounds, []) == {"a": "training refused 1 times: no data"}
