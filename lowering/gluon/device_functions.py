"""Device functions that emitted Gluon kernels call: folds that need no shuffle, rescaling behind a branch, turns.

Written for accumulator layouts of warpgroup matrix products, where four neighbouring lanes share a row.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import tma

# Copies by tensor maps, under one name for each: Triton 3.8 renamed them, and a kernel's text is the same for both.
copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
copy_out = tma.async_store if hasattr(tma, "async_store") else tma.async_copy_shared_to_global


def _multiply_unless_one(n: int) -> tuple[str, str]:
    """PTX: n registers of an accumulator times n of a factor; a warp whose rows all have the factor 1 jumps over it.

    A thread has two rows; in the accumulator's order registers 0, 1 are of the first and 2, 3 of the second.
    """
    out, old, factor = range(n), range(n, 2 * n), range(2 * n, 3 * n)
    text = f"{{ .reg .pred p, q; setp.neu.f32 p, ${factor[0]}, 0f3F800000; "
    text += f"setp.neu.or.f32 p, ${factor[2]}, 0f3F800000, p;\nvote.sync.any.pred q, p, 0xffffffff;\n"
    text += "".join(f"mov.f32 ${a}, ${b};\n" for a, b in zip(out, old, strict=True))
    text += "@!q bra.uni DONE;\n"
    text += "".join(f"mul.f32 ${a}, ${b}, ${c};\n" for a, b, c in zip(out, old, factor, strict=True))
    return text + "DONE: }", ",".join(["=&f"] * n + ["f"] * 2 * n)


MULTIPLY8, CONSTRAINTS8 = map(gl.constexpr, _multiply_unless_one(8))
MULTIPLY16, CONSTRAINTS16 = map(gl.constexpr, _multiply_unless_one(16))
MULTIPLY32, CONSTRAINTS32 = map(gl.constexpr, _multiply_unless_one(32))
MULTIPLY64, CONSTRAINTS64 = map(gl.constexpr, _multiply_unless_one(64))


def _ramp(n: int) -> tuple[str, str]:
    """PTX: what n columns of a thread are worth, from the first one's and one step's: columns 8k, 8k + 1 apart."""
    text = "".join(f"fma.rn.f32 ${k}, ${2 * n}, {float(k // 2 * 8 + k % 2)!r}, ${n};\n" for k in range(n))
    return text, ",".join(["=&f"] * n + ["f"] * 2 * n)


RAMP16, RAMP_CONSTRAINTS16 = map(gl.constexpr, _ramp(16))
RAMP32, RAMP_CONSTRAINTS32 = map(gl.constexpr, _ramp(32))


@gluon.jit
def ramp(at, unit):
    """at · unit for column numbers, computed anew where it stands: kept, it would take too many registers."""
    first = counted(at) * unit
    both = gl.broadcast(first, unit)
    if at.shape[0] == 64:
        return gl.inline_asm_elementwise(RAMP16, RAMP_CONSTRAINTS16, [both[0], both[1]], gl.float32, False, 16)
    else:
        return gl.inline_asm_elementwise(RAMP32, RAMP_CONSTRAINTS32, [both[0], both[1]], gl.float32, False, 32)


@gluon.jit
def rescaled(accumulator, factor):
    """accumulator · factor by rows; nothing is multiplied in a warp whose factors are all 1."""
    rows = gl.convert_layout(factor, gl.SliceLayout(1, accumulator.type.layout))
    both = gl.broadcast(accumulator, rows[:, None])
    if accumulator.shape[1] == 16:
        return gl.inline_asm_elementwise(MULTIPLY8, CONSTRAINTS8, [both[0], both[1]], gl.float32, True, 8)
    elif accumulator.shape[1] == 32:
        return gl.inline_asm_elementwise(MULTIPLY16, CONSTRAINTS16, [both[0], both[1]], gl.float32, True, 16)
    elif accumulator.shape[1] == 64:
        return gl.inline_asm_elementwise(MULTIPLY32, CONSTRAINTS32, [both[0], both[1]], gl.float32, True, 32)
    else:
        return gl.inline_asm_elementwise(MULTIPLY64, CONSTRAINTS64, [both[0], both[1]], gl.float32, True, 64)


@gluon.jit
def multiplied(accumulator, factor):
    """accumulator · factor by rows."""
    return accumulator * gl.convert_layout(factor, gl.SliceLayout(1, accumulator.type.layout))[:, None]


@gluon.jit
def columns_of_threads(x):
    """[64, N] as [64, N / 32, 4, 4, 2]: axes 1, 2 and 4 lie in one thread, axis 3 over the lanes of a row."""
    return x.reshape([x.shape[0], x.shape[1] // 32, 4, 4, 2])


@gluon.jit
def partial_max(x):
    """[64, N] -> [64, 4]: what each thread owns of a row folds as a tree, not as one serial chain."""
    return gl.max(gl.max(gl.max(columns_of_threads(x), 4), 2), 1)


@gluon.jit
def partial_sum(x):
    """[64, N] -> [64, 4], as partial_max."""
    return gl.sum(gl.sum(gl.sum(columns_of_threads(x), 4), 2), 1)


@gluon.jit
def row_max(x, ROWS: gl.constexpr):
    return gl.convert_layout(gl.max(partial_max(x), 1), ROWS)


@gluon.jit
def stretched_max(x, factor, ROWS: gl.constexpr):
    """The largest x · factor of each row, for a number that is not 0."""
    if factor > 0:
        top = row_max(x, ROWS)
    else:
        top = -row_max(-x, ROWS)
    return top * factor


@gluon.jit
def nonzero(x):
    """x, and instead of 0 a number so small that no finite product with it counts: -inf times it is -inf."""
    return gl.where(x == 0, 1e-30, x)


@gluon.jit
def row_sum(partial, ROWS: gl.constexpr):
    return gl.convert_layout(gl.sum(partial, 1), ROWS)


@gluon.jit
def row_sum_in_pairs(x, ROWS: gl.constexpr):
    """As `sum_in_pairs` of lowering/codegen/ops.py, to the bit: the columns that a thread has come first."""
    if x.shape[1] == 128:
        pairs = gl.sum(x.reshape([x.shape[0], 2, 2, 2, 2, 2, 2, 2]), 1)
    else:
        pairs = x.reshape([x.shape[0], 2, 2, 2, 2, 2, 2])
    of_threads = gl.sum(gl.sum(gl.sum(gl.sum(pairs, 1), 1), 1), 3)
    return gl.convert_layout(gl.sum(gl.sum(of_threads, 1), 1), ROWS)


@gluon.jit
def added(partial, factor, x):
    """partial · factor + the partial sums of x."""
    LAYOUT: gl.constexpr = partial.type.layout
    scaled = partial * gl.convert_layout(factor, gl.SliceLayout(1, LAYOUT))[:, None]
    return scaled + gl.convert_layout(partial_sum(x), LAYOUT)


@gluon.jit
def rounded(x, KIND: gl.constexpr):
    """x in half precision, two at a time: halves rounded one by one are put together, and turned around, once more."""
    if KIND == gl.bfloat16:
        return gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], gl.bfloat16, True, 2)
    else:
        return gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], gl.float16, True, 2)


@gluon.jit
def narrow_words(weight):
    """[64, N] weights as e4m3, four to a word: [64, N / 16, 4]. A thread has columns 8h + 2q + l of 16 for one q: its
    word is q, byte 2h + l."""
    left, right = weight.reshape([weight.shape[0], weight.shape[1] // 16, 2, 4, 2]).permute((0, 1, 3, 2, 4)).split()
    first, third = left.split()
    second, fourth = right.split()
    return gl.inline_asm_elementwise(
        """{ .reg .b16 low, high; cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3; mov.b32 $0, {low, high}; }""",
        "=r,f,f,f,f", [first, second, third, fourth], gl.int32, True, 1
    )  # fmt: skip


@gluon.jit
def byte_of(word, number: gl.constexpr):
    return (word >> (8 * number)).to(gl.int8).to(gl.float8e4nv, bitcast=True)


@gluon.jit
def narrow_operand(words, LAYOUT: gl.constexpr):
    """Words of e4m3 as the left factor of a product, in the order of registers; no register moves.

    Between products they stay words: the compiler would take bytes apart and put them together again.
    """
    low, high = gl.join(byte_of(words, 0), byte_of(words, 1)), gl.join(byte_of(words, 2), byte_of(words, 3))
    every = gl.join(low, high).permute((0, 1, 2, 4, 3)).reshape([words.shape[0], words.shape[1] * 16])
    return gl.convert_layout(every, LAYOUT)


@gluon.jit
def kept_registers(words):
    """Keeps words in their registers until here: a product under way reads them."""
    gl.inline_asm_elementwise("", "=r,0", [words], gl.int32, False, 1)


@gluon.jit
def widened(x):
    """bfloat16 as float32, two at a time by one operation each."""
    return gl.inline_asm_elementwise(
        "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [x], gl.float32, True, 2
    )


@gluon.jit
def unit_of(scale):
    """What a natural number is worth in base 2, by rows: 1 for rows whose scale is so large that weights are 1 or 0.

    With it a weight is one multiply-add of its score. The product of unit and scale is rounded, by up to 8 at 2^27, the
    same for all weights of a row. Beyond, float32 numbers lie at least 16 apart, and differences alone are exact.
    """
    return gl.where(gl.abs(scale) > 134217728.0, 1.0, 1.4426950408889634)


@gluon.jit
def level_of(scale):
    """A scale in base 2, rounded once: no multiply-add takes the product in, so that equal scales have equal levels."""
    return gl.inline_asm_elementwise("mul.rn.f32 $0, $1, $2;", "=f,f,f", [scale, unit_of(scale)], gl.float32, True, 1)


@gluon.jit
def decay_of(before, scale):
    """The factor for what was weighed relative to the scale before; 1 exactly where the scale stays."""
    far = (before - scale) * 1.4426950408889634
    return gl.exp2(gl.where(unit_of(scale) == unit_of(before), level_of(before) - level_of(scale), far))


@gluon.jit
def asked_for(pointer):
    """Brings the memory that lies there to the L2, where somebody will read it soon."""
    gl.inline_asm_elementwise("prefetch.global.L2 [$1]; mov.b32 $0, 0;", "=r,l", [pointer], gl.int32, False, 1)


@gluon.jit
def reciprocal(x):
    """1 / x by one instruction."""
    return gl.inline_asm_elementwise("rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def tangent(x):
    """tanh by one exp2 and one reciprocal; its error is absolute, some 1e-7, as a score's should be."""
    return 1.0 - 2.0 * reciprocal(1.0 + gl.exp2(x * 2.8853900817779268))


@gluon.jit
def logistic_curve(x):
    """1 / (1 + exp(-x)) by one exp2 and one reciprocal: exact to some 2^-22 of itself, small results too."""
    return reciprocal(1.0 + gl.exp2(x * -1.4426950408889634))


@gluon.jit
def coarse_tangent(x):
    """tanh by one instruction; its relative error is up to 2^-11, a quarter of a bfloat16's rounding."""
    return gl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon.jit
def nearest(place, count):
    """The given place if it is one of an axis with `count` places, and else some other place of that axis."""
    return gl.minimum(place.to(gl.uint32), count - 1).to(gl.int32)


@gluon.jit
def counted(x):
    """An integer from 0 to 2^23 - 1 as a float, without the slow conversion."""
    return (x + 0x4B000000).to(gl.float32, bitcast=True) - 8388608.0


@gluon.constexpr_function
def _read_once(columns, step, kind):
    """PTX: a thread's scores' numbers of a vector over j - i, step elements apart. Its columns are 8k and 8k + 1 from
    the first, its rows 0 and 8: column 8k of the second row is column 8k - 8 of the first, so that is read once."""
    size, read = (4, "ld.global.nc.f32 {0}, [{1}];") if kind == "fp32" else (2, "ld.global.nc.b16 h, [{1}]; ")
    read += {"fp32": "", "bf16": "mov.b32 {0}, {{z, h}};", "fp16": "cvt.f32.f16 {0}, h;"}[kind]
    text, count = "{ .reg .b16 h, z; mov.b16 z, 0;\n", columns // 2
    for place in range(-1, columns // 8):
        for one in range(2):
            into = [f"${4 * place + one}"] * (place >= 0) + [f"${4 * place + 6 + one}"] * (place + 1 < columns // 8)
            text += read.format(into[0], f"${count} + {size * step * (8 * place + one)}")
            text += f" mov.f32 {into[1]}, {into[0]};\n" if len(into) > 1 else "\n"
    return text + "}"


@gluon.constexpr_function
def _apart(outputs, inputs):
    return ",".join(["=&f"] * outputs + ["l"] * inputs)


@gluon.jit
def diagonal_tile(pointers, STEP: gl.constexpr):
    """What stands at pointers[i, j], which move by STEP elements with j - i, as float32."""
    COUNT: gl.constexpr = pointers.shape[1] // 2
    TEXT: gl.constexpr = _read_once(pointers.shape[1], STEP, pointers.dtype.element_ty.name)
    return gl.inline_asm_elementwise(TEXT, _apart(COUNT, COUNT), [pointers], gl.float32, False, COUNT)


def _select(n: int) -> tuple[str, str]:
    """PTX: register k of n where bit k of a word is set, else what is absent. The word is given n times over."""
    text = "{ .reg .pred p; .reg .b32 t;\n"
    for k in range(n):
        text += f"and.b32 t, ${2 * n}, {1 << k:#x}; setp.ne.b32 p, t, 0; selp.f32 ${k}, ${n + k}, ABSENT, p;\n"
    return text + "}", ",".join(["=&f"] * n + ["f"] * n + ["r"] * n)


SELECT, SELECT_CONSTRAINTS = map(gl.constexpr, _select(32))


@gluon.constexpr_function
def _for_absent(text, absent):
    return text.replace("ABSENT", "0fFF800000" if absent < -1e38 else f"{absent!r}")


@gluon.jit
def thread_words(words, place, TILE: gl.constexpr):
    """A thread's bits of the place-th tile, [128, TILE / 64] as lowering/masks/mask_bits.py has them."""
    COUNT: gl.constexpr = TILE // 64
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, COUNT], [32, 1], [4, 1], [1, 0])
    thread = gl.arange(0, 128, gl.SliceLayout(1, LAYOUT)) * COUNT
    number = gl.arange(0, COUNT, gl.SliceLayout(0, LAYOUT))
    return gl.load(words + place * (128 * COUNT) + (thread[:, None] + number[None, :]))


@gluon.jit
def kept(score, words, ABSENT: gl.constexpr):
    """The scores whose bits are set, ABSENT for the others: -inf or a number."""
    COUNT: gl.constexpr = words.shape[1]
    every = words.reshape([4, 8, 4, COUNT])
    for _ in gl.static_range(5):
        every = gl.join(every, every)
    every = every.permute((0, 4, 1, 3, 5, 6, 7, 2, 8)).reshape([64, 64 * COUNT])
    every = gl.convert_layout(every, score.type.layout)
    TEXT: gl.constexpr = _for_absent(SELECT, ABSENT)
    return gl.inline_asm_elementwise(TEXT, SELECT_CONSTRAINTS, [score, every], gl.float32, True, 32)


@gluon.jit
def halves(x):
    """A tile in the layout of an accumulator as its left and its right columns; no register moves."""
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, x.shape[1] // 2, 16])
    left, right = x.reshape([x.shape[0], 2, x.shape[1] // 2]).permute((0, 2, 1)).split()
    return gl.convert_layout(left, HALF), gl.convert_layout(right, HALF)


@gluon.jit
def take_turn(W):
    """Sleeps on named barrier 8 + W until the warpgroup before this one has issued its products."""
    number = gl.full([128], 8 + W, gl.int32, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("bar.sync $1, 256; mov.b32 $0, $1;", "=r,r", [number], gl.int32, False, 1)


@gluon.jit
def give_turn(W):
    number = gl.full([128], 8 + W, gl.int32, gl.BlockedLayout([1], [32], [4], [0]))
    gl.inline_asm_elementwise("bar.arrive $1, 256; mov.b32 $0, $1;", "=r,r", [number], gl.int32, False, 1)


@gluon.jit
def quotient(number, multiplier, shift):
    """number // divisor (lowering/codegen/fast_division.py)."""
    return (number.to(gl.int64) * multiplier >> shift).to(gl.int32)


@gluon.jit
def items_here(items, total, TABLE: gl.constexpr):
    """How many work items this program has: the table says it in its first row, or every so many are its own."""
    program = gl.program_id(0)
    if TABLE:
        return gl.load(items + program)
    else:
        return (total - program + gl.num_programs(0) - 1) // gl.num_programs(0)


@gluon.jit
def item_at(position, items, TABLE: gl.constexpr):
    place = gl.program_id(0) + position * gl.num_programs(0)
    if TABLE:
        return gl.load(items + place + gl.num_programs(0))
    else:
        return place
