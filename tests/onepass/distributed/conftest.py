"""A mesh of one process."""

import pytest
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh


@pytest.fixture
def mesh(tmp_path):
    """A mesh of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "cp"))
    distributed.destroy_process_group()
