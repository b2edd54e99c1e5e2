"""A literal's power went by the device's logarithm: off by 2^-22, and by as much times the exponent in the power."""

import math
import re

import numpy as np
import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate


def decaying(base):
    def attend(q, k, v):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        return (q @ k.mT * base ** (i - j).abs()) @ v

    return attend


def planned(base, dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(1, 1, 40, 16, dtype=dtype) for _ in range(3)]
    return optimize_all(translate(program_of(decaying(base), *tensors)).results).plan, tensors


@pytest.mark.parametrize("base", [0.9, 0.999, 1.0, 1.01, 3.0])
def test_the_logarithm_is_emitted_in_two_parts(base):
    plan, _ = planned(base, torch.float32)
    text = emit(plan.kernels[0], plan).text
    assert "tl.log2" not in text
    leading, rest = map(float, re.search(r"exp2_in_parts\(.*, (-?[\d.e-]+), (-?[\d.e-]+)\)", text).groups())
    for exponent in (1, 4095, 4096):
        assert np.float32(leading) * np.float32(exponent) == leading * exponent
    assert leading + rest == pytest.approx(math.log2(np.float32(base)), abs=1e-12)


@pytest.mark.parametrize("dtype, most", [(torch.float32, 1e-6), (torch.float64, 1e-7)])
def test_it_computes_the_same(dtype, most):
    plan, tensors = planned(0.9, dtype)
    (result,) = Launcher(plan).results(dict(zip("qkv", tensors, strict=True)))
    exact = decaying(torch.tensor(0.9).double().item())(*(x.double() for x in tensors))
    assert (result - exact).abs().max() < most * exact.abs().max()
