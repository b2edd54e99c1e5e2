"""What a plan does otherwise than by its first guess, and the data by which another process makes the plan again.

The data name terms by their places among the nodes of the terms that were planned. With them is what a search alone
knows, as how long other plans take, and a digest of all this, of the terms and of the plan. Invariant: data of other
terms, or of another plan, raise an error, and a search does without them. Example: `choice_of(to_data(choice, plan,
terms), terms)` is the choice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ...egraph.rewrite.serialization import digest, dim_from_json, dim_to_json, to_json
from ...egraph.terms.term import Dim, Term
from ...egraph.terms.traversal import subterms
from .records import Alternative, Plan

# Rows chosen by cost: for the dims that the results of a kernel have, which of them are its rows.
ChosenRows = tuple[tuple[frozenset[Dim], Dim], ...]


@dataclass(frozen=True)
class PlanChoice:
    """What a plan does otherwise than by its first guess. Whatever it is, the plan's results are the same.

    stored: terms that are stored as well, each before the terms that it contains. computed: terms that a cut would
    store to save time, and that are not. rows: for results with some dims, the rows of their kernel. split: by the name
    of a result, a dim of a reduction of its, and the number of parts in which that is done.
    """

    stored: tuple[Term, ...] = ()
    computed: frozenset[Term] = frozenset()
    rows: ChosenRows = ()
    split: tuple[tuple[str, Dim, int], ...] = ()


FIRST_GUESS = PlanChoice()


def to_data(choice: PlanChoice, plan: Plan, terms: Sequence[Term]) -> dict:
    """A choice and what its plan says, as data. Raises KeyError for one with a term that is no part of these terms.

    plan: as a search gives it; where the choice is no first guess, its last note says why.
    """
    places = {node: place for place, node in enumerate(_nodes(terms))}
    named = lambda chosen: [places[term] for term in chosen]
    data = {
        "stored": named(choice.stored),
        "computed": sorted(named(choice.computed)),
        "rows": [[[*map(dim_to_json, sorted(dims))], dim_to_json(dim)] for dims, dim in choice.rows],
        "split": [[name, dim_to_json(dim), count] for name, dim, count in choice.split],
        "note": "" if choice == FIRST_GUESS else plan.notes[-1],
        "shares": [one.share for one in plan.saving],
        "others": [[named(one.stored), one.share, [*one.rows], named(one.computed)] for one in plan.alternatives],
    }
    return data | {"digest": _digest(data, plan, terms)}


def rows_of(data: Mapping) -> ChosenRows:
    """The chosen rows. Raises TermError, KeyError, TypeError or ValueError for other data, as all that read them do."""
    return tuple((frozenset(map(dim_from_json, dims)), dim_from_json(dim)) for dims, dim in data["rows"])


def choice_of(data: Mapping, terms: Sequence[Term]) -> PlanChoice:
    """The choice that was written. Whether for these terms, `as_searched` says."""
    nodes = _nodes(terms)
    split = tuple((str(name), dim_from_json(dim), int(count)) for name, dim, count in data["split"])
    return PlanChoice(_at(data["stored"], nodes), frozenset(_at(data["computed"], nodes)), rows_of(data), split)


def as_searched(data: Mapping, plan: Plan, terms: Sequence[Term]) -> Plan:
    """The plan of a choice with all that the search said of it. Raises ValueError for data of another plan."""
    nodes, note = _nodes(terms), data["note"]
    shares = zip(plan.saving, map(_share, data["shares"]), strict=True)
    saving = tuple(replace(one, share=share) for one, share in shares)
    others = tuple(_other(one, nodes) for one in data["others"])
    notes = (*plan.notes, str(note)) if note else plan.notes
    found = replace(plan, notes=notes, saving=saving, alternatives=others, chosen=data)
    if data["digest"] != _digest({name: value for name, value in data.items() if name != "digest"}, found, terms):
        raise ValueError("chosen for other terms, or another plan")
    return found


def _other(data: Sequence, nodes: Sequence[Term]) -> Alternative:
    stored, share, rows, computed = data
    return Alternative(_at(stored, nodes), float(share), tuple(map(str, rows)), _at(computed, nodes))


def _share(written: float | None) -> float | None:
    return None if written is None else float(written)


def _at(places: Iterable[int], nodes: Sequence[Term]) -> tuple[Term, ...]:
    """The nodes at these places. Raises ValueError where there is none."""
    places = tuple(places)
    if not all(type(place) is int and 0 <= place < len(nodes) for place in places):
        raise ValueError(f"{places} are no places of {len(nodes)} nodes")
    return tuple(nodes[place] for place in places)


def _nodes(terms: Sequence[Term]) -> list[Term]:
    return list(dict.fromkeys(node for term in terms for node in subterms(term)))


def _digest(data: Mapping, plan: Plan, terms: Sequence[Term]) -> str:
    """A digest of what is written, of what was planned, and of what the plan computes and says of itself."""
    computed = [store.term for kernel in plan.kernels for store in kernel.stores]
    every = [[to_json(term) for term in (*dict.fromkeys(terms), *computed)], len(plan.kernels)]
    return digest([data, every, plan.notes, plan.plan_passes, plan.shape_reasons])
