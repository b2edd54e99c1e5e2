"""Passes of the stage `cuts`: a part of a term that no kernel can compute with the rest is stored by an earlier kernel.

Each pass works on the focused store: it finds the next part, adds a store for it, and replaces it by a load. Example:
in softmax(softmax(x · y) · z), the inner softmax is stored, since its loop would lie inside the outer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import torch

from ...egraph.search.cost import volume
from ...egraph.terms.ops import cast, iota, load
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import every_reduction, reduces, rename_dims, substitute, subterms, tensors
from ..analysis.dim_roles import (
    batch_dims,
    batch_of,
    is_contraction,
    is_long,
    loop_reductions,
    size_key,
    state_dims,
    sum_factors,
)
from ..analysis.exact_products import rounded_sums, signature
from ..analysis.nested_sums import reductions
from ..plan.records import NotPlannable, Store
from ..plan.term_edits import renaming
from ..plan.thresholds import MIN_ROWS_OF_A_PRODUCT
from .kernel_shape import kernel_shape, with_new_shape
from .planning_state import Planning

MIN_STORED_SUMS = 2**17  # from which a launch costs less than what a few tiles of rows would do again


def store_chosen(planning: Planning) -> Planning:
    """A pass: stores the parts that were chosen by cost; every other store reads them."""
    if not planning.chosen:
        return planning
    part, *others = planning.chosen
    needed = {*tensors(part)}
    place = 1 + max((n for n, store in enumerate(planning.stores) if store.output in needed), default=-1)
    stored, read = planning.with_stored(part, place, "takes less time in a kernel of its own")
    readers = {store.output.name for store in stored.stores} - {read.attrs[0].name}
    return with_new_shape(replace(stored.with_replaced(readers, {part: read}), chosen=tuple(others)))


def store_cross_batch_scores(planning: Planning) -> Planning:
    """A pass: stores scores that are products for each index of one dim, while their values are products for another.

    The rows stay those that were chosen when the pass began.
    """
    part = cross_batch_scores(planning.focused.term, planning.shape.rows, planning.held_limit)
    return planning if part is None else cut_from_results(planning, part, "is in products for each of two dims")


def store_nested_loops(planning: Planning) -> Planning:
    """A pass: stores what has a loop inside a reduction of a dim that the loop depends on.

    The states that share the scores of that part are stored as well: in another kernel their loop would run again.
    """
    if planning.pending:
        state, *others = planning.pending
        planning = replace(planning, pending=tuple(others))
        return with_new_shape(_cut(planning, state, "is a state of the same loop"))
    part = nested_loop(planning.focused.term, planning.held_limit, planning.shape.held)
    if part is None:
        return planning
    planning = with_new_shape(_cut(planning, part, "depends on a dim that is reduced around it"))
    states = states_with_the_scores_of(planning.focused.term, part, planning.held_limit)
    return replace(planning, pending=tuple(states))


def store_blocking_products(planning: Planning) -> Planning:
    """A pass: stores a product that would leave few rows to a tile."""
    store = planning.focused
    rows_of = lambda term: kernel_shape((replace(store, term=term),), planning).rows
    part = blocking_product(store.term, rows_of, planning.held_limit)
    return planning if part is None else with_new_shape(_cut(planning, part, "would leave too few rows to a tile"))


def store_row_invariants(planning: Planning) -> Planning:
    """A pass: stores what has a loop and does not depend on the rows: each tile of rows would compute it again.

    The rows stay those that were chosen when the pass began.
    """
    rows = planning.shape.rows
    part = row_invariant(planning.focused.term, rows, planning.held_limit) if rows is not None else None
    return planning if part is None else _cut(planning, part, f"is the same for all {rows}")


def reuse_parts(planning: Planning) -> Planning:
    """A pass: sums and tables that are stored for one store are read by all others, under whatever names of dims.

    Example: Σ_e g[i, e] · o[i, e], stored for a loop over i, is read where rows are i as well.
    """
    for number, (part, read) in enumerate(planning.parts):
        stored = any(store.output == read.attrs[0] for store in planning.stores)
        if stored and tensors(part) and (part.op == "reduce" or not _at_dims(read)):
            for other, again in planning.parts[number + 1 :]:
                planning = _without_copy(planning, part, read, other, again)
            for store in planning.stores:
                found = _occurrences(part, read, store.term) if store.output != read.attrs[0] else {}
                planning = planning.with_replaced({store.output.name}, found)
    stores = sorted(planning.stores, key=lambda store: _depth(store, planning.stores))
    return planning if tuple(stores) == planning.stores else replace(planning, stores=tuple(stores))


def round_stored_sums(planning: Planning) -> Planning:
    """A pass: a stored sum that the program itself rounds to half precision is stored in half precision, where it is
    only multiplied and summed again.

    Who multiplies it then has one product of halves instead of several that keep more bits, and half the bytes to read.
    Example: the query of latent attention, raised to the latent width by the program in bfloat16. In float16 it has to
    be the same sum, factor by factor: without a scale it might be beyond the dtype's largest number.
    """
    rounded = rounded_sums(planning.references)
    for name in [store.output.name for store in planning.stores]:
        store = planning.stores[planning.index(name)]
        rounding = rounded.get(signature(store.term)) if _is_stored_sum(store, planning) else None
        if rounding is not None:
            if rounding.dtype == "bfloat16" or renaming(store.term, rounding.args[0]) is not None:
                planning = _with_rounded(planning, store, rounding.dtype)
    return planning


def _is_stored_sum(store: Store, planning: Planning) -> bool:
    is_sum = store.term.op == "reduce" and store.term.attrs[0] == "sum" and store.output.dtype == "float32"
    if not is_sum or store.combine != "set" or store.output.name in planning.results:
        return False
    return _is_only_multiplied(store.output, {n for term in planning.terms for n in subterms(term)})


def _is_only_multiplied(tensor: Tensor, nodes: set[Term]) -> bool:
    """Whether each load of the tensor is a factor of a sum, and nothing else."""
    reads = {n for n in nodes if n.op == "load" and n.attrs[0] == tensor}
    factors = {f for n in nodes if n.op == "reduce" and n.attrs[0] == "sum" for f in sum_factors(n)}
    return reads <= factors and all(n.op in ("mul", "reduce") for n in nodes if not reads.isdisjoint(n.args))


def _with_rounded(planning: Planning, store: Store, dtype: str) -> Planning:
    """The state in which the store rounds its sum, and all others read what is stored so."""
    output = replace(store.output, dtype=dtype)
    reads = {n for term in planning.terms for n in subterms(term) if n.op == "load" and n.attrs[0] == store.output}
    mapping = {read: cast(load(output, *read.args), "float32") for read in reads}
    rounds = replace(store, term=cast(store.term, dtype), output=output)
    planning = planning.with_replaced({s.output.name for s in planning.stores}, mapping)
    return replace(planning, stores=tuple(rounds if s.output == store.output else s for s in planning.stores))


def _occurrences(part: Term, read: Term, term: Term) -> dict[Term, Term]:
    """The subterms that are the part with other names of dims, each with the load that reads it there."""
    found: dict[Term, Term] = {}
    for node in subterms(term):
        if node.op == part.op and len(node.dims) == len(part.dims) and node is not part:
            names = renaming(part, node)
            if names is not None:
                found[node] = rename_dims(read, names)
    return found


def _without_copy(planning: Planning, part: Term, read: Term, other: Term, again: Term) -> Planning:
    """The state without the store of the other part, if that is the part with other names of dims: the part is read."""
    copy = again.attrs[0]
    names = renaming(part, other) if _at_dims(read) and _at_dims(again) else None
    if names is None or all(store.output != copy for store in planning.stores):
        return planning
    places = [again.args.index(iota(names[index.attrs[0]])) for index in read.args]
    stores = tuple(store for store in planning.stores if store.output != copy)
    notes = tuple(note for note in planning.notes if not note.startswith(f"{copy.name}["))
    return _read_instead(replace(planning, stores=stores, notes=notes), copy, read.attrs[0], places)


def _read_instead(planning: Planning, copy: Tensor, tensor: Tensor, places: Sequence[int]) -> Planning:
    """The state in which the tensor is read where the copy was. places: by axis of the tensor, the copy's axis."""
    for store in planning.stores:
        loads = (n for n in subterms(store.term) if n.op == "load" and n.attrs[0] == copy)
        found = {n: load(tensor, *(n.args[k] for k in places)) for n in loads}
        planning = planning.with_replaced({store.output.name}, found)
    return planning


def _at_dims(read: Term) -> bool:
    """Whether a part is read at its own dims; a table is read at an index."""
    return all(index.op == "iota" for index in read.args)


def _depth(store: Store, stores: tuple[Store, ...]) -> int:
    """How many stores have to come before it, one after another."""
    needed = {*tensors(store.term)}
    return 1 + max((_depth(other, stores) for other in stores if other.output in needed), default=-1)


# How a part is cut


def _cut(planning: Planning, part: Term, why: str) -> Planning:
    """The part is stored before the focused store, which loads it instead."""
    planning, read = planning.with_stored(part, planning.index(planning.focus), why)
    return planning.with_replaced({planning.focus}, {part: read})


def cut_from_results(planning: Planning, part: Term, why: str) -> Planning:
    """The part is stored before all results, and each of them loads it instead."""
    planning, read = planning.with_stored(part, min(map(planning.index, planning.results)), why)
    return planning.with_replaced(planning.results, {part: read})


# What is cut


def nested_loop(term: Term, held_limit: int, held: tuple[Dim, ...]) -> Term | None:
    """What to store first where a loop lies inside a reduction of a dim that it depends on; None if no loop does.

    If there are several, what a state is summed over comes first: without that sum, a dim may be one that is held.
    """
    loops = loop_reductions([term], held_limit)
    found = []
    for outer in reduces(term):
        inside = [r for r in loops if outer.attrs[1] in r.dims and r is not outer and _reaches(outer, r)]
        if inside and not _maps_values(term, outer, inside, held_limit, held):
            found.append((all(r.attrs[0] == "sum" for r in inside), outer))
    if not found:
        return None
    outer = min(found, key=lambda pair: pair[0])[1]
    return _smallest_around(outer.args[0], set(loops), {r.attrs[1] for r in loops} - {outer.attrs[1]})


def states_with_the_scores_of(term: Term, part: Term, held_limit: int) -> list[Term]:
    """The parts of the states in the term that have the same scores as a state in the part."""
    scores = {_scores(r) for r in loop_reductions([part], held_limit) if r.args[0].op == "scaled"}
    states = {r for r in loop_reductions([term], held_limit) if r.args[0].op == "scaled" and _scores(r) in scores}
    return [t for t in subterms(term) if t.op in ("scale", "mantissa") and t.args[0] in states]


def _scores(r: Term) -> tuple[Dim, Term]:
    return r.attrs[1], r.args[0].args[0]


def blocking_product(term: Term, rows_of: Callable[[Term], Dim | None], held_limit: int) -> Term | None:
    """A product inside a loop that does not depend on the loop, and without which a tile could have more rows.

    That is where the rows are few, because longer dims are a batch of this product.
    """
    rows, loops = rows_of(term), loop_reductions([term], held_limit)
    if rows is None or not isinstance(rows.size, int) or rows.size >= MIN_ROWS_OF_A_PRODUCT:
        return None
    streamed = {r.attrs[1] for r in loops}
    outside = (r for r in every_reduction([term]) if is_contraction(r) and not r.dims & streamed and r not in loops)
    for r in outside:
        if any(_reaches(loop.args[0], r) for loop in loops):
            other = rows_of(substitute(term, {r: _as_if_stored(r)}))
            if other is not None and size_key(other) > size_key(rows):
                return r
    return None


def cross_batch_scores(term: Term, rows: Dim | None, held_limit: int) -> Term | None:
    """Scores of a loop that are products for each index of one dim, while its values are products for another dim.

    Example: Σ_c q[i, h, c] · k[j, h, c] is a product of matrices for each head h, and Σ_j p[h, i, j] · v[i, j, c] one
    for each query i. Whichever of the two the rows are, one of the two is no product of matrices. Kernels that read
    stored scores may have rows of their own. The scores are stored if they take no more memory than something that the
    loop reads anyway. Likewise for a part of the scores that is a product for each row or column, where other parts are
    products of rows and columns.
    """
    across = rows in batch_dims([term])
    for r in loop_reductions([term], held_limit):
        scores = r.args[0].args[0] if r.args[0].op == "scaled" else None
        if scores is None or scores.op == "load":
            continue
        if part := _product_by_row_or_column(scores, {rows, r.attrs[1]}):
            return part
        if across and _differ(batch_of(r), batch_dims([scores])) and any(_as_large(t, scores) for t in tensors(r)):
            return scores
    return None


def _differ(one: frozenset[Dim], other: set[Dim]) -> bool:
    return bool(one - other) and bool(other - one)


def _product_by_row_or_column(scores: Term, tile: set[Dim]) -> Term | None:
    """A product for each row or column that reads something by both, beside a product of rows and columns.

    With another dim than these two it is a product of matrices, and that is why it is stored.
    """
    products = [r for r in reduces(scores) if is_contraction(r) and tile <= r.dims]
    single = [r for r in products if batch_of(r) & tile]
    reads_both = lambda r: any(n.op == "load" and tile < n.dims for n in subterms(r))
    return next(filter(reads_both, single), None) if len(single) < len(products) else None


def _as_large(tensor: Tensor, term: Term) -> bool:
    """Whether the tensor takes at least as much memory as the term with 4 bytes an element.

    Sizes that both have are left out, so that most comparisons work without knowing symbolic sizes.
    """
    mine, theirs = Counter(d.size for d in term.dims), Counter(tensor.shape)
    more, others = list((mine - theirs).elements()), list((theirs - mine).elements())
    size = getattr(torch, tensor.dtype).itemsize * prod(s for s in others if isinstance(s, int))
    return all(isinstance(s, int) for s in more) and 4 * prod(more) <= size


def _as_if_stored(r: Term) -> Term:
    dims = sorted(r.dims)
    return load(Tensor("stored", r.dtype, tuple(d.size for d in dims)), *map(iota, dims))


def _maps_values(term: Term, outer: Term, inside: list[Term], held_limit: int, held: tuple[Dim, ...]) -> bool:
    """Whether a sum of finished states is done within a tile: over a short dim of their values.

    Such a sum multiplies the values by a small matrix, as a projection of the heads' results does. The states
    themselves do not know the dim, and the tile holds all that comes out of the sum. On the grid, the states would be
    computed again for each index of what comes out.
    """
    dim = outer.attrs[1]
    if outer.attrs[0] != "sum" or outer in loop_reductions([term], held_limit) or is_long(dim, held_limit):
        return False
    if dim in state_dims(inside) or any(dim in batch_dims([r]) for r in inside):
        return False
    fresh = outer.dims - frozenset().union(*(r.dims for r in inside))
    return fresh <= set(held)


def _reaches(root: Term, node: Term) -> bool:
    return any(t is node for t in subterms(root))


def _smallest_around(body: Term, inside: set[Term], streamed: set[Dim]) -> Term:
    """The smallest subterm of the body that has all of its loops; never a part of a state.

    It goes down while one operand has all loops, or while an operand that has loops has fewer dims. Of several
    operands it takes the smallest: together they may have dims that no stored value should have. A term with a streamed
    dim is as large as rows times columns, so it is computed again, from states.
    """
    while body not in inside and body.op not in ("scale", "mantissa"):
        holders = [a for a in dict.fromkeys(body.args) if any(t in inside for t in subterms(a))]
        reading = [a for a in holders if tensors(a)] or holders  # what reads nothing, as a count, is worth no kernel
        if len(holders) != 1 and not any(a.dims < body.dims for a in reading) and not body.dims & streamed:
            break
        body = min(reading, key=lambda a: (len(a.dims & streamed), len(a.dims)))
    if body.dtype.startswith("pair"):
        raise NotPlannable("a state inside a reduction of a dim that it depends on cannot be stored as a pair")
    return body


def row_invariant(term: Term, rows: Dim, held_limit: int) -> Term | None:
    """The largest subterm that has loops and does not depend on the rows; of two nested ones the outer one.

    Its own kernel then computes what is inside of it, by the same loops. A long sum that a tile holds whole counts as
    a loop: each tile of rows would do it again. So does a sum of what a loop would read for it alone: each tile of rows
    would read it again. What reads nothing, as a count does, is not worth a kernel.
    """
    holding = _subterms_with_loops(term, rows, held_limit)
    found: set[Term] = set()
    stack, seen = [term], {term}
    while stack:
        node = stack.pop()
        if node in holding and rows not in node.dims and not node.dtype.startswith("pair"):
            found.add(node)
        else:
            fresh = [a for a in node.args if a in holding and a not in seen]
            seen.update(fresh)
            stack.extend(fresh)
    return max(found, key=list(subterms(term)).index, default=None)


def _reads_alone(r: Term, term: Term, streamed: set[Dim]) -> bool:
    """Whether loops would read, for a sum of theirs, elements of a tensor that nothing else in the term reads."""
    if not r.dims & streamed:
        return False
    read = {n.attrs[0] for n in subterms(r) if n.op == "load" and n.dims & streamed and r.attrs[1] in n.dims}
    others = {n.attrs[0] for n in subterms(term, lambda n: n is r) if n.op == "load"}
    return not read <= others


def _subterms_with_loops(term: Term, rows: Dim, held_limit: int) -> set[Term]:
    loops = set(loop_reductions([term], held_limit))
    found = reductions([term])
    holding = {r for r in found if tensors(r) and (r in loops or is_long(r.attrs[1], held_limit))}
    streamed = {r.attrs[1] for r in loops}
    apart = [r for r in found if rows not in r.dims and _reads_alone(r, term, streamed)]
    holding |= {r for r in apart if is_long(rows, held_limit) or volume(r.dims) >= MIN_STORED_SUMS}
    for t in subterms(term):  # arguments come first
        if any(a in holding for a in t.args):
            holding.add(t)
    return holding
