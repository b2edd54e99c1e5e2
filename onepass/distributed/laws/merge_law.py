"""Proves on terms that states of parts of the keys merge to the state of all, and that results go query by query.

What is proved: in the form without shifts, the weighted values are Σ_j exp(s) · w / Σ_j exp(s), where s and w reach the
elements of key j by j alone. Then the value is one over ranks, each with its own keys (rank_law.py), for every split.
Invariant: what is not of this form raises Refusal. Example: a mask by torch.arange(k.shape[-2]) is refused, because it
is a function of the place in a shard; a mask by positions that travel with the keys is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from ... import messages
from ...compiler.assumptions import simplifying
from ...egraph.calculus.reverse_mode import Result
from ...egraph.calculus.saved import Mean, logarithms, means
from ...egraph.derivation import ledger
from ...egraph.derivation.certificate import Derivation
from ...egraph.derivation.normalize import Normaliser
from ...egraph.terms.affine import affine, bounds, to_term
from ...egraph.terms.index_simplify import simplify_index
from ...egraph.terms.ops import iota
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import reduces, subterms
from ...errors import Refusal
from ...rules import SHIFT_FREE, SHIFTED_ONCE
from ...translate.translate import Captured
from .rank_law import over_ranks

Axes = Mapping[str, int]  # of tensors by name: the axis of the sequence, from 0


@dataclass(frozen=True)
class Along:
    """Whether a term reads these tensors' elements at a dim by the dim alone, and depends on it in no other way.

    Such elements may be indices of other tensors: of positions i and j, table[i - j] is made of key j alone.

    axes: the tensors' axis along the dim. groups: a tensor may have one element for a group of the dim's elements, or
    a group of elements for each.
    """

    dim: Dim
    axes: Axes
    groups: bool = False

    def broken(self, term: Term) -> str:
        """What else it does with the dim; "" if nothing."""
        seen: set[Term] = set()
        open_ = [term]
        while open_:
            node = open_.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op == "load":
                if reason := self._broken_load(node):
                    return reason
            elif node.op == "iota" and self.dim in node.dims:
                return "it depends on places in a shard"
            elif node.op == "reduce" and node.attrs[1] == self.dim:
                return "it reduces over them a second time"
            else:
                open_ += node.args
        return ""

    def _broken_load(self, node: Term) -> str:
        tensor = node.attrs[0]
        axis = self.axes.get(tensor.name)
        for number, index in enumerate(node.args):
            if number == axis:
                if not self._is_place(index, int(tensor.shape[axis])):
                    return f"{tensor.name} is read at another place than its own"
            elif self.dim in index.dims and self.broken(index):
                where = "along another axis" if axis is not None else "and is not named as an argument of theirs"
                return f"{tensor.name} is read by place {where}"
        return ""

    def _is_place(self, index: Term, length: int) -> bool:
        """Whether the index of a tensor with this many elements along the dim is the dim's place, or that of its group.

        Example: of 4 heads in 2 groups, g * 2 + r is a place of group g, for r below 2.
        """
        place, size = iota(self.dim), int(self.dim.size)
        if not self.groups:
            return index is place
        if not size % length:
            return index is simplify_index(place // (size // length))
        of_group, rest = length // size, affine(index)
        others = ({atom: c for atom, c in rest[0].items() if atom is not place}, rest[1])
        least, largest = bounds(to_term(others))
        apart = all(self.dim not in atom.dims for atom in others[0])
        inside = least is not None and largest is not None and 0 <= least and largest < of_group
        return not length % size and rest[0].get(place) == of_group and apart and inside


def require_merge(captured: Captured, keys: Axes, where: str = "") -> Derivation:
    """The chain from the first result, a mean of values by softmax weights, to the same over ranks.

    where: the line of that result. Raises Refusal if it is no such mean over the keys' own dim.
    """
    mean = _mean(captured)
    if mean is None:
        reason = "the result is no mean of values by the weights of a softmax"
        raise Refusal(messages.RANKS_NO_LAW, where, reason=reason)
    along = Along(mean.total.attrs[1], keys)
    for part in (mean.score, mean.weight):
        if reason := along.broken(part):
            raise Refusal(messages.RANKS_NO_LAW, where, reason=f"of keys, {reason}")
    return over_ranks(mean.value, along.dim)


def _mean(captured: Captured) -> Mean | None:
    results = captured.results[:1]
    laws = simplifying([result.term for result in results])
    once = Normaliser((*laws, *ledger.proved(SHIFTED_ONCE)))
    free = Normaliser((*laws, *ledger.proved(SHIFT_FREE)))
    normal = [Result(once.normal(r.term), r.output, r.order, None) for r in results]
    forms = [_value(free.normal(result.term)) for result in normal]
    order = captured.order
    for one in means(forms, list(logarithms(dict.fromkeys(normal, free), order)), order):
        if forms[0] is one.total / one.log.total and one.log.total.op == "reduce":
            return one
    return None


def _value(form: Term) -> Term:
    """The result before it is rounded, and without the 0 of rows that have no key, which a state has anyway."""
    while True:
        if form.op == "cast":
            form = form.args[0]
        elif form.op == "where" and _is_zero(form.args[1]) and _says_no_key(form.args[0]):
            form = form.args[2]
        elif form.op == "where" and _is_zero(form.args[2]) and form.args[0].op == "not":
            if not _says_no_key(form.args[0].args[0]):
                return form
            form = form.args[1]
        else:
            return form


def _is_zero(term: Term) -> bool:
    return term.op == "const" and term.attrs[0] == 0


def _says_no_key(term: Term) -> bool:
    """Whether it says that the largest of some scores is -∞."""
    if term.op != "eq":
        return False
    largest = [a for a in term.args if any(r.attrs[0] == "max" for r in reduces(a))]
    return len(largest) == 1 and any(a.op == "const" and a.attrs[0] == -inf for a in term.args)


def require_rows(captured: Captured, queries: Axes) -> int:
    """The axis of the queries in the result. Raises Refusal unless each row is made of its own query."""
    result, reasons = captured.results[0], []
    for axis, dim in enumerate(result.order):
        along = Along(dim, queries)
        if dim not in result.term.dims:
            continue
        reason = along.broken(result.term) or _unread(result.term, dim, queries)
        if not reason:
            return axis
        reasons.append(reason)
    raise Refusal(messages.RANKS_NOT_BY_ROW, reason=reasons[-1] if reasons else "it reads no query")


def _unread(term: Term, dim: Dim, queries: Axes) -> str:
    """Why the dim is not that of the queries; "" if each tensor of theirs is read by it."""
    loads = [n for n in subterms(term) if n.op == "load" and n.attrs[0].name in queries]
    if not loads:
        return "it reads no query"
    wrong = [n.attrs[0].name for n in loads if dim not in n.args[queries[n.attrs[0].name]].dims]
    return f"{wrong[0]} is not read by the result's own row" if wrong else ""
