"""Where the parts of a sequence are: along one dim of a mesh or two, as plain tensors or as DTensors.

Invariant: a result is placed as the queries are. Example: `MeshDims.of(mesh, ("host", "cp"))` are the ranks of all
hosts, where ranks that differ in cp alone share a host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..errors import InputError
from .exchange import Ranks

MeshDim = str | int | Sequence[str | int] | None
MOST_DIMS = 2  # hosts, and the ranks of one
OTHERS = "and may be shared over other dims than the sequence's by its first axis alone, the batch"


@dataclass(frozen=True)
class MeshDims:
    """The dims of a mesh that a sequence is shared over, the outer one first, and this process's ranks along each."""

    mesh: DeviceMesh
    numbers: tuple[int, ...]
    ranks: tuple[Ranks, ...]

    @classmethod
    def of(cls, mesh: DeviceMesh, dim: MeshDim) -> MeshDims:
        """Those of a name or a number, or of two. Raises InputError if the mesh has none, or for more."""
        if not isinstance(mesh, DeviceMesh):
            raise InputError(f"the mesh is a DeviceMesh, such as init_device_mesh makes; not {type(mesh).__name__}")
        if dim is None and mesh.ndim != 1:
            raise InputError(f"the mesh has {mesh.ndim} dims: name the one that the sequence is shared over, or two")
        dim = 0 if dim is None else dim
        given = (dim,) if isinstance(dim, str | int) else tuple(dim)
        numbers = tuple(_number(mesh, one) for one in given)
        if not 0 < len({*numbers}) == len(numbers) <= MOST_DIMS:
            raise InputError(f"a sequence is shared over one dim of the mesh, or over hosts and another; not {dim}")
        return cls(mesh, numbers, tuple(Ranks.of(mesh.get_group(number)) for number in numbers))

    @property
    def size(self) -> int:
        """The number of ranks that share a sequence."""
        return torch.Size([ranks.size for ranks in self.ranks]).numel()

    def table(self, own: Sequence[int], device: torch.device) -> list[list[list[int]]]:
        """Some numbers of each rank, by the outer dim and the inner one; one dim is the inner one."""
        row = self.ranks[-1].numbers(own, device)
        if len(self.ranks) == 1:
            return [row]
        flat = [number for numbers in row for number in numbers]
        found = self.ranks[0].numbers(flat, device)
        return [[[*numbers[k : k + len(own)]] for k in range(0, len(flat), len(own))] for numbers in found]


def _number(mesh: DeviceMesh, dim: str | int) -> int:
    names = mesh.mesh_dim_names or ()
    if isinstance(dim, str):
        if dim not in names:
            raise InputError(f"the mesh has no dim {dim!r}: its dims are {', '.join(names) or 'not named'}")
        return names.index(dim)
    if not -mesh.ndim <= dim < mesh.ndim:
        raise InputError(f"the mesh has no dim {dim}: it has {mesh.ndim}")
    return dim % mesh.ndim


@dataclass(frozen=True)
class Placed:
    """Where tensors are: plain ones are a rank's parts; of DTensors, those are taken, and the result is a DTensor.

    batches: other dims of the mesh, by number, that the first axis of queries is shared over, as in data parallel;
    batch: its size here.
    """

    dims: MeshDims
    placements: Sequence[Placement] | None
    batches: frozenset[int]
    batch: int

    @classmethod
    def of(cls, dims: MeshDims, tensors: Mapping[str, torch.Tensor], axes: Sequence[Mapping[str, int]]) -> Placed:
        """axes: of queries, and of keys. Raises InputError for DTensors that are not sharded as they say."""
        placements, batch, batches = None, 0, set[int]()
        shared = {**axes[0], **axes[1]}
        for name, x in tensors.items():
            if not isinstance(x, DTensor):
                continue
            if x.device_mesh != dims.mesh:
                raise InputError(f"{name} is on another mesh")
            axis = shared.get(name)
            wanted = Replicate() if axis is None else Shard(axis % x.ndim)
            for number in dims.numbers:
                if x.placements[number] != wanted:
                    found = x.placements[number]
                    raise InputError(f"{name} is placed as {found} on dim {number} of the mesh, and is to be {wanted}")
            batches |= _batches(dims, name, x, wanted)
            if name in axes[0] and placements is None:
                placements, batch = x.placements, x.to_local().shape[0]
        if any(placements is None or placements[n] != Shard(0) for n in batches):
            raise InputError(f"an argument is shared over dim {min(batches)} of the mesh, and the queries are not")
        return cls(dims, placements, frozenset(batches), batch)

    def local(self, x: torch.Tensor) -> torch.Tensor:
        """This rank's part."""
        if not isinstance(x, DTensor):
            return x
        # Each rank has its queries' part in the gradient of what is the same everywhere.
        own = {*self.dims.numbers, *self.batches}
        return x.to_local(
            grad_placements=[Partial() if p.is_replicate() and n in own else p for n, p in enumerate(x.placements)]
        )

    def result(self, local: torch.Tensor, axis: int, length: int) -> torch.Tensor:
        """The result of this rank, or the whole one if queries came as a DTensor. axis, length: of all queries.

        Raises InputError if the first axis is not that of the queries, where that is shared over another dim.
        """
        if self.placements is None:
            return local
        if self.batches and (axis == 0 or local.shape[0] != self.batch):
            raise InputError("the result's first axis is not that of the queries, which other dims of the mesh share")
        places, mesh = list(self.placements), self.dims.mesh
        for number in self.dims.numbers:
            places[number] = Shard(axis)
        shape = list(local.shape)
        for number, found in enumerate(places):
            if isinstance(found, Shard) and number not in self.dims.numbers:
                shape[found.dim] *= mesh.size(number)
        shape[axis] = length
        strides = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local.contiguous(), mesh, places, run_check=False, shape=torch.Size(shape), stride=strides
        )


def _batches(dims: MeshDims, name: str, x: DTensor, of_sequence: Placement) -> set[int]:
    """The other dims of the mesh, by number, that the tensor's first axis is shared over. Raises InputError for another
    axis, or if the first one is the sequence's."""
    found = {n: p for n, p in enumerate(x.placements) if n not in dims.numbers and p != Replicate()}
    for number, place in found.items():
        if place != Shard(0) or of_sequence == Shard(0):
            raise InputError(f"{name} is placed as {place} on dim {number} of the mesh, {OTHERS}")
    return {*found}
