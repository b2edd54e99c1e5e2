"""Device functions of joined kernels: named barriers between two warpgroups, and sums that are added to memory.

A named barrier counts the threads of both warpgroups: one waits where the other has arrived. Example: a warpgroup that
wrote its half of a tile gives the other one leave to read it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

# Numbers of named barriers, two and two by the warpgroup that waits; what has two buffers has a pair for each of them.
TOGETHER, TURN, WRITTEN, READ = gl.constexpr(5), gl.constexpr(6), gl.constexpr(8), gl.constexpr(12)

# Where each warpgroup has some of the products, the second waits for what is given, the first until it is taken.
GIVEN, TAKEN = gl.constexpr(6), gl.constexpr(7)

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
def together():
    """Both warpgroups wait for each other."""
    sync(TOGETHER, True)


@gluon.jit
def give(tiles, x, N: gl.constexpr):
    """Writes float32 numbers as two tiles of 16 bits each: shared memory has fast stores and loads of such tiles."""
    bits = x.to(gl.int32, bitcast=True)
    low = gl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x5410;", "=r,r,r", [bits], gl.int16, True, 2)
    high = gl.inline_asm_elementwise("prmt.b32 $0, $1, $2, 0x7632;", "=r,r,r", [bits], gl.int16, True, 2)
    tiles.index(2 * N).store(low)
    tiles.index(2 * N + 1).store(high)


@gluon.jit
def taken(tiles, N: gl.constexpr, LAYOUT: gl.constexpr):
    """Reads what `give` wrote."""
    low, high = tiles.index(2 * N).load(LAYOUT), tiles.index(2 * N + 1).load(LAYOUT)
    JOIN: gl.constexpr = "prmt.b32 $0, $2, $3, 0x5410; prmt.b32 $1, $2, $3, 0x7632;"
    return gl.inline_asm_elementwise(JOIN, "=r,=r,r,r", [low, high], gl.float32, True, 2)


WAIT = gl.constexpr(
    "{ .reg .pred p; .reg .u32 v; AGAIN: ld.relaxed.gpu.global.u32 v, [$1]; setp.lt.u32 p, v, $2; @p bra AGAIN; "
    "mov.b32 $0, v; }"
)
SIGNAL = gl.constexpr(
    "{ .reg .pred p; .reg .u32 v; bar.warp.sync -1; mov.u32 v, %laneid; setp.eq.u32 p, v, 0; "
    "@p red.release.gpu.global.add.u32 [$1], 1; mov.b32 $0, 0; }"
)


@gluon.jit
def wait_for_programs(counter, programs):
    """One warp waits until so many programs have added to a block."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    address = gl.full([32], 0, gl.int64, LAYOUT) + counter.to(gl.int64, bitcast=True)
    wanted = gl.full([32], 0, gl.int32, LAYOUT) + programs
    gl.inline_asm_elementwise(WAIT, "=r,l,r", [address, wanted], gl.int32, False, 1)


@gluon.jit
def signal_program(counter):
    """One warp says that this program has added to a block: all that it has seen to be added is there before that."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    address = gl.full([32], 0, gl.int64, LAYOUT) + counter.to(gl.int64, bitcast=True)
    gl.inline_asm_elementwise(SIGNAL, "=r,l", [address], gl.int32, False, 1)


@gluon.constexpr_function
def _adds(columns):
    """PTX: a thread's accumulators of a tile, four and four to 16 consecutive bytes, eight columns 2048 bytes apart.

    The first operands are results that nobody reads, the next ones the thread's address, once for each accumulator.
    """
    count, text = columns // 2, ""
    for k in range(columns // 8):
        values = ", ".join(f"${2 * count + 4 * k + n}" for n in range(4))
        text += f"red.global.add.v4.f32 [${count} + {2048 * k}], {{{values}}};\n"
    return text + "".join(f"mov.b32 ${n}, 0; " for n in range(count))


@gluon.constexpr_function
def adds_constraints(columns: int) -> str:
    """The operands of PTX that adds a thread's elements: unread results, an address for each of them, and these."""
    count = columns // 2
    return ",".join(["=r"] * count + ["l"] * count + ["f"] * count)


@gluon.jit
def add_in_order(pointer, x):
    """Adds a [64, N] tile in the layout of an accumulator to memory, in the order of registers: 16 bytes a thread.

    Eight columns after eight columns; in these the warp, a row of eight, a pair of columns, the half of the rows, the
    column of the pair. `in_rows` of finish.py undoes it.
    """
    LAYOUT: gl.constexpr = x.type.layout
    COLUMNS: gl.constexpr = x.shape[1]
    r = gl.arange(0, x.shape[0], layout=gl.SliceLayout(1, LAYOUT))[:, None]
    c = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, LAYOUT))[None, :]
    thread = (r // 16) * 32 + (r % 8) * 4 + (c % 8) // 2  # the same for all accumulators of a thread
    address = pointer.to(gl.int64, bitcast=True) + (thread * 16).to(gl.int64)
    gl.inline_asm_elementwise(_adds(COLUMNS), adds_constraints(COLUMNS), [address, x], gl.int32, False, COLUMNS // 2)
