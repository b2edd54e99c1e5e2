"""The whole path on a CUDA device, where there is one: torch.compile to a Triton kernel, against float64."""

import math
import os
import subprocess
import sys

import pytest
import torch

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.errors import NotPrepared
from tests.variants import relative

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def _mask(kind, rows, columns, device):
    i, j = torch.arange(rows, device=device)[:, None], torch.arange(columns, device=device)
    if kind == "full":
        return None
    return j <= i if kind == "causal" else (j <= i) & (i - j < 100)  # an unused mask is memory too


def _attention(kind):
    def plain(q, k, v):
        score = q @ k.mT / math.sqrt(q.shape[-1])
        keep = _mask(kind, q.shape[-2], k.shape[-2], q.device)
        return torch.softmax(score if keep is None else torch.where(keep, score, -math.inf), -1) @ v

    return plain


def _agrees(function, inputs, executor="triton"):
    """The compiled result is as near to float64 as eager's own, with NaN in the same places."""
    torch._dynamo.reset()
    options = {"strict": True, "inner": "eager", "executor": executor}  # strict: a kernel that fails is a failed test
    compiled = torch.compile(function, backend=onepass_backend, dynamic=False, options=options)
    with torch.no_grad():
        ours, eager = compiled(*inputs), function(*inputs)
        exact = function(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert torch.equal(ours.isnan(), eager.isnan())
    error, own = ((x.double() - exact).nan_to_num().abs().max().item() for x in (ours, eager))
    floor = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 4e-3}[ours.dtype]
    assert error <= 2 * own + floor, (error, own)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["full", "causal", "window"])
@pytest.mark.parametrize("width", [16, 64, 80, 96, 128, 256])
def test_every_width_and_dtype(width, kind, dtype):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, width, device="cuda", dtype=dtype) for n in (333, 517, 517))
    _agrees(_attention(kind), (q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", ["full", "causal", "window"])
@pytest.mark.parametrize("width", [64, 80, 128, 192, 256])
def test_gluon_where_it_runs(width, kind, dtype):
    torch.manual_seed(4)
    q, k, v = (torch.randn(2, 3, n, width, device="cuda", dtype=dtype) for n in (333, 517, 517))
    _agrees(_attention(kind), (q, k, v), "gluon")


@pytest.mark.parametrize("scale", [1.0, 50.0])
@pytest.mark.parametrize("rows,columns", [(1, 1), (1, 1000), (64, 64), (129, 65), (1023, 1025)])
def test_lengths_and_large_logits(rows, columns, scale):
    torch.manual_seed(1)
    q = torch.randn(1, 2, rows, 64, device="cuda") * scale
    k, v = (torch.randn(1, 2, columns, 64, device="cuda") for _ in range(2))
    _agrees(_attention("full"), (q, k, v))


def test_scaled_dot_product_attention_with_groups_and_strides():
    torch.manual_seed(2)
    q = torch.randn(2, 300, 8, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    k, v = (torch.randn(2, 300, 2, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
    sdpa = torch.nn.functional.scaled_dot_product_attention
    _agrees(lambda q, k, v: sdpa(q, k, v, is_causal=True, enable_gqa=True), (q, k, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_bad_numbers_among_values_by_distance(value, dtype):
    torch.manual_seed(8)
    q, k, v = (torch.randn(1, 2, 300, 64, device="cuda", dtype=dtype) for _ in range(3))
    tables = [torch.randn(2 * relative.MOST + 1, 64, device="cuda", dtype=dtype) for _ in range(2)]
    tables[1][0, 3] = value
    _agrees(relative.relative_keys_and_values, (q, k, v, *tables))


def test_rows_without_keys_and_bad_numbers():
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, 2, 200, 64, device="cuda") for _ in range(3))
    q[0, 0, 5], k[0, 1, 7, 0] = math.inf, math.nan
    _agrees(_attention("full"), (q, k, v))


def test_no_memory_of_rows_by_columns():
    q, k, v = (torch.randn(1, 8, 8192, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    compiled = torch.compile(_attention("causal"), backend=onepass_backend, dynamic=False, options={"inner": "eager"})
    with torch.no_grad():
        compiled(q, k, v)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        compiled(q, k, v)
    assert torch.cuda.max_memory_allocated() - before <= 2 * q.numel() * q.element_size()


def _of_documents(q, k, v, ids):
    score = (q @ k.mT / math.sqrt(q.shape[-1])).float()
    return torch.softmax(torch.where(ids[:, None] == ids, score, -math.inf), -1).to(v.dtype) @ v


@pytest.mark.parametrize("executor", ["triton", "gluon"])
def test_a_captured_graph_replays_on_new_data(executor):
    torch.manual_seed(5)
    q, k, v = (torch.randn(2, 4, 1024, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    places = torch.arange(1024, device="cuda")
    ids = places * 5 // 1024
    torch._dynamo.reset()
    options = {"strict": True, "inner": "eager", "executor": executor}
    compiled = torch.compile(_of_documents, backend=onepass_backend, dynamic=False, options=options)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compiled(q, k, v, ids)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(q, k, v, ids)
        for seed, fresh in enumerate((places * 3 // 1024, places % 2, places * 0)):
            torch.manual_seed(seed)
            for x in (q, k, v):
                x.copy_(torch.randn_like(x))
            ids.copy_(fresh)
            graph.replay()
            exact = _of_documents(q.double(), k.double(), v.double(), ids)
            own = (_of_documents(q, k, v, ids).double() - exact).abs().max()
            assert (result.double() - exact).abs().max() <= 2 * own + 4e-3


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("shape", [(2048,), (2, 1, 2048), (2, 8, 2048)], ids=["shared", "by batch", "by head"])
def test_items_are_the_same_in_whichever_order_programs_take_them(shape, width):
    """In turn at first, by their lengths when a mask is read again; after a write in turn once more."""
    torch.manual_seed(6)
    q, k, v = (torch.randn(2, 8, 2048, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ids = (torch.rand(shape, device="cuda") < 0.003).cumsum(-1)

    def packed(q, k, v, ids):
        place = torch.arange(q.shape[-2], device=q.device)
        kept = (ids[..., :, None] == ids[..., None, :]) & (place[:, None] >= place)
        return torch.where(kept, q @ k.mT / math.sqrt(q.shape[-1]), -math.inf).softmax(-1) @ v

    torch._dynamo.reset()
    options = {"strict": True, "inner": "eager", "executor": "gluon"}
    compiled = torch.compile(packed, backend=onepass_backend, dynamic=False, options=options)
    for _ in range(2):
        exact = packed(q.double(), k.double(), v.double(), ids)
        allowed = 2 * (packed(q, k, v, ids).double() - exact).abs().max() + 4e-3
        with torch.no_grad():
            results = [compiled(q, k, v, ids) for _ in range(3)]
        assert (results[0].double() - exact).abs().max() <= allowed
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
        ids.copy_((torch.rand(shape, device="cuda") < 0.003).cumsum(-1))


@pytest.mark.parametrize("executor", ["triton", "gluon"])
def test_later_calls_take_the_tensors_that_they_are_given(executor):
    """A launch is repeated without a look: at other addresses, unaligned ones, for other lengths."""
    torch._dynamo.reset()
    function = _attention("causal")
    options = {"strict": True, "inner": "eager", "executor": executor}
    compiled = torch.compile(function, backend=onepass_backend, dynamic=True, options=options)
    for turn, (length, shift) in enumerate([(256, 0), (256, 0), (256, 1), (320, 0), (256, 1), (320, 0), (257, 0)]):
        torch.manual_seed(turn)
        flat = [torch.randn(2 * 3 * length * 64 + 8, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        q, k, v = (x[shift : shift + 2 * 3 * length * 64].view(2, 3, length, 64) for x in flat)
        with torch.no_grad():
            ours, eager, exact = compiled(q, k, v), function(q, k, v), function(q.double(), k.double(), v.double())
        own = (eager.double() - exact).abs().max()
        assert (ours.double() - exact).abs().max() <= 2 * own + 4e-3


def _step(q, k, v, lengths):
    """Queries of few places against a cache of which each sequence has filled a part; groups of heads share keys."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    kept = torch.arange(k.shape[2], device=k.device) < lengths[:, None, None, None]
    score = torch.where(kept, (q @ k.mT / math.sqrt(q.shape[-1])).float(), -math.inf)
    return torch.softmax(score, -1).to(v.dtype) @ v


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("rows, group, width, columns", [(1, 1, 64, 4099), (1, 4, 128, 5000), (3, 8, 80, 2500)])
def test_few_rows_against_a_long_cache(rows, group, width, columns, dtype):
    torch.manual_seed(6)
    q = torch.randn(3, 8, rows, width, device="cuda", dtype=dtype)
    k, v = (torch.randn(3, 8 // group, columns, width, device="cuda", dtype=dtype) for _ in range(2))
    lengths = torch.tensor([columns, 17, columns // 2 + 1], device="cuda")
    torch._dynamo.reset()
    options = {"strict": True, "inner": "eager", "executor": "triton", "libraries": False}
    compiled = torch.compile(_step, backend=onepass_backend, dynamic=False, options=options)
    with torch.no_grad():
        exact, eager = _step(*(x.double() for x in (q, k, v)), lengths), _step(q, k, v, lengths)
        for _ in range(3):  # compared, launched anew, launched again
            assert (compiled(q, k, v, lengths) - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = compiled(q, k, v, lengths)
        lengths.copy_(torch.tensor([1, columns, 300], device="cuda"))
        graph.replay()
        exact, eager = _step(*(x.double() for x in (q, k, v)), lengths), _step(q, k, v, lengths)
        assert (result - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-3


def _paged(q, cache_k, cache_v, table, lengths):
    """One token of each sequence against the pages that a table names, as far as its length."""
    k, v = (cache[table].flatten(1, 2).transpose(1, 2) for cache in (cache_k, cache_v))
    return _step(q, k, v, lengths)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("libraries", [False, True], ids=["kernels", "rivals"])
def test_the_first_call_of_a_plan_is_captured(inner, libraries):
    """Everything was prepared before: the graph has kernels, and follows the tensors' contents."""
    torch.manual_seed(11)
    torch._dynamo.reset()
    half = {"device": "cuda", "dtype": torch.bfloat16}
    caches = [torch.randn(400, 16, 2, 64, **half) for _ in range(2)]
    inputs = [torch.randn(4, 8, 1, 64, **half), *caches, torch.randint(400, (4, 150), device="cuda")]
    inputs.append(torch.tensor([2400, 1, 17, 900], device="cuda"))
    prepared = onepass.plan(_paged, *inputs, inner=inner, libraries=libraries)
    assert prepared.report.fused == 1 and "by " in repr(prepared)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = prepared(*inputs)
    for seed, lengths in enumerate(([1, 2400, 300, 16], [2399, 15, 1, 2400])):
        torch.manual_seed(seed)
        for x in inputs[:3]:
            x.copy_(torch.randn_like(x))
        inputs[3].copy_(torch.randint(400, (4, 150), device="cuda"))
        inputs[4].copy_(torch.tensor(lengths, device="cuda"))
        graph.replay()
        exact = _paged(*(x.double() if x.is_floating_point() else x for x in inputs))
        own = (_paged(*inputs).double() - exact).abs().max()
        assert (result.double() - exact).abs().max() <= 2 * own + 1e-3
        assert (prepared(*inputs).double() - exact).abs().max() <= 2 * own + 1e-3


def test_what_a_plan_lacks_raises_while_a_graph_is_captured():
    torch._dynamo.reset()
    q, k, v = (torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    prepared = onepass.plan(_attention("causal"), q, k, v, inner="eager", libraries=False)
    process_state.forget("runners")
    with pytest.raises(NotPrepared, match="would be compiled, compared or timed"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            prepared(q + 1, k, v)
    torch.cuda.synchronize()


def test_latent_rows_are_not_raised_for_one_query():
    torch.manual_seed(7)
    sizes = ((2, 8, 1, 64), (2, 3000, 512), (8, 512, 64), (8, 512, 64))
    inputs = [torch.randn(s, device="cuda", dtype=torch.bfloat16) / (22 if s[0] == 8 else 1) for s in sizes]

    def latent(q, c, up_keys, up_values):
        k, v = (torch.einsum("bjc,hcd->bhjd", c, up) for up in (up_keys, up_values))
        return torch.softmax(q @ k.mT / 8, -1) @ v

    _agrees(latent, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("keys, ragged", [(4096, False), (700, False), (2048, True)])
@pytest.mark.parametrize("shape", [(2, 128, 1), (70, 64, 1), (2, 3, 200)])  # sequences, heads, queries
@pytest.mark.parametrize("width", [320, 512])
def test_latents_wider_than_one_warpgroup_holds(width, shape, keys, ragged, dtype):
    torch.manual_seed(0)
    draw = lambda *size: torch.randn(size, device="cuda", dtype=dtype)
    lengths = torch.randint(1, keys + 1, (shape[0],), device="cuda") if ragged else None
    given = [draw(*shape, width) / 8, draw(*shape, 64), draw(shape[0], keys, width), draw(shape[0], keys, 64)]

    def latent(q, rotated, c, keys, *lengths):
        scores = torch.einsum("bhil,bjl->bhij", q, c) + torch.einsum("bhir,bjr->bhij", rotated, keys)
        for length in lengths:
            absent = torch.arange(c.shape[1], device=c.device) >= length[:, None, None, None]
            scores = scores.masked_fill(absent, -math.inf)
        return torch.einsum("bhij,bjl->bhil", (scores * 0.07).softmax(-1), c)

    _agrees(latent, given + ([] if lengths is None else [lengths]), executor="gluon")


LEAST = torch.finfo(torch.bfloat16).min


def _padded(q, k, v, given):
    """A causal mask and padding, added as the least number: rows that keep nothing weigh all keys alike."""
    keep = _mask("causal", q.shape[-2], k.shape[-2], q.device) & given[:, None, None]
    return torch.softmax(q @ k.mT / 8 + torch.where(keep, 0.0, LEAST).to(q.dtype), -1) @ v


def _padding(q, k, v, given):
    return torch.softmax((q @ k.mT / 8).masked_fill(~given[:, None, None], -1e9), -1) @ v


def _capped(q, k, v, given):
    return torch.softmax((30 * torch.tanh(q @ k.mT / 240)).masked_fill(~given[:, None, None], LEAST), -1) @ v


def _drawn(q, k, v, given):
    return torch.softmax((q @ k.mT / 8).masked_fill(~given, -1e9), -1) @ v


def _padded_ends(length):
    at = torch.arange(length, device="cuda")
    return torch.stack([at < 70, at >= 700, at < 0, (at - 500).abs() > 200, at >= 0])


def _blocks(length):
    blocks = (torch.rand(5, 1, 20, 20, device="cuda") < 0.2).repeat_interleave(80, 2).repeat_interleave(80, 3)
    blocks[0, 0, 333:600] = False
    return blocks[..., :length, :length]


@pytest.mark.parametrize("length", [1100, 1280])
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("executor", ["triton", "gluon"])
@pytest.mark.parametrize("function", [_padded, _padding, _capped, _drawn])
def test_rows_without_keys_under_masks_far_below(function, executor, width, length):
    torch.manual_seed(7)
    q, k, v = (torch.randn(5, 16, length, width, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    _agrees(function, (q, k, v, _blocks(length) if function is _drawn else _padded_ends(length)), executor)


def _filled_up_to(q, k, v, place):
    """As with a static cache: a number says how far to read; where it leaves nothing, all keys weigh alike."""
    hidden = torch.arange(k.shape[2], device=k.device) > place[:, None, None, None]
    return torch.softmax((q @ k.mT / 8).masked_fill(hidden, -1e9), -1) @ v


def _window_behind(q, k, v, place):
    away = place[:, None, None, None] - torch.arange(k.shape[2], device=k.device)
    return torch.softmax((q @ k.mT / 8).masked_fill((away < 0) | (away >= 200), torch.finfo(q.dtype).min), -1) @ v


@pytest.mark.parametrize("rows, executor", [(1, "triton"), (300, "triton"), (300, "gluon")])
@pytest.mark.parametrize("function", [_filled_up_to, _window_behind])
def test_a_number_that_is_read_limits_the_loop(function, rows, executor):
    torch.manual_seed(9)
    q, k, v = (torch.randn(6, 8, n, 128, device="cuda", dtype=torch.bfloat16) for n in (rows, 4100, 4100))
    places = torch.tensor([-7, 0, 777, 4099, 5000, 2**62], device="cuda")
    _agrees(function, (q, k, v, places), executor)


@pytest.mark.parametrize("name", ["_halves", "_thirds", "_apart", "_scaled"])
def test_sums_of_products(name):
    """One accumulator for several products, and several."""
    from tests.issues.gluon import test_sums_of_products_share_an_accumulator as forms

    torch.manual_seed(8)
    inputs = [torch.randn(2, 4, 517, width, device="cuda", dtype=torch.bfloat16) for width in (32, 32, 32, 32, 64)]
    _agrees(getattr(forms, name), inputs, "gluon")


WILD = """
import torch, onepass
from bench.paged_decode import paged

PAGES = 13

q = torch.randn(2, 8, 1, 64, device="cuda", dtype=torch.bfloat16)
kc, vc = torch.randn(2, PAGES, 16, 2, 64, device="cuda", dtype=torch.bfloat16)
table = torch.randint(0, PAGES, (2, 6), device="cuda")
lengths = torch.tensor([90, 40], device="cuda")
table[1, 4:] = 10**6  # behind the length
run = torch.compile(paged, backend=onepass.onepass_backend, options={"executor": "triton", "strict": True})
with torch.no_grad():
    print("finite", bool(run(q, kc, vc, table, lengths).isfinite().all()), flush=True)
    table[0, 3] = PAGES
    run(q, kc, vc, table, lengths)
torch.cuda.synchronize()
"""


def test_a_kernel_stops_at_an_index_out_of_range():
    """In a process of its own, since a device-side assertion ends the process's use of the device, as in eager."""
    for debug, message in (("0", "CUDA error"), ("1", "an index that is read from a tensor is out of range")):
        environment = {**os.environ, "TRITON_DEBUG": debug}
        command = [sys.executable, "-c", WILD]
        found = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert "finite True" in found.stdout, found.stderr
        assert found.returncode and message in found.stderr + found.stdout


def by_pair(q, k, v, table, index):
    return (q @ k.mT / 8 + table[index]).softmax(-1) @ v


def by_key(q, k, v, table, index):
    return (q @ k.mT / 8 + table[index[0]]).softmax(-1) @ v


@pytest.mark.parametrize("function, row", [(by_pair, 300), (by_key, None)])
def test_a_loop_of_gluon_reads_no_place_as_nan(function, row):
    """For an index of one pair its row is NaN, for an index of a key each row; the other rows are right."""
    q, k, v = torch.randn(3, 2, 4, 512, 64, device="cuda", dtype=torch.bfloat16)
    table, index = torch.randn(50, device="cuda", dtype=torch.bfloat16), torch.randint(50, (512, 512), device="cuda")
    options = {"executor": "gluon", "strict": True, "libraries": False, "fuse_loads": "always"}
    run = torch.compile(function, backend=onepass.onepass_backend, options=options)
    exact = function(*(x.double() if x.is_floating_point() else x for x in (q, k, v, table, index)))
    with torch.no_grad():
        torch.testing.assert_close(run(q, k, v, table, index).double(), exact, atol=3e-2, rtol=3e-2)
        assert onepass.reports()[-1].regions[0].ran == "gluon"
        index[row or 0, 77] = 50
        found = run(q, k, v, table, index)
    lost = found.isnan().any(-1)
    assert bool(lost[..., 300].all()) and bool(lost.all()) is (row is None)
    assert bool(found[~lost].isfinite().all())


@pytest.mark.parametrize("page", [16, 32, 64])
def test_packed_queries_and_pages_of_some_keys(page):
    """Queries that lie at starts[b] are read by pointers, and a tile of keys is copied page by page."""
    torch.manual_seed(0)
    q = torch.randn(500, 4, 128, device="cuda", dtype=torch.bfloat16)
    kc, vc = torch.randn(2, 2048 // page, page, 2, 128, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(2048 // page, device="cuda").view(2, -1)
    lengths, starts = torch.tensor([1000, 333], device="cuda"), torch.tensor([0, 400, 480], device="cuda")
    table[torch.arange(1024 // page, device="cuda") * page >= lengths[:, None]] = 2**40

    def packed(q, kc, vc, table, lengths, starts):
        k, v = (c[table].flatten(1, 2).transpose(1, 2).repeat_interleave(2, 1) for c in (kc, vc))
        i, own = torch.arange(400, device="cuda"), starts[1:] - starts[:-1]
        rows = q[(starts[:-1, None] + i).clamp(max=q.shape[0] - 1)].transpose(1, 2)
        age = ((lengths - own)[:, None] + i)[:, :, None] - torch.arange(k.shape[2], device="cuda")
        kept = ((age >= 0) & (i < own[:, None])[:, :, None])[:, None]
        return (rows @ k.mT / 11).masked_fill(~kept, -torch.inf).softmax(-1).nan_to_num(0) @ v

    options = {"executor": "gluon", "strict": True, "libraries": False}
    run = torch.compile(packed, backend=onepass.onepass_backend, options=options)
    known = torch.where(table < 2048, table, 0)
    exact = packed(*(x.double() for x in (q, kc, vc)), known, lengths, starts)
    with torch.no_grad():
        torch.testing.assert_close(run(q, kc, vc, table, lengths, starts).double(), exact, atol=2e-2, rtol=2e-2)
    assert onepass.reports()[-1].regions[0].ran == "gluon"


def test_rows_that_begin_at_no_multiple_of_16_bytes():
    """Torch's kernels, called directly, read there what is not aligned, and the process lost its device."""
    torch.manual_seed(0)

    def program(q, k, v):
        attend = lambda q, k, v: torch.softmax(q @ k.mT * 0.3, -1) @ v
        found = attend(q, k, v) * attend(k, q, q).mean(-2, keepdim=True)
        return found, found.sum(-1)

    shifted = lambda rows: torch.nn.functional.pad(torch.randn(1, 1, rows, 128), (3, 2)).cuda().bfloat16()[..., 3:-2]
    q, k = shifted(695), shifted(1342)
    v = torch.randn(1342, 128, device="cuda").bfloat16().T.contiguous().T[None, None]
    compiled = torch.compile(program, backend=onepass.onepass_backend)
    exact = program(*(x.double() for x in (q, k, v)))
    with torch.no_grad():
        for _ in range(3):
            for result, truth in zip(compiled(q, k, v), exact, strict=True):
                assert (result.double() - truth).abs().max() < 3e-2 * truth.abs().max()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_what_is_copied_first_is_copied_on_its_own_device(inner):
    """The caller's current device is another one."""
    q, v = torch.randn(2, 2, 4, 1024, 64, device="cuda:1", dtype=torch.bfloat16)
    k = torch.randn(2, 4, 64, 1024, device="cuda:1", dtype=torch.bfloat16).mT
    k = torch.cat([k[..., None], k[..., None]], -1)[..., 0]  # of which each number is on its own
    program = lambda q, k, v: torch.softmax(q @ k.mT * 0.125, -1) @ v
    options = {"strict": True, "inner": inner, "libraries": False}
    compiled = torch.compile(program, backend=onepass.onepass_backend, options=options)
    with torch.no_grad(), torch.cuda.device(0):
        for _ in range(3):
            found, exact = compiled(q, k, v), program(q.double(), k.double(), v.double())
            torch.testing.assert_close(found.double(), exact, atol=2e-2, rtol=2e-2)
    assert any("is copied to be read in runs" in note for note in onepass.reports()[-1].regions[0].notes)
