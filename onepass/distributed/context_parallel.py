"""`context_parallel`: attention written for a whole sequence, where each rank holds a part of it.

Plain PyTorch in, plain PyTorch out: each rank gives its queries and its keys, and gets what its queries get from the
keys of all ranks. Invariant: the result is that of the function on the whole sequence, up to the rounding of a merge.
Example: `attend = onepass.context_parallel(attend, mesh, keys={"k": -2, "v": -2, "key_at": 0})`.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zlib import crc32

import torch
from torch.distributed.device_mesh import DeviceMesh

from ..compiler.options import Options
from ..egraph.derivation.certificate import Derivation
from ..errors import InputError, Refusal
from ..report.records import Report, as_seen
from ..translate.translate import Captured
from .exchange import ALONE, Ranks, Unchanged, is_remembered, keep_newest
from .head_exchange import HeadExchange, Move
from .laws.head_law import Heads
from .pieces import Pieces
from .placement import MeshDim, MeshDims, Placed
from .schedules import SCHEDULES, Shards
from .shared_attention import MOST_GRAPHS, Proved, Run, SharedAttention, Sides, proved, proved_heads
from .traffic import RankWork, chosen, is_worth, most_pieces, work_of

QUERIES, KEYS = {"q": -2}, {"k": -2, "v": -2}
PLAIN = (bool, int, float, str, torch.dtype)  # kinds of a module's attributes that are read in each call
Table = list[list[list[int]]]  # by host and rank: the numbers of queries and keys, and that of integers


def context_parallel(
    function: Callable,
    mesh: DeviceMesh,
    dim: MeshDim = None,
    *,
    queries: Mapping[str, int] | None = None,
    keys: Mapping[str, int] | None = None,
    schedule: str | None = None,
    pieces: int | None = None,
    together: bool = False,
    **options: Any,
) -> ContextParallel:
    """The function or module, to be called by all ranks of a dim of the mesh, each with its part of a sequence.

    dim: a name or a number; or two, hosts first, such as ("host", "cp"), where ranks of one host have the fast link.

    queries, keys: the arguments that are shared out, with the axis of the sequence; without them {"q": -2} and
    {"k": -2, "v": -2}. Every other tensor is the same on all ranks. What a score or a mask needs to know of a query or
    a key is an argument, too, such as its position or its document: places in a part of a sequence mean nothing. The
    parts may be of any lengths, and hold any tokens. schedule: "ring", "all-gather" or "ulysses" for one dim,
    "two-level" or "two-level ulysses" for two; without it the one that is estimated to take less time. options: those
    of the backend.

    pieces: how many parts the heads are computed in, one after the other: a rank holds the other ranks' data of a few
    at a time. Without it, up to 16 whose kernels take 2 ms or more by the estimate, if heads are proved to be apart.

    together: a promise that lengths of parts, and integers such as positions, change on all ranks in the same call, or
    on none; where integers change, they are other tensors, or torch counts the write (not one by a collective, NumPy or
    `x.data`). Then ranks ask each other only after a change, and the CPU of a rank does not wait for its GPU. Without
    it they compare and ask in each call. A broken promise makes ranks wait for ever.

    Each rank gets the gradients of its own queries and keys in full; those of other tensors are its part, and the sum
    over ranks is the whole, as in data parallel. Arguments may be DTensors that are sharded so; then the result is one.
    A row without keys is 0.

    Raises InputError for arguments that do not fit; Refusal, at the first call, for a function of which it is not
    proved that its states merge: one that reads places of keys, or reduces over keys in another way than by a softmax;
    and by an exchange of heads, or given pieces, for one that mixes heads, or whose heads these do not divide.

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
    dims = MeshDims.of(mesh, dim)
    if schedule is not None and len(SCHEDULES[schedule]) != len(dims.numbers):
        fitting = ", ".join(name for name, roles in SCHEDULES.items() if len(roles) == len(dims.numbers))
        wanted = "two dims of the mesh, hosts first" if len(dims.numbers) == 1 else "one dim of the mesh"
        raise InputError(f"{schedule} takes {wanted}; dim={dim!r} goes with {fitting}")
    if pieces is not None and (not isinstance(pieces, int) or pieces < 1):
        raise InputError(f"pieces is a number from 1 on, not {pieces!r}")
    axes = dict(QUERIES if queries is None else queries), dict(KEYS if keys is None else keys)
    read = Options.read({"inner": "eager", **options})
    return ContextParallel(function, dims, axes, How(schedule, pieces, together), read)


def _settings(function: Callable) -> tuple:
    """The attributes of a module and of those in it that are numbers or names: its graph is made with them."""
    if not isinstance(function, torch.nn.Module):
        return ()
    each = ((name, vars(module)) for name, module in function.named_modules())
    return tuple((name, n, x) for name, found in each for n, x in found.items() if isinstance(x, PLAIN))


@contextmanager
def _unchanged_settings(module: torch.nn.Module) -> Iterator[None]:
    """Takes back what a trace changes of them: a module that counts its calls would be another one after each trace."""
    before = _settings(module)
    try:
        yield
    finally:
        named = dict(module.named_modules())
        for name, n, x in before:
            setattr(named[name], n, x)


@dataclass(frozen=True)
class How:
    """What `context_parallel` was told of how ranks share."""

    schedule: str | None = None
    pieces: int | None = None
    together: bool = False


@dataclass(frozen=True)
class SharedCall:
    """The arguments of one call that are no tensors, this rank's tensors by name, and which are shared out.

    settings: of a module, its numbers and names, such as whether it is in training.
    """

    words: Mapping[str, Any]
    tensors: Mapping[str, torch.Tensor]
    sides: Sides
    settings: tuple = ()

    @property
    def lengths(self) -> tuple[int, int]:
        """The numbers of queries and keys."""
        return self.sides.lengths([*self.tensors.values()])

    @property
    def integers(self) -> dict[int, torch.Tensor]:
        """Those of queries and keys that are exchanged once, for as long as they are the same, by number."""
        given, axes = [*self.tensors.values()], {**self.sides.queries, **self.sides.keys}
        return {k: given[k] for k, axis in axes.items() if is_remembered(given[k], axis)}

    def with_tensors(self, others: Mapping[int, torch.Tensor]) -> SharedCall:
        """The call with other tensors, by number."""
        return replace(self, tensors={n: others.get(k, x) for k, (n, x) in enumerate(self.tensors.items())})

    @property
    def kind(self) -> tuple:
        """What a graph depends on beside the shapes."""
        kinds = [(x.dtype, x.device, x.requires_grad and torch.is_grad_enabled()) for x in self.tensors.values()]
        device = next(iter(self.tensors.values())).device.type
        autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        words = tuple((n, repr(x)) for n, x in self.words.items())
        return (autocast, words, self.settings, *self.tensors, *kinds)

    @property
    def other_axes(self) -> list[tuple[int, ...]]:
        """The tensors' shapes without the sequence's axes."""
        spared = {**self.sides.queries, **self.sides.keys}
        return [
            tuple(n for a, n in enumerate(x.shape) if a != spared.get(k)) for k, x in enumerate(self.tensors.values())
        ]

    @property
    def general(self) -> tuple:
        """What a proof depends on: the kind, and the shapes without the sequence's axes."""
        return *self.kind, *self.other_axes

    @property
    def alike(self) -> str:
        """What has to be the same on all ranks, as they exchange such tensors."""
        kinds = zip(self.tensors.items(), self.other_axes, strict=True)
        recorded = torch.is_grad_enabled()
        return "; ".join(
            f"{name} {str(x.dtype).removeprefix('torch.')} {list(shape)}"
            f"{' with gradients' if recorded and x.requires_grad else ''}"
            for (name, x), shape in kinds
        )


class ContextParallel:
    """A function that ranks call with parts of a sequence. `context_parallel` makes it."""

    def __init__(
        self,
        function: Callable,
        dims: MeshDims,
        axes: tuple[dict[str, int], dict[str, int]],
        how: How,
        options: Options,
    ):
        self.function, self.how, self.options = function, how, options
        self._dims, self._axes = dims, axes
        called = function.forward if isinstance(function, torch.nn.Module) else function
        self._signature = inspect.signature(called)
        unknown = [n for names in axes for n in names if n not in self._signature.parameters]
        if unknown:
            raise InputError(f"{self.name} has no argument {unknown[0]!r}")
        self._known = OrderedDict[tuple, SharedAttention]()
        self._laws: dict[tuple, Proved] = {}
        self._heads: dict[tuple, Heads | None] = {}
        self._unchanged, self._tables = Unchanged(), OrderedDict[tuple[int, ...], Table]()
        self._agreements = OrderedDict[tuple[str, str], bool]()  # by what ranks had when all were ready

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def reports(self) -> list[Report]:
        """What was fused, for each number of keys at once."""
        return [as_seen(part.report) for known in self._known.values() for part in known.parts.values()]

    @property
    def proofs(self) -> list[Derivation]:
        """Why ranks may share the function, for each kind of call: chains from its weighted values, a reduction over
        keys, to one over ranks of what each rank's keys give. A step is an instance of a law; `str` writes them out.
        """
        return [law.chain for law in self._laws.values()]

    @torch.compiler.disable
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result for this rank's queries."""
        words, tensors = self._bound(args, kwargs)
        placed = Placed.of(self._dims, tensors, self._axes)
        local = {name: placed.local(x) for name, x in tensors.items()}
        call = SharedCall(words, local, self._sides(local), _settings(self.function))
        numbers, call = self._numbers(call)
        table = [[[queries, keys] for queries, keys, _ in host] for host in numbers]
        run = self._agreed(call, table, str(numbers))
        result = run([*call.tensors.values()])
        return placed.result(result, run.attention.law.axis, sum(queries for host in table for queries, _ in host))

    def _numbers(self, call: SharedCall) -> tuple[Table, SharedCall]:
        """What each rank has: numbers of queries and keys, and one for its integers; and the call with copies of these.

        With the promise, a rank knows what others have by what it has, and copies nothing.
        """
        kind = crc32(call.alike.encode())
        if not self.how.together:
            number, copies = self._unchanged.copies(call.integers)
            return self._asked((*call.lengths, number, kind), call), call.with_tensors(copies)
        own = (*call.lengths, self._unchanged.of_objects(call.integers), kind)
        if own not in self._tables:
            self._tables[own] = self._asked(own, call)
        self._tables.move_to_end(own)
        keep_newest(self._tables)
        return self._tables[own], call

    def _asked(self, own: tuple[int, ...], call: SharedCall) -> Table:
        """The numbers of all ranks but the last one, that of a call's kind, which has to be the same.

        Raises InputError on all ranks if it is not: they would wait for each other's tensors.
        """
        table = self._dims.table(own, next(iter(call.tensors.values())).device)
        if {numbers[-1] for host in table for numbers in host} != {own[-1]}:
            raise InputError(f"ranks call {self.name} with other kinds of tensors; this one has {call.alike}")
        return [[numbers[:-1] for numbers in host] for host in table]

    def _agreed(self, call: SharedCall, table: Table, numbers: str) -> Run:
        """How this call is run. numbers: what ranks told each other.

        Where these are new, all ranks learn whether one of them raises: the others would wait for its keys. Example: a
        function that takes another branch for the length of one rank's part.
        """
        sizes, error = (call.alike, str(table)), None
        if self._dims.size == 1 or sizes in self._agreements:
            return self._run(call, table, numbers)
        try:
            run = self._run(call, table, numbers)
            if run.pieces.exchange is None:
                run.attention.require_form([*call.tensors.values()], [keys for host in table for _, keys in host])
        except Exception as raised:  # the user's function may raise anything
            error = raised
        found = self._dims.table((error is None,), next(iter(call.tensors.values())).device)
        if error is not None:
            raise error
        if not all(is_ready for host in found for (is_ready,) in host):
            raise InputError(f"another rank cannot share {self.name} with its part of the sequence; it says why")
        self._agreements[sizes] = True
        keep_newest(self._agreements, MOST_GRAPHS)
        return run

    def _run(self, call: SharedCall, table: Table, numbers: str) -> Run:
        """How this call is run, by the schedule and in the pieces that are chosen. numbers: what ranks told each other.

        Raises Refusal where heads are not proved apart.
        """
        schedule, count = self._chosen(call, table)
        roles = SCHEDULES[schedule]
        ranks = dict(zip(roles, self._dims.ranks, strict=True))
        ring, gather, swap = (ranks.get(role, ALONE) for role in ("ring", "gather", "heads"))
        if roles == ("ring",):
            table = [[own] for own in table[0]]
        attention = of_a_piece = self._attention(call)
        pieces = Pieces()
        parts = count * swap.size
        if parts > 1 or "heads" in ranks:
            heads = self._heads_of(call, parts) or self._proved_heads(call, parts)
            exchange = self._exchange(call, swap, heads, table[ring.rank]) if swap.size > 1 else None
            pieces = Pieces(heads, count, exchange)
        if "heads" in ranks:
            table = [[[sum(of_rank) for of_rank in zip(*host, strict=True)]] for host in table]
        if parts > 1:
            of_a_piece = self._attention(call, (parts, *table[ring.rank][gather.rank]), heads.form)
        keys = [[length for _, length in host] for host in table]
        cut = sorted(pieces.axes.items())  # of integers, too
        remembered = self._unchanged.remembered((numbers, schedule, count, *cut))
        shards = Shards(ring, gather, keys, [*call.sides.keys.values()], remembered)
        return Run(attention, of_a_piece, shards, pieces, [*call.integers])

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

    def _attention(
        self, call: SharedCall, piece: tuple[int, ...] = (), form: Captured | None = None
    ) -> SharedAttention:
        """The graphs for tensors of this kind, or for a piece of them; the proof holds for all lengths, and for pieces.

        piece: the number of equal parts that heads are cut in, and its numbers of queries and keys. form: what was
        proved of it.
        """
        kind = (*call.kind, *(tuple(x.shape) for x in call.tensors.values()), *piece)
        if kind not in self._known:
            function = self._of_tensors(call.words, [*call.tensors])
            self._known[kind] = SharedAttention(function, call.sides, self.options, self._law(call), form)
        self._known.move_to_end(kind)
        keep_newest(self._known, MOST_GRAPHS)
        return self._known[kind]

    def _law(self, call: SharedCall) -> Proved:
        general = call.general
        if general not in self._laws:
            function, given = self._of_tensors(call.words, [*call.tensors]), [*call.tensors.values()]
            self._laws[general] = proved(function, given, call.sides, [*call.tensors])
        return self._laws[general]

    def _heads_of(self, call: SharedCall, parts: int) -> Heads | None:
        """What may be cut into equal parts; None if that is not proved."""
        key = parts, *call.general
        if key not in self._heads:
            try:
                self._heads[key] = self._proved_heads(call, parts)
            except Refusal:
                self._heads[key] = None
        return self._heads[key]

    def _proved_heads(self, call: SharedCall, parts: int) -> Heads:
        names = [*call.tensors]
        function, place = self._of_tensors(call.words, names), self._law(call).place
        return proved_heads(function, [*call.tensors.values()], call.sides, names, parts, place)

    def _exchange(
        self, call: SharedCall, ranks: Ranks, heads: Heads, lengths: Sequence[Sequence[int]]
    ) -> HeadExchange:
        """That of heads for the sequence. lengths: of queries and keys of each of the ranks."""
        queries, keys = zip(*lengths, strict=True)
        parts = ((call.sides.queries, queries), (call.sides.keys, keys))
        moves = {k: Move(axis, each, heads.axes.get(k)) for axes, each in parts for k, axis in axes.items()}
        return HeadExchange(ranks, heads, moves, Move(heads.rows, queries, heads.axis))

    def _chosen(self, call: SharedCall, table: Table) -> tuple[str, int]:
        """The schedule and the number of pieces, as they were given, or by the estimates of the longest parts.

        All ranks know these, so that they choose alike.
        """
        fitting = [name for name, roles in SCHEDULES.items() if len(roles) == len(self._sizes)]
        if self.how.schedule or self._dims.size == 1:
            fitting = [self.how.schedule or fitting[0]]
        pieces = {name: self.how.pieces or self._piece_count(call, table, name) for name in fitting}
        if len(pieces) == 1:
            return next(iter(pieces.items()))
        heads = self._heads_of(call, (self.how.pieces or 1) * self._sizes[-1])
        device = next(iter(call.tensors.values())).device
        name = chosen(self._work(call, table, heads), self._sizes, device, pieces)
        return name, pieces[name]

    def _piece_count(self, call: SharedCall, table: Table, schedule: str) -> int:
        """The most pieces that are worth it and that heads can be cut in; all ranks find the same."""
        swapped = dict(zip(SCHEDULES[schedule], self._sizes, strict=True)).get("heads", 1)
        count = most_pieces(self._work(call, table, None), self._sizes, schedule)
        while count > 1:
            heads = self._heads_of(call, count * swapped)
            if heads is not None and is_worth(self._work(call, table, heads), count):
                break
            count //= 2
        return count

    def _work(self, call: SharedCall, table: Table, heads: Heads | None) -> RankWork:
        """Of the longest parts."""
        longest = tuple(max(each) for each in zip(*(own for host in table for own in host), strict=True))
        return work_of([*call.tensors.values()], call.sides, longest, heads)

    @property
    def _sizes(self) -> list[int]:
        return [ranks.size for ranks in self._dims.ranks]

    def _of_tensors(self, words: Mapping[str, Any], names: Sequence[str]) -> Callable[..., torch.Tensor]:
        """The function of the tensors alone, in the order of their names."""

        def run(*tensors: torch.Tensor) -> torch.Tensor:
            by_name = dict(zip(names, tensors, strict=True))
            inside = {n.removeprefix("self."): x for n, x in by_name.items() if n.startswith("self.")}
            given = {n: x for n, x in by_name.items() if not n.startswith("self.")} | dict(words)
            ordered = inspect.BoundArguments(self._signature, {n: given[n] for n in self._signature.parameters})
            if not isinstance(self.function, torch.nn.Module):
                return self.function(*ordered.args, **ordered.kwargs)
            with _unchanged_settings(self.function):
                return torch.func.functional_call(self.function, inside, ordered.args, ordered.kwargs)

        return run

