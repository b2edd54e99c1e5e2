"""The normal form: directed rules applied bottom-up to a fixpoint, literals folded, index terms in affine form.

Different spellings of one program meet here, before the search. The caller passes the rules; this module knows none.
Used by onepass/pipeline.py and by capture for index terms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .affine import affine, compare, split_multiple, to_term
from .match import rewrite
from .ops import OPS, const, make
from .rule import Rule
from .term import Dim, Term, TermError, all_dims, rename_dims

FUEL = 20_000  # rule applications; a directed set that needs more does not terminate


@dataclass
class Normaliser:
    """Remembers what it has normalised and which rules fired, in order. `normal(term)` is idempotent."""

    rules: Sequence[Rule]
    fired: list[str] = field(default_factory=list)
    _done: dict[Term, Term] = field(default_factory=dict)
    _next: dict[Term, Term] = field(default_factory=dict)
    _fuel: int = FUEL

    def __post_init__(self):
        self._by_op: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules:
            self._by_op[rule.left.op].append(rule)

    def normal(self, root: Term) -> Term:
        """The normal form. Raises TermError if the rules do not come to rest."""
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
        """The arguments are normal: one step at the root, then what it became goes first."""
        rebuilt = make(node.op, tuple(self._done[a] for a in node.args), node.attrs)
        after = self._next.get(rebuilt) or self._step(rebuilt)
        if after is None:
            self._done[node] = self._done[rebuilt] = rebuilt
            return
        self._next[rebuilt] = after
        if after in self._done:
            self._done[node] = self._done[rebuilt] = self._done[after]
            return
        self._fuel -= 1
        if self._fuel < 0 or after in stack:
            raise TermError(f"normalisation does not come to rest; last rules: {self.fired[-5:]}")
        stack.append(after)

    def _step(self, node: Term) -> Term | None:
        arranged = _arrange(node)
        for form in (arranged, node) if arranged is not node else (node,):
            for rule in self._by_op[form.op]:
                after = rewrite(rule, form)
                if after is not None and after is not node:
                    self.fired.append(rule.name)
                    return after
        simpler = _fold(node) or _index_form(node)
        return simpler if simpler is not None and simpler is not node else None


def normalise(root: Term, rules: Sequence[Rule]) -> Term:
    """The normal form of a term under directed rules."""
    return Normaliser(rules).normal(root)


def _arrange(node: Term) -> Term:
    """Groups the multiples of a literal divisor, so that the layout laws match a · g + b."""
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
    """A pointwise operation on literals is a literal."""
    meaning = OPS[node.op].meaning
    if meaning is None or not node.args or any(a.op != "const" for a in node.args) or node.op == "scaled":
        return None
    with np.errstate(all="ignore"):
        value = meaning(*(np.asarray(a.attrs[0]) for a in node.args))
    return const(np.asarray(value).item())


def _index_form(node: Term) -> Term | None:
    if node.op in ("le", "lt", "eq") and all(a.dtype == "int64" for a in node.args):
        return compare(node.op, *node.args)
    if node.dtype == "int64" and node.op in ("add", "sub", "mul", "neg"):
        return to_term(affine(node))
    return None


def canonical_names(root: Term) -> Term:
    """The same term with dims named by order of first occurrence: equal results mean equal up to names of dims."""
    return rename_dims(root, {d: Dim(f"x{n}", d.size) for n, d in enumerate(all_dims(root))})
