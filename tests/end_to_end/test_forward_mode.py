"""Tangents through compiled functions: every variant's derived forward mode against torch's in float64."""

import os
import random
from contextlib import nullcontext

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

import onepass
from tests.support.dual_numbers import RUN_AS_WRITTEN, dual_numbers_were_compiled
from tests.variants import every

# Their regions run the original calls, and the report has these words of the reason.
ORIGINAL = {
    "hidden rows of one key set, merged": "could overflow",
    "hidden rows, results beside the output": "a largest element",
    "largest difference": "a largest element",
    "largest score beside the output": "a largest element",
    "logarithms of weights mixed": "could overflow",
}
OF_ALL_INPUTS = {"two key sets, log-sum-exp beside the output"}  # derived where all have tangents, else as above
# Kernels and loops where there is more than one kernel with one loop, or with a loop for each key set.
SEVERAL_KERNELS = {
    "Gaussian of a distance",
    "MLA, one query",
    "chosen heads",
    "heads composed by each query",
    "heads mixed before softmax",
    "heads mixed by each query",
    "invariant points",
    "linear, normalised",
    "linear, reassociated",
    "mean weights beside the output",
    "relative keys",
    "relative keys and queries",
    "relative keys and values",
    "talking heads",
    "talking heads, two",
    "weights beside the output",
}
VARIANTS = {variant.name: variant for variant in every() if not variant.refused}


def as_tuple(results):
    return results if isinstance(results, tuple) else (results,)


def by_torch(function, inputs, tangents):
    """Results and tangents as torch has them; where it has no forward mode, by two passes of reverse mode."""
    given = [k for k, t in enumerate(tangents) if t is not None]

    def of_given(*changed):
        every = list(inputs)
        for k, x in zip(given, changed, strict=True):
            every[k] = x
        return as_tuple(function(*every))

    primals, changes = tuple(inputs[k] for k in given), tuple(tangents[k] for k in given)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            return torch.func.jvp(of_given, primals, changes)
    except NotImplementedError:
        return torch.autograd.functional.jvp(of_given, primals, changes)


def by_dual_numbers(function, inputs, tangents):
    as_written = sdpa_kernel(SDPBackend.MATH) if RUN_AS_WRITTEN else nullcontext()  # as in by_torch
    with forward_ad.dual_level(), as_written:
        pairs = zip(inputs, tangents, strict=True)
        duals = [x if t is None else forward_ad.make_dual(x, t) for x, t in pairs]
        return zip(*(forward_ad.unpack_dual(r) for r in as_tuple(function(*duals))), strict=True)


def doubled(tensors):
    return [x.double() if x is not None and x.is_floating_point() else x for x in tensors]


def greatest(x, where):
    return x[where].abs().amax().item() if where.any() else 0.0


def assert_close(found, exact, theirs):
    """As close to float64 as torch's own, within a factor, where the exact value is a number; infinities are equal."""
    for ours, right, other in zip(found, exact, theirs, strict=True):
        if ours is None:
            assert right is None or not right.any()
            continue
        number, infinite = right.isfinite(), right.isinf()  # eager's own are NaN, where a row has no key
        assert torch.equal(ours.double()[infinite], right[infinite])
        error, eager = greatest(ours.double() - right, number), greatest(other.double() - right, number)
        assert error <= 4 * eager + 2e-5 * greatest(right, number)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_has_torchs_tangents(name):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = variant.inputs()
    compiled = torch.compile(variant.function, backend="onepass", options={"inner": "eager", "strict": True})
    draw = random.Random(name)
    floating = [k for k, x in enumerate(inputs) if x.is_floating_point()]
    for chosen in (floating, draw.sample(floating, draw.randint(1, len(floating)))):
        tangents = [torch.randn_like(x) if k in chosen else None for k, x in enumerate(inputs)]
        exact = by_torch(variant.function, doubled(inputs), doubled(tangents))
        theirs = by_torch(variant.function, inputs, tangents)
        results, changes = by_dual_numbers(compiled, inputs, tangents)
        assert_close(results, exact[0], theirs[0])
        assert_close(changes, exact[1], theirs[1])
        dual_numbers_were_compiled()
        said = [region.forward_mode for region in onepass.reports()[-1].regions]
        if name in ORIGINAL and chosen is floating:
            assert any(ORIGINAL[name] in line for line in said), said
        elif name not in ORIGINAL and (chosen is floating or name not in OF_ALL_INPUTS):
            assert all(line.startswith("forward mode: derived") for line in said), said
            one = [line.startswith("forward mode: derived, 1 kernel\n") for line in said]
            assert all(one) or name in SEVERAL_KERNELS, said


WITHIN = ["attention sink", "causal", "documents", "differential", "grouped queries", "log-sum-exp beside the output"]


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("name", WITHIN)
def test_jvp_inside_of_a_compiled_function(name, inner):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = variant.inputs()
    tangents = [torch.randn_like(x) if x.is_floating_point() else None for x in inputs]

    def both(*given):
        return by_torch(variant.function, given[: len(inputs)], given[len(inputs) :])

    compiled = torch.compile(both, backend="onepass", options={"inner": inner, "strict": True, "executor": "tiled"})
    found = compiled(*inputs, *tangents)
    exact, theirs = both(*doubled(inputs), *doubled(tangents)), both(*inputs, *tangents)
    for part in range(2):
        assert_close(found[part], exact[part], theirs[part])
    (report,) = onepass.reports()[-1].regions
    assert report.forward_mode.startswith("forward mode: derived, 1 kernel\n") and report.forward_mode_ran == "tiled"


interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")


@pytest.mark.sampled(1)
@interpreted
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["attention sink", "causal", "sigmoid", "softcap", "two key sets"])
def test_kernels_in_tritons_interpreter(name, dtype):
    variant = VARIANTS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    inputs = [x.to(dtype) if x.is_floating_point() else x for x in variant.inputs()]
    tangents = [torch.randn_like(x) if x.is_floating_point() else None for x in inputs]
    options = {"inner": "eager", "strict": True, "executor": "triton"}
    compiled = torch.compile(variant.function, backend="onepass", options=options)
    found = by_dual_numbers(compiled, inputs, tangents)
    exact = by_torch(variant.function, doubled(inputs), doubled(tangents))
    for part, right in zip(found, exact, strict=True):
        for ours, x in zip(part, right, strict=True):
            assert (ours.double() - x).norm() <= (1e-6 if dtype == torch.float32 else 1e-2) * x.norm()
    dual_numbers_were_compiled()
    (report,) = onepass.reports()[-1].regions
    assert report.forward_mode_ran == "triton"
