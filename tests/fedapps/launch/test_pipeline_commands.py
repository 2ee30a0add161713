"""Commands take a stage of a pipeline, and a fleet runs all of them."""

from contextlib import contextmanager

import pytest
from pipelines import RECIPE, assert_same_results, results

from fedapps.cli.commands import main
from fedapps.launch.launch import execute


@pytest.mark.parametrize(
    "command",
    [["compare"], ["nodes"], ["audit"], ["check-node", "--data-dir", "."]],
    ids=["compare", "nodes", "audit", "check-node"],
)
def test_commands_for_one_run_ask_for_a_stage(command, place, capsys):
    recipe = place / "two.toml"
    assert main([*command, str(recipe)]) == 2
    assert capsys.readouterr().err == (
        f"fedapps: recipe {recipe}: a pipeline of 2 runs; name one of its stages as RECIPE:STAGE: {recipe}:first, "
        f"{recipe}:second\n"
    )
    assert main([*command, f"{recipe}:second"]) == 2
    file = "{first}/checkpoints/fedavg/round-000002.safetensors"
    assert capsys.readouterr().err == (
        f"fedapps: recipe {recipe}:second: warm-lqr.start = '{file}': {{first}} is the run folder of another stage; "
        f"add --set warm-lqr.start=FILE, or run the whole pipeline with `fedapps run {recipe}`\n"
    )


@pytest.fixture
def in_turn(monkeypatch):
    """The runs of a comparison are executed in this process, one after another."""
    work_off = lambda cells, work, **_: [work(**cell) for cell in cells]  # noqa: E731
    monkeypatch.setattr("fedapps.comparison.compare.run_matrix", work_off)


def test_a_stage_is_compared_as_a_recipe(place, tmp_path, in_turn):
    given = ["--seeds", "1", "--output-dir", str(tmp_path), "--set", f"cache-dir={place / 'worlds'}"]
    assert main(["compare", f"{place / 'two.toml'}:first", *given]) == 0
    (folder,) = tmp_path.glob("compare-*")
    assert folder.name.startswith("compare-two-first-")
    assert '"recipe": "two:first"' in (folder / "compare.json").read_text()


@pytest.mark.slow
def test_each_run_of_a_comparison_starts_from_the_run_of_its_method_and_seed(place, tmp_path, in_turn):
    def compare(stage, name, *settings):
        given = ["--methods", "fedavg", "--output-dir", str(tmp_path / name), "--set", f"cache-dir={place / 'worlds'}"]
        assert main(["compare", f"{place / 'two.toml'}:{stage}", *given, *settings]) == 0
        (folder,) = (tmp_path / name).glob("compare-*")
        return folder

    first = compare("first", "first", "--seeds", "2")
    file = "fedavg-1/checkpoints/fedavg/round-000002.safetensors"
    pattern = file.replace("fedavg", "{method}").replace("-1", "-{seed}")
    every = compare("second", "every", "--seeds", "2", "--set", f"warm-lqr.start={first / pattern}")
    alone = compare("second", "alone", "--seeds", "1", "--first-seed", "1", "--set", f"warm-lqr.start={first / file}")
    assert_same_results(results(every / "fedavg-1"), results(alone / "fedavg-1"))


def test_a_fleet_runs_stage_after_stage(whole, place, tmp_path, monkeypatch):
    """The processes of the fleet are replaced; each stage has a fleet folder."""
    fleets = []

    @contextmanager
    def deployment(folder, *, tls, auth):
        assert (folder / "owner.json").exists()
        fleets.append((folder, tls, auth))
        yield None

    monkeypatch.setattr("fedapps.deployment.fleet.deployment", deployment)
    monkeypatch.setattr(
        "fedapps.deployment.fleet._deploy_and_run", lambda config, data, fleet: execute(config, "inline")
    )
    given = ["--output-dir", str(tmp_path), "--set", f"cache-dir={place / 'worlds'}", "--set", "name=pipe"]
    assert main(["fleet", str(place / "two.toml"), "--tls", *given]) == 0
    assert fleets == [(tmp_path / "pipe" / f"{stage}-fleet", True, False) for stage in ("first", "second")]
    for stage in ("first", "second"):
        assert_same_results(results(tmp_path / "pipe" / stage), results(whole / stage))


def test_a_fleet_checks_all_stages_before_it_starts(place, tmp_path, capsys):
    given = ["--output-dir", str(tmp_path / "runs"), "--set", f"cache-dir={tmp_path / 'worlds'}", "--set", "name=pipe"]
    assert main(["fleet", str(place / "two.toml"), *given, "--nodes", "1"]) == 2
    assert capsys.readouterr().err.startswith("fedapps: stage first: --nodes 1: the run waits for num-nodes = 2")
    pooled = tmp_path / "pooled.toml"
    pooled.write_text(RECIPE.replace('"fedavg,local"', '"fedavg,centralized"'))
    assert main(["fleet", str(pooled), *given]) == 2
    assert "stage second: methods: centralized trains on the pooled data of all nodes" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
