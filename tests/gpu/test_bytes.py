"""Bytes become halves on a CUDA device: every byte by every helper, and attention to bytes against float64."""

import pytest
import torch

import onepass
from onepass.lowering.codegen.byte_conversions import HELPERS, MIN_CAPABILITY, MOVABLE
from onepass.lowering.codegen.dialect import TRITON
from onepass.lowering.codegen.ops import helpers
from onepass.lowering.triton.kernel import IMPORTS
from onepass.lowering.triton.launch import load
from tests.lowering.codegen.test_byte_conversions import right

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
BYTES = torch.arange(256, dtype=torch.uint8).view(16, 16)


def text_with(name):
    """A kernel that converts a tile of 16 by 16 bytes."""
    lines = ["n = tl.arange(0, 16)", "place = n[:, None] * 16 + n[None, :]"]
    lines.append(f"tl.store(y + place, {name}(tl.load(x + place)))")
    body = "\n".join(f"    {line}" for line in lines)
    return f"{IMPORTS}{helpers(f'{name}(', TRITON)}@triton.jit\ndef convert(x, y):\n{body}\n"


@pytest.mark.parametrize("name", HELPERS)
def test_every_byte_is_exact(name):
    kind, half = name.removeprefix(MOVABLE).split("_to_")
    major, minor = torch.cuda.get_device_capability()
    if 10 * major + minor < (needed := MIN_CAPABILITY.get(kind, 80)):
        pytest.skip(f"{kind} is converted by an instruction that GPUs of sm_{needed} and later have")
    given = BYTES if "bits" in kind else BYTES.view(getattr(torch, kind))
    found = torch.empty(16, 16, dtype=getattr(torch, half), device="cuda")
    load(text_with(name), "convert")[(1,)](given.cuda(), found)
    torch.testing.assert_close(found.cpu().double(), right(name).view(16, 16), rtol=0, atol=0, equal_nan=True)


def attention(q, k, v):
    k, v = (x.to(q.dtype) * 0.01 for x in (k, v))
    return (q @ k.mT).softmax(-1) @ v


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("width", [16, 64, 128])
def test_attention_to_bytes(kind, width):
    numbers = torch.randint(-100 * kind.is_signed, 100, (2, 4, 700, width), device="cuda").to(kind)
    q = torch.randn(4, 1, width, dtype=torch.bfloat16, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend=onepass.onepass_backend, options={"libraries": False}, dynamic=False)
    right = attention(q.double(), *(x.float() for x in numbers))
    torch.testing.assert_close(compiled(q, *numbers).double(), right, atol=3e-2, rtol=3e-2)
