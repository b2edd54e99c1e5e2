"""What a loop does with one tile, as one function that Inductor compiles: all between a tile's loads and its sums.

A loop's tiles have the same shapes, except at the ends. So one compilation serves all of them, and a tile costs one
call instead of one for each operation. Loads, positions and random numbers are made outside and given to it.
Invariant: a tile that is not compiled runs by torch operations, one by one, and gives the same up to rounding.
Example: soft-capped attention has two products in a tile; its 8 operations between them become two loops in C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from ...egraph.forks import lock
from ...egraph.terms.term import Dim, Term
from ..analysis.product_terms import Summand
from .accumulators import AccumulatorState, sum_over_rows
from .tile_ops import Frame, flipped
from .tile_program import TileBlock

MADE_OUTSIDE = ("load", "iota", "size", "uniform")  # kinds of steps that depend on a tile's place
MOST_KINDS = 3  # of tiles that are compiled for one loop: with a guard and without, and at the loop's end
MAX_ELEMENTS = 1 << 18  # of the largest temporary of a tile: 1 MiB in float32, which a core's own cache about holds
# Inductor's hooks may hold onepass itself, which would find the same region in the calls of a region.
WITHOUT_PASSES = dict.fromkeys(("pre_grad_custom_pass", "joint_custom_pre_pass"))
SETTINGS = {"cpp.enable_floating_point_contract_flag": "fast"}
# tanh(x) is x times a quotient of polynomials in x², here by their coefficients of falling degree. They are a fit of
# least squares for 0 < x <= 8.5, weighted so that the largest relative error is least: 4e-9 before rounding.
MOST_TANH = 8.5
TANH_ABOVE = (-9.91376143e-14, 5.80257733e-11, -2.12650162e-08, 1.14022531e-05, 3.12725342e-03, 0.131047636,
              0.999999996)  # fmt: skip
TANH_BELOW = (2.58030118e-04, 2.45876219e-02, 0.464380934, 1.0)
Tensors = Sequence[torch.Tensor]
Made = TypeVar("Made")


def _tanh(x: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent of float32 in multiplications, as Inductor's own takes three times as long."""
    if x.dtype != torch.float32:
        return NotImplemented
    x = x.clamp(-MOST_TANH, MOST_TANH)
    square = x * x
    return (x * _polynomial(TANH_ABOVE, square) / _polynomial(TANH_BELOW, square)).clamp(-1.0, 1.0)


def _polynomial(coefficients: Sequence[float], x: torch.Tensor) -> torch.Tensor:
    found = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        found = found * x + coefficient
    return found


def _tanh_in_place(x: torch.Tensor) -> torch.Tensor:
    found = _tanh(x)
    return found if found is NotImplemented else x.copy_(found)


FASTER = {torch.ops.aten.tanh.default: _tanh, torch.ops.aten.tanh_.default: _tanh_in_place}


def in_a_thread(work: Callable[[], Made]) -> Made:
    """What the work gives. Inside of an operator's call, dispatch leaves out what a compiler traces by."""
    with ThreadPoolExecutor(1, thread_name_prefix="onepass") as one:
        return one.submit(work).result()


def compiled_graph(graph: torch.fx.GraphModule, given: Tensors, **settings: object) -> Callable[..., Tensors]:
    """A graph without gradients as Inductor compiles it for tensors like these."""
    from torch._inductor.compile_fx import compile_fx

    with torch.no_grad():
        return compile_fx(graph, [x.detach() for x in given], config_patches={**WITHOUT_PASSES, **settings})


class TileBody:
    """A loop's work on a tile, in two blocks: what is made outside, and the function of it that is compiled.

    each: the block of a tile. outside: says which terms are made before it. stores: the terms that are stored, and the
    sums over rows that are added to memory.
    """

    def __init__(
        self,
        each: TileBlock,
        outside: Callable[[Term], bool],
        stores: tuple[Sequence[Term], Sequence[Summand]],
        rows: Dim | None,
    ):
        self.stores, self.rows = stores, rows
        leaves = dict.fromkeys(s.node for s in each.steps if s.kind in MADE_OUTSIDE)
        self.ahead = TileBlock(leaves, outside, each.pair)
        given = lambda term: term in leaves or (outside(term) and term.op != "const")  # a compiler knows constants
        self.body = TileBlock(each.roots, given, each.pair)
        self.inputs = tuple(self.body.inputs)
        read = {a for step in self.ahead.steps for a in step.args}
        self.flipped = frozenset(t for t in self.inputs if t.op == "load" and t in leaves and t not in read)

    def add(
        self, given: Tensors, guarded: bool, states: Sequence[AccumulatorState], frame: Frame
    ) -> tuple[torch.Tensor, ...]:
        """Adds a tile to the states; what the loop stores of it, and then what it adds to memory.

        given: the inputs, and where a guard drops elements.
        """
        drops = given[len(self.inputs)] if guarded else None
        values = {n: flipped(n, x, frame) if n in self.flipped else x for n, x in zip(self.inputs, given)}
        values = self.body.run(values, frame)
        for state in states:
            state.add(values, drops, frozenset(), frame)
        written, added = self.stores
        return (*(values[t] for t in written), *(sum_over_rows(x, self.rows, values, drops, frame) for x in added))


class CompiledBody:
    """A tile's work for tensors of certain shapes and strides. Making it raises an error of any kind, as compilers do.
    """

    def __init__(
        self, body: TileBody, given: Tensors, guarded: bool, states: Sequence[AccumulatorState], frame: Frame
    ):
        self.body, self.guarded = body, guarded
        self.kept: list[list[tuple[torch.Size, torch.dtype] | None]] = []  # of each state's parts; None: it has no such
        self.bools = [x.dtype == torch.bool for x in given]
        still = replace(frame, ranges=dict(frame.ranges))
        self.run = in_a_thread(lambda: self._compiled(given, states, still))

    @torch.no_grad()
    def _compiled(
        self, given: Tensors, states: Sequence[AccumulatorState], frame: Frame
    ) -> Callable[..., Sequence[torch.Tensor]]:
        from torch._subclasses import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        with FakeTensorMode() as mode:
            fresh = [state.blank() for state in states]
            self.body.add([mode.from_tensor(x) for x in given], self.guarded, fresh, frame)
            self.kept = [[None if x is None else (x.shape, x.dtype) for x in state.parts] for state in fresh]
        pairs = zip(states, self.kept, strict=True)
        first = [part for state, kept in pairs for part in state.blank().stored(kept, frame)]
        given = self._as_bytes(given)
        step = lambda *flat: self._step(flat[: len(given)], flat[len(given) :], [s.blank() for s in states], frame)
        graph = make_fx(step, decomposition_table=FASTER, tracing_mode="fake")(*given, *first)
        return compiled_graph(graph, [*given, *first], **SETTINGS)

    def _step(
        self, given: Tensors, parts: Tensors, states: Sequence[AccumulatorState], frame: Frame
    ) -> tuple[torch.Tensor, ...]:
        """A tile's work with the states' parts as tensors that are written in place."""
        rest = iter(parts)
        old = [[None if one is None else next(rest) for one in kept] for kept in self.kept]
        for state, tensors in zip(states, old, strict=True):
            state.parts = [None if x is None else x.clone() for x in tensors]
        given = [x.to(torch.float32) != 0 if is_bool else x for x, is_bool in zip(given, self.bools, strict=True)]
        stored = self.body.add(given, self.guarded, states, frame)
        for state, tensors in zip(states, old, strict=True):
            for before, after in zip(tensors, state.parts, strict=True):
                if before is not None and after is not None:
                    before.copy_(after)
        return stored

    def __call__(self, given: Tensors, states: Sequence[AccumulatorState], frame: Frame) -> Tensors:
        """As TileBody.add."""
        parts: list[torch.Tensor] = []
        for state, kept in zip(states, self.kept, strict=True):
            parts += state.stored(kept, frame)
            state.dropped |= self.guarded
        return self.run(*self._as_bytes(given), *parts)

    def _as_bytes(self, given: Tensors) -> list[torch.Tensor]:
        """The tensors with bools as bytes: Inductor's C++ reads those several times as fast."""
        return [x.view(torch.uint8) if is_bool else x for x, is_bool in zip(given, self.bools, strict=True)]


class CompiledTiles:
    """The compiled work of a plan's loops, by the shapes and strides of what it takes.

    `close` ends compiling: tiles of other shapes then run by torch operations. Threads may share it. rounds: as Frame
    has it.
    """

    def __init__(self, rounds: bool = False) -> None:
        self.rounds = rounds
        self.known: dict[tuple, CompiledBody] = {}
        self.closed, self._lock = False, lock()

    def close(self) -> None:
        self.closed = True

    def add(
        self, body: TileBody, outer: dict, drops: torch.Tensor | None, states: list[AccumulatorState], frame: Frame
    ) -> Tensors | None:
        """Adds a tile to the states, as TileBody.add; None if such tiles are not compiled.

        outer: what was made before the tile.
        """
        frame.drops, frame.flipped_later = drops, body.flipped
        made = {**outer, **body.ahead.run(outer, frame)}
        frame.drops, frame.flipped_later = None, frozenset()
        given = [made[node] for node in body.inputs]
        if drops is not None:
            given.append(drops)
        below = tuple(state.below for state in states)
        key = (body, drops is None, below, *((x.shape, x.stride(), x.dtype) for x in given))
        found = self.known.get(key)
        if found is None:
            if self.closed or sum(other[0] is body for other in self.known) >= MOST_KINDS:
                return None
            with self._lock:
                found = self.known[key] = CompiledBody(body, given, drops is not None, states, frame)
        return found(given, states, frame)
