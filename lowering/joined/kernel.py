"""A joined kernel and its settings as Gluon source: one producer warp, two consumer warpgroups.

A program has 128 rows of one grid point, which it holds, and goes through the tiles of the loop once. The producer
copies tiles of the loop into rings of two. Invariant: a slot of a ring is handed back only after a wait that covers its
last reader. Example: keys and values are held; queries, cotangents and numbers for each query are copied tile by tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...egraph.terms.term import Term
from ..codegen.ops import TileValue
from ..gluon.assembly import HEADER, KernelAssembly
from ..gluon.expressions import RESERVED, GluonWriter
from ..gluon.kernel_parts import GluonSource, LaunchShape, TensorMap
from ..gluon.work_items import Walk
from ..hopper.kernel_form import Operand
from ..hopper.shared_size import bytes_of
from ..plan.device import H200
from ..plan.records import Plan
from .config import STAGES, WARPGROUPS, JoinedConfig
from .consumer import JoinedConsumer
from .form import JoinedBinding, early_parts, tile_key
from .memory import CopiedTile, Memory, Vector, extent_of, part_of
from .product_consumers import GivingConsumer, TakingConsumer
from .sum_blocks import keeper_lines, next_ticket

BARRIER_NAMES = ("GIVEN", "READ", "TAKEN", "TURN", "WRITTEN")
FUNCTIONS = "add_in_order arrive give signal_program sync taken together wait_for_programs".split()
JOINED_FUNCTIONS = (*BARRIER_NAMES, *FUNCTIONS)
ELEMENTS_OF_A_RUN = 8  # in half precision, that a thread stores at once
# By name, how many barriers there are, and how many arrivals complete a phase of each.
BARRIERS = {"held_ahead": (1, 1), "held_late": (1, 1), "ahead_full": (STAGES, 1), "full": (STAGES, 1)}
BARRIERS |= {"held_empty": (1, WARPGROUPS), "empty": (STAGES, WARPGROUPS)}
BARRIERS |= dict.fromkeys(("turn_come", "added_to"), (WARPGROUPS, 1))  # between a warpgroup and the keeper of its order
TICKET = "ticket"  # the place of a program's item in the list of all items
NAMES = (*JOINED_FUNCTIONS, *BARRIERS, TICKET, *"slot other more previous counter point done".split())
NAMES += ("add_diagonals", "keeper", *(f"keeper{w}" for w in range(WARPGROUPS)))


def emit_joined(binding: JoinedBinding, plan: Plan, config: JoinedConfig, shape: LaunchShape) -> GluonSource:
    """The kernel's Gluon source. Raises NotPlannable for what has no such form."""
    return JoinedKernelWriter(binding, config, shape).source(plan)


class JoinedKernelWriter(KernelAssembly[JoinedBinding, JoinedConfig]):
    """Writes one joined kernel."""

    imports = f"""{HEADER.rstrip()}
from onepass.lowering.joined.device_functions import {", ".join(JOINED_FUNCTIONS)}
from onepass.lowering.joined.diagonal_adds import add_diagonals


"""
    reserved = (*RESERVED, *NAMES)

    def __init__(self, binding: JoinedBinding, config: JoinedConfig, shape: LaunchShape):
        super().__init__(binding, config, shape)
        self.buffers = self._allocate()

    def _copied_loads(self) -> set[Term]:
        """The loads that tensor maps do."""
        binding = self.binding
        operands = [o for p in binding.products for o in (p.rows, p.columns)]
        operands += [s.matrix for s in binding.loop_sums if s.matrix is not None]
        operands += [*(s.matrix for s in binding.row_sums), *self.shape.overlays]
        return {o.load for o in operands} | {*self._copied_vectors()}

    # Shared memory

    def _allocate(self) -> Memory:
        binding, fresh, tile = self.binding, self.names.fresh, self.config.loop_tile
        ahead = [{tile_key(o) for o in (getattr(p, side) for p in binding.ahead)} for side in ("rows", "columns")]
        by_use = lambda operands, keys: sorted(operands, key=lambda o: tile_key(o) not in keys)
        held = tuple(self._tile(o, self.config.row_tile) for o in by_use(binding.row_operands, ahead[0]))
        ring = tuple(self._tile(o, tile) for o in by_use(binding.streams, ahead[1]))
        vectors = tuple(map(self._vector, self._copied_vectors()))
        overlays = tuple(self._tile(o, self.config.row_tile, tile) for o in self.shape.overlays)
        pairs = {p.weight: self._tile(p.operand, self.config.row_tile, tile) for p in binding.pairs}
        weights = {n: fresh("weight_tiles") for n in dict.fromkeys(s.weight for s in binding.row_sums)}
        weights |= {number: copied.buffer for number, copied in pairs.items()}
        parts = fresh("part_tiles") if self.config.by_products and early_parts(binding) else ""
        return Memory(held, ring, (len(ahead[0]), len(ahead[1])), overlays, vectors, weights, pairs, parts)

    def _copied_vectors(self) -> list[Term]:
        """The loads along the loop alone that are copied."""
        return [load for load in self.binding.vectors if load.attrs[0].name in self.shape.vectors]

    def _tile(self, operand: Operand, across: int, inner: int = 0) -> CopiedTile:
        """A tile of an operand and its tensor map. inner: places along the inner dim; 0: all of them."""
        name, sizes = operand.tensor.name, {operand.across: across, operand.inner: inner or extent_of(operand.inner)}
        box = tuple(sizes.get(d, 1) for d in operand.axes)
        known = TensorMap(self.names.fresh(f"{name}_map"), name, box, operand)
        self.maps[known.name] = known
        total = bytes_of(operand.tensor) * across * sizes[operand.inner]
        return CopiedTile(operand, self.names.fresh(f"{name}_tiles"), known.name, total)

    def _vector(self, load: Term) -> Vector:
        name, tile = load.attrs[0].name, self.config.loop_tile
        known = TensorMap(self.names.fresh(f"{name}_map"), name, (tile,), None)
        self.maps[known.name] = known
        return Vector(load, self.names.fresh(f"{name}_tiles"), known.name, 4 * tile)

    def _shared_names(self) -> list[str]:
        return [*self.buffers.names, *BARRIERS, TICKET]

    def _buffer_lines(self) -> list[str]:
        binding, memory, row_tile, tile = self.binding, self.buffers, self.config.row_tile, self.config.loop_tile
        mapped = [(t.buffer, t.map, 1) for t in memory.held]
        mapped += [(t.buffer, t.map, STAGES) for t in (*memory.ring, *memory.overlays, *memory.pairs.values())]
        mapped += [(v.buffer, v.map, STAGES) for v in memory.vectors]
        allocate = "{} = gl.allocate_shared_memory({}, {}, {})".format
        lines = [
            allocate(name, f"{m}.dtype", f"[{slots}] + {m}.block_shape", f"{m}.layout") for name, m, slots in mapped
        ]
        kinds = {s.weight: f"gl.{s.matrix.tensor.dtype}" for s in binding.row_sums}
        for number, name in ((n, x) for n, x in memory.weights.items() if n not in memory.pairs):
            layout = f"gl.NVMMASharedLayout.get_default_for([{row_tile}, {tile}], {kinds[number]})"
            lines.append(allocate(name, kinds[number], f"[{STAGES}, {row_tile}, {tile}]", layout))
        if memory.parts:
            layout = f"gl.NVMMASharedLayout.get_default_for([{row_tile}, {tile}], gl.int16)"
            slots = 2 * len(early_parts(binding))
            lines.append(allocate(memory.parts, "gl.int16", f"[{slots}, {row_tile}, {tile}]", layout))
        if self.config.takes_tickets:
            lines.append(f"{TICKET} = {next_ticket(self.writer(), binding)}")
        return lines

    def _barriers(self) -> dict[str, tuple[int, int]]:
        return BARRIERS

    def _layouts(self) -> str:
        """Layouts of weights, of sums over the loop by their columns, and of weights as operands of these."""
        product = "gl.NVMMADistributedLayout([3, 0], [4, 1], [16, {}, 16])"
        lines = [f"_SCORE = {product.format(self.config.loop_tile)}", "SCORE = gl.constexpr(_SCORE)"]
        lines += [f"{n} = gl.constexpr(gl.SliceLayout({a}, _SCORE))" for n, a in (("ROWS", 1), ("COLUMNS", 0))]
        for extent in sorted(extents(self.binding)):
            lines.append(f"_VALUE{extent} = {product.format(extent)}")
            lines.append(f"VALUE{extent} = gl.constexpr(_VALUE{extent})")
            lines.append(f"WEIGHT{extent} = gl.constexpr(gl.DotOperandLayout(0, _VALUE{extent}, 2))")
            across = min(32, extent // ELEMENTS_OF_A_RUN)
            runs = f"gl.BlockedLayout([1, {ELEMENTS_OF_A_RUN}], [{32 // across}, {across}], [4, 1], [1, 0])"
            lines.append(f"VALUE{extent}_in_runs = gl.constexpr({runs})")
        for extent in sorted({part_of(s.matrix.inner, self.config) for s in self.binding.row_sums}):
            lines.append(f"ADDED{extent} = gl.constexpr({product.format(extent)})")
        return "\n".join(lines) + "\n\n\n"

    # Producer

    def _items(self, body: Sequence[str]) -> list[str]:
        """The loop over a program's items, or its one item."""
        table = self.shape.table
        if not self.config.persistent:
            number = TICKET if self.config.takes_tickets else "gl.program_id(0)"
            place = f"gl.load(items + {number})" if table else number
            return ["done = 0", "position = 0", f"item = {place}", *body]
        head = [f"high = items_here(items, total, {table})", "done = 0", "for position in range(0, high):"]
        return [*head, f"    item = item_at(position, items, {table})", *(f"    {line}" for line in body)]

    def _walk(self, writer: GluonWriter, first: str) -> Walk:
        """The tiles of a program, in order, for each index of the dims around the loop."""
        around = {dim: writer.names.fresh(str(dim)) for dim in self.loop.outer}
        writer.open_around(around)
        count, find = self._tiles(writer, first)
        if not around:
            return Walk(count, find("{t}"))
        tiles = writer.assign("tiles", TileValue(count), writer.outer).text
        rest, lines = "point", [f"point = {{t}} // {tiles}", *find(f"({{t}} - point * {tiles})")]
        for dim, name in reversed(around.items()):
            lines.append(f"{name} = {rest} % {self.signature.sizes[dim]}")
            rest = f"({rest} // {self.signature.sizes[dim]})"
        count = " * ".join([tiles, *(self.signature.sizes[dim] for dim in around)])
        return Walk(count, tuple(lines))

    def _tiles(self, writer: GluonWriter, first: str) -> tuple[str, Callable[[str], tuple[str, ...]]]:
        """How many tiles a program runs, and lines that find one by its place among them: from a list, or by range."""
        if self.shape.listed is not None:
            mine, count = self.walks.list_of_program(writer, first)
            return count, lambda place: self.walks.entry(mine, place)
        begin, end = self.walks.range_of_program(writer, first)
        return f"({end} - {begin})", lambda place: (f"tile = {begin} + {place}",)

    def _partial(self, writer: GluonWriter, row: str) -> str:
        """Whether a tile of a warpgroup's rows has elements that are absent."""
        kernel, loop, even = self.kernel, self.loop, self.shape.facts.even
        _, _, full_begin, full_end = self.walks.ends(writer, "own", row, H200.product_rows)
        listed = self.shape.listed is not None
        own = "entry >> W" if self.config.consumers > 1 else "entry"
        found = [f"({own} & 1 != 0)"] if listed else [f"(tile < {full_begin})"] if loop.lowers else []
        limited = loop.uppers and not listed
        found += [f"(tile >= {full_end})"] if limited or str(loop.dim) not in even else []
        beyond = f"({row} + {H200.product_rows} > {writer.sizes[kernel.rows]})"
        return " | ".join([*found, *([beyond] if str(kernel.rows) not in even else [])])

    def _producers(self) -> dict[str, list[str]]:
        return {"producer": self._producer()}

    def _producer(self) -> list[str]:
        writer, memory = self.writer(), self.buffers
        first = self.walks.item(writer, "item")
        walk = self._walk(writer, first)
        writer.starts |= {self.kernel.rows: first, self.loop.dim: "start"}
        held, ring = memory.first
        body = ["slot = (done + t) & 1", "mbarrier.wait(empty.index(slot), ((done + t) >> 1 & 1) ^ 1)"]
        body += self._copy(writer, "ahead_full.index(slot)", memory.ring[:ring], "slot")
        rows = ["mbarrier.wait(held_empty.index(0), (position & 1) ^ 1)"] if self.config.persistent else []
        rows += self._copy(writer, "held_ahead.index(0)", memory.held[:held], "0")
        rows += self._copy(writer, "held_late.index(0)", memory.held[held:], "0")
        body += ["if t == 0:", *(f"    {line}" for line in rows)]
        body += self._copy(writer, "full.index(slot)", memory.late, "slot")
        body = [*walk.at("t"), f"start = tile * {self.config.loop_tile}", *writer.close_around(), *body]
        lines = [*writer.outer.lines, f"count = {walk.count}", "for t in range(0, count):"]
        return self._items([*lines, *(f"    {line}" for line in body), "done += count"])

    def _copy(self, writer: GluonWriter, barrier: str, tiles, slot: str) -> list[str]:
        """Copies tiles into slots of theirs, all with one barrier."""
        lines = [f"mbarrier.expect({barrier}, {sum(t.bytes for t in tiles)})"] if tiles else []
        for tile in tiles:
            if isinstance(tile, Vector):
                where = self._flat(writer, tile.load)
            else:
                pairs = zip(tile.operand.load.args, tile.operand.axes, strict=True)
                where = ", ".join(self._coordinate(writer, index, dim, 0) for index, dim in pairs)
            lines.append(f"copy_in({tile.map}, [{where}], {barrier}, {tile.buffer}.index({slot}))")
        return lines

    def _flat(self, writer: GluonWriter, load: Term) -> str:
        """The place of a tile's first element in a contiguous tensor."""
        place = "0"
        for index in load.args:
            dim = index.attrs[0]
            place = (
                f"({place} * {self.signature.sizes[dim]} + {writer.starts[dim]})"
                if place != "0"
                else (writer.starts[dim])
            )
        return place

    def _other_warps(self) -> dict[str, list[str]]:
        """Warps that keep the order in which programs add."""
        if not self.config.in_order:
            return {}
        writer = self.writer()
        first = self.walks.item(writer, "item")
        walk = self._walk(writer, first)
        return {"keeper": self._items(keeper_lines(writer, self.binding, self.config, walk, first))}

    # Consumer

    def _consumer(self) -> list[str]:
        if not self.config.by_products:
            turns = ["if W == 1:", "    arrive(TURN, True)"] if self.config.turns else []
            return [*turns, *self._consumer_lines(JoinedConsumer)]
        parts = [self._consumer_lines(kind) for kind in (GivingConsumer, TakingConsumer)]
        first, second = ([f"    {line}" for line in lines] for lines in parts)
        return ["if W == 0:", *first, "else:", *second]

    def _consumer_lines(self, kind: type[JoinedConsumer]) -> list[str]:
        writer = self.writer()
        first = self.walks.item(writer, "item")
        own = f" + W * {H200.product_rows}" if self.config.consumers > 1 else ""
        row = writer.assign("row", TileValue(f"{first}{own}"), writer.outer).text
        writer.starts[self.kernel.rows] = row
        walk = replace(self._walk(writer, first), partial=self._partial(writer, row))
        return self._items(kind(writer, self.binding, self.config, self.shape, self.buffers).lines(walk))


def extents(binding: JoinedBinding) -> set[int]:
    """Columns of the sums over the loop that stay in registers, as tiles have them."""
    return {extent_of(s.matrix.inner) for s in binding.loop_sums if s.matrix is not None}
