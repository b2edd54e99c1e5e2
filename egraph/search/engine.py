"""Saturates an e-graph with egglog: terms and rules go in as text, the e-graph comes out as data.

Saturation runs phase by phase under limits on nodes, rounds and seconds, and records why each phase stopped. Subterms
that no rule looks into, such as loads and index terms, are leaves. Example: x + y becomes (op-add (leaf 0 1) (leaf 1
1)).
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..rewrite.guard import GUARDS, read_as
from ..rewrite.rule import Rule, variables_of
from ..terms.ops import OPS, const, make
from ..terms.term import AttributeVariable, Dim, Term
from ..terms.traversal import all_dims, subterms
from .cost import inner_dims
from .egglog_bindings import Engine, EngineError, EngineProcess, error_text, new_engine

MAX_DIMS = 62  # a set of dims is a bit mask in an i64
_LEAVES = ("load", "iota", "size", "var")


@dataclass(frozen=True)
class SearchLimits:
    """Limits of one search. nodes: rows of the e-graph. rounds: of each phase."""

    nodes: int = 12_000
    rounds: int = 5
    seconds: float = 2.0
    exact: bool = False  # extract by constraint solving, for a small e-graph: about a second


@dataclass(frozen=True)
class ENode:
    """One e-node: how to build its term from the classes of its arguments."""

    op: str
    args: tuple[str, ...]
    attrs: tuple
    leaf: Term | None = None


@dataclass
class EGraph:
    """The saturated e-graph: classes of equal nodes, the class of each root, the rules that fired, statistics.

    held: dims that no form of the roots streams. given: the roots before the search.
    """

    classes: dict[str, list[ENode]]
    roots: tuple[str, ...]
    fired: tuple[str, ...]
    statistics: dict = field(default_factory=dict)
    held: frozenset[Dim] = frozenset()
    given: tuple[Term, ...] = ()

    @property
    def root(self) -> str:
        """The first root's class."""
        return self.roots[0]

    def build(self, node: ENode, args: tuple[Term, ...]) -> Term:
        """The term of a node, given terms for its arguments."""
        return node.leaf if node.leaf is not None else make(node.op, args, node.attrs)


def saturate(
    roots: Term | Sequence[Term], phases: Mapping[str, Sequence[Rule]], limits: SearchLimits | None = None
) -> EGraph:
    """Grows the e-graph of terms equal to the roots under the phases' rules, in order. Raises EngineError."""
    session = _Session(as_roots(roots), phases, limits or SearchLimits())
    with new_engine() as session.engine:
        return session.run()


def as_roots(roots: Term | Sequence[Term]) -> tuple[Term, ...]:
    """The roots as a tuple. Several roots are searched together, and share common subterms."""
    return (roots,) if isinstance(roots, Term) else tuple(roots)


def leafy(node: Term) -> bool:
    """Whether a node is a leaf of the e-graph: rules do not look into it."""
    if node.op == "const":  # egglog would take -0.0 for 0.0
        return not isinstance(node.attrs[0], float) or str(node.attrs[0]) == "-0.0"
    return node.op in _LEAVES or node.dtype == "int64"


class _Session:
    """One saturation: the encoding of dims and leaves, the running program, the counts of matches."""

    engine: Engine | EngineProcess

    def __init__(self, roots: tuple[Term, ...], phases: Mapping[str, Sequence[Rule]], limits: SearchLimits):
        os.environ.setdefault("RUST_BACKTRACE", "0")
        grounds = [rule for rules in phases.values() for rule in rules if is_ground(rule)]
        self.dims = list(dict.fromkeys(d for x in (*roots, *(r.right for r in grounds)) for d in all_dims(x)))
        if len(self.dims) > MAX_DIMS:
            raise EngineError(f"{len(self.dims)} dims in one region; the engine holds {MAX_DIMS}")
        self.bit = {d: 1 << k for k, d in enumerate(self.dims)}
        self.leaves: list[Term] = []
        self.leaf: dict[Term, str] = {}
        self.roots, self.phases, self.limits = roots, phases, limits
        self.matches: Counter[str] = Counter()
        self.first: dict[str, None] = {}

    def command(self, text: str) -> dict:
        try:
            return self.engine.run(text)
        except BaseException as error:  # a Rust panic is a BaseException
            if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError | EngineError):
                raise
            raise EngineError(error_text(error)) from error

    def run(self) -> EGraph:
        started = time.perf_counter()
        self.command(_declarations(self.phases, self._ground) + self._facts())
        self._analyse()
        stops = {name: self._phase(name, started) for name in self.phases}
        nodes = self._size()
        statistics = {
            "nodes": nodes,
            "seconds": time.perf_counter() - started,
            "stop": stops,
            "matches": dict(sorted(self.matches.items())),
        }
        classes, roots = self._read()
        return EGraph(classes, roots, tuple(self.first), statistics, inner_dims(self.roots), self.roots)

    def _facts(self) -> str:
        """The terms as text: one `let` for each distinct subterm, arguments first."""
        lines, names = [], {}
        for node in dict.fromkeys(n for root in self.roots for n in subterms(root)):
            if leafy(node):
                names[node] = self._leaf(node)
            else:
                names[node] = f"$t{len(names)}"
                lines.append(f"(let {names[node]} {self._encode(node, names)})")
        loads = [(term, leaf) for term, leaf in self.leaf.items() if term.op == "load"]
        lines += [f"(dtype {leaf} {json.dumps(term.dtype)})" for term, leaf in loads]
        lines += [f"(read {leaf} {json.dumps(read_as(term), ensure_ascii=False)})" for term, leaf in loads]
        lines += [f"(let $root{k} (top {names[root]} {k}))" for k, root in enumerate(self.roots)]
        return "\n".join(lines)

    def _leaf(self, node: Term) -> str:
        if node not in self.leaf:
            self.leaf[node] = f"(leaf {len(self.leaves)} {sum(self.bit[d] for d in node.dims)})"
            self.leaves.append(node)
        return self.leaf[node]

    def _ground(self, root: Term) -> str:
        """A term without variables as text."""
        done: dict[Term, str] = {}
        for node in subterms(root):
            done[node] = self._encode(node, done)
        return done[root]

    def _encode(self, node: Term, names) -> str:
        if leafy(node):
            return self._leaf(node)
        if node.op == "const":
            return f"(const {_float(node.attrs[0])})"
        columns = [names[a] for a in node.args] + [self._attribute(a) for a in node.attrs]
        return f"({_name(node.op)} {' '.join(columns)})"

    def _attribute(self, attr) -> str:
        return str(self.bit[attr]) if isinstance(attr, Dim) else json.dumps(str(attr))

    def _analyse(self) -> None:
        self.command("(run-schedule (saturate (run analysis)))")

    def _size(self) -> int:
        return sum(count for name, count in self.command("(print-size)")["sizes"] if name != "free")

    def _phase(self, name: str, started: float) -> str:
        """Runs one ruleset round by round. Returns why it stopped."""
        last = self._size()
        for _ in range(self.limits.rounds):
            report = self.command(f"(run-schedule (seq (run {name}) (saturate (run analysis))))")
            self._count(report["matches"])
            size = self._size()
            if size == last and not report["updated"]:
                return "saturated"
            if size * max(1.0, size / max(last, 1)) > self.limits.nodes:
                return "node limit"
            if time.perf_counter() - started > self.limits.seconds:
                return "time limit"
            last = size
        return "round limit"

    def _count(self, matches: Mapping[str, int]) -> None:
        for name, count in sorted(matches.items()):
            if count and name.startswith("rule "):
                law = name.removeprefix("rule ").removesuffix(" reversed")
                self.matches[law] += count
                self.first.setdefault(law)

    def _read(self) -> tuple[dict[str, list[ENode]], tuple[str, ...]]:
        """The e-graph as data, in a fixed order."""
        nodes = self.engine.nodes()
        classes: dict[str, list[ENode]] = {}
        for key in sorted(nodes, key=_order):
            entry = nodes[key]
            if entry["eclass"].startswith("T-") and entry["op"] not in ("free", "top"):
                classes.setdefault(entry["eclass"], []).append(self._node(entry, nodes))
        tops = ([nodes[c] for c in n["children"]] for n in nodes.values() if n["op"] == "top")
        places = {int(number["op"]): root["eclass"] for root, number in tops}
        return classes, tuple(places[k] for k in range(len(self.roots)))

    def _node(self, entry, nodes) -> ENode:
        children = [nodes[c] for c in entry["children"]]
        values = [c["op"] for c in children if not c["eclass"].startswith("T-")]
        args = tuple(c["eclass"] for c in children if c["eclass"].startswith("T-"))
        if entry["op"] == "leaf":
            return ENode("leaf", (), (), self.leaves[int(values[0])])
        op = entry["op"].removeprefix("op-")
        if op == "const":
            return ENode("const", (), (), const(float(values[0])))
        kinds = OPS[op].attributes
        attrs = tuple(self._decode(kind, v) for kind, v in zip(kinds, values, strict=True))
        return ENode(op, args, attrs)

    def _decode(self, kind, text: str):
        return self.dims[int(text).bit_length() - 1] if kind is Dim else json.loads(text)


def _order(key: str):
    """The sort key of a node's key, function-N-op: by number, then by name, so that reading is deterministic."""
    parts = key.split("-")
    return (int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else -1, key)


def _name(op: str) -> str:
    return f"op-{op}"


def _float(value) -> str:
    text = repr(float(value))
    return {"nan": "NaN"}.get(text, text if any(c in text for c in ".in") else text.replace("e", ".0e"))


def _declarations(phases, ground) -> str:
    """The program: the sort, a constructor for each row of OPS, the analysis of free dims, and the rules by phase."""
    lines = ["(sort T)", "(constructor leaf (i64 i64) T)", "(constructor const (f64) T)", "(constructor top (T i64) T)"]
    lines += ["(function free (T) i64 :merge (& old new))", "(ruleset analysis)"]
    lines += ["(relation dtype (T String))", "(relation read (T String))"]
    lines.append('(rule ((= x (leaf n m))) ((set (free x) m)) :ruleset analysis :name "free leaf")')
    lines.append('(rule ((= x (const v))) ((set (free x) 0)) :ruleset analysis :name "free const")')
    for row in OPS.values():
        if row.name not in (*_LEAVES, "const"):
            lines += _constructor(row)
    for phase, rules in phases.items():
        lines.append(f"(ruleset {phase})")
        for rule in rules:
            lines += _rule_texts(rule, phase, ground) if is_ground(rule) else _law_texts(rule, phase)
    return "\n".join(lines) + "\n"


@lru_cache(4096)
def _law_texts(rule: Rule, phase: str) -> tuple[str, ...]:
    """A law's text, and that of its other direction. Memoised: the laws are the same in each search."""
    return _rule_texts(rule, phase, _pattern)


def _rule_texts(rule: Rule, phase: str, write: Callable[[Term], str]) -> tuple[str, ...]:
    backward = (rule_text(rule.reversed(), phase, " reversed"),) if rule.both else ()
    return (rule_text(rule, phase, write=write), *backward)


def _constructor(row) -> list[str]:
    columns = ["T"] * row.arity + ["i64" if kind is Dim else "String" for kind in row.attributes]
    args = [f"a{k}" for k in range(row.arity)]
    attrs = [f"b{k}" for k in range(len(row.attributes))]
    known = " ".join(f"(= f{k} (free a{k}))" for k in range(row.arity))
    dims = "f0"
    for k in range(1, row.arity):
        dims = f"(| {dims} f{k})"
    if row.name == "reduce":
        dims = "(^ f0 (& f0 b1))"
    node = f"({_name(row.name)} {' '.join(args + attrs)})"
    return [
        f"(constructor {_name(row.name)} ({' '.join(columns)}) T)",
        f'(rule ((= x {node}) {known}) ((set (free x) {dims})) :ruleset analysis :name "free {row.name}")',
    ]


@lru_cache(4096)
def is_ground(rule: Rule) -> bool:
    """Whether a rule is an equation about the inputs of one region, without variables."""
    return any(node.op in ("load", "iota", "size") for node in subterms(rule.left)) and not variables_of(rule.left)


def rule_text(rule: Rule, ruleset: str, suffix: str = "", write: Callable[[Term], str] | None = None) -> str:
    """A rule as egglog text. `write` writes the sides. Raises EngineError if a guard has no egglog facts,
    or if something on the right side is to be chosen.
    """
    if rule.chosen:
        raise EngineError(f"rule {rule.name}: {' and '.join(rule.chosen)} are chosen by its user, not in a search")
    write = write or _pattern
    facts = [f"(= root {write(rule.left)})"]
    for guard in rule.guards:
        row = GUARDS[guard.kind]
        if row.facts is None:
            raise EngineError(f"rule {rule.name}: guard «{guard}» cannot be used in the search")
        facts += row.facts(*(_pattern(o) for o in guard.operands))
    conclusion = f"((union root {write(rule.right)}))"
    return f'(rule ({" ".join(facts)}) {conclusion} :ruleset {ruleset} :name "rule {rule.name}{suffix}")'


def _pattern(x) -> str:
    """A pattern as egglog text. Dims and attributes are columns, as arguments are."""
    if isinstance(x, Dim):
        return f"d_{x.name}"
    if isinstance(x, AttributeVariable):
        return f"a_{x.name}"
    if not isinstance(x, Term):
        return json.dumps(str(x))
    if x.op == "var":
        return f"v_{x.attrs[0]}"
    if x.op == "const":
        return f"(const {_float(x.attrs[0])})"
    return f"({_name(x.op)} {' '.join(_pattern(part) for part in (*x.args, *x.attrs))})"


__all__ = ["EGraph", "ENode", "EngineError", "SearchLimits", "as_roots", "is_ground", "rule_text", "saturate"]
