"""Device functions that move special functions from their unit to multiply-adds, in part or where numbers allow.

Each works on some registers of a thread at a time; lowering/hopper/approximations.py has what the others cost and how
far they are off. Where a form holds for most numbers only, a warp branches by all that its registers hold.
"""

from math import log2

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ..hopper.approximations import EXP2, RECIPROCAL, SMALL, TANGENT, SmallArgumentForm

# Which of a thread's eight numbers go first. In the order of an accumulator 0, 1, 4, 5 are of one row and 2, 3, 6, 7
# of another.
ORDER = (1, 6, 3, 4, 5, 2, 0, 7)
REGISTERS_AT_A_TIME = 8
LIMIT = -log2(SMALL.reach)
WORDS = "{ .reg .f32 t, f, p; .reg .b32 u, v, w; .reg .pred far; mov.b32 w, 0x4B000000; mov.b32 u, 0;\n"


@gluon.constexpr_function
def raised(into: str, x: str, factor: float, shift: float, spared: bool, clamped: bool) -> str:
    """PTX of 2^(x · factor - shift).

    A float between 512 and 1024 has nine bits of integer and fourteen of fraction F. With q = -2 - (2^F - 1 - F), the
    sum of q's bits and the float's, moved into the exponent's place, is 2^(integer) · (1 + F + 2^F - 1 - F). The float
    times zero is added to tell NaN.
    """
    if not spared:
        return f"mov.f32 t, {-shift!r}; fma.rn.f32 t, {x}, {factor!r}, t; ex2.approx.ftz.f32 {into}, t;\n"
    first, *others = (-c * 2.0 ** (-EXP2.fraction * (n + 1)) for n, c in reversed([*enumerate(EXP2.coefficients)]))
    text = f"fma.rn.f32 t, {x}, {factor!r}, {EXP2.offset - shift!r};\n"
    text += f"max.NaN.f32 t, t, {EXP2.offset - 127.0!r};\n" if clamped else ""
    text += f"mov.b32 u, t; lop3.b32 v, u, {(1 << EXP2.fraction) - 1}, w, 0xEA;\n"
    text += f"mov.b32 f, v; add.f32 f, f, -8388608.0; mov.f32 p, {first!r};\n"
    text += "".join(f"fma.rn.f32 p, p, f, {c!r}; " for c in others) + "fma.rn.f32 p, p, f, -2.0;\n"
    text += f"mov.b32 v, p; shl.b32 u, u, {23 - EXP2.fraction}; add.s32 u, u, v; mov.b32 p, u;\n"
    return text + f"fma.rn.f32 {into}, t, 0.0, p;\n"


@gluon.constexpr_function
def weights_text(factor: float, shift: float, count: int, clamped: bool) -> str:
    """PTX of 2^(score · factor - shift): $8.. scores."""
    each = range(REGISTERS_AT_A_TIME)
    parts = (raised(f"${k}", f"${REGISTERS_AT_A_TIME + k}", factor, shift, k in ORDER[:count], clamped) for k in each)
    return WORDS + "".join(parts) + "}"


@gluon.constexpr_function
def curve(into: str, spared: bool) -> str:
    """PTX of 1 / (1 + 2^t); in part the reciprocal is a guess, whose bits are a difference, made better."""
    text = f"min.NaN.f32 t, t, {RECIPROCAL.most!r};\n" if spared else ""
    text += "ex2.approx.ftz.f32 t, t; add.f32 t, t, 1.0;\n"
    if not spared:
        return text + f"rcp.approx.ftz.f32 {into}, t;\n"
    text += f"mov.b32 u, t; sub.s32 u, {RECIPROCAL.guess}, u; mov.b32 p, u; neg.f32 t, t;\n"
    return text + f"fma.rn.f32 f, t, p, 1.0; fma.rn.f32 f, f, f, f; fma.rn.f32 {into}, p, f, p;\n"


@gluon.constexpr_function
def logistic_text(scale: float, shift: float, count: int) -> str:
    """PTX of 1 / (1 + 2^(x · scale + shift)): $8.. x."""
    text = ""
    for k in range(REGISTERS_AT_A_TIME):
        text += f"fma.rn.f32 t, ${REGISTERS_AT_A_TIME + k}, {scale!r}, {shift!r};\n"
        text += curve(f"${k}", k in ORDER[:count])
    return WORDS + text + "}"


@gluon.constexpr_function
def branched(registers: list[tuple[str, str, str]], test: str, begin: str = "") -> str:
    """PTX that goes one of two ways, together with its warp: of each register how its argument comes to be and joins
    what is tested, and the near way and the far way."""
    arguments, near, far = map("".join, zip(*registers))
    text = f"{WORDS}{begin}{arguments}{test} vote.sync.any.pred far, far, 0xffffffff; @far bra.uni FAR;\n"
    return f"{text}{near}bra.uni DONE;\nFAR: {far}DONE: }}"


@gluon.constexpr_function
def polynomial(near: SmallArgumentForm, unit: float, factor: float) -> list[float]:
    """Coefficients of factor · Σ c_n x^(n · step) by powers of x / unit, the highest first."""
    return [factor * c * unit ** (n * near.step) for n, c in reversed([*enumerate(near.coefficients)])]


@gluon.constexpr_function
def horner(into: str, variable: str, coefficients: list[float]) -> str:
    first, second, *others = coefficients
    text = f"mov.f32 {into}, {second!r}; fma.rn.f32 {into}, {variable}, {first!r}, {into};\n"
    return text + "".join(f"fma.rn.f32 {into}, {into}, {variable}, {c!r};\n" for c in others)


@gluon.constexpr_function
def capped_text(scale: float, factor: float, shift: float, count: int, size: int) -> str:
    """PTX of 2^(tanh(x · scale) · factor - shift): $size.. x. Bit 30 of a float says that it is not between -2 and 2:
    arguments are taken in the unit that makes this their reach."""
    unit = TANGENT.reach / 2
    last = polynomial(TANGENT, unit, factor * unit)
    registers = []
    for k in range(size):
        x = f"${k}"
        argument = f"mul.f32 {x}, ${size + k}, {scale / unit!r}; mov.b32 v, {x}; or.b32 u, u, v;\n"
        near = f"mul.f32 t, {x}, {x};\n{horner('p', 't', last)}"
        near += f"fma.rn.f32 p, {x}, p, {-shift!r}; ex2.approx.ftz.f32 {x}, p;\n"
        far = f"mul.f32 {x}, {x}, {unit!r}; tanh.approx.f32 {x}, {x};\n"
        far += raised(x, x, factor, shift, k % REGISTERS_AT_A_TIME in ORDER[:count], clamped=False)
        registers.append((argument, near, far))
    return branched(registers, "and.b32 u, u, 0x40000000; setp.ne.s32 far, u, 0;")


@gluon.constexpr_function
def small_logistic_text(scale: float, shift: float, count: int, size: int) -> str:
    """PTX of 1 / (1 + 2^(x · scale + shift)): $size.. x. With e = 2^-(x · scale + shift) it is e / (1 + e); the sign of
    an exponent says whether e is within reach."""
    last = polynomial(SMALL, SMALL.reach, SMALL.reach)
    registers = []
    for k in range(size):
        y = f"${k}"
        argument = f"fma.rn.f32 {y}, ${size + k}, {-scale!r}, {LIMIT - shift!r}; mov.b32 v, {y}; and.b32 u, u, v;\n"
        near = f"ex2.approx.ftz.f32 t, {y};\n{horner('p', 't', last)}mul.f32 {y}, p, t;\n"
        far = f"sub.f32 t, {LIMIT!r}, {y};\n{curve(y, k % REGISTERS_AT_A_TIME in ORDER[:count])}"
        registers.append((argument, near, far))
    return branched(registers, "setp.ge.s32 far, u, 0;", "mov.b32 u, -1;\n")


@gluon.constexpr_function
def tied(size: int) -> str:
    """Constraints of results in the registers of the arguments: a text may write one before it has read the next."""
    return ",".join(["=f"] * size + [str(k) for k in range(size)])


_CONSTRAINTS = gl.constexpr(",".join(["=&f"] * REGISTERS_AT_A_TIME + ["f"] * REGISTERS_AT_A_TIME))


@gluon.jit
def bounded_weights(score, SHIFT: gl.constexpr, FACTOR: gl.constexpr, COUNT: gl.constexpr, CLAMPED: gl.constexpr):
    """2^(score · FACTOR - SHIFT) for scores that are proved to be no larger than the shift, COUNT of 8 by
    multiply-adds. CLAMPED: an exponent may be less than -127."""
    TEXT: gl.constexpr = weights_text(FACTOR, SHIFT, COUNT, CLAMPED)
    return gl.inline_asm_elementwise(TEXT, _CONSTRAINTS, [score], gl.float32, True, 8)


@gluon.jit
def capped_weights(
    x, SCALE: gl.constexpr, SHIFT: gl.constexpr, FACTOR: gl.constexpr, COUNT: gl.constexpr, SIZE: gl.constexpr
):
    """2^(tanh(x · SCALE) · FACTOR - SHIFT) with no such exponent below -127: SIZE at a time with a polynomial for tanh
    where all are near zero, else COUNT of 8 powers by multiply-adds."""
    TEXT: gl.constexpr = capped_text(SCALE, FACTOR, SHIFT, COUNT, SIZE)
    return gl.inline_asm_elementwise(TEXT, tied(SIZE), [x], gl.float32, True, SIZE)


@gluon.jit
def logistic_of(x, SCALE: gl.constexpr, SHIFT: gl.constexpr, COUNT: gl.constexpr):
    """1 / (1 + 2^(x · SCALE + SHIFT)), COUNT of 8 reciprocals by multiply-adds."""
    return gl.inline_asm_elementwise(logistic_text(SCALE, SHIFT, COUNT), _CONSTRAINTS, [x], gl.float32, True, 8)


@gluon.jit
def small_logistic_of(x, SCALE: gl.constexpr, SHIFT: gl.constexpr, COUNT: gl.constexpr, SIZE: gl.constexpr):
    """The same, SIZE at a time with a polynomial where all are small."""
    TEXT: gl.constexpr = small_logistic_text(SCALE, SHIFT, COUNT, SIZE)
    return gl.inline_asm_elementwise(TEXT, tied(SIZE), [x], gl.float32, True, SIZE)
