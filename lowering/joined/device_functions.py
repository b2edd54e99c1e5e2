"""Device functions of joined kernels: named barriers between two warpgroups, and sums that are added to memory.

A named barrier counts the threads of both warpgroups: one waits where the other has arrived. Example: a warpgroup that
wrote its half of a tile gives the other one leave to read it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Numbers of named barriers, two and two by the warpgroup that waits; what has two buffers has a pair for each of them.
TURN, WRITTEN, READ = gl.constexpr(6), gl.constexpr(8), gl.constexpr(12)

# Four accumulators of a thread, added to 16 consecutive bytes. $0 to $3 are results that nobody reads.
ADD4 = gl.constexpr(
    "red.global.add.v4.f32 [$4], {$8, $9, $10, $11}; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;"
)
ADD4_CONSTRAINTS = gl.constexpr("=r,=r,=r,=r,l,l,l,l,f,f,f,f")
SYNC = gl.constexpr("{ .reg .pred p; setp.ne.s32 p, $2, 0; @p bar.sync $1, 256; mov.b32 $0, $1; }")
ARRIVE = gl.constexpr("{ .reg .pred p; setp.ne.s32 p, $2, 0; @p bar.arrive $1, 256; mov.b32 $0, $1; }")


@gluon.jit
def sync(number, on):
    """Sleeps on a named barrier until the other warpgroup has arrived there; not at all where `on` is false."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    barrier = gl.full([128], 0, gl.int32, LAYOUT) + number
    wanted = gl.full([128], 0, gl.int32, LAYOUT) + gl.cast(on, gl.int32)
    gl.inline_asm_elementwise(SYNC, "=r,r,r", [barrier, wanted], gl.int32, False, 1)


@gluon.jit
def arrive(number, on):
    """Arrives at a named barrier and goes on."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    barrier = gl.full([128], 0, gl.int32, LAYOUT) + number
    wanted = gl.full([128], 0, gl.int32, LAYOUT) + gl.cast(on, gl.int32)
    gl.inline_asm_elementwise(ARRIVE, "=r,r,r", [barrier, wanted], gl.int32, False, 1)


@gluon.jit
def add_in_order(pointer, x):
    """Adds a [64, N] tile in the layout of an accumulator to memory, in the order of registers: 16 bytes a thread.

    Eight columns after eight columns; in these the warp, a row of eight, a pair of columns, the half of the rows, the
    column of the pair. `in_rows` of finish.py undoes it.
    """
    LAYOUT: gl.constexpr = x.type.layout
    r = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, x.shape[1], layout=gl.SliceLayout(0, LAYOUT))[None, :]
    place = ((c // 8) * 128 + (r // 16) * 32 + (r % 8) * 4 + (c % 8) // 2) * 4 + (r % 16) // 8 * 2 + c % 2
    address = pointer.to(gl.int64, bitcast=True) + (place * 4).to(gl.int64)
    gl.inline_asm_elementwise(ADD4, ADD4_CONSTRAINTS, [address, x], gl.int32, False, 4)
