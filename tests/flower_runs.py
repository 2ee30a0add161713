"""``flwr run`` in Ray on a temporary SuperLink with free ports."""

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fedapps.base.processes import end_groups, flower_environment, free_port, tool
from fedapps.deployment.submission import connect, submission, wait_until_healthy


@dataclass(frozen=True)
class Fleet:
    """The number of simulated nodes of a run, and the resources of each."""

    num_nodes: int
    cpus: int = 1
    gpus: float = 0.0


def flower_run(
    app: Path,
    run_config: Mapping[str, bool | int | float | str],
    fleet: Fleet,
    *,
    home: Path | None = None,
    show: Callable[[str], None] = print,
) -> int:
    """Submit the Flower app in a folder to a SuperLink that simulates nodes, and show its log; the exit status.

    All processes end with the call. The status is 0 even if the app failed. ``home`` is the folder used as
    ``FLWR_HOME``, by default a temporary one.
    """
    with ExitStack() as stack:
        folder = home or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fedapps-flwr-")))
        folder.mkdir(parents=True, exist_ok=True)
        environment = flower_environment(folder)
        port = free_port()
        log_file = folder / "superlink.log"
        command = [
            tool("flower-superlink"), "--insecure", "--simulation", "--isolation", "subprocess",
            "--host", "127.0.0.1", "--port", str(port),
        ]  # fmt: skip
        output = stack.enter_context(log_file.open("wb"))
        superlink = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, cwd=folder, start_new_session=True
        )
        stack.callback(end_groups, [superlink])
        if not wait_until_healthy(superlink, port):
            raise RuntimeError(
                f"the SuperLink did not start:\n{log_file.read_text(encoding='utf-8', errors='replace')[-2000:]}"
            )
        connect(folder, f"127.0.0.1:{port}")
        federation = (
            f"num-supernodes={fleet.num_nodes} client-resources-num-cpus={fleet.cpus} "
            f"client-resources-num-gpus={fleet.gpus}"
        )
        submit = [*submission(app, folder, run_config), "--federation-config", federation]
        with subprocess.Popen(
            submit,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            encoding="utf-8",
            errors="replace",
        ) as running:
            stack.callback(running.kill)
            assert running.stdout is not None
            for line in running.stdout:
                show(line.rstrip("\n"))
            return running.wait()
