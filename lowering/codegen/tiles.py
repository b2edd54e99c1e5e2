"""Tiles of a kernel as text: scopes and names, shapes, coordinates; the ground of the writer of terms.

A value knows its tile dims, in one global order, and broadcasts by name. What is written goes into the outermost scope
that has its dims. Example: a value over rows i meets one over columns j as `x[:, None]` and `y[None, :]`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from ...egraph.terms.term import Dim, Term
from ..analysis.chunks import chunks
from ..analysis.dim_roles import leading_dims, stepped
from ..plan.launch_facts import Facts
from ..plan.queries import nodes as nodes_of
from ..plan.records import BlockMap, Kernel, NotPlannable
from .dialect import TRITON, Dialect
from .ops import TileValue, atom
from .signature import Signature
from .tile_extents import columns_of_cubes, resident_extents

Built = TypeVar("Built")


@dataclass
class Scope:
    """Lines of a kernel's text, and the values that they define."""

    lines: list[str] = field(default_factory=list)
    memo: dict = field(default_factory=dict)


@dataclass
class Skewing:
    """Of a kernel's text: whether it skews weights (used), and whether it is the text that runs once more (exact).

    relative_products.py says what skewed weights are. scores: by its weight's text, the score; -∞ where an element is
    absent. tiles: extents of the tiles of loops that run column by column.
    """

    used: bool = False
    exact: bool = False
    scores: dict[str, TileValue] = field(default_factory=dict)
    tiles: dict[Dim, str] = field(default_factory=dict)


class Tiles(ABC):
    """The tiles of one kernel, or of one function of it.

    outer: straight-line code. inner: the body of the loop that is being written. middle: what stands between the two,
    for one index of each dim around the loop, or around all that is written (walks). fixed: lines of the outer scope
    about the tile of the loop that is being written, the same in all rounds of what walks. serial_place: a dim that is
    folded place by place, or chunk by chunk, inside of any of them, with its scope.
    """

    def __init__(
        self, kernel: Kernel, facts: Facts, roots: Iterable[Term], signature: Signature, dialect: Dialect = TRITON
    ):
        self.kernel, self.facts, self.dialect = kernel, facts, dialect
        self.call, self.type_name = dialect.call, dialect.type_name
        doubles = any(t.dtype == "float64" for t in (*kernel.inputs, *(s.output for s in kernel.stores)))
        self.weak = "float64" if doubles else "float32"  # the dtype of what is computed from literals alone
        self.names, self.pointers = signature.names, signature.pointers
        self.sizes, self.scalars = signature.sizes, signature.scalars
        nodes = nodes_of(kernel, roots)
        self.uses = Counter(a for node in nodes for a in node.args)
        self._place_dims(nodes)
        self.outer, self.middle, self.inner = Scope(), Scope(), Scope()
        self.fixed = Scope(self.outer.lines)
        self.around: frozenset[Dim] = frozenset()  # dims around the loop that is being written
        self.among: frozenset[Dim] = frozenset()  # those of them that the term that is being written has
        self.walks = False  # whether all stands in one loop over these dims, but for what is the same in each round
        self.loop: Dim | None = None
        self.ragged = False  # the loop's last tile may be cut off by the end of the dim
        self.readable: TileValue | None = None  # those of the loop's elements that may be read
        self.keeping: frozenset[Dim] = frozenset()  # dims that are walked over and decide what the loop keeps
        self.doubtful = False  # whether a tile of the loop may have elements whose data may be anything
        self.reached: TileValue | None = None  # those of the loop's elements that its limits keep
        self.demands = True  # whether an index that is read from memory must be a place of the tensor
        self.kept: Callable[[], TileValue | None] = lambda: None  # of which of the tile's elements; None: of all
        self.kept_columns: TileValue | None = None  # those that some row keeps, where the limits of the loop say it
        self.noted: dict[str, None] = {}  # names of what loops have noted against it
        self.serial_place: tuple[Dim, Scope] | None = None
        self.starts: dict[Dim, str] = {}
        self.maps: dict[BlockMap, str] = {}
        self.skewing = Skewing()

    def _place_dims(self, nodes: Collection[Term]) -> None:
        """The dims of tiles: leading, row, column and resident ones, with the names or the numbers of their extents."""
        kernel = self.kernel
        self.lead = leading_dims(kernel, nodes)
        self.summed = {n.attrs[1] for n in nodes if n.op == "reduce"}  # dims that are summed, or folded, within a tile
        self.serial_dims = stepped(kernel, nodes) if self.dialect.folds_serially and not self.lead else set()
        self.chunked = chunks(kernel, nodes) if self.dialect.folds_serially and not self.lead else {}
        self.resident = resident_extents(kernel, nodes, self.serial_dims, self.dialect)
        self.resident |= self.chunked
        self.rows = kernel.tiled
        columns = dict.fromkeys(loop.dim for loop in kernel.loops if loop.tile)
        others = [*columns, *(d for d in self.resident if d not in self.lead)]
        self.tile_dims = self._in_order(others, columns_of_cubes(kernel, nodes))
        self.blocks = {kernel.rows: kernel.row_tile} if kernel.rows else {}
        self.blocks |= {d: f"{d.name}_tile" for d in kernel.columns} | {x.dim: x.tile for x in kernel.loops if x.tile}

    def _in_order(self, others: list[Dim], first: Collection[Dim]) -> tuple[Dim, ...]:
        """The one order of axes in all tiles. first: those of the others that stand before the rows in any case."""
        before, behind = [d for d in others if d in first], [d for d in others if d not in first]
        rows = [*self.rows]
        return (*self.lead, *before, *(behind + rows if self.facts.rows_last else rows + behind))

    def half_of(self, dim: Dim) -> Dim | None:
        """A dim of half the columns, in the place of the whole one; None if no tile holds that without padding."""
        extent = self.resident.get(dim, 0)
        if not isinstance(extent, int) or extent != dim.size or extent % 2 or extent == 2:
            return None
        half = Dim(f"{dim.name}_half", extent // 2)
        if half not in self.resident:
            self.resident[half], at = extent // 2, self.tile_dims.index(dim)
            self.tile_dims = (*self.tile_dims[:at], half, *self.tile_dims[at:])
        return half

    @abstractmethod
    def value(self, node: Term, scope: Scope | None = None) -> TileValue:
        """The term's value. scope: of the reader; there a short value that is used once may stay an expression."""

    # Scopes and names

    def open(self, loop: Dim, start: str, ragged: bool) -> None:
        """Begins the body of a loop, whose tiles begin at the coordinate `start`."""
        self.inner, self.fixed = Scope(), Scope(self.outer.lines)  # another loop over the dim may keep other elements
        self.loop, self.ragged = loop, ragged
        self.starts[loop] = start

    def open_around(self, dims: Mapping[Dim, str]) -> None:
        """Begins what runs for each index of these dims, given by name."""
        self.middle, self.around = Scope(), frozenset(dims)
        self.starts.update(dims)

    def close_around(self) -> list[str]:
        """Ends what runs for each index of the dims around a loop, and gives its lines but those of the loop."""
        self.around = frozenset()
        return self.middle.lines

    @contextmanager
    def writing(self, dims: Collection[Dim]) -> Iterator[None]:
        """What is written inside belongs to a term with these dims: it stands where each of them has an index."""
        before, self.among = self.among, self.around.intersection(dims)
        try:
            yield
        finally:
            self.among = before

    def close(self) -> list[str]:
        """Ends the body of a loop and gives its lines."""
        lines, self.loop, self.ragged, self.readable = self.inner.lines, None, False, None
        self.doubtful, self.reached, self.demands = False, None, True
        self.kept, self.kept_columns = lambda: None, None
        return lines

    @contextmanager
    def in_first_column(self) -> Iterator[None]:
        """What is written inside is the same in all columns of the loop's tile: it is computed for the first."""
        before = self.tile_dims, self.inner
        self.inner = self.once("first column", (self.loop,), lambda: Scope(self.inner.lines))
        self.tile_dims = tuple(d for d in self.tile_dims if d != self.loop)
        yield
        self.tile_dims, self.inner = before

    @contextmanager
    def stepping(self, dim: Dim, place: str) -> Iterator[Scope]:
        """What depends on the dim is written for one place of it, or one chunk, into a scope of its own."""
        scope = Scope()
        self.starts[dim], self.serial_place = place, (dim, scope)
        yield scope
        self.serial_place = None

    def steps_in(self, dims: Collection[Dim]) -> bool:
        """Whether one place, or one chunk, of a dim among these is being written."""
        return self.serial_place is not None and self.serial_place[0] in dims

    def scope_of(self, dims: Collection[Dim]) -> Scope:
        """The outermost scope that has these dims. Raises NotPlannable outside of the loop of one of them."""
        if self.serial_place is not None and self.serial_place[0] in dims:
            return self.serial_place[1]
        missing = [d for d in dims if self._is_looped(d) and d != self.loop and d not in self.around]
        if missing:
            raise NotPlannable(f"a value over {missing[0]} is needed outside the loop over {missing[0]}")
        is_fixed = self.among.union(dims).isdisjoint(self.around)
        if self.loop in dims:
            return self.fixed if self.walks and is_fixed else self.inner
        return self.outer if is_fixed else self.middle

    @property
    def readable_here(self) -> TileValue | None:
        """Those of the loop's elements that may be read by what is being written: a tile that is the same in all rounds
        is read whole where each round keeps others of its elements.
        """
        return None if self.keeping and not self.among else self.readable

    def _is_looped(self, dim: Dim) -> bool:
        return (dim in self.blocks and dim not in self.rows) or dim in self.kernel.around

    def assign(self, hint: str, value: TileValue, scope: Scope | None = None) -> TileValue:
        """Gives the value a name, by a line in its scope."""
        name = self.names.fresh(hint)
        (scope or self.scope_of(value.dims)).lines.append(f"{name} = {value.text}")
        return TileValue(name, value.dims, value.dtype)

    def once(self, key: object, dims: Collection[Dim], build: Callable[[], Built]) -> Built:
        """What belongs to a key, built at its first use in the scope of these dims."""
        memo = self.scope_of(dims).memo
        if key not in memo:
            memo[key] = build()
        return memo[key]

    # Shapes

    def sort(self, dims: Collection[Dim]) -> tuple[Dim, ...]:
        """The dims in the order of tiles. Dims that tiles lack are left out."""
        return tuple(d for d in self.tile_dims if d in dims)

    def union(self, *values: TileValue) -> tuple[Dim, ...]:
        """The dims of all values, in the order of tiles."""
        return self.sort({d for v in values for d in v.dims})

    def extent(self, dim: Dim) -> str:
        """The places that the dim has in a tile, as text: a name or a number."""
        return self.blocks.get(dim) or str(self.resident[dim])

    def tile_of(self, loop: Dim) -> str:
        """How many columns of a loop go together, also where they are written one by one."""
        return self.skewing.tiles.get(loop) or self.blocks[loop]

    def shape(self, dims: Iterable[Dim]) -> str:
        """The shape of a tile over these dims, as text."""
        return f"[{', '.join(self.extent(d) for d in dims)}]"

    def align(self, value: TileValue, dims: Iterable[Dim]) -> str:
        """The value's text as an atom that broadcasts against a tile of `dims`."""
        dims = tuple(dims)
        if not value.dims or value.dims == dims:
            return atom(value.text)
        return f"{atom(value.text)}[{', '.join(':' if d in value.dims else 'None' for d in dims)}]"

    def hoisted(self, value: TileValue, dims: tuple[Dim, ...]) -> TileValue:
        """A matrix as it broadcasts against a tile of three dims, written before the loop if the matrix is from there.

        In several loops, Triton 3.6 would share its change of layout among them, where it is not defined.
        """
        if self.loop not in dims or self.loop in value.dims or len(value.dims) < 2 or self.serial_place is not None:
            return value
        wide = TileValue(self.align(value, dims), dims, value.dtype)
        build = lambda: self.assign(f"{value.text}_wide", wide, self.scope_of(()))
        return self.once(("wide", value.text, dims), (), build)

    def spread(self, value: TileValue, dims: Iterable[Dim]) -> TileValue:
        """The value at the full shape of `dims` and its own: for folds, which need every element to be there."""
        dims = self.sort({*dims, *value.dims})
        if value.dims == dims:
            return value
        if value.dims:
            text = self.call("broadcast_to", self.align(value, dims), self.shape(dims))
        else:
            dtype = self.weak if value.dtype == "float" else value.dtype
            text = self.call("full", self.shape(dims), value.text, self.type_name(dtype))
        return TileValue(text, dims, value.dtype)

    def where(self, condition: TileValue, value: TileValue, otherwise: str) -> TileValue:
        """The value where the condition holds, else the scalar `otherwise`."""
        dims = self.union(condition, value)
        text = self.call("where", self.align(condition, dims), self.align(value, dims), otherwise)
        return TileValue(text, dims, value.dtype)

    def conjunction(self, *conditions: TileValue | None) -> TileValue | None:
        """Whether all conditions hold, None for one that always does."""
        open_ = [c for c in conditions if c is not None]
        if len(open_) < 2:
            return open_[0] if open_ else None
        dims = self.union(*open_)
        return TileValue(" & ".join(self.align(c, dims) for c in open_), dims, "bool")

    # Coordinates

    def range_of(self, dim: Dim, wide: bool = False) -> TileValue:
        """0 .. extent - 1 within the tile; wide: in 64 bits."""
        with self.writing(()):
            if wide:
                text = f"{self.range_of(dim).text}.to({self.type_name('int64')})"
                build = lambda: self.assign(f"{dim}_wide", TileValue(text, (dim,)), self.outer)
                return self.once(("wide", dim), (), build)
            hint = str(dim) if self._is_whole(dim) else f"{dim}_range"
            made = TileValue(self.call("arange", 0, self.extent(dim)), (dim,), "int64")
            return self.once(("range", dim), (), lambda: self.assign(hint, made, self.outer))

    def coordinate(self, dim: Dim) -> TileValue:
        """The coordinate along a dim: a scalar for grid dims, a vector for tile dims."""
        if dim not in self.tile_dims:
            return TileValue(self.starts[dim], (), "int64")
        if self._is_whole(dim):
            return self.range_of(dim)
        made = TileValue(f"{self.starts[dim]} + {self.range_of(dim).text}", (dim,), "int64")
        with self.writing(()):
            return self.once(("at", dim), (dim,), lambda: self.assign(str(dim), made))

    def padding(self, dim: Dim) -> TileValue | None:
        """True where the tile's element along dim exists; None where all do."""
        if dim in self.resident:
            size: int | str | None = None if self._fills_tiles(dim) else dim.size
        else:
            size = self.sizes[dim] if self._may_end_inside(dim) else None
        if size is None:
            return None
        made = TileValue(f"{self.coordinate(dim).text} < {size}", (dim,), "bool")
        with self.writing(()):
            return self.once(("exists", dim), (dim,), lambda: self.assign(f"{dim}_exists", made))

    def _is_whole(self, dim: Dim) -> bool:
        """Whether a tile holds all places of the dim."""
        return dim in self.resident and dim not in self.chunked

    def _fills_tiles(self, dim: Dim) -> bool:
        """Whether a tile, or each chunk, has no place beyond the end of a resident dim."""
        extent = self.resident[dim]
        return dim.size % extent == 0 if dim in self.chunked else dim.size == extent

    def _may_end_inside(self, dim: Dim) -> bool:
        """Whether a tile of rows or columns may reach beyond the dim's end."""
        return dim in self.tile_dims and str(dim) not in self.facts.even and (dim != self.loop or self.ragged)
