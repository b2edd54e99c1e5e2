"""Terms as expressions over tiles: the writer of both languages, Triton and Gluon.

A value is written in the outermost scope that has what it needs: before the current loop, or inside it. A `Dialect`
gives the language's names. Example: x[i] + y[j] over rows i and columns j is `x_tile[:, None] + y_tile[None, :]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from ...egraph.forks import cached_property
from ...egraph.terms.affine import affine
from ...egraph.terms.ops import OF_LAWS, cast, iota, make
from ...egraph.terms.positions import PLACES, pair_of
from ...egraph.terms.sizes import Size, term_of
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import substitute, subterms
from ..analysis.contiguous_axes import along
from ..analysis.data_indices import is_block_number, nearest_places, place_conditions
from ..analysis.exact_products import native
from ..analysis.softmax_scaling import (
    ExponentScaling,
    exponent_scaling,
    gauge_of,
    holds_large_literal,
    read_again,
    scaling_in_pieces,
)
from ..plan.dtypes import HALVES, adapting, is_integer, literal
from ..plan.records import OUT_OF_RANGE, NotPlannable
from ..plan.thresholds import HIDDEN_SCORE
from .byte_conversions import MOVABLE, helper_of, is_moved_anyway
from .dialect import TRITON
from .ops import (
    FOLDS,
    INTEGER_LIMITS,
    TileValue,
    atom,
    exponent_text,
    floating_loads_below,
    identity,
    lagging_text,
    natural_scale_text,
    operation,
    rounded_to_bytes,
    scale_text,
)
from .products import alternating_sides, contract
from .tiles import Scope, Tiles

SHORT_INTEGERS = ("uint8", "int8", "int16", "uint16")
LONGEST_INLINE_TEXT = 60  # letters of a value that is used once and gets no name
UNROLLED_PLACES = 4  # of a loop over places: the loads of one need not wait for those of another
NEVER_NAMED = ("const", "iota", "size", "var", "load", "reduce")  # short, or named where they are written


class TileWriter(Tiles):
    """Writes the values of terms into the scopes of a kernel, or of one function of it."""

    def value(self, node: Term, scope: Scope | None = None) -> TileValue:
        """The term's value. scope: of the reader; there a short value that is used once may stay an expression."""
        found = self._value(node, scope)
        # A sum of halves or of float32 is in float32, which is what values are marked with where nothing else is said.
        return replace(found, dtype="float64") if self.is_double(node.dtype) else found

    def is_double(self, dtype: str) -> bool:
        """Whether values of a term's dtype, or states of such values, are float64; literals are, beside float64."""
        return dtype.endswith("float64") or (dtype.endswith("float") and self.weak == "float64")

    def _value(self, node: Term, scope: Scope | None) -> TileValue:
        with self.writing(node.dims if self.walks else self.among):
            home = self.scope_of(node.dims)
        if node in home.memo:
            return home.memo[node]
        with self.writing(node.dims):
            result = self._build(node, home)
        inline = home is scope and self.uses[node] == 1 and len(result.text) <= LONGEST_INLINE_TEXT
        if not (node.op in NEVER_NAMED or inline or result.text.isidentifier()):
            result = self.assign(f"{node.op.lower()}_{'_'.join(map(str, result.dims))}", result, home)
        home.memo[node] = result
        return result

    def _build(self, node: Term, home: Scope) -> TileValue:
        build = STRUCTURAL.get(node.op)
        if build is not None:
            return build(self, node, home)
        if node.op == "where" and (columns := self._interleaved(node)) is not None:
            return columns
        return self._pointwise(node, self._adapted(node, [self.value(a, home) for a in node.args]))

    def _adapted(self, node: Term, args: list[TileValue]) -> list[TileValue]:
        """The operands, those that adapt in float32. A literal itself adapts in the language."""
        narrow, found = f".to({self.type_name('float32')})", []
        for a, adapts, value in zip(node.args, adapting(node.args), args, strict=True):
            wide = adapts and a.op != "const" and value.dtype == "float64"
            found.append(replace(value, text=atom(value.text) + narrow, dtype="float32") if wide else value)
        return found

    def _pointwise(self, node: Term, args: list[TileValue]) -> TileValue:
        dims = self.union(*args)
        texts = [self.align(self.hoisted(a, dims), dims) for a in args]
        narrow = node.dtype in HALVES and node.op != "where"
        if narrow:  # the language's functions are for float32
            to_float32 = f".to({self.type_name('float32')})"
            texts = [f"{t}{to_float32}" if a.dtype in HALVES else t for t, a in zip(texts, args, strict=True)]
        if node.op == "where" and self.is_double(node.dtype):
            texts[1:] = [self._double(t) if a.op == "const" else t for t, a in zip(texts[1:], node.args[1:])]
        text = operation(node, texts, self.dialect, self.facts.machine)
        return TileValue(f"({text}).to({self.type_name(node.dtype)})" if narrow else text, dims, node.dtype)

    def _double(self, literal: str) -> str:
        """A literal in float64: between other values a choice takes it for float32, where 0.1 is another number."""
        return self.call("full", "[]", literal, self.type_name("float64"))

    def _interleaved(self, node: Term) -> TileValue | None:
        """A choice by the parity of the columns, where neither side has them but as d // 2; None for another choice.

        Each side is a tile of half the columns, and they are put side by side: otherwise each column would be loaded by
        itself, and computed in both ways. Example: two numbers of four bits in a byte,
        where(d % 2 <= 0, x[d // 2] % 16, x[d // 2] // 16).
        """
        alternating = alternating_sides(self, node) if self.dialect is TRITON else None
        if alternating is None:
            return None
        dim, half, sides = alternating
        narrow = [native(side) for side in sides]
        values = [self.value(side) for side in (sides if None in narrow else narrow)]
        dims, kinds = self.union(*values), {v.dtype for v in values}
        if dims[-1] != half or len(kinds) > 1:
            return None
        joined, dims = self.call("join", *(self.spread(v, dims).text for v in values)), (*dims[:-1], dim)
        return self._cast(TileValue(self.call("reshape", joined, self.shape(dims)), dims, *kinds), node)

    def _converted(self, node: Term, home: Scope) -> TileValue:
        """The value of a cast. Tiles of bytes become halves by a helper."""
        found = helper_of(node, self.facts.machine) if self.dialect is TRITON else None
        if found is not None and len(self.sort(node.dims)) > 1:
            name, source = found
            tile = self.value(source, home)
            along_sum = self.facts.rows_last and self.summed.issuperset(source.args[-1].dims)
            movable = along_sum or is_moved_anyway(self.facts.machine)
            return TileValue(f"{MOVABLE * movable}{name}({tile.text})", tile.dims, node.dtype)
        return self._cast(self.value(node.args[0], home), node)

    def _cast(self, value: TileValue, node: Term) -> TileValue:
        if value.dtype == node.dtype or (node.dtype, value.dtype) == ("int64", "int32"):
            return value  # coordinates are kept in 32 bits
        if node.dtype == "int64" and value.dtype in SHORT_INTEGERS:
            return self._cast(value, cast(node.args[0], "int32"))
        if node.dtype == "bool":
            return TileValue(f"{atom(value.text)} != 0", value.dims, "bool")
        if node.dtype.startswith("float8"):
            return rounded_to_bytes(value, node.dtype, self.dialect)
        text = atom(value.text) if value.dims else value.text
        for kind in ("float32", node.dtype) if self._needs_float32_between(value, node) else (node.dtype,):
            name = self.type_name(kind)
            text = f"{text}.to({name})" if value.dims else self.call("cast", text, name)
        return TileValue(text, value.dims, node.dtype)

    def _needs_float32_between(self, value: TileValue, node: Term) -> bool:
        """From an integer to half precision the interpreter would keep the raw bits."""
        return self.facts.interpreted and node.dtype in HALVES and (value.dtype == "bool" or is_integer(value.dtype))

    def _load(self, node: Term) -> TileValue:
        """A tile in memory. It is read once, whatever names its resident dims have."""
        dims = self.sort(node.dims)
        if self._is_one_in_a_tile(node):
            return self.once(("one in a tile", node), (self.loop,), lambda: self._spread_over_tile(node, dims))
        resident = [d for d in dims if d in self.resident]
        names = {iota(d): make("var", (), (f"held {dims.index(d)} of {d.size}", "int64")) for d in resident}
        key = (node.attrs[0], *(substitute(x, names) for x in node.args), *(self.resident[d] for d in resident))
        scope = node.dims if self.steps_in(node.dims) or self.loop in node.dims else dims
        found = self.once(key, scope, lambda: self._loaded(node, dims, self.scope_of(scope)))
        return TileValue(found.text, dims, found.dtype)

    def _spread_over_tile(self, node: Term, dims: tuple[Dim, ...]) -> TileValue:
        """What is the same in all columns of a tile, for each of them. Example: a scale of each page."""
        self._demand_places(node)
        return self.assign(f"{node.attrs[0].name}_tile", self.spread(self._first(node), dims), self.inner)

    def _loaded(self, node: Term, dims: tuple[Dim, ...], scope: Scope) -> TileValue:
        tensor = node.attrs[0]
        self._demand_places(node)
        indices, conditions = self._places_to_read(node)
        axes = zip(node.args, indices, tensor.shape, strict=True) if self._is_spoiled(node) else ()
        unmoved = [self._unmoved(*axis) for axis in axes]
        pointer = self.address(tensor, indices, dims)
        readable = self._readable(conditions) if self.loop in node.dims else ()
        mask = self.conjunction(*(self.padding(d) for d in dims), *readable)
        absent = "False" if tensor.dtype == "bool" else "0.0" if tensor.dtype.startswith("float8") else "0"
        options = {"mask": self.align(mask, dims), "other": absent} if mask else {}
        text = self.call("load", pointer, **options)
        if unmoved:
            places = self.align(self.conjunction(*unmoved, *map(self.value, conditions)), dims)
            spoiled = self.call("where", places, text, 'float("nan")')
            text = f"{spoiled}.to({self.type_name(tensor.dtype)})"
        return self.assign(f"{tensor.name}_tile", TileValue(text, dims, tensor.dtype), scope)

    def _unmoved(self, index: Term, near: Term, size: Size) -> TileValue | None:
        """Whether an index is in range: equal to the place that is read instead of it, which is computed in 32 bits."""
        if near is index:
            return None
        found, home = self.value(index), self.scope_of(near.dims)
        if near not in home.memo:
            place = TileValue(f"nearest({found.text}, {self.value(term_of(size)).text})", found.dims, "int32")
            home.memo[near] = self.assign("near", place, home)
        return TileValue(f"({found.text} == {home.memo[near].text})", found.dims, "bool")

    def _demand_places(self, node: Term) -> None:
        """The kernel stops where an index that is read from memory is no place of the tensor, as eager does. Of what a
        guard drops nothing is demanded.
        """
        conditions = place_conditions(node) if self.demands and not self._is_spoiled(node) else ()
        around = self.keeping | {self.loop} if self.loop in node.dims else frozenset()  # no tile of a loop, no demand
        for dims in dict.fromkeys(around.union(c.dims) for c in conditions):
            alike = tuple(c for c in conditions if around.union(c.dims) == dims)
            self.once(("demanded", alike), dims, partial(self._demand, alike, dims))

    def _demand(self, conditions: Sequence[Term], dims: frozenset[Dim]) -> None:
        """Writes that conditions hold, where these dims have an index."""
        whole = self.loop in dims and all(map(self._is_one_in_a_tile, conditions))
        held = self.conjunction(*map(self._first if whole else self.value, conditions))
        present = [] if whole else [self.padding(d) for d in held.dims]
        columns = self.kept_columns if {*held.dims} <= {self.loop} else None
        kept = (columns or self.kept()) if self.loop in dims else None
        if kept is not None and self.loop in kept.dims and self.loop not in self.tile_dims:
            return  # the first column, of which a guard says nothing; who spreads it over the tile demands it
        allowed = self.conjunction(*present, kept)
        if allowed is not None:
            spread = self.union(held, allowed)
            held = TileValue(f"{self.align(held, spread)} | ~{atom(self.align(allowed, spread))}", spread, "bool")
        scope = self.scope_of(dims)
        if scope.lines is self.outer.lines or not self.dialect.folds_serially:
            scope.lines += self._assertion(f"~{atom(held.text)}")
        else:
            self._note(TileValue(f"~{atom(held.text)}", held.dims, "bool"), scope)

    def _note(self, wild: TileValue, scope: Scope) -> None:
        """Notes in a loop what is asserted behind it: Triton has no copies under way in a loop that may stop."""
        while len(wild.dims) > 1:
            counted = self.call("where", wild.text, 1, 0)
            wild = TileValue(f"({self.call('max', counted, axis=len(wild.dims) - 1)} > 0)", wild.dims[:-1], "bool")
        start = TileValue(self.call("full", self.shape(wild.dims), "False", self.type_name("bool")), wild.dims, "bool")
        noted = self.once(("wild", wild.dims), (), lambda: self.assign("wild", start, self.outer))
        scope.lines.append(f"{noted.text} = {noted.text} | {atom(wild.text)}")
        self.noted[noted.text] = None

    def assertions(self) -> list[str]:
        """Lines behind the loops: the kernel stops where one of them noted something."""
        return [line for name in self.noted for line in self._assertion(name)]

    def _assertion(self, wild: str) -> list[str]:
        """Lines that stop the kernel. On NVIDIA's the message is compiled with TRITON_DEBUG=1 alone."""
        on_nvidia = self.dialect is not TRITON or self.facts.machine.startswith("sm_")
        stops = [f"stop_where({wild})"] if on_nvidia else []
        return [self.call("device_assert", f"~{atom(wild)}", f'"{OUT_OF_RANGE}"'), *stops]

    def _places_to_read(self, node: Term) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
        """The indices of a load, and conditions under which elements are read. An index that is read from memory is an
        address only where it is a place of the tensor: where a guard drops the element, it may be anything, and what
        is asserted behind a loop is not known inside."""
        doubtful = self.doubtful or (self.loop not in self.tile_dims and self.readable is not None)
        noted = self.dialect.folds_serially and not node.dims.isdisjoint({self.loop, *self.around})
        late = self._is_spoiled(node) or (self.demands and noted)
        if doubtful or not late:
            return node.args, place_conditions(node) if doubtful else ()
        return nearest_places(node)

    def _is_spoiled(self, node: Term) -> bool:
        """Whether an element becomes NaN where its index is no place: numbers that Hopper's kernels read in a loop. To
        stop there took them 3.5 ms instead of 1.5 (a bias by an index for each pair), and 2.3 instead of 0.8 (by an
        index for each key). Any other number would look like a result.
        """
        is_number = node.dtype != "bool" and not is_integer(node.dtype) and not node.dtype.startswith("float8")
        here = is_number and self.loop in node.dims and not self.dialect.folds_serially
        return here and bool(place_conditions(node))

    def _readable(self, conditions: Sequence[Term]) -> list[TileValue | None]:
        """Conditions on the elements of a load in a loop."""
        if self.loop not in self.tile_dims:  # one element for the whole tile, of which a guard may drop all
            return [*map(self.value, conditions)]
        whole = [c for c in conditions if self._is_one_in_a_tile(c) or not self.value(c).dims]
        values = [self._of_all_columns(whole)] if whole else []
        values += [self.value(c) for c in conditions if c not in whole]
        return [self.readable_here, *([self.reached] if conditions else []), *values]

    def _of_all_columns(self, conditions: Sequence[Term]) -> TileValue:
        """Conditions that hold for all columns of the loop's tile or for none, as those of one place, or of a table of
        one entry: the interpreter spreads no truth over a tile."""
        held = self.conjunction(*map(self._first, conditions))
        end = self.call("where", held.text, self.sizes[self.loop], 0)
        return TileValue(f"({self.coordinate(self.loop).text} < {end})", (self.loop,), "bool")

    def address(self, tensor: Tensor, index: tuple[Term, ...], dims: tuple[Dim, ...]) -> str:
        """The text of a pointer: a scalar base in 64 bits, the loop's start, and tile offsets that no loop changes."""
        pointer, strides = self.pointers[tensor]
        parts = _AddressParts([pointer])
        for position, stride in zip(along(tensor, index, self.facts.runs), strides, strict=True):
            coefficients, constant = affine(position)
            if constant:
                parts.base.append(f"{constant} * {stride}")
            for one, factor in coefficients.items():
                self._place(tensor, one, stride if factor == 1 else f"{factor} * {stride}", parts)
        text = " + ".join([self._base(tensor, parts.base), *parts.moving])
        fixed = [o for o in parts.offsets if self.loop not in o.dims or not o.dtype]
        if fixed:
            shared = self.union(*fixed)
            total = " + ".join(self.align(o, shared) for o in fixed)
            build = lambda: self.assign(f"{tensor.name}_offsets", TileValue(total, shared), self.scope_of(()))
            text += f" + {self.align(self.once(('offsets', total), (), build), dims)}"
        return "".join([text, *(f" + {self.align(o, dims)}" for o in parts.offsets if o not in fixed)])

    def _base(self, tensor: Tensor, parts: list[str]) -> str:
        """The sum of scalars, written before the loop if there are several."""
        text = " + ".join(parts)
        if len(parts) == 1:
            return text
        build = lambda: self.assign(f"{tensor.name}_base", TileValue(text), self.scope_of(()))
        return self.once(("base", text), (), build).text

    def _place(self, tensor: Tensor, one: Term, stride: str, parts: _AddressParts) -> None:
        """Files one summand of an index: the base, the loop's start, or the tile's offsets."""
        dims = self.sort(one.dims)
        if dims == (self.loop,) and self._is_one_in_a_tile(one):
            parts.moving.append(f"{self._in_64_bits(self._first(one).text)} * {stride}")
        elif one.op == "iota" and dims:
            self._place_along(tensor, dims[0], stride, parts)
            if dims[0] in self.starts:
                summands = parts.moving if dims[0] == self.loop or self.steps_in(dims) else parts.base
                summands.append(f"{self._in_64_bits(self.starts[dims[0]])} * {stride}")
        elif one.op == "mod" and dims and self._is_one_in_a_tile(make("floordiv", one.args)):
            self._place_along(tensor, self.loop, stride, parts)
            parts.moving.append(f"{self._in_64_bits(self._first(one).text)} * {stride}")
        elif dims:
            text = f"{atom(self.value(one).text)}.to({self.type_name('int64')}) * {stride}"
            parts.offsets.append(TileValue(text, dims, "int64"))
        else:
            moves = self.steps_in(one.dims) or self.loop in one.dims
            summands = parts.moving if moves else parts.base
            summands.append(f"{self._in_64_bits(self.value(one).text)} * {stride}")

    def _place_along(self, tensor: Tensor, dim: Dim, stride: str, parts: _AddressParts) -> None:
        """Files the distances of a tile's places from its first one along a dim."""
        vector = self.range_of(dim, tensor.name in self.facts.wide)
        parts.offsets.append(TileValue(f"{vector.text} * {stride}", (dim,), NO_LOOP_CHANGES_IT))

    def _is_one_in_a_tile(self, index: Term) -> bool:
        """Whether a term has the loop's dim d, but as d // n alone, which is one number in each tile."""
        dim = self.loop
        if dim not in self.tile_dims or dim not in index.dims or self.around or self.serial_place:
            return False
        sizes = {size for name, size in self.facts.blocks if name == str(dim)}
        is_whole = lambda n: is_block_number(n) and n.args[0] is iota(dim) and n.args[1].attrs[0] in sizes
        found = [*subterms(index, is_whole)]
        return any(map(is_whole, found)) and not any(n.op == "reduce" or n is iota(dim) for n in found)

    def _first(self, index: Term) -> TileValue:
        """An index in the first column of the loop's tile."""
        with self.in_first_column():
            return self.value(index)

    def _in_64_bits(self, scalar: str) -> str:
        return self.call("cast", scalar, self.type_name("int64"))

    # Reductions

    def _reduce(self, node: Term) -> TileValue:
        monoid, dim = node.attrs
        if dim in self.serial_dims:
            return self._serial_fold(node)
        if dim in self.chunked:
            return self._sum_of_chunks(node)
        if dim not in self.resident:
            raise NotPlannable(f"the reduction over {dim} is in no accumulator of this kernel")
        body = node.args[0]
        if monoid == "sum" and node.dtype != "bool" and not is_integer(node.dtype):
            result = contract(self, node, body)
        else:
            result = self.fold(monoid, dim, body, self.padding(dim))
        return self.assign(f"{monoid}_{dim}", result)

    def _serial_fold(self, node: Term) -> TileValue:
        """A fold of what two sides give for each place of a dim, as a loop over places, in the scope of its value.

        A tile of rows and columns is then all that registers hold, whatever the dim's length. The places of a short dim
        are written out before, as terms. Example: Σ_d |q[i, d] - k[j, d]|, a distance.
        """
        monoid, dim = node.attrs
        home, dims = self.scope_of(node.dims), self.sort(node.dims)
        dtype = "float64" if node.dtype == "float64" else "float32"
        start = self.call("full", self.shape(dims), identity(monoid, dtype), self.type_name(dtype))
        total = self.assign(f"{monoid}_{dim}", TileValue(start, dims, dtype), home)
        place = self.names.fresh(str(dim))
        with self.stepping(dim, place) as scope:
            body = self.value(node.args[0])
            widened = f".to({self.type_name('float32')})" if body.dtype in HALVES else ""
            combined = self.dialect.fill(FOLDS[monoid].combine, total.text, f"{self.align(body, dims)}{widened}")
        steps = self.call("range", 0, dim.size, num_stages=1, loop_unroll_factor=min(UNROLLED_PLACES, dim.size))
        home.lines.append(f"for {place} in {steps}:")
        home.lines += [f"    {line}" for line in (*scope.lines, f"{total.text} = {combined}")]
        return total

    def _sum_of_chunks(self, node: Term) -> TileValue:
        """A sum of products as a loop over chunks of its dim, each a product of matrices, in the scope of its value."""
        dim, dtype = node.attrs[1], "float64" if self.is_double(node.dtype) else "float32"
        home, dims = self.scope_of(node.dims), self.sort(node.dims)
        start = TileValue(self.call("full", self.shape(dims), "0.0", self.type_name(dtype)), dims, dtype)
        total = self.assign(f"sum_{dim}", start, home)
        place = self.names.fresh(f"{dim}_start")
        with self.stepping(dim, place) as scope:
            found = contract(self, node, node.args[0], into=total)
        # To an argument: ptxas unrolls a loop over a known number of chunks, which takes it seconds.
        home.lines.append(f"for {place} in {self.call('range', 0, self.sizes[dim], self.extent(dim))}:")
        home.lines += [f"    {line}" for line in (*scope.lines, f"{total.text} = {self.align(found, dims)}")]
        return total

    def fold(self, monoid: str, dim: Dim, body: Term, present: TileValue | None) -> TileValue:
        """Folds the body along a tile dim, absent elements replaced by the identity."""
        pair = pair_of(body) if monoid == "max" else None
        if pair is not None:
            return self._largest_pair(dim, *pair, present)
        value = self.spread(self.value(body), (dim,))
        if value.dtype in HALVES:  # as accumulators are; the interpreter would compare bfloat16 as raw bits
            value = TileValue(f"{atom(value.text)}.to({self.type_name('float32')})", value.dims)
        if present is not None:
            value = self.where(present, value, identity(monoid, value.dtype))
        text = self.dialect.fill(FOLDS[monoid].tile, atom(value.text), axis=value.dims.index(dim))
        return TileValue(text, tuple(d for d in value.dims if d != dim), value.dtype)

    def _largest_pair(self, dim: Dim, number: Term, place: Term, present: TileValue | None) -> TileValue:
        """The largest of pairs order(x_j) · 2^32 - p_j: of the largest x and, among its equals, of the least p.

        That compares each element in 32 bits, where pairs would be made and compared in 64. What equals a NaN is NaN.
        """
        numbers = self.spread(self.value(number), (dim, *self.value(place).dims))
        if present is not None:
            numbers = self.where(present, numbers, identity("max", numbers.dtype))
        numbers = self.assign("number", numbers, self.scope_of(numbers.dims))
        axis, rest = numbers.dims.index(dim), tuple(d for d in numbers.dims if d != dim)
        fill = lambda monoid, text: self.dialect.fill(FOLDS[monoid].tile, text, axis=axis)
        top = self.assign("top", TileValue(fill("max", numbers.text), rest), self.scope_of(numbers.dims))
        same = same_number(numbers.text, self.align(top, numbers.dims))
        same = same if present is None else f"({same}) & {self.align(present, numbers.dims)}"
        places = self.call("where", same, self.align(self.value(place), numbers.dims), INTEGER_LIMITS[inf])
        first = self.assign("first", TileValue(fill("min", places), rest, "int64"), self.scope_of(numbers.dims))
        return TileValue(pair_text(top.text, first.text), rest, "int64")

    # Rescaled states

    @cached_property
    def read_again(self) -> frozenset[Term]:
        """The scores whose largest is subtracted again from scores that are computed anew."""
        return read_again(self.kernel)

    def scaling_of(self, score: Term, states: Iterable[Term]) -> ExponentScaling:
        """How the weights of states are scaled. All that use a score get the same answer.

        Scores without halves get the exact form where a large literal is among them. In the other form the compiler may
        round a product that is used twice in one place and not in the other: at a score of -1e4 the weight of a sum is
        then not that of its divisor. In pieces nothing is contracted. The weight of a stored state at its own scale is
        exactly 1, which is the exact form, too.
        """
        piece, exact = self.facts.piece, self.needs_exact_scale(states)
        if piece:
            hidden = any(loop.finite_mask for loop in self.kernel.loops)
            apart = exact or piece == 1 or self.is_double(score.dtype)
            return scaling_in_pieces(score, apart, hidden, self.facts.factors_apart)
        single = floating_loads_below([score]).isdisjoint(HALVES)
        return exponent_scaling(score, exact or (single and holds_large_literal(score)))

    def needs_exact_scale(self, states: Iterable[Term]) -> bool:
        """Whether the scale of these states must be the largest score to the bit. The kernels of pieces agree."""
        if self.facts.piece:
            return self.facts.scales == "exact"
        return any(gauge_of(state) in self.read_again for state in states)

    @cached_property
    def gives_largest(self) -> bool:
        """Whether a result is the largest score itself, which has to be NaN where a score is. A result that also has
        the sum of weights is NaN anyway. A loop that is shared out over programs loses the NaN (docs/limits.md).
        """
        parts = any(loop.part is not None for loop in self.kernel.loops)
        ops = [{node.op for node in subterms(store.term)} for store in self.kernel.stores]
        return not parts and any("scale" in used and "mantissa" not in used for used in ops)

    def weights(
        self, scaling: ExponentScaling, dim: Dim, present: TileValue | None,
        before: TileValue | None = None, not_hidden: TileValue | None = None,
    ) -> tuple[TileValue, TileValue, TileValue]:  # fmt: skip
        """(scale, shift, weights) of a tile of scores along the dim.

        before: the scale so far. not_hidden: where no mask has put a large negative number.
        """
        score = self._masked_score(scaling.raw, dim, present, not_hidden)
        rest = tuple(d for d in score.dims if d != dim)
        axis, nan = score.dims.index(dim), self.gives_largest
        fold = self.dialect.fill(FOLDS["max"].tile, score.text, axis=axis)
        top = TileValue(scale_text(scaling, fold if nan else self.call("max", score.text, axis=axis)), rest)
        if before is not None:
            rest = self.union(before, top)
            pair = self.align(before, rest), self.align(top, rest)
            top = TileValue(self._larger(scaling, *pair, nan), rest)
        home = self.scope_of(score.dims)
        scale = self.assign("top", top, home)
        finite = self.call("where", f'{scale.text} == float("-inf")', "0.0", scale.text)
        shift = self.assign("shift", TileValue(finite, rest), home)
        dims = self.union(score, shift)
        exponent = exponent_text(scaling, self.align(score, dims), self.align(shift, dims), self.dialect)
        weight = self.assign("weight", TileValue(self.call("exp2", exponent), dims))
        self.skewing.scores[weight.text] = score
        return scale, shift, weight

    def _larger(self, scaling: ExponentScaling, before: str, top: str, nan: bool) -> str:
        """The scale after a tile whose largest score is `top`. nan: it has to be NaN where one of them is."""
        if self.facts.piece and self.facts.scales == "lagging":
            return lagging_text(scaling, before, top, self.dialect)
        return self.dialect.fill(FOLDS["max"].combine, before, top) if nan else self.call("maximum", before, top)

    def _masked_score(self, raw: Term, dim: Dim, present: TileValue | None, not_hidden: TileValue | None) -> TileValue:
        """The scores at the full shape, by a name."""
        masks = [mask for mask in (present, not_hidden) if mask is not None]
        score = self.spread(self.value(raw), (dim, *(d for mask in masks for d in mask.dims)))
        if not_hidden is not None:
            score = self.assign("score", self.where(not_hidden, score, repr(HIDDEN_SCORE)))
        if present is not None:
            score = self.assign("score", self.where(present, score, 'float("-inf")'))
        return score if score.text.isidentifier() else self.assign("score", score)

    def _project(self, node: Term) -> TileValue:
        """scale(.) or mantissa(.) of a finished state: an accumulator's, or one folded within a tile."""
        state = node.args[0]
        if ("state", state) not in self.scope_of(node.dims).memo:
            self._fold_state(state)
        scale, mantissa, scaling = self.scope_of(node.dims).memo["state", state]
        dims = self.union(scale, mantissa)
        is_empty = f'{self.align(scale, dims)} == float("-inf")'
        if node.op == "scale":
            if dims == scale.dims:  # scores that all are NaN have no largest one: they are not absent
                spoiled = f"({is_empty}) & ({mantissa.text} != {mantissa.text})"
                scale = TileValue(self.call("where", spoiled, 'float("nan")', scale.text), dims)
            return TileValue(natural_scale_text(scaling, scale.text), scale.dims)
        return TileValue(self.call("where", is_empty, 'float("nan")', self.align(mantissa, dims)), dims)

    def _fold_state(self, state: Term) -> None:
        if state.op != "reduce" or state.attrs[1] not in self.resident or state.args[0].op != "scaled":
            raise NotPlannable(f"the state {state} is in no accumulator of this kernel")
        dim, (score, body) = state.attrs[1], state.args[0].args
        scaling = self.scaling_of(score, [state])
        build = lambda: self.weights(scaling, dim, self.padding(dim))
        scale, _, weight = self.once(("weights", dim, score), score.dims - {dim}, build)
        mantissa = self.assign("mantissa", contract(self, state, body, weight))
        self.scope_of(state.dims).memo["state", state] = (scale, mantissa, scaling)

    def _refuse(self, node: Term) -> TileValue:
        raise NotPlannable(f"{node.op} has no text of its own")


# Pairs of a number and a place


def same_number(number: str, top: str) -> str:
    """The condition that numbers are the largest one, which is NaN if one of them is."""
    return f"({number} == {top}) | ({number} != {number})"


def pair_text(number: str, place: str) -> str:
    """The pair of a number and a place."""
    return f"order_of({number}) * {PLACES} - {place}"


NO_LOOP_CHANGES_IT = ""  # the dtype of an offset that is the same in all rounds of a loop


@dataclass
class _AddressParts:
    """Summands of an address: scalars, scalars that the loop changes, and offsets of a tile's elements."""

    base: list[str]
    moving: list[str] = field(default_factory=list)
    offsets: list[TileValue] = field(default_factory=list)


# Operations whose text needs more than their operands' texts. The others are templates (ops.py).
STRUCTURAL: dict[str, Callable[[TileWriter, Term, Scope], TileValue]] = {
    "const": lambda writer, node, home: TileValue(literal(node.attrs[0]), (), node.dtype),
    "iota": lambda writer, node, home: writer.coordinate(node.attrs[0]),
    "size": lambda writer, node, home: TileValue(writer.scalars[node.attrs[0]], (), "int64"),
    "var": lambda writer, node, home: TileValue(writer.scalars[node.attrs[0]], (), "int64"),
    "load": lambda writer, node, home: writer._load(node),
    "cast": lambda writer, node, home: writer._converted(node, home),
    "reduce": lambda writer, node, home: writer._reduce(node),
    "scale": lambda writer, node, home: writer._project(node),
    "mantissa": lambda writer, node, home: writer._project(node),
    "scaled": lambda writer, node, home: writer._refuse(node),
    **dict.fromkeys(("stored", *OF_LAWS), lambda writer, node, home: writer._refuse(node)),
}
