"""Latents of 576 numbers, the first 512 of which are values, too, ran as plain Triton, which padded columns to 1024:
no operand of Hopper's form has more than 512. Their sum is now cut where the values end; one load then serves both.
"""

import math

import pytest
import torch

from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.egraph.terms.term import Dim
from onepass.graph.trace import program_of
from onepass.lowering.hopper.kernel_form import Binding, bind
from onepass.translate.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")


def contiguous(q, c):
    c = c[:, None]
    return (q @ c.mT / 24).softmax(-1) @ c[..., :512]


def in_pages(q, cache, table, lengths):
    c = cache[table].flatten(1, 2)[:, None]
    keep = torch.arange(c.shape[2]) < lengths[:, None, None, None]
    return (q @ c.mT / 24).masked_fill(~keep, -math.inf).softmax(-1) @ c[..., :512]


def narrow(q, c):
    """One operand holds all columns: nothing is cut."""
    return (q @ c[:, None].mT / 16).softmax(-1) @ c[:, None, :, :128]


def over_keys(q, c):
    """Sums over keys are not cut where another sum reads the first keys only."""
    first = c[:, None, :600]
    return (q @ c[:, None].mT / 8).softmax(-1) @ c[:, None], (q @ first.mT / 8).softmax(-1) @ first


def drawn(function, rows=1, keys=200):
    torch.manual_seed(0)
    draw = lambda *sizes: torch.randn(*sizes).bfloat16()
    if function is in_pages:
        table = torch.randint(-20, 20, (2, 4))
        table[1, 1:] = 2**40
        return draw(2, 16, rows, 576), draw(20, 64, 576), table, torch.tensor([200, 50])
    width = {narrow: 256, over_keys: 64}.get(function, 576)
    return draw(2, 16, rows, width), draw(2, 1000 if function is over_keys else keys, width)


def sizes_of_sums(function):
    """The kernels' bindings, and the sizes of what their scores sum."""
    plan = optimize_all(translate(program_of(function, *drawn(function))).results).plan
    bindings = [bind(kernel) for kernel in plan.kernels]
    sums: list[Dim] = [p.rows.inner for b in bindings if isinstance(b, Binding) for p in b.products]
    return bindings, [dim.size for dim in sums]


@pytest.mark.parametrize("function", [contiguous, in_pages])
def test_the_sum_is_cut_where_values_end(function):
    (binding,), sizes = sizes_of_sums(function)
    assert isinstance(binding, Binding) and sizes == [512, 64]
    assert binding.matrices[0] in binding.columns  # one load serves both


def test_other_sums_stay_whole():
    assert sizes_of_sums(narrow)[1] == [256]
    bindings, _ = sizes_of_sums(over_keys)
    assert sorted(b.loop.dim.size for b in bindings if isinstance(b, Binding)) in ([600, 1000], [1000])


@pytest.mark.parametrize("rows", [1, 5, 70])
@pytest.mark.parametrize("function", [contiguous, in_pages])
def test_results(function, rows):
    given = drawn(function, rows)
    compiled = torch.compile(function, backend=onepass_backend, options={"inner": "eager", "libraries": False})
    exact = [x.double() if x.is_floating_point() else x for x in given]
    exact = [*exact[:2], given[2] % 20, given[3]] if function is in_pages else exact
    torch.testing.assert_close(compiled(*given).double(), function(*exact), rtol=2e-2, atol=2e-2)
