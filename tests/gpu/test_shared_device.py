"""A CUDA device that several processes share: each calls one backward again and again, and compares it with the first.

Joined kernels with one item in each program gave wrong gradients and errors of addresses there; one process alone did
not. tests/issues/gluon/test_barriers_that_no_function_uses.py says why.
"""

import subprocess
import sys

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PROCESSES, CALLS = 6, 20


def attention(q, k, v):
    rows = torch.arange(q.shape[-2], device=q.device)
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return scores.masked_fill(rows[:, None] < rows, float("-inf")).softmax(-1) @ v


def call_again_and_again(width, deterministic):
    options = {"strict": True, "libraries": False, "deterministic": deterministic}
    compiled = torch.compile(attention, backend=onepass_backend, options=options, dynamic=False)
    inputs = [
        torch.randn(2, 16, 4096, width, dtype=torch.bfloat16, device="cuda", requires_grad=True) for _ in range(3)
    ]
    cotangent, first = torch.randn_like(inputs[0]), None
    for _ in range(CALLS):
        found = torch.autograd.grad(compiled(*inputs), inputs, cotangent)
        first = first or found
        for one, other in zip(found, first, strict=True):
            torch.testing.assert_close(one, other, rtol=0.05, atol=0.05)
    said = "\n".join(map(str, onepass.reports()))
    assert "not used again" not in said, said


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_processes_that_share_a_device(width, deterministic):
    command = [sys.executable, __file__, str(width), str(deterministic)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(PROCESSES)
    ]
    ended = [(process.communicate()[0], process.returncode) for process in started]
    assert not [said[-2000:] for said, code in ended if code]


if __name__ == "__main__":
    call_again_and_again(int(sys.argv[1]), sys.argv[2] == "True")
