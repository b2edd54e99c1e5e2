"""Which ranks share a sequence, and where its parts are: dims that a mesh has not are refused, and other placements."""

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

import onepass
from onepass.distributed.placement import MeshDims, Placed
from onepass.errors import InputError

WRONG = {
    "has 2 dims: name the one": None,
    "no dim 'tp'": "tp",
    "no dim 2": 2,
    r"not \(\)": (),
    r"not \('cp', 'cp'\)": ("cp", "cp"),
    r"not \('cp', -1\)": ("cp", -1),
    r"no dim 'host': its dims are dp, cp": ("host", "cp"),
}
AXES = {"q": 2}, {"k": 2}


@pytest.mark.parametrize("said", WRONG)
def test_wrong_dims_are_refused(said, mesh):
    with pytest.raises(InputError, match=said):
        MeshDims.of(mesh, WRONG[said])


def test_one_dim_or_two(mesh):
    assert MeshDims.of(mesh["cp"], None).numbers == (0,)
    assert MeshDims.of(mesh, "cp").numbers == MeshDims.of(mesh, -1).numbers == (1,)
    both = MeshDims.of(mesh, ("dp", "cp"))
    assert both.numbers == (0, 1) and both.size == 1
    assert both.table([5, 7], torch.device("cpu")) == [[[5, 7]]]


def test_tensors_on_another_mesh_or_sharded_in_another_way_are_refused(mesh):
    x = torch.randn(1, 2, 4, 8)
    other = distribute_tensor(x, mesh["dp"], [Shard(2)])
    with pytest.raises(InputError, match="q is on another mesh"):
        Placed.of(MeshDims.of(mesh["cp"], None), {"q": other}, AXES)
    for places in ([Replicate(), Shard(1)], [Shard(1), Shard(2)], [Replicate(), Shard(2)]):
        heads = distribute_tensor(x, mesh, places)
        with pytest.raises(InputError, match=r"q is placed as .* and is to be S\(2\)|Shard\(dim=2\)"):
            Placed.of(MeshDims.of(mesh, ("dp", "cp")), {"q": heads}, AXES)
    shared = distribute_tensor(x, mesh, [Replicate(), Shard(2)])
    with pytest.raises(InputError, match="bias is placed as"):
        Placed.of(MeshDims.of(mesh, "cp"), {"bias": shared}, AXES)


def test_a_result_is_placed_as_the_queries(mesh):
    x = torch.randn(1, 2, 4, 8)
    q = distribute_tensor(x, mesh, [Shard(0), Shard(2)])
    placed = Placed.of(MeshDims.of(mesh, "cp"), {"q": q}, AXES)
    result = placed.result(placed.local(q), 1, 4)
    assert list(result.placements) == [Shard(0), Shard(1)]
    assert Placed.of(MeshDims.of(mesh, "cp"), {"q": x}, AXES).result(x, 1, 4) is x


def test_other_dims_share_the_batch_alone(mesh, monkeypatch):
    """What is whole there has a part of its gradient on each rank, as queries are shared out."""
    x, dims = torch.randn(1, 2, 4, 8), MeshDims.of(mesh, "cp")
    q = distribute_tensor(x, mesh, [Shard(0), Shard(2)])
    slopes = distribute_tensor(x[0, :, 0, 0], mesh, [Replicate(), Replicate()])
    placed, given = Placed.of(dims, {"q": q, "slopes": slopes}, AXES), []
    monkeypatch.setattr(type(slopes), "to_local", lambda x, grad_placements: given.extend(grad_placements))
    placed.local(slopes)
    assert given == [Partial(), Partial()]
    monkeypatch.undo()
    with pytest.raises(InputError, match="first axis is not that of the queries"):
        placed.result(placed.local(q).transpose(0, 1), 2, 4)
    for place in (Shard(1), Shard(2), Shard(3)):
        with pytest.raises(InputError, match="by its first axis alone, the batch"):
            Placed.of(dims, {"q": distribute_tensor(x, mesh, [place, Shard(2)])}, AXES)
    k = distribute_tensor(x, mesh, [Shard(0), Shard(2)])
    with pytest.raises(InputError, match="and the queries are not"):
        Placed.of(dims, {"q": distribute_tensor(x, mesh, [Replicate(), Shard(2)]), "k": k}, AXES)


def test_the_error_is_that_of_the_call(mesh):
    with pytest.raises(InputError, match="name the one"):
        onepass.context_parallel(lambda q, k, v: q, mesh)
