"""A causal mask by -1e9 or a dtype's least number, as in every model of a public library, kept all tiles of the loop.

Such scores count only in a row that keeps nothing. Where each row is proved to keep something, tiles are skipped; where
data decides, as with padding, a block map leaves out what no row needs.
"""

import math
import os
from functools import partial

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.traversal import tensors
from onepass.graph.trace import program_of
from onepass.lowering.masks.finite_masks import MAX_FILL
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.thresholds import HIDDEN_SCORE
from onepass.lowering.tiled.executor import tiled_results
from onepass.lowering.triton import launch
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate

LEAST = torch.finfo(torch.float32).min


def _places(score):
    return torch.arange(score.shape[-2])[:, None], torch.arange(score.shape[-1])


def _filled(keep, fill):
    def attention(q, k, v):
        score = q @ k.mT / 4
        return torch.softmax(score.masked_fill(~keep(*_places(score)), fill), -1) @ v

    return attention


def _added(keep, fill):
    def attention(q, k, v):
        score = q @ k.mT / 4 + 0.5
        score = score + torch.where(keep(*_places(score)), 0.0, fill)
        return torch.softmax(score, -1) @ v, torch.logsumexp(score, -1)

    return attention


def _beside(q, k, v):
    """Where a tensor holds least numbers too, all that a row keeps may be as low as what it does not."""
    score = (q @ k.mT / 4).masked_fill(~CAUSAL(*_places(q @ k.mT)), LEAST) + v[..., 0][:, None]
    return torch.softmax(score, -1) @ v


CAUSAL, WINDOW = (lambda i, j: j <= i), (lambda i, j: (j <= i) & (i - j < 7))


def _two_numbers(q, k, v):
    """Where both hide a row's keys, the lesser of the numbers says less."""
    score, (_, j) = q @ k.mT / 4, _places(q @ k.mT)
    return torch.softmax(score.masked_fill(j > 1, -1e9).masked_fill(j < 3, -1e8), -1) @ v


def _masked_twice(q, k, v):
    score, (i, j) = q @ k.mT / 4, _places(q @ k.mT)
    score = score + torch.where(j <= i, 0.0, LEAST)
    return torch.softmax(torch.where(i - j < 7, score, LEAST), -1) @ v


def _sloped(q, k, v):
    """ALiBi from the end of a long sequence: 40000 is a place, no mask."""
    score, (i, j) = q @ k.mT / 4, _places(q @ k.mT)
    return torch.softmax((score + 0.01 * (j - 40000)).masked_fill(j > i, LEAST), -1) @ v


def _filled_before_the_scale(fill, scale):
    def attention(q, k, v):
        score = q @ k.mT
        return torch.softmax(score.masked_fill(~CAUSAL(*_places(score)), fill) * scale, -1) @ v

    return attention


LATE = lambda i, j: j <= i - 4  # the first rows keep nothing
NEVER = lambda i, j: (j < i) & (i < j)
SKIPPED = {
    "filled": (_filled(CAUSAL, -1e9), "j < i + 1"),
    "least": (_filled(CAUSAL, LEAST), "j < i + 1"),
    "added": (_added(WINDOW, LEAST), "i - 6 ≤ j < i + 1"),
    "sloped": (_sloped, "j < i + 1"),
    "twice": (_masked_twice, "i - 6 ≤ j < i + 1"),
    "before the scale": (_filled_before_the_scale(-1e9, 1 / math.sqrt(10)), "j < i + 1"),
    "least before the scale": (_filled_before_the_scale(LEAST, 0.25), "j < i + 1"),
}
KEPT = {
    "beside a tensor that may mask": _beside,
    "rows that keep nothing": _filled(LATE, -1e9),
    "nothing kept": _filled(NEVER, LEAST),
    "two numbers": _two_numbers,
    "near": _filled(CAUSAL, MAX_FILL / 2),
    "near once it is scaled": _filled_before_the_scale(2 * MAX_FILL, 0.25),
    "infinite once it is scaled": _filled_before_the_scale(LEAST, 4.0),
    "far above once it is scaled": _filled_before_the_scale(-1e9, -1.0),
    "beside infinity": lambda q, k, v: (
        torch.softmax(
            torch.where(CAUSAL(*_places(q @ k.mT)), (q @ k.mT).masked_fill(_places(q @ k.mT)[1] < 5, -math.inf), -1e9),
            -1,
        )
        @ v
    ),
}


def _inputs(dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(2, n, 16, dtype=dtype) for n in (70, 70, 70)]


def _plan(function):
    return optimize_all(translate(program_of(function, *_inputs())).results).plan


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", SKIPPED)
def test_tiles_are_skipped_where_each_row_keeps_something(name):
    function, said = SKIPPED[name]
    for kernel in _plan(function).kernels:
        for loop in kernel.loops:
            assert loop.limits and loop.limits_only, said
            (gauge,) = {a.gauge for a in loop.accumulators}
            assert "where" not in str(gauge)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", KEPT)
def test_nothing_is_skipped_where_a_row_may_keep_nothing(name):
    assert all(not loop.limits for kernel in _plan(KEPT[name]).kernels for loop in kernel.loops)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", [*SKIPPED, *KEPT])
def test_tile_by_tile_it_is_what_eager_computes(name, tiles):
    _agrees(name, lambda plan, tensors: tiled_results(plan, dict(zip("qkv", tensors, strict=True)), {}))


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("name", [*SKIPPED, *KEPT])
def test_and_so_is_what_the_kernel_computes(name):
    _agrees(name, lambda plan, tensors: Launcher(plan).bind("qkv", tensors, {})(tensors))


def function_of(name):
    return SKIPPED[name][0] if name in SKIPPED else KEPT[name]


def _agrees(name, run):
    inputs = _inputs()
    found, exact = run(_plan(function_of(name)), inputs), function_of(name)(*(x.double() for x in inputs))
    for one, other in zip(found, exact if isinstance(exact, tuple) else (exact,), strict=True):
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=2e-5)


# Where data says what a row keeps


def _padded(q, k, v, given):
    """As in decoders of public libraries: a causal mask and padding, added as the least number."""
    score = q @ k.mT / 4
    keep = CAUSAL(*_places(score)) & given[:, None, None]
    return torch.softmax(score + torch.where(keep, 0.0, LEAST), -1) @ v


def _padding(q, k, v, given):
    return torch.softmax((q @ k.mT / 4).masked_fill(~given[:, None, None], -1e9), -1) @ v


def _drawn(q, k, v, given):
    return torch.softmax((q @ k.mT / 4).masked_fill(~given, -1e9), -1) @ v


def _looked_up(q, k, v, given, table, places):
    """As in T5: a bias that is looked up hides nothing."""
    score = q @ k.mT / 4 + table[:, places]
    return torch.softmax(score + torch.where(given[:, None, None], 0.0, LEAST), -1) @ v


def _padded_ends(length=150):
    """Padded behind, in front, everywhere, and in between."""
    at = torch.arange(length)
    return torch.stack([at < 70, at >= 40, at < 0, (at - 60).abs() > 20, at >= 0])


def _rows_of_blocks(length=150):
    torch.manual_seed(1)
    blocks = (torch.rand(5, 1, 10, 10) < 0.3).repeat_interleave(15, 2).repeat_interleave(15, 3)
    blocks[0, 0, 33:60] = False
    return blocks[..., :length, :length]


BY_DATA = {"padded": (_padded, _padded_ends), "padding": (_padding, _padded_ends), "drawn": (_drawn, _rows_of_blocks)}
BY_DATA |= {"looked up": (_looked_up, _padded_ends)}


def _given(name, dtype=torch.float32):
    torch.manual_seed(0)
    function, mask = BY_DATA[name]
    inputs = [*(torch.randn(5, 2, 150, 16).to(dtype) for _ in range(3)), mask()]
    inputs += [torch.randn(2, 40), torch.randint(0, 40, (150, 150))] if function is _looked_up else []
    return function, inputs, optimize_all(translate(program_of(function, *inputs)).results).plan


@pytest.mark.parametrize("name", BY_DATA)
def test_data_makes_a_map_that_knows_rows_without_keys(name):
    (kernel,) = _given(name)[2].kernels
    (loop,) = kernel.loops
    assert loop.finite_mask and loop.map.finite_mask and not loop.limits
    assert all("given" not in {t.name for t in tensors(a.gauge)} for a in loop.accumulators)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", BY_DATA)
def test_rows_without_keys_are_as_in_eager(name, tiles):
    function, inputs, plan = _given(name)
    (found,) = tiled_results(plan, dict(zip([x.name for x in plan.inputs], _by_name(plan, inputs))), {})
    _near(found, function(*(x.double() if x.is_floating_point() else x for x in inputs)))


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("name", BY_DATA)
def test_rows_without_keys_in_a_kernel(name, listed, monkeypatch):
    monkeypatch.setattr(launch, "pays", lambda *arguments: listed)
    function, inputs, plan = _given(name)
    names = [x.name for x in plan.inputs]
    (found,) = Launcher(plan, TritonConfig(16, 16, 4, 1)).bind(names, _by_name(plan, inputs), {})(
        _by_name(plan, inputs)
    )
    _near(found, function(*(x.double() if x.is_floating_point() else x for x in inputs)))


def _by_name(plan, inputs):
    known = dict(zip(("q", "k", "v", "given", "table", "places"), inputs))
    return [known[x.name] for x in plan.inputs]


def _near(found, exact):
    """But for rows without keys under -∞, which eager makes NaN."""
    torch.testing.assert_close(found.double()[~exact.isnan()], exact[~exact.isnan()], atol=2e-5, rtol=2e-5)


# Where a number that is read says how far to look: decoding with a cache that is longer than what it holds


def _limited(keep, q, k, v, place):
    score = q @ k.mT / 4
    return torch.softmax(score + torch.where(keep(torch.arange(150), place[:, None, None, None]), 0.0, LEAST), -1) @ v


def _limited_by_infinity(q, k, v, place):
    """Rows without keys are NaN in eager, and may be anything."""
    score = (q @ k.mT / 4).masked_fill(torch.arange(150) > place[:, None, None, None], -math.inf)
    return torch.softmax(score, -1) @ v


def _with_its_logarithm(q, k, v, place):
    score = (q @ k.mT / 4).masked_fill(torch.arange(150) > place[:, None, None, None], -1e9)
    return torch.softmax(score, -1) @ v, score.logsumexp(-1)


LIMITED = {
    "a place": (partial(_limited, lambda j, place: j <= place), 1),
    "a window": (partial(_limited, lambda j, place: (j <= place) & (place - j < 20)), 2),
    "counted from the end": (partial(_limited, lambda j, place: 149 - j <= place), 1),
    "two places": (partial(_limited, lambda j, place: (j == place) | (j == place + 20)), 4),
    "infinite": (_limited_by_infinity, 1),
    "behind a place": (partial(_limited, lambda j, place: ~(j <= place)), 1),
    "nothing": (partial(_limited, lambda j, place: (j <= place) & (j > place)), 0),
    "its logarithm": (_with_its_logarithm, 0),
}
PLACES = [-30, -1, 0, 70, 140, 149, 300, 2**40, 2**63 - 1, -(2**62)]


def _limited_inputs(name):
    torch.manual_seed(0)
    tensors = [torch.randn(len(PLACES), 2, n, 16) for n in (3, 150, 150)] + [torch.tensor(PLACES)]
    found = optimize_all(translate(program_of(LIMITED[name][0], *tensors)).results)
    return tensors, found.plan, dict(zip(("q", "k", "v", "place"), tensors, strict=True))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LIMITED)
def test_a_number_that_is_read_limits_the_loop(name):
    (kernel,) = _limited_inputs(name)[1].kernels
    (loop,) = kernel.loops
    assert not loop.finite_mask and all(r.exact for r in loop.ranges)
    assert len(loop.limits) == LIMITED[name][1]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LIMITED)
def test_limits_without_keys_are_as_in_eager(name, tiles):
    tensors, plan, named = _limited_inputs(name)
    for found, exact in zip(tiled_results(plan, named, {}), _exactly(name, tensors), strict=True):
        _near(found, exact)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", LIMITED)
def test_limits_without_keys_in_a_kernel(name, parts):
    tensors, plan, named = _limited_inputs(name)
    given = [named[x.name] for x in plan.inputs]
    results = Launcher(plan, TritonConfig(16, 16, 4, 1, parts)).bind([x.name for x in plan.inputs], given, {})(given)
    for found, exact in zip(results, _exactly(name, tensors), strict=True):
        _near(found, exact)


def _exactly(name, tensors):
    exact = LIMITED[name][0](*(x.double() if x.is_floating_point() else x for x in tensors))
    return exact if isinstance(exact, tuple) else (exact,)


def test_bits_of_a_mask_choose_any_number():
    """On a GPU, masks that are given came out as -inf: what stood for it was 0 or -inf and nothing else."""
    gluon_parts = pytest.importorskip("onepass.lowering.gluon.device_functions")
    for number, text in ((0.0, "0.0"), (-math.inf, "0fFF800000"), (HIDDEN_SCORE, "-1.2676506002282294e+30")):
        assert gluon_parts._for_absent("ABSENT", number) == text
