"""What each standard method is held to, as a table: which tests have its numbers, its degenerate case, its invariant.

Private state, resuming, refused replies and absent nodes are tested for every method in ``test_every_method``.
"""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

from fedapps.registry.methods import method_names


class Evidence(NamedTuple):
    """The module of the tests, and one test of each kind."""

    module: str
    numbers: str
    degenerate: str
    invariant: str


HEADS = "test_head_and_body_are_trained_in_the_order_of_the_method"
TABLE = {
    "scaffold": Evidence(
        "scaffold", "test_two_rounds_worked_out_by_hand", "test_the_first_round_is_fedavg_bit_for_bit",
        "test_the_server_keeps_the_mean_of_the_nodes_control_variates",
    ),
    "feddyn": Evidence(
        "feddyn", "test_two_rounds_of_two_steps", "test_without_regularisation_it_is_fedavg",
        "test_h_is_the_mean_of_the_linear_terms",
    ),
    "fednova": Evidence(
        "fednova", "test_two_rounds_by_hand", "test_with_equal_numbers_of_steps_it_is_fedavg",
        "test_small_steps_end_where_the_mean_loss_is_least_whatever_their_numbers",
    ),
    "moon": Evidence(
        "moon", "test_two_rounds", "test_without_weight_and_in_the_first_round_it_is_fedavg",
        "test_the_contrast_ignores_lengths_and_vanishes_where_both_references_agree",
    ),
    "ditto": Evidence(
        "ditto", "test_two_worlds",
        "test_the_shared_model_is_that_of_fedavg_and_without_a_weight_the_personal_one_is_that_of_a_node_alone",
        "test_a_personal_model_ends_between_its_own_optimum_and_the_shared_one",
    ),
    "pfedme": Evidence(
        "pfedme", "test_two_worlds", "test_one_step_to_the_personal_model_is_fedavg",
        "test_the_fixed_point_of_nodes_that_agree_is_their_optimum",
    ),
    "per-fedavg": Evidence(
        "per_fedavg", "test_two_worlds", "test_without_an_inner_rate_it_is_fedavg",
        "test_the_hessian_free_gradient_is_that_of_the_loss_after_a_step",
    ),
    "fedper": Evidence("private_heads", "test_fedper", "test_fedper_with_one_node_is_fedavg", HEADS),
    "fedrep": Evidence(
        "private_heads", "test_fedrep_trains_the_head_then_the_body",
        "test_fedrep_is_fedavg_where_the_head_has_no_gradient", HEADS,
    ),
    "fedbabu": Evidence(
        "private_heads", "test_fedbabu_never_trains_the_head_with_others_and_fine_tunes_the_whole_model",
        "test_fedbabu_without_fine_tuning_is_fedavg_below_a_frozen_head", HEADS,
    ),
    "fedbn": Evidence(
        "partial", "test_two_rounds_by_hand", "test_without_normalisation_nothing_is_private_as_in_fedavg",
        "test_what_stays_and_what_travels_is_the_whole_model",
    ),
    "ifca": Evidence(
        "ifca", "test_two_rounds_by_hand", "test_one_model_is_fedavg",
        "test_a_node_trains_the_model_with_the_smallest_loss",
    ),
    "fedproto": Evidence(
        "fedproto", "test_rounds_by_hand", "test_without_weight_it_is_training_alone",
        "test_the_prototypes_are_the_means_of_all_examples_however_they_are_divided",
    ),
    "fedala": Evidence(
        "fedala", "test_rounds_by_hand", "test_without_a_rate_the_shared_model_is_that_of_fedavg",
        "test_weights_and_mixtures_stay_between_the_two_models",
    ),
    "q-ffl": Evidence(
        "q_ffl", "test_two_rounds_by_hand", "test_without_a_power_it_is_fedavg", "test_no_step_raises_the_objective"
    ),
    "apfl-deng": Evidence(
        "apfl_deng", "test_two_worlds", "test_no_share_is_fedavg", "test_the_share_stays_between_none_and_all"
    ),
}  # fmt: skip


def functions_of(module):
    """The test functions of a module beside this one, by name."""
    tree = ast.parse(Path(__file__).with_name(f"test_{module}.py").read_text(encoding="utf-8"))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("method", TABLE)
def test_every_claim_of_the_table_is_a_test(method):
    assert method in method_names()
    module, numbers, degenerate, invariant = TABLE[method]
    there = functions_of(module)
    assert {numbers, degenerate} <= there.keys()
    assert any("given(" in ast.unparse(decorator) for decorator in there[invariant].decorator_list)
