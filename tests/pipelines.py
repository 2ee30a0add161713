"""A pipeline of two small stages, of which the second starts from the model of the first."""

from toys import same_bits

from fedapps.cli.commands import main
from fedapps.runs.run_folder import RunFolder

RECIPE = """# A model, and a model that starts from it
methods = "fedavg"
task = "lqr"
num-nodes = 2
rounds = 2
epochs = 1
evaluate-every = 1
collect-after = 0
[lqr]
trajectories = 4
horizon = 6

[pipeline.first]

[pipeline.second]
task = "warm-lqr"
methods = "fedavg,local"
rounds = 3
[pipeline.second.warm-lqr]
trajectories = 4
horizon = 6
start = "{first}/checkpoints/fedavg/round-000002.safetensors"
"""


def run_pipeline(recipe, runs, *settings):
    """The exit status of ``fedapps run``; run folders are written to ``runs``."""
    given = [f"--set=cache-dir={runs.parent / 'worlds'}", *(f"--set={setting}" for setting in settings)]
    return main(["run", str(recipe), "--engine", "inline", "--output-dir", str(runs), *given])


def results(path):
    """The last shared arrays of each method, and its evaluations by round."""
    folder = RunFolder(path, "")
    return {
        method: (
            folder.checkpoints(method).latest().arrays,
            [(row["round"], row["evaluate"]) for row in folder.lines("metrics.jsonl") if row["method"] == method],
        )
        for method in folder.summary()["methods"]
    }


def assert_same_results(ours, theirs):
    assert ours.keys() == theirs.keys()
    for method, (arrays, evaluations) in ours.items():
        assert same_bits(arrays, theirs[method][0])
        assert evaluations == theirs[method][1]
