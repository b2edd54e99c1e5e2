"""On a CPU, tiles that Inductor compiles: results and gradients beside float64, who ran, and what fails is survived.

Measured times are set aside: compiled tiles count as faster, and nothing else is tried.
"""

from math import inf

import pytest
import torch

import onepass
from onepass.lowering.executors import COMPILED_TILES
from onepass.lowering.tiled import compiled_tiles
from onepass.runtime import library_choice

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def faster(monkeypatch):
    monkeypatch.setattr(library_choice, "LEAST_SECONDS_TO_COMPILE_TILES", 0.0)
    monkeypatch.setattr(library_choice, "MAX_BYTES_OF_A_VALUE", {"cpu": 0})
    monkeypatch.setattr(library_choice, "MAX_SHARE_OF_TIME", inf)


def soft_capped(q, k, v):
    """Its last keys are hidden from the first rows."""
    score = torch.tanh(q @ k.mT / 20) * 20
    hidden = torch.arange(k.shape[-2]) > 40 + torch.arange(q.shape[-2])[:, None]
    return score.masked_fill(hidden, -inf).softmax(-1) @ v


def leaves(dtype, length=230):
    torch.manual_seed(0)
    return [torch.randn(1, 2, length, 16, dtype=dtype, requires_grad=True) for _ in range(3)]


def close(found, exact, dtype):
    most = 5e-2 if dtype == torch.bfloat16 else 1e-4
    for one, wanted in zip(found, exact, strict=True):
        torch.testing.assert_close(one.double(), wanted, rtol=most, atol=most * float(wanted.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_calls(dtype):
    given = [x.detach() for x in leaves(dtype)]
    run, exact = torch.compile(soft_capped, backend="onepass"), soft_capped(*(x.double() for x in given))
    for _ in range(3):
        close([run(*given)], [exact], dtype)
    (region,) = onepass.reports()[-1].regions
    assert region.ran.startswith(COMPILED_TILES.name) and "measured at" in region.ran


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_steps(dtype):
    def gradients(function, given):
        result = function(*given)
        return torch.autograd.grad(result, given, torch.cos(result.detach()))

    given, run = leaves(dtype), torch.compile(soft_capped, backend="onepass")
    exact = gradients(soft_capped, [x.detach().double().requires_grad_() for x in given])
    for _ in range(6):
        close(gradients(run, given), exact, dtype)
    (region,) = onepass.reports()[-1].regions
    assert region.ran.startswith(COMPILED_TILES.name) and region.backward_ran.startswith(COMPILED_TILES.name)


def runs_call_by_call() -> None:
    """Asserts that calls are right, and that no compiled tile makes them."""
    given = [x.detach() for x in leaves(torch.float32)]
    run, exact = torch.compile(soft_capped, backend="onepass"), soft_capped(*(x.double() for x in given))
    for _ in range(3):
        close([run(*given)], [exact], torch.float32)
    (region,) = onepass.reports()[-1].regions
    assert region.ran == "tiled"


def test_without_a_compiler_the_plan_runs(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("no compiler was found")

    monkeypatch.setattr(compiled_tiles, "compiled_graph", fails)
    runs_call_by_call()


def test_a_wrong_tile_is_never_used(monkeypatch):
    monkeypatch.setitem(compiled_tiles.FASTER, torch.ops.aten.tanh_.default, lambda x: x.copy_(x * 0.9))
    monkeypatch.setitem(compiled_tiles.FASTER, torch.ops.aten.tanh.default, lambda x: x * 0.9)
    runs_call_by_call()
