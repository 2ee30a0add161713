import itertools
import json
import math
from copy import deepcopy
from dataclasses import replace
from functools import partial

import pytest
import tomli_w
import torch
from drawn_houses import run_keys, write_world
from fedapps.clients.settings import LocalTraining
from fedapps.tasks.base import NodeData
from fedapps.tasks.driving.task import DrivingTask
from fedapps.tasks.images.options import Options as ImageOptions
from fedapps.tasks.images.task import ImagesTask
from fedapps.tasks.lqr.task import LqrTask
from fedapps.tasks.privacy.audit import ATTACKERS
from fedapps.tasks.profiles import pixels
from fedapps.tasks.social.task import SocialTask
from fedapps.tasks.text.privacy import SHARINGS, TextSubject
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from toys import ToyTask

import fedapps.audit.leakage
from fedapps.audit.counts import head_layer, input_errors, label_counts, linear_inputs, mean_answers, right_share
from fedapps.audit.leakage import CANDIDATES, attack
from fedapps.audit.matching import Search, decibels, errors, matched, total_variation, vector
from fedapps.audit.membership import (
    MODELS,
    auc,
    calibrated,
    confidence,
    explaining,
    federated,
    halves,
    membership_rows,
    recognised,
)
from fedapps.audit.observed import (
    SITUATIONS,
    Audited,
    Situation,
    fisher_terms,
    joined,
    mean_of_rows,
    observed,
    parts,
    roots,
    separate,
)
from fedapps.audit.plan import AuditPlan
from fedapps.audit.run import finished
from fedapps.audit.text import audit_text, row_line, statement
from fedapps.base.seeding import torch_seed
from fedapps.cli.commands import main
from fedapps.config.run_config import RunConfig


def gradients(layer, inputs, labels):
    loss = nn.functional.cross_entropy(layer(inputs), labels)
    return torch.autograd.grad(loss, [layer.weight, layer.bias], create_graph=True)


def test_one_example_of_a_linear_layer_is_read_exactly():
    torch.manual_seed(0)
    layer, inputs = nn.Linear(4, 3).double(), torch.rand(1, 4, dtype=torch.float64)
    weight, bias = (one.detach() for one in gradients(layer, inputs, torch.tensor([1])))
    read = linear_inputs(weight, bias)
    torch.testing.assert_close(read, inputs.expand(3, 4))
    assert input_errors(inputs, read) < 1e-12
    assert input_errors(torch.rand(1, 4), read) > 0.1  # another node's
    near = torch.tensor([[9.0, 9], [3, 4.5]])
    assert input_errors(torch.tensor([[3.0, 4]]), near).tolist() == [pytest.approx(0.1)]  # 0.5 of a length of 5


def test_the_head_layer_is_the_last_linear_one_with_a_bias():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2, bias=False)]
    assert head_layer(nn.Sequential(*layers), ["*"]) == "1"
    assert head_layer(nn.Sequential(*layers), ["0.*"]) == "0"
    assert head_layer(nn.Sequential(*layers), ["2.*"]) == ""


def test_label_counts_of_a_worked_case():
    """Two examples of class 0 and one of class 2, all with p = (1/2, 1/4, 1/4): p - (2, 0, 1) / 3."""
    answers = torch.tensor([[0.5, 0.25, 0.25]]).expand(3, 3)
    gradient = torch.tensor([0.5 - 2 / 3, 0.25, 0.25 - 1 / 3])
    assert label_counts(gradient, answers, 3).tolist() == [2, 0, 1]
    assert label_counts(gradient * 0.1, answers, 3, scaled=True).tolist() == [2, 0, 1]


def test_label_counts_sum_to_the_examples_whatever_the_gradient():
    answers = mean_answers(torch.zeros(2, 3), torch.tensor([0, 0]))
    assert answers.tolist() == [[pytest.approx(1 / 3)] * 3] * 3
    assert int(label_counts(torch.zeros(3), answers, 4, scaled=True).sum()) == 4
    assert right_share(torch.tensor([2, 0, 1]), torch.tensor([1, 1, 1])) == pytest.approx(2 / 3)
    assert right_share(torch.tensor([3, 0, 1]), torch.tensor([1, 1, 0])) == 1 / 2  # of another node with two examples
    # probabilities of 3/4 and 1/2; the class 1 has no example, and the mean of all examples
    one_class = mean_answers(torch.tensor([[math.log(3), 0], [0, 0]]), torch.tensor([0, 0]))
    torch.testing.assert_close(one_class, torch.tensor([[0.625, 0.375]] * 2).double())


def test_matching_finds_an_image_and_not_that_of_another_node():
    torch.manual_seed(0)
    layer, label = nn.Linear(16, 3).double(), torch.tensor([1])
    image, other = torch.rand(2, 1, 4, 4, dtype=torch.float64)

    def simulate(batches):
        return torch.cat([one.flatten() for one in gradients(layer, batches[0]["image"].flatten(1), label)])

    target = simulate([{"image": image[None]}]).detach()
    secret = pixels("image", "images")
    generator = torch.Generator().manual_seed(0)
    (read,), distance = matched(simulate, target, [{"image": image[None]}], [secret], Search(100, 50), generator)
    assert distance < 1e-8
    assert decibels(float(errors(secret, image[None], read["image"]))) > 60
    assert float(errors(secret, other[None], read["image"])) > secret.near
    most = torch.where(target.abs() > target.abs().median(), target, 0.0)  # what top-k leaves
    distances = [
        matched(simulate, most, [{"image": image[None]}], [secret], Search(60, 50), generator, parts=left_out)[1]
        for left_out in (True, False)
    ]
    assert distances[0] < 1e-6
    assert distances[1] > 1e-3


def test_the_total_variation_of_four_pixels():
    assert total_variation(torch.tensor([[[0.0, 1], [0, 3]]])) == 3  # (1 + 3) / 2 across, (0 + 2) / 2 down


def test_the_nearest_of_all_starts_counts(monkeypatch):
    found = iter([(["first"], 3.0), (["second"], 1.0), (["third"], 2.0)])
    monkeypatch.setattr("fedapps.audit.matching._descend", lambda *_: next(found))
    assert matched(None, torch.ones(1), [], [], Search(restarts=3), None) == (["second"], 1.0)


def test_errors_assign_what_was_read_to_the_examples():
    secret = pixels("image", "images")
    images = torch.tensor([[0, 255]], dtype=torch.uint8).T[:, :, None, None]
    read = torch.tensor([1.0, 0.5, 0.25])[:, None, None, None]
    views = (secret.view({"image": one}) for one in (images, read))
    assert errors(secret, *views).tolist() == [0.25, 0.0]
    assert decibels(0.1) == pytest.approx(20)
    assert decibels(0.0) == pytest.approx(200)


def test_errors_of_sets_signs_and_values_that_do_not_count():
    secret = pixels("image", "images")
    true = torch.tensor([[[0.0], [4.0], [math.nan]]])
    read = torch.tensor([[[5.0], [1.0], [9.0]]])
    assert float(errors(secret, true, read)) == pytest.approx(math.sqrt((25 + 9) / 2))
    assert float(errors(replace(secret, unordered=True), true, read)) == pytest.approx(1.0)
    unread = torch.tensor([[[math.nan], [9.0]]])  # of the row that was not read nothing is assigned
    assert float(errors(replace(secret, unordered=True), true[:, 1:], unread)) == 5
    assert float(errors(replace(secret, either_sign=True), true, -true)) == 0
    assert errors(secret, torch.full((1, 1), math.nan), read[:, 0]).isnan().all()


PLAIN = RunConfig(training=LocalTraining(optimizer="sgd", learning_rate=0.1, epochs=1))


def gap(simulated, seen):
    """The squared distance of a simulation to what was observed, relative to that."""
    return float((vector(simulated).detach() - vector(seen)).square().sum() / vector(seen).square().sum())


def test_fisher_terms_are_simulated_as_nodes_compute_them():
    """Batch normalisation differs between training and evaluation, and a simulation leaves the mode as it was."""
    task = ImagesTask(ImageOptions(dataset="mine", classes=4, height=16, model="resnet8", norm="batch"))
    with torch_seed(0):
        model, images = task.build_model(), torch.rand(2, 3, 16, 16)
    batch = {"image": images, "label": torch.tensor([1, 3])}
    seen = observed(task, model, [batch], PLAIN, fisher=True)
    exact = deepcopy(model).double()
    again = fisher_terms(task, exact, {**batch, "image": images.double()}, seed=PLAIN.seed)
    assert gap(roots(again), roots(seen)) < 1e-6
    assert exact.training


class Known(Audited):
    """Nodes with data that a test gives."""

    def __init__(self, task, nodes, run=PLAIN):
        self.task, self.run, self.nodes, self.given = task, run, list(range(len(nodes))), nodes
        with torch_seed(0):
            self.model = task.build_model()

    def data(self, node):
        return self.given[node % len(self.nodes)]


def driver(number, count):
    """Windows of a drive: one forecast draws a latent vector for each window."""
    with torch_seed(number):
        seen, moves = torch.randn(count, 10, 12), torch.rand(2, count, 20, 2) - 0.5
        current = torch.tensor([[0.0, 0.0, 0.0, 9.0], [1.0, 2.0, 0.0, 8.0]]).expand(count, 2, 4)
    seen[..., -1] = 1
    batch = {"history": seen, "robot_future": moves[0], "human_future": moves[1], "current": current}
    way = DrivingTask().setting.roll_out(current[:, 1], moves[1])[..., :2]
    return NodeData(f"driver-{number}", {"train": {**batch, "human_path": way}})


DRIVERS = DrivingTask(replace(DrivingTask().options, hidden=8))


@pytest.mark.parametrize(
    "situation", [Situation("1 example"), Situation("2 examples", 2), Situation("sum of 2", nodes=2)]
)
def test_the_true_windows_match_what_was_observed(situation, monkeypatch):
    """Simulations have the draws of each window: the same for the windows of two nodes, others within one node."""
    gaps = []

    def at_the_truth(simulate, target, templates, *others, **settings):
        gaps.append(float((simulate(templates).detach() - target).norm() / target.norm()))
        return templates, 0.0

    monkeypatch.setattr(fedapps.audit.leakage, "matched", at_the_truth)
    attack(Known(DRIVERS, [driver(number, 16) for number in range(2)]), situation, Search())
    assert gaps == [pytest.approx(0, abs=1e-3)]


@pytest.mark.parametrize("fisher", [False, True])
def test_the_parts_of_windows_in_their_places_add_up_to_what_was_observed(fisher):
    *windows, filler = separate({name: one.double() for name, one in driver(0, 4).splits["train"].items()})
    with torch_seed(0):
        model = DRIVERS.build_model().double()
    seen = vector(observed(DRIVERS, model, [joined(windows)], PLAIN, fisher=fisher))
    in_places = [parts(DRIVERS, model, one, filler, [3], PLAIN, fisher=fisher) for one in windows]
    total = sum(of[place] for place, of in enumerate(in_places))
    assert float((total - seen).norm() / seen.norm()) < 1e-6
    swapped = sum(of[(place + 1) % 3] for place, of in enumerate(in_places))
    assert float((swapped - seen).norm() / seen.norm()) > 0.01
    alone = vector(observed(DRIVERS, model, windows[:1], PLAIN, fisher=fisher))
    torch.testing.assert_close(parts(DRIVERS, model, windows[0], filler, [1], PLAIN, fisher=fisher)[0], alone.float())


@pytest.mark.parametrize(
    "situation", [Situation("4 examples", 4), Situation("2 steps of 2", 2, 2), Situation("Fisher of 4", 4, fisher=True)]
)
def test_windows_are_named_with_the_draws_of_their_places(situation, monkeypatch):
    monkeypatch.setattr(fedapps.audit.leakage, "matched", lambda simulate, target, templates, *_, **__: (templates, 0))
    rows = attack(Known(DRIVERS, [driver(number, 8) for number in range(2)]), situation, Search())
    (named,) = (row for row in rows if row["attack"] == CANDIDATES)
    assert named["read"] == 1


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_images_are_named_by_their_updates_alone(norm, monkeypatch):
    """Their loss draws nothing; and where a batch is normalised together, no parts add up to its update."""
    counted = []

    def spied(*arguments, **settings):
        counted.append(arguments[4])
        return parts(*arguments, **settings)

    monkeypatch.setattr(fedapps.audit.leakage, "parts", spied)
    monkeypatch.setattr(fedapps.audit.leakage, "matched", lambda simulate, target, templates, *_, **__: (templates, 0))
    nodes = []
    for number in range(2):
        generator = torch.Generator().manual_seed(number)
        images = torch.randint(256, (6, 3, 16, 16), generator=generator, dtype=torch.uint8)
        train = {"image": images, "label": torch.arange(6) % 4}
        nodes.append(NodeData(f"node-{number}", {"train": train}, extra={"statistics": None}))
    task = ImagesTask(ImageOptions(dataset="mine", classes=4, height=16, model="resnet8", norm=norm))
    attack(Known(task, nodes), Situation("3 examples", 3), Search())
    assert counted[-1] == [1]
    assert ([3] in counted) == (norm == "batch")


def test_the_attacker_does_not_know_the_noise_and_each_node_draws_its_own(monkeypatch):
    monkeypatch.setattr(fedapps.audit.leakage, "matched", lambda simulate, target, templates, *_, **__: (templates, 0))
    known = Known(DRIVERS, [driver(number, 8) for number in range(8)])
    known.run = replace(known.run, dp="local", dp_clip=1.0, dp_noise=1000.0)
    (named,) = (row for row in attack(known, SITUATIONS[0], Search()) if row["attack"] == CANDIDATES)
    assert named["read"] == 0, "a candidate with the same noise would be as near as without any"
    batches = known.batches(SITUATIONS[0], 0)
    one, other = (
        vector(observed(DRIVERS, known.model_of(0), batches, known.run, fisher=False, node=node)) for node in (0, 1)
    )
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.1


def test_the_server_sees_what_a_compression_leaves():
    known = Known(DRIVERS, [driver(0, 8)], replace(PLAIN, compression="top-k", compression_share=0.1))
    seen = vector(observed(DRIVERS, known.model, known.batches(SITUATIONS[0], 0), known.run, fisher=False))
    assert 0.08 < float((seen != 0).double().mean()) < 0.12


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_batch_is_the_mean_of_its_images_unless_they_are_normalised_together(norm):
    task = ImagesTask(ImageOptions(dataset="mine", classes=4, height=16, model="resnet8", norm=norm))
    with torch_seed(0):
        model, images = task.build_model(), torch.rand(2, 3, 16, 16)
    batch = {"image": images, "label": torch.tensor([1, 3])}
    assert mean_of_rows(task, model, batch, seed=0) == (norm == "group")
    assert mean_of_rows(task, model.eval(), batch, seed=0)


def updated(task, model, batches):
    """The gradients of single steps, one after another."""
    gradients = [
        torch.autograd.grad(task.loss(model, one), list(model.parameters()), create_graph=True) for one in batches
    ]
    return torch.cat([one.flatten() for of_batch in gradients for one in of_batch])


def searched(task, batch, search):
    """What is read from the gradient of a batch, as views by the name of the tensor, beside the true ones."""
    with torch_seed(0):
        model = task.build_model().double()
    simulate = partial(updated, task, model)
    exact = {name: one.double() for name, one in batch.items()}
    generator = torch.Generator().manual_seed(0)
    (read,), _ = matched(simulate, simulate([exact]).detach(), [exact], task.secrets, search, generator)
    return {one.tensor: float(errors(one, one.view(exact), one.view(read))) for one in task.secrets}


def test_one_state_of_a_linear_model_is_read_up_to_its_sign():
    """The gradient of an odd model is the same for (x, y) and (-x, -y), so that no attack can tell the sign."""
    batch = {"inputs": torch.tensor([[6.0, -2.0, 1.0]]), "targets": torch.tensor([[5.8, -1.5, 1.0]])}
    gaps = searched(LqrTask(), batch, Search(200, 200))
    assert max(gaps.values()) < 1e-3


def test_people_and_their_rating_are_read_from_a_scene():
    task = SocialTask(replace(SocialTask().options, layers=1, hidden=16))
    nodes = torch.zeros(1, 3, 7)
    nodes[0, :, :4] = torch.eye(4)[[0, 1, 2]]
    nodes[0, 1:, 4:] = torch.tensor([[1.5, 2.0, 0.5], [-2.0, 1.0, -0.25]])
    edges = torch.tensor([[[1.0, 1, 1], [0, 1, 0], [0, 0, 1]]])
    root = edges.sum(2).sqrt()
    batch = {"nodes": nodes, "adjacency": edges / (root[:, :, None] * root[:, None]), "score": torch.tensor([0.7])}
    gaps = searched(task, batch, Search(60, 100))
    assert gaps["nodes"] < 0.05  # metres
    assert gaps["score"] < 0.5  # of 100
    secret = task.secrets[0]
    filled = secret.fill(batch, torch.full((1, 3, 7), 0.75))["nodes"]
    assert filled[0, 0].tolist() == nodes[0, 0].tolist()  # the robot stays where it is
    assert filled[..., :4].equal(nodes[..., :4])


def test_what_a_driver_does_is_compared_in_metres():
    task = DrivingTask()
    ahead, _, past = task.secrets
    straight, faster = torch.zeros(1, 20, 2), torch.zeros(1, 20, 2)
    faster[..., 0] = 1
    views = [ahead.view({"human_future": one.double()}) for one in (straight, faster)]
    assert views[0][0, -1].tolist() == pytest.approx([0.0, 2.0 * task.setting.cruise], rel=0.01)  # in 2 s
    assert float(errors(ahead, *views)) > 0.1
    # what is tried for the controls is also where they lead, which the loss of a path reads
    current = torch.tensor([[[0.0, 0.0, 0.0, 9.0], [1.0, 2.0, 0.0, 8.0]]])
    tried = ahead.fill({"current": current}, (faster + 1) / 2)
    assert torch.equal(tried["human_future"], faster)
    way = task.setting.roll_out(current[:, 1], faster)[..., :2]
    assert torch.equal(tried["human_path"], way - current[:, 1:, :2])  # from where the human is
    history = torch.zeros(1, 2, task.setting.features)
    history[0, 1, -1] = 1
    seen = past.fill({"history": history}, torch.full_like(history, 0.75))["history"]
    assert seen[0, 0].tolist() == [0.0] * task.setting.features  # before the drive began
    assert past.view({"history": seen})[0].isnan().tolist() == [True, False]


def test_the_area_under_the_curve_of_a_worked_case():
    """Of the six pairs, 3 > 2, 3 > 1, 3 > 2, 2 > 1 and 2 = 2 twice: (4 + 1) / 6; 1 of 2 members is above all others."""
    members, others = torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0, 2.0])
    assert auc(members, others) == pytest.approx(5 / 6)
    assert recognised(members, others) == 0.5
    assert auc(torch.ones(3), torch.ones(2)) == 0.5
    assert recognised(torch.ones(3), torch.ones(2)) == 0
    assert recognised(torch.tensor([198.0, 197.0]), torch.arange(200.0)) == 0.5  # 198 and 199 are 1 % of the others


@settings(max_examples=20)
@given(st.integers(0, 2**31))
def test_scores_that_know_nothing_have_an_area_near_a_half(seed):
    members, others = torch.randn(2, 200, generator=torch.Generator().manual_seed(seed)).double()
    spread = math.sqrt((200 + 200 + 1) / (12 * 200 * 200))  # of the Mann-Whitney statistic, without ties
    assert abs(auc(members, others) - 0.5) < 6 * spread
    assert recognised(members, others) < 0.25


@settings(max_examples=20)
@given(st.integers(1, 200), st.integers(0, 2**31))
def test_each_example_trains_half_of_the_models(count, seed):
    assert (halves(count, seed).sum(0) == MODELS // 2).all()


def test_examples_that_follow_each_other_train_the_same_models():
    held = halves(65, seed=0)  # two in each of 32 runs, and one more
    assert torch.equal(held[:, :64:2], held[:, 1::2])


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"weighting": "num-examples"}, [4.0]),  # (1 + 3 * 5) / 4
        ({"weighting": "uniform"}, [3.0]),
        ({"fraction_train": 0.5}, [1.0, 5.0]),  # one of the two nodes
    ],
)
def test_two_rounds_of_fedavg_by_hand(settings, found, monkeypatch):
    draws = []

    def train(local, phases, epoch, loss):
        draws.append(float(torch.rand(())))
        with torch.no_grad():
            for tensor in (local.weight, local.running_mean):
                tensor.fill_({"one": 1.0, "three": 5.0}[epoch.args[1].key])

    monkeypatch.setattr("fedapps.audit.membership.run_plan", train)
    nodes = [NodeData(key, {"train": {"x": torch.zeros(count, 1)}}) for key, count in (("one", 1), ("three", 3))]
    model = federated(ToyTask(), nn.BatchNorm1d(1), nodes, replace(PLAIN, rounds=2, **settings))
    assert round(float(model.weight), 4) in found
    assert round(float(model.running_mean), 4) in found
    assert len(set(draws)) == len(draws), "each node draws anew in each round"


def test_calibration_removes_what_all_models_find_hard():
    """Two members of the first model, of which the first is hard for all: its confidence of 1 beside -3 and -3."""
    confidences = torch.tensor([[1.0, 5.0], [-3.0, 4.0], [-3.0, 4.0]]).double()
    member = torch.tensor([[True, True], [False, False], [False, False]])
    assert calibrated(confidences, member)[0].tolist() == [4.0, 1.0]
    assert calibrated(confidences, member)[1].tolist() == [0.0, 0.0]


def test_confidence_is_the_logit_of_the_likelihood():
    losses = -torch.log(torch.tensor([0.9, 0.5])).double()
    assert confidence(losses).tolist() == pytest.approx([math.log(9), 0], abs=1e-6)
    assert confidence(torch.tensor([0.0, 1e12])).isfinite().all()


class Memory(ToyTask):
    """Learn a random number for each example, with more weights than examples."""

    def build_model(self):
        return nn.Linear(256, 1, bias=False)


def memorised(rounds, learning_rate):
    generator = torch.Generator().manual_seed(0)
    nodes = []
    for number in range(3):
        x, y = torch.randn(12, 256, generator=generator) / 16, torch.randn(12, 1, generator=generator)
        nodes.append(NodeData(f"node-{number}", {"train": {"x": x, "y": y}}))
    task, training = Memory(), LocalTraining(optimizer="sgd", learning_rate=learning_rate, epochs=8, batch_size=4)
    with torch_seed(0):
        model = task.build_model()
    return membership_rows(task, model, nodes, RunConfig(rounds=rounds, training=training))


def test_a_model_that_has_memorised_gives_its_examples_away():
    loss, exact = memorised(rounds=12, learning_rate=0.3)
    assert (loss["attack"], exact["attack"]) == ("membership by the loss", "membership, calibrated")
    assert loss["error"] > 0.95
    assert exact["error"] > 0.95
    assert exact["read"] > 0.5
    assert exact["another"] < 0.1


def test_a_model_that_has_not_learned_gives_nothing_away():
    loss, exact = memorised(rounds=1, learning_rate=0.0)
    assert (loss["error"], loss["read"]) == (0.5, 0.0)
    assert exact["error"] == pytest.approx(0.5, abs=0.1)  # the ranks of differences by rounding


def test_an_audit_of_states_prints_each_update_and_the_final_model(tmp_path, capsys, monkeypatch):
    updates = ("1 example", "sum of 2", "final model")
    monkeypatch.setattr(fedapps.audit.leakage, "_UPDATES", updates)
    small = {"rounds": 1, "epochs": 1, "num-nodes": 2, "lqr.trajectories": 10, "lqr.horizon": 8}
    keys = [f"--set={key}={value}" for key, value in small.items()]
    where = [f"--output-dir={tmp_path}", f"--json={tmp_path / 'audit.json'}", f"--set=cache-dir={tmp_path / 'worlds'}"]
    assert main(["audit", "lqr", "--seeds", "1", "--steps", "2", *keys, *where]) == 0
    rows = json.loads((tmp_path / "audit.json").read_text())["rows"]
    by_name = {(row["attack"], row["situation"]): row for row in rows}
    assert {situation for _, situation in by_name} == set(updates)
    assert by_name["named among others", "1 example"]["read"] == [1.0]
    assert by_name["membership, calibrated", "final model"]["unit"] == "AUC"
    printed = capsys.readouterr().out
    assert all(attack in printed for attack, _ in by_name)


def test_a_node_with_too_few_examples_is_told_before_anything_runs(tmp_path, capsys):
    small = {"num-nodes": 2, "lqr.trajectories": 2, "lqr.horizon": 4, "cache-dir": tmp_path / "worlds"}
    keys = [f"--set={key}={value}" for key, value in small.items()]
    assert main(["audit", "lqr", "--seeds", "1", *keys, f"--output-dir={tmp_path / 'runs'}"]) == 2
    assert "the audit needs 16; use fewer nodes, or more data" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_examples_of_a_mean_are_named_among_candidates():
    candidates = torch.randn(20, 2, 50, generator=torch.Generator().manual_seed(0))
    named = explaining(candidates[[3, 7, 11], [0, 1, 1]].mean(0), candidates, 3)
    assert named.nonzero()[:, 0].tolist() == [3, 7, 11]


# Jobs of an audit, and what their results say together.


PLAN = AuditPlan(
    TextSubject(),
    tuple(SHARINGS),
    tuple(ATTACKERS),
    ("subspace", "dlg", "rows"),
    on=("gradient", "update"),
    batch_sizes=(1, 2),
    sentences=4,
    steps=8,
    restarts=1,
)


@given(st.integers(1, 40), st.data())
def test_jobs_cover_every_sentence_once_in_whole_batches(sentences, data):
    size = data.draw(st.integers(1, sentences))
    plan = replace(PLAN, sentences=sentences, batch_sizes=(size,))
    for kind, on in itertools.product(plan.attacks, plan.on):
        jobs = [job for job in plan.jobs() if (job["attack"], job["on"]) == (kind, on)]
        if (kind, on) == ("dlg", "update"):
            assert not jobs
            continue
        assert [n for job in jobs for n in range(job["start"], job["stop"])] == list(range(sentences))
        assert all(job["start"] % size == 0 for job in jobs)


def write_result(folder, name, **facts):
    part = {"method": "fedavg", "attacker": "known", "attack": "dlg", "on": "gradient", "batch_size": 1} | facts
    part = {"distances": [], "private": ["7"]} | part
    (folder / f"{name}.json").write_text(json.dumps([part]))


def test_results_of_jobs_are_combined_into_rows(tmp_path):
    write_result(
        tmp_path, "b", start=1, sentences=1, seconds=4.0, distances=[0.25], recoveries=[[["c", "d"], ["c", "x"]]]
    )
    write_result(
        tmp_path, "a", start=0, sentences=1, seconds=2.0, distances=[0.5], recoveries=[[["a", "7"], ["a", "7"]]]
    )
    write_result(tmp_path, "c", attacker="foreign", start=0, sentences=1, seconds=1.0, recoveries=[[["a"], ["b"]]])
    found = finished(tmp_path, "r")
    first, second = found["rows"]
    assert (first["precision"], first["recall"], first["ptlr"]) == (0.75, 0.75, 1)
    assert (first["seconds"], first["sentences"], first["distance"]) == (3, 2, 0.375)
    assert second["distance"] is None
    assert (second["attacker"], second["recall"], second["ptlr"]) == ("foreign", 0, None)
    assert [one["recovered"] for one in found["recovered"]] == ["a 7", "c x", "b"]
    text = audit_text(found)
    assert "original: c d\n  fedavg/known: C x" in text
    assert "words read by known (0.750, dlg on gradient); protected from foreign (0.000, dlg on gradient)\n" in text
    assert "    digit tokens read by known (1.000, dlg on gradient)" in text
    assert "by the strongest of the attacks dlg on gradient, batch sizes 1 (" in text
    assert row_line(second).startswith(
        "fedavg, foreign, dlg on gradient, batch size 1: precision 0.000, recall 0.000, digit tokens -"
    )


def test_the_statement_is_that_of_the_strongest_attack():
    dlg = {"method": "fedvocab", "attacker": "public", "attack": "dlg", "on": "gradient", "batch_size": 1, "ptlr": None}
    rows = dlg | {"attack": "subspace", "on": "update", "batch_size": 8}
    assert "fedvocab: words protected from public (0.100, dlg on gradient)" in statement([dlg | {"recall": 0.1}])
    both = statement([dlg | {"recall": 0.1}, rows | {"recall": 0.3}])
    assert "fedvocab: words partly read by public (0.300, subspace on update)" in both
    assert "attacks dlg on gradient, subspace on update, batch sizes 1, 8" in both
    assert "words read by public (0.500, dlg on gradient)" in statement([dlg | {"recall": 0.5}, rows | {"recall": 0.3}])


# Audits of a recipe of the task "vln" from the command line.


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = write_world(tmp_path_factory.mktemp("houses"))
    words = (
        "walk past the sofa bed sink table lamp door stairs rug plant and stop at , leaving where you is go to . ! ..."
    )
    (folder / "words.txt").write_text("\n".join([*words.split(), "stove", "desk", "piano", "shelf"]))
    keys = run_keys(folder, vocabulary_file="words.txt", vocabulary_size=40, word_width=64) | {"num-nodes": 3}
    path = folder / "tiny.toml"
    path.write_text(tomli_w.dumps(keys))
    return path


@pytest.mark.slow
def test_the_words_of_instructions_are_read(recipe, tmp_path, capsys):
    asked = tmp_path / "asked.json"
    arguments = ["audit", str(recipe), "--sentences", "4", "--batch-sizes", "1,2", "--json", str(asked)]
    assert main([*arguments, "--output-dir", str(tmp_path)]) == 0
    found = json.loads(asked.read_text())
    assert {row["attack"] for row in found["rows"]} == {"subspace", "sparse", "rows"}
    assert {row["on"] for row in found["rows"]} == {"gradient", "update"}
    assert list(dict.fromkeys(row["method"] for row in found["rows"])) == ["fedavg", "fedvln"]
    for row in found["rows"]:
        assert row["ptlr"] is None
        if row["attack"] == "rows" or (row["attack"], row["attacker"], row["on"]) == ("subspace", "known", "gradient"):
            assert (row["precision"], row["recall"]) == (1, 1)
    printed = capsys.readouterr().out
    assert "  fedvln: words read by known (1.000, subspace on gradient)" in printed
    assert "    digit tokens" not in printed
    assert "almost zero" not in printed  # a claim of another paper


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--attack", "dlg,rows"], "--attack dlg: matches gradients, which needs second derivatives through the agent"),
        (["--attack", "frequency"], "--attack frequency: needs public text of the same kind"),
        (["--attack", "tag"], "add --attack subspace or rows, which read the gradient itself"),
        (["--methods", "fedvocab"], "--methods fedvocab: unknown; must be among fedavg, fedvln"),
        (["--sentences", "1000"], "--sentences 1000: only 12 of 12 training instructions of the house houseA"),
        (["--set", "vln.stage=speaker"], "vln.stage = 'speaker': must be 'agent', 'augmented' or 'pre-exploration'"),
        (["--set", "task=social", "--attack", "rows"], "task = 'social': must be one of text, vln"),
    ],
)
def test_what_cannot_be_audited_is_refused_before_anything_runs(recipe, arguments, told, tmp_path, capsys):
    given = ["audit", str(recipe), "--sentences", "4", "--output-dir", str(tmp_path / "runs"), *arguments]
    assert main(given) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
