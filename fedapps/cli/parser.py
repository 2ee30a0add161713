"""The parser of the command line: every command with its options, its help and an example."""

import argparse
import re

from fedapps.deployment.flower_command import LIBRARIES, POLL_INTERVAL

from .arguments import (
    RECIPE,
    Commands,
    Parser,
    add_command,
    add_engine,
    add_jobs,
    add_json,
    add_method_files,
    add_methods,
    add_output,
    add_resume,
    add_seed_keys,
    add_seeds,
    add_set,
    add_vary,
)
from .trained import add_trained


def command_parser() -> Parser:
    """The parser; ``command`` of its result is the name of a command, and ``kind`` that of a command of ``keys``."""
    parser = argparse.ArgumentParser(
        prog="fedapps",
        description="Run federated learning, compare methods, deploy to nodes and audit privacy.",
        epilog="`fedapps COMMAND --help` shows the options of a command and an example.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_new(commands)
    _add_list(commands)
    _add_nodes(commands)
    _add_run(commands)
    _add_compare(commands)
    _add_tune(commands)
    _add_fleet(commands)
    _add_config(commands)
    _add_deploy(commands)
    _add_check_node(commands)
    _add_supernode(commands)
    _add_keys(commands)
    _add_audit(commands)
    _add_report(commands)
    _add_board(commands)
    add_trained(commands)
    for command in commands.choices.values():
        command.set_defaults(known_options=re.findall(r"--[\w-]+", command.format_usage()))
    return parser


def _add_new(commands: Commands) -> None:
    command = add_command(
        commands, "new", "Write a project with your own task, method or deployment.",
        "The project has a recipe, a README with its commands, and a package with a test for a task or a method. "
        "Replace what is in it by yours.",
        "new weather --task rain", "new nearby --method near --deployment", "new robots --deployment",
    )  # fmt: skip
    command.add_argument("folder", metavar="NAME", help="name of the project and of its folder, which must not exist")
    command.add_argument("--task", default="", metavar="NAME", help="add a task of this name")
    command.add_argument("--method", default="", metavar="NAME", help="add a method of this name")
    command.add_argument(
        "--deployment", action="store_true", help="add a recipe and scripts for a server and nodes, with TLS and keys"
    )


def _add_list(commands: Commands) -> None:
    command = add_command(
        commands, "list", "List tasks, methods and recipes.",
        "With --keys, list the keys of the run config instead; with NAME, describe that task, method or recipe.",
        "list", "list fedprox", "list lane-swap", "list --for text", "list --keys --task driving --methods fedavg,spfl",
    )  # fmt: skip
    what = command.add_mutually_exclusive_group()
    what.add_argument("name", nargs="?", metavar="NAME", help="describe the task, method or recipe of this name")
    what.add_argument("--keys", action="store_true", help="list the keys of the run config by run, task and method")
    what.add_argument(
        "--for",
        dest="for_task",
        default="",
        metavar="TASK",
        help="the methods that apply to a task: what stays on a node, what travels, costs beside FedAvg, when it helps",
    )
    command.add_argument("--task", default="", help="with --keys: list the keys of this task only")
    command.add_argument("--methods", default="", help="with --keys: list the keys of these methods only")
    add_method_files(command)


def _add_nodes(commands: Commands) -> None:
    command = add_command(
        commands, "nodes", "Show the nodes of a recipe and how much data each of them has.",
        "Nothing is trained. A simulated world is generated if it does not exist yet.",
        "nodes fedvpr-splits", "nodes fedvocab-small --set data-dir=/data/agnews --vary text.alpha=0.1,1,10",
        "nodes quickstart --plot nodes.png", "nodes lane-swap --set num-nodes=3 --write samples",
    )  # fmt: skip
    command.add_argument("recipe", help=RECIPE)
    add_vary(command, "show a row for each of these values of a key")
    command.add_argument(
        "--plot",
        default="",
        metavar="FILE",
        help="also draw the training examples of each node by class to this file",
    )
    command.add_argument(
        "--write",
        default="",
        metavar="DIR",
        help="also copy the files of each node into one folder for each node below DIR, as a deployed node has them",
    )
    add_set(command)


def _add_run(commands: Commands) -> None:
    command = add_command(
        commands, "run", "Run one federation in simulation.",
        "Train all methods of the recipe one after another, print the results and write a report. A recipe with a "
        "pipeline runs its stages one after another; --set then applies to all of them. To resume a run or a pipeline "
        "that was interrupted, add --set name=NAME --set resume=true.",
        "run quickstart", "run lane-swap --dry-run", "run lqr --engine inline --set rounds=5 --set methods=fedavg,apfl",
        "run my-pipeline.toml:agent", "run my-pipeline.toml --set name=houses --set resume=true",
    )  # fmt: skip
    command.add_argument("recipe", nargs="?", help=f"{RECIPE}; default: the config in pyproject.toml")
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="check everything, print the nodes and an estimate of bytes, time, memory and disk, and stop",
    )
    add_engine(command, "ray")
    add_set(command)
    add_method_files(command)
    add_output(command)


def _add_compare(commands: Commands) -> None:
    command = add_command(
        commands, "compare", "Compare methods over several seeds, beside the paper's numbers.",
        "Run every method with every seed, print means, 95 % intervals, the paper's claims and tests, and write a "
        "report. Tests are paired over seeds. Five seeds give no p-value below 0.0625; use ten where a claim depends "
        "on it. A run that diverges is reported, and the others make the table: the exit status is 1 only if every "
        "run fails, and --resume repeats those that failed. On recorded data, results hold for new training runs on "
        "these data, not for other data. In the path of a file, {method} and {seed} stand for those of each run.",
        "compare lqr --methods fedavg,spfl,apfl --seeds 10",
        'compare lqr --methods "spfl,spfl(rate-scale=0.2),apfl(power=0.5)"',
        "compare fedvln-augmented --set vln.speaker-file=speaker.safetensors "
        "--set vln.agent-file=runs/agents/{method}-{seed}/checkpoints/{method}/best.safetensors",
        "compare --resume runs/compare-lqr-20250101-120000",
    )  # fmt: skip
    command.set_defaults(refuse=command.error)
    command.add_argument("recipe", nargs="?", help=RECIPE)
    add_methods(command, "compare")
    add_seeds(command, 3, "")
    add_vary(command, "repeat the comparison for each of these values of a key")
    add_seed_keys(command)
    add_resume(command, "comparison")
    add_jobs(command, "runs")
    command.add_argument(
        "--cluster",
        default="",
        metavar="ADDRESS",
        help="execute the runs on this Ray cluster, HOST:PORT or auto, whose machines share the folders of data and "
        "results (default: this machine)",
    )
    add_json(command, "rows, table, tests, the paper's numbers and claims")
    add_engine(command, "inline")
    add_set(command)
    add_method_files(command)
    add_output(command)


def _add_tune(commands: Commands) -> None:
    command = add_command(
        commands, "tune", "Search the best settings of each method on validation data.",
        "Every method gets the same number of trials, the first with its current settings; no trial reads test data. "
        "Print the settings of each method and write a recipe with them for `fedapps compare`. An argument in the name "
        "of a method, as in fedprox(mu=0.1), is fixed. A trial that diverges counts as a bad one; a method whose "
        "trials all diverge is left out of the recipe.",
        "tune lqr --methods fedavg,fedprox,apfl --trials 20 --write lqr-tuned.toml",
        "tune lane-swap --trials 20 --range apfl.power=0.25..2 --range epochs=5,10,30 --set-trials evaluate-every=1",
        "tune --resume runs/tune-lqr-20250101-120000",
    )  # fmt: skip
    command.set_defaults(refuse=command.error)
    command.add_argument("recipe", nargs="?", help=RECIPE)
    command.add_argument(
        "--trials", type=int, default=0, metavar="N", help="number of trials of each method; required without --resume"
    )
    add_methods(command, "tune")
    command.add_argument(
        "--range",
        action="append",
        default=[],
        metavar="KEY=LOW..HIGH[,log]",
        help="search range of a method's option or of a key that methods can set for themselves, such as epochs; "
        "KEY=VALUE,... for a few values; can be repeated (default: the ranges in `fedapps list --keys`)",
    )
    add_seeds(command, 1, " of each trial")
    add_seed_keys(command)
    command.add_argument(
        "--finalists",
        type=int,
        default=0,
        metavar="N",
        help="run N trials of each method, the current settings and the best others, with further seeds; the best mean "
        "over all seeds wins (default: 0, the best trial wins)",
    )
    command.add_argument(
        "--finalist-seeds", type=int, default=2, metavar="N", help="number of further seeds (default: %(default)s)"
    )
    command.add_argument("--write", default="", metavar="FILE", help="also write the tuned recipe to this file")
    add_resume(command, "tuning")
    add_jobs(command, "tunings, one for each method")
    add_engine(command, "inline")
    add_set(command)
    add_method_files(command)
    command.add_argument(
        "--set-trials",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key in the trials only, not in the tuned recipe; can be repeated",
    )
    add_output(command)


def _add_fleet(commands: Commands) -> None:
    command = add_command(
        commands, "fleet", "Run one federation on a local SuperLink with SuperNodes.",
        "Start a SuperLink and SuperNodes on the loopback interface, run the app on them and stop them. Each node "
        "reads its partition of data-dir or of a simulated world, as in `fedapps run`, or the folder that --node-data "
        "gives it. Logs, keys and private states are written to NAME-fleet beside the run folder.",
        "fleet lane-swap --tls --auth", "fleet lqr --set num-nodes=2 --node-data /data/robot-a,/data/robot-b",
    )  # fmt: skip
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("--nodes", type=int, metavar="N", help="number of SuperNodes (default: num-nodes)")
    command.add_argument(
        "--node-data",
        default="",
        metavar="DIR",
        help="folder that contains one data folder per node, or the data folders of all nodes, separated by commas",
    )
    command.add_argument("--tls", action="store_true", help="encrypt all connections; certificates are generated")
    command.add_argument(
        "--auth", action="store_true", help="generate a key for each SuperNode and refuse all others; implies --tls"
    )
    add_set(command)
    add_method_files(command)
    add_output(command)


def _add_config(commands: Commands) -> None:
    command = add_command(
        commands, "config", "Print a recipe as the flat run config that `flwr run` takes.",
        "`flwr run` itself knows neither the names of recipes nor the key `base`. All checks run first.",
        "config lane-swap --set num-nodes=3 > run.toml",
    )  # fmt: skip
    command.add_argument("recipe", help=RECIPE)
    add_set(command)


def _add_deploy(commands: Commands) -> None:
    command = add_command(
        commands, "deploy", "Run a recipe on the SuperLink of a federation.",
        "FEDERATION is a connection in Flower's config.toml (`flwr config list`). Paths in the run config are those of "
        "the server, and each node reads its own data folder. All checks run first.",
        "deploy lane-swap fleet --set num-nodes=3 --stream",
    )  # fmt: skip
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("federation", nargs="?", default="", help="name of the connection (default: Flower's default)")
    command.add_argument("--stream", action="store_true", help="show the log of the run until it ends")
    add_set(command)


def _add_check_node(commands: Commands) -> None:
    command = add_command(
        commands, "check-node", "Check whether this machine can take part in a run as a node.",
        "Read the node's data, train one step of each method, evaluate once, and check disk space and memory. Nothing "
        "is sent and no file is left behind. The exit status is 1 if a check fails.",
        "check-node lane-swap --data-dir /data/car-7 --state-dir /var/lib/fedapps",
    )  # fmt: skip
    command.add_argument("recipe", help=RECIPE)
    command.add_argument("--data-dir", required=True, metavar="DIR", help="folder with the node's data")
    command.add_argument(
        "--state-dir", metavar="DIR", help="folder for the node's private state (default: ~/fedapps/nodes)"
    )
    command.add_argument(
        "--private",
        default="",
        metavar="PATTERNS",
        help="parameters that never leave the node, as in its node config: glob patterns separated by commas",
    )
    command.add_argument(
        "--keep-model",
        action="store_true",
        help="check that the node can keep its models for other programs, as in its node config, and print where",
    )
    command.add_argument(
        "--node-config",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another key of the node config, such as dp=local, max-releases=200 or max-steps=1000; can be repeated",
    )
    add_set(command)


def _add_supernode(commands: Commands) -> None:
    command = add_command(
        commands, "supernode", "Run a Flower SuperNode whose workers start without importing torch again.",
        "Flower starts a process for every message, which first imports Flower and torch. This SuperNode imports them "
        "once and forks. The other options are those of flower-supernode.",
        "supernode --insecure --superlink HOST:9092 --node-config 'data-dir=\"/data/car-7\"'",
    )  # fmt: skip
    command.set_defaults(takes_rest=True)
    command.add_argument(
        "--preload",
        default=",".join(LIBRARIES),
        metavar="MODULES",
        help="modules to import, separated by commas; those that are not installed are skipped (default: %(default)s)",
    )
    command.add_argument(
        "--poll-interval",
        type=float,
        default=POLL_INTERVAL,
        metavar="SECONDS",
        help="seconds between two polls for messages, above 0 and at most 3 (default: %(default)s)",
    )


def _add_keys(commands: Commands) -> None:
    command = add_command(
        commands, "keys", "Create the certificates of a SuperLink or the key of a node.",
        "Files are created for a deployment on several machines; the commands print where each file belongs.",
        "keys certificates certificates --host fl.example.org 10.0.0.7", "keys node . car-7",
    )  # fmt: skip
    kinds = command.add_subparsers(dest="kind", required=True, metavar="KIND")
    certificates = add_command(
        kinds, "certificates", "Create a certificate authority and the SuperLink's certificate.",
        "Write ca.crt, superlink.crt and superlink.key.",
        "keys certificates certificates --host fl.example.org 10.0.0.7",
    )  # fmt: skip
    certificates.add_argument("folder", help="folder for the files")
    certificates.add_argument(
        "--host", nargs="+", required=True, help="host names and IP addresses at which nodes reach the SuperLink"
    )
    certificates.add_argument("--days", type=int, default=365, help="days of validity (default: %(default)s)")
    node = add_command(
        kinds, "node", "Create the key pair with which a node authenticates at the SuperLink.",
        "Write NAME.key, which must not leave the node, and NAME.pub.",
        "keys node . car-7",
    )  # fmt: skip
    node.add_argument("folder", help="folder for the files")
    node.add_argument("name", metavar="NAME", help="name of the node, such as car-7")


def _add_audit(commands: Commands) -> None:
    command = add_command(
        commands, "audit", "Measure which words an attacker recovers from the gradients of sentences.",
        "Attack the gradients and updates that one node shares, and print the share of recovered words: of texts (task "
        "text), or of instructions that an agent follows (task vln).",
        "audit fedvocab-small --set data-dir=/data/agnews --batch-sizes 1,8",
        "audit fedvln-r2r --set data-dir=/data/vln --batch-sizes 1,8 --sentences 64",
    )  # fmt: skip
    command.add_argument("recipe", help=f"{RECIPE}; its task must be text or vln")
    command.add_argument(
        "--methods",
        help="methods to attack (default: fedavg,fedrecon,fedvocab for the task text, fedavg,fedvln for vln)",
    )
    command.add_argument(
        "--attackers",
        default="known,public,foreign",
        help="the attacker's word vectors: known = the node's, public = published ones, foreign = others; several are "
        "separated by commas (default: %(default)s)",
    )
    command.add_argument(
        "--attack",
        help="attacks, separated by commas: rows, subspace, sparse, and for text also sparse-prior, dlg and tag, which "
        "take minutes per sentence, and frequency, a guess to compare with (default: subspace,sparse,rows, and dlg for "
        "text)",
    )
    command.add_argument(
        "--on",
        default="gradient,update",
        help="what is attacked: the gradient of a batch, or the update after local training on it; dlg and tag only "
        "attack gradients (default: %(default)s)",
    )
    command.add_argument(
        "--batch-sizes", default="1", metavar="N,...", help="sentences per gradient or update (default: %(default)s)"
    )
    command.add_argument(
        "--sentences", type=int, default=128, metavar="N", help="number of attacked sentences (default: %(default)s)"
    )
    command.add_argument(
        "--steps",
        type=int,
        default=200,
        metavar="N",
        help="at most this number of L-BFGS steps of dlg and tag, each with up to 20 evaluations; the search stops "
        "earlier if its distance hardly falls (default: %(default)s)",
    )
    command.add_argument(
        "--restarts",
        type=int,
        default=1,
        metavar="N",
        help="random starts of dlg and tag; the best result counts (default: %(default)s)",
    )
    add_jobs(command, "attacks")
    add_json(command, "rows and recovered sentences")
    add_set(command)
    add_output(command)


def _add_report(commands: Commands) -> None:
    command = add_command(
        commands, "report", "Write the report of a run or a comparison, or its tables and figures for a paper.",
        "Overwrite the files in the folder and print their paths: report.html, and with --format also table.tex "
        "(booktabs), table.md, table.csv or figures/*.pdf.",
        "report runs/lane-swap-20250101-120000", "report runs/compare-lqr-20250101-120000 --format tex,pdf",
    )  # fmt: skip
    command.add_argument("folder", help="folder of a run or a comparison")
    command.add_argument(
        "--format",
        default="html",
        metavar="FORMAT,...",
        help="html, tex, md, csv or pdf, separated by commas (default: %(default)s)",
    )


def _add_board(commands: Commands) -> None:
    command = add_command(
        commands, "board", "Follow runs in the browser while they go on.",
        "Serve a page that shows the runs of a folder: how far they are, their curves, nodes and refused replies. "
        "It changes nothing in the folder.",
        "board", "board /data/runs --port 9000",
    )  # fmt: skip
    command.add_argument(
        "folder", nargs="?", default="runs", help="folder that contains the run folders (default: ./%(default)s)"
    )
    command.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; if it is not the loopback, the page needs the printed token (default: %(default)s)",
    )
    command.add_argument("--port", type=int, default=8765, help="port to listen on; 0: any (default: %(default)s)")
