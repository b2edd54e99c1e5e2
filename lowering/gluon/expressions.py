"""Terms as Gluon expressions: the writer of tiles with layouts, for the two tiles that a consumer warpgroup holds.

Scores are over (rows, loop), accumulators over (rows, a chunk of the value dim), in the layouts of their products.
A vector is a slice of a score layout. It is converted where it meets an accumulator.
Example: a row sum divides an accumulator as `gl.convert_layout(sum, gl.SliceLayout(1, VALUE0))[:, None]`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from ...egraph.terms.affine import affine, bounds
from ...egraph.terms.ops import cast, iota
from ...egraph.terms.sizes import resolve
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import subterms
from ..analysis.data_indices import place_conditions
from ..analysis.exact_products import as_stored, native
from ..analysis.product_terms import const_value, signed_factors
from ..analysis.softmax_scaling import LOG2_E
from ..codegen.dialect import GLUON
from ..codegen.matrix_products import float_of_bytes, start_of_bytes
from ..codegen.ops import TileValue, atom
from ..codegen.signature import Signature
from ..codegen.tile_writer import TileWriter
from ..codegen.tiles import Scope
from ..hopper.approximations import argument_of_tanh, is_mostly_small, linear_form
from ..hopper.config import WarpSettings
from ..hopper.form_facts import may_emulate
from ..hopper.kernel_form import Diagonal, Operand, Product, WarpBinding, chunks
from ..plan.device import H200
from ..plan.dtypes import is_integer, literal
from ..plan.launch_facts import Facts
from ..plan.queries import roots
from ..plan.records import NotPlannable

MAX_PRODUCERS = 4  # warps: they take no more registers than one, since registers are given to whole warpgroups
BRANCH = 32  # registers of a thread that branch together between two forms of a special function
EXACT = 1 << 22  # integers up to here are floats, also with a tile's padding added
HOPPER_FUNCTIONS = ("fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait")
COPIES = ("copy_in", "copy_out")
TILE_FUNCTIONS = (
    "added asked_for coarse_tangent counted decay_of diagonal_tile give_turn halves item_at items_here kept "
    "kept_registers level_of logistic_curve multiplied narrow_operand narrow_words nearest nonzero partial_sum "
    "quotient ramp rescaled rounded row_max row_sum row_sum_in_pairs stretched_max take_turn tangent thread_words "
    "unit_of widened"
).split()
SPECIAL_FUNCTIONS = ("bounded_weights", "capped_weights", "logistic_of", "small_logistic_of")
RESERVED = (
    *HOPPER_FUNCTIONS,
    *COPIES,
    *TILE_FUNCTIONS,
    *SPECIAL_FUNCTIONS,
    *"gl gluon W SCORE ROWS COLUMNS consumer producer position count turn start slot phase t w high items".split(),
    *"visits words total tile entry bits at item following more last place handed VECTORS".split(),
    *(f"consumer{w}" for w in range(H200.max_consumers)),
    *(f"producer{n}" for n in range(MAX_PRODUCERS)),
)


class GluonWriter(TileWriter):
    """Writes values of one function of the kernel; `chunk` is the part of the value dim that is being written."""

    def __init__(self, binding: WarpBinding, facts: Facts, config: WarpSettings, signature: Signature):
        kernel, tile = binding.kernel, config.loop_tile
        super().__init__(kernel, facts, roots(kernel), signature, GLUON)
        self.binding, self.wide = binding, binding.wide
        self.emulated_eighths = config.emulated_eighths if may_emulate(binding) else 0
        self.together = min(BRANCH, tile * H200.product_rows // H200.warpgroup)
        self.blocks = {kernel.rows: str(H200.product_rows), binding.loop.dim: str(tile)}
        self.scores: dict[tuple, str] = {}
        self.chunk: tuple[int | str, int, int] = (0, 0, 0)  # name of its layout, start, extent
        self.wide_scope = Scope()
        self.gathered: Term | None = None  # the load whose rows are being read
        self.wild: list[str] | None = None  # conditions under which the kernel stops, where they are tested together

    # Scopes and layouts

    def scope_of(self, dims: Collection[Dim]) -> Scope:
        if self.wide is not None and self.wide in dims:
            return self.wide_scope
        return super().scope_of(dims)

    def open_chunk(self, name: int | str, start: int, extent: int) -> None:
        self.chunk, self.wide_scope = (name, start, extent), Scope()

    def extent(self, dim: Dim) -> str:
        return str(self.chunk[2]) if dim == self.wide else super().extent(dim)

    def layout(self, dims: Iterable[Dim]) -> str:
        """The layout of a tile over these dims."""
        dims, value = tuple(dims), f"VALUE{self.chunk[0]}"
        known = {
            (self.kernel.rows,): "ROWS",
            (self.binding.loop.dim,): "COLUMNS",
            (self.kernel.rows, self.binding.loop.dim): "SCORE",
            (self.wide,): f"gl.SliceLayout(0, {value})",
            (self.kernel.rows, self.wide): value,
        }
        if dims not in known:
            raise NotPlannable(f"a tile over {', '.join(map(str, dims))} has no place in the form")
        return known[dims]

    def range_of(self, dim: Dim, wide: bool = False) -> TileValue:
        scope = self.scope_of((dim,)) if dim == self.wide else self.outer
        key = ("range", dim, wide)
        if key not in scope.memo:
            start = f"{self.chunk[1]} + " if dim == self.wide and self.chunk[1] else ""
            cast = ".to(gl.int64)" if wide else ""
            text = f"{start}gl.arange(0, {self.extent(dim)}, layout={self.layout((dim,))}){cast}"
            scope.memo[key] = self.assign(f"{dim}_range", TileValue(text, (dim,), "int64"), scope)
        return scope.memo[key]

    def padding(self, dim: Dim) -> TileValue | None:
        if dim != self.wide:
            return super().padding(dim)
        _, start, extent = self.chunk
        if start + extent <= resolve(dim.size, {}):
            return None
        return TileValue(f"{self.coordinate(dim).text} < {dim.size}", (dim,), "bool")

    def align(self, value: TileValue, dims: Iterable[Dim]) -> str:
        rows, dims = (self.kernel.rows,), tuple(dims)
        if self.wide in dims and value.dims == rows:
            return f"gl.convert_layout({value.text}, gl.SliceLayout(1, VALUE{self.chunk[0]}))[:, None]"
        return super().align(value, dims)

    def spread(self, value: TileValue, dims: Iterable[Dim]) -> TileValue:
        dims = self.sort({*dims, *value.dims})
        if value.dims == dims:
            return value
        whole = f"gl.full({self.shape(dims)}, True, gl.int1, {self.layout(dims)})"
        text = self.align(value, dims)
        return TileValue(f"gl.where({whole}, {text}, {text})", dims, value.dtype)

    @contextmanager
    def gathering(self, operand: Operand, start: int, extent: int) -> Iterator[None]:
        """Inside, rows are read that no tensor map describes. A part of their columns takes the place of the value dim.

        Where a row's index is no place, its numbers become NaN. A kernel that may stop here waits for each product.
        """
        before = self.wide, self.chunk, self.wide_scope
        self.wide, self.gathered = operand.inner, operand.load
        self.open_chunk(f"_GATHERED{extent}", start, extent)
        self.wide_scope.lines = self.outer.lines
        yield
        self.wide, self.chunk, self.wide_scope = before
        self.gathered = None

    def _is_spoiled(self, node: Term) -> bool:
        return super()._is_spoiled(node) or (node is self.gathered and bool(place_conditions(node)))

    # Terms

    def address(self, tensor: Tensor, index: tuple[Term, ...], dims: tuple[Dim, ...]) -> str:
        """A scalar base and the tile's offsets. These hold the tile's start, so that nothing can be computed once for
        all tiles and kept: registers are scarce."""
        pointer, strides = self.pointers[tensor]
        base, offsets = [pointer], []
        for position, stride in zip(index, strides, strict=True):
            coefficients, constant = affine(position)
            base += [f"{constant} * {stride}"] if constant else []
            for one, factor in coefficients.items():
                step = stride if factor == 1 else f"{factor} * {stride}"
                value = self.value(one)
                wide = tensor.name in self.facts.wide or one.op != "iota"
                text = f"{atom(value.text)}.to(gl.int64)" if wide and value.dims else atom(value.text)
                if value.dims:
                    offsets.append(TileValue(f"{text} * {step}", value.dims))
                else:
                    base.append(f"gl.cast({value.text}, gl.int64) * {step}")
        text = " + ".join(base)
        if len(base) > 1:
            home = self._dims_of_base(index)
            build = lambda: self.assign(f"{tensor.name}_base", TileValue(text), self.scope_of(home))
            text = self.once(("base", text), home, build).text
        return f"{text} + ({' + '.join(self.align(o, dims) for o in offsets)})" if offsets else text

    def _dims_of_base(self, index: tuple[Term, ...]) -> Collection[Dim]:
        """The loop where one place stands for a tile of it, else none."""
        by_tile = self.loop is not None and self.loop not in self.tile_dims
        return {self.loop} if by_tile and any(self.loop in position.dims for position in index) else ()

    def demand_page(self, load: Term) -> None:
        """The kernel stops where the page that a tile lies in is none of the tensor's."""
        conditions, dims = place_conditions(load), frozenset([self.binding.loop.dim])
        if conditions:
            self.once(("demanded", conditions), dims, lambda: self._demand(conditions, dims))

    @contextmanager
    def testing_together(self, lines: list[str]) -> Iterator[None]:
        """Conditions that are demanded inside are tested together, at the end, so that no load waits for a test."""
        self.wild = []
        yield
        wild, self.wild = self.wild, None
        if wild:
            lines += self._assertion(" | ".join(map(atom, wild)) if len(wild) > 1 else wild[0])

    def _assertion(self, wild: str) -> list[str]:
        if self.wild is None:
            return super()._assertion(wild)
        self.wild.append(wild)
        return []

    def read_diagonal(self, diagonal: Diagonal) -> None:
        """Reads a vector over loop minus rows; a warpgroup without rows reads what the last one does."""
        tensor, rows = diagonal.tensor, self.kernel.rows
        dims = (rows, self.binding.loop.dim)
        pointers = self.address(tensor, diagonal.load.args, dims)
        if str(rows) not in self.facts.even:
            text = f"gl.maximum({self.starts[rows]} + {H200.product_rows} - {self.sizes[rows]}, 0)"
            beyond = self.once(("beyond",), (), lambda: self.assign("beyond", TileValue(text), self.outer))
            pointers += f" + {beyond.text} * {diagonal.step}"
        value = self.assign(f"{tensor.name}_tile", TileValue(f"diagonal_tile({pointers}, {diagonal.step})", dims))
        as_stored = TileValue(f"{value.text}.to({self.type_name(tensor.dtype)})", dims, tensor.dtype)
        self.inner.memo[diagonal.load] = as_stored
        self.inner.memo[cast(diagonal.load, "float32")] = value

    def _build(self, node: Term, home: Scope) -> TileValue:
        """As the base class, but what is made of coordinates becomes a float without a conversion: those are slow."""
        if node.op == "cast" and node.dtype == "float32" and self.binding.loop.dim in node.dims:
            parts = _coordinates(node.args[0], (self.kernel.rows, self.binding.loop.dim))
            if parts is not None:
                return self._counted(*parts)
            if is_integer(node.args[0].dtype) and _small(node.args[0]):
                value = self.value(node.args[0])
                wide = any(n.op in ("load", "cast") for n in subterms(node.args[0]))  # what is no coordinate may be
                return TileValue(
                    f"counted({atom(value.text)}.to(gl.int32))" if wide else f"counted({value.text})", value.dims
                )
        return super()._build(node, home)

    def _counted(self, coefficients: dict[Term, int], constant: int) -> TileValue:
        texts, dims = [], self.sort({d for place in coefficients for d in place.dims})
        for place, factor in coefficients.items():
            at = self.value(place)
            build = lambda at=at: self.assign("counted", TileValue(f"counted({at.text})", at.dims))
            value = self.once(("counted", place), place.dims, build)
            texts.append(self.align(value, dims) if factor == 1 else f"{self.align(value, dims)} * {float(factor)}")
        return TileValue(" + ".join([*texts, *([str(float(constant))] if constant else [])]), dims)

    def _cast(self, value: TileValue, node: Term) -> TileValue:
        if (value.dtype, node.dtype) == ("bfloat16", "float32") and self.binding.loop.dim in value.dims:
            return TileValue(f"widened({value.text})", value.dims)
        return super()._cast(value, node)

    def _pointwise(self, node: Term, args: list[TileValue]) -> TileValue:
        if self.facts.piece:  # as Triton has it, to the bit
            return super()._pointwise(node, args)
        if node.op == "tanh" and set(args[0].dims) == {self.kernel.rows, self.binding.loop.dim}:
            kinds = {o.tensor.dtype for o in (*self.binding.row_operands, *self.binding.streams)}
            name = "coarse_tangent" if kinds == {"bfloat16"} else "tangent"
            return TileValue(f"{name}({args[0].text})", args[0].dims)
        if node.op == "sigmoid" and set(args[0].dims) == {self.kernel.rows, self.binding.loop.dim}:
            return self._logistic(node.args[0], args[0])
        if node.op == "div" and self.wide in args[0].dims and self.wide not in args[1].dims:
            inverse = self.assign("inverse", TileValue(f"1.0 / {self.align(args[1], args[1].dims)}", args[1].dims))
            dims = self.union(args[0], inverse)
            return TileValue(f"{self.align(args[0], dims)} * {self.align(inverse, dims)}", dims)
        return super()._pointwise(node, args)

    def _logistic(self, inside: Term, value: TileValue) -> TileValue:
        if not self.emulated_eighths:
            return TileValue(f"logistic_curve({value.text})", value.dims)
        term, scale, shift = linear_form(inside)
        value = self.spread(self.value(term), value.dims)
        numbers = f"{-scale * LOG2_E!r}, {-shift * LOG2_E!r}, {self.emulated_eighths}"
        if is_mostly_small(inside):
            return TileValue(f"small_logistic_of({value.text}, {numbers}, {self.together})", value.dims)
        return TileValue(f"logistic_of({value.text}, {numbers})", value.dims)

    def capped(self, raw: Term, factor: str, shift: float) -> TileValue | None:
        """2^(raw · factor - shift) where the raw score is tanh of a multiple and special functions are emulated."""
        found = argument_of_tanh(raw) if self.emulated_eighths else None
        if found is None:
            return None
        term, scale = found
        value = self.spread(self.value(term), self.sort(raw.dims))
        numbers = f"{scale!r}, {shift!r}, {factor}, {self.emulated_eighths}, {self.together}"
        return self.assign("weight", TileValue(f"capped_weights({value.text}, {numbers})", value.dims))

    def _reduce(self, node: Term) -> TileValue:
        """A product of the skeleton by its name, times the constant that was inside the sum."""
        parts = signed_factors(node.args[0])
        name = self.scores.get(product_key(node))
        if name is None:
            raise NotPlannable(f"the {node.attrs[0]} over {node.attrs[1]} is no product of the form")
        constant = prod(float(const_value(p, 1.0)) for p in parts)
        text = name if constant == 1.0 else f"{name} * {literal(constant)}"
        return TileValue(text, (self.kernel.rows, self.binding.loop.dim))


def _small(node: Term) -> bool:
    low, high = bounds(node)
    return low is not None and high is not None and 0 <= low and high < EXACT


def _coordinates(node: Term, dims: tuple[Dim, ...]) -> tuple[dict[Term, int], int] | None:
    """A sum of multiples of coordinates along these dims, if every float on the way to it is exact."""
    if not is_integer(node.dtype):
        return None
    coefficients, constant = affine(node)
    if any(atom not in [iota(d) for d in dims] for atom in coefficients):
        return None
    sizes = [d.size for d in dims if isinstance(d.size, int)]
    if len(sizes) < len(dims):
        return None
    largest = abs(constant) + sum(abs(factor) * max(sizes) for factor in coefficients.values())
    return (coefficients, constant) if largest < EXACT else None


def product_key(node: Term) -> tuple:
    """The same for a product with and without constants among its factors."""
    return node.attrs, frozenset(as_stored(p) or native(p) for p in signed_factors(node.args[0]) if p.op != "const")


@dataclass(frozen=True)
class Pending:
    """A value product to be issued with the next step: packed weights times a matrix into chunks of an accumulator."""

    packed: str
    matrix: Operand
    accumulators: tuple[str, ...]
    last: bool  # the last reader of the matrix in its tile


def summed(products: Collection[Product], bodies: Iterable[Term]) -> dict[Term, list[Product]]:
    """Sums of products that nothing else reads, in order: they have one accumulator, which each product adds to."""
    nodes = {n for body in bodies for n in subterms(body)}
    readers = Counter(a for n in nodes for a in n.args)
    addends = {p.node: [p] for p in _read_once(products, nodes, readers)}
    found: dict[Term, list[Product]] = {}
    for node in sorted((n for n in nodes if n.op == "add"), key=lambda n: sum(1 for _ in subterms(n))):
        left, right = (addends.get(a) for a in node.args)
        if left and right and node.args[0] is not node.args[1]:
            addends[node] = found[node] = [*left, *right]
            for part in node.args:
                found.pop(part, None)
    return found


def _read_once(products: Iterable[Product], nodes: Collection[Term], readers: Counter[Term]) -> list[Product]:
    """The products without a constant factor that one term reads, and that are one term only."""
    alike = Counter(product_key(n) for n in nodes if n.op == "reduce")
    alone = [p for p in products if readers[p.node] == alike[product_key(p.node)] == 1]
    return [p for p in alone if not any(f.op == "const" for f in signed_factors(p.node.args[0]))]


def name_products(writer: GluonWriter, products: list[Product], sums: dict[Term, list[Product]]) -> dict[Product, str]:
    """Names of accumulators; a sum's products have one, which is no name of any of theirs."""
    first = {p: parts[0] for parts in sums.values() for p in parts}
    names = {p: writer.names.fresh("score") for p in products if first.get(p, p) is p}
    writer.scores = {product_key(p.node): name for p, name in names.items() if p not in first}
    return {p: names[first.get(p, p)] for p in products}


class WholeSums:
    """Accumulators of products of int8: how many of these each adds up, and the name of the sum as float32.

    What reads a score reads that name. accumulators: of all products of a kernel.
    """

    def __init__(self, writer: GluonWriter, accumulators: Mapping[Product, str]):
        self.dialect, self.places, self.floats = writer.dialect, Counter[str](), dict[str, str]()
        for product, name in accumulators.items():
            if product.is_whole:
                self.places[name] += sum(extent for _, extent in chunks(product.rows.inner.size))
                self.floats[name] = self.floats.get(name) or writer.names.fresh("float_score")
        writer.scores = {key: self.name(name) for key, name in writer.scores.items()}

    def name(self, accumulator: str) -> str:
        """What is read of an accumulator."""
        return self.floats.get(accumulator, accumulator)

    def start(self, accumulator: str, columns: int) -> tuple[str, bool]:
        """What the first product of an accumulator is added to, and whether that is not 0."""
        tile = f"[{H200.product_rows}, {columns}]"
        if accumulator not in self.floats:
            return f"gl.zeros({tile}, gl.float32, SCORE)", False
        start = start_of_bytes(self.places[accumulator])
        return f"gl.full({tile}, {start}, gl.int32, SCORE)", start != "0"

    def converted(self, accumulators: Iterable[str]) -> list[str]:
        """Lines that name sums as float32, where they are integers."""
        whole = dict.fromkeys(name for name in accumulators if name in self.floats)
        return [f"{self.floats[n]} = {float_of_bytes(n, self.places[n], self.dialect)}" for n in whole]


def wait_for(outstanding: int, names: list[str]) -> str:
    """The wait that gives products in flight their values."""
    comma = "," if len(names) == 1 else ""
    return f"{', '.join(names)} = warpgroup_mma_wait({outstanding}, deps=({', '.join(names)}{comma}))"


def gathered_layout(columns: int) -> str:
    """A line that names the layout of 64 rows which are read by pointers: 16 bytes a thread, neighbours in a row."""
    across = min(32, columns // 8)
    layout = f"gl.BlockedLayout([1, 8], [{32 // across}, {across}], [4, 1], [1, 0])"
    return f"VALUE_GATHERED{columns} = gl.constexpr({layout})"


def matrix_in(text: str, operand: Operand, across: int, inner: int, transposed: bool) -> str:
    """A tile in shared memory as [across, inner], or as [inner, across]."""
    shape = (across, inner) if operand.across_first else (inner, across)
    text = f"{text}.reshape([{shape[0]}, {shape[1]}])" if len(operand.axes) > 2 else text
    return text if operand.across_first != transposed else f"{text}.permute((1, 0))"
