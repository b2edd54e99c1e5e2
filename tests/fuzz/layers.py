"""Random programs as layers of models write them, drawn from the records in layers.txt: one section per form.

A record names its inputs (`name:kind sizes`, sizes as arithmetic over letters) and its statements, of which some are
choices; every spelling of one may meet every spelling of another. Nothing here knows what onepass can do. Drawn by
fuzz.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random

from tests.fuzz.programs import LAYOUTS, REGIMES, SMALL, Extents, Fuzzed

MASK_KINDS = ("bool", "int64", "uint8", "int32", "flags")
Part = list[list[str]]  # spellings, each some statements


@cache
def sections() -> dict[str, tuple[str, list[Part]]]:
    """Inputs and parts of each section, in the file's order. A part that is no choice has one spelling."""
    found: dict[str, tuple[str, list[Part]]] = {}
    fresh = True  # the next spelling begins a choice
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        mark, text = line[:1], line[2:]
        if mark == "[":
            name, _, inputs = line[1:].partition("]")
            assert name not in found, name
            _, parts = found[name] = (inputs.strip(), [])
        elif mark == "|" and not fresh:
            parts[-1].append([text] if text else [])
        elif mark == "|":
            parts.append([[text] if text else []])
        elif mark == " ":
            parts[-1][-1].append(text)
        elif mark not in ("", "#", "-"):
            parts.append([[line]])
        fresh = mark not in ("|", " ")
    return found


def forms() -> list[str]:
    """The sections that are programs: those with inputs."""
    return [name for name, (inputs, _) in sections().items() if inputs]


def spelled(pick: Callable, name: str) -> list[str]:
    """The statements of a section, choices made."""
    chosen = [line for part in sections()[name][1] for line in pick(*part)]
    return [said for line in chosen for said in (spelled(pick, line[1:]) if line.startswith("$") else [line])]


def random_layer(random: Random, extents: Extents = SMALL) -> Fuzzed:
    """A program of one of the records, with odd sizes (0 and 1 among them), layouts and sizes for a second call."""
    return layer(lambda *options: random.choice(options), random.randint, extents)


def layer(pick: Callable, integer: Callable, extents: Extents = SMALL, names: Sequence[str] | None = None) -> Fuzzed:
    """Choices as in fuzz_programs.program; of the sections with these names, or of all."""
    name = pick(*(names or forms()))
    size = {"b": integer(1, 3), "h": integer(1, 3), "n": integer(1, 3), "l": integer(2, 9)}
    size |= {x: integer(1, extents.longest) for x in "ij"} | {x: 2 * (pick(*extents.widths) // 2) for x in "de"}
    if pick(*range(6)) == 0:
        size[pick("b", "i", "j", "i", "j")] = pick(0, 1, 1)
    text = "\n".join(spelled(pick, name)).replace("SIZE_h", str(size["h"])).replace("NEED", pick("True", "False"))
    given = sections()[name][0].replace("MASK", pick(*MASK_KINDS))
    axes = {n: shape for n, (_, shape) in _inputs(given, size).items()}
    layouts = {n: layout for n in axes if axes[n] and (layout := pick("", "", "", *LAYOUTS))}
    later = {}
    if dynamic := pick(False, False, True):
        other = size | {x: size[x] + integer(1, 9) for x in "bijl" if size[x] > 1}
        later = {n: shape for n, (_, shape) in _inputs(given, other).items()}
    dtype, regime = pick(*extents.dtypes), pick(*REGIMES[:1] * 4, *REGIMES)
    lines = tuple(text.split("\n"))
    return Fuzzed(lines, _inputs(given, size), dtype, regime, integer(0, 999), layouts, dynamic, later)


def _inputs(given: str, size: dict[str, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Kinds and shapes by name; the kind <x is an integer below the size x."""
    found = {}
    for word, *shape in map(str.split, given.split("; ")):
        name, _, kind = word.partition(":")
        kind = f"<{size.get(kind[1:], kind[1:])}" if kind.startswith("<") else kind or "float"
        found[name] = kind, tuple(eval(axis, {}, dict(size)) for axis in shape)
    return found
