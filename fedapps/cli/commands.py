"""``python -m fedapps``: list, nodes, run, fleet, compare, audit, report, keys, check-node."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fedapps.comparison.matrix import Vary, read_value
from fedapps.config.keys import described
from fedapps.config.recipe_files import read_recipe, recipes
from fedapps.registry.expressions import split_expressions
from fedapps.registry.methods import method_lines
from fedapps.registry.tasks import task_lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run the command, and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.command(given))
    except (ValueError, OSError) as error:
        print(f"fedapps: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "fedapps: interrupted; what was trained is in the run's folder: go on with resume = true, "
            "with a comparison by compare --resume FOLDER",
            file=sys.stderr,
        )
        return 130


def list_names(given: argparse.Namespace) -> int:
    """Print tasks, methods and recipes, one line each; with ``--keys`` the keys of the run config, too."""
    for title, lines in (("tasks", task_lines()), ("methods", method_lines()), ("recipes", recipes())):
        print(f"{title}:")
        for name, line in lines.items():
            print(f"  {name:<24} {line}")
    if given.keys:
        for group, keys in described().items():
            print(f"keys of the {group} (default; what is allowed):")
            for key, line in keys.items():
                print(f"  {key:<28} {line}")
    return 0


def run(given: argparse.Namespace) -> int:
    """Run one federation on an engine, and print where its report is."""
    from fedapps.launch.launch import launch

    overrides = read_recipe(Path(given.recipe)) if given.recipe else {}
    return launch(overrides | _assignments(given.set), engine=given.engine, output_dir=given.output_dir)


def fleet(given: argparse.Namespace) -> int:
    """Run one federation on a SuperLink and SuperNodes of this machine, and print where its report is."""
    from fedapps.deployment.fleet import run_fleet

    return run_fleet(
        read_recipe(Path(given.recipe)) | _assignments(given.set),
        nodes=given.nodes,
        node_data=given.node_data,
        tls=given.tls,
        auth=given.auth,
        output_dir=given.output_dir,
    )


def compare(given: argparse.Namespace) -> int:
    """Run a matrix of methods and seeds, and print the table beside the paper's numbers."""
    from fedapps.comparison.compare import compare_recipe, resume_comparison

    json_path = Path(given.json) if given.json else None
    if given.resume:
        if given.recipe or given.set or given.vary or given.methods:
            given.refuse("--resume: recipe, methods, seeds, keys and values are those of the folder; leave them out")
        resume_comparison(Path(given.resume), jobs=given.jobs, json_path=json_path)
        return 0
    if not given.recipe:
        given.refuse(f"give a recipe ({', '.join(recipes())}, or a run-config file), or --resume FOLDER")
    compare_recipe(
        Path(given.recipe),
        methods=split_expressions(given.methods),
        seeds=given.seeds,
        first_seed=given.first_seed,
        engine=given.engine,
        jobs=given.jobs,
        overrides=_assignments(given.set),
        vary=Vary.read(given.vary),
        output_dir=given.output_dir,
        json_path=json_path,
    )
    return 0


def nodes(given: argparse.Namespace) -> int:
    """Print who the nodes of a recipe are, and how much each of them has."""
    from fedapps.launch.node_table import nodes_text

    print(nodes_text(Path(given.recipe), _assignments(given.set), Vary.read(given.vary)))
    return 0


def audit(given: argparse.Namespace) -> int:
    """Attack the gradients that a node of a text task shares, and print what was read."""
    from fedapps.audit import AuditPlan, audit_recipe

    plan = AuditPlan.read(
        methods=given.methods,
        attackers=given.attackers,
        attacks=given.attack,
        batch_sizes=given.batch_sizes,
        sentences=given.sentences,
        steps=given.steps,
        restarts=given.restarts,
    )
    audit_recipe(
        Path(given.recipe),
        plan,
        jobs=given.jobs,
        overrides=_assignments(given.set),
        output_dir=given.output_dir,
        json_path=Path(given.json) if given.json else None,
    )
    return 0


def certificates(given: argparse.Namespace) -> int:
    """Make a SuperLink's certificates, and print what goes where."""
    from fedapps.deployment.credentials import issue_certificates

    print(issue_certificates(Path(given.folder), given.host, given.days))
    return 0


def node_key(given: argparse.Namespace) -> int:
    """Make the key of a node, and print what goes where."""
    from fedapps.deployment.credentials import issue_node_key

    print(issue_node_key(Path(given.folder), given.name))
    return 0


def check_node(given: argparse.Namespace) -> int:
    """Try on this machine what a recipe will ask of a node, and print whether it can join."""
    from fedapps.deployment.check_node import check

    return check(Path(given.recipe), _assignments(given.set), Path(given.data_dir), given.state_dir)


def report(given: argparse.Namespace) -> int:
    """Draw the report of a run folder again."""
    from fedapps.report import write_report

    print(write_report(Path(given.folder)))
    return 0


def _assignments(pairs: Sequence[str]) -> dict[str, bool | int | float | str]:
    found: dict[str, bool | int | float | str] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {pair!r}: write it as key=value")
        found[key.strip()] = read_value(key.strip(), text.strip())
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedapps", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="command")
    listing = commands.add_parser("list", help="tasks, methods and recipes")
    listing.set_defaults(command=list_names)
    listing.add_argument("--keys", action="store_true", help="the keys of the run config too")

    running = commands.add_parser("run", help="run one federation")
    running.set_defaults(command=run)
    running.add_argument("recipe", nargs="?", help="run-config file or the name of a recipe; default: the app's own")

    deploying = commands.add_parser(
        "fleet",
        help="run one federation on a SuperLink and SuperNodes of this machine",
        description="Start a SuperLink and SuperNodes on the loopback, run the app on them, end them all. Nodes learn "
        "from the same data as in `fedapps run` (each has its part of data-dir or of a simulated world), or from "
        "folders of their own. Logs, keys and private states stay in the folder NAME-fleet beside the run's.",
    )
    deploying.set_defaults(command=fleet)
    deploying.add_argument("recipe", help="run-config file or the name of a recipe")
    deploying.add_argument("--nodes", type=int, metavar="N", help="SuperNodes (default: num-nodes of the run config)")
    deploying.add_argument(
        "--node-data",
        default="",
        metavar="DIR",
        help="a folder with one folder of data per node, or several such folders with commas between them",
    )
    deploying.add_argument("--tls", action="store_true", help="encrypt, with certificates made for this fleet")
    deploying.add_argument(
        "--auth", action="store_true", help="a key for each SuperNode; others are refused (switches --tls on)"
    )
    deploying.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    deploying.add_argument("--output-dir", default="runs", help="folder of the run folders (default ./runs)")

    comparing = commands.add_parser("compare", help="methods x seeds, beside the paper's numbers")
    comparing.set_defaults(command=compare, refuse=comparing.error)
    comparing.add_argument("recipe", nargs="?", help="run-config file or the name of a recipe")
    comparing.add_argument("--methods", default="", help="comma-separated; default: the recipe's")
    comparing.add_argument("--seeds", type=int, default=3, help="number of seeds (default 3)")
    comparing.add_argument("--first-seed", type=int, default=0)
    comparing.add_argument(
        "--vary", default="", metavar="KEY=V1,V2,...", help="repeat all for each value of a key; default: the recipe's"
    )
    comparing.add_argument(
        "--resume", metavar="FOLDER", help="go on with a comparison that was cut off; needs no recipe"
    )
    comparing.add_argument("--jobs", type=int, default=0, help="runs at a time; default: one per CPU core")
    comparing.add_argument("--json", default="", help="write rows, table and the paper's numbers to this file")

    looking = commands.add_parser("nodes", help="who the nodes of a recipe are, and how much each of them has")
    looking.set_defaults(command=nodes)
    looking.add_argument("recipe", help="run-config file or the name of a recipe")
    looking.add_argument(
        "--vary", default="", metavar="KEY=V1,V2,...", help="a line for each value of a key; default: the recipe's"
    )
    looking.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")

    for command, engine in ((running, "ray"), (comparing, "inline")):
        command.add_argument("--engine", choices=["inline", "ray"], default=engine)
        command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
        command.add_argument("--output-dir", default="runs", help="folder of the run folders (default ./runs)")

    auditing = commands.add_parser("audit", help="what an eavesdropper reads out of the gradients of texts")
    auditing.set_defaults(command=audit)
    auditing.add_argument("recipe", help="run-config file or the name of a recipe, of task text")
    auditing.add_argument("--methods", default="fedavg,fedrecon,fedvocab", help="what is shared (default all three)")
    auditing.add_argument("--attackers", default="known,public,foreign", help="whose table (default all three)")
    auditing.add_argument("--attack", default="dlg,rows", help="of dlg, tag, rows (default dlg,rows)")
    auditing.add_argument("--batch-sizes", default="1", metavar="N,...", help="sentences a gradient (default 1)")
    auditing.add_argument("--sentences", type=int, default=128, help="how many are attacked (default 128)")
    auditing.add_argument("--steps", type=int, default=12, help="of L-BFGS, up to 20 evaluations each (default 12)")
    auditing.add_argument("--restarts", type=int, default=1, help="of which the best counts (default 1)")
    auditing.add_argument("--jobs", type=int, default=0, help="cells at a time; default: one per CPU core")
    auditing.add_argument("--json", default="", help="write rows and recovered sentences to this file")
    auditing.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    auditing.add_argument("--output-dir", default="runs", help="folder of the audit's folder (default ./runs)")

    issuing = commands.add_parser("keys", help="certificates for a SuperLink and keys for nodes, on other machines")
    kinds = issuing.add_subparsers(required=True, metavar="kind")
    certifying = kinds.add_parser("certificates", help="a SuperLink's, signed by an authority of their own")
    certifying.set_defaults(command=certificates)
    certifying.add_argument("folder", help="where to write ca.crt, superlink.crt and superlink.key")
    certifying.add_argument(
        "--host", nargs="+", required=True, help="names and IP addresses by which nodes reach the SuperLink"
    )
    certifying.add_argument("--days", type=int, default=365, help="how long they are good (default 365)")
    pairing = kinds.add_parser("node", help="a node's, by which the SuperLink knows it")
    pairing.set_defaults(command=node_key)
    pairing.add_argument("folder", help="where to write NAME.key and NAME.pub")
    pairing.add_argument("name", help="what to call the node, such as car-7")

    checking = commands.add_parser(
        "check-node",
        help="whether this machine can join a run as a node",
        description="Reads the node's data, trains one step of each method and evaluates once, in this process, and "
        "looks at disk and memory. Nothing is sent and nothing is left behind. Exit status 1 if something is wrong.",
    )
    checking.set_defaults(command=check_node)
    checking.add_argument("recipe", help="run-config file or the name of the recipe that will be run")
    checking.add_argument("--data-dir", required=True, help="the node's own data")
    checking.add_argument("--state-dir", help="where it will keep its private state (default ~/fedapps/nodes)")
    checking.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")

    reporting = commands.add_parser("report", help="draw the report of a run folder again")
    reporting.set_defaults(command=report)
    reporting.add_argument("folder")
    return parser
