"""A kernel of a Plan as readable Triton source: signature, coordinates, loops split by tile class, store.

The text depends on the kernel and on Facts (which dims are even), not on tile sizes: those are constexpr parameters
named by the plan. No case here knows what the kernel computes.
"""

from __future__ import annotations

from dataclasses import replace

from ...egraph.terms.ops import iota
from ...egraph.terms.printing import show
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from ..analysis.data_indices import all_place_conditions, loads_by_data
from ..analysis.dim_roles import Compared, compared
from ..codegen.dialect import TRITON
from ..codegen.ops import FOLDS, Names, TileValue, decay_text, helpers, identity, remarks, wrapped
from ..codegen.products import contract
from ..codegen.relative_products import is_not_finite
from ..codegen.signature import Signature, Source
from ..codegen.tile_writer import TileWriter
from ..codegen.tiles import Scope, Skewing
from ..masks.loop_ranges import conjuncts, why_apart
from ..plan.dtypes import is_integer
from ..plan.launch_facts import Facts
from ..plan.queries import map_name, roots
from ..plan.records import Accumulator, Kernel, Loop, NotPlannable, Plan, Store
from .column_halves import ColumnHalves
from .default_config import carried_elements, widest
from .diagonal_sums import slots_name, write_slot
from .loops import RangeWriter, Segment, by_columns
from .piece_states import PieceStates
from .walks import dim_of, walked

ADDED = ("sum", "rescaled")
# From so many columns of an accumulator on (by the bytes of an element), a loop has one body, which tests every tile: a
# second body without tests does not fit into registers. One body takes 0.83 of the time of two with 512 columns in half
# precision. With 128 in float32 it takes 0.54 for full attention of 2,000 rows, 0.98 to 1.02 for causal and windows.
MIN_COLUMNS_OF_ONE_BODY = {2: 512, 4: 128}
MANY_PLACES = 2**30  # more than a compared dim has
IMPORTS = "import triton\nimport triton.language as tl\n\n\n"


def emit(kernel: Kernel, plan: Plan, facts: Facts = Facts()) -> Source:  # noqa: B008
    """The kernel's Triton source. Raises NotPlannable for what has no Triton form."""
    return TritonKernelWriter(kernel, facts, Skewing()).source(plan)


class TritonKernelWriter:
    """Writes one kernel. skewing.exact: its loops run column by column (codegen/relative_products.py)."""

    imports = IMPORTS

    def __init__(self, kernel: Kernel, facts: Facts, skewing: Skewing):
        self.signature, self.first = Signature(Names()), ""
        if facts.walk is not None:
            self.first = self.signature.names.fresh(f"{facts.walk[0]}_first")
            kernel = walked(kernel, facts.walk, self.first)
        self.kernel, self.facts = kernel, facts
        self.sums: list = []
        self.halves: dict[Loop, ColumnHalves] = {}
        self.signature.scalars |= {self.first: self.first} if self.first else {}
        self.tiles = TileWriter(kernel, facts, roots(kernel), self.signature, TRITON)
        self.lines, self.tiles.skewing = self.tiles.outer.lines, skewing
        fresh = self.tiles.names.fresh
        self.function = fresh(f"{kernel.name}_exactly" if skewing.exact else kernel.name)
        symbols = {block: fresh(block) for block in dict.fromkeys(self.tiles.blocks.values())}
        self.blocks = {dim: symbols[block] for dim, block in self.tiles.blocks.items()}
        self.tiles.blocks = dict(self.blocks)
        if skewing.exact:
            skewing.tiles = {loop.dim: self.blocks[loop.dim] for loop in kernel.loops}
            self.tiles.blocks |= dict.fromkeys(skewing.tiles, "1")
        self._declare()
        if facts.walk is not None:
            dim = dim_of(kernel, facts.walk)
            self.tiles.open_around({dim: fresh(str(dim))})
            self.tiles.walks = True

    @property
    def body(self) -> Scope:
        """What a program does, or a program that walks for each of its indices."""
        return self.tiles.middle if self.facts.walk else self.tiles.outer

    def _declare(self) -> None:
        """The arguments: block maps, pointers, strides, sizes of dims, and sizes that terms name."""
        kernel, signature = self.kernel, self.signature
        for loop in kernel.loops:
            if loop.map not in (None, *self.tiles.maps) and map_name(kernel, loop) in self.facts.mapped:
                self.tiles.maps[loop.map] = signature.declare_map(f"{loop.dim}_map", map_name(kernel, loop))
        self._declare_slots()
        written = (store.output for store in kernel.stores if not store.places)
        tensors = list(dict.fromkeys([*kernel.inputs, *written]))
        for tensor in tensors:
            signature.declare_tensor(tensor)
        for tensor in tensors:
            signature.declare_strides(tensor)
        loops = (dim for loop in kernel.loops for dim in (*loop.outer, loop.dim))
        signature.declare_sizes([*kernel.grid, *self.tiles.rows, *loops, *self.tiles.chunked])
        limits = [limit.bound for loop in kernel.loops for limit in loop.limits]
        read = [*roots(kernel), *limits, *all_place_conditions(kernel)]
        signature.declare_symbols(dict.fromkeys(n for root in read for n in subterms(root)))

    def _declare_slots(self) -> None:
        added = (store for store in self.kernel.stores if store.places)
        self.slots = {s: self.signature.declare_map(f"{s.output.name}_slots", slots_name(s)) for s in added}

    # Assembly

    def source(self, plan: Plan) -> Source:
        roles = tuple((name, "row_tile" if d == self.kernel.rows else "loop_tile") for d, name in self.blocks.items())
        tiles = tuple(dict.fromkeys(roles))
        text = self._text(tiles)
        text, doubtful = self._header(plan) + self.imports + helpers(text, TRITON) + text, self.tiles.skewing.used
        held = dict(self.tiles.resident)
        return Source(text, self.function, tuple(self.signature.arguments), tiles, doubtful, held)

    def _text(self, tiles: tuple[tuple[str, str], ...]) -> str:
        """The function. If it skews weights, the function that does not stands before it."""
        self._coordinates()
        for loop in self.kernel.loops:
            self._loop(loop)
        ends = self.tiles.assertions()
        self.lines += [] if self.facts.walk else ends
        first = len(self.lines)
        for store in self.kernel.written_by(None):
            self._store(store, self.body.lines)
        if self.facts.walk is not None:
            self.lines += [*self._walk(dim_of(self.kernel, self.facts.walk), self.facts.walk[1]), *ends]
        before = self._or_exactly(tiles, first) + "\n\n" if self.tiles.skewing.used else ""
        unspecialised = [a.name for a in self.signature.arguments if a.size is not None]
        parameters = [a.name for a in self.signature.arguments] + [f"{name}: tl.constexpr" for name, _ in tiles]
        signature = wrapped(", ".join(parameters))
        body = "\n".join(f"    {line}" if line else "" for line in self.lines)
        decorator = f"@triton.jit(do_not_specialize={unspecialised})"
        return f"{before}{decorator}\ndef {self.function}(\n{signature},\n):\n{body}\n"

    def _walk(self, dim: Dim, apart: int) -> list[str]:
        """The loop over the indices of a program that walks."""
        if self.tiles.skewing.used:
            raise NotPlannable("what may run once more has a program for each index")
        head = f"for {self.tiles.starts[dim]} in tl.range({self.first}, {self.tiles.sizes[dim]}, {apart}):"
        return [head, *(f"    {line}" for line in self.tiles.middle.lines)]

    def _or_exactly(self, tiles: tuple[tuple[str, str], ...], first: int) -> str:
        """The function that runs once more with one column at a time, instead of the lines from `first`."""
        exact = TritonKernelWriter(self.kernel, replace(self.facts, mapped=frozenset()), Skewing(exact=True))
        text = exact._text(tiles)
        names = {replace(a, name=""): a.name for a in self.signature.arguments}
        given = [names[replace(a, name="")] for a in exact.signature.arguments]
        given += [name for name, _ in tiles]
        call = wrapped(f"{exact.function}({', '.join(given)})").splitlines()
        test, otherwise = is_not_finite(self.tiles, self.sums), [f"    {line}" for line in self.lines[first:]]
        self.lines[first:] = [f"if {test}:", *call, "else:", *otherwise]
        return text

    def _header(self, plan: Plan) -> str:
        kernel = self.kernel
        rows = " and ".join(map(str, self.tiles.rows)) or "None"
        where = f"{', '.join(map(str, kernel.grid)) or 'nothing'}; rows {rows}; loops "
        where += ", ".join(loop.over for loop in kernel.loops) or "none"
        stored = [(s.output.name, ", ".join(map(str, s.order)), show(s.term)) for s in kernel.stores]
        facts = [f"{kernel.name}: {name}[{order}] = {text}" for name, order, text in stored]
        facts += [f"Programs over {where}; held {', '.join(map(str, kernel.held)) or 'nothing'}."]
        facts += [f"Guard over {one.dim}: {show(one.guard)}" for one in kernel.loops if one.guard is not None]
        facts += [f"Derived by: {', '.join(plan.derivation)}"] if plan.derivation else []
        return remarks(facts)

    def _coordinates(self) -> None:
        """Row tiles vary fastest, so that neighbours read the same loop tiles; the rows with most work come first."""
        tiles, kernel, fresh = self.tiles, self.kernel, self.tiles.names.fresh
        rest = fresh("program")
        self.lines.append(f"{rest} = tl.program_id(0)")
        for dim in tiles.rows:
            count, start, block = fresh(f"{dim}_tiles"), fresh(f"{dim}_start"), self.blocks[dim]
            self.lines.append(f"{count} = tl.cdiv({tiles.sizes[dim]}, {block})")
            tile = f"({count} - 1 - {rest} % {count})" if self._heavy_last() else f"({rest} % {count})"
            self.lines += [f"{start} = {tile} * {block}", f"{rest} = {rest} // {count}"]
            tiles.starts[dim] = start
        for position, dim in enumerate(reversed(kernel.grid)):
            walks = self.facts.walk is not None and dim in tiles.around
            name, count = (self.first, str(self.facts.walk[1])) if walks else (fresh(str(dim)), tiles.sizes[dim])
            last = position == len(kernel.grid) - 1
            self.lines.append(f"{name} = {rest}" if last else f"{name} = {rest} % {count}")
            self.lines += [] if last else [f"{rest} = {rest} // {count}"]
            tiles.starts |= {} if walks else {dim: name}

    def _heavy_last(self) -> bool:
        uppers = [limit.rising for loop in self.kernel.loops for limit in loop.uppers]
        lowers = [limit.rising for loop in self.kernel.loops for limit in loop.lowers]
        return any(uppers) and not any(lowers)

    def _store(self, store: Store, lines: list[str]) -> None:
        tiles, order = self.tiles, store.order
        if store.places:
            lines += write_slot(tiles, store, self.slots[store])
            return
        dims = tiles.sort(order)
        value = tiles.spread(tiles.value(store.term), dims)
        with tiles.writing(order):
            pointer = tiles.address(store.output, tuple(iota(d) for d in order), dims)
        mask = tiles.conjunction(*(tiles.padding(d) for d in dims))
        guard = f", mask={tiles.align(mask, dims)}" if mask else ""
        lines.append(f"tl.store({pointer}, {value.text}{guard})")

    # Loops

    def _loop(self, loop: Loop) -> None:
        halves = self.halves[loop] = ColumnHalves.of(self.tiles, loop)
        names = [self._start(state, loop) for state in self._states(loop)]
        pieces = self._pieces(loop, names)
        if not self.facts.walk:
            self.tiles.open_around({dim: self.tiles.names.fresh(str(dim)) for dim in loop.single})
        if not loop.tile:
            self._by_indices(loop, names)
            return
        ranges = RangeWriter(self.tiles, loop)
        body: list[str] = [] if loop.outer else self.body.lines
        for segment in self._segments(ranges):
            body += self._segment(segment, ranges, names, pieces)
        names = self._join_last(loop, pieces, body, names)
        if loop.outer:
            self.lines += self._around(loop, [*self.tiles.close_around(), *body], self._points(loop))
        added = zip(self._states(loop), names, strict=True)
        sums = [c for state, found in added if state.monoid in ADDED for c in found[state.gauge is not None :]]
        self.sums += [c for c in sums if c.dims and not is_integer(c.dtype)]
        for number, (state, components) in enumerate(zip(loop.accumulators, names, strict=True)):
            self._finish(state, halves.joined(self.tiles, number, components))

    def _states(self, loop: Loop) -> tuple[Accumulator, ...]:
        """The loop's accumulators as they are written."""
        return self.halves[loop].loop.accumulators

    def _segments(self, ranges: RangeWriter) -> list[Segment]:
        """The runs of a loop's tiles."""
        if self.tiles.skewing.exact:
            return by_columns(ranges.segments(), self.tiles.tile_of(ranges.dim))
        _, size = widest(self.kernel)
        return ranges.segments(carried_elements(self.kernel) >= MIN_COLUMNS_OF_ONE_BODY[min(size, 4)])

    def _pieces(self, loop: Loop, names: list[list[TileValue]]) -> PieceStates | None:
        """The totals of a loop that is read in pieces; None for one that has one piece, or none."""
        if not self.facts.piece or loop.part is not None or not loop.tile:
            return None
        return PieceStates(self.tiles, self.halves[loop].loop, names, lambda state: self._components(state, loop))

    def _join_last(
        self, loop: Loop, pieces: PieceStates | None, body: list[str], names: list[list[TileValue]]
    ) -> list[list[TileValue]]:
        """The totals, to which lines behind the loop join its last piece; where it has no pieces, its own states."""
        if pieces is None:
            return names
        body += pieces.ended() if loop.outer else pieces.joined()
        return pieces.totals

    def _by_indices(self, loop: Loop, names: list[list[TileValue]]) -> None:
        """A loop without tiles: each round adds what one index has for the rows and columns."""
        tiles, count = self.tiles, self._points(loop)
        with tiles.writing(loop.guard.dims if loop.guard is not None else ()):
            guard = tiles.value(loop.guard) if loop.guard is not None else None
        if guard is not None and loop.guard.dims.isdisjoint(loop.single):  # no round where no pair is kept
            count = f"tl.where(tl.max(tl.where({guard.text}, 1, 0)) > 0, {count}, 0)"
        with tiles.writing(loop.single):
            for state, (total,) in zip(loop.accumulators, names, strict=True):
                value = tiles.value(state.values[0])
                value = value if guard is None else tiles.where(guard, value, "0.0")
                tiles.middle.lines.append(f"{total.text} = {total.text} + {tiles.align(value, total.dims)}")
        self.lines += self._around(loop, tiles.close_around(), count)
        for state, components in zip(loop.accumulators, names, strict=True):
            self._finish(state, components)

    def _points(self, loop: Loop) -> str:
        """The number of all indices of the dims that the loop goes through by single ones."""
        return " * ".join(self.tiles.sizes[dim] for dim in loop.single)

    def _around(self, loop: Loop, body: list[str], count: str) -> list[str]:
        """The body for each index of the dims that the loop goes through by single ones; one variable counts them."""
        tiles = self.tiles
        first, *others = (tiles.starts[dim] for dim in loop.single)
        if not others:
            return [f"for {first} in tl.range(0, {count}):", *(f"    {line}" for line in body)]
        rest, lines = tiles.names.fresh("point"), []
        counter = rest
        for dim in reversed(loop.single[1:]):
            lines.append(f"{tiles.starts[dim]} = {rest} % {tiles.sizes[dim]}")
            rest = f"({rest} // {tiles.sizes[dim]})"
        lines.append(f"{first} = {rest}")
        return [f"for {counter} in tl.range(0, {count}):", *(f"    {line}" for line in (*lines, *body))]

    def _open(self, segment: Segment, loop: Loop) -> tuple[str, str]:
        """Begins the body of a run; (where its tile begins, what counts the tiles)."""
        start = self.tiles.names.fresh(f"{loop.dim}_start")
        self.tiles.open(loop.dim, start, segment.ragged)
        counter = self.tiles.names.fresh("n") if segment.start else start
        self.tiles.inner.lines += [f"{start} = {segment.start.format(n=counter)}"] if segment.start else []
        self.tiles.inner.lines += [segment.following.format(n=counter)] if segment.following else []
        if self.facts.walk is not None:
            self.lines += [f"{counter} = {segment.low}"]  # of the one tile of all rounds
            self.tiles.keeping = self.tiles.around & (loop.guard.dims if loop.guard is not None else frozenset())
        return start, counter

    def _segment(
        self, segment: Segment, ranges: RangeWriter, names: list[list[TileValue]], pieces: PieceStates | None
    ) -> list[str]:
        """The lines of one run of the loop's tiles."""
        loop = ranges.loop
        start, counter = self._open(segment, loop)
        self.tiles.inner.lines += pieces.crossing(start) if pieces is not None else []
        by_data = segment.guarded and bool(loads_by_data(self.kernel, loop))
        self.tiles.demands, self.tiles.doubtful = not by_data, by_data  # a guard's parts may keep what others drop
        guard = self._guard(loop) if segment.guarded else None
        self.tiles.readable = self._kept(loop) if segment.guarded and not loop.finite_mask else None
        if by_data:
            self._doubt(ranges, guard)
        guards = loop.guard.dims if loop.guard is not None else frozenset()
        for state, components in zip(self._states(loop), names, strict=True):
            with self.tiles.writing(guards.union(*(one.dims for one in (*state.values, *filter(None, [state.gauge]))))):
                self._step(state, components, loop, guard)
        for store in self.kernel.written_by(loop):
            self._store(store, self.tiles.inner.lines)
        return self._for_each_tile(segment, counter, self.tiles.close())

    def _for_each_tile(self, segment: Segment, counter: str, body: list[str]) -> list[str]:
        """The body in a loop over the run's tiles; as it is where there is exactly one."""
        if segment.once:
            return body if self.facts.walk else [f"{counter} = {segment.low}", *body]
        options = ", disable_licm=True" * self.tiles.skewing.exact  # the loops before need the registers
        options += ", num_stages=1" * segment.single  # no other tile follows, whose loads could begin
        head = f"for {counter} in tl.range({segment.low}, {segment.high}, {segment.step}{options}):"
        return [head, *(f"    {line}" for line in body)]

    def _guard(self, loop: Loop) -> TileValue | None:
        """The guard of a tile, but for what is compared place by place."""
        found = compared(self.kernel, loop)
        parts = [c for c in conjuncts(loop.guard) if found is None or found.places not in c.dims]
        return self.tiles.conjunction(*map(self.tiles.value, parts))

    def _kept(self, loop: Loop) -> TileValue | None:
        """The guard's conditions on the loop's coordinate alone. Elements that no row keeps are not read."""
        return self.tiles.conjunction(*map(self.tiles.value, self._conditions_on_the_loop(loop)))

    def _conditions_on_the_loop(self, loop: Loop) -> list[Term]:
        apart = {*self.tiles.rows, *self.tiles.resident}
        return [c for c in conjuncts(loop.guard) if loop.dim in c.dims and not c.dims & apart]

    def _doubt(self, ranges: RangeWriter, guard: TileValue | None) -> None:
        """Notes that elements may be read that the guard drops, and which of them its limits keep."""
        loop, tiles = ranges.loop, self.tiles
        conditions = [] if loop.finite_mask else self._conditions_on_the_loop(loop)
        tiles.doubtful = len(conditions) < len(conjuncts(loop.guard)) or bool(tiles.keeping)
        tiles.reached = ranges.reached() if tiles.doubtful else None
        tiles.kept, tiles.demands = lambda: guard, compared(self.kernel, loop) is None
        first = loop.ranges[0]
        alone = len(loop.ranges) == 1 and first.exact
        joined = alone and why_apart(first.uppers, first.lowers, self.kernel.rows, loop.dim) is None
        tiles.kept_columns = tiles.reached if joined else None

    # Accumulators: the components of a rescaled one are its scale, then its mantissas

    def _start(self, state: Accumulator, loop: Loop) -> list[TileValue]:
        assign = lambda hint, value: self.tiles.assign(hint, value, self.body) if hint else value
        return [assign(*component) for component in self._components(state, loop)]

    def _components(self, state: Accumulator, loop: Loop) -> list[tuple[str, TileValue]]:
        """The components' names and first values; one that is added to another's total has no name."""
        guard = loop.guard.dims if loop.guard is not None else frozenset()
        shared = guard | (state.gauge.dims if state.gauge is not None else frozenset())
        rescaled = state.gauge is not None
        single = "float64" if self.tiles.is_double(state.reductions[0].dtype) else "float32"
        components = [self._initial(f"{state.name}_scale", shared - {loop.dim}, "max", single)] if rescaled else []
        for position, value in enumerate(state.values):
            if state.totals[position] != position:
                components.append(("", TileValue("0.0")))
                continue
            name = f"{state.name}_{position}" if len(state.values) > 1 else state.name
            dtype = single if rescaled or value.dtype in ("float", "float16", "bfloat16") else value.dtype
            monoid = "sum" if rescaled else state.monoid
            components.append(self._initial(name, (shared | value.dims) - {loop.dim}, monoid, dtype))
        return components

    def _initial(self, name: str, dims, monoid: str, dtype: str) -> tuple[str, TileValue]:
        dims = self.tiles.sort(dims)
        text = f"tl.full({self.tiles.shape(dims)}, {identity(monoid, dtype)}, {TRITON.type_name(dtype)})"
        return name, TileValue(text, dims, dtype)

    def _step(self, state: Accumulator, components: list[TileValue], loop: Loop, guard: TileValue | None) -> None:
        tiles, dim = self.tiles, loop.dim
        if found := compared(self.kernel, loop):
            self._compared_step(state, components[0], dim, guard, found)
            return
        if state.gauge is None:
            self._plain_step(state, components[0], dim, guard)
            return
        before, *mantissas = components
        near, guard = (guard, None) if loop.finite_mask else (None, guard)
        present = tiles.conjunction(guard, tiles.padding(dim))
        scaling = tiles.scaling_of(state.gauge, state.reductions)
        scale, shift, weight = tiles.weights(scaling, dim, present, before, near)
        factor = TileValue(f"tl.exp2({decay_text(scaling, before.text, shift.text, TRITON)})", before.dims)
        decay = tiles.assign("decay", factor, tiles.inner)
        for n, (value, reduction) in enumerate(zip(state.values, state.reductions, strict=True)):
            mantissa = mantissas[state.totals[n]]
            into = TileValue(f"{mantissa.text} * {tiles.align(decay, mantissa.dims)}", mantissa.dims)
            into = into if state.totals[n] == n else mantissa
            result = contract(tiles, reduction, value, weight, into)
            tiles.inner.lines.append(f"{mantissa.text} = {result.text}")
        tiles.inner.lines.append(f"{before.text} = {scale.text}")

    def _plain_step(self, state: Accumulator, total: TileValue, dim: Dim, guard: TileValue | None) -> None:
        tiles, body = self.tiles, state.values[0]
        if state.monoid == "sum" and not is_integer(body.dtype):
            text = contract(tiles, state.reductions[0], body, None, total, guard).text
        else:
            folded = tiles.fold(state.monoid, dim, body, tiles.conjunction(guard, tiles.padding(dim)))
            text = TRITON.fill(FOLDS[state.monoid].combine, total.text, tiles.align(folded, total.dims))
        tiles.inner.lines.append(f"{total.text} = {text}")

    def _compared_step(
        self, state: Accumulator, total: TileValue, dim: Dim, guard: TileValue | None, found: Compared
    ) -> None:
        """Adds to the total, place by place, the elements of the tile whose index it is."""
        tiles, lines = self.tiles, self.tiles.inner.lines
        dims = tiles.sort((*(d for d in total.dims if d != found.places), dim))
        value, present = tiles.spread(tiles.value(state.values[0]), dims), tiles.conjunction(guard, tiles.padding(dim))
        value = value if present is None else tiles.where(present, value, "0.0")
        type_ = tiles.type_name("float64" if tiles.is_double(value.dtype) else "float32")
        value = tiles.assign("value", TileValue(f"({value.text}).to({type_})", dims), tiles.inner)
        index, place = self._index(found, value), tiles.names.fresh(str(found.places))
        text = TRITON.fill(FOLDS["sum"].tile, f"tl.where({index} == {place}, {value.text}, 0.0)", axis=dims.index(dim))
        part = tiles.assign("part", TileValue(text, tuple(d for d in dims if d != dim)), Scope(inside := []))
        here = TileValue(f"({tiles.range_of(found.places).text} == {place})", (found.places,), "bool")
        added = f"{total.text} + {tiles.align(part, total.dims)}"
        inside.append(f"{total.text} = tl.where({tiles.align(here, total.dims)}, {added}, {total.text})")
        lines += [f"for {place} in tl.range(0, {found.places.size}):", *(f"    {line}" for line in inside)]

    def _index(self, found: Compared, value: TileValue) -> str:
        """The name of each element's index, in 32 bits; an index that is none of the places stays none of them.

        Both branches of its last `tl.where` are the same number, but the compiler cannot know that. Since the condition
        reads the value, the index gets the value's layout, once. Without it, Triton converts the result of the
        comparison with each place.
        """
        tiles, places = self.tiles, found.places.size
        text = f"tl.maximum(tl.minimum({tiles.value(found.index).text}, {places}), -1).to(tl.int32)"
        index = tiles.assign("index", TileValue(text, value.dims, "int32"), tiles.inner).text
        same = f"tl.where({value.text} == {value.text}, {index}, tl.minimum({index}, {MANY_PLACES}))"
        return tiles.assign("index", TileValue(same, value.dims, "int32"), tiles.inner).text

    def _finish(self, state: Accumulator, components: list[TileValue]) -> None:
        memo = self.body.memo
        if state.gauge is None:
            for reduction in state.reductions:
                memo[reduction] = components[0]
            return
        scale, *mantissas = components
        scaling = self.tiles.scaling_of(state.gauge, state.reductions)
        for reduction, mantissa in zip(state.reductions, mantissas, strict=True):
            memo["state", reduction] = (scale, mantissa, scaling)
