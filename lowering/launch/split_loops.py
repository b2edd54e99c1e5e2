"""Splits a kernel's loops into chunks (split-K): each program finds the states of a chunk, and a second kernel merges
them.

Invariant: a state is a value of a commutative monoid, so ⊕_j x = ⊕_c ⊕_{j of chunk c} x for any chunks, by the law
`reduction_in_parts`. The merge computes the kernel's own result terms from reductions of the stored states along the
chunks. Example: 8 rows of queries against 65536 keys, on 132 multiprocessors.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from ...egraph.rewrite.match import applied
from ...egraph.terms.ops import cast, iota, load, mantissa, rescaled_sum, scale
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import PAIR, Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, substitute, subterms
from ...rules.demotion import reduction_in_parts, states_by_their_numbers
from ..plan.device import H200
from ..plan.dtypes import HALVES
from ..plan.kernel_config import TritonConfig
from ..plan.queries import carried_dims, read_by, states_of
from ..plan.records import Accumulator, Kernel, Loop, Plan, Store
from ..plan.thresholds import MIN_ROWS_OF_A_PRODUCT
from ..readback.check_plan import differs
from ..readback.plan_meaning import part_index

log = logging.getLogger(__name__)
PROGRAMS_PER_MULTIPROCESSOR = 2  # while one waits for memory, the other computes; where registers allow two
WARPS_OF_A_PROGRAM = 4  # of one that takes half of a multiprocessor; of those with fewer, more run side by side
MIN_TILES_OF_A_CHUNK = 2  # so that the fixed costs of a program stay small
MIN_TILES_OF_A_SPLIT_LOOP = 6  # with fewer, or with fewer columns, a second kernel costs as much as it saves
MIN_COLUMNS_OF_A_SPLIT_LOOP = 384
MAX_MULTIPROCESSORS = 256  # no device has more
# Of a loop whose length data decides: chunks so long take little time each, and more of them store more states
COLUMNS_OF_AN_UNEVEN_CHUNK = 2048
MAX_UNEVEN_CHUNKS = 16
MAX_WAVES_OF_UNEVEN_PROGRAMS = 16  # with more programs on each multiprocessor, long and short ones even out
ROWS_OF_A_TILE = 64  # for reports, before sizes are known
MERGED = "_merged"  # the end of the name of a kernel that merges states
PLURAL = {"rescaled": "rescaled sums", "sum": "sums", "prod": "products", "max": "maxima", "min": "minima"}


@dataclass(frozen=True)
class SplitKernel:
    """What runs instead of a kernel: `first`, over chunks whose number is the symbolic size of `chunk`, then `last`."""

    first: Kernel
    last: Kernel
    chunk: Dim

    def __str__(self) -> str:
        over = ", ".join(str(loop.dim) for loop in self.first.loops)
        monoids = dict.fromkeys(a.monoid for loop in self.last.loops for a in loop.accumulators)
        kinds = " and ".join(PLURAL.get(monoid, monoid) for monoid in monoids)
        merged = f"{self.last.name} merges by the law {reduction_in_parts.name}"
        return f"{over} shared out over programs, whose states, {kinds}, {merged}"


def chunk_count(
    programs: int, tiles: int, multiprocessors: int, busy: float = 1.0, residents: int = PROGRAMS_PER_MULTIPROCESSOR
) -> int:
    """How many chunks of a loop fill the device; 1 if its programs fill it, or if the loop has few tiles.

    programs: of the kernel without chunks. tiles: of the loop. busy: the share of multiprocessors that is enough.
    residents: programs that are on a multiprocessor at once. Example, on one H200: for 4 sequences of 1000 keys, one
    query and 8 heads of D 128, four chunks take 15.7 us where one takes 23.7.
    """
    if programs > busy * multiprocessors or tiles < MIN_TILES_OF_A_SPLIT_LOOP:
        return 1
    wanted = residents * multiprocessors // max(programs, 1)
    return max(1, min(wanted, tiles // MIN_TILES_OF_A_CHUNK))


def wanted_chunks(
    kernel: Kernel, config: TritonConfig, sizes: Mapping[str, int], multiprocessors: int, busy: float
) -> int:
    """How many chunks a kernel's loops have with this configuration; see `chunk_count`. Raises UnknownSize.

    A loop whose length data decides is always shared out: one sequence of 65536 keys among short ones would else run by
    itself on one program, while the others are done.
    """
    length = max((resolve(loop.dim.size, sizes) for loop in kernel.loops), default=0)
    programs = program_count(kernel, config.row_tile, config.loop_tile, sizes)
    residents, places = _residents(kernel, config, sizes), multiprocessors * max(1, WARPS_OF_A_PROGRAM // config.warps)
    tiles = -(-length // config.loop_tile) if length >= MIN_COLUMNS_OF_A_SPLIT_LOOP else 1
    count = chunk_count(programs, tiles, places, busy, residents)
    uneven = _has_few_rows(kernel, sizes) and any(loop.length_is_data for loop in kernel.loops)
    if uneven and programs <= MAX_WAVES_OF_UNEVEN_PROGRAMS * multiprocessors:
        return max(count, min(length // COLUMNS_OF_AN_UNEVEN_CHUNK, MAX_UNEVEN_CHUNKS))
    return count


def piece_count(kernel: Kernel, piece: int, sizes: Mapping[str, int]) -> int:
    """How many pieces of so many coordinates a kernel's loops have; 1 where a loop is inside of another, since such
    a loop's states are of all indices of that one. Raises UnknownSize."""
    if any(loop.outer for loop in kernel.loops):
        return 1
    return max((-(-resolve(loop.dim.size, sizes) // piece) for loop in kernel.loops), default=1)


def _residents(kernel: Kernel, config: TritonConfig, sizes: Mapping[str, int]) -> int:
    """Programs that are on a multiprocessor at once: one, where accumulators fill half of the registers.

    Example: 64 rows of 512 values; measured on one H100, two parts of 2048 keys take 0.91 of the time of four. Of few
    rows, for which reading is all the work, one, too, where a program stores as much as a step reads. Example: 16 rows
    of 512 values; four parts of 1024 keys take 0.97 of the time of eight.
    """
    carried = max((prod(resolve(d.size, sizes) for d in dims) for dims in carried_dims(kernel)), default=0)
    limit = H200.registers // (8 if _has_few_rows(kernel, sizes) else 2)
    return 1 if config.row_tile * carried >= limit else PROGRAMS_PER_MULTIPROCESSOR


def _has_few_rows(kernel: Kernel, sizes: Mapping[str, int]) -> bool:
    return kernel.rows is None or resolve(kernel.rows.size, sizes) <= MIN_ROWS_OF_A_PRODUCT


def program_count(kernel: Kernel, row_tile: int, loop_tile: int, sizes: Mapping[str, int]) -> int:
    """Programs of a launch. Raises UnknownSize."""
    rows = -(-resolve(kernel.rows.size, sizes) // row_tile) if kernel.rows else 1
    columns = prod(-(-resolve(d.size, sizes) // loop_tile) for d in kernel.columns)
    return rows * columns * prod(resolve(d.size, sizes) for d in kernel.grid)


def enough_programs(kernel: Kernel, sizes: Mapping[str, int]) -> float:
    """The part of a device that a kernel's programs may fill and not be shared out over more."""
    return 1.0 if _has_few_rows(kernel, sizes) else 0.5  # with many rows programs compute more than they read


def describe_split(kernel: Kernel) -> str:
    """How the kernel is split, for the report; empty where it has programs for a large device at any size."""
    rows = None if kernel.rows is None else kernel.rows.size
    row_tiles = [-(-rows // ROWS_OF_A_TILE)] if isinstance(rows, int) else []
    programs = prod(n for n in (*(d.size for d in kernel.grid), *row_tiles) if isinstance(n, int))
    if programs > MAX_MULTIPROCESSORS or not any(_may_be_long(loop.dim) for loop in kernel.loops):
        return ""
    found = split_kernel(kernel)
    return "" if found is None else f"where programs are fewer than multiprocessors: {found}"


def _may_be_long(dim: Dim) -> bool:
    return not isinstance(dim.size, int) or dim.size >= MIN_TILES_OF_A_SPLIT_LOOP * ROWS_OF_A_TILE


@lru_cache(maxsize=512)
def split_kernel(kernel: Kernel) -> SplitKernel | None:
    """The two kernels; None where a loop needs what another one has finished, or there is none."""
    if not _can_be_split(kernel):
        return None
    names = {str(d) for d in _dims(kernel)}
    chunk = Dim(next(n for k in range(len(names) + 1) if (n := f"part{k or ''}") not in names), f"{kernel.name}_parts")
    stores, known = _stored_states(kernel, chunk)
    loops = tuple(replace(loop, map=None, part=chunk) for loop in kernel.loops)
    first = replace(kernel, name=f"{kernel.name}_parts", grid=(*kernel.grid, chunk), loops=loops, stores=stores)
    return SplitKernel(first, _merge(kernel, chunk, known), chunk)


@lru_cache(maxsize=512)
def split_to_run(kernel: Kernel) -> SplitKernel | None:
    """The two kernels, if they are read back as the kernel that they are made of."""
    found = split_kernel(kernel)
    if found and (reason := differs(_alone(kernel, found.first, found.last), _alone(kernel, kernel))):
        log.info("onepass: loops of %s are not shared out over programs: %s", kernel.name, reason)
        return None
    return found


def _alone(kernel: Kernel, *kernels: Kernel) -> Plan:
    """A plan of nothing but kernels that compute what one does."""
    return Plan(kernels, kernel.inputs, tuple(store.output for store in kernel.stores))


def _can_be_split(kernel: Kernel) -> bool:
    """Whether its loops go through tiles, store nothing themselves, and need nothing that one of them finishes."""
    every = states_of(kernel)
    needed = {t for loop in kernel.loops for body in _bodies(loop) for t in subterms(body)}
    apart = all(loop.tile and not kernel.written_by(loop) for loop in kernel.loops)
    return bool(every) and apart and every.isdisjoint(needed)


def _bodies(loop: Loop) -> list[Term]:
    found = [b for a in loop.accumulators for b in (a.gauge, *a.values) if b is not None]
    return [*found, *([] if loop.guard is None else [loop.guard]), *(limit.bound for limit in loop.limits)]


def _dims(kernel: Kernel) -> list[Dim]:
    terms = [*(s.term for s in kernel.stores), *(b for loop in kernel.loops for b in _bodies(loop))]
    return [*kernel.grid, *kernel.tiled, *(d for t in terms for d in all_dims(t))]


def _stored_states(kernel: Kernel, chunk: Dim) -> tuple[tuple[Store, ...], dict[Term, Term]]:
    """What the chunks store, and what becomes of each finished value: the reduction in parts, which reads these.

    The program of a chunk finds a part where the kernel has the whole, so what it stores is written by the whole. The
    chunk is the first axis, so no stride depends on the number of chunks.
    """
    stores: dict[Term, Store] = {}
    known: dict[Term, Term] = {}
    outer = (chunk, *kernel.grid, *kernel.tiled)
    double = any(t.dtype == "float64" for store in kernel.stores for t in subterms(store.term))
    count = "float64" if double else "float32"  # a literal's sum takes the type of what it meets

    def stored(value: Term, dims: frozenset[Dim]) -> Term:
        if value not in stores:
            order = (*outer, *(d for d in kernel.held if d in dims))
            kind = "float32" if value.dtype in HALVES else count if value.dtype == "float" else value.dtype
            name = f"{kernel.name}_state{len(stores)}"
            stores[value] = Store(value, Tensor(name, kind, tuple(d.size for d in order)), order)
        found = stores[value]
        return load(found.output, *map(iota, found.order))

    for loop, accumulator in [(one, a) for one in kernel.loops for a in one.accumulators]:
        kind, top = accumulator.reductions[0].dtype.removeprefix(PAIR), accumulator.reductions[0]
        for r in accumulator.reductions:
            whole = applied(reduction_in_parts, r, {"c": part_index(loop), "dim p": chunk})
            (part,) = whole.args
            if accumulator.gauge is None:
                known[r] = _as(kind, substitute(whole, {part: stored(r, r.dims)}))
                continue
            numbers = applied(states_by_their_numbers, whole).args[0].args
            found = [substitute(number, {part: r, scale(part): scale(top)}) for number in numbers]
            state = rescaled_sum(chunk, *map(stored, found, (accumulator.gauge.dims, r.dims)))
            known |= {scale(r): _as(kind, scale(state)), mantissa(r): _as(kind, mantissa(state))}
    return tuple(stores.values()), known


def _as(kind: str, value: Term) -> Term:
    return cast(value, kind) if kind in HALVES else value


def _merge(kernel: Kernel, chunk: Dim, known: dict[Term, Term]) -> Kernel:
    """The kernel's results from the chunks' states, for one row at a time: there are few."""
    stores = tuple(replace(store, term=substitute(store.term, known)) for store in kernel.stores)
    used = {d for store in stores for d in (*all_dims(store.term), *store.order)}
    return Kernel(
        name=kernel.name + MERGED,
        grid=(*kernel.grid, *kernel.tiled),
        rows=None,
        row_tile="",
        held=tuple(d for d in kernel.held if d in used),
        loops=(Loop(chunk, f"{chunk}_tile", _merged_states(stores, chunk)),),
        stores=stores,
        inputs=read_by(stores),
        exact=frozenset(substitute(r, known) for r in kernel.exact),
    )


def _merged_states(stores: Sequence[Store], chunk: Dim) -> tuple[Accumulator, ...]:
    """The accumulators of all reductions along the chunks; rescaled ones with the same gauge share one."""
    nodes = dict.fromkeys(t for store in stores for t in subterms(store.term))
    groups: dict[Term, list[Term]] = {}
    for node in nodes:
        if node.op == "reduce" and node.attrs[1] == chunk:
            groups.setdefault(node.args[0].args[0] if node.attrs[0] == "rescaled" else node, []).append(node)
    return tuple(_merged_state(f"merged{n}", key, found) for n, (key, found) in enumerate(groups.items()))


def _merged_state(name: str, key: Term, reductions: list[Term]) -> Accumulator:
    """key: the gauge of rescaled reductions, else the one reduction itself."""
    monoid, bodies = reductions[0].attrs[0], [r.args[0] for r in reductions]
    if monoid != "rescaled":
        return Accumulator(name, monoid, None, tuple(bodies), tuple(reductions))
    return Accumulator(name, monoid, key, tuple(body.args[1] for body in bodies), tuple(reductions))


def with_split_kernels(plan: Plan) -> Plan:
    """The plan with every kernel split that can be; sizes give the numbers of chunks."""
    found = [(kernel, split_kernel(kernel)) for kernel in plan.kernels]
    return replace(plan, kernels=tuple(k for own, s in found for k in ((own,) if s is None else (s.first, s.last))))


def chunk_sizes(plan: Plan, count: int) -> Mapping[str, int]:
    """Sizes of a plan with split kernels that give every loop as many chunks."""
    return {str(s.chunk.size): count for kernel in plan.kernels if (s := split_kernel(kernel)) is not None}
