"""Which kernels are products of stored matrices alone, and that torch's product gives what the kernel would."""

from dataclasses import replace

import pytest
import torch

from onepass.lowering.executors import TILED
from onepass.lowering.plan.records import Plan
from onepass.lowering.stages.plain_products import multiply, plain_product
from onepass.lowering.stages.stored_factors import with_stored_factors
from tests.support.stored_products import given, gradients


def test_products_of_stored_matrices_are_plain():
    plan = gradients()
    assert [plain_product(kernel) is not None for kernel in plan.kernels] == [True, False, False]
    assert [plain_product(k) is not None for k in with_stored_factors(plan).kernels] == [True, False, True, True]


@pytest.mark.parametrize("sizes", [(320, 640, 384), (640, 320, 1024)])
def test_it_is_what_the_kernel_computes(sizes):
    kernel, tensors = gradients(*sizes).kernels[0], given(*sizes)
    product = plain_product(kernel)
    whole = Plan((kernel,), kernel.inputs, (kernel.output,))
    expected = TILED.prepare(whole, tensors, {}).run(list(tensors.values()))[0]
    found = torch.empty_like(expected)
    product.run(tensors, found)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    product.run(tensors, found, added=True)
    torch.testing.assert_close(found, 2 * expected, rtol=1e-5, atol=1e-5)


def test_another_kernel_is_none():
    kernel = gradients().kernels[0]
    (loop,) = kernel.loops
    guarded = replace(kernel, loops=(replace(loop, guard=kernel.stores[0].term),))
    assert plain_product(guarded) is None
    assert plain_product(replace(kernel, held=())) is None  # a product with few columns
    assert plain_product(gradients(dtype="float32").kernels[0]) is None


@pytest.mark.parametrize("shape", [(8, 5, 7), (2, 3, 8, 5, 7)])
def test_products_of_batches(shape):
    *batch, rows, inner, columns = shape
    one, other = torch.randn(*batch, rows, inner).bfloat16(), torch.randn(*batch, inner, columns).bfloat16()
    out = torch.ones(*batch, rows, columns)
    multiply(one, other, out, added=True)
    torch.testing.assert_close(out.double(), one.double() @ other.double() + 1, rtol=1e-5, atol=1e-5)
