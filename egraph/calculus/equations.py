"""What derivatives are told of the values that a forward computes: laws, and equations between them and plain forms.

An equation is a rule without variables from a form without shifts to named values. Each is in the normal form that
those before it leave. Example: Σ_j exp(s) = exp(L), where L is a value with the name `log`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..derivation.normalize import Normaliser
from ..rewrite.rule import Rule
from ..terms.ops import cast, const, iota, load
from ..terms.term import FLOATS, Dim, Term
from ..terms.traversal import subterms, tensors
from .partials import NotDifferentiable
from .reverse_mode import Result
from .saved import Saved, arranged, as_dtype, row_values, rows_computed_again, saved_value


@dataclass(frozen=True)
class Laws:
    """normal: what brings the captured terms to normal form. shift_free: takes shifts out of all exponents of it.
    gather: brings a derivative's quotients and exponentials together. weights_first: in what is computed, multiplies by
    exponentials before factors that may be as large as a mask's number: 0 · ∞ is NaN. turned: laws that are read from
    right to left where it is shown what a named value is. normalised: as shift_free, but the logarithm of its sum goes
    into the exponent of an exponential over it."""

    normal: Sequence[Rule]
    shift_free: Sequence[Rule]
    gather: Sequence[Rule]
    weights_first: Sequence[Rule] = ()
    turned: Sequence[Rule] = ()
    normalised: Sequence[Rule] = ()


class Equations:
    """Ground laws, each in the normal form that those before it leave: inner ones come first.

    saved: the values that they name, in the same order.
    """

    def __init__(self, laws: Laws, rules: Sequence[Rule] = (), saved: Sequence[Saved] = ()):
        self.laws, self.rules, self.saved = laws, list(rules), list(saved)

    def normaliser(self) -> Normaliser:
        """Normalises by these equations and the laws."""
        return Normaliser((*self.rules, *self.laws.normal, *self.laws.gather))

    def add(self, saved: Sequence[Saved], left: Term, right: Term) -> None:
        """Adds left = right, where the right side reads the saved values; none for what is a value as it stands, or in
        two parts."""
        left = self.normaliser().normal(left)
        if left.op not in ("load", "const", "cast") and not self._is_saved_in_parts(left):
            name = f"saved_{saved[-1].tensor.name}"
            self.rules.append(Rule(name, name.replace("_", " "), left, right, ()))
            self.saved.extend(saved)

    def _is_saved_in_parts(self, x: Term) -> bool:
        """Whether x is a sum of saved values. One value for it may have lost what the parts are saved apart for."""
        names = {one.tensor.name for one in self.saved}
        return x.op == "add" and all(part.op == "load" and part.attrs[0].name in names for part in x.args)

    def add_rows(
        self,
        derivatives: Iterable[Term],
        results: Mapping[Result, Normaliser],
        laws: Normaliser,
        order: Sequence[Dim],
    ) -> bool:
        """Adds the values by row that derivatives would compute again. False if there are none.

        results: with what makes the form of each. laws: those of the derivatives. order: dims of the results' axes.
        """
        again = rows_computed_again(derivatives, row_values(results, laws, order), laws)
        for number, (term, form) in enumerate(again.items()):
            row = saved_value(f"row{number or ''}", term, arranged(term, order))
            self.add((row,), form, as_dtype(row, term.dtype))
        return bool(again)

    def with_all(self, more: Iterable[tuple[Sequence[Saved], Term, Term]]) -> Equations:
        """These equations, and more behind them."""
        found = Equations(self.laws, self.rules, self.saved)
        for saved, left, right in more:
            found.add(saved, left, right)
        return found


def as_stored(form: Term, result: Result) -> tuple[Term, Term]:
    """What a result's tensor holds, and how it is read: the result as it was rounded when it was stored.

    Along a dim that the form lacks all elements are equal. The first is read: a sum has no such dim to add over.
    """
    stored = load(result.tensor, *(iota(dim) if dim in form.dims else const(0) for dim in result.order))
    return (form.args[0], cast(stored, form.args[0].dtype)) if form.op == "cast" else (form, stored)


def require_none(operations: Collection[str], forms: Iterable[Term], wanted: Collection[str]) -> None:
    """Raises NotDifferentiable if a floating operation of that kind depends on a wanted tensor."""
    for node in (n for form in forms for n in subterms(form)):
        if node.op in operations and node.dtype in FLOATS and any(t.name in wanted for t in tensors(node)):
            raise NotDifferentiable(f"a {node.op} is left in the form that is differentiated", node.op)
