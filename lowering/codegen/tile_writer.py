"""Terms as Triton expressions over tiles: a value knows its tile dims, in one global order, and broadcasts by name.

A value is written in the outermost scope that has what it needs: before the current loop, or inside it. Contractions
are in products.py; lowering/triton/kernel.py drives it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from ...egraph.terms.affine import affine
from ...egraph.terms.ops import cast, iota, make
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import substitute, subterms
from ..analysis.contiguous_axes import along
from ..analysis.dim_roles import stepped
from ..analysis.product_terms import operands
from ..analysis.softmax_scaling import Weighing, gauge_of, read_again, weighing
from ..plan.dtypes import HALVES, is_integer, literal
from ..plan.launch_facts import Facts
from ..plan.records import BlockMap, Kernel, NotPlannable
from ..plan.thresholds import HIDDEN
from .batched_products import LEAST, dims_of_matrices, held_dims, leading
from .ops import FOLDS, Names, Value, atom, identity, operation, type_name
from .products import alike, contract
from .relative_products import Doubt
from .serial_folds import step

SHORT = ("uint8", "int8", "int16", "uint16")


@dataclass
class Scope:
    lines: list[str] = field(default_factory=list)
    memo: dict = field(default_factory=dict)


class TileWriter:
    """Writes the values of one kernel. `outer` is straight-line code, `inner` the body of the loop being written, and
    `step` a dim that is folded place by place inside of either."""

    plain = True  # Triton gives matrices their memory, and loops inside of a step their registers

    def __init__(self, kernel: Kernel, facts: Facts, roots: list[Term]):
        self.kernel, self.facts, self.names = kernel, facts, Names()
        self.outer, self.inner = Scope(), None
        self.loop: Dim | None = None
        self.ragged = False
        self.kept: Value | None = None  # of the loop's elements, those that may be read
        nodes = {node for root in roots for node in subterms(root)}
        self.uses = Counter(a for node in nodes for a in node.args)
        self.lead = leading(kernel, nodes)
        self.steps = stepped(kernel, nodes) if self.plain and not self.lead else set()
        self.step: tuple[Dim, Scope] | None = None
        held = [d for d in held_dims(kernel, nodes) if d not in self.steps]
        multiplied = dims_of_matrices(kernel, nodes) if not self.lead else {*held} - {*self.lead}
        self.held = {d: max(LEAST * (d in multiplied), 1 << (self._static(d) - 1).bit_length()) for d in held}
        self.held |= alike(operands(kernel, nodes), self.held, multiplied - {*self.lead}) if self.plain else {}
        self.rows = kernel.tiled
        columns = dict.fromkeys(loop.dim for loop in kernel.loops)
        self.tile_dims = (*self.lead, *self.rows, *columns, *(d for d in self.held if d not in self.lead))
        self.blocks = {kernel.rows: kernel.row_tile} if kernel.rows else {}
        self.blocks |= {d: f"{d.name}_tile" for d in kernel.columns} | {loop.dim: loop.tile for loop in kernel.loops}
        self.starts: dict[Dim, str] = {}
        self.sizes: dict[Dim, str] = {}
        self.scalars: dict[str, str] = {}
        self.pointers: dict[Tensor, tuple[str, tuple[str, ...]]] = {}
        self.maps: dict[BlockMap, str] = {}
        self.read_again, self.doubt = read_again(kernel), Doubt()

    @staticmethod
    def _static(dim: Dim) -> int:
        if not isinstance(dim.size, int):
            raise NotPlannable(f"dim {dim} is held in a tile but its size {dim.size} is not known")
        return dim.size

    # Scopes and names

    def open(self, loop: Dim, start: str, ragged: bool) -> None:
        self.inner, self.loop, self.ragged = Scope(), loop, ragged
        self.starts[loop] = start

    def close(self) -> list[str]:
        lines, self.inner, self.loop, self.ragged, self.kept = self.inner.lines, None, None, False, None
        return lines

    @contextmanager
    def stepping(self, dim: Dim, place: str) -> Iterator[Scope]:
        """What depends on the dim is written for one place of it, into a scope of its own."""
        self.starts[dim], self.step = place, (dim, Scope())
        yield self.step[1]
        self.step = None

    def steps_in(self, dims) -> bool:
        return self.step is not None and self.step[0] in dims

    def scope_of(self, dims) -> Scope:
        """The outermost scope that has these dims: tiles of a loop's dim exist only inside that loop."""
        if self.steps_in(dims):
            return self.step[1]
        missing = [d for d in dims if d in self.blocks and d not in self.rows and d != self.loop]
        if missing:
            raise NotPlannable(f"a value over {missing[0]} is needed outside the loop over {missing[0]}")
        return self.inner if self.loop in dims else self.outer

    def assign(self, hint: str, value: Value, scope: Scope | None = None) -> Value:
        """Gives the value a name, by a line in its scope."""
        name = self.names.fresh(hint)
        (scope or self.scope_of(value.dims)).lines.append(f"{name} = {value.text}")
        return Value(name, value.dims, value.dtype)

    def once(self, key, dims, build) -> Value:
        """The value for a key, built at its first use in its scope."""
        memo = self.scope_of(dims).memo
        if key not in memo:
            memo[key] = build()
        return memo[key]

    # Shapes

    def sort(self, dims) -> tuple[Dim, ...]:
        return tuple(d for d in self.tile_dims if d in dims)

    def union(self, *values: Value) -> tuple[Dim, ...]:
        return self.sort({d for v in values for d in v.dims})

    def extent(self, dim: Dim) -> str:
        return self.blocks.get(dim) or str(self.held[dim])

    def tile_of(self, loop: Dim) -> str:
        """How many columns of a loop go together, also where they are written one by one."""
        return self.doubt.tiles.get(loop) or self.blocks[loop]

    def shape(self, dims) -> str:
        return f"[{', '.join(self.extent(d) for d in dims)}]"

    def align(self, value: Value, dims) -> str:
        """The value's text as an atom that broadcasts against a tile of `dims`."""
        if not value.dims or value.dims == tuple(dims):
            return atom(value.text)
        return f"{atom(value.text)}[{', '.join(':' if d in value.dims else 'None' for d in dims)}]"

    def hoisted(self, value: Value, dims) -> Value:
        """A term's matrix as it broadcasts against a cube over `dims`, written before the loop where it is from there.

        Left inside of several loops, Triton 3.6 shares its change of layout among them, where it is not defined.
        """
        if self.loop not in dims or self.loop in value.dims or len(value.dims) < 2 or self.step is not None:
            return value
        build = lambda: self.assign(f"{value.text}_wide", Value(self.align(value, dims), dims, value.dtype), self.outer)
        return self.once(("wide", value.text, dims), (), build)

    def spread(self, value: Value, dims) -> Value:
        """The value at the full shape of `dims`: for folds, which need every element to be there."""
        dims = self.sort({*dims, *value.dims})
        if value.dims == dims:
            return value
        if value.dims:
            return Value(f"tl.broadcast_to({self.align(value, dims)}, {self.shape(dims)})", dims, value.dtype)
        return Value(f"tl.full({self.shape(dims)}, {value.text}, {type_name(value.dtype)})", dims, value.dtype)

    def where(self, condition: Value, value: Value, otherwise: str) -> Value:
        dims = self.union(condition, value)
        text = f"tl.where({self.align(condition, dims)}, {self.align(value, dims)}, {otherwise})"
        return Value(text, dims, value.dtype)

    def conjunction(self, *conditions: Value | None) -> Value | None:
        kept = [c for c in conditions if c is not None]
        if len(kept) < 2:
            return kept[0] if kept else None
        dims = self.union(*kept)
        return Value(" & ".join(self.align(c, dims) for c in kept), dims, "bool")

    # Coordinates

    def range_of(self, dim: Dim, wide: bool = False) -> Value:
        """0 .. extent - 1 within the tile."""
        if wide:
            base = self.range_of(dim)
            text = f"{base.text}.to(tl.int64)"
            return self.once(("wide", dim), (), lambda: self.assign(f"{dim}_wide", Value(text, (dim,)), self.outer))
        hint = str(dim) if dim in self.held else f"{dim}_range"
        text = f"tl.arange(0, {self.extent(dim)})"
        make = lambda: self.assign(hint, Value(text, (dim,), "int64"), self.outer)
        return self.once(("range", dim), (), make)

    def coordinate(self, dim: Dim) -> Value:
        """The coordinate along a dim: a scalar for grid dims, a vector for tile dims."""
        if dim not in self.tile_dims:
            return Value(self.starts[dim], (), "int64")
        if dim in self.held:
            return self.range_of(dim)
        text = f"{self.starts[dim]} + {self.range_of(dim).text}"
        return self.once(("at", dim), (dim,), lambda: self.assign(str(dim), Value(text, (dim,), "int64")))

    def padding(self, dim: Dim) -> Value | None:
        """True where the tile's element along dim exists; None where all do."""
        if dim in self.held:
            size = dim.size
            if size == self.held[dim]:
                return None
        elif dim not in self.tile_dims or str(dim) in self.facts.even or (dim == self.loop and not self.ragged):
            return None
        else:
            size = self.sizes[dim]
        at = self.coordinate(dim)
        make = lambda: self.assign(f"{dim}_exists", Value(f"{at.text} < {size}", (dim,), "bool"))
        return self.once(("exists", dim), (dim,), make)

    # Terms

    def value(self, node: Term, scope: Scope | None = None) -> Value:
        """The term's value; `scope` is the asking scope, where a short value used once may stay an expression."""
        home = self.scope_of(node.dims)
        if node in home.memo:
            return home.memo[node]
        result = self._build(node, home)
        inline = home is scope and self.uses[node] == 1 and len(result.text) <= 60
        plain = node.op in ("const", "iota", "size", "var", "load", "reduce")
        if not (plain or inline or result.text.isidentifier()):
            result = self.assign(f"{node.op.lower()}_{'_'.join(map(str, result.dims))}", result, home)
        home.memo[node] = result
        return result

    def _build(self, node: Term, home: Scope) -> Value:
        match node.op:
            case "const":
                return Value(literal(node.attrs[0]), (), node.dtype)
            case "iota":
                return self.coordinate(node.attrs[0])
            case "size" | "var":
                return Value(self.scalars[node.attrs[0]], (), "int64")
            case "load":
                return self._load(node)
            case "cast":
                return self._cast(self.value(node.args[0], home), node)
            case "reduce":
                return self._reduce(node)
            case "scale" | "mantissa":
                return self._project(node)
        return self._pointwise(node, [self.value(a, home) for a in node.args])

    def _pointwise(self, node: Term, args: list[Value]) -> Value:
        dims = self.union(*args)
        texts = [self.align(self.hoisted(a, dims), dims) for a in args]
        narrow = node.dtype in HALVES and node.op != "where"
        if narrow:  # Triton's functions are for float32
            texts = [f"{t}.to(tl.float32)" if a.dtype in HALVES else t for t, a in zip(texts, args, strict=True)]
        text = operation(node, texts, self.facts.machine)
        return Value(f"({text}).to({type_name(node.dtype)})" if narrow else text, dims, node.dtype)

    def _cast(self, value: Value, node: Term) -> Value:
        if value.dtype == node.dtype or (node.dtype, value.dtype) == ("int64", "int32"):
            return value  # coordinates are kept in 32 bits
        if node.dtype == "int64" and value.dtype in SHORT:
            return self._cast(value, cast(node.args[0], "int32"))
        if node.dtype == "bool":
            return Value(f"{atom(value.text)} != 0", value.dims, "bool")
        whole = self.facts.interpreted and (value.dtype == "bool" or is_integer(value.dtype))
        through = whole and node.dtype in HALVES  # the interpreter would keep the raw bits
        if not value.dims:
            text = f"tl.cast({value.text}, tl.float32)" if through else value.text
            return Value(f"tl.cast({text}, {type_name(node.dtype)})", (), node.dtype)
        text = f"{atom(value.text)}{'.to(tl.float32)' * through}"
        return Value(f"{text}.to({type_name(node.dtype)})", value.dims, node.dtype)

    def _load(self, node: Term) -> Value:
        """A tile in memory, read once by whatever names its held dims go."""
        dims = self.sort(node.dims)
        held = [d for d in dims if d in self.held]
        names = {iota(d): make("var", (), (f"held {dims.index(d)} of {d.size}", "int64")) for d in held}
        key = (node.attrs[0], *(substitute(x, names) for x in node.args), *(self.held[d] for d in held))
        scope = node.dims if self.steps_in(node.dims) else dims
        found = self.once(key, scope, lambda: self._loaded(node, dims, self.scope_of(scope)))
        return Value(found.text, dims, found.dtype)

    def _loaded(self, node: Term, dims: tuple[Dim, ...], scope: Scope) -> Value:
        tensor = node.attrs[0]
        pointer = self.address(tensor, node.args, dims)
        mask = self.conjunction(*(self.padding(d) for d in dims), self.kept if self.loop in dims else None)
        guard = f", mask={self.align(mask, dims)}, other={'False' if tensor.dtype == 'bool' else '0'}" if mask else ""
        return self.assign(f"{tensor.name}_tile", Value(f"tl.load({pointer}{guard})", dims, tensor.dtype), scope)

    def address(self, tensor: Tensor, index: tuple[Term, ...], dims) -> str:
        """Pointer text: a scalar base in 64 bits, the loop's start, and tile offsets that no loop changes."""
        pointer, strides = self.pointers[tensor]
        base, moving, offsets = [pointer], [], []
        for position, stride in zip(along(tensor, index, self.facts.runs), strides, strict=True):
            coefficients, constant = affine(position)
            if constant:
                base.append(f"{constant} * {stride}")
            for one, factor in coefficients.items():
                self._place(tensor, one, f"{stride}" if factor == 1 else f"{factor} * {stride}", base, moving, offsets)
        text = " + ".join(base)
        if len(base) > 1:
            name = lambda: self.assign(f"{tensor.name}_base", Value(" + ".join(base)), self.outer)
            text = self.once(("base", text), (), name).text
        text = " + ".join([text, *moving])
        still = [o for o in offsets if self.loop not in o.dims or not o.dtype]
        if still:
            shared = self.union(*still)
            total = " + ".join(self.align(o, shared) for o in still)
            name = lambda: self.assign(f"{tensor.name}_offsets", Value(total, shared), self.outer)
            text += f" + {self.align(self.once(('offsets', total), (), name), dims)}"
        return "".join([text, *(f" + {self.align(o, dims)}" for o in offsets if o not in still)])

    def _place(self, tensor, one: Term, stride: str, base, moving, offsets) -> None:
        """Files one atom of an index: the base, the loop's start, or the tile's offsets ("": no loop changes it)."""
        dims = self.sort(one.dims)
        if one.op == "iota" and dims:
            dim = dims[0]
            vector = self.range_of(dim, tensor.name in self.facts.wide)
            offsets.append(Value(f"{vector.text} * {stride}", dims, ""))
            if dim in self.starts:
                (moving if dim == self.loop else base).append(f"tl.cast({self.starts[dim]}, tl.int64) * {stride}")
        elif dims:
            offsets.append(Value(f"{atom(self.value(one).text)}.to(tl.int64) * {stride}", dims, "int64"))
        else:
            part = moving if self.steps_in(one.dims) else base
            part.append(f"tl.cast({self.value(one).text}, tl.int64) * {stride}")

    # Reductions

    def _reduce(self, node: Term) -> Value:
        monoid, dim = node.attrs
        if dim in self.steps:
            return step(self, node)
        if dim not in self.held:
            raise NotPlannable(f"the reduction over {dim} is in no accumulator of this kernel")
        body = node.args[0]
        if monoid == "sum" and node.dtype not in ("bool",) and not is_integer(node.dtype):
            result = contract(self, node, body)
        else:
            result = self.fold(monoid, dim, body, self.padding(dim))
        return self.assign(f"{monoid}_{dim}", result)

    def fold(self, monoid: str, dim: Dim, body: Term, present: Value | None) -> Value:
        """Folds the body along a tile dim, absent elements replaced by the identity."""
        value = self.spread(self.value(body), (dim,))
        if value.dtype in HALVES:  # as accumulators are; the interpreter would compare bfloat16 as raw bits
            value = Value(f"{atom(value.text)}.to(tl.float32)", value.dims)
        if present is not None:
            value = self.where(present, value, identity(monoid, value.dtype))
        axis = value.dims.index(dim)
        text = FOLDS[monoid].tile.format(atom(value.text), axis=axis)
        return Value(text, tuple(d for d in value.dims if d != dim), value.dtype)

    # Rescaled states

    def weighing(self, gauge: Term, states: Iterable[Term]) -> Weighing:
        """How the states of a gauge are weighed; all that ask get one answer."""
        return weighing(gauge, apart=self.exactly(states))

    def exactly(self, states: Iterable[Term]) -> bool:
        """Whether the scale of these states must be theirs to the bit."""
        return any(gauge_of(state) in self.read_again for state in states)

    def weights(self, how, dim: Dim, present: Value | None, before: Value | None = None, near: Value | None = None):
        """(scale, shift, weights) of a tile of gauges; `before` is the scale so far. near: what is not far below."""
        score = self.spread(self.value(how.raw), (dim, *(d for mask in (present, near) if mask for d in mask.dims)))
        if near is not None:
            score = self.assign("score", self.where(near, score, repr(HIDDEN)))
        if present is not None:
            score = self.assign("score", self.where(present, score, 'float("-inf")'))
        score = score if score.text.isidentifier() else self.assign("score", score)
        rest = tuple(d for d in score.dims if d != dim)
        top = Value(how.scale(f"tl.max({score.text}, axis={score.dims.index(dim)})"), rest)
        home = self.scope_of(score.dims)
        if before is not None:
            rest = self.union(before, top)
            top = Value(f"tl.maximum({self.align(before, rest)}, {self.align(top, rest)})", rest)
        scale = self.assign("top", top, home)
        infinite = f'tl.where({scale.text} == float("-inf"), 0.0, {scale.text})'
        shift = self.assign("shift", Value(infinite, rest), home)
        dims = self.union(score, shift)
        weight = f"tl.exp2({how.exponent(self.align(score, dims), self.align(shift, dims))})"
        weight = self.assign("weight", Value(weight, dims))
        self.doubt.scores[weight.text] = score
        return scale, shift, weight

    def _project(self, node: Term) -> Value:
        """scale(.) or mantissa(.) of a finished state: an accumulator's, or one folded within a tile."""
        state = node.args[0]
        if ("state", state) not in self.scope_of(node.dims).memo:
            self._fold_state(state)
        scale, mantissa, how = self.scope_of(node.dims).memo["state", state]
        if node.op == "scale":
            return Value(how.natural_scale(scale.text), scale.dims)
        dims = self.union(scale, mantissa)
        text = f'tl.where({self.align(scale, dims)} == float("-inf"), float("nan"), {self.align(mantissa, dims)})'
        return Value(text, dims)

    def _fold_state(self, state: Term) -> None:
        if state.op != "reduce" or state.attrs[1] not in self.held or state.args[0].op != "scaled":
            raise NotPlannable(f"the state {state} is in no accumulator of this kernel")
        dim, (gauge, body) = state.attrs[1], state.args[0].args
        how = self.weighing(gauge, [state])
        build = lambda: self.weights(how, dim, self.padding(dim))
        scale, _, weight = self.once(("weights", dim, gauge), gauge.dims - {dim}, build)
        mantissa = self.assign("mantissa", contract(self, state, body, weight))
        self.scope_of(state.dims).memo["state", state] = (scale, mantissa, how)
