"""Classes of tiles by ends of what is compared: equal to those of all pairs, or undecided, for hostile values, too."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.egraph.terms.ops import const, eq, iota, le, load, logical_and, logical_not, logical_or, lt, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.egraph.terms.traversal import reduces, subterms
from onepass.lowering.masks import block_map
from onepass.lowering.masks.block_map import EMPTY, FULL, PARTIAL, Tiling, class_store
from onepass.lowering.masks.tile_ends import decided
from onepass.lowering.plan.records import BlockMap
from onepass.lowering.planning.planner import plan_stores
from onepass.lowering.tiled.executor import run_tiled
from tests.support.predicates import guards
from tests.support.triton_runs import run_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS, COLUMNS, TALL, WIDE = 21, 27, 8, 4
I, J = Dim("i", ROWS), Dim("j", COLUMNS)
ENDS = torch.iinfo(torch.int64)
HOSTILE = (ENDS.min, ENDS.min + 1, -1, 0, 1, ENDS.max - 1, ENDS.max)


def read(name, dim, dtype="int64"):
    return load(Tensor(name, dtype, (dim.size,)), iota(dim))


A, B, C, D = read("a", I), read("b", J), read("c", I), read("d", J)
KEEP, SEEN = read("keep", I, "bool"), read("seen", J, "bool")
X, Y = read("x", I, "float64"), read("y", J, "float64")
EXACT = {
    "causal": le(B, A),
    "behind": lt(A, B),
    "far": logical_not(le(B, A + const(3))),
    "groups": le(B // const(3), A // const(5)),
    "padding": SEEN,
    "of rows": logical_not(KEEP),
    "NaN of columns": lt(Y, 0.5),
}
UNDECIDED_AT_TIMES = {
    "window": logical_and(le(B, A), le(A, B + const(4))),
    "documents": eq(C, D),
    "documents, causal": logical_and(le(B, A), eq(C, D)),
    "other documents": logical_not(eq(C, D)),
    "prefix": logical_or(le(B, A), SEEN),
    "chosen by row": where(KEEP, le(B, A), eq(C, D)),
    "padded": logical_and(le(B, A), logical_and(SEEN, KEEP)),
}
BY_PAIRS = {
    "floats": le(Y, X),
    "sum of both": le(A + B, const(9)),
    "dense": logical_and(le(B, A), load(Tensor("m", "bool", (ROWS, COLUMNS)), iota(I), iota(J))),
}


def values(seed, kind):
    """Positions and documents: in order, at random, all the same, or the ends of int64; NaN and infinities."""
    generator = torch.Generator().manual_seed(seed)
    some = lambda n, most: torch.randint(0, most, (n,), generator=generator)
    hostile = lambda n: torch.tensor(HOSTILE)[some(n, len(HOSTILE))]
    order = lambda n, most: some(n, most).sort().values
    drawn = {
        "sorted": order,
        "random": some,
        "equal": lambda n, most: torch.full((n,), 3),
        "hostile": lambda n, _: hostile(n),
    }
    make = drawn[kind]
    floats = torch.tensor([float("nan"), -torch.inf, torch.inf, -0.0, 0.0, 1.0], dtype=torch.float64)
    found = {"a": make(ROWS, 30), "b": make(COLUMNS, 30), "c": make(ROWS, 4), "d": make(COLUMNS, 4)}
    found |= {"x": floats[some(ROWS, 6)], "y": floats[some(COLUMNS, 6)]}
    found |= {"keep": some(ROWS, 5) > 0, "seen": order(COLUMNS, 2) > 0}
    return found | {"m": some(ROWS * COLUMNS, 3).view(ROWS, COLUMNS) > 0}


def tiling_of(guard, finite_mask=False):
    rows = (I,) if I in guard.dims else ()
    return Tiling(BlockMap(guard, J, (), rows, finite_mask), TALL if rows else 1, WIDE, ())


def classes_of(guard, tensors, run=run_tiled, finite_mask=False):
    plan = plan_stores((class_store(tiling_of(guard, finite_mask)),), held=TALL)
    given = {t.name: tensors[t.name].to(DEVICE) for t in plan.inputs}
    return run(plan, given, {}).cpu()


def by_pairs(guard, tensors):
    """The classes by torch."""
    kept = evaluated(guard, tensors)
    kept = kept.expand(ROWS, COLUMNS) if I in guard.dims else kept.expand(1, COLUMNS)
    rows, columns = kept.split(TALL), range(0, COLUMNS, WIDE)
    blocks = [[part[:, n : n + WIDE] for n in columns] for part in rows]
    kind = lambda b: FULL if b.all() and b.shape[1] == WIDE else PARTIAL if b.any() else EMPTY
    found = torch.tensor([[kind(b) for b in row] for row in blocks], dtype=torch.int32)
    return found if I in guard.dims else found[0]


OPERATIONS = {
    "le": torch.le, "lt": torch.lt, "eq": torch.eq, "and": torch.logical_and, "or": torch.logical_or,
    "not": torch.logical_not, "where": torch.where, "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "floordiv": torch.floor_divide, "mod": torch.remainder, "maximum": torch.maximum, "minimum": torch.minimum,
    "abs": torch.abs, "neg": torch.neg,
}  # fmt: skip


def evaluated(x, tensors):
    """A term with torch's arithmetic, in which integers wrap."""
    if x.op == "const":
        value = x.attrs[0]
        return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
    if x.op == "iota":
        return torch.arange(x.attrs[0].size).view(-1, 1) if x.attrs[0] is I else torch.arange(x.attrs[0].size)
    if x.op == "load":
        value = tensors[x.attrs[0].name]
        return value if value.dim() == 2 or I not in x.dims else value[:, None]
    return OPERATIONS[x.op](*(evaluated(a, tensors) for a in x.args))


def assert_never_wrong(found, right):
    assert not ((found == FULL) & (right != FULL)).any() and not ((found == EMPTY) & (right != EMPTY)).any()


@pytest.fixture
def large(monkeypatch):
    """Guards as if there were many pairs."""
    monkeypatch.setattr(block_map, "MIN_PAIRS_BY_ENDS", 0)


KINDS = pytest.mark.parametrize("kind", ["sorted", "random", "equal", "hostile"])


@KINDS
@pytest.mark.parametrize("name", EXACT)
def test_one_comparison_is_decided_by_its_ends(name, kind):
    guard = EXACT[name]
    assert decided_in_a_tile(guard).exact
    for seed in range(3):
        tensors = values(seed, kind)
        for run in (run_tiled, run_triton):
            assert torch.equal(classes_of(guard, tensors, run), by_pairs(guard, tensors))


@pytest.mark.sampled(10)
@KINDS
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", UNDECIDED_AT_TIMES)
def test_several_comparisons_are_never_decided_wrongly(name, kind):
    guard = UNDECIDED_AT_TIMES[name]
    for seed in range(3):
        tensors = values(seed, kind)
        found = classes_of(guard, tensors)
        assert_never_wrong(found, by_pairs(guard, tensors))
        assert torch.equal(found, classes_of(guard, tensors, run_triton))


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", ["window", "documents", "documents, causal", "padded"])
def test_what_is_in_order_is_decided_nearly_everywhere(name):
    tensors = values(0, "sorted")
    tensors |= {"a": torch.arange(ROWS), "b": torch.arange(COLUMNS)}
    right, found = by_pairs(UNDECIDED_AT_TIMES[name], tensors), classes_of(UNDECIDED_AT_TIMES[name], tensors)
    assert (found != right).sum() <= 2 and (found == EMPTY).any()


@KINDS
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("name", BY_PAIRS)
def test_what_has_no_ends_is_looked_at_in_pairs(name, kind):
    guard, tensors = BY_PAIRS[name], values(1, kind)
    assert decided_in_a_tile(guard) is None
    assert torch.equal(classes_of(guard, tensors), by_pairs(guard, tensors))


@pytest.mark.usefixtures("large")
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_guards(data):
    guard = data.draw(guards(I, J, Dim("g", 1), depth=3).filter(lambda p: p.dims <= {I, J} and J in p.dims))
    part = data.draw(st.sampled_from([*EXACT.values(), *UNDECIDED_AT_TIMES.values()]))
    guard = data.draw(st.sampled_from([logical_and, logical_or]))(guard, part)
    tensors = values(data.draw(st.integers(0, 99)), data.draw(st.sampled_from(["sorted", "random", "hostile"])))
    plan = plan_stores((class_store(tiling_of(guard)),), held=TALL)
    assert_never_wrong(run_tiled(plan, {t.name: tensors[t.name] for t in plan.inputs}), by_pairs(guard, tensors))


def test_few_pairs_and_finite_masks_are_decided_everywhere(monkeypatch):
    """A row of a finite mask counts that keeps nothing, so its classes may not be undecided."""
    guard, tensors = UNDECIDED_AT_TIMES["other documents"], values(5, "random")
    right = by_pairs(guard, tensors)
    assert torch.equal(classes_of(guard, tensors), right)
    monkeypatch.setattr(block_map, "MIN_PAIRS_BY_ENDS", 0)
    assert torch.equal(classes_of(guard, tensors, finite_mask=True), right)


def decided_in_a_tile(guard):
    """With the rows and the columns as those within one tile."""
    return decided(guard, [I, J])


@pytest.mark.parametrize("name", [*EXACT, *UNDECIDED_AT_TIMES])
def test_no_reduction_goes_over_pairs(name):
    found = decided_in_a_tile({**EXACT, **UNDECIDED_AT_TIMES}[name])
    folded = [r for term in (found.all_kept, found.some_kept) for r in reduces(term)]
    assert folded and all(len(r.args[0].dims & {I, J}) == 1 for r in folded)
    assert not found.all_kept.dims | found.some_kept.dims
    assert len([*subterms(found.all_kept)]) < 60
