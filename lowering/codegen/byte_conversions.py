"""Bytes as half precision, four at a time: PTX in helpers that a kernel's text calls.

A compiler converts bytes one by one. Here a byte becomes the last bits of a number whose exponent is known, and an
addition takes that number away. Every value is exact, and NaN of eight-bit floats stays NaN. Example: the byte 5 behind
0x43 is 133 in bfloat16, from which 128 is subtracted.
"""

from __future__ import annotations

import re

from ...egraph.terms.ops import cast
from ...egraph.terms.term import Term
from ..plan.dtypes import HALVES, is_integer

BYTES_TOGETHER = 4
BITS_BEHIND_THE_POINT = {"bfloat16": 7, "float16": 10}  # so many bits of a byte fit behind a known exponent
HIGH = {"bfloat16": 0x43, "float16": 0x64}  # the high byte of 128 in bfloat16, of 1024 in float16
NEGATIVE = {"bfloat16": 0xC300, "float16": 0xE400}  # -128, -1024
CASTS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
MIN_CAPABILITY = {"bfloat16": 80, "float16": 80} | dict.fromkeys(CASTS, 89)
# Before the name of a helper that may be moved to the layout in which a product reads bytes: four neighbours that are
# summed are a word there. Elsewhere it would read them one by one, so it stays on the tile as that was loaded.
MOVABLE = "summed_"
Bits = tuple[Term, int, int]  # a tensor of bytes as it is loaded, and which of its bits: the lowest, how many


def helper_of(node: Term, machine: str) -> tuple[str, Term] | None:
    """The helper that casts loaded bytes to half precision, and the load; None for another cast or machine."""
    if node.op != "cast" or node.dtype not in HALVES:
        return None
    source, name = unwidened(node.args[0]), ""
    whole = _centred(source)
    if source.op == "load" and source.dtype in ("int8", *CASTS):
        name = f"{source.dtype}_to_{node.dtype}"
    elif found := _bits(source if whole is None else whole):
        source, lowest, count = found
        name = f"{'centred_' * (whole is not None)}bits_{lowest}_{count}_to_{node.dtype}"
    kind = source.dtype if source.dtype in CASTS else node.dtype
    return (name, source) if name in HELPERS and _capability(machine) >= MIN_CAPABILITY[kind] else None


def is_moved_anyway(machine: str) -> bool:
    """Whether only movable helpers compile: Triton 3.6 pipelines no others for Blackwell ("how to predicate")."""
    return _capability(machine) >= 100


def unwidened(node: Term) -> Term:
    """The term without casts that change no whole number of eight bits."""
    while node.op == "cast" and is_integer(node.dtype) and node.args[0].dtype in ("int8", "uint8"):
        if node.dtype in ("int8", "uint8"):
            return node
        node = node.args[0]
    return node


def centred_in_halves(node: Term) -> Term | None:
    """The bits that the program made halves, less half of their range, as halves, too; None for another number.

    Both are exact. Example: float32(bfloat16(x % 16)) - 8 is bfloat16(x % 16 - 8).
    """
    halves = [n.dtype for n in _casts(node.args[0]) if n.dtype in HALVES] if _centred(node) is not None else []
    return cast(node, halves[0]) if halves else None


def _centred(node: Term) -> Term | None:
    """The bits from which a term takes half of their range: 8 from four bits, 128 from a byte."""
    if node.op != "sub" or node.args[1].op != "const":
        return None
    number = next((n for n in (node.args[0], *(c.args[0] for c in _casts(node.args[0]))) if _bits(n)), None)
    found = None if number is None else _bits(number)
    return number if found is not None and node.args[1].attrs[0] == 1 << (found[2] - 1) else None


def _casts(node: Term) -> list[Term]:
    """The casts to floats that a term begins with, the outermost first; none changes a whole number of eight bits."""
    found = []
    while node.op == "cast" and node.dtype in (*HALVES, "float32"):
        found.append(node)
        node = node.args[0]
    return found


def _bits(node: Term) -> Bits | None:
    """The bits of an unsigned byte that a whole number is; None for another number."""
    node = unwidened(node)
    if node.op == "load" and node.dtype == "uint8":
        return node, 0, 8
    if node.op not in ("mod", "floordiv") or node.args[1].op != "const":
        return None
    number, found = int(node.args[1].attrs[0]), _bits(node.args[0])
    if found is None or number < 1 or number.bit_count() != 1:
        return None
    load, lowest, count = found
    bits = number.bit_length() - 1
    return (load, lowest, min(count, bits)) if node.op == "mod" else (load, lowest + bits, count - bits)


def _capability(machine: str) -> int:
    """The compute capability of an NVIDIA GPU; 0 for another machine."""
    return int(machine.removeprefix("sm_")) if machine.startswith("sm_") else 0


# Instructions: $2 has four bytes, $0 and $1 get two halves each


def _numbers(half: str, signed: bool, lowest: int = 0, count: int = 8, centred: bool = False) -> list[str]:
    """Whole numbers: bits of bytes, or signed bytes. centred: half of the range of bits is taken away."""
    lines, word = [], "$2"
    if lowest:
        lines.append(f"shr.b32 w, {word}, {lowest}")
        word = "w"
    if count < 8:
        lines.append(f"and.b32 w, {word}, {_repeated((1 << count) - 1, 1)}")
        word = "w"
    if count <= BITS_BEHIND_THE_POINT[half]:
        away = NEGATIVE[half] + centred * (1 << (count - 1))
        if signed:  # half the range is added, so that no number is negative, and taken away again
            lines.append(f"xor.b32 w, {word}, 0x80808080")
            word, away = "w", away + (128 << (BITS_BEHIND_THE_POINT[half] - 10))
        lines += _placed(word, half)
        return [*lines, f"mov.b32 m, {_repeated(away, 2)}", *_each(lambda n: _added(half, f"${n}", f"p{n}", "m"))]
    if centred:  # the byte as a signed one, with its first bit changed
        lines.append(f"xor.b32 w, {word}, 0x80808080")
        word = "w"
    return [*lines, *_placed(word, half), *_in_two_parts(signed or centred)]


def _placed(word: str, half: str) -> list[str]:
    """Each byte behind the high byte of a half: p0 and p1."""
    lines = [f"mov.b32 h, {_repeated(HIGH[half], 1)}"]
    return [*lines, f"prmt.b32 p0, {word}, h, 0x4140", f"prmt.b32 p1, {word}, h, 0x4342"]


def _in_two_parts(signed: bool) -> list[str]:
    """A byte that has one bit more than fits behind 128: 128 + seven bits, and 128 or 256 by the first bit.

    The first number less the second is a signed byte; less 256 and then plus the second, an unsigned one.
    """
    lines = _each(lambda n: f"and.b32 q{n}, p{n}, 0xff80ff80") + _each(lambda n: f"and.b32 p{n}, p{n}, 0xff7fff7f")
    if signed:
        return [*lines, "mov.b32 m, 0xbf80bf80", *_each(lambda n: f"fma.rn.bf16x2 ${n}, q{n}, m, p{n}")]
    lines += ["mov.b32 m, 0xc380c380", *_each(lambda n: _added("bfloat16", f"p{n}", f"p{n}", "m"))]
    return lines + _each(lambda n: _added("bfloat16", f"${n}", f"p{n}", f"q{n}"))


def _added(half: str, to: str, one: str, other: str) -> str:
    """Devices before Hopper add no pairs of bfloat16, but multiply and add them."""
    return f"add.rn.f16x2 {to}, {one}, {other}" if half == "float16" else f"fma.rn.bf16x2 {to}, {one}, u, {other}"


def _floats(half: str, kind: str) -> list[str]:
    """Eight-bit floats: a device makes pairs of float16 of them, and pairs of bfloat16 of float32."""
    lines = ["mov.b32 {{a, b}}, $2"]
    if half == "float16":
        return [*lines, f"cvt.rn.f16x2.{kind}x2 $0, a", f"cvt.rn.f16x2.{kind}x2 $1, b"]
    lines += [f"cvt.rn.f16x2.{kind}x2 p0, a", f"cvt.rn.f16x2.{kind}x2 p1, b"]
    for n in range(2):
        lines += [f"mov.b32 {{{{a, b}}}}, p{n}", "cvt.f32.f16 f, a", "cvt.f32.f16 g, b"]
        lines.append(f"cvt.rn.bf16x2.f32 ${n}, g, f")
    return lines


def _each(line) -> list[str]:
    return [line(n) for n in range(2)]


def _repeated(number: int, size: int) -> str:
    """A word that holds a number of one or two bytes over and over."""
    return f"0x{number * (0x01010101 if size == 1 else 0x00010001):08x}"


REGISTERS = {".b16": "a b", ".b32": "w h m u p0 p1 q0 q1", ".f32": "f g"}


def _body(half: str, lines: list[str], movable: bool) -> str:
    """A helper's body. It is called pure, and may be moved behind a change of layout, where it is movable."""
    ones = ["mov.b32 u, 0x3f803f80"] if any(" u, " in line for line in lines) else []
    used = {name for line in lines for name in re.findall(r"\w+", line)}
    declared = [f".reg {kind} {x}" for kind, names in REGISTERS.items() for x in names.split() if x in used]
    text = "; ".join((*declared, *ones, *lines))
    arguments = f'"{{{{ {text}; }}}}", "=r,=r,r", [{{x}}], {{lang}}.{half}, {movable}, {BYTES_TOGETHER}'
    return f"return {{lang}}.inline_asm_elementwise({arguments})"


INSTRUCTIONS = {
    **{f"int8_to_{half}": (half, _numbers(half, True)) for half in HALVES},
    **{
        f"{'centred_' * centred}bits_{lowest}_{count}_to_{half}": (half, _numbers(half, False, lowest, count, centred))
        for half in HALVES
        for lowest in range(8)
        for count in range(1, 9 - lowest)
        for centred in (False, True)
    },
    **{f"{kind}_to_{half}": (half, _floats(half, name)) for half in HALVES for kind, name in CASTS.items()},
}
HELPERS = {
    f"{MOVABLE * movable}{name}": _body(half, lines, movable)
    for movable in (False, True)
    for name, (half, lines) in INSTRUCTIONS.items()
}
