"""Runs of three nodes with adapters: what travels and what is kept, what composes, and other files on a node."""

import pytest
import torch
from fedapps.strategies.records import TooFewRepliesError
from flwr.app import ConfigRecord
from small_runs import run_inline
from text_world import write_world
from tiny_encoder import encoder_folder

import fedapps
from fedapps.app.round_config import RoundConfigs


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    (folder / "data").mkdir()
    return {
        "task": "text", "text.model": str(encoder_folder(folder / "encoder", "bert")), "text.max-length": 12,
        "text.dataset": "mine", "text.labels": "0,1", "text.validation-share": 0.0, "text.adapter": "lora",
        "text.adapter-rank": 2, "data-dir": str(write_world(folder / "data")), "num-nodes": 3, "rounds": 2,
        "epochs": 1, "batch-size": 4, "learning-rate": 0.01, "collect-after": 0, "evaluate-every": 1, "name": "run",
    }  # fmt: skip


def test_adapters_and_head_alone_travel(given, tmp_path):
    run = run_inline({**given, "methods": "fedavg"}, tmp_path)
    model = fedapps.load(run.path)
    names = {name for name in model.module.state_dict() if "lora" in name or "classifier" in name}
    stored = {name for name in run.checkpoints("fedavg").latest().arrays if name.startswith("shared.")}
    assert {f"shared.{name}" for name in names} == stored
    assert not (run.path / "nodes").exists()  # nothing to keep
    node = fedapps.load(run.path, node="client-001")
    assert node.evaluate() == node.origin.metrics
    adapted = fedapps.adapt(run.path, given["data-dir"], epochs=1)
    before, after = model.module.state_dict(), adapted.module.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert moved <= names


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"methods": "fedvocab,fedvocab(stateless=true),fedvocab(own-start=true)"}, marks=pytest.mark.slow),
        {"methods": "fedavg", "compression": "int8"},
        {"methods": "fedavg", "dp": "central-server", "weighting": "uniform", "fraction-train": 0.5},
        {"methods": "fedavg", "dp": "local"},
        {"methods": "fedavg", "text.adapter": "ia3", "server-optimizer": "yogi"},
    ],
    ids=str,
)
def test_what_works_with_adapters(given, tmp_path, more):
    run = run_inline({**given, **more}, tmp_path)
    for facts in run.summary()["methods"].values():
        assert (facts["rounds"], facts["refused"]) == (2, 0)


def test_a_node_with_another_encoder_is_refused(given, tmp_path, monkeypatch):
    train = RoundConfigs.train
    other = {"fixed-digest": "0" * 64}
    monkeypatch.setattr(RoundConfigs, "train", lambda self, number: ConfigRecord({**train(self, number), **other}))
    remedy = (
        r"text\.model = '.*': the frozen weights of this node differ from the server's "
        r"\(digest \w{12} here, 0{12} there\); give this"
    )
    with pytest.raises(TooFewRepliesError, match=remedy):
        run_inline({**given, "methods": "fedavg"}, tmp_path)
