"""Block maps of guards over data: classes against brute force, what follows them, and when they are read again."""

import gc
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.api.backend import onepass_backend
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, eq, iota, le, load, logical_and, logical_not, logical_or, sum_over, where
from onepass.egraph.terms.term import Dim, Tensor
from onepass.lowering.masks import block_map
from onepass.lowering.masks.block_map import EMPTY, FULL, PARTIAL, MapCache, Tiling, shared_visits
from onepass.lowering.masks.tile_lists import visit_lists
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import BlockMap
from onepass.lowering.planning.mask_plans import class_plan
from onepass.lowering.planning.planner import build_plan
from onepass.lowering.tiled.executor import run_tiled
from onepass.lowering.triton import launch
from onepass.lowering.triton.launch import Launcher, build_map
from onepass.report import records
from tests.support.predicates import guards
from tests.support.triton_runs import run_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS, BATCH = 4, 2


def dims(rows, columns):
    return Dim("b", BATCH), Dim("h", HEADS), Dim("i", rows), Dim("j", columns)


def documents(b, h, i, j):
    ids = Tensor("ids", "int64", (BATCH, "length"))
    return eq(load(ids, iota(b), iota(i)), load(ids, iota(b), iota(j)))


def causal_documents(b, h, i, j):
    return logical_and(le(iota(j), iota(i)), documents(b, h, i, j))


def padding(b, h, i, j):
    return load(Tensor("keep", "bool", (BATCH, j.size)), iota(b), iota(j))


def dense(b, h, i, j):
    return load(Tensor("dense", "bool", (i.size, j.size)), iota(i), iota(j))


def dense_by_head(b, h, i, j):
    return load(Tensor("by_head", "bool", (HEADS, i.size, j.size)), iota(h), iota(i), iota(j))


def random_blocks(b, h, i, j):
    """A window, a global column, and blocks drawn per row block."""
    drawn = Tensor("drawn", "bool", (-(-i.size // 8), -(-j.size // 8)))
    near = logical_and(le(iota(i), iota(j) + 3), le(iota(j), iota(i) + 3))
    return logical_or(logical_or(near, le(iota(j), const(2))), load(drawn, iota(i) // const(8), iota(j) // const(8)))


GUARDS = (documents, causal_documents, padding, dense, dense_by_head, random_blocks)


def data(rows, columns, seed=0):
    """The tensors of all guards, and each guard as a boolean array [b, h, i, j] written again in torch."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *shape: torch.rand(shape, generator=generator) < 0.1
    ids = torch.randint(0, 3, (BATCH, max(rows, columns)), generator=generator).sort(-1).values
    keep = torch.arange(columns) < torch.tensor([[columns // 3], [columns]])
    pairs, by_head = draw(rows, columns), draw(HEADS, rows, columns)
    pairs[: rows // 2] = False
    by_head[1, :, : columns // 2] = True
    drawn = draw(-(-rows // 8), -(-columns // 8))
    i, j = torch.arange(rows)[:, None], torch.arange(columns)
    same = (ids[:, :rows, None] == ids[:, None, :columns])[:, None]
    near = ((i - j).abs() <= 3) | (j <= 2) | drawn.repeat_interleave(8, 0)[:rows].repeat_interleave(8, 1)[:, :columns]
    kept = {
        documents: same,
        causal_documents: same & (j <= i),
        padding: keep[:, None, None],
        dense: pairs,
        dense_by_head: by_head,
        random_blocks: near,
    }
    tensors = {"ids": ids, "keep": keep, "dense": pairs, "by_head": by_head, "drawn": drawn}
    shape = (BATCH, HEADS, rows, columns)
    return {n: t.to(DEVICE) for n, t in tensors.items()}, {g: k.expand(shape) for g, k in kept.items()}


def sums(guard, rows, columns):
    """A plan of Σ_j where(guard, x, 0) in four heads, its inputs and the exact result."""
    b, h, i, j = dims(rows, columns)
    tensors, kept = data(rows, columns)
    x = load(Tensor("x", "float32", (BATCH, HEADS, rows, columns)), *map(iota, (b, h, i, j)))
    term = sum_over(j, where(guard(b, h, i, j), x, const(0.0)))
    plan = build_plan(term, Tensor("out", "float32", (BATCH, HEADS, rows)), (b, h, i), held=1)
    values = torch.randint(1, 99, (BATCH, HEADS, rows, columns), generator=torch.Generator().manual_seed(1)).float()
    inputs = {"x": values.to(DEVICE), **{t.name: tensors[t.name] for t in plan.inputs if t.name != "x"}}
    return plan, inputs, (values * kept[guard]).sum(-1)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.sampled_from(GUARDS), st.integers(1, 40), st.integers(1, 50), st.sampled_from([4, 16]), st.integers(0, 9))
def test_maps_are_what_brute_force_finds(guard, rows, columns, tile, seed):
    b, h, i, j = dims(rows, columns)
    tensors, kept = data(rows, columns, seed)
    term = guard(b, h, i, j)
    record = BlockMap(term, j, tuple(d for d in (b, h) if d in term.dims), (i,) if i in term.dims else ())
    tiling = Tiling(record, 8 if record.rows else 1, tile, (("length", max(rows, columns)),))
    (listed,) = build_map(tiling, tensors)
    listed = listed.cpu()
    for position in torch.cartesian_prod(*(torch.arange(n) for n in listed.shape[:-1])).reshape(-1, listed.dim() - 1):
        place = dict(zip((*record.dims, *record.rows), position.tolist(), strict=True))
        rows_of = slice(8 * place.get(i, 0), 8 * place.get(i, 0) + 8)
        block = kept[guard][place.get(b, 0), place.get(h, 0), rows_of]
        tiles = [block[:, n * tile : (n + 1) * tile] for n in range(-(-columns // tile))]
        full = [n for n, t in enumerate(tiles) if t.all() and t.shape[1] == tile]
        partial = [n for n, t in enumerate(tiles) if t.any() and n not in full]
        partial_count, count, *numbers = listed[tuple(position)].tolist()
        assert (numbers[:partial_count], numbers[partial_count:count]) == (partial, full)


def masked(draw, name, i, j):
    """A load of a mask or a comparison of ids that has, lacks or broadcasts each of the axes, and its tensor."""
    rows, columns = draw(st.booleans()), draw(st.booleans())
    shape = i.size if rows else 1, j.size if columns else 1
    index = iota(i) if rows else const(0), iota(j) if columns else const(0)
    value = torch.rand(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))) < 0.8
    match draw(st.integers(0, 3)):
        case 0:  # stride 0
            return load(Tensor(name, "bool", (i.size, j.size)), iota(i), iota(j)), value.expand(i.size, j.size)
        case 1:  # no axis at all
            return load(Tensor(name, "bool", shape[:1]), index[0]), value[:, 0]
        case 2:  # groups
            grouped = torch.arange(j.size // 3 + 1) % 2 == 0
            return load(Tensor(name, "bool", (j.size // 3 + 1,)), iota(j) // const(3)), grouped
    return load(Tensor(name, "bool", shape), *index), value


def guard_with_masks(draw, i, j, g, most):
    """A random guard joined with one or more masks, and the tensors of these by name."""
    guard, tensors = draw(guards(i, j, g, depth=2)), {}
    for join in draw(st.lists(st.sampled_from([logical_and, logical_or]), min_size=1, max_size=most)):
        name = f"mask{len(tensors)}"
        part, tensors[name] = masked(draw, name, i, j)
        guard = join(guard, draw(st.sampled_from([part, logical_not(part)])))
    return guard, tensors


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_classes_of_random_guards_with_broadcast_masks(data):
    i, j, g = Dim("i", data.draw(st.integers(1, 40))), Dim("j", data.draw(st.integers(1, 50))), Dim("g", 2)
    guard, tensors = guard_with_masks(data.draw, i, j, g, most=3)
    record = BlockMap(guard, j, (g,) if g in guard.dims else (), (i,) if i in guard.dims else ())
    tiling = Tiling(record, 16 if record.rows else 1, 8, ())
    arrays = {n: t.numpy() for n, t in tensors.items()}
    kept = torch.from_numpy(evaluate(guard, arrays, (*record.dims, *record.rows, j)).astype(bool))
    kept = kept.expand(*(d.size for d in (*record.dims, *record.rows, j)))
    on_device = {n: t.to(DEVICE) for n, t in tensors.items()}
    for run in (run_tiled, run_triton):
        classes = run(class_plan(tiling), on_device, {}).cpu()
        blocks = [range(d.size) for d in record.dims] + [range(-(-i.size // 16)) for _ in record.rows]
        for place in product(*blocks, range(-(-j.size // 8))):
            rows = [slice(16 * n, 16 * n + 16) for n in place[len(record.dims) : -1]]
            block = kept[(*place[: len(record.dims)], *rows, slice(8 * place[-1], 8 * place[-1] + 8))]
            whole = bool(block.all()) and block.shape[-1] == 8
            assert classes[place] == (FULL if whole else PARTIAL if block.any() else EMPTY)


def lists_of_classes(classes, together, by_rows):
    """`visit_lists`, and for several tiles of rows the same by torch."""
    listed = visit_lists(classes.int().to(DEVICE), together, by_rows).cpu()
    rows = classes if by_rows else classes.unsqueeze(-2).expand(*classes.shape[:-1], together, -1)
    known = shared_visits(rows, together)
    assert listed.shape == known.shape
    for mine, theirs in zip(listed.flatten(0, -2).tolist(), known.flatten(0, -2).tolist(), strict=True):
        written = 1 + 2 * together + theirs[0]
        assert mine[:written] == theirs[:written]
    return known


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(1, 7), st.integers(1, 9), st.integers(1, 3), st.integers(0, 99))
def test_a_shared_list_says_what_each_tile_of_rows_runs_and_tests(rows, count, together, seed):
    classes = torch.randint(0, 3, (2, rows, count), generator=torch.Generator().manual_seed(seed)).mul(seed % 4 > 0)
    lists_of_classes(classes[:, 0], together, by_rows=False)
    found = lists_of_classes(classes, together, by_rows=True)
    classes, listed = classes[1], found[1].tolist()
    assert len(listed) == -(-rows // together)
    for n, (every, *rest) in enumerate(listed):
        mine = classes[together * n : together * (n + 1)].tolist()
        visited = [t for t in range(count) if any(row[t] != EMPTY for row in mine)] or [0]
        entries = rest[2 * together :][:every]
        assert [entry >> together for entry in entries] == visited
        for w, row in enumerate(mine):
            begin, end = rest[2 * w : 2 * w + 2]
            assert 0 <= begin < end <= every
            own = {entry >> together: bool(entry >> w & 1) for entry in entries[begin:end]}
            assert {t for t in range(count) if row[t] != EMPTY} <= own.keys()
            assert all(guarded == (row[t] != FULL) for t, guarded in own.items())


@pytest.fixture
def always(monkeypatch):
    monkeypatch.setattr(block_map, "MIN_TILES", 1)
    monkeypatch.setattr("onepass.lowering.triton.launch.pays", lambda *_: True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.usefixtures("always")
def test_kernels_follow_their_map(guard):
    rows, columns = 50, 70
    plan, inputs, expected = sums(guard, rows, columns)
    assert plan.kernels[0].loops[0].map is not None and "block map" in plan.notes[0]
    launcher = Launcher(plan, TritonConfig(16, 16, 4, 1))
    assert torch.equal(launcher(inputs, {"length": max(rows, columns)}).cpu(), expected)
    assert len(launcher._maps._kept) == 1


@pytest.mark.parametrize("guard", GUARDS)
def test_the_tiled_executor_needs_no_map(guard):
    plan, inputs, expected = sums(guard, 50, 70)
    assert torch.equal(run_tiled(plan, inputs).cpu(), expected)


@pytest.mark.usefixtures("always")
def test_a_map_over_heads_that_share_a_mask_has_no_head_dim():
    (loop,) = sums(causal_documents, 32, 32)[0].kernels[0].loops
    assert [d.name for d in loop.map.dims] == ["b"] and [d.name for d in loop.map.rows] == ["i"]
    (loop,) = sums(padding, 32, 32)[0].kernels[0].loops
    assert {d.name for d in (*loop.map.dims, *loop.map.rows)} == {"b"}


def test_limits_from_data_need_no_map():
    b, _, i, j = dims(32, 32)
    kept = logical_and(le(iota(j) + 1, load(Tensor("lengths", "int64", (BATCH,)), iota(b))), le(iota(j), iota(i)))
    x = load(Tensor("x", "float32", (32,)), iota(j))
    plan = build_plan(sum_over(j, where(kept, x, 0.0)), Tensor("out", "float32", (BATCH, 32)), (b, i), held=1)
    assert plan.kernels[0].loops[0].map is None and not plan.notes


# When a map is read again


@pytest.fixture
def counted(monkeypatch):
    builds = []
    monkeypatch.setattr(launch, "build_map", lambda *args: builds.append(args) or build_map(*args))
    return builds


def tiling_of(guard, rows=32, columns=32):
    b, h, i, j = dims(rows, columns)
    record = BlockMap(guard(b, h, i, j), j, (b,), (i,))
    return Tiling(record, 16, 16, (("length", columns),))


def test_an_unchanged_mask_is_read_once(counted):
    cache, tensors = MapCache(), data(32, 32)[0]
    one = cache.get(tiling_of(documents), tensors, launch.build_map)
    assert cache.get(tiling_of(documents), tensors, launch.build_map) is one and len(counted) == 1
    cache.get(tiling_of(causal_documents), tensors, launch.build_map)
    assert len(counted) == 2


def test_a_mask_written_in_place_is_read_again(counted):
    cache, tensors = MapCache(), data(32, 32)[0]
    before = cache.get(tiling_of(documents), tensors, launch.build_map)[0].clone()
    tensors["ids"][:, 16:].fill_(7)
    (after,) = cache.get(tiling_of(documents), tensors, launch.build_map)
    assert len(counted) == 2 and not torch.equal(before, after)
    tensors["ids"].view(-1)[3] = 5  # through a view
    cache.get(tiling_of(documents), tensors, launch.build_map)
    assert len(counted) == 3


@pytest.mark.slow
def test_a_new_tensor_in_an_old_place_is_read_again(counted):
    cache, ids = MapCache(), data(32, 32)[0]["ids"]
    read = lambda tensor: cache.get(tiling_of(documents), {"ids": tensor}, launch.build_map)
    read(ids)
    twin = torch.empty(0, dtype=ids.dtype, device=DEVICE).set_(ids)  # same memory, its own version
    read(twin)
    assert len(counted) == 2
    del ids, twin, counted[:]
    gc.collect()
    read(data(32, 32)[0]["ids"])
    assert len(cache._kept) == 1, "maps of tensors that are gone are dropped"


def test_views_of_one_tensor_are_read_once(counted):
    cache, whole = MapCache(), data(32, 32)[0]["ids"].repeat(2, 1)
    read = lambda: cache.get(tiling_of(documents), {"ids": whole[:BATCH]}, launch.build_map)
    assert read() is read() and len(counted) == 1
    cache.get(tiling_of(documents), {"ids": whole[1 : 1 + BATCH]}, launch.build_map)  # other places
    assert len(counted) == 2
    whole[3] += 1  # written where the view does not look: one version for all
    read()
    assert len(counted) == 3


def test_a_tensor_without_a_version_is_read_each_time(counted):
    with torch.inference_mode():
        tensors = data(32, 32)[0]
        cache = MapCache()
        for _ in range(2):
            cache.get(tiling_of(documents), tensors, launch.build_map)
    assert len(counted) == 2 and not cache._kept


@pytest.mark.slow
@pytest.mark.usefixtures("always")
def test_a_kernel_sees_a_changed_mask():
    plan, inputs, expected = sums(padding, 32, 64)
    launcher = Launcher(plan, TritonConfig(16, 16, 4, 1))
    assert torch.equal(launcher(inputs).cpu(), expected)
    inputs["keep"][0] = True
    assert torch.equal(launcher(inputs)[0].cpu(), inputs["x"][0].sum(-1).cpu())


@pytest.mark.usefixtures("always")
def test_a_compiled_function_reads_a_mask_again_only_after_a_write(counted):
    def attention(q, k, v, ids):
        same = ids[:, None, :, None] == ids[:, None, None, :]
        return torch.softmax((q @ k.mT / 4).masked_fill(~same, -torch.inf), -1) @ v

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 48, 16, device=DEVICE) for _ in range(3))
    ids = torch.arange(48, device=DEVICE)[None] // 20
    options = {"inner": "eager", "executor": "triton", "strict": True}
    fast = torch.compile(attention, backend=onepass_backend, options=options)
    for builds in (1, 2):
        for _ in range(2):
            torch.testing.assert_close(fast(q, k, v, ids), attention(q, k, v, ids))
        assert len(counted) == builds
        ids[:, 10:] += 5


BROADCAST = {
    "a row": lambda n, m: torch.rand(1, m) < 0.7,
    "a column": lambda n, m: torch.rand(n, 1) < 0.7,
    "no axis of rows": lambda n, m: torch.rand(m) < 0.7,
    "one element": lambda n, m: torch.ones(1, 1, dtype=torch.bool),
    "stride 0": lambda n, m: (torch.rand(1, 1, 1, m) < 0.7).expand(2, 2, n, m),
    "by batch": lambda n, m: torch.rand(2, 1, 1, m) < 0.7,
    "by head": lambda n, m: torch.rand(2, n, 1) < 0.7,
}


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("always", "fresh")
@pytest.mark.parametrize("kind", BROADCAST)
def test_kernels_read_masks_that_are_broadcast(kind):
    def attention(q, k, v, mask, ids):
        i, j = torch.arange(q.shape[-2], device=q.device)[:, None], torch.arange(k.shape[-2], device=q.device)
        keep = (i == j) | (j < 3) | (j >= 2) & mask & (ids[:, None] == ids[: k.shape[-2]])
        return torch.softmax((q @ k.mT / 4).masked_fill(~keep, -torch.inf), -1) @ v

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, n, 16, device=DEVICE) for n in (48, 40, 40))
    more = [x.to(DEVICE) for x in (BROADCAST[kind](48, 40), torch.arange(48) // 17)]
    options = {"inner": "eager", "executor": "triton", "strict": True}
    fast = torch.compile(attention, backend=onepass_backend, options=options)
    torch.testing.assert_close(fast(q, k, v, *more), attention(q, k, v, *more), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("always", "fresh")
@pytest.mark.parametrize("good", [0, 1])
def test_a_map_that_cannot_be_built_never_reaches_the_caller(monkeypatch, good):
    """Neither at the first call, nor later when a kernel already runs by its map."""
    left = iter(range(good))

    def failing(*args):
        if next(left, None) is None:
            raise IndexError("index 64 is out of bounds")
        return build_map(*args)

    monkeypatch.setattr(launch, "build_map", failing)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 48, 16, device=DEVICE) for _ in range(3))
    keep = torch.rand(1, 48, device=DEVICE) < 0.7
    attention = lambda q, k, v, keep: torch.softmax((q @ k.mT / 4).masked_fill(~keep, -torch.inf), -1) @ v
    fast = torch.compile(
        attention, backend=onepass_backend, options={"inner": "eager", "executor": "triton", "libraries": False}
    )
    for _ in range(2):
        torch.testing.assert_close(fast(q, k, v, keep), attention(q, k, v, keep))
        keep[0, :5] = True
    (region,) = records.reports()[-1].regions
    assert region.ran == "tiled" and any("index 64" in note for note in region.notes)


def test_small_launches_test_the_guard(counted):
    plan, inputs, expected = sums(documents, 64, 64)
    result = run_triton(plan, inputs, {"length": 64}, TritonConfig(16, 16, 4, 1))
    assert torch.equal(result.cpu(), expected) and not counted
