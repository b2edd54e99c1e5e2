"""The best software pipeline of a problem by OR-Tools CP-SAT: start times, warps and ring depths in one model.

It minimises, in this order: interval, consumer warpgroups, bytes between warpgroups, waits, length, tiles in rings.
The solver has one worker and a deterministic limit, so equal problems have equal answers. No answer is used before
checker.py has accepted it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import inf

from ...egraph.search.cp_sat import cp_model, deterministic
from .problem import PRODUCER, Operation, PipelineSchedule, Problem

WORK = 60.0  # limit for one model, in deterministic units of the solver, each about a second


def solve(
    problem: Problem, intervals: int = 8, consumers: tuple[int, ...] = (), work: float = WORK, room: float = inf
) -> PipelineSchedule:
    """The best schedule among `intervals` intervals, from the problem's lower bound on.

    consumers: the numbers of consumer warpgroups to try; all if empty. work: the limit for one model. room: the limit
    on the sizes of all models together; a model beyond it is not built, and counts as unknown. The status is
    "infeasible" if each pair of interval and number of warpgroups was proved to have no schedule of at most
    problem.stages iterations, and "unknown" if no schedule was found and some pair was not proved.
    """
    counts = [n for n, budget in problem.registers if budget > 0 and (not consumers or n in consumers)]
    tried: list[tuple[int, int, str]] = []
    for interval in range(problem.bound, problem.bound + intervals):
        for count in counts:
            room -= size(problem, interval, count)
            found = _Model(problem, interval, count).solve(work) if room >= 0 else PipelineSchedule("unknown")
            tried.append((interval, count, found.status))
            if found.found:
                surely = found.status == "optimal" and all(v == "infeasible" for _, _, v in tried[:-1])
                return replace(found, status="optimal" if surely else "feasible", tried=tuple(tried))
    proved = all(verdict == "infeasible" for _, _, verdict in tried)
    return PipelineSchedule("infeasible" if tried and proved else "unknown", tried=tuple(tried))


def size(problem: Problem, interval: int, consumers: int) -> int:
    """About two thirds of the number of a model's constraints, which set the time to build and to presolve it."""
    return interval * consumers * len(problem.operations) ** 2


class _Model:
    """The model of one interval and one number of consumer warpgroups.

    x[op][slot] is 1 if the operation starts at this slot of the interval. on[op][w] is 1 if warpgroup w runs it.
    """

    def __init__(self, problem: Problem, interval: int, consumers: int):
        self.cp = cp_model()
        self.model = self.cp.CpModel()
        self.problem, self.interval, self.consumers = problem, interval, consumers
        self.operations = {o.name: o for o in problem.operations}
        self.slots, self.warps = range(interval), range(1, consumers + 1)
        self.horizon = problem.stages * interval
        self._place()
        self._dependences()
        self._units()
        self._threads()
        self._registers()
        self._shared()
        self._objective()

    def flag(self):
        return self.model.new_bool_var("")

    def number(self, high: int):
        return self.model.new_int_var(0, high, "")

    def _place(self) -> None:
        model = self.model
        self.x, self.time, self.on = {}, {}, {}
        computing = [o.name for o in self.problem.operations if not o.streaming]
        for name, operation in self.operations.items():
            self.x[name] = [self.flag() for _ in self.slots]
            model.add_exactly_one(self.x[name])
            stage, self.time[name] = self.number(self.problem.stages - 1), self.number(self.horizon)
            phase = sum(p * x for p, x in enumerate(self.x[name]))
            model.add(self.time[name] == stage * self.interval + phase)
            if operation.streaming:
                continue
            self.on[name] = {w: self.flag() for w in self.warps}
            model.add_exactly_one(self.on[name].values())
        # Two symmetries are broken. Warpgroups are alike, so each is first used after the one before it. A schedule may
        # be rotated, so the first operation starts at slot 0.
        for k, name in enumerate(computing):
            for w in self.warps[1:]:
                model.add_bool_or([self.on[name][w].negated(), *(self.on[n][w - 1] for n in computing[:k])])
        model.add(self.x[computing[0]][0] == 1)

    def busy(self, name: str, slot: int, skip: int = 0):
        """1 if the operation, of any iteration, runs in the slot. The first `skip` slots of its run do not count."""
        return sum(self.x[name][(slot - c) % self.interval] for c in range(skip, self.operations[name].duration))

    def _dependences(self) -> None:
        self.apart: dict = {}
        for edge in self.problem.edges:
            gap = self.time[edge.after] + edge.distance * self.interval - self.time[edge.before]
            if self.operations[edge.before].streaming or edge.before == edge.after:
                self.model.add(gap >= edge.delay)
                continue
            apart = self.apart_of(edge.before, edge.after)
            self.model.add(gap >= edge.delay + edge.transfer * apart)

    def apart_of(self, one: str, other: str):
        """1 if the two operations are on different warpgroups."""
        key = frozenset((one, other))
        if key not in self.apart:
            self.apart[key] = apart = self.flag()
            for w in self.warps:
                a, b = self.on[one][w], self.on[other][w]
                self.model.add(a == b).only_enforce_if(apart.negated())
                self.model.add_bool_or([a.negated(), b.negated(), apart.negated()])
        return self.apart[key]

    def _units(self) -> None:
        """In each slot, a unit has at most as many clocks of work as the slot is long."""
        for unit in self.problem.work():
            users = [o for o in self.operations.values() if unit in o.work]
            for slot in self.slots:
                asked = [-(-o.work[unit] // o.duration) * self.busy(o.name, slot) for o in users]
                self.model.add(sum(asked) <= self.problem.slot)

    def _threads(self) -> None:
        """A warpgroup runs one synchronous operation at a time.

        It issues asynchronous ones only between synchronous ones.
        """
        computing = [o for o in self.operations.values() if not o.streaming]
        for one, other in combinations(computing, 2):
            if one.synchronous or other.synchronous:
                self._not_at_once(one, other)
        for edge in self.problem.edges:
            if edge.transfer and edge.before != edge.after:
                for other in computing:
                    self._sending(edge, other)

    def _not_at_once(self, one: Operation, other: Operation) -> None:
        for w in self.warps:
            both = [self.on[one.name][w], self.on[other.name][w]]
            for slot in self.slots:
                self.model.add(self.claim(one, other, slot) + self.claim(other, one, slot) <= 1).only_enforce_if(both)

    def claim(self, mine: Operation, other: Operation, slot: int):
        """1 if `mine` occupies its threads in the slot, as seen by `other`.

        An issue occupies the begin of the slot alone.
        """
        if mine.synchronous:
            return self.busy(mine.name, slot, skip=0 if other.synchronous else 1)
        return self.x[mine.name][slot]

    def _sending(self, edge, other: Operation) -> None:
        """The warpgroup that makes a value writes it for another warpgroup as soon as the value is there."""
        latency = self.operations[edge.before].latency
        apart = self.apart_of(edge.before, edge.after)
        for w in self.warps:
            when = [apart, self.on[edge.before][w], self.on[other.name][w]]
            for slot in self.slots:
                skip = 0 if other.synchronous else 1
                sends = sum(
                    self.x[edge.before][(slot - latency - c) % self.interval] for c in range(skip, edge.transfer)
                )
                mine = self.busy(other.name, slot) if other.synchronous else self.x[other.name][slot]
                self.model.add(sends + mine <= 1).only_enforce_if(when)

    def _registers(self) -> None:
        budget = dict(self.problem.registers)[self.consumers]
        held: dict[int, list[list]] = {w: [[] for _ in self.slots] for w in self.warps}
        for value in self.problem.values:
            live = None if value.carried else self._live(value)
            for w in self.warps:
                holds = self._holds(value, w)
                for slot in self.slots:
                    copies = [None] if value.carried else [on[slot] for on in live]
                    held[w][slot] += [value.registers * self._both(holds, copy) for copy in copies]
        for w in self.warps:
            for terms in held[w]:
                self.model.add(sum(terms) <= budget)

    def _holds(self, value, w: int):
        """1 if the warpgroup makes or reads the value."""
        holds = self.flag()
        for name in {value.producer, *(n for n, _ in value.readers)}:
            self.model.add_implication(self.on[name][w], holds)
        return holds

    def _both(self, one, other):
        if other is None:
            return one
        both = self.flag()
        self.model.add_bool_or([one.negated(), other.negated(), both])
        return both

    def _live(self, value) -> list[list]:
        """For each iteration in flight, whether its copy of the value is alive in each slot of the interval."""
        end = self.number(self.horizon + self.horizon)
        for name, distance in value.readers:
            self.model.add(end >= self.time[name] + distance * self.interval + self.operations[name].duration)
        return [[self._between(value, end, s + age * self.interval) for s in self.slots] for age in range(self.ages)]

    @property
    def ages(self) -> int:
        return self.problem.stages + 2

    def _between(self, value, end, moment: int):
        begun, open_, live = self.flag(), self.flag(), self.flag()
        start = self.time[value.producer]
        self.model.add(start > moment).only_enforce_if(begun.negated())
        self.model.add(end <= moment).only_enforce_if(open_.negated())
        self.model.add_bool_or([begun.negated(), open_.negated(), live])
        return live

    def _shared(self) -> None:
        """Shared memory holds the rings of loaded tiles, values between warpgroups, and what stays for the whole loop.
        """
        self.depth, terms = {}, [self.problem.resident]
        for load in (o for o in self.operations.values() if o.streaming):
            depth = self.depth[load.name] = self.number(self.ages)
            for edge in (e for e in self.problem.edges if e.before == load.name):
                end = self.time[edge.after] + edge.distance * self.interval + self.operations[edge.after].duration
                self.model.add(depth * self.interval >= end - self.time[load.name] + self.problem.load_latency)
            terms.append(load.bytes * depth)
        self.crossing = sum(e.bytes * self.apart[k] for e in self.problem.edges if (k := _pair(e)) in self.apart)
        self.model.add(sum(terms) + self.crossing <= self.problem.shared_bytes)

    def _objective(self) -> None:
        length = self.number(2 * self.horizon)
        for name, operation in self.operations.items():
            self.model.add(length >= self.time[name] + operation.duration)
        waits = sum(self.apart[k] for e in self.problem.edges if (k := _pair(e)) in self.apart)
        deepest = 1 + self.ages * len(self.depth)
        longest = 1 + 2 * self.horizon
        most = 1 + len(self.problem.edges)
        self.length = length
        self.model.minimize(((self.crossing * most + waits) * longest + length) * deepest + sum(self.depth.values()))

    def solve(self, work: float) -> PipelineSchedule:
        solver = deterministic(self.cp, work)
        status = solver.solve(self.model)
        names = {self.cp.OPTIMAL: "optimal", self.cp.FEASIBLE: "feasible", self.cp.INFEASIBLE: "infeasible"}
        verdict = names.get(status, "unknown")
        if verdict not in ("optimal", "feasible"):
            return PipelineSchedule(verdict)
        warps = {name: next(w for w, on in flags.items() if solver.value(on)) for name, flags in self.on.items()}
        return PipelineSchedule(
            status=verdict,
            interval=self.interval,
            consumers=self.consumers,
            times={name: solver.value(t) for name, t in self.time.items()},
            warps={name: warps.get(name, PRODUCER) for name in self.operations},
            depths={name: solver.value(d) for name, d in self.depth.items()},
            crossing=solver.value(self.crossing),
            waits=sum(solver.value(self.apart[k]) for e in self.problem.edges if (k := _pair(e)) in self.apart),
            length=solver.value(self.length),
        )


def _pair(edge) -> frozenset[str]:
    return frozenset((edge.before, edge.after))
