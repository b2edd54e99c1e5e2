"""What is copied before kernels read it, with which axis next to next; and axes that lie in memory as one run."""

import inspect

import pytest
import torch

import onepass
from onepass.bench.beyond_flex import invariant_points
from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.launch import relayout
from onepass.lowering.launch.relayout import copies_of, with_copies
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.issues.triton.test_tiles_as_short_as_their_dims import tensors as tensors_of_points

ROWS, HEADS, WIDTH = 48, 3, 16


def biased(q, k, v, bias):
    """Bias [b, i, j, h], as a linear layer over pairs makes it."""
    return torch.softmax(q @ k.mT + bias.permute(0, 3, 1, 2), -1) @ v


def additive(q, k, v, bias):
    return torch.softmax(torch.tanh(q[..., None, :] + k[..., None, :, :]).sum(-1), -1) @ v


def plain(q, k, v, bias):
    return torch.softmax(q @ k.mT, -1) @ v


def tensors(bias=None, rows=ROWS):
    torch.manual_seed(0)
    wide = [torch.randn(2, HEADS, rows, WIDTH) for _ in range(3)]
    return [*wide, torch.randn(2, rows, rows, HEADS) if bias is None else bias]


def planned(function, inputs):
    program = program_of(function, *inputs)
    plan = optimize_all(translate(program).results).plan
    names = [name for name in "q k v bias".split() if name in {t.name for t in plan.inputs}]
    return plan, names, [dict(zip("q k v bias".split(), inputs))[name] for name in names]


def named(function, inputs, least=1):
    plan, names, read = planned(function, inputs)
    kept, relayout.MIN_WASTED_BYTES = relayout.MIN_WASTED_BYTES, least
    try:
        return {names[copy.place]: copy.axis for copy in copies_of(plan, names, read)}
    finally:
        relayout.MIN_WASTED_BYTES = kept


def test_a_bias_that_has_heads_next_to_next_is_copied_by_columns():
    assert named(biased, tensors()) == {"bias": 2}


def test_what_is_folded_along_its_own_memory_is_copied_by_places():
    assert named(additive, tensors()) == {"q": 2, "k": 2}


def test_products_and_what_lies_well_are_read_as_they_are():
    well = torch.randn(2, HEADS, ROWS, ROWS).permute(0, 2, 3, 1)
    assert not named(plain, tensors()) and not named(biased, tensors(well))


@pytest.mark.parametrize("packed, copied", [(True, {"q": 3, "k": 3, "v": 3}), (False, {})])
def test_packed_operands_are_copied_by_their_width(packed, copied):
    """q, k, v = x.unbind(-1): in no axis of a tile do elements lie next to next. Columns of a transposed one do."""
    if packed:
        q, k, v = torch.randn(2, HEADS, ROWS, 32, 3).unbind(-1)
    else:
        q, k, v = (torch.randn(2, HEADS, 32, ROWS).mT for _ in range(3))
    assert named(plain, [q, k, v, torch.zeros(1)]) == copied


def windows(q, k, v, bias, mask):
    """A bias that all windows share, and a mask of two kinds of windows."""
    scores = (q @ k.mT + bias).unflatten(0, (-1, 2)) + mask[:, None]
    return torch.softmax(scores.flatten(0, 1), -1) @ v


@pytest.mark.parametrize("rows, count, copied", [(49, 16, True), (49, 2, False), (48, 16, False)])
def test_rows_that_are_not_aligned_are_copied_where_many_programs_read_them(rows, count, copied):
    inputs = [torch.randn(count, HEADS, rows, WIDTH).bfloat16() for _ in range(3)]
    inputs += [torch.randn(HEADS, rows, rows).bfloat16(), torch.randn(2, rows, rows).bfloat16()]
    program = program_of(windows, *inputs)
    plan = optimize_all(translate(program).results).plan
    names = [entry.name for entry in program.inputs]
    copies = copies_of(plan, names, inputs)
    assert not copies, "too little is read"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relayout, "MIN_WASTED_BYTES", 1)
        copies = copies_of(plan, names, inputs)
    assert [copy.place for copy in copies] == ([3, 4] if copied else [])
    for given, made in zip(inputs, with_copies(inputs, copies), strict=True):
        assert torch.equal(given, made)
        assert made is given or all(step % 16 == 0 for step in made.stride()[:-1])


def test_what_repeats_itself_is_not_made_larger():
    assert not named(biased, tensors(torch.randn(2, 1, ROWS, HEADS).expand(2, ROWS, ROWS, HEADS)))


def test_little_is_not_copied():
    assert not named(biased, tensors(), least=relayout.MIN_WASTED_BYTES)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("function", [biased, additive])
def test_copies_have_the_same_values(function):
    inputs = tensors()
    plan, names, read = planned(function, inputs)
    found = [relayout.Copy(place, 2, 1) for place in range(len(names))]
    again = with_copies(read, found)
    assert all(torch.equal(x, y) for x, y in zip(again, read)) and all(x.stride(-2) == 1 for x in again)
    (result,) = Launcher(plan).results(dict(zip(names, again)))
    torch.testing.assert_close(result, function(*inputs), atol=1e-5, rtol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "shape, order, axis",
    [
        ((2, 5, 300, 12), (0, 1, 2, 3), 2),
        ((2, 5, 70, 12), (0, 2, 3, 1), 0),
        ((3, 40), (0, 1), 0),
        ((2, 3, 130, 64), (0, 1, 2, 3), 2),
        ((1, 1, 9, 7), (1, 0, 2, 3), 2),
        ((2, 3, 17, 130), (0, 1, 2, 3), 2),  # wider than a tile
        ((2, 1, 3, 4, 5, 6), (0, 1, 2, 3, 4, 5), 2),  # too many axes
        ((2, 0, 17, 3), (0, 1, 2, 3), 2),
    ],
)
def test_axes_change_places_on_a_gpu_too(shape, order, axis, monkeypatch):
    torch.manual_seed(0)
    lies = torch.randn([shape[k] for k in order]).bfloat16().permute([order.index(k) for k in range(len(shape))])
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # the interpreter runs the kernel
    lies = lies.to("cuda" if torch.cuda.is_available() else "cpu")
    copied = relayout.copying([lies], [relayout.Copy(0, axis, 0)])
    copied([lies + 1])  # the second one is launched with what the first one made ready
    (found,) = copied([lies])
    assert torch.equal(found.cpu(), lies.cpu()) and (found.stride(axis) == 1 or not found.numel())


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "lies",
    [
        lambda x: x[..., 0],  # heads, rows and columns are one run of every third number
        lambda x: x[:, :, 1:, :, 1],
        lambda x: x[..., 3:37, 2],
        lambda x: x[:, :, ::2].flatten(-2)[..., 1:70],  # rows begin anywhere
    ],
)
def test_what_is_not_next_to_next_is_copied_in_rows(lies, monkeypatch):
    torch.manual_seed(0)
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)  # the interpreter runs the kernel
    whole = torch.randn(2, 3, 12, 40, 3, device="cuda" if torch.cuda.is_available() else "cpu").bfloat16()
    given = lies(whole)
    copy = relayout.Copy(0, 3, 0)
    (found,) = relayout.copying([given], [copy])([given])
    assert torch.equal(found, given) and found.stride() == copy.strides(given.shape)
    assert all(step % 16 == 0 for step in found.stride()[:-1])


@pytest.mark.slow
def test_the_backend_copies_and_says_so(monkeypatch, fresh):
    monkeypatch.setattr(relayout, "MIN_WASTED_BYTES", 1)
    options = {"inner": "eager", "executor": "triton", "libraries": False}
    run = torch.compile(biased, backend=onepass.onepass_backend, options=options)
    for seed in range(2):
        inputs = tensors(torch.randn(2, ROWS, ROWS, HEADS) + seed)
        torch.testing.assert_close(run(*inputs), biased(*inputs), atol=1e-5, rtol=1e-5)
    notes = [note for report in onepass.reports() for region in report.regions for note in region.notes]
    assert any("is copied to be read in runs" in note for note in notes)


# Runs


def points(q, k, v, bias):
    return torch.softmax(torch.einsum("bihpx,bjhpx->bhij", q, k), -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("lies", ["as one", "apart"])
def test_an_inner_dim_of_two_axes_is_read_by_one_index_where_they_are_one_run(lies):
    torch.manual_seed(0)
    make = lambda: torch.randn(2, ROWS, HEADS, 4, 3)
    q, k = (make() if lies == "as one" else make().mT.contiguous().mT for _ in range(2))
    inputs = [q, k, torch.randn(2, HEADS, ROWS, WIDTH), torch.zeros(1)]
    plan, names, read = planned(points, inputs)
    launcher = Launcher(plan)
    (result,) = launcher.results(dict(zip(names, read)))
    torch.testing.assert_close(result, points(*inputs), atol=1e-5, rtol=1e-5)
    (source,) = launcher._sources.values()
    assert ("floordiv_" in source.text) == (lies == "apart") and "tl.dot(q_tile" in source.text


def test_what_is_stored_between_kernels_is_left_to_them():
    inputs = tensors_of_points(rows=64, heads=12, dtype=torch.bfloat16)
    plan = optimize_all(translate(program_of(invariant_points, *inputs)).results).plan
    names = [*inspect.signature(invariant_points).parameters]
    stored = {s.output.name for kernel in plan.kernels[:-1] for s in kernel.stores} - {t.name for t in plan.outputs}
    assert stored and all(names[copy.place] == "pair_bias" for copy in copies_of(plan, names, inputs))


def test_tensors_without_memory_are_copied_as_others_are():
    """Kernels are compiled ahead for these."""
    like = torch.empty(2, 64, 3, 40).permute(0, 2, 1, 3)[..., ::2]
    copies = [relayout.Copy(0, 3, 1)]
    (made,), (ahead,) = with_copies([like], copies), with_copies([like.to("meta")], copies)
    assert ahead.is_meta
    assert (ahead.shape, ahead.stride(), ahead.dtype) == (made.shape, made.stride(), made.dtype)
