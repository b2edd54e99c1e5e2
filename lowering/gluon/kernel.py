"""A bound kernel and a config as Gluon source: one producer warp, consumer warpgroups, rings between them.

The producer copies tiles of rows and of the loop into shared memory. A consumer issues the next score products together
with the last value products and runs the pointwise code under the latter (consumer.py writes the steps of a tile).
Invariant: a ring's slot is handed back only after a wait that covers its last reader.
Example: two consumers share each tile of keys; each has 64 rows of queries of its own.
"""

from __future__ import annotations

from dataclasses import replace

from ...egraph.terms.ops import const, iota
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ..analysis.data_indices import blocks_of_tiles
from ..codegen.ops import TileValue
from ..hopper.config import HopperConfig
from ..hopper.kernel_form import PRODUCT_BYTES, Binding, Operand, chunks
from ..hopper.shared_size import bytes_of, row_vectors
from ..plan.device import H200
from ..plan.queries import roots
from ..plan.records import Plan
from .assembly import KernelAssembly
from .consumer import Consumer
from .expressions import MAX_PRODUCERS, GluonWriter, gathered_layout
from .kernel_parts import Buffers, GluonSource, Handed, LaunchShape, Ring, TensorMap
from .value_warpgroup import ValueWarpgroup
from .work_items import Walk


def emit(binding: Binding, plan: Plan, config: HopperConfig, shape: LaunchShape) -> GluonSource:
    """The kernel's Gluon source. Raises NotPlannable for what has no such form."""
    bound = binding if shape.packed is None else shape.packed.bound(binding)
    return GluonKernelWriter(bound, config, shape).source(plan)


class GluonKernelWriter(KernelAssembly[Binding, HopperConfig]):
    """Writes one kernel: the producer, the consumer, and the function that allocates what they share."""

    def __init__(self, binding: Binding, config: HopperConfig, shape: LaunchShape):
        super().__init__(binding, config, shape)
        self.buffers = self._allocate()

    def _copied_loads(self) -> set[Term]:
        """The loads that tensor maps do."""
        entries = (entry for entry, _ in self.shape.entered)
        operands = (*self.binding.row_operands, *self.binding.streams, *self.shape.overlays, *entries)
        return {operand.load for operand in operands if not operand.gathered}

    # Shared memory

    def _allocate(self) -> Buffers:
        """Names of all rings. Overlays come after the columns, with which they are handed back."""
        binding, shape, tile = self.binding, self.shape, self.config.loop_tile
        self.rows_full, self.rows_empty = self.names.fresh("rows_full"), self.names.fresh("rows_empty")
        make = lambda operand: self._gathered(operand) if operand.gathered else self._ring(operand, H200.product_rows)
        rows = tuple(make(operand) for operand in binding.row_operands)
        later = [o for o in binding.streams if o in binding.matrices and o not in binding.columns]
        columns = [self._ring(o, tile) for o in binding.columns]
        overlays = [replace(self._ring(o, H200.product_rows), empty=columns[0].empty) for o in shape.overlays]
        loop = (*columns, *overlays, *(self._ring(o, tile) for o in later))
        exits = {o.tensor: self._ring(o, H200.product_rows) for o in shape.sent}
        entries = {exit.tensor: self._entry(entry, exits[exit.tensor]) for entry, exit in shape.entered}
        return Buffers(loop, rows, exits, entries, self.rows_full, self.rows_empty, self._handed(), self._totals())

    def _totals(self) -> tuple[str, ...]:
        """Names of what the pieces of a loop add up to."""
        return tuple(self.names.fresh("totals") for _ in self._columns_of_totals())

    def _columns_of_totals(self) -> list[int]:
        matrices = self.binding.matrices if self.shape.facts.piece else ()
        return [extent for matrix in matrices for _, extent in chunks(matrix.inner.size)]

    def _handed(self) -> Handed | None:
        """Names of what the warpgroup with the scores gives to the others."""
        if not self.config.value_warpgroups:
            return None
        weights, vectors, full, empty = map(self.names.fresh, ("weights", "vectors", "handed_full", "handed_empty"))
        return Handed(weights, vectors, full, empty, row_vectors(self.binding))

    def _ring(self, operand: Operand, across: int) -> Ring:
        fresh, name = self.names.fresh, operand.tensor.name
        buffers, maps = [], []
        overlay = operand in self.shape.overlays
        for _, extent in self._parts(operand):
            extent = min(extent, self.config.send) if operand in self.shape.sent else extent
            sizes = {operand.across: self._copied(operand, across), operand.inner: extent}
            box = tuple(sizes.get(d, 1) for d in operand.axes)
            known = next((m for m in self.maps.values() if (m.operand, m.box) == (operand, box)), None)
            if known is None:
                known = TensorMap(fresh(f"{name}_map"), operand.tensor.name, box, operand)
                self.maps[known.name] = known
            maps.append(known.name)
            buffers.append(fresh(f"{name}_tiles"))
        total = bytes_of(operand.tensor) * across * sum(e for _, e in self._parts(operand))
        total *= self.config.consumers if overlay else 1
        if operand.across == self.kernel.rows and not overlay:
            return Ring(operand, tuple(buffers), tuple(maps), self.rows_full, self.rows_empty, total)
        return Ring(operand, tuple(buffers), tuple(maps), fresh(f"{name}_full"), fresh(f"{name}_empty"), total)

    def _gathered(self, operand: Operand) -> Ring:
        """Shared memory of rows that a warpgroup reads by pointers and puts there itself."""
        buffers = tuple(self.names.fresh(f"{operand.tensor.name}_tiles") for _ in chunks(operand.inner.size))
        return Ring(operand, buffers, (), "", "", 0)

    def _entry(self, operand: Operand, exit: Ring) -> Ring:
        """Shared memory that a result leaves by, as what comes in there before."""
        ring = self._ring(operand, H200.product_rows)
        boxes = [", ".join(map(str, self.maps[name].box)) for name in ring.maps]
        buffers = tuple(f"{x}.index(W).reshape([{box}])" for x, box in zip(exit.buffers, boxes, strict=True))
        return replace(ring, buffers=buffers, full=self.names.fresh(f"{operand.tensor.name}_full"), empty="")

    def _parts(self, operand: Operand) -> list[tuple[int, int]]:
        return [(0, self.config.loop_tile)] if operand in self.shape.overlays else chunks(operand.inner.size)

    def _shared_names(self) -> list[str]:
        """The names of buffers and barriers."""
        return self.buffers.names

    def _buffer_lines(self) -> list[str]:
        lines, s, exits = [], self.config, self.buffers.exits.values()
        for ring in (ring for ring in self.buffers.rows if ring.operand.gathered):
            kind = self.writer().type_name(ring.operand.tensor.dtype)
            for buffer, (_, extent) in zip(ring.buffers, chunks(ring.operand.inner.size), strict=True):
                tile = f"[{H200.product_rows}, {extent}]"
                layout = f"gl.NVMMASharedLayout.get_default_for({tile}, {kind})"
                lines.append(f"{buffer} = gl.allocate_shared_memory({kind}, [{self._slots(ring)}] + {tile}, {layout})")
        for ring in (*self.buffers.copied_rows, *self.buffers.loop, *exits):
            for buffer, name, (_, extent) in zip(ring.buffers, ring.maps, self._parts(ring.operand), strict=True):
                slots = s.consumers * (1 + (extent > s.send)) if ring in exits else self._slots(ring)
                shape = f"[{slots}] + {self._tile_shape(ring, name)}"
                lines.append(f"{buffer} = gl.allocate_shared_memory({name}.dtype, {shape}, {name}.layout)")
        for name, extent in zip(self.buffers.totals, self._columns_of_totals(), strict=True):
            tiles = f"[{s.consumers}, {H200.product_rows}, {extent}]"
            layout = f"gl.SwizzledSharedLayout(8, 1, {min(8, extent // 8)}, [1, 0])"
            lines.append(f"{name} = gl.allocate_shared_memory(gl.float32, {tiles}, {layout})")
        return lines + self._handed_lines()

    def _tile_shape(self, ring: Ring, name: str) -> str:
        """The shape of a tile that a tensor map copies: that of its box, or of several boxes."""
        operand, tile = ring.operand, self.config.loop_tile
        if self._copied(operand, tile) == tile:
            return f"{name}.block_shape"
        return str([tile if d == operand.across else n for d, n in zip(operand.axes, self.maps[name].box, strict=True)])

    def _copied(self, operand: Operand, tile: int) -> int:
        """How many columns of a tile are copied at once: what one copy brings lies in one page."""
        return self.walks.copied if operand.pages else tile

    def _handed_lines(self) -> list[str]:
        """Lines that allocate what is handed over."""
        handed, rows, allocate = self.buffers.handed, H200.product_rows, "gl.allocate_shared_memory"
        if handed is None:
            return []
        (matrix,) = self.binding.matrices
        kind, tile = self.writer().type_name(matrix.tensor.dtype), f"[{rows}, {self.config.loop_tile}]"
        return [
            f"{handed.weights} = {allocate}({kind}, {tile}, gl.NVMMASharedLayout.get_default_for({tile}, {kind}))",
            f"{handed.vectors} = {allocate}(gl.float32, [{handed.count}, {rows}], VECTORS)",
        ]

    def _slots(self, ring: Ring) -> int:
        """How many tiles the ring of an operand holds. A row tile or an overlay counts once for each consumer."""
        s = self.config
        slots = s.row_buffers if ring in self.buffers.rows else s.stages
        return slots * s.consumers if ring in self.buffers.rows or ring.operand in self.shape.overlays else slots

    def _barriers(self) -> dict[str, tuple[int, int]]:
        s, buffers = self.config, self.buffers
        slots_of_rows = (s.row_buffers * s.consumers, 1)
        barriers = {buffers.rows_full: slots_of_rows, buffers.rows_empty: slots_of_rows}
        barriers |= {ring.full: (s.consumers, 1) for ring in buffers.entries.values()}
        barriers |= {ring.full: (s.stages, self._sharing_of(ring)) for ring in buffers.loop}
        barriers |= {h.full: (1, 1), h.empty: (1, s.value_warpgroups)} if (h := buffers.handed) else {}
        return barriers | {ring.empty: (s.stages, self._readers(ring)) for ring in buffers.loop}

    def _readers(self, ring: Ring) -> int:
        """How many warpgroups hand back a tile of the ring."""
        s = self.config
        return s.consumers + (s.value_warpgroups if ring.operand in self.binding.matrices else 0)

    def _layouts(self) -> str:
        """Layouts of scores and accumulators, their rows and columns, and of weights as operands."""
        product = "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {}, {}])"
        depths = {narrow: PRODUCT_BYTES // (1 if narrow else 2) for narrow in (False, True)}
        depth, narrow = depths[self.binding.has_narrow_scores], self.binding.has_narrow_values
        lines = [f"_SCORE = {product.format(self.config.loop_tile, depth)}", "SCORE = gl.constexpr(_SCORE)"]
        lines += [f"{n} = gl.constexpr(gl.SliceLayout({a}, _SCORE))" for n, a in (("ROWS", 1), ("COLUMNS", 0))]
        wide = chunks(self.binding.wide.size) if self.binding.wide else []
        for number, (_, extent) in enumerate(wide):
            lines.append(f"_VALUE{number} = {product.format(extent, depths[narrow])}")
            lines.append(f"VALUE{number} = gl.constexpr(_VALUE{number})")
            lines.append(f"WEIGHT{number} = gl.constexpr(gl.DotOperandLayout(0, _VALUE{number}, {4 if narrow else 2}))")
        lines += ["VECTORS = gl.constexpr(gl.SwizzledSharedLayout(1, 1, 1, [0]))"] if self.buffers.handed else []
        gathered = [ring.operand for ring in self.buffers.rows if ring.operand.gathered]
        lines += [gathered_layout(n) for n in sorted({n for o in gathered for _, n in chunks(o.inner.size)})]
        return "\n".join(lines) + "\n\n\n"

    # Producer

    def _items(self, body: list[str], opening: list[str] | None = None) -> list[str]:
        """The loop over a program's items. `opening` begins the first one; else every item begins in the body."""
        head = [f"high = items_here(items, total, {self.shape.table})", "count = 0", "turn = 0"]
        head += opening or []
        body = body if opening else [f"item = item_at(position, items, {self.shape.table})", *body]
        return [*head, "for position in range(0, high):", *(f"    {line}" for line in body)]

    def _take(self, place: str) -> list[str]:
        """Goes to the next item and reads the number of the one after it, so that nobody waits for it."""
        return ["item = following", f"following = item_at(gl.minimum({place}, high - 1), items, {self.shape.table})"]

    def _producers(self) -> dict[str, list[str]]:
        """One warp copies all tiles. Copies from pages are shared by several warps: one starts so many too slowly."""
        count = self._sharing
        return {f"producer{n}" if count > 1 else "producer": self._copying(n) for n in range(count)}

    @property
    def _sharing(self) -> int:
        """How many warps share the copies of a tile that lie in pages."""
        return min(MAX_PRODUCERS, self.config.loop_tile // self.walks.copied)

    def _copying(self, number: int) -> list[str]:
        """What a warp does that copies: its part of pages, and the first one also all that does not lie in pages."""
        writer, s = self.writer(blocks_of_tiles(self.kernel, {self.loop.dim: self.walks.copied})), self.config
        first = self.walks.item(writer, "item")
        walk = self.walks.of_program(writer, first)
        writer.starts |= {self.kernel.rows: f"{first} + w * {H200.product_rows}", self.loop.dim: "start"}
        row_lines, lines = self._rows(writer) if number == 0 and self.buffers.copied_rows else [], writer.outer.lines
        lines += row_lines if s.row_buffers > 1 else []
        copies, pages = self._copies_of_tiles(writer, walk, number)
        body = [*walk.at("t"), f"start = tile * {s.loop_tile}", f"slot = count % {s.stages}", *pages]
        body += [f"phase = (count // {s.stages} & 1) ^ 1"]
        for n, (ring, copying) in enumerate(copies.items()):
            body += self._filling(ring, copying)
            if n == 0 and number == 0:
                body += [f"asked_for({place})" for place in self._vectors(writer)]
            if n == 0 and s.row_buffers == 1 and row_lines:  # the first columns need not wait for the rows before
                body += ["if t == 0:", *(f"    {line}" for line in row_lines)]
        lines += [f"for t in range(0, {walk.count}):", *(f"    {line}" for line in [*body, "count += 1"])]
        return self._items([*lines, "turn += 1"])

    def _filling(self, ring: Ring, copying: list[str]) -> list[str]:
        """Lines by which a warp copies its part of a tile, once the consumers are done with what was in its slot."""
        lines = [f"mbarrier.expect({ring.full}.index(slot), {ring.bytes // self._sharing_of(ring)})"]
        if ring.operand in self.shape.overlays:  # they are handed back with the columns
            return [*lines, f"for w in gl.static_range({self.config.consumers}):", *(f"    {x}" for x in copying)]
        return [f"mbarrier.wait({ring.empty}.index(slot), phase)", *lines, *copying]

    def _sharing_of(self, ring: Ring) -> int:
        """How many warps copy the tiles of a ring."""
        return self._sharing if ring.operand.pages else 1

    def _copies_of_tiles(
        self, writer: GluonWriter, walk: Walk, number: int
    ) -> tuple[dict[Ring, list[str]], list[str]]:
        """Lines of a warp that copy a tile of each ring, and lines before them, which find the pages that it copies.

        The kernel stops where a page is none of the tensor's, but not for an item without a tile.
        """
        tile = self.config.loop_tile
        rings = [ring for ring in self.buffers.loop if number < self._sharing_of(ring)]
        copies: dict[Ring, list[str]] = {ring: [] for ring in rings}
        finding: list[str] = []
        with writer.testing_together(finding):
            for extent in sorted({self._copied(ring.operand, tile) for ring in rings}, reverse=True):
                here = [ring for ring in rings if self._copied(ring.operand, tile) == extent]
                share = tile // self._sharing_of(here[0])
                for begin in range(number * share, (number + 1) * share, extent):
                    place = "start" if extent == tile else self.names.fresh("copy_start")
                    within = f"gl.minimum(gl.maximum(start + {begin}, {walk.low}), {walk.high})"
                    finding += [f"{place} = {within}"] if extent < tile else []
                    writer.open(self.loop.dim, place, ragged=False)
                    writer.kept = lambda: TileValue(walk.occupied, (), "bool") if walk.occupied else None
                    for ring in here:
                        copies[ring] += self._copies(writer, ring, "slot", self._slot_of_tile(ring), (begin, extent))
                        if ring.operand.pages:
                            writer.demand_page(ring.operand.load)
                    finding += writer.close()
        writer.starts[self.loop.dim] = "start"
        return copies, finding

    def _slot_of_tile(self, ring: Ring) -> str:
        """Where a ring's buffers have a tile."""
        return f"slot * {self.config.consumers} + w" if ring.operand in self.shape.overlays else "slot"

    def _vectors(self, writer: GluonWriter) -> list[str]:
        """Where a tile's part begins of what consumers read along the loop."""
        found, along = [], iota(self.loop.dim)
        for load in dict.fromkeys(n for root in roots(self.kernel) for n in subterms(root) if n.op == "load"):
            tensor = load.attrs[0]
            here = tensor in self.signature.pointers and along in load.args
            if here and load.dims <= {*self.kernel.grid, self.loop.dim}:
                first = writer.address(tensor, tuple(const(0) if a is along else a for a in load.args), ())
                found.append(f"{first} + start * {self.signature.pointers[tensor][1][load.args.index(along)]}")
        return found

    def _rows(self, writer: GluonWriter) -> list[str]:
        """Copies an item's rows, for each warpgroup once it has done with those before."""
        s = self.config
        lines = [f"place = turn % {s.row_buffers} * {s.consumers} + w"]
        lines += [f"mbarrier.wait({self.buffers.rows_empty}.index(place), (turn // {s.row_buffers} & 1) ^ 1)"]
        copied = self.buffers.copied_rows
        lines += [f"mbarrier.expect({self.buffers.rows_full}.index(place), {sum(ring.bytes for ring in copied)})"]
        lines += [line for ring in copied for line in self._copies(writer, ring, "place", "place")]
        return [f"for w in gl.static_range({s.consumers}):", *(f"    {line}" for line in lines)]

    def _entering(self, writer: GluonWriter) -> list[str]:
        """Copies what an item's results are made of to where they will leave, once those before have left."""
        lines = ["tma.store_wait(0)"] if self.buffers.entries else []
        for ring in self.buffers.entries.values():
            lines += [f"mbarrier.expect({ring.full}.index(W), {ring.bytes})", *self._copies(writer, ring, "W", "")]
        return lines

    def _copies(
        self, writer: GluonWriter, ring: Ring, slot: str, buffer_slot: str = "slot", part: tuple[int, int] = (0, 0)
    ) -> list[str]:
        """Copies one tile; without a slot the buffers are where it goes. part: its first column and its columns, of a
        tile that takes several copies."""
        operand, lines = ring.operand, []
        for (start, _), buffer, name in zip(self._parts(operand), ring.buffers, ring.maps, strict=True):
            where = ", ".join(self._coordinate(writer, i, d, start) for i, d in zip(operand.load.args, operand.axes))
            target = f"{ring.full}.index({slot}), {buffer}" + (f".index({buffer_slot})" if buffer_slot else "")
            if operand.pages and part[1] < self.config.loop_tile:
                target += f".slice({part[0]}, {part[1]}, {operand.axes.index(operand.across)})"
            lines.append(f"copy_in({name}, [{where}], {target})")
        return lines

    # Consumer

    @property
    def chooses_by_number(self) -> bool:
        return bool(self.config.value_warpgroups)

    def _consumer(self) -> list[str]:
        if not self.config.value_warpgroups:
            return self._score_warpgroup()
        scores, values = (["handed = 0", *lines] for lines in (self._score_warpgroup(), self._value_warpgroup()))
        return ["if W == 0:", *(f"    {line}" for line in scores), "else:", *(f"    {line}" for line in values)]

    def _value_warpgroup(self) -> list[str]:
        writer = self.writer()
        first = self.walks.item(writer, "item")
        writer.starts[self.kernel.rows] = first
        walk = self.walks.of_rows(writer, first, first, False, False, False)
        return self._items(ValueWarpgroup(writer, self.binding, self.config, self.buffers).item(walk))

    def _score_warpgroup(self) -> list[str]:
        writer, s = self.writer(), self.config
        first = self.walks.item(writer, "item")
        row = writer.assign("row", TileValue(f"{first} + W * {H200.product_rows}"), writer.outer).text
        writer.starts[self.kernel.rows] = row
        walk = self.walks.of_rows(writer, first, row, self.shape.skewed, self.shape.masked == "some", self.shape.vacant)
        entering = self._entering(writer)
        consumer = Consumer(writer, self.binding, s, self.shape, self.buffers)
        consumer.words = self.walks.words(writer, row, self.shape.packed.record) if self.shape.packed else ""
        head = [f"if W == {s.consumers - 1}:", "    give_turn(0)"] if s.turns else []
        last = ["tma.store_wait(0)"] if self.buffers.exits else []
        if not self.shape.chained:
            return [*head, *self._items(consumer.item(walk, entering)), *last]
        opening, body = consumer.chained(walk, self._take("position + 2"))
        head_item = f"following = item_at(0, items, {self.shape.table})"
        opening = [head_item, "more = high > 0", *self._take("1"), *opening]
        return [*head, *self._items(body, opening), *last]
