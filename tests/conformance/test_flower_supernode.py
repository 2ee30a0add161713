"""What ``fedapps supernode`` changes in Flower's SuperNode is where it expects it."""

import inspect
import time

from flwr.supercore.constant import TASK_TYPE_TO_COMMAND, TaskType
from flwr.supercore.superexec.executor import SubprocessExecutor
from flwr.supernode import start_client_internal

from fedapps.deployment.supernode import POLL_INTERVAL


def test_the_supernode_pauses_through_its_module_time():
    assert start_client_internal.time is time
    assert f"time.sleep({POLL_INTERVAL:g})" in inspect.getsource(start_client_internal.start_client_internal)


def test_the_supernode_and_its_superexec_start_commands_by_name():
    assert '["flower-superexec"]' in inspect.getsource(start_client_internal.start_client_internal)
    assert TASK_TYPE_TO_COMMAND[TaskType.CLIENT_APP] == "flwr-clientapp"
    assert "subprocess.Popen(" in inspect.getsource(SubprocessExecutor.launch)
