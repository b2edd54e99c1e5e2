"""Sums along the diagonals of a tile in registers, which each warp adds to memory.

A warp has 16 rows of the tile, in the layout of an accumulator: thread 4a + b has the rows a and a + 8, and of each
eight columns 2b and 2b + 1. Invariant: element (row, column) is added at the place of column - row, once. Threads whose
rows differ by 1, by 2 and by 4 exchange numbers by shuffles, so that each sum ends up in one thread.
Example: 16 rows of 64 columns have 79 diagonals, which are 79 numbers added to the gradient of a table of distances.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .device_functions import adds_constraints

ZERO = "0f00000000"
BLOCK = 8  # columns, of which a thread has two
STRIDE = 2 * BLOCK * 4  # bytes between the places of a thread's sums


@gluon.constexpr_function
def diagonal_adds_text(columns: int, sign: int) -> str:
    """PTX for a thread's elements of 16 rows by so many columns.

    The first operands are results that nobody reads, the next ones the address of the thread's first sum, once for each
    element, and then the elements. sign: of column - row in a place.
    """
    count = columns // 2
    element = lambda block, half, pair: f"${2 * count + 4 * block + 2 * half + pair}"
    lines = ["{", *_head(), *_body(columns // BLOCK, element, f"${count}", sign), "}"]
    return "\n".join(lines + [f"mov.b32 ${n}, 0;" for n in range(count)])


@gluon.constexpr_function
def _head() -> Iterator[str]:
    """Predicates, and the numbers of the threads that a thread reads.

    one, two, four: whether its row is the second one of two that differ by so much. pair: its two columns of eight, by
    number. one_from, two_from, four_from: the thread that it reads in each of the three exchanges. `column` and `at`
    are scratch, but for `column` in the last exchange: there it is the pair whose sums the thread has, which is one
    lower than its own where `two` holds.
    """
    yield ".reg .u32 lane, pair, column, at, one_from, two_from, four_from;"
    yield ".reg .pred one, two, four, first, wraps, turned, kept, far, carried, on;"
    yield "mov.u32 lane, %laneid; and.b32 pair, lane, 3;"
    for name, bit in (("one", 4), ("two", 8), ("four", 16)):
        yield f"and.b32 at, lane, {bit}; setp.ne.u32 {name}, at, 0;"
    yield "setp.eq.u32 first, pair, 0;"
    yield "and.pred wraps, one, first; and.pred turned, two, first;"
    yield "not.pred kept, first; and.pred kept, kept, two;"
    # Rows that differ by 1: thread (a, b) reads (a + 1, b); thread (a + 1, b) reads (a, b - 1).
    yield "xor.b32 one_from, lane, 4; add.u32 at, pair, 3; and.b32 at, at, 3;"
    yield "and.b32 column, one_from, 28; or.b32 at, at, column; selp.b32 one_from, at, one_from, one;"
    # Rows that differ by 2: the first reads the pair behind its own, the second the pair before.
    yield "selp.b32 at, 3, 1, two; add.u32 at, at, pair; and.b32 at, at, 3;"
    yield "xor.b32 two_from, lane, 8; and.b32 two_from, two_from, 28; or.b32 two_from, two_from, at;"
    # Rows that differ by 4: two pairs on, which may be the next eight columns: those of the other half of the threads.
    yield "selp.b32 column, 3, 0, two; add.u32 column, column, pair; and.b32 column, column, 3;"
    yield "setp.ge.u32 far, column, 2; and.pred carried, far, two;"
    yield "xor.b32 four_from, lane, 18;"
    yield "add.u32 at, pair, 3; and.b32 at, at, 3; sub.u32 column, column, 2; selp.b32 at, column, at, two;"
    yield "xor.b32 column, lane, 24; and.b32 column, column, 28; or.b32 at, at, column;"
    yield "selp.b32 four_from, at, four_from, far;"


@gluon.constexpr_function
def _body(blocks: int, element: Callable[[int, int, int], str], address: str, sign: int) -> Iterator[str]:
    """The sums and the adds. Registers are numbered by blocks of eight columns, of which the first is two before the
    tile, as diagonals begin to the left of it."""
    known = blocks + 4
    yield from (f".reg .f32 {name}<{known}>;" for name in ("x", "y", "r", "w", "v"))
    yield ".reg .f32 q0, q1;"
    for i in range(known):
        for p, name in enumerate("xy"):
            parts = [element(n, h, p) for h, n in enumerate((i - 2, i - 1)) if 0 <= n < blocks]
            yield _sum(f"{name}{i}", parts)
    for i in range(known):
        there = 1 <= i <= blocks + 1
        yield _from(f"r{i}", f"y{i}", "one_from") if there else f"mov.f32 r{i}, {ZERO};"
        yield f"selp.f32 q0, {f'r{i - 1}' if i else ZERO}, r{i}, wraps; add.f32 w{i}, x{i}, q0;"
    half = known // 2
    for k in range(half):
        later = f"w{2 * k + 2}" if 2 * k + 2 < known else ZERO
        yield f"selp.f32 q0, w{2 * k}, w{2 * k + 1}, kept; selp.f32 q1, w{2 * k + 1}, w{2 * k}, kept;"
        yield f"selp.f32 q1, {later}, q1, turned;"
        yield _from("q0", "q0", "two_from")
        yield f"add.f32 v{k}, q0, q1;"
    for k in range(half):
        yield _from(f"r{k}", f"v{k}", "four_from")
    yield "not.pred four, four;"
    for k in range(half):
        later = f"r{k + 1}" if k + 1 < half else ZERO
        yield f"selp.f32 q0, {later}, r{k}, carried; add.f32 q0, q0, v{k};"
        yield f"setp.neu.f32 on, q0, {ZERO}; and.pred on, on, four;"  # zeros may lie outside of memory
        yield f"@on red.global.add.f32 [{address} + {sign * STRIDE * k}], q0;"


@gluon.constexpr_function
def _sum(name: str, parts: Sequence[str]) -> str:
    if len(parts) == 2:
        return f"add.f32 {name}, {parts[0]}, {parts[1]};"
    return f"mov.f32 {name}, {parts[0] if parts else ZERO};"


@gluon.constexpr_function
def _from(name: str, value: str, thread: str) -> str:
    return f"shfl.sync.idx.b32 {name}, {value}, {thread}, 31, -1;"


@gluon.jit
def add_diagonals(pointer, x, SIGN: gl.constexpr):
    """Adds the sums along the diagonals of a [64, N] tile in the layout of an accumulator to memory.

    pointer: the place of the diagonal of the tile's first element. SIGN: of column - row in a place.
    """
    LAYOUT: gl.constexpr = x.type.layout
    COLUMNS: gl.constexpr = x.shape[1]
    r = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    two = r // 2 % 2
    first = 8 * two - 16 + 2 * ((c % 8 // 2 + 3 * two) % 4) - r % 2 - r // 16 * 16  # the same for all of a thread
    address = pointer.to(gl.int64, bitcast=True) + (first * (4 * SIGN)).to(gl.int64)
    gl.inline_asm_elementwise(
        diagonal_adds_text(COLUMNS, SIGN), adds_constraints(COLUMNS), [address, x], gl.int32, False, COLUMNS // 2
    )
