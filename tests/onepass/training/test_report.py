"""What the report says of a derived backward."""

import pytest
import torch

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training
from onepass.training.report import backward_line

pytestmark = pytest.mark.usefixtures("fresh")


def said(function):
    tensors = [torch.randn(2, n, 16) for n in (600, 700, 700)]
    return backward_line(training(compiled_region.make(program_of(function, *tensors), Options()).text, [True] * 3))


def test_kernels_and_saved_values_are_named():
    first, *kernels = said(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v).splitlines()
    assert first == "derived, 3 kernels; saves log float32[h, i]; reads the result output; deterministic unless joined"
    names = {line.partition(";")[0].partition(": ")[2] for line in kernels}
    assert names == {"grad_q", "part0 (a part)", "grad_v, grad_k"}
    assert any(line.endswith("rows j, loops over i_0") for line in kernels)


def test_nothing_saved_is_said():
    first = said(lambda q, k, v: torch.sigmoid(q @ k.mT) @ v).splitlines()[0]
    assert "saves nothing" in first and "reads" not in first
