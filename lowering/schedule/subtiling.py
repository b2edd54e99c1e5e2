"""Rewritings of a problem before it is solved: rows in several sub-tiles, one operation in several parts.

Without sub-tiles, warpgroups that take turns are not among the schedules; without parts, nothing can be issued in the
middle of a long operation. Each keeps the work of every unit.
"""

from __future__ import annotations

from dataclasses import replace

from .problem import Operation, Problem, Value


def subtiled(problem: Problem, count: int) -> Problem:
    """`count` sub-tiles of rows, each with its own copy of everything that is not shared by all rows."""
    own = {o.name: o.private for o in problem.operations}
    mark = lambda name, k: f"{name} @{k}" if own[name] else name
    copies = range(count)
    operations = {mark(o.name, k): replace(o, name=mark(o.name, k)) for k in copies for o in problem.operations}
    edges = {replace(e, before=mark(e.before, k), after=mark(e.after, k)) for k in copies for e in problem.edges}
    values = (_marked(v, k, mark) for k in copies for v in problem.values)
    return replace(
        problem,
        name=f"{problem.name}, {count} sub-tiles",
        operations=tuple(operations.values()),
        edges=tuple(sorted(edges, key=lambda e: (e.before, e.after, e.distance))),
        values=tuple(values),
        resident=problem.resident * count,
    )


def _marked(value: Value, k: int, mark) -> Value:
    readers = tuple((mark(n, k), d) for n, d in value.readers)
    return replace(value, name=f"{value.name} @{k}", producer=mark(value.producer, k), readers=readers)


def parted(problem: Problem, name: str, count: int) -> Problem:
    """The operation in `count` parts, each with a share of its work; what followed it follows all of them."""
    old = next(o for o in problem.operations if o.name == name)
    parts = [_part(old, k, count, problem.slot) for k in range(count)]
    names = [p.name for p in parts]
    around = lambda x: names if x == name else [x]
    edges = [
        replace(e, before=b, after=a, delay=parts[0].latency if b in names else e.delay)
        for e in problem.edges
        for b in around(e.before)
        for a in around(e.after)
    ]
    values = [_with_parts(v, name, names) for v in problem.values]
    operations = [p for o in problem.operations for p in (parts if o is old else [o])]
    return replace(problem, operations=tuple(operations), edges=tuple(edges), values=tuple(values))


def _part(old: Operation, k: int, count: int, slot: int) -> Operation:
    work = {unit: clocks // count + (k < clocks % count) for unit, clocks in old.work.items()}
    duration = max(1, *(-(-clocks // slot) for clocks in work.values()))
    return replace(old, name=f"{old.name} part {k}", work=work, duration=duration, latency=duration)


def _with_parts(value: Value, name: str, names: list[str]) -> Value:
    if value.producer == name:
        raise ValueError(f"{name} makes {value.name}: an operation that allocates a value cannot be divided")
    readers = tuple((n, d) for reader, d in value.readers for n in (names if reader == name else [reader]))
    return replace(value, readers=readers)


def with_registers(problem: Problem, *registers: tuple[int, int]) -> Problem:
    """The problem under another register budget, as after the assembler spilled."""
    return replace(problem, registers=registers)
