"""Torch's kernels were called directly for rows that begin at no multiple of 16 bytes, as rivals of a plan: on a GPU
they read addresses that are not aligned, and the process lost its device. A CPU's kernel gave other numbers for rows
that are no runs; a plan's results had ruled it out. Now they do not suit such tensors.
"""

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import pad

from onepass.compiler import compiled_region, library_kernels
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.runtime import library_choice

CPU_KERNEL = next(kernel for kernel in library_kernels.KERNELS if kernel.device == "cpu")
ON_A_GPU = replace(CPU_KERNEL, device="cuda")  # its call runs here, its conditions are a GPU's


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


LAYOUTS = {  # and whose kernels they suit
    "aligned": (lambda x: x, (CPU_KERNEL, ON_A_GPU)),
    "rows of another tensor": (lambda x: pad(x, (0, 8))[..., :-8], (CPU_KERNEL, ON_A_GPU)),
    "one element later": (lambda x: pad(x, (1, 7))[..., 1:-7], (CPU_KERNEL,)),
    "rows of an odd length": (lambda x: pad(x, (0, 1))[..., :-1], (CPU_KERNEL,)),
    "rows that are no runs": (lambda x: x.mT.contiguous().mT, ()),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("place", range(3))
def test_a_kernel_gets_rows_that_suit_it(layout, place):
    lay, suits = LAYOUTS[layout]
    given = [torch.randn(2, 4, 24, 16).bfloat16() for _ in range(3)]
    given[place] = lay(given[place])
    found = compiled_region.make(program_of(attend, *given), Options())
    named = dict(zip((i.name for i in found.program.inputs), given, strict=True))
    inputs, exact = [*map(named.get, found.names)], attend(*(x.double() for x in given))
    for kernel in (CPU_KERNEL, ON_A_GPU):
        if kernel in suits:
            result = library_kernels.prepare(found.form, kernel, found.names, {}, inputs)(inputs)
            torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2)
        else:
            with pytest.raises(library_kernels.Unsuitable, match="bytes"):
                library_kernels.prepare(found.form, kernel, found.names, {}, inputs)


def test_a_rival_that_lost_the_device_is_no_rival_that_does_not_suit():
    def lost(given):
        raise torch.AcceleratorError("CUDA error: misaligned address")

    def unsuitable(given):
        raise library_kernels.Unsuitable("no")

    own, right = (lambda given: [given[0]]), lambda *_: None
    assert library_choice.fastest(own, {"sdpa": unsuitable}, [torch.ones(1)], right) == ("", 1.0)
    with pytest.raises(torch.AcceleratorError):
        library_choice.fastest(own, {"sdpa": lost}, [torch.ones(1)], right)
