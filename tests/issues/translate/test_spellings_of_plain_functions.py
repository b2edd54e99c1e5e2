"""clip, special.softmax, inner, vecdot, bits of integers, division towards zero, a number's rest: refused under these
names where the same was captured under others. And what the command line and an empty ONEPASS_CACHE did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import onepass
from onepass.compiler import disk_cache
from onepass.lowering.source_folder import named_folder

LENGTH = 70


def far():
    return torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)


def truth():
    return (far() >= 0).int()


MASKS = {
    "clip": lambda _: far().clip(-3, 3) > 1,
    "towards zero": lambda _: torch.div(far(), 5, rounding_mode="trunc") > 2,
    "towards zero, negative": lambda _: torch.div(far(), -5, rounding_mode="trunc") > 2,
    "towards zero, data": lambda a: torch.div(far(), a * 2 - 7, rounding_mode="trunc") > 2,
    "last bits": lambda _: (far() & 7) > 2,
    "both": lambda _: (truth() & torch.arange(LENGTH) % 2) > 0,
    "either": lambda _: (truth().bool() | torch.arange(LENGTH) % 2) > 0,
    "inverted": lambda _: ~far() > 3,
    "inverted uint8": lambda a: ~a.to(torch.uint8) > 252,
    "rest of a number": lambda _: 5 % (torch.arange(LENGTH)[:, None] + 1) > torch.arange(LENGTH) % 3,
}
SCORES = {
    "clip": lambda q, k: torch.clip(q @ k.mT, -3, 3).softmax(-1),
    "softmax": lambda q, k: torch.special.softmax(q @ k.mT, -1),
    "log_softmax": lambda q, k: torch.special.log_softmax(q @ k.mT, -1).exp(),
    "vecdot": lambda q, k: torch.linalg.vecdot(q[..., :, None, :], k[..., None, :, :]).softmax(-1),
    "vecdot by dim": lambda q, k: torch.linalg.vecdot(q.mT[..., None], k.mT[..., None, :], dim=-3).softmax(-1),
    "inner": lambda q, k: torch.inner(q[0], k[0]).softmax(-1),
}


def inputs():
    generator = torch.Generator().manual_seed(0)
    operands = [torch.randn(2, LENGTH, 16, generator=generator) for _ in range(3)]
    return [*operands, torch.randint(0, 7, (LENGTH,), generator=generator)]


def of_mask(mask):
    return lambda q, k, v, a: (q @ k.mT).masked_fill(mask(a), -1e4).softmax(-1) @ v


def of_scores(scores):
    return lambda q, k, v, a: scores(q, k) @ v


CASES = {f"mask {n}": of_mask(f) for n, f in MASKS.items()} | {f"score {n}": of_scores(f) for n, f in SCORES.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_it_is_captured_and_right(name):
    torch._dynamo.reset()
    compiled = torch.compile(CASES[name], backend="onepass", options={"executor": "tiled", "strict": True})
    *operands, a = inputs()
    exact = CASES[name](*(x.double() for x in operands), a)
    torch.testing.assert_close(compiled(*operands, a).double(), exact, atol=1e-5, rtol=1e-5)
    (region,) = onepass.reports()[-1].regions
    assert not any("outside" in line for line in region.around)


def test_a_product_is_missed_where_another_fold_stands():
    def function(q, k, v, a):
        return ((q[:, :, None] * k[:, None]).tanh() + 1).prod(-1).softmax(-1) @ v

    assert "comes from prod" in onepass.explain(function, *inputs()).refusals[0].reason


def test_a_reader_that_has_enough_is_no_error():
    command = f"{sys.executable} -m onepass rules | head -1"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    found = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert found.stdout.count("\n") == 1 and not found.stderr


def test_an_empty_name_is_no_folder(monkeypatch):
    monkeypatch.delenv("ONEPASS_CACHE", raising=False)
    usual = disk_cache.folder()
    monkeypatch.setenv("ONEPASS_CACHE", "")
    assert disk_cache.folder() == usual is not None and named_folder() is None
    monkeypatch.setenv("ONEPASS_CACHE", "off")
    assert disk_cache.folder() is None and named_folder() is None
