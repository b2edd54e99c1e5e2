"""The normal form of a term: directed rules applied bottom-up to a fixpoint, literals folded, index terms affine.

Different spellings of a program get one normal form. The module has no rules of its own. It records the changes of each
subterm, from which derive.py makes a derivation. Example: with `multiply_by_one` the normal form of (x · 1) + 2 · 3 is
x + 6.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..rewrite.match import rewrite
from ..rewrite.rule import Rule
from ..terms.affine import affine, compare, split_multiple, to_term
from ..terms.ops import OPS, const, infinite_beyond, make, within_range
from ..terms.term import FLOATS, Dim, Term, TermError
from ..terms.traversal import all_dims, rename_dims
from .certificate import FOLDING, INDICES

EXACT_IN_EVERY_DTYPE = 256  # bfloat16 has eight bits
FUEL = 20_000  # rule applications; directed rules that need more are taken not to terminate


@dataclass
class Normaliser:
    """Normalises terms; `normal(term)` is idempotent. Remembers normal forms, and the rules that fired, in order.

    changes: a subterm with normal arguments, and its changes step by step; each has a rule or one of NOT_RULES.
    """

    rules: Sequence[Rule]
    fired: list[str] = field(default_factory=list)
    changes: dict[Term, tuple[tuple[Rule | str, Term], ...]] = field(default_factory=dict)
    _done: dict[Term, Term] = field(default_factory=dict)
    _fuel: int = FUEL

    def __post_init__(self):
        self._by_op: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules:
            self._by_op[rule.left.op].append(rule)

    def normal(self, root: Term) -> Term:
        """The normal form. Raises TermError if the rules do not terminate."""
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [a for a in node.args if a not in self._done]
            if node in self._done:
                stack.pop()
            elif waiting:
                stack.extend(waiting)
            else:
                self._settle(node, stack)
        return self._done[root]

    def _settle(self, node: Term, stack: list[Term]) -> None:
        """Takes one step at the root of a node with normal arguments. The result goes on the stack."""
        rebuilt = make(node.op, tuple(self._done[a] for a in node.args), node.attrs)
        changes = self.changes.get(rebuilt) or self._step(rebuilt)
        if not changes:
            self._done[node] = self._done[rebuilt] = rebuilt
            return
        self.changes[rebuilt] = changes
        after = changes[-1][1]
        if after in self._done:
            self._done[node] = self._done[rebuilt] = self._done[after]
            return
        self._fuel -= 1
        if self._fuel < 0:
            raise TermError(f"normalisation does not come to rest; last rules: {self.fired[-5:]}")
        stack.append(after)

    def _step(self, node: Term) -> tuple[tuple[Rule | str, Term], ...]:
        arranged = _arrange(node)
        for form in (arranged, node) if arranged is not node else (node,):
            for rule in self._by_op[form.op]:
                after = rewrite(rule, form)
                if after is not None and after is not node:
                    self.fired.append(rule.name)
                    return (*([(INDICES, form)] if form is not node else []), (rule, after))
        for kind, simpler in ((FOLDING, _fold(node)), (INDICES, _index_form(node))):
            if simpler is not None:
                return ((kind, simpler),) if simpler is not node else ()
        return ()


def normalise(root: Term, rules: Sequence[Rule]) -> Term:
    """The normal form of a term under directed rules."""
    return Normaliser(rules).normal(root)


def _arrange(node: Term) -> Term:
    """Groups the multiples of a literal divisor g, so that the laws of layout.py match a · g + b."""
    if node.op not in ("floordiv", "mod") or node.dtype != "int64" or node.args[1].op != "const":
        return node
    divisor = node.args[1].attrs[0]
    if divisor <= 0:
        return node
    whole, rest = split_multiple(node.args[0], divisor)
    if whole is const(0):
        return node
    return make(node.op, (whole * const(divisor) + rest, node.args[1]))


def _fold(node: Term) -> Term | None:
    """The literal that a pointwise operation on literals, or a cast of a literal, gives; None for other nodes."""
    if node.op == "cast" and node.args[0].op == "const":
        return _fold_cast(node.args[0].attrs[0], node.attrs[0])
    meaning = OPS[node.op].meaning
    if meaning is None or not node.args or any(a.op != "const" for a in node.args) or node.op == "scaled":
        return None
    with np.errstate(all="ignore"):
        value = meaning(*(np.asarray(a.attrs[0]) for a in node.args))
    return const(np.asarray(value).item())


def _fold_cast(value: bool | int | float, dtype: str) -> Term | None:
    """A small integer, which every floating dtype holds exactly, or ±∞ for a number beyond the range; else None."""
    if dtype not in FLOATS:
        return None
    small = isinstance(value, int) and abs(value) <= EXACT_IN_EVERY_DTYPE
    return const(infinite_beyond(value, dtype).item()) if small or not within_range(value, dtype) else None


def _index_form(node: Term) -> Term | None:
    if node.op in ("le", "lt", "eq") and all(a.dtype == "int64" for a in node.args):
        return compare(node.op, *node.args)
    if node.dtype == "int64" and node.op in ("add", "sub", "mul", "neg"):
        return to_term(affine(node))
    return None


def canonical_names(root: Term) -> Term:
    """The term with dims renamed x0, x1, ... by first occurrence: terms equal up to names of dims become equal."""
    return rename_dims(root, {d: Dim(f"x{n}", d.size) for n, d in enumerate(all_dims(root))})
