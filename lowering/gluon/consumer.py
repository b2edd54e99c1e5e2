"""A consumer's work on one item: the first tile, the loop over the others, what is left of the last one, the store.

A tile has one step for each group of states. A step issues its score products, then the value products of the step
before, and updates its states while the latter run. These are waited for before anything that they read or write is
used again: nobody else touches accumulators in flight. Where another warpgroup has a part of the values' columns, the
value products follow in the same step.
Example: with one step a tile, the scores of tile t + 1 are issued together with the value products of tile t.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from ...egraph.terms.positions import pair_of
from ...egraph.terms.term import Term
from ...egraph.terms.traversal import subterms
from ..analysis.softmax_scaling import ExponentScaling
from ..codegen.dialect import GLUON
from ..codegen.ops import INTEGER_LIMITS, MAX_LAG, TileValue, factor_text, identity, lagging_text
from ..codegen.tile_writer import pair_text, same_number
from ..codegen.tiles import Scope
from ..hopper.config import HopperConfig
from ..hopper.form_facts import accumulated, readers_of_columns
from ..hopper.kernel_form import Binding, Product, StateValue, chunks
from ..plan.device import H200
from ..plan.records import Accumulator
from ..plan.thresholds import HIDDEN_SCORE
from .epilogue import PieceTotals, StateNames, StoreWriter, chunks_of, decayed, hand_over, zeros
from .expressions import GluonWriter, Pending, WholeSums, matrix_in, name_products, summed, wait_for
from .kernel_parts import Buffers, LaunchShape, phase_of, slot_of
from .scores import MINUS_INFINITY, Scores, in_base_two, stretched
from .work_items import Walk

MAX_FETCHED_REGISTERS = 32  # of a thread, for what is fetched ahead
NARROW_RANGE = 8.0  # doublings from 1 to the largest weight of one byte, whose largest number is 448
PART_OF_REGISTERS = (9, 10)  # that accumulators, scores and weights may take so that a thread also keeps column numbers


@dataclass(frozen=True)
class StepOfTile:
    """A step of one tile. first: of the item's first tile. count: the number of tiles before this one, as text.

    earlier: the value products that the step before has left, whose tile has the number `earlier_count`.
    """

    number: int
    first: bool
    count: str
    earlier: list[Pending]
    earlier_count: str


class Consumer:
    """Writes the body of the loop over items."""

    def __init__(
        self, writer: GluonWriter, binding: Binding, config: HopperConfig, shape: LaunchShape, buffers: Buffers
    ):
        self.writer, self.binding, self.config, self.shape = writer, binding, config, shape
        self.rows, self.loop, self.listed = binding.kernel.rows, binding.loop, shape.listed is not None
        self.buffers = buffers
        self.more, self.words, self.cuts = "", "", (0, 0)
        self.partial = self.occupied = self.new_scale = ""
        self.whole = shape.masked == "none" and str(self.loop.dim) in shape.facts.even  # no element is ever absent
        every = [pair for step in binding.steps for pair in step.states]
        self.sums = summed(binding.products, _terms_of(accumulator for accumulator, _ in every))
        self.scores = name_products(writer, binding.products, self.sums)
        self.whole_sums = WholeSums(writer, self.scores)
        self.states = [[StateNames(writer, a, values) for a, values in step.states] for step in binding.steps]
        self.totals = self._piece_totals()
        self.keeps_columns = _has_room_for_columns(binding, config)
        self.bodies = [term for pair in every for term in _factors_of(*pair)]
        self.chunks = chunks_of(binding, config, 0)
        self.pending: list[list[Pending]] = self._plan_pending()
        self.arrivals, self.releases = readers_of_columns(binding)

    def _piece_totals(self) -> PieceTotals | None:
        """The totals of a loop in pieces, which has one state."""
        if not self.shape.facts.piece:
            return None
        ((state,),) = self.states
        tiles = self.shape.facts.piece // self.config.loop_tile
        return PieceTotals(self.writer, state, self.buffers.totals, tiles)

    def _plan_pending(self) -> list[list[Pending]]:
        """By step, the value products that it leaves to the next one."""
        found: list[list[Pending]] = []
        remaining = list(self.binding.matrices)
        for states in self.states:
            mine: list[Pending] = []
            for state in states:
                for value, names in zip(state.values, state.parts, strict=True):
                    if value.matrix:
                        remaining.remove(value.matrix)
                        packed = self.writer.names.fresh("packed")
                        mine.append(Pending(packed, value.matrix, names, value.matrix not in remaining))
            found.append(mine)
        return found

    # One item

    def item(self, walk: Walk, entering: list[str]) -> list[str]:
        """The lines of one item; `entering` asks for what its results need, when its first tile is done."""
        s, self.partial, self.occupied = self.config, walk.partial, walk.occupied
        prologue = [f"at = turn % {s.row_buffers} * {s.consumers} + W", *self._gather()]
        if copied := self.buffers.copied_rows:
            prologue += [f"mbarrier.wait({self.buffers.rows_full}.index(at), turn // {s.row_buffers} & 1)"]
        before, after = (self._skip(number) if number else [] for number in (walk.before, walk.after))
        body = [*prologue, *before, *self._first_tile(walk), *entering, *self._other_tiles(walk)]
        handed_back = [f"mbarrier.arrive({self.buffers.rows_empty}.index(at))"] if copied else []
        body += [f"count += {walk.count}", *handed_back]
        store = StoreWriter(self.writer, self.binding, self.config, self.states, self.buffers, self.chunks)
        totals = self.totals.finished() if self.totals else []
        body += self._drain() + after + totals + store.lines()
        return [*self.writer.outer.lines, *body, "turn += 1"]

    def _gather(self) -> list[str]:
        """Lines that put rows which are read by pointers into shared memory, where products take them from."""
        lines, writer = [], self.writer
        for ring in (ring for ring in self.buffers.rows if ring.operand.gathered):
            for buffer, (start, extent) in zip(ring.buffers, chunks(ring.operand.inner.size), strict=True):
                with writer.gathering(ring.operand, start, extent):
                    value = writer.value(ring.operand.load)
                lines.append(f"{buffer}.index(at).store({value.text})")
        return [*lines, "fence_async_shared()"] if lines else []

    def chained(self, walk: Walk, take: list[str]) -> tuple[list[str], list[str]]:
        """(before the loop over items, its body): an item's first scores are issued with the last products of the item
        before it, and that one's results leave while they run. After the last item they are issued in vain.
        """
        self.more, s, writer = ", pred=more", self.config, self.writer
        self.partial = walk.partial
        before = self._skip(f"({walk.before}) * gl.cast(more, gl.int32)") if walk.before else []
        first, rest = self._first_tile(walk), self._other_tiles(walk)
        enter = [*writer.outer.lines, f"at = turn % {s.row_buffers} * {s.consumers} + W"]
        enter += [f"mbarrier.wait({self.buffers.rows_full}.index(at), turn // {s.row_buffers} & 1, pred=more)", *before]
        issued, waited = self.cuts
        enter, wait, first = [*enter, *first[:issued]], first[issued:waited], first[waited:]
        body = [*first, *rest]
        body += [f"count += {walk.count}", "last = count - 1", f"mbarrier.arrive({self.buffers.rows_empty}.index(at))"]
        pending = self.pending[-1]
        body += self._issue(pending, "last") + self._keep_place()
        body += ["turn += 1", "more = position + 1 < high", *take, *enter]
        body += self._finish(pending, "last", outstanding=len(self.binding.products))
        body += StoreWriter(writer, self.binding, s, self.states, self.buffers, self.chunks).lines() + wait
        return [*enter, *wait], body

    def _keep_place(self) -> list[str]:
        """Names for where this item is, which its store needs after the next one has begun."""
        writer, lines = self.writer, []
        writer.outer = Scope()
        for dim, start in writer.starts.items():
            if dim != self.loop.dim:
                writer.starts[dim] = writer.names.fresh(f"{dim}_kept")
                lines.append(f"{writer.starts[dim]} = {start}")
        return lines

    def _skip(self, number: str) -> list[str]:
        """Hands back, unread, tiles that this warpgroup's rows have nothing in."""
        lines = []
        for _ in range(len(self.binding.steps) if self.config.turns else 0):
            lines += ["take_turn(W)", f"give_turn((W + 1) % {self.config.consumers})"]
        lines += [f"mbarrier.wait({self._at(ring.full)}, {self._phase()})" for ring in self.buffers.loop]
        lines += [f"mbarrier.arrive({self._at(e)})" for e in dict.fromkeys(r.empty for r in self.buffers.loop)]
        return [f"for t in range(0, {number}):", *(f"    {line}" for line in [*lines, "count += 1"])]

    def _at(self, name: str, count: str = "count") -> str:
        return slot_of(name, count, self.config.stages)

    def _phase(self, count: str = "count") -> str:
        return phase_of(count, self.config.stages)

    def _first_tile(self, walk: Walk) -> list[str]:
        return self._tile(True, walk.at("0"), None if self.shape.single else f"{walk.count} > 1")

    def _other_tiles(self, walk: Walk) -> list[str]:
        """The loop over an item's later tiles. Where there are none, its text would still take registers."""
        if self.shape.single:
            return []
        lines = self._tile(False, walk.at("t"), f"t + 1 < {walk.count}")
        return [f"for t in range(1, {walk.count}):", *(f"    {line}" for line in lines)]

    def _tile(self, first: bool, find: list[str], more: str | None) -> list[str]:
        """A tile's steps. An item's first has no value products before it. more: whether one follows; None if never."""
        writer, count = self.writer, "count" if first else "count + t"
        start = writer.names.fresh(f"{self.loop.dim}_start")
        writer.open(self.loop.dim, start, ragged=first or self.listed or self.totals is not None)
        writer.doubtful, writer.kept = self.loop.guard is not None, self._kept
        lines = writer.inner.lines
        lines += [*find, f"{start} = tile * {self.config.loop_tile}"]
        lines += [f"bits = thread_words({self.words}, tile, {self.config.loop_tile})"] if self.words else []
        self._fetch(first)
        if first:
            lines += self._arrive_at(0, count, "more" if self.more else None)
        for n in range(len(self.binding.steps)):
            earlier = [] if (first and n == 0) or self.buffers.handed else self.pending[n - 1]
            self._step(StepOfTile(n, first, count, earlier, count if n else f"{count} - 1"), more)
        return writer.close()

    def _kept(self) -> TileValue | None:
        """Those of a tile's elements that the guard keeps. In a guard, one part may keep what another drops."""
        before, self.writer.demands = self.writer.demands, False
        found = None if self.loop.guard is None else self.writer.value(self.loop.guard)
        self.writer.demands = before
        return found

    def _fetch(self, first: bool) -> None:
        """Asks for what lies along the loop before the products, whose time the loads then share.

        For guards that is done only where a tile needs them.
        """
        writer, guard = self.writer, self.loop.guard
        branched = not first and self.shape.masked == "some"
        always = dict.fromkeys(load for body in self.bodies for load in self._loads_along_the_loop(body))
        tested: dict[Term, None] = {}
        if guard is not None and (self.listed or not branched):
            tested = dict.fromkeys(load for load in self._loads_along_the_loop(guard) if load not in always)
        registers = sum(map(_registers, [*always, *tested])) * self.config.loop_tile // H200.product_rows
        if registers > MAX_FETCHED_REGISTERS:
            return
        for node in always:
            writer.value(node)
        writer.readable = TileValue(self.partial) if branched else None
        for node in tested:
            writer.value(node)
        writer.readable = None

    def _loads_along_the_loop(self, term: Term) -> list[Term]:
        grid = {*self.binding.kernel.grid}
        return [n for n in subterms(term) if n.op == "load" and n.dims - grid == {self.loop.dim}]

    def _arrive_at(self, n: int, count: str, more: str | None) -> list[str]:
        """Waits for the tiles that step n is the first to read."""
        guard = f", pred={more}" if more else ""
        return [
            f"mbarrier.wait({self._at(self.buffers.ring(o).full, count)}, {self._phase(count)}{guard})"
            for o in self.arrivals[n]
        ]

    def _step(self, at: StepOfTile, more: str | None) -> None:
        lines = self.writer.inner.lines
        self._issue_products(at)
        issued = len(lines)
        self._await_scores(at)
        if at.first:
            self.cuts = (issued, len(lines))
        lines += self.whole_sums.converted(self.scores[p] for p in self.binding.steps[at.number].products)
        late = self._states(at.number, at.first)
        if at.number + 1 < len(self.binding.steps):
            arrive = self._arrive_at(at.number + 1, at.count, None)
        else:
            arrive = [] if more is None else self._arrive_at(0, f"{at.count} + 1", more)
        if self.buffers.handed:  # no next scores run beside these value products: the other warpgroup's products do
            own = self.pending[at.number]
            lines += [*late, *self._issue(own, at.count), *self._finish(own, at.count), *arrive]
            return
        finish = self._finish(at.earlier, at.earlier_count)
        lines += [*finish, *arrive] if self.config.late else [*arrive, *finish]
        lines += late

    def _issue_products(self, at: StepOfTile) -> None:
        """Issues the step's score products, then the value products of the step before, when it is this one's turn."""
        lines, turns = self.writer.inner.lines, self.config.turns and (at.number > 0 or not at.first)
        lines += ["take_turn(W)"] if turns else []
        for product in self.binding.steps[at.number].products:
            lines += self._score(product, at.count)
        lines += self._issue(at.earlier, at.earlier_count)
        lines += [f"give_turn((W + 1) % {self.config.consumers})"] if turns else []

    def _await_scores(self, at: StepOfTile) -> None:
        """Waits for the step's scores and hands back the columns that it is the last to read."""
        writer, lines, products = self.writer, self.writer.inner.lines, self.binding.steps[at.number].products
        for node, parts in self.sums.items():
            name = self.whole_sums.name(self.scores[parts[0]])
            writer.inner.memo[node] = TileValue(name, (self.rows, self.loop.dim))
        overlays = self._overlays(at.count) if at.number == 0 else []
        lines += [] if self.config.deferred else overlays
        for diagonal in self.shape.diagonals if at.number == 0 else ():
            writer.read_diagonal(diagonal)
        names = list(dict.fromkeys(self.scores[p] for p in products))
        lines.append(wait_for(sum(len(p.accumulators) for p in at.earlier), names))
        lines += overlays if self.config.deferred else []
        lines += ["fence_async_shared()"] if overlays else []
        guard = self.more if at.first else ""
        for operand in self.releases[at.number]:
            lines.append(f"mbarrier.arrive({self._at(self.buffers.ring(operand).empty, at.count)}{guard})")

    def _overlays(self, count: str) -> list[str]:
        """Takes this warpgroup's part of tiles over rows and loop into registers.

        Before they are handed back there must be a fence, or a load may still be under way when the copy of the next
        tile lands: a barrier orders loads among threads, but not with the copies of another proxy.
        """
        lines, tile, number = [], self.config.loop_tile, self.config.consumers
        for operand in self.shape.overlays:
            ring, name = self.buffers.ring(operand), self.writer.names.fresh(f"{operand.tensor.name}_tile")
            slot = f"({count}) % {self.config.stages} * {number} + W"
            part = matrix_in(f"{ring.buffers[0]}.index({slot})", operand, H200.product_rows, tile, transposed=False)
            lines.append(f"mbarrier.wait({self._at(ring.full, count)}, {self._phase(count)})")
            lines.append(f"{name} = {part}.load(SCORE)")
            value = TileValue(name, (self.rows, self.loop.dim), operand.tensor.dtype)
            self.writer.inner.memo[operand.load] = value
        return lines

    def _score(self, product: Product, count: str) -> list[str]:
        """score = rows · columns, a product a chunk of the summed dim; or added to that of products before it."""
        name, lines = self.scores[product], []
        begun = any(product in parts[1:] for parts in self.sums.values())
        rows, columns = self.buffers.ring(product.rows), self.buffers.ring(product.columns)
        tile = self.config.loop_tile
        for k, (_, extent) in enumerate(chunks(product.rows.inner.size)):
            left = matrix_in(f"{rows.buffers[k]}.index(at)", product.rows, H200.product_rows, extent, transposed=False)
            right = matrix_in(self._at(columns.buffers[k], count), product.columns, tile, extent, transposed=True)
            into, adds = (name, True) if k > 0 or begun else self.whole_sums.start(name, tile)
            lines.append(f"{name} = warpgroup_mma({left}, {right}, {into}, use_acc={adds}, is_async=True)")
        return lines

    def _issue(self, earlier: list[Pending], count: str) -> list[str]:
        lines = []
        for matrix in dict.fromkeys(p.matrix for p in earlier if p.matrix not in self.binding.columns):
            lines.append(f"mbarrier.wait({self._at(self.buffers.ring(matrix).full, count)}, {self._phase(count)})")
        for p in earlier:
            ring = self.buffers.ring(p.matrix)
            for k, _, extent in self.chunks:
                right = matrix_in(
                    self._at(ring.buffers[k], count), p.matrix, self.config.loop_tile, extent, transposed=False
                )
                left, name = _left_factor(p, k), p.accumulators[k]
                lines.append(f"{name} = warpgroup_mma({left}, {right}, {name}, is_async=True)")
        return lines

    def _finish(self, earlier: list[Pending], count: str, outstanding: int = 0) -> list[str]:
        """Waits for the value products of the step before; then their matrices' slots are free."""
        if not earlier:
            return []
        names = [*dict.fromkeys(p.accumulators[k] for p in earlier for k, *_ in self.chunks)]
        names += [p.packed for p in earlier if not p.matrix.is_narrow]
        last = [p.matrix for p in earlier if p.last]
        return [
            wait_for(outstanding, names),
            *(f"kept_registers({p.packed})" for p in earlier if p.matrix.is_narrow),
            *(f"mbarrier.arrive({self._at(self.buffers.ring(m).empty, count)})" for m in last),
        ]

    def _drain(self) -> list[str]:
        last = [] if self.buffers.handed else self.pending[-1]
        return [*self._issue(last, "count - 1"), *self._finish(last, "count - 1")]

    # States

    def _states(self, n: int, first: bool) -> list[str]:
        """Writes a step's pointwise code and its states' scales and sums; the lines for after the wait."""
        if self.totals:
            return self._state_of_pieces(self.totals, first)
        late: list[str] = []
        pending = iter(self.pending[n])
        for state in self.states[n]:
            weight, decay = self._weigh(state, first) if state.record.gauge is not None else (None, None)
            for number, (value, names) in enumerate(zip(state.values, state.parts, strict=True)):
                if state.record.monoid == "max":
                    self._maximum(state, names[0], first)
                    continue
                summand = self._summand(value, weight, first)
                if value.matrix is None:
                    self._add(names[0], summand, decay, first)
                    continue
                packed = next(pending).packed
                if value.matrix.is_narrow:
                    late += self._rescale(names, decay, first) if state.record.totals[number] == number else []
                    late.append(f"{packed} = narrow_words({summand})")
                    continue
                weights = f"rounded({summand}, {self.writer.type_name(value.matrix.tensor.dtype)})"
                if self.buffers.handed:
                    half = self.writer.names.fresh("half")
                    late += [f"{half} = {weights}", *hand_over(self.buffers.handed, half, [decay] if decay else [])]
                    weights = half
                late += self._rescale(names, decay, first) if state.record.totals[number] == number else []
                late.append(f"{packed} = gl.convert_layout({weights}, WEIGHT0)")
        return late

    def _state_of_pieces(self, totals: PieceTotals, first: bool) -> list[str]:
        """As `_states`, for the one state of a loop in pieces: a tile's sums and halves are there before the wait."""
        lines, state, late = self.writer.inner.lines, totals.state, [] if first else totals.crossing()
        weight, decay = self._weigh(state, first)
        for value, names in state.pairs:
            found = self.writer.names.fresh("half" if value.matrix else "tile_sum")
            if value.matrix is None:
                lines.append(f"{found} = row_sum_in_pairs({weight}, ROWS)")
                late.append(f"{names[0]} = {found}" if first else f"{names[0]} = ({names[0]} * {decay}) + {found}")
                continue
            lines.append(f"{found} = rounded({weight}, {self.writer.type_name(value.matrix.tensor.dtype)})")
            (pending,) = self.pending[0]
            late += [*self._rescale(names, decay, first), f"{pending.packed} = gl.convert_layout({found}, WEIGHT0)"]
        return [*late, *(totals.cleared() if first else []), f"{state.scale} = {self.new_scale}"]

    def _rescale(self, names: tuple[str, ...], decay: str | None, first: bool) -> list[str]:
        if first:
            return [zeros(names[k], k, extent) for k, _, extent in self.chunks]
        return decayed([names[k] for k, *_ in self.chunks], decay, self.config) if decay else []

    def _weigh(self, state: StateNames, first: bool) -> tuple[str, str | None]:
        """(weights, decay) of a rescaled state; without a decay, the scale is fixed or the tile is the first."""
        scaling = self.writer.scaling_of(state.record.gauge, state.record.reductions)
        if state.fixed is not None:
            capped = self.writer.capped(scaling.raw, factor_text(scaling), state.fixed)
            if capped is not None:
                self._set_fixed_scale(state, first)
                return self._masked(capped, "0.0", first), None
        if self.totals:
            raw = self.writer.spread(self.writer.value(scaling.raw), (self.rows, self.loop.dim))
            score = self._masked(raw, MINUS_INFINITY, first)
            return self._weight_in_pieces(Scores(raw, scaling), score, first)
        form = self._stretched(state, scaling)
        form = form or in_base_two(self.writer, scaling, self.rows, self.loop.dim, self.keeps_columns)
        score = self._masked(self.writer.spread(form.value, (self.rows, self.loop.dim)), form.hidden, first)
        if state.fixed is not None and not form.lift:
            return self._bounded_weight(state, factor_text(form.scaling), score, first), None
        return self._weight_by_largest(state, form, score, first)

    def _stretched(self, state: StateNames, scaling: ExponentScaling) -> Scores | None:
        """The scores without factors of rows, where nothing asks for scores as they are, nor hides them by a number."""
        exact = bool(state.peak) or self.writer.needs_exact_scale(state.record.reductions)
        if exact or state.fixed is not None or self.words or self.loop.finite_mask:
            return None
        return stretched(self.writer, scaling, self.rows, self.loop.dim)

    def _set_fixed_scale(self, state: StateNames, first: bool) -> None:
        if first:
            text = f"gl.full([{H200.product_rows}], {state.fixed!r}, gl.float32, ROWS)"
            self.writer.inner.lines.append(f"{state.scale} = {text}")

    def _bounded_weight(self, state: StateNames, factor: str, score: str, first: bool) -> str:
        """The weights relative to a fixed scale, which no score exceeds."""
        writer, weight = self.writer, self.writer.names.fresh("weight")
        self._set_fixed_scale(state, first)
        clamped = not self.whole or bool(self.words)
        text = f"bounded_weights({score}, {state.fixed!r}, {factor}, {writer.emulated_eighths}, {clamped})"
        writer.inner.lines.append(f"{weight} = {text}")
        return weight

    def _weight_by_largest(
        self, state: StateNames, form: Scores, score: str, first: bool
    ) -> tuple[str, str | None]:
        """The weights relative to the largest score so far. A lazy scale grows only where it lags far behind."""
        writer, scale = self.writer, state.scale
        lines, fresh = writer.inner.lines, writer.names.fresh
        top = fresh("top")
        lines.append(f"{top} = {form.largest(score)}")
        if state.peak:
            lines.append(f"{state.peak} = {top if first else f'gl.maximum({state.peak}, {top})'}")
        narrow = any(v.matrix is not None and v.matrix.is_narrow for v in state.values)
        if narrow:  # the largest weight is 2^8, so that e4m3 holds weights down to 2^-17 of it
            lines.append(f"{top} = {top} - {form.doublings(NARROW_RANGE)}")
        new, shift, weight, decay = fresh("new_scale"), fresh("shift"), fresh("weight"), fresh("decay")
        grown = f"gl.maximum({scale}, {top})"
        if self.config.lazy and not narrow:
            grown = f"gl.where({top} > {scale} + {form.doublings(MAX_LAG)}, {top}, {scale})"
        lines.append(f"{new} = {top if first else grown}")
        lines.append(f'{shift} = gl.where({new} == float("-inf"), 0.0, {new})')
        exact = bool(state.peak) or writer.needs_exact_scale(state.record.reductions)
        fallen, weighed = form.weights(exact, score, scale, shift)
        lines += [] if first else [f"{decay} = {fallen}"]
        lines += [f"{weight} = {weighed}", f"{scale} = {new}"]
        return weight, None if first else decay

    def _weight_in_pieces(self, form: Scores, score: str, first: bool) -> tuple[str, str | None]:
        """As Triton computes weights of pieces. The piece before has its own scale until its products are there."""
        writer, totals = self.writer, self.totals
        assert totals is not None
        lines, fresh = writer.inner.lines, writer.names.fresh
        top, before, self.new_scale = map(fresh, ("top", "before", "new_scale"))
        shift, weight, decay = map(fresh, ("shift", "weight", "decay"))
        lines.append(f"{top} = {form.largest(score)}")
        lines += [] if first else totals.before(before)
        larger = f"gl.maximum({before}, {top})"
        if writer.facts.scales == "lagging":
            larger = lagging_text(form.scaling, before, top, GLUON)
        lines.append(f"{self.new_scale} = {top if first else larger}")
        lines.append(f'{shift} = gl.where({self.new_scale} == float("-inf"), 0.0, {self.new_scale})')
        fallen, weighed = form.weights(True, score, before, shift)
        lines += [f"{weight} = {weighed}", *([] if first else [f"{decay} = {fallen}"])]
        return weight, None if first else decay

    def _summand(self, value: StateValue, weight: str | None, first: bool) -> str:
        """weight · factors over a whole tile, zero where an element is absent."""
        writer, tile = self.writer, (self.rows, self.loop.dim)
        if weight is not None and not value.factors:
            return weight
        texts = [weight] if weight is not None else []
        texts += [writer.align(writer.value(f), tile) for f in value.factors]
        product = writer.assign("summand", writer.spread(TileValue(" * ".join(texts) or "1.0", tile), tile))
        return product.text if weight is not None else self._masked(product, "0.0", first)

    def _maximum(self, state: StateNames, name: str, first: bool) -> None:
        body = state.record.values[0]
        pair = pair_of(body)
        if pair is not None and self.loop.guard is None and not self.words:
            self._largest_pair(*pair, name, first)
            return
        scores = self.writer.spread(self.writer.value(body), (self.rows, self.loop.dim))
        found = self._masked(scores, identity("max", body.dtype), first)
        text = f"gl.convert_layout(gl.reduce({found}, 1, larger), ROWS)"
        self.writer.inner.lines.append(f"{name} = {text if first else f'larger({name}, {text})'}")

    def _largest_pair(self, number: Term, place: Term, name: str, first: bool) -> None:
        """Of the tile's largest number and its first place, which absent columns never are: they are the last ones."""
        writer, tile = self.writer, (self.rows, self.loop.dim)
        score = self._masked(writer.spread(writer.value(number), tile), identity("max", "float32"), first)
        top, least = writer.names.fresh("top"), writer.names.fresh("first")
        same, places = same_number(score, f"{top}[:, None]"), writer.align(writer.value(place), tile)
        writer.inner.lines.append(f"{top} = gl.reduce({score}, 1, larger)")
        found = f"gl.where({same}, {places}, {INTEGER_LIMITS[inf]})"
        writer.inner.lines.append(f"{least} = gl.reduce({found}, 1, smaller)")
        text = f"gl.convert_layout({pair_text(top, least)}, ROWS)"
        writer.inner.lines.append(f"{name} = {text if first else f'larger({name}, {text})'}")

    def _add(self, name: str, summand: str, decay: str | None, first: bool) -> None:
        text = f"partial_sum({summand})"
        if not first:
            text = f"added({name}, {decay}, {summand})" if decay else f"{name} + {text}"
        self.writer.inner.lines.append(f"{name} = {text}")

    def _masked(self, value: TileValue, absent: str, first: bool) -> str:
        """The value's name, `absent` where the guard is false, behind a branch where only some tiles need it."""
        writer = self.writer
        value = value if value.text.isidentifier() else writer.assign("found", value)
        if first and self.occupied:
            value = writer.assign("found", replace(value, text=f"gl.where({self.occupied}, {value.text}, {absent})"))
        padding = self._padding() if first else None
        if not self._tests_the_guard(first):
            return writer.assign("found", writer.where(padding, value, absent)).text if padding else value.text
        if first or self.shape.masked == "all":
            return writer.assign("found", self._present(value, absent, padding)).text
        return self._masked_behind_a_branch(value, absent)

    def _padding(self) -> TileValue | None:
        """Where the loop's elements exist. A packed mask says where the loop ends, but not under a finite mask."""
        return self.writer.padding(self.loop.dim) if not self.words or self.loop.finite_mask else None

    def _tests_the_guard(self, first: bool) -> bool:
        ends_later = self.totals is not None and str(self.loop.dim) not in self.shape.facts.even
        if self.loop.guard is None and not self.words and not ends_later:
            return False
        return self.shape.masked in ("some", "all") or (first and self.shape.masked == "first")

    def _masked_behind_a_branch(self, value: TileValue, absent: str) -> str:
        writer, around = self.writer, self.writer.inner
        name = writer.assign("found", value).text
        writer.inner = Scope(memo=dict(around.memo))
        padding = self._padding() if self.listed or self.totals else None
        text = self._present(TileValue(name, value.dims, value.dtype), absent, padding).text
        branch, writer.inner = [*writer.inner.lines, f"{name} = {text}"], around
        around.lines.append(f"if {self.partial}:")
        around.lines += [f"    {line}" for line in branch]
        return name

    def _present(self, value: TileValue, absent: str, padding: TileValue | None) -> TileValue:
        """The value where the guard holds: by the packed mask, and by what that lacks."""
        below, where = repr(HIDDEN_SCORE) if self.loop.finite_mask else absent, self.writer.where
        if self.words:
            value = TileValue(f"kept({value.text}, bits, {below})", value.dims, value.dtype)
        guard = self.writer.value(self.loop.guard) if self.loop.guard is not None else None
        if guard is not None and self.loop.finite_mask:
            value, guard = where(guard, value, below), None
        present = self.writer.conjunction(guard, padding)
        return value if present is None else where(present, value, absent)


def _left_factor(pending: Pending, chunk: int) -> str:
    """The weights as the left factor of the product into a chunk of an accumulator."""
    if pending.matrix.is_narrow:
        return f"narrow_operand({pending.packed}, WEIGHT{chunk})"
    return pending.packed if chunk == 0 else f"gl.convert_layout({pending.packed}, WEIGHT{chunk})"


def _terms_of(accumulators: Iterable[Accumulator]) -> list[Term]:
    """The exponents and the values of accumulators."""
    return [term for a in accumulators for term in (a.gauge, *a.values) if term is not None]


def _factors_of(accumulator: Accumulator, values: Iterable[StateValue]) -> list[Term]:
    """The exponent of an accumulator and the factors of its values."""
    exponent = [accumulator.gauge] if accumulator.gauge is not None else []
    return [*exponent, *(factor for value in values for factor in value.factors)]


def _has_room_for_columns(binding: Binding, config: HopperConfig) -> bool:
    """Whether a thread may keep a number for each of its columns, beside accumulators, scores and weights."""
    own = sum(extent for _, _, extent in chunks_of(binding, config, 0))
    columns = own if config.value_warpgroups else accumulated(binding)
    held = columns // 2 + config.loop_tile // 2 + config.loop_tile // 4 + config.loop_tile // 4
    part, whole = PART_OF_REGISTERS
    return held <= config.registers[1] * part // whole


def _registers(load: Term) -> int:
    """Of a thread, for a vector along 64 columns of scores."""
    return 16 * (2 if load.dtype in ("int64", "float64") else 1)
