"""Device functions that move exponentials and reciprocals from the special-function unit to multiply-adds, in part.

Each works on eight registers of a thread at a time and leaves some of them to the unit; alternatives.py has what the
others cost and how far they are off. Imported by the text of a kernel only, as gluon_parts.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from .alternatives import EXP2, RECIPROCAL

# Which of a thread's eight numbers go first. In the order of an accumulator 0, 1, 4, 5 are of one row and 2, 3, 6, 7
# of another.
ORDER = (1, 6, 3, 4, 5, 2, 0, 7)
TOGETHER = 8


def weights_text(factor: float, shift: float, count: int, clamped: bool) -> str:
    """PTX of 2^(score · factor - shift): $8.. scores.

    A float between 512 and 1024 has nine bits of integer and fourteen of fraction F. With q = -2 - (2^F - 1 - F), the
    sum of q's bits and the float's, moved into the exponent's place, is 2^(integer) · (1 + F + 2^F - 1 - F). The float
    times zero is added to tell NaN.
    """
    first, *others = (-c * 2.0 ** (-EXP2.fraction * (n + 1)) for n, c in reversed([*enumerate(EXP2.coefficients)]))
    text = "{ .reg .f32 t, f, p; .reg .b32 u, v, w; mov.b32 w, 0x4B000000;\n"
    for k in range(TOGETHER):
        if k not in ORDER[:count]:
            text += f"mov.f32 t, {-shift!r}; fma.rn.f32 t, ${8 + k}, {factor!r}, t; ex2.approx.ftz.f32 ${k}, t;\n"
            continue
        text += f"fma.rn.f32 t, ${8 + k}, {factor!r}, {EXP2.offset - shift!r};\n"
        text += f"max.NaN.f32 t, t, {EXP2.offset - 127.0!r};\n" if clamped else ""
        text += f"mov.b32 u, t; lop3.b32 v, u, {(1 << EXP2.fraction) - 1}, w, 0xEA;\n"
        text += f"mov.b32 f, v; add.f32 f, f, -8388608.0; mov.f32 p, {first!r};\n"
        text += "".join(f"fma.rn.f32 p, p, f, {c!r}; " for c in others) + "fma.rn.f32 p, p, f, -2.0;\n"
        text += f"mov.b32 v, p; shl.b32 u, u, {23 - EXP2.fraction}; add.s32 u, u, v; mov.b32 p, u;\n"
        text += f"fma.rn.f32 ${k}, t, 0.0, p;\n"
    return text + "}"


def logistic_text(scale: float, shift: float, count: int) -> str:
    """PTX of 1 / (1 + 2^(x · scale + shift)): $8.. x; reciprocals in part from a guess whose bits are a difference."""
    text = "{ .reg .f32 e, d, y, r; .reg .b32 u;\n"
    for k in range(TOGETHER):
        text += f"fma.rn.f32 e, ${8 + k}, {scale!r}, {shift!r};\n"
        text += f"min.NaN.f32 e, e, {RECIPROCAL.most!r};\n" if k in ORDER[:count] else ""
        text += "ex2.approx.ftz.f32 e, e; add.f32 d, e, 1.0;\n"
        if k in ORDER[:count]:
            text += f"mov.b32 u, d; sub.s32 u, {RECIPROCAL.guess}, u; mov.b32 y, u; neg.f32 d, d;\n"
            text += f"fma.rn.f32 r, d, y, 1.0; fma.rn.f32 r, r, r, r; fma.rn.f32 ${k}, y, r, y;\n"
        else:
            text += f"rcp.approx.ftz.f32 ${k}, d;\n"
    return text + "}"


_CONSTRAINTS = gl.constexpr(",".join(["=&f"] * TOGETHER + ["f"] * TOGETHER))
_weights, _logistic = map(gluon.constexpr_function, (weights_text, logistic_text))


@gluon.jit
def bounded_weights(score, SHIFT: gl.constexpr, FACTOR: gl.constexpr, COUNT: gl.constexpr, CLAMPED: gl.constexpr):
    """2^(score · FACTOR - SHIFT) for scores that are proved to be no larger than the shift, COUNT of 8 by
    multiply-adds. CLAMPED: an exponent may be less than -127."""
    TEXT: gl.constexpr = _weights(FACTOR, SHIFT, COUNT, CLAMPED)
    return gl.inline_asm_elementwise(TEXT, _CONSTRAINTS, [score], gl.float32, True, 8)


@gluon.jit
def logistic_of(x, SCALE: gl.constexpr, SHIFT: gl.constexpr, COUNT: gl.constexpr):
    """1 / (1 + 2^(x · SCALE + SHIFT)), COUNT of 8 reciprocals by multiply-adds."""
    return gl.inline_asm_elementwise(_logistic(SCALE, SHIFT, COUNT), _CONSTRAINTS, [x], gl.float32, True, 8)
