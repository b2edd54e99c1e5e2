"""Passes of the stage `cuts`: parts of a term are stored by earlier kernels, and read.

The law is `read(stored(x)) = x`. Read from right to left it is a cut, in one pass: of the focused store, the next part
that no kernel can compute with the rest, or that would be computed again and again. Example: in softmax(softmax(x · y)
· z), the inner softmax is stored, since its loop would lie inside the outer one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import prod

import torch

from ...egraph.search.cost import volume
from ...egraph.terms.ops import cast, load
from ...egraph.terms.term import Dim, Tensor, Term
from ...egraph.terms.traversal import all_dims, reduces, substitute, subterms, tensors
from ...rules.demotion import reduction_in_blocks
from ..analysis.dim_roles import (
    batch_dims,
    batch_of,
    is_contraction,
    is_long,
    is_product,
    loop_reductions,
    state_dims,
    static_size,
    sum_factors,
)
from ..analysis.exact_products import rounded_sums, signature
from ..analysis.nested_sums import reductions
from ..analysis.relative_index import Table, relative_table
from ..plan.records import NotPlannable, Store
from ..plan.term_edits import in_blocks, renaming
from .build_loops import peel
from .kernel_shape import choose_kernel_shape
from .normalize_terms import is_rescaled
from .planning_state import Planning, StoredPart
from .reshape_dims import with_rows_as_one
from .tabulate_lookups import lookup_table_of

BETWEEN_BATCHES = "is in products for each of two dims"
ROWS_OF_A_TILE = 128  # in large products
MIN_STORED_SUMS = 2**17  # from which a launch costs less than what a few tiles of rows would do again


def store_chosen(planning: Planning) -> Planning:
    """A pass: stores the parts that were chosen by cost; every other store reads them."""
    after = planning
    for term in planning.choice.stored:
        after = after.with_stored(_with_full_tiles(term, planning.stores[0].order))
    return after if after is planning else after.with_saving(planning.choice.stored, planning, by_cost=True)


def _with_full_tiles(term: Term, order: Sequence[Dim]) -> StoredPart:
    """The part by one dim of rows, where none of its own fills a tile: each tile reads the columns of its products.

    Example: 32 sequences that share a prefix, with 4 heads for each of its key heads, are 128 rows that read it once.
    """
    part = StoredPart(term, "takes less time in a kernel of its own")
    table = with_rows_as_one(term, filter(is_product, reductions([term])), order)
    if table is None or any(static_size(d) >= ROWS_OF_A_TILE for _, index in table.places for d in index.dims):
        return part
    return replace(part, values=table.values, places=table.places)


def split_chosen(planning: Planning) -> Planning:
    """A pass: reductions are done in blocks where cost has chosen it, and what is stored of each block is reduced.

    Blocks are more programs: a gradient that sums over 256 sequences is else one program for each tile of its rows and
    columns.
    """
    for name, dim, count in planning.choice.split:
        before, store = planning, planning.stores[planning.index(name)]
        whole = next((r for r in reduces(store.term) if r.attrs[1] == dim and not is_rescaled(r)), None)
        taken = {d.name for term in planning.terms for d in all_dims(term)}
        total = None if whole is None else in_blocks(whole, count, taken, ("part", "rest"))
        if whole is None or total is None:
            raise NotPlannable(f"{name} has no reduction over {dim} in {count} parts")
        why = f"is reduced in {count} parts of {dim} by the law {reduction_in_blocks.name}: more programs share it"
        order = (total.attrs[1], *store.order)
        planning, read = planning.with_load(total.args[0], planning.index(name), why, order)
        planning = planning.with_replaced({name}, {whole: substitute(total, {total.args[0]: read})})
        planning = planning.with_saving(total.args, before, by_cost=True)
    return choose_kernel_shape(planning) if planning.choice.split else planning


def store_parts(planning: Planning) -> Planning:
    """A pass: stores what no kernel can compute with the rest of the focused store, and what saves time.

    What saves time is computed with the rest where cost has chosen that.
    """
    for find in CUTS:
        found = [part for part in find(planning) if part.needed or part.term not in planning.choice.computed]
        after = planning
        for part in found:
            after = after.with_stored(part)
        if after.stores != planning.stores:
            saved = [part.term for part in found if not part.needed]
            return after.with_saving(saved, planning) if saved else after
    return planning


def round_stored_sums(planning: Planning) -> Planning:
    """A pass: a stored sum that the program itself rounds to half precision is stored in half precision, where it is
    only multiplied and summed again.

    Who multiplies it then has one product of halves instead of several that keep more bits, and half the bytes to read.
    Example: the query of latent attention, raised to the latent width by the program in bfloat16. In float16 it has to
    be the same sum, factor by factor: without a scale it might be beyond the dtype's largest number. Scores are not
    rounded where a sum of their exponentials is stored in full: a backward reads its logarithm beside exact scores.
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
    if _shows_exponentials(store, planning):
        return False
    return _is_only_multiplied(store.output, {n for term in planning.terms for n in subterms(term)})


def _shows_exponentials(scores: Store, planning: Planning) -> bool:
    """Whether sums of exponentials of what is made of these scores are stored in full, and so is a result."""
    full = [one for one in planning.stores if one.output.dtype == "float32"]  # a result may read another of these
    if not any(one.output.name in planning.results for one in full):
        return False
    made, read = {scores.output}, {one.output: {*tensors(one.term)} for one in planning.stores}
    while more := {output for output, given in read.items() if output not in made and not made.isdisjoint(given)}:
        made |= more
    return any(_sums_exponentials(r, made) for one in full for r in reduces(one.term))


def _sums_exponentials(reduction: Term, scores: Collection[Tensor]) -> bool:
    """Whether it sums exponentials of what is made of scores for each index that it sums over."""
    exponents = (n.args[0] for n in subterms(reduction.args[0]) if n.op in ("exp", "scaled"))
    loads = {n for exponent in exponents for n in subterms(exponent) if n.op == "load"}
    return any(n.attrs[0] in scores and reduction.attrs[1] in n.dims for n in loads)


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


# What is stored: each function gives the parts of the focused store that are stored next, in one step


def lookups(planning: Planning) -> Iterable[StoredPart]:
    """Reductions that read at positions by the loop's dim and another one, for each position once."""
    table = lookup_table_of(planning.focused.term, planning.held_limit)
    return [] if table is None else [_of_table(table)]


def relative_values(planning: Planning) -> Iterable[StoredPart]:
    """Costly values of a loop that depend on columns minus rows alone, for each difference once."""
    shape = planning.shape
    for r in loop_reductions([planning.focused.term], planning.held_limit):
        _, *bodies = peel(r)
        if table := relative_table(filter(None, bodies), shape.rows, r.attrs[1], shape.grid):
            return [_of_table(table)]
    return []


def _of_table(table: Table) -> StoredPart:
    indices = ", ".join(f"{dim} = {index}" for dim, index in table.places)
    return StoredPart(table.part, f"is a function of {indices} alone", values=table.values, places=table.places)


def loops_inside(planning: Planning) -> Iterable[StoredPart]:
    """What has a loop inside a reduction of a dim that the loop depends on, and the states that share its scores.

    In another kernel the loop of these states would run again. If there are several such reductions, one over a state
    comes first: without it, a dim may be one that is held. A loop knows no index of another loop, so the part is needed
    there; a dim of another reduction may be in a tile.
    """
    term, limit = planning.focused.term, planning.held_limit
    loops = loop_reductions([term], limit)
    outer = _reduction_around(term, loops, limit, planning.shape.held)
    if outer is None:
        return []
    streamed = {r.attrs[1] for r in loops}
    needed = outer.attrs[1] in streamed
    part = _smallest_around(outer.args[0], set(loops), streamed - {outer.attrs[1]})
    scores = {_scores(r) for r in loop_reductions([part], limit) if is_rescaled(r)}
    shared = {r for r in loops if is_rescaled(r) and _scores(r) in scores}
    states = [t for t in subterms(term) if t.op in ("scale", "mantissa") and t.args[0] in shared and t is not part]
    why = ("depends on a dim that is reduced around it", *("is a state of the same loop" for _ in states))
    return [StoredPart(t, said, needed, shared=False) for t, said in zip((part, *states), why, strict=True)]


def _reduction_around(term: Term, loops: list[Term], held_limit: int, held: tuple[Dim, ...]) -> Term | None:
    """A reduction of a dim that loops inside of it depend on; first one of which a loop is no plain sum."""
    found = []
    for outer in reduces(term):
        inside = [r for r in loops if outer.attrs[1] in r.dims and r is not outer and _reaches(outer, r)]
        if inside and not _maps_values(term, outer, inside, held_limit, held):
            found.append((all(r.attrs[0] == "sum" for r in inside), outer))
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _scores(r: Term) -> tuple[Dim, Term]:
    return r.attrs[1], r.args[0].args[0]


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


def scores_between_batches(planning: Planning) -> Iterable[StoredPart]:
    """Scores of a loop that are products for each index of one dim, while its values are products for another dim.

    Example: Σ_c q[i, h, c] · k[j, h, c] is a product of matrices for each head h, and Σ_j p[h, i, j] · v[i, j, c] one
    for each query i. Whichever of the two the rows are, one of the two is no product of matrices. Kernels that read
    stored scores may have rows of their own. The scores are stored if they take no more memory than something that the
    loop reads anyway. Likewise for a part of the scores that is a product for each row or column, where other parts are
    products of rows and columns.
    """
    term, rows = planning.focused.term, planning.shape.rows
    across = rows in batch_dims([term])
    for r in loop_reductions([term], planning.held_limit):
        scores = r.args[0].args[0] if r.args[0].op == "scaled" else None
        if scores is None or scores.op == "load":
            continue
        part = _product_by_row_or_column(scores, {rows, r.attrs[1]})
        if part is not None:
            return [_with_rows_as_one(part, [part], planning.focused.order)]
        one, other = batch_of(r), batch_dims([scores])
        if across and one - other and other - one and any(_as_large(t, scores) for t in tensors(r)):
            return [_with_rows_as_one(scores, filter(is_product, reduces(scores)), planning.focused.order)]
    return []


def values_between_batches(planning: Planning) -> Iterable[StoredPart]:
    """Sums that weigh values by stored scores and are products for each row, beside sums that are no such products.

    Example: Σ_j p[h, i, j] · v[h, j, c] + Σ_j p[h, i, j] · r[i, j, c]. With rows i the second sum is no product of
    matrices, and with rows h the first one is none. What is around the second sum alone is stored, and what is left of
    the same loop, so that one loop makes the first sum and the scores.
    """
    term = planning.focused.term
    apart = {r for r in loop_reductions([term], planning.held_limit) if _is_apart(r, planning.shape.rows)}
    summed = {r.attrs[1] for r in apart}
    same = {r for r in loop_reductions([term], planning.held_limit) if r.attrs[1] in summed}
    part, *others = _divided(term, apart, {r for r in same - apart if is_product(r)}) or [term]
    left = [t for t in others if not same.isdisjoint(subterms(t))]
    if part is term or any(t.dtype.startswith("pair") for t in (part, *left)):
        return []
    stored = _with_rows_as_one(part, apart.intersection(subterms(part)), planning.focused.order)
    return [stored, *(StoredPart(t, "is a sum of the loop that makes the scores") for t in left)]


def _is_apart(r: Term, rows: Dim | None) -> bool:
    """Whether a sum weighs values by stored scores, and is a product of matrices for each row."""
    by_scores = r.args[0].op == "scaled" and r.args[0].args[0].op == "load"
    return by_scores and is_product(r) and rows in batch_of(r)


def _divided(term: Term, apart: set[Term], beside: set[Term]) -> list[Term]:
    """The largest subterm with some of the first terms and none of the others, then all operands beside it; nothing if
    there are no such terms.
    """
    others: list[Term] = []
    while apart and not beside.isdisjoint(subterms(term)):
        inner = next((a for a in term.args if not apart.isdisjoint(subterms(a))), None)
        if inner is None:
            return []
        others += [a for a in term.args if a is not inner]
        term = inner
    return [term, *others]


def _with_rows_as_one(part: Term, products: Iterable[Term], order: Sequence[Dim]) -> StoredPart:
    """The part with one dim of rows. Its last axis is one that tiles have: products repeat over the dims of a batch, so
    that the kernel has a program for each, and programs that write every n-th element are slow.
    """
    products = list(products)
    table = with_rows_as_one(part, products, order)
    axes = StoredPart(part, BETWEEN_BATCHES).axes(order)
    tiled = [d for d in axes if all(d not in batch_of(r) for r in products)]
    made = StoredPart(part, BETWEEN_BATCHES, last=tiled[-1] if tiled else None)
    return made if table is None else replace(made, values=table.values, places=table.places)


def _product_by_row_or_column(scores: Term, tile: set[Dim | None]) -> Term | None:
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


def row_invariants(planning: Planning) -> Iterable[StoredPart]:
    """The largest subterm that has loops and does not depend on the rows; of two nested ones the outer one.

    Its own kernel then computes what is inside of it, by the same loops. A long sum that a tile holds whole counts as
    a loop: each tile of rows would do it again. So does a sum of what a loop would read for it alone: each tile of rows
    would read it again. What reads nothing, as a count does, is not worth a kernel.
    """
    term, rows = planning.focused.term, planning.shape.rows
    if rows is None:
        return []
    holding = _subterms_with_loops(term, rows, planning.held_limit)
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
    largest = max(found, key=list(subterms(term)).index, default=None)
    return [] if largest is None else [StoredPart(largest, f"is the same for all {rows}", shared=False)]


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


CUTS: tuple[Callable[[Planning], Iterable[StoredPart]], ...] = (
    lookups,
    scores_between_batches,
    values_between_batches,
    loops_inside,
    row_invariants,
    relative_values,
)
