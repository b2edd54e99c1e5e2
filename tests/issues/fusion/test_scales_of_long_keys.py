"""Scales in front of long keys stayed outside: each tile of rows would multiply again. But laws move them."""

import pytest
import torch

import onepass

BYTES = torch.float8_e4m3fn


def attention(q, k, v, of_k, of_v):
    return ((q.float() @ (k.float() * of_k).mT).softmax(-1) @ (v.float() * of_v)).to(torch.bfloat16)


def report(scale, length=32768, width=64):
    torch._dynamo.reset()
    make = lambda *shape, dtype=torch.float32: torch.empty(shape, dtype=dtype, device="meta")
    tensors = [make(1, 2, length, width, dtype=BYTES) for _ in range(3)]
    return onepass.explain(attention, *tensors, make(*scale), make(*scale))


def around(scale):
    (region,) = report(scale).regions
    return [note for note in region.around if "mul" in note]


@pytest.mark.parametrize("scale", [(), (1, 2, 1, 1), (1, 2, 32768, 1)], ids=["tensor", "head", "token"])
def test_a_factor_of_rows_is_computed_in_the_kernel(scale):
    notes = around(scale)
    assert len(notes) == 2 and all("computed in the kernel" in note for note in notes)


def test_a_factor_of_elements_stays_outside():
    notes = around((1, 2, 32768, 64))
    assert len(notes) == 2 and all("outside" in note for note in notes)


def test_the_kernel_multiplies_bytes():
    (region,) = report((1, 2, 1, 1)).regions
    assert "float32(k[b, h, j, d])" in region.extracted and "warp-specialised" in str(region)
