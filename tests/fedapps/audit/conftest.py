import pytest

import fedapps.audit.leakage
import fedapps.audit.run
from fedapps.audit.victim import trained_victim


@pytest.fixture(autouse=True, scope="module")
def _one_process():
    """The jobs of an audit run in this process, one after another."""

    def in_this_process(cells, work, *, jobs, watch):
        for cell in cells:
            work(**cell)
            watch.end(cell)

    with pytest.MonkeyPatch.context() as patch:
        for module in (fedapps.audit.run, fedapps.audit.leakage):
            patch.setattr(module, "run_matrix", in_this_process)
        yield


@pytest.fixture(autouse=True)
def _untrained():
    trained_victim.cache_clear()
