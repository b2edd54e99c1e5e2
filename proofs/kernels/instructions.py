"""What instructions of PTX in a kernel's text make of bytes: each of the 256, by running them one after another.

A register is an array with a word for each thread. Example: `values_of_bytes` of a text that makes bfloat16 of four
signed bytes is [0, 1, ..., 127, -128, ..., -1].
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from .memory import KernelFault

BYTES = np.arange(256, dtype=np.uint32)
PLACES = 4  # bytes of a word
Word = np.ndarray  # of uint32; a register of 16 bits is a word below 2^16


@cache
def values_of_bytes(text: str, half: str) -> np.ndarray:
    """The 256 values of a text that makes two words of halves, $0 and $1, of a word of bytes, $2.

    Raises KernelFault for another text, and where a byte's value depends on its place or its neighbours.
    """
    found = np.empty((PLACES, BYTES.size))
    for turn in range(PLACES):
        bytes_ = np.roll(BYTES.reshape(-1, PLACES), turn, axis=1)
        registers = _run(text, _word([bytes_[:, n] for n in range(PLACES)]))
        made = [x for name in ("$0", "$1") for x in _halves(registers[name], half)]
        for n, values in enumerate(made):
            found[turn, bytes_[:, n]] = values
    if not all(same_values(found[0], values) for values in found):
        raise KernelFault("an instruction that mixes bytes")
    return found[0]


def float8_values(kind: str) -> np.ndarray:
    """The 256 values of eight-bit floats with sign, exponent and mantissa: "e4m3", without infinities, or "e5m2"."""
    if kind == "e5m2":
        return (BYTES << 8).astype(np.uint16).view(np.float16).astype(float)
    sign, exponent, mantissa = BYTES >> 7, (BYTES >> 3 & 15).astype(int), (BYTES & 7).astype(float)
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10))
    return np.where(sign == 1, -1.0, 1.0) * np.where(BYTES & 127 == 127, np.nan, size)


def same_values(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether both have the same numbers, with their signs, and NaN at the same places."""
    same = (one == other) & (np.signbit(one) == np.signbit(other))
    return bool((same | (np.isnan(one) & np.isnan(other))).all())


# One instruction


def _run(text: str, word: Word) -> dict[str, np.ndarray]:
    """All registers behind the text."""
    registers = {"$2": word}
    lines = [line.strip() for line in text.strip().strip("{}").split(";")]
    for line in (x for x in lines if x and not x.startswith(".reg ")):
        if pair := re.fullmatch(r"mov\.b32 \{(\w+), (\w+)\}, (\S+)", line):
            whole = _value(registers, pair[3])
            registers |= {pair[1]: whole & np.uint32(0xFFFF), pair[2]: whole >> np.uint32(16)}
            continue
        name, to, *operands = re.split(r",? ", line)
        if name not in INSTRUCTIONS:
            raise KernelFault(f"the instruction {line}")
        registers[to] = INSTRUCTIONS[name](*(_value(registers, x) for x in operands))
    return registers


def _value(registers: dict[str, np.ndarray], operand: str) -> np.ndarray:
    if operand in registers:
        return registers[operand]
    if not re.fullmatch(r"0x[0-9a-f]+|\d+", operand):
        raise KernelFault(f"the operand {operand} of an instruction")
    return np.full(BYTES.size // PLACES, int(operand, 0), np.uint32)


def _halves(word: Word, half: str) -> tuple[np.ndarray, np.ndarray]:
    """The low and the high half of a word."""
    return _number(word & np.uint32(0xFFFF), half), _number(word >> np.uint32(16), half)


def _number(bits: Word, half: str) -> np.ndarray:
    if half == "float16":
        return bits.astype(np.uint16).view(np.float16).astype(float)
    return (bits << np.uint32(16)).view(np.float32).astype(float)


def _bits(values: np.ndarray, half: str) -> Word:
    """The bits of numbers rounded to a half."""
    if half == "float16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint32)
    bits = np.nan_to_num(values, posinf=np.inf, neginf=-np.inf).astype(np.float32).view(np.uint32)
    to_even = (bits >> np.uint32(16) & np.uint32(1)) + np.uint32(0x7FFF)
    return np.where(np.isnan(values), np.uint32(0x7FFF), (bits + to_even) >> np.uint32(16)).astype(np.uint32)


def _by_halves(half: str, function: Callable[..., np.ndarray]) -> Callable[..., Word]:
    def run(*words: Word) -> Word:
        low, high = (_bits(function(*parts), half) for parts in zip(*(_halves(w, half) for w in words), strict=True))
        return low | high << np.uint32(16)

    return run


def _permuted(one: Word, other: Word, selector: Word) -> Word:
    bytes_ = np.stack([word >> np.uint32(8 * n) & np.uint32(255) for word in (one, other) for n in range(PLACES)])
    chosen = [selector >> np.uint32(4 * n) & np.uint32(15) for n in range(PLACES)]
    if max(x.max() for x in chosen) >= len(bytes_):
        raise KernelFault("a selector of prmt that repeats a sign")
    threads = np.arange(one.size)
    return _word([bytes_[x, threads] for x in chosen])


def _word(bytes_: Sequence[np.ndarray]) -> Word:
    """Words of four bytes, the lowest first."""
    first, second, third, fourth = (x.astype(np.uint32) << np.uint32(8 * n) for n, x in enumerate(bytes_))
    return first | second | third | fourth


def _of_float8(kind: str) -> Callable[[Word], Word]:
    table = _bits(float8_values(kind), "float16")
    return lambda pair: table[pair & np.uint32(255)] | table[pair >> np.uint32(8)] << np.uint32(16)


INSTRUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "mov.b32": lambda x: x,
    "and.b32": lambda x, y: x & y,
    "xor.b32": lambda x, y: x ^ y,
    "shr.b32": lambda x, y: x >> y,
    "prmt.b32": _permuted,
    "add.rn.f16x2": _by_halves("float16", lambda x, y: x + y),
    "fma.rn.bf16x2": _by_halves("bfloat16", lambda x, y, z: x * y + z),
    "cvt.rn.f16x2.e4m3x2": _of_float8("e4m3"),
    "cvt.rn.f16x2.e5m2x2": _of_float8("e5m2"),
    "cvt.f32.f16": lambda x: x.astype(np.uint16).view(np.float16).astype(float),
    "cvt.rn.bf16x2.f32": lambda high, low: _bits(low, "bfloat16") | _bits(high, "bfloat16") << np.uint32(16),
}
