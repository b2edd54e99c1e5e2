"""What a consumer warpgroup of a joined kernel does: one step for each tile of the loop, then the results.

A step issues the late products. While these run, it computes the early weights and issues their sums; while those run,
it computes the other weights. Then it issues the other sums and the first products of the next tile. A sum over the
rows needs the weights of both warpgroups, so it is issued one step later and is added to memory during the products
after it. Invariant: nobody else touches accumulators in flight. Example: issue dP, compute P, issue dV, compute dS,
issue dK, then dQ of the tile before and S of the next tile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from ...egraph.terms.ops import iota
from ...egraph.terms.term import Dim, Term
from ..codegen.ops import TileValue, atom
from ..codegen.tiles import Scope
from ..gluon.expressions import GluonWriter, matrix_in, product_key, wait_for
from ..gluon.kernel_parts import LaunchShape
from ..gluon.work_items import Walk
from ..hopper.kernel_form import Operand, Product
from ..plan.device import H200
from ..plan.queries import diagonal
from ..plan.records import Store
from .config import JoinedConfig
from .form import DiagonalSum, JoinedBinding, LoopSum, early_and_late, late_factors
from .memory import Memory, Vector, columns_of_sums, extent_of, part_of
from .sum_blocks import COLUMNS_OF_A_BLOCK, SumBlocks

ROWS_OF_A_WARPGROUP = H200.product_rows
MAX_COLUMNS_BESIDE_DIAGONALS = 128  # of accumulators over the loop


class JoinedConsumer:
    """Writes the lines of one consumer."""

    def __init__(
        self,
        writer: GluonWriter,
        binding: JoinedBinding,
        config: JoinedConfig,
        shape: LaunchShape,
        memory: Memory,
    ):
        self.writer, self.binding, self.config, self.shape, self.memory = writer, binding, config, shape, memory
        self.rows, self.loop = binding.kernel.rows, binding.loop
        fresh = writer.names.fresh
        self.products = {p: fresh("product") for p in binding.products}
        writer.scores = {product_key(p.node): name for p, name in self.products.items()}
        self.sums = {s: fresh("total") for s in binding.loop_sums}
        self.operands: dict[tuple[int, int], str] = {}
        self.added = {s: fresh("added") for s in binding.row_sums}
        self.blocks = SumBlocks(writer, binding, config)

    # The whole of it

    def lines(self, walk: Walk) -> list[str]:
        """What is done for one item of the program. done: how many tiles the items before it had."""
        writer = self.writer
        self.partial = walk.partial
        head = [f"count = {walk.count}", "previous = 0", *self._zeros()]
        head += ["mbarrier.wait(held_ahead.index(0), position & 1)"]
        head += ["mbarrier.wait(ahead_full.index(done & 1), done >> 1 & 1)", *self._ahead("done & 1", fresh=True)]
        late = len(self.memory.held) > self.memory.first[0]
        head += ["mbarrier.wait(held_late.index(0), position & 1)"] if late else []
        head += [wait_for(0, [self.products[p] for p in self.binding.ahead])]
        body = ["for t in range(0, count):", *(f"    {x}" for x in self._step(walk))]
        body += [*self._last(), *self._finished()]
        return [*writer.outer.lines, *head, *body, *self._results()]

    def _zeros(self) -> list[str]:
        lines, tile = [], self.config.loop_tile
        for s, name in self.sums.items():
            if s.matrix is not None:
                extent = extent_of(s.matrix.inner)
                lines.append(f"{name} = gl.zeros([{ROWS_OF_A_WARPGROUP}, {extent}], gl.float32, VALUE{extent})")
            else:
                lines.append(f"{name} = partial_sum(gl.zeros([{ROWS_OF_A_WARPGROUP}, {tile}], gl.float32, SCORE))")
        return lines

    # One tile

    def _step(self, walk: Walk) -> list[str]:
        writer, binding = self.writer, self.binding
        start = writer.names.fresh(f"{self.loop.dim}_start")
        writer.open(self.loop.dim, start, ragged=True)
        writer.demands = False  # the forward has read the same indices, and would have stopped
        lines = writer.inner.lines
        lines += ["slot = (done + t) & 1", "other = slot ^ 1"]
        lines += ["mbarrier.wait(full.index(slot), (done + t) >> 1 & 1)"] if self.memory.late else []
        begins = {start.vector for start in binding.starts.values()}
        self._read_vectors(v for v in self.memory.vectors if v.load in begins)
        for product in binding.late:
            self._late(product)
        self._read_vectors(v for v in self.memory.vectors if v.load not in begins)
        self._read_overlays()
        early, late = early_and_late(binding)
        issued = self._sum_over_loop(early, "slot")
        numbers = [s.weight for s in late] + [s.weight for s in binding.row_sums]
        for number in dict.fromkeys(numbers):
            self._early_part(number)
        if binding.late:
            lines.append(wait_for(len(issued), [self.products[p] for p in binding.late]))
        for s in late:
            self._weight(s.weight)
        self._hand_over()
        self._packed(late)
        lines += self._along_diagonals() if self._is_crowded() else []
        self._issue_last(late, issued)
        return [*walk.at("t"), f"{start} = tile * {self.config.loop_tile}", *writer.close_around(), *writer.close()]

    def _read_vectors(self, vectors: Iterable[Vector]) -> None:
        writer = self.writer
        for vector in vectors:
            text = f"{vector.buffer}.index(slot).load(COLUMNS)"
            value = TileValue(text, (self.loop.dim,), "float32")
            writer.inner.memo[vector.load] = writer.assign(f"{vector.load.attrs[0].name}_tile", value)

    def _read_overlays(self) -> None:
        """Takes this warpgroup's rows of tiles over rows and loop into registers."""
        writer, config = self.writer, self.config
        for tile in self.memory.overlays:
            operand = tile.operand
            whole = matrix_in(
                f"{tile.buffer}.index(slot)", operand, config.row_tile, config.loop_tile, transposed=False
            )
            text = f"{self._own_rows(whole)}.load(SCORE)"
            value = TileValue(text, (self.rows, self.loop.dim), operand.tensor.dtype)
            writer.inner.memo[operand.load] = writer.assign(f"{operand.tensor.name}_tile", value)

    def _late(self, product: Product) -> None:
        """Issues a product of this tile; its accumulator may begin at a number for each column."""
        writer, tile = self.writer, self.config.loop_tile
        start, name = self.binding.starts.get(product), self.products[product]
        begin = f"gl.zeros([{ROWS_OF_A_WARPGROUP}, {tile}], gl.float32, SCORE)"
        if start is not None:
            vector = writer.value(start.vector)
            begin += f" {'+' if start.sign > 0 else '-'} {writer.align(vector, (self.rows, self.loop.dim))}"
        self.writer.inner.lines.append(self._product(product, name, "slot", begin, start is not None))
        value = TileValue(name, (self.rows, self.loop.dim))
        writer.inner.memo[product.node if start is None else start.node] = value

    def _product(self, product: Product, name: str, slot: str, begin: str, adds: bool) -> str:
        left = self._mine(product.rows)
        right = self._in_ring(product.columns, slot, transposed=True)
        return f"{name} = warpgroup_mma({left}, {right}, {begin}, use_acc={adds}, is_async=True)"

    def _ahead(self, slot: str, fresh: bool = False) -> list[str]:
        """Issues the products ahead of the tile in a slot. The old tile is their accumulator, though nothing is added:
        fresh zeros would be copied around the loop."""
        zeros = f"gl.zeros([{ROWS_OF_A_WARPGROUP}, {self.config.loop_tile}], gl.float32, SCORE)"
        names = ((p, self.products[p]) for p in self.binding.ahead)
        return [self._product(p, name, slot, zeros if fresh else name, False) for p, name in names]

    def _mine(self, operand: Operand) -> str:
        """This warpgroup's rows of what is held of them."""
        return self._own_rows(self._held(operand))

    def _own_rows(self, tile: str) -> str:
        """This warpgroup's rows of a tile in shared memory."""
        alone = self.config.consumers == 1
        return tile if alone else f"{tile}.slice(W * {ROWS_OF_A_WARPGROUP}, {ROWS_OF_A_WARPGROUP}, 0)"

    def _held(self, operand: Operand) -> str:
        tile = self.memory.tile(operand)
        extent = extent_of(operand.inner)
        return matrix_in(f"{tile.buffer}.index(0)", tile.operand, self.config.row_tile, extent, transposed=False)

    def _in_ring(self, operand: Operand, slot: str, transposed: bool) -> str:
        tile = self.memory.tile(operand)
        extent = extent_of(operand.inner)
        return matrix_in(f"{tile.buffer}.index({slot})", tile.operand, self.config.loop_tile, extent, transposed)

    # Weights

    def _weight(self, number: int) -> TileValue:
        """The name of a weight's tile in float32, 0 where an element is absent."""
        tile = (self.rows, self.loop.dim)
        late = late_factors(self.binding, number)
        build = lambda: self._late_weight(number) if late else self._early_weight(number)
        return self.writer.once(("weight", number), tile, build)

    def _early_weight(self, number: int) -> TileValue:
        return self._masked(self._multiplied(None, self.binding.weights[number].factors), None)

    def _late_weight(self, number: int) -> TileValue:
        """A late product's factors times the rest, which is there already; absent where the rest is 0."""
        rest = self._early_part(number)
        value = self._multiplied(rest, late_factors(self.binding, number))
        present = None if rest is None else TileValue(f"{rest.text} != 0.0", value.dims, "bool")
        return self._masked(value, present)

    def _early_part(self, number: int) -> TileValue | None:
        """The product of a weight's other factors, in one tile of registers; None if there are none.

        Where these are factors of an early weight and more, that weight is taken with what is absent in it.
        """
        late, tile = late_factors(self.binding, number), (self.rows, self.loop.dim)

        def build() -> TileValue | None:
            factors, known = Counter(self.binding.weights[number].factors) - Counter(late), None
            for other in self._written():
                inside = Counter(self.binding.weights[other].factors)
                if not inside - factors:
                    known, factors = self._weight(other), factors - inside
            left = list(factors.elements())
            if known is None and left:
                return self._masked(self._multiplied(None, left), None)
            return self._multiplied(known, left) if left else known

        return self.writer.once(("early part", number), tile, build)

    def _multiplied(self, known: TileValue | None, factors: Iterable[Term]) -> TileValue:
        """The name of a tile: a value times the values of factors."""
        writer, tile = self.writer, (self.rows, self.loop.dim)
        values = [known.text] if known else []
        values += [writer.align(writer.value(f), tile) for f in factors]
        return writer.assign("weight", writer.spread(TileValue(" * ".join(values) or "1.0", tile), tile))

    def _written(self) -> list[int]:
        """The numbers of the weights that have a name in this tile."""
        memo = self.writer.inner.memo
        return [n for n in range(len(self.binding.weights)) if ("weight", n) in memo]

    def _masked(self, value: TileValue, present: TileValue | None) -> TileValue:
        """The value, 0 where it is absent: where the guard or the dims' ends drop it, or as `present` says.

        Few tiles need that, so it is a branch. The branch computes coordinates for itself: kept from before the loop,
        they would take registers.
        """
        writer, around, before = self.writer, self.writer.inner, self.writer.outer
        if self.shape.masked == "none":
            return value
        if self.shape.masked == "some":
            writer.inner = Scope(memo=dict(around.memo))
            writer.outer = Scope(writer.inner.lines, dict(before.memo))
        present = present or self._kept()
        line = f"{value.text} = {writer.where(present, value, '0.0').text}"
        if self.shape.masked == "all":
            around.lines.append(line)
            return value
        branch, writer.inner, writer.outer = [*writer.inner.lines, line], around, before
        around.lines += [f"if {self.partial}:", *(f"    {line}" for line in branch)]
        return value

    def _kept(self) -> TileValue:
        """Which elements of a tile exist and are kept by the guard."""
        writer, guard = self.writer, self.loop.guard
        kept = writer.value(guard) if guard is not None else None
        return writer.conjunction(kept, writer.padding(self.rows), writer.padding(self.loop.dim))

    def _rounded(self, number: int, matrix: Operand) -> str:
        """The name of a weight's tile in the type of a matrix."""
        writer, kind = self.writer, f"gl.{matrix.tensor.dtype}"
        value = self._weight(number)
        build = lambda: writer.assign("rounded_weight", TileValue(f"rounded({value.text}, {kind})", value.dims))
        return writer.once(("rounded", number, kind), value.dims, build).text

    def _packed(self, sums: Iterable[LoopSum]) -> list[str]:
        """The names of weights as operands of sums over the loop, each once."""
        writer, found = self.writer, []
        for s in sums:
            if s.matrix is not None:
                rounded, extent = self._rounded(s.weight, s.matrix), extent_of(s.matrix.inner)
                text = f"gl.convert_layout({rounded}, WEIGHT{extent})"
                build = lambda text=text: writer.assign("packed", TileValue(text, (self.rows, self.loop.dim)))
                found.append(writer.once(("packed", rounded, extent), (self.rows, self.loop.dim), build).text)
        return list(dict.fromkeys(found))

    # Sums

    def _sum_over_loop(self, sums: Sequence[LoopSum], slot: str) -> list[str]:
        """Issues sums over the loop; the names of what is in flight."""
        lines, issued = self.writer.inner.lines, []
        for s in sums:
            if s.matrix is None:
                lines.append(f"{self.sums[s]} = {self.sums[s]} + partial_sum({self._weight(s.weight).text})")
                continue
            (packed,) = self._packed([s])
            name, right = self.sums[s], self._in_ring(s.matrix, slot, transposed=False)
            lines.append(f"{name} = warpgroup_mma({packed}, {right}, {name}, is_async=True)")
            issued.append(name)
        return issued

    def _hand_over(self) -> None:
        """Writes this warpgroup's half of the weights that are summed over the rows, for both to read."""
        lines = self.writer.inner.lines
        for n, number in enumerate(self.memory.weights):
            matrix = next(s.matrix for s in self.binding.row_sums if s.weight == number)
            rounded = self._rounded(number, matrix)
            lines += ["sync(READ + 2 * W + slot, t > 1)"] if n == 0 else []
            lines.append(f"{self._own_rows(self._weights(number, 'slot'))}.store({rounded})")
        if self.memory.weights or self.memory.vectors or self.memory.overlays:
            lines.append("fence_async_shared()")  # what was written is read, and what was read is written, by copies
        lines += ["arrive(WRITTEN + 2 * (1 - W) + slot, True)"] if self.memory.weights else []

    def _issue_last(self, late: Sequence[LoopSum], early: list[str]) -> None:
        """Issues the other sums over the loop, those over the rows of the tile before, and the next tile's first
        products; waits for each of them when its time has come."""
        writer, binding = self.writer, self.binding
        lines, turns = writer.inner.lines, self.config.turns
        lines += ["more = t + 1 < count", *(["sync(TURN + W, True)"] if turns else [])]
        issued = self._sum_over_loop(late, "slot")
        lines += ["sync(WRITTEN + 2 * W + other, t > 0)"] if binding.row_sums else []
        lines += self._pairs_out("other", "t > 0")
        lines += self._sums_over_rows("other")
        added = [self.added[s] for s in binding.row_sums]
        if early:
            packed = self._packed(s for s in binding.loop_sums if binding.weights[s.weight].early)
            lines.append(wait_for(len(issued) + len(added), [*early, *packed]))
        lines.append("mbarrier.wait(ahead_full.index(other), (done + t + 1) >> 1 & 1, pred=more)")
        lines += [*self._ahead("other"), *(["arrive(TURN + 1 - W, True)"] if turns else [])]
        lines += [] if self._is_crowded() else self._along_diagonals()
        if issued or added:
            lines.append(wait_for(len(binding.ahead), [*issued, *added, *self._packed(late)]))
        lines.append("mbarrier.arrive(empty.index(slot))")
        if added:
            lines += self._pairs_left()
            lines.append("arrive(READ + 2 * (1 - W) + other, (t > 0) & more)")
            adding = self._adding(self._add(), "other")
            lines += ["if t > 0:", *(f"    {line}" for line in adding), f"previous = {self.blocks.of_tile()}"]
        # No product may be in flight at the back edge if other instructions read its result: ptxas serialises all.
        lines.append(wait_for(0, [self.products[p] for p in binding.ahead]))

    def _weights(self, number: int, slot: str) -> str:
        """The tile of a weight that is summed over the rows, in shared memory, as rows by columns of the loop."""
        buffer, pairs = f"{self.memory.weights[number]}.index({slot})", self.memory.pairs.get(number)
        if pairs is None:
            return buffer
        return matrix_in(buffer, pairs.operand, self.config.row_tile, self.config.loop_tile, transposed=False)

    def _pairs_out(self, slot: str, on: str) -> list[str]:
        """Lines by which the first warpgroup sends a whole tile of weights to memory, that of the step before.

        Both warpgroups have written their halves of it by then.
        """
        starts = {**self.writer.starts, self.loop.dim: f"previous * {COLUMNS_OF_A_BLOCK}"}
        lines = []
        for pair in self.binding.pairs:
            tile, where = self.memory.pairs[pair.weight], ", ".join(starts[d] for d in pair.store.order)
            lines.append(f"    copy_out({tile.map}, [{where}], {tile.buffer}.index({slot}))")
        return [f"if (W == 0) & ({on}):", *lines] if lines else []

    def _pairs_left(self) -> list[str]:
        """Waits until the tile that was sent has been read, so that shared memory may be written again."""
        return ["tma.store_wait(0)"] if self.binding.pairs else []

    def _is_crowded(self) -> bool:
        """Whether accumulators leave no registers for sums along diagonals beside the products of the next tile."""
        return columns_of_sums(self.binding) > MAX_COLUMNS_BESIDE_DIAGONALS

    def _along_diagonals(self) -> list[str]:
        """Lines that add this tile's sums along diagonals to memory."""
        return [self._along(s) for s in self.binding.diagonal_sums]

    def _along(self, s: DiagonalSum) -> str:
        writer, found = self.writer, diagonal(s.store)
        pointer, strides = writer.pointers[s.store.output]
        point = [f"gl.cast({writer.starts[d]}, gl.int64) * {n}" for d, n in zip(found.points, strides, strict=False)]
        offset = [str(found.constant), *(f"{c} * {writer.value(atom).text}" for atom, c in found.sizes.items())]
        sign = 1 if found.columns == self.loop.dim else -1
        between = f"({writer.starts[self.loop.dim]} - {writer.starts[self.rows]})"
        place = " + ".join([pointer, *point, *offset, f"{sign} * {between}"])
        return f"add_diagonals({place}, {self._weight(s.weight).text}, {sign})"

    def _sums_over_rows(self, slot: str) -> list[str]:
        """A warpgroup's part: 64 columns of a tile of 128, or half of the wide dim of all 64 columns."""
        lines, half = [], self.config.loop_tile == ROWS_OF_A_WARPGROUP
        for s in self.binding.row_sums:
            extent = part_of(s.matrix.inner, self.config)
            weights = self._weights(s.weight, slot)
            weights += "" if half else f".slice(W * {ROWS_OF_A_WARPGROUP}, {ROWS_OF_A_WARPGROUP}, 1)"
            matrix = self._held(s.matrix) + (f".slice(W * {extent}, {extent}, 1)" if half else "")
            zeros = f"gl.zeros([{ROWS_OF_A_WARPGROUP}, {extent}], gl.float32, ADDED{extent})"
            left = f"{weights}.permute((1, 0))"
            lines.append(f"{self.added[s]} = warpgroup_mma({left}, {matrix}, {zeros}, use_acc=False, is_async=True)")
        return lines

    def _add(self) -> list[str]:
        """Adds a warpgroup's part of the sums over the rows of the tile before to memory."""
        at = lambda s: self.blocks.part_of_warpgroup(s, "previous")
        return [f"add_in_order({at(s)}, {self.added[s]})" for s in self.binding.row_sums]

    def _adding(self, lines: list[str], slot: str) -> list[str]:
        """Lines that add to a block. Where that is done in order, a warp of its own says when it is this program's
        turn, and tells the next program. slot: of the tile, which is the parity of its number in this program.
        """
        if not self.config.in_order:
            return lines
        return [f"mbarrier.wait(turn_come.index(W), {slot})", *lines, "mbarrier.arrive(added_to.index(W))"]

    def _last(self) -> list[str]:
        """The sums over the rows of the last tile."""
        if not self.binding.row_sums:
            return []
        lines = ["slot = (done + count - 1) & 1", "sync(WRITTEN + 2 * W + slot, True)"]
        lines += [*self._pairs_out("slot", "True"), *self._sums_over_rows("slot")]
        lines += [wait_for(0, [self.added[s] for s in self.binding.row_sums]), *self._pairs_left()]
        return [*lines, *self._adding(self._add(), "slot")]

    def _finished(self) -> list[str]:
        """Lines behind the last tile. Both warpgroups have read all tiles before either writes one of the next item."""
        if not self.config.persistent:
            return []
        return ["mbarrier.arrive(held_empty.index(0))", "together()", "done += count"]

    # Results

    def _results(self) -> list[str]:
        lines: list[str] = []
        for store in self.binding.kernel.written_by(None):
            lines += self._stored(store)
        return lines

    def _stored(self, store: Store) -> list[str]:
        """Lines that store a result. Through shared memory, threads get elements that lie in one run."""
        writer = self.writer
        wide = [d for d in store.order if d not in (*self.binding.kernel.grid, self.rows)]
        writer.wide = wide[0] if wide else None
        extent = extent_of(wide[0]) if wide else 0
        writer.open_chunk(extent, 0, extent)
        before = len(writer.outer.lines)
        writer.wide_scope.lines = writer.outer.lines
        self._remember(wide)
        dims, kind = writer.sort(store.order), writer.type_name(store.output.dtype)
        value = atom(writer.spread(writer.value(store.term), dims).text)
        if wide and self.config.runs:
            value = f"gl.convert_layout({value}.to({kind}), VALUE{extent}_in_runs)"
            writer.open_chunk(f"{extent}_in_runs", 0, extent)
            writer.wide_scope.lines = writer.outer.lines
        pointer = writer.address(store.output, tuple(iota(d) for d in store.order), dims)
        mask = writer.conjunction(*(writer.padding(d) for d in dims))
        guard = f", mask={writer.align(mask, dims)}" if mask else ""
        lines = writer.outer.lines[before:]
        del writer.outer.lines[before:]
        return [*lines, f"gl.store({pointer}, {value}.to({kind}){guard})"]

    def _remember(self, wide: Sequence[Dim]) -> None:
        """Names the finished sums that have this wide dim, and those that have none."""
        writer = self.writer
        for s, name in self.sums.items():
            (reduction,) = s.accumulator.reductions
            if s.matrix is None:
                writer.outer.memo[reduction] = TileValue(f"row_sum({name}, ROWS)", (self.rows,))
            elif wide and wide[0] in reduction.dims:
                writer.wide_scope.memo[reduction] = TileValue(name, (self.rows, wide[0]))
