"""A plan's loop as a problem: its products, pointwise regions, folds, states and loads, each with what it costs.

Read off the terms alone: a tanh in a score is two more special-function instructions an element, whatever it is for.
The problem is of one sub-tile of rows on one warpgroup; subtiling.py makes several of it. Steady state: full tiles
only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod

from ...egraph.terms.ops import iota
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import substitute, subterms
from ..analysis.chunks import chunks
from ..analysis.dim_roles import stepped
from ..analysis.exact_products import as_stored, multiplied_bytes, native
from ..analysis.product_terms import sides, summand
from ..analysis.read_places import places_read
from ..analysis.softmax_scaling import exponent_scaling, fixed_scale
from ..hopper.approximations import EXP2
from ..hopper.kernel_form import MAX_OWN_COLUMNS
from ..hopper.score_offsets import split
from ..plan.device import COSTS, H200, HopperGpu
from ..plan.dtypes import BYTES, INT8, MULTIPLIED
from ..plan.queries import nodes
from ..plan.records import Accumulator, Kernel, Loop, NotPlannable
from .problem import Edge, Operation, Problem, Value

INTEGER_DIVISIONS = {"floordiv": 2, "mod": 3}  # instructions, by a literal
FLOAT_PRODUCT = 2  # time of a product of float32 tensors over that of a half precision one,
NARROW_PRODUCT = 0.5  # and of one of bytes
HALF_BYTES, FLOAT_BYTES = 2, 4  # bytes of an element in shared memory and in a register


@dataclass(frozen=True)
class Tile:
    """Extents of one sub-tile: rows of one warpgroup, columns of the loop."""

    rows: int = 64
    columns: int = 128


@dataclass(frozen=True)
class Counting:
    """How instructions and bytes are counted.

    splits_exponents: sums of coordinates in an exponent are numbers of rows and columns. emulated: the share of weights
    that are made by multiply-adds. refined: a load counts each element that it reads once, as table[j - i] does by
    diagonals, a division by a literal is a multiplication, and columns beside a loop are tiles. The stored schedules
    are of problems that do none of it.
    """

    splits_exponents: bool = False
    emulated: float = 0.0
    refined: bool = False


def loop_problem(
    kernel: Kernel,
    loop: Loop,
    tile: Tile = Tile(),
    machine: HopperGpu = H200,
    costs: dict[str, tuple] = COSTS,
    counting: Counting = Counting(),
) -> Problem:
    """The problem of one warpgroup's tile. Raises NotPlannable for a resident dim whose size is unknown."""
    builder = _Builder(kernel, loop, tile, machine, costs, counting)
    for number, accumulator in enumerate(loop.accumulators):
        builder.accumulator(accumulator, str(number))
    return Problem(
        name=f"{kernel.name} over {loop.dim}, {tile.rows}x{tile.columns}",
        slot=machine.slot,
        operations=tuple(builder.operations.values()),
        edges=tuple(dict.fromkeys(builder.edges)),
        values=tuple(builder.values),
        registers=tuple((n, machine.budget(n)) for n, _ in machine.partitions),
        shared_bytes=machine.shared_bytes,
        resident=sum(builder.resident.values()),
        load_latency=ceil(machine.load_latency / machine.slot),
    )


@dataclass
class _Region:
    """What a pointwise term costs in one tile, in instructions, and the operations that it reads."""

    fma: float = 0
    special: float = 0
    inputs: tuple[str, ...] = ()


class _Builder:
    def __init__(
        self,
        kernel: Kernel,
        loop: Loop,
        tile: Tile,
        machine: HopperGpu,
        costs: dict,
        counting: Counting,
    ):
        self.kernel, self.loop, self.machine, self.costs = kernel, loop, machine, costs
        self.counting = counting
        single = dict.fromkeys((*kernel.grid, *kernel.around), 1)
        self.extents = {**single, kernel.rows: tile.rows, loop.dim: tile.columns}
        if counting.refined:
            self.extents |= dict.fromkeys(kernel.columns, tile.columns) | ({} if loop.tile else {loop.dim: 1})
        self.stepped = stepped(kernel, nodes(kernel)) if counting.refined else set()
        self.chunks = chunks(kernel, nodes(kernel)) if counting.refined else {}
        self.operations: dict[str, Operation] = {}
        self.edges: list[Edge] = []
        self.values: list[Value] = []
        self.resident: dict[Term, int] = {}
        self.products: dict[Term, str] = {}
        self.loads: dict[Term, str] = {}

    def elements(self, dims: frozenset[Dim]) -> int:
        return prod(map(self.extent, dims))

    def extent(self, dim: Dim) -> int:
        found = self.extents.get(dim, dim.size)
        if not isinstance(found, int):
            raise NotPlannable(f"{dim} is held whole and of unknown size: no schedule")
        return found

    def elements_read(self, load: Term) -> int:
        return places_read(load, self.extent) if self.counting.refined else self.elements(load.dims)

    def registers(self, dims: frozenset[Dim], size: int) -> int:
        """Of a thread, for a value; of dims that are added up place by place, it has one place at a time."""
        return ceil(self.elements(dims - self.stepped) * size / FLOAT_BYTES / self.machine.warpgroup)

    # Operations and edges

    def add(self, name: str, work: dict[str, float], **kind) -> str:
        clocks = {unit: ceil(amount) for unit, amount in work.items() if amount > 0}
        duration = max(1, *(ceil(c / self.machine.slot) for c in clocks.values()))
        self.operations[name] = Operation(name, clocks, duration, duration, **kind)
        return name

    def pointwise(self, name: str, fma: float, special: float = 0) -> str:
        work = {"fma": fma / self.machine.lanes, "special": special / self.machine.special}
        return self.add(name, work if any(work.values()) else {"fma": 1})

    def multiplied(self, name: str, left: frozenset[Dim], right: frozenset[Dim], summed: Dim, cost: float) -> str:
        """A sum of products of two sides. cost: in times of a product of halves. In a refined count both are matrices:
        for each place of a batch that a tile holds, but not where the batch is the rows or columns of the tile.
        """
        batch = {d for d in (left & right) - {summed} if self.extents.get(d, d.size) != 1}
        if self.counting.refined and batch & {self.kernel.rows, self.loop.dim, *self.kernel.columns}:
            return self.pointwise(name, self.elements(left | right))
        flops = 2 * self.elements(left | right) * cost
        return self.add(name, {"tensor": flops / self.machine.tensor_flops}, synchronous=False)

    def edge(self, before: str, after: str, size: int, distance: int = 0) -> None:
        operation = self.operations[before]
        if operation.streaming:
            self.edges.append(Edge(before, after, 0, distance))
            return
        fixed, each = self.machine.hand_off
        transfer = ceil((fixed + each * size / 1024) / self.machine.slot)
        self.edges.append(Edge(before, after, operation.latency, distance, transfer, size))

    def load(self, node: Term) -> str:
        node = self._copied_once(node)
        if node not in self.loads:
            taken = set(self.loads.values())
            base = f"load {node.attrs[0].name}"
            name = next(n for k in range(len(taken) + 1) if (n := base + f" {k}" * (k > 0)) not in taken)
            size = self.elements_read(node) * _bytes(node)
            private = self.kernel.rows in node.dims
            work = {"copy": size / self.machine.copy_bytes}
            kind = {"synchronous": False, "streaming": True, "private": private, "bytes": self.held_bytes(node)}
            self.loads[node] = self.add(name, work, **kind)
        return self.loads[node]

    def _copied_once(self, node: Term) -> Term:
        """The load, or one that is there and reads the same tile: of wide values it is copied once."""
        wide = [d for d in node.dims if isinstance(d.size, int) and d.size > MAX_OWN_COLUMNS]
        alike = {iota(d): iota(o) for d in wide for n in self.loads for o in n.dims if o.size == d.size}
        renamed = substitute(node, alike)
        return renamed if renamed in self.loads else node

    # Terms

    def region(self, *roots: Term) -> _Region:
        """The pointwise work between the roots and the products and loads that they read."""
        found, inputs, seen = _Region(), [], set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node in seen or self.loop.dim not in node.dims:
                continue  # what does not move with the loop is computed before it
            seen.add(node)
            if node.op == "load":
                inputs.append(self.load(node))
            elif node.op == "reduce" and node.attrs[0] == "sum" and sides(node.args[0], node.attrs[1]):
                inputs.append(self.product(node))
                if multiplied_bytes(*sides(node.args[0], node.attrs[1])) == INT8:
                    found.fma += self.elements(node.dims)  # sums of 32 bits become float32
            else:
                folded = node.op == "reduce"
                fma, special = (1, 0) if folded else self.cost(node)
                count = self.elements((node.args[0] if folded else node).dims)
                found.fma, found.special = found.fma + fma * count, found.special + special * count
                stack += node.args
        found.inputs = tuple(dict.fromkeys(inputs))
        return found

    def cost(self, node: Term) -> tuple[float, float]:
        if native(node) is not None or _in_memory(node) is not None:
            return 0, 0  # half precision, and eight-bit floats, are widened where they are used
        if self.counting.refined and node.op in ("floordiv", "mod") and node.args[1].op == "const":
            return INTEGER_DIVISIONS[node.op], 0
        fixed = node.op == "div" and self.loop.dim not in node.args[1].dims  # by a reciprocal from before the loop
        return self.costs["mul" if fixed else node.op]

    def product(self, node: Term) -> str:
        """A contraction of held dims whose result is a tile of the loop."""
        if node not in self.products:
            operands = sides(node.args[0], node.attrs[1])
            name = f"product {len(self.products)}"
            self.products[node] = name
            left, right = (x.dims for x in operands)
            self.multiplied(name, left, right, node.attrs[1], product_cost(*operands))
            kind = multiplied_bytes(*operands)
            for side in operands:
                self.operand(side if kind is None else as_stored(side), name)
        return self.products[node]

    def operand(self, side: Term, product: str) -> None:
        """Feeds one side of a product: from shared memory if it is a load, from registers if it is computed."""
        raw = _in_memory(side) or native(side) or side
        if self.loop.dim not in side.dims and self.chunks.keys().isdisjoint(side.dims):
            self.resident |= {n: self.held_bytes(n) for n in subterms(side) if n.op == "load"}
        elif raw.op == "load":
            self.edge(self.load(raw), product, 0)
        else:
            found = self.region(side)
            name = self.pointwise(f"operand of {product}", found.fma + self.elements(side.dims) / 2, found.special)
            self.feed(found.inputs, name)
            size = self.elements(side.dims) * HALF_BYTES
            self.edge(name, product, size)
            registers = self.registers(side.dims, HALF_BYTES)
            self.values.append(Value(f"operand of {product}", name, ((product, 0),), registers))

    def held_bytes(self, node: Term) -> int:
        """Bytes of a tile that is there at a time: of a dim that is read in chunks, one of them."""
        whole = prod(self.extent(d) for d in self.chunks if d in node.dims)
        chunk = prod(places for d, places in self.chunks.items() if d in node.dims)
        return self.elements_read(node) * _bytes(node) * chunk // whole

    def feed(self, inputs: tuple[str, ...], reader: str) -> None:
        for name in inputs:
            streaming = self.operations[name].streaming
            self.edge(name, reader, 0 if streaming else self.elements(self.dims_of(name)) * FLOAT_BYTES)

    def dims_of(self, product: str) -> frozenset[Dim]:
        return next(node for node, name in self.products.items() if name == product).dims

    # States

    def accumulator(self, record: Accumulator, number: str) -> None:
        if record.gauge is None and record.monoid != "sum":
            self.fold(record, number)
            return
        guard = self.loop.guard
        checked = [guard] if guard is not None and not self.loop.limits_only else []
        weighted = frozenset() if record.gauge is None else record.gauge.dims
        weight = self.weight(record, number, checked) if record.gauge is not None else None
        guarded = guard.dims if guard is not None else frozenset()
        for part, value in enumerate(record.values):
            gauge_dims = weighted if record.gauge is not None else None
            factors = summand(value, self.loop.dim, record.monoid, gauge_dims, guarded)
            name, among = f"{number}.{part}", checked if weight is None else []
            found = self.sum(factors, name, number, weight, weighted, among)
            total = f"{number}.{record.totals[part]}"
            if found is not None and total != name:
                self.add_to_total(found[0], total)
            elif found is not None:
                self.carry(*found, name, number if weight is not None else None, weighted - {self.loop.dim})

    def fold(self, record: Accumulator, number: str) -> None:
        """A tile whose elements are folded one by one: numbers of 64 bits where each has its position."""
        found, dims = self.region(*record.values), record.values[0].dims | {self.loop.dim}
        name = self.pointwise(f"fold {number}", found.fma + self.elements(dims), found.special)
        self.feed(found.inputs, name)
        registers = self.registers(dims, max(FLOAT_BYTES, *map(_bytes, record.values)))
        self.values.append(Value(f"folded {number}", name, ((name, 0),), registers))
        self.edge(name, name, FLOAT_BYTES, 1)

    def weight(self, record: Accumulator, number: str, checked: list[Term]) -> str:
        """Scores -> their largest so far -> weights: the part of a rescaled state that all its values share."""
        how, dims, count = exponent_scaling(record.gauge), record.gauge.dims, self.elements(record.gauge.dims)
        parts = split(record.gauge, self.kernel.rows, self.loop.dim) if self.counting.splits_exponents else None
        found = self.region(*([how.raw] if parts is None else [term for _, term in parts.scores]), *checked)
        found.fma += count * (len(checked) + (parts is not None and bool(parts.slopes)))
        sources = found.inputs
        if found.fma or found.special:
            name = self.pointwise(f"pointwise {number}", found.fma, found.special)
            self.feed(sources, name)
            sources = (name,)
        largest = self.pointwise(f"largest {number}", count)
        part = self.counting.emulated if fixed_scale(self.kernel, record) is not None else 0.0
        fma = 1 + how.apart + part * (EXP2.instructions + EXP2.limit * bool(checked))
        weight = self.pointwise(f"weight {number}", count * fma, count * (1 - part))
        size = count * FLOAT_BYTES
        for name in sources:
            self.edge(name, largest, size)
        self.edge(largest, largest, self.row_bytes(dims), 1)
        self.edge(largest, weight, size)
        self.hold(found.inputs, sources, dims, number, weight)
        return weight

    def row_bytes(self, dims: frozenset[Dim]) -> int:
        return self.elements(dims - {self.loop.dim}) * FLOAT_BYTES

    def hold(self, inputs, sources, dims: frozenset[Dim], number: str, last: str) -> None:
        """Registers of the scores: in place from the product that makes them to the weights' last reader."""
        products = [n for n in inputs if n in self.products.values()]
        for extra in products[1:]:
            registers = self.registers(self.dims_of(extra), FLOAT_BYTES)
            self.values.append(Value(f"tile of {extra}", extra, ((sources[0], 0),), registers))
        first = products[0] if products else sources[0] if sources else last
        self.values.append(Value(f"scores {number}", first, ((last, 0),), self.registers(dims, FLOAT_BYTES)))

    def sum(
        self, factors, name: str, number: str, weight: str | None, weighted, checked: list[Term]
    ) -> tuple[str, frozenset[Dim]] | None:
        """One sum of weight · left · right over the loop: its tensor product and dims, where right is a matrix."""
        left = factors.left.dims if factors.left is not None else frozenset()
        dims = (weighted | left | {self.loop.dim}) & {d for d in (weighted | left)} or frozenset({self.loop.dim})
        found = self.region(*([factors.left] if factors.left is not None else []), *checked)
        count = self.elements(dims)
        multiplied = count * (weight is not None and factors.left is not None)
        folded = factors.right is None
        narrow = self.narrow(number, weight, found, multiplied + count * len(checked), count, folded, name)
        if folded:
            return None
        total = (dims | factors.right.dims) - {self.loop.dim}
        cost = product_cost(factors.right)
        product = self.multiplied(f"accumulate {name}", dims, factors.right.dims, self.loop.dim, cost)
        self.operand(factors.right, product)
        self.edge(narrow, product, count * HALF_BYTES)
        if f"narrowed {narrow}" not in {v.name for v in self.values}:
            registers = self.registers(dims, HALF_BYTES)
            self.values.append(Value(f"narrowed {narrow}", narrow, ((product, 0),), registers))
        return product, total

    def narrow(self, number, weight, found: _Region, multiplied, count, folded: bool, name: str) -> str:
        """The operation that makes a product's left side of the weights; sums of weights alone are part of it."""
        shared = weight is not None and not multiplied
        key = f"narrow {number}" if shared else f"narrow {name}"
        extra = count if folded else count / 2
        if key in self.operations:
            before = self.operations[key].work.get("fma", 0) * self.machine.lanes
            self.widen(key, before + extra)
            return key
        self.pointwise(key, found.fma + multiplied + extra, found.special)
        self.feed(found.inputs, key)
        if weight is not None:
            self.edge(weight, key, count * FLOAT_BYTES)
            self.extend(f"scores {number}", key)
        return key

    def widen(self, key: str, fma: float) -> None:
        """More work for an operation that is there already; the edges from it follow its new latency."""
        old = self.operations[key]
        special = old.work.get("special", 0) * self.machine.special
        self.pointwise(key, fma, special)
        latency = self.operations[key].latency
        self.edges = [replace(e, delay=latency) if e.before == key else e for e in self.edges]

    def extend(self, value: str, reader: str) -> None:
        """The value is held until one more reader has ended."""
        self.values = [replace(v, readers=(*v.readers, (reader, 0))) if v.name == value else v for v in self.values]

    def add_to_total(self, product: str, name: str) -> None:
        """The product is added to the total of another one, behind that."""
        self.edge(f"accumulate {name}", product, 0)
        self.edge(product, f"rescale {name}", 0, 1)

    def carry(self, product: str, total: frozenset[Dim], name: str, number: str | None, rows: frozenset[Dim]) -> None:
        """The running total in registers; under a gauge it is rescaled before each addition."""
        size, owner = self.elements(total) * FLOAT_BYTES, product
        if number is not None:
            owner = self.pointwise(f"rescale {name}", self.elements(total))
            self.edge(f"largest {number}", owner, self.row_bytes(rows))
            self.edge(owner, product, size)
            self.edge(product, owner, size, 1)
        self.edge(product, product, size, 1)
        registers = self.registers(total, FLOAT_BYTES)
        self.values.append(Value(f"total {name}", owner, ((owner, 1),), registers, carried=True))


def state_of(value: Value) -> str | None:
    """The number of the state whose scores or weights these are; None for what belongs to no state."""
    kind, *_, last = value.name.split()
    return last.split(".")[0] if kind in ("scores", "narrowed") else None


def _bytes(node: Term) -> int:
    known = {"float32": 4, "int32": 4, "int64": 8, "float64": 8, "bool": 1, "uint8": 1, **dict.fromkeys(BYTES, 1)}
    return known.get(node.dtype, HALF_BYTES)


def _in_memory(side: Term) -> Term | None:
    """The load that a product takes as it is; int8 is converted first, but beside int8."""
    found = as_stored(side)
    return None if found is None or found.dtype == INT8 else found


def product_cost(*sides: Term) -> float:
    """What a product costs in times of one of halves, by what its sides load: of bytes alone it is half of it."""
    nodes = [n for side in sides for n in subterms(side) if n.op == "load"]
    kinds = {n.dtype for n in nodes if n.dtype.startswith(("float", "bfloat"))}
    if (len(kinds) == 1 and kinds <= {*BYTES} and len(sides) > 1) or multiplied_bytes(*sides) is not None:
        return NARROW_PRODUCT
    return 1 if kinds <= {*MULTIPLIED} else FLOAT_PRODUCT
