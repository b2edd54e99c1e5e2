"""`onepass.compile` is torch.compile with the backend, and names what a caller did wrong at once."""

import pytest
import torch

import onepass
from onepass.errors import InputError, OptionError

pytestmark = pytest.mark.usefixtures("fresh")


def attend(q, k, v):
    return torch.softmax(q @ k.mT / 4, -1) @ v


def test_it_is_torch_compile_with_the_backend():
    inputs = [torch.randn(2, 24, 16) for _ in range(3)]
    with torch.no_grad():
        found = onepass.compile(attend, inner="eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(found, attend(*inputs))
    assert len(onepass.reports()[-1].regions) == 1


def test_a_module_stays_a_module():
    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v)

    assert isinstance(onepass.compile(Attention()), torch.nn.Module)


def test_mistakes_are_errors_at_once():
    with pytest.raises(OptionError, match="no option 'stric'"):
        onepass.compile(attend, stric=True)
    with pytest.raises(OptionError, match="each option is a keyword of its own, as inner='eager'"):
        onepass.compile(attend, options={"inner": "eager"})
    with pytest.raises(InputError, match="of type int"):
        onepass.compile(3)


def test_a_name_that_is_nearly_right_is_named():
    for name, said in (("explian", "did you mean 'explain'"), ("zebra", "no attribute 'zebra'$")):
        with pytest.raises(AttributeError, match=said):
            getattr(onepass, name)
    with pytest.raises(AttributeError, match="did you mean 'assert_fused'"):
        onepass.testing.assert_fusd  # noqa: B018
