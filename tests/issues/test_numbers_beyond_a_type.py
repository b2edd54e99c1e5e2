"""A mask of -1e9 that is cast to half is -∞ there; it stayed a number, and a row without a key an average of all."""

import math

import pytest
import torch

import onepass
from onepass.capture import program_of
from onepass.egraph.term import subterms
from onepass.translate import translate

pytestmark = pytest.mark.usefixtures("fresh")
FILLS = {torch.float16: (-1e9, -65536.0), torch.bfloat16: (torch.finfo(torch.float32).min,)}
CASES = [(kind, fill) for kind, fills in FILLS.items() for fill in fills]


def attend(fill):
    def run(q, k, v, keep):
        bias = torch.where(keep, 0.0, fill).to(q.dtype)
        return torch.softmax(q @ k.mT * 0.3 + bias, -1).nan_to_num(0.0) @ v

    return run


def inputs(kind):
    torch.manual_seed(0)
    keep = torch.rand(20, 20) < 0.7
    keep[3] = False
    return [*(torch.randn(2, 20, 8).to(kind) for _ in range(3)), keep]


@pytest.mark.parametrize(("kind", "fill"), [*CASES, (torch.float16, -3e4), (torch.float32, -1e9)], ids=str)
def test_it_is_what_the_cast_makes_of_it(kind, fill):
    (result,) = translate(program_of(attend(fill), *inputs(kind))).results
    literals = {t.attrs[0] for t in subterms(result.term) if t.op == "const"}
    assert ((kind, fill) in CASES) == (-math.inf in literals) != (fill in literals)


@pytest.mark.parametrize(("kind", "fill"), CASES, ids=str)
def test_a_row_without_a_key_is_right(kind, fill):
    options = {"strict": True, "inner": "eager", "libraries": False}
    fused = torch.compile(attend(fill), backend=onepass.onepass_backend, options=options)(*inputs(kind))
    assert onepass.reports()[0].regions
    wanted = attend(fill)(*inputs(kind))
    assert not wanted[:, 3].any()
    torch.testing.assert_close(fused, wanted, atol=4 * torch.finfo(kind).eps, rtol=4 * torch.finfo(kind).eps)
