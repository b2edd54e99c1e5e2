"""`context_parallel`: attention written for a whole sequence, where each rank holds a part of it.

Plain PyTorch in, plain PyTorch out: each rank gives its queries and its keys, and gets what its queries get from the
keys of all ranks. Invariant: the result is that of the function on the whole sequence, up to the rounding of a merge.
Example: `attend = onepass.context_parallel(attend, mesh, keys={"k": -2, "v": -2, "key_at": 0})`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from ..compiler.options import Options
from ..errors import InputError
from ..report.records import Report, as_seen
from .exchange import Ranks
from .schedules import SCHEDULES, Shards
from .shared_attention import Proved, Run, SharedAttention, Sides, proved
from .traffic import chosen

QUERIES, KEYS = {"q": -2}, {"k": -2, "v": -2}


def context_parallel(
    function: Callable,
    mesh: DeviceMesh,
    dim: str | int | None = None,
    *,
    queries: Mapping[str, int] | None = None,
    keys: Mapping[str, int] | None = None,
    schedule: str | None = None,
    **options: Any,
) -> ContextParallel:
    """The function or module, to be called by all ranks of a dim of the mesh, each with its part of a sequence.

    queries, keys: the arguments that are shared out, with the axis of the sequence; without them {"q": -2} and
    {"k": -2, "v": -2}. Every other tensor is the same on all ranks. What a score or a mask needs to know of a query or
    a key is an argument, too, such as its position or its document: places in a part of a sequence mean nothing. The
    parts may be of any lengths, and hold any tokens. schedule: "ring" or "all-gather"; without it the one that is
    estimated to take less time. options: those of the backend.

    Each rank gets the gradients of its own queries and keys in full; those of other tensors are its queries' part, as
    in data parallel. Arguments may be DTensors that are sharded so; then the result is one. A row without keys is 0.

    Raises InputError for arguments that do not fit; Refusal, at the first call, for a function of which it is not
    proved that its states merge: one that reads places of keys, or reduces over keys in another way than by a softmax.

    In each of two processes, which torchrun started; docs/many_gpus.md has a whole program:

    >>> mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))  # doctest: +SKIP
    >>> shared = onepass.context_parallel(attend, mesh, "cp")  # doctest: +SKIP
    >>> my_rows = shared(my_q, my_k, my_v)  # doctest: +SKIP
    """
    if not callable(function):
        kind = type(function).__name__
        raise InputError(f"context_parallel takes a function or a module, and this is of type {kind}")
    if schedule is not None and schedule not in SCHEDULES:
        raise InputError(f"schedule is one of {', '.join(SCHEDULES)}, not {schedule!r}")
    axes = dict(QUERIES if queries is None else queries), dict(KEYS if keys is None else keys)
    read = Options.read({"inner": "eager", **options})
    return ContextParallel(function, _MeshDim.of(mesh, dim), axes, schedule, read)


class _MeshDim:
    """A dim of a mesh: its number, and this process's ranks along it."""

    def __init__(self, mesh: DeviceMesh, number: int):
        self.mesh, self.number = mesh, number
        self.ranks = Ranks.of(mesh.get_group(number))

    @classmethod
    def of(cls, mesh: DeviceMesh, dim: str | int | None) -> _MeshDim:
        """That of a name or a number. Raises InputError if the mesh has none."""
        names = mesh.mesh_dim_names or ()
        if dim is None:
            if mesh.ndim != 1:
                raise InputError(f"the mesh has {mesh.ndim} dims: name the one that the sequence is shared over")
            return cls(mesh, 0)
        if isinstance(dim, str):
            if dim not in names:
                raise InputError(f"the mesh has no dim {dim!r}: its dims are {', '.join(names) or 'not named'}")
            return cls(mesh, names.index(dim))
        if not -mesh.ndim <= dim < mesh.ndim:
            raise InputError(f"the mesh has no dim {dim}: it has {mesh.ndim}")
        return cls(mesh, dim % mesh.ndim)


class ContextParallel:
    """A function that ranks call with parts of a sequence. `context_parallel` makes it."""

    def __init__(
        self,
        function: Callable,
        place: _MeshDim,
        axes: tuple[dict[str, int], dict[str, int]],
        schedule: str | None,
        options: Options,
    ):
        self.function, self.schedule, self.options = function, schedule, options
        self._place, self._axes = place, axes
        called = function.forward if isinstance(function, torch.nn.Module) else function
        self._signature = inspect.signature(called)
        unknown = [n for names in axes for n in names if n not in self._signature.parameters]
        if unknown:
            raise InputError(f"{self.name} has no argument {unknown[0]!r}")
        self._known: dict[tuple, SharedAttention] = {}
        self._laws: dict[tuple, Proved] = {}

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def reports(self) -> list[Report]:
        """What was fused, for each number of keys at once."""
        return [as_seen(part.report) for known in self._known.values() for part in known.parts.values()]

    @torch.compiler.disable
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for this rank's queries."""
        words, tensors = self._bound(args, kwargs)
        spread = _Spread.of(self._place, tensors, self._axes)
        local = {name: spread.local(name, x) for name, x in tensors.items()}
        sides = self._sides(local)
        attention = self._attention(words, local, sides)
        given = list(local.values())
        run = Run(attention, self._schedule(given, sides), self._shards(given, sides))
        return spread.result(run(given), attention.law.axis)

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """The arguments that are no tensors, and the tensors by name, parameters and buffers of a module among them."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InputError(f"{self.name}: {error}") from error
        bound.apply_defaults()
        words = {n: x for n, x in bound.arguments.items() if not isinstance(x, torch.Tensor)}
        tensors = {n: x for n, x in bound.arguments.items() if isinstance(x, torch.Tensor)}
        missing = [n for names in self._axes for n in names if n not in tensors]
        if missing:
            raise InputError(f"{missing[0]} of {self.name} is shared out over ranks, so it is a tensor")
        if isinstance(self.function, torch.nn.Module):
            inside = (*self.function.named_parameters(), *self.function.named_buffers())
            tensors |= {f"self.{n}": x for n, x in inside}
        return words, tensors

    def _sides(self, local: Mapping[str, torch.Tensor]) -> Sides:
        numbers = {name: number for number, name in enumerate(local)}
        found = []
        for axes in self._axes:
            for name, axis in axes.items():
                if not -local[name].ndim <= axis < local[name].ndim:
                    raise InputError(f"{name} has {local[name].ndim} axes, so none is {axis}")
            found.append({numbers[name]: axis % local[name].ndim for name, axis in axes.items()})
        sides = Sides(*found)
        for names, shared in zip(self._axes, found, strict=True):
            lengths = {name: local[name].shape[shared[numbers[name]]] for name in names}
            if len(set(lengths.values())) != 1:
                raise InputError(f"parts of one sequence have one length, and these have {lengths}")
        return sides

    def _attention(self, words: Mapping[str, Any], local: Mapping[str, torch.Tensor], sides: Sides) -> SharedAttention:
        """The graphs for tensors of this kind; the proof holds for all lengths."""
        kinds = [(x.dtype, x.device, x.requires_grad and torch.is_grad_enabled()) for x in local.values()]
        said = tuple((n, repr(x)) for n, x in words.items())
        kind = (said, *local, *kinds, *(tuple(x.shape) for x in local.values()))
        if kind not in self._known:
            function, given = self._of_tensors(words, [*local]), list(local.values())
            spared = {**sides.queries, **sides.keys}
            shapes = [[n for a, n in enumerate(x.shape) if a != spared.get(k)] for k, x in enumerate(given)]
            general = (said, *local, *kinds, *map(tuple, shapes))
            if general not in self._laws:
                self._laws[general] = proved(function, given, sides, [*local])
            self._known[kind] = SharedAttention(function, sides, self.options, self._laws[general])
        return self._known[kind]

    def _of_tensors(self, words: Mapping[str, Any], names: Sequence[str]) -> Callable[..., torch.Tensor]:
        """The function of the tensors alone, in the order of their names."""

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            by_name = dict(zip(names, tensors, strict=True))
            inside = {n.removeprefix("self."): x for n, x in by_name.items() if n.startswith("self.")}
            given = {n: x for n, x in by_name.items() if not n.startswith("self.")} | dict(words)
            ordered = inspect.BoundArguments(self._signature, {n: given[n] for n in self._signature.parameters})
            if not isinstance(self.function, torch.nn.Module):
                return self.function(*ordered.args, **ordered.kwargs)
            return torch.func.functional_call(self.function, inside, ordered.args, ordered.kwargs)

        return run

    def _shards(self, given: Sequence[torch.Tensor], sides: Sides) -> Shards:
        """The lengths of all shards, which the ranks tell each other."""
        number, axis = next(iter(sides.keys.items()))
        own, ranks = given[number].shape[axis], self._place.ranks
        lengths = [own]
        if ranks.size > 1:
            lengths = [length for (length,) in ranks.numbers([own], given[number].device)]
        return Shards(ranks, lengths, [*sides.keys.values()])

    def _schedule(self, given: Sequence[torch.Tensor], sides: Sides):
        if self.schedule is not None:
            return SCHEDULES[self.schedule]
        return SCHEDULES[chosen(given, sides, self._place.ranks.size)]


class _Spread:
    """Where tensors are: plain ones are a rank's parts; of DTensors, those are taken, and the result is a DTensor."""

    def __init__(self, place: _MeshDim, placements: Sequence[Placement] | None):
        self.place, self.placements = place, placements

    @classmethod
    def of(
        cls, place: _MeshDim, tensors: Mapping[str, torch.Tensor], axes: tuple[dict[str, int], dict[str, int]]
    ) -> _Spread:
        """Raises InputError for DTensors that are not sharded as the arguments say."""
        placements = None
        shared = {**axes[0], **axes[1]}
        for name, x in tensors.items():
            if not isinstance(x, DTensor):
                continue
            if x.device_mesh != place.mesh:
                raise InputError(f"{name} is on another mesh")
            found, axis = x.placements[place.number], shared.get(name)
            wanted = Replicate() if axis is None else Shard(axis % x.ndim)
            if found != wanted:
                raise InputError(f"{name} is placed as {found} on this dim of the mesh, and is to be {wanted}")
            if name in axes[0] and placements is None:
                placements = x.placements
        return cls(place, placements)

    def local(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """This rank's part."""
        if not isinstance(x, DTensor):
            return x
        # Each rank has its queries' part in the gradient of what is the same everywhere.
        places = [Partial() if p.is_replicate() and n == self.place.number else p for n, p in enumerate(x.placements)]
        return x.to_local(grad_placements=places)

    def result(self, local: torch.Tensor, axis: int) -> torch.Tensor:
        """The result of this rank, or the whole one if queries came as a DTensor."""
        if self.placements is None:
            return local
        places = list(self.placements)
        places[self.place.number] = Shard(axis)
        ranks = self.place.ranks
        lengths = ranks.numbers([local.shape[axis]], local.device) if ranks.size > 1 else [[local.shape[axis]]]
        shape = list(local.shape)
        for number, found in enumerate(places):
            if isinstance(found, Shard) and number != self.place.number:
                shape[found.dim] *= self.place.mesh.size(number)
        shape[axis] = sum(length for (length,) in lengths)
        strides = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(
            local.contiguous(), self.place.mesh, places, run_check=False, shape=torch.Size(shape), stride=strides
        )
