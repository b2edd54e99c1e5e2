"""What each test process sets before anything else: threads, garbage, Triton's interpreter, Hypothesis; fixtures.

Environment variables rather than calls, so that the processes that tests start inherit them. With --quick, tests that
are marked `slow` are left out, and of the cases of a test that is marked `sampled(n)` n are run, always the same ones.
"""

import gc
import importlib.util
import os

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the cores: more threads than cores is slower, not faster
    share = (os.cpu_count() or 1) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, share)))

import pytest
import torch
from hypothesis import settings

from tests.support.quick_tests import left_out

# Triton reads it when a kernel is defined, so before anything imports triton, as torch's settings do below
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import torch._functorch.config
import torch._inductor.config

# A graph out of Inductor's caches meets no pass, so whatever ran before, in any process, would decide what a test sees.
torch._inductor.config.fx_graph_cache = False
torch._functorch.config.enable_autograd_cache = False

if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    from tests.support import interpreter_reductions

    interpreter_reductions.install()

settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")


# Of the millions of objects of torch and of parsed files none is garbage; searching them took a tenth of all time.
gc.set_threshold(100_000, 20, 100)


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out slow tests and most cases of sampled ones")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--quick"):
        return
    gone = {*left_out(items)}
    config.hook.pytest_deselected(items=[item for item in items if item in gone])
    items[:] = [item for item in items if item not in gone]


@pytest.fixture(autouse=True)
def own_reports():
    """A test that reads the last report gets one of its own graphs, whatever ran before in this process."""
    from onepass import process_state

    process_state.forget("reports")


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """As in a new process with an empty cache; modules ask for it by `pytestmark = pytest.mark.usefixtures`."""
    from onepass import process_state

    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    torch._dynamo.reset()
    process_state.forget()
    torch.manual_seed(0)


@pytest.fixture(params=[(32, 16), (256, 512)], ids=["small tiles", "large tiles"])
def tiles(request, monkeypatch):
    """The tiled executor with small tiles, so that some are empty, full, partial and short, and with large ones."""
    from onepass.lowering.tiled import executor

    monkeypatch.setattr(executor, "FIRST_TILE_ROWS", request.param[0])
    monkeypatch.setattr(executor, "FIRST_TILE_COLUMNS", request.param[1])
    if request.param[0] < 256:
        monkeypatch.setattr(executor, "MAX_ELEMENTS_ON_A_CPU", 4000)


@pytest.fixture
def group_of_one(tmp_path):
    """A gloo group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def mesh(group_of_one):
    """A mesh of this process alone."""
    return torch.distributed.init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "cp"))
