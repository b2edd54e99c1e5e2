"""PTX for sums along diagonals: run by a small interpreter of its instructions, thread by thread."""

import re
import struct
from collections import Counter

import numpy as np
import pytest

from onepass.lowering.launch.triton_compat import gluon_missing

if (missing := gluon_missing()) is not None:  # the module under test imports Gluon
    pytest.skip(missing, allow_module_level=True)

from onepass.lowering.joined.diagonal_adds import diagonal_adds_text

LANES = range(32)
COMPARED = {"ne": lambda x, y: x != y, "neu": lambda x, y: x != y, "eq": lambda x, y: x == y, "ge": lambda x, y: x >= y}
DONE = {
    "mov": lambda x: x,
    "not": lambda x: not x,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: (x - y) % 2**32,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "selp": lambda x, y, which: x if which else y,
}


class Warp:
    """The registers of 32 threads, and what they added to memory by address."""

    def __init__(self, operands):
        self.registers, self.memory = [{**operands[lane], "%laneid": lane} for lane in LANES], Counter()

    def value(self, lane, text):
        if text.startswith("0f"):
            return struct.unpack(">f", bytes.fromhex(text[2:]))[0]
        return int(text) if re.fullmatch(r"-?\d+", text) else self.registers[lane][text]

    def run(self, text):
        for line in filter(None, map(str.strip, re.sub(r"\.reg[^;]*;|[{}\n]", " ", text).split(";"))):
            on, name, rest = re.fullmatch(r"(?:@(\w+) )?([\w.:]+) (.*)", line).groups()
            self.step(on, *name.split(".")[:2], [part.strip() for part in rest.split(",")])

    def step(self, on, name, kind, parts):
        target, *read = parts
        given = [[self.value(lane, part) for part in read] for lane in LANES]
        for lane in LANES:
            if on and not self.registers[lane][on]:
                continue
            if name == "red":
                register, offset = re.fullmatch(r"\[(\S+) \+ (-?\d+)\]", target).groups()
                self.memory[self.registers[lane][register] + int(offset)] += given[lane][0]
            elif name == "shfl":
                self.registers[lane][target] = given[given[lane][1]][0]
            else:
                done = COMPARED[kind] if name == "setp" else DONE[name]
                self.registers[lane][target] = done(*given[lane])


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("columns", [64, 128])
def test_each_element_is_added_once_at_its_diagonal(columns, sign):
    """As `add_diagonals` calls it: threads hold what accumulators have, and the address of their first sum."""
    tile = np.random.default_rng(0).integers(1, 1000, (16, columns)).astype(float)
    count, start, operands = columns // 2, 10**6, []
    for lane in LANES:
        row, pair = divmod(lane, 4)
        two = row // 2 % 2
        first = 8 * two - 16 + 2 * ((pair + 3 * two) % 4) - row % 2
        known = {f"${count + k}": start + 4 * sign * first for k in range(count)}
        for k in range(count):
            block, half, place = k // 4, k // 2 % 2, k % 2
            known[f"${2 * count + k}"] = tile[row + 8 * half, 8 * block + 2 * pair + place]
        operands.append(known)
    warp = Warp(operands)
    warp.run(diagonal_adds_text(columns, sign))
    expected = Counter()
    for row, column in np.ndindex(tile.shape):
        expected[start + 4 * sign * (column - row)] += tile[row, column]
    assert warp.memory == expected and len(expected) == columns + 15


def test_zeros_are_added_nowhere():
    """What lies outside of a tensor is 0 in a tile, and its place may lie outside of memory."""
    warp = Warp([{f"${n}": 0.0 for n in range(96)} for _ in LANES])
    warp.run(diagonal_adds_text(64, 1))
    assert not warp.memory
