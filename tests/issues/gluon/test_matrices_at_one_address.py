"""Products with narrow values were wrong on Hopper, or met an illegal access: ptxas of CUDA 12.8 mixed up two matrices.

Weights that are no softmax, over few keys, need no loop: the values come to lie in shared memory where the queries
were, in another pattern if their rows are shorter than 128 bytes. Both have rows of one pattern now, and what is left
of the kind is refused before it is launched; a kernel that needs too much shared memory is tried with smaller tiles.
"""

import os

import pytest
import torch

from onepass.compiler.optimize import optimize
from onepass.graph.trace import program_of
from onepass.lowering.launch.triton_compat import mixes_addresses
from onepass.lowering.plan.kernel_config import TritonConfig
from onepass.lowering.plan.records import NotPlannable
from onepass.lowering.triton.kernel import emit
from onepass.lowering.triton.launch import LaunchError
from onepass.translate.translate import translate
from tests.support.pretended import Pretended, prepared, pretend
from tests.support.triton_runs import run_triton

DESCRIPTORS = """
.version {version}
    or.b64 	%rd1, %rd9, {first};
    wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {{%r1}}, %rd1, %rd2, 0, 1, 1, 0, 0;
    add.s64 	%rd3, {base}, {second};
    wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {{%r1}}, {{%r2}}, %rd3, 0, 1, 1, 1;
"""
WIDE, NARROW = 0x40000040 << 32, -(2**63) + (0x20 << 32)


def weighted(q, k, v):
    return torch.sigmoid(q @ k.mT) @ v


def planned(inputs):
    captured = translate(program_of(weighted, *inputs))
    return optimize(captured.term, captured.output, captured.order).plan


CASES = [(96, 24, ("128", "64")), (32, 16, ("32", "32")), (64, 128, ("64", "128"))]


@pytest.mark.parametrize("width, values, held", CASES)
def test_rows_of_matrices_have_one_pattern(width, values, held):
    plan = planned([torch.empty(3, 130, n, dtype=torch.float16) for n in (width, width, values)])
    text = emit(plan.kernels[0], plan).text
    assert all(f"{dim} = tl.arange(0, {extent})" in text for dim, extent in zip("de", held, strict=True))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter")
def test_and_it_computes_the_right_thing():
    inputs = [torch.randn(2, n, width, dtype=torch.float16) for n, width in ((20, 40), (33, 40), (33, 24))]
    result = run_triton(planned(inputs), dict(zip("qkv", inputs, strict=True)), {})
    torch.testing.assert_close(result.double(), weighted(*(t.double() for t in inputs)), atol=0.03, rtol=0.01)


@pytest.mark.parametrize(
    "version, base, second, mixed",
    [("8.7", "%rd9", NARROW, True), ("8.8", "%rd9", NARROW, False), ("8.7", "%rd8", NARROW, False),
     ("8.7", "%rd9", WIDE + 2, False)],
)  # fmt: skip
def test_two_patterns_of_one_base_are_seen(version, base, second, mixed):
    assert mixes_addresses(DESCRIPTORS.format(version=version, first=WIDE, base=base, second=second)) == mixed


@pytest.fixture
def gpu(monkeypatch):
    pretend(monkeypatch)


def test_default_tiles_shrink_until_they_fit(gpu):
    plan = planned([torch.empty(3, 400, 64, dtype=torch.float16) for _ in range(3)])
    launcher = Pretended(plan)
    prepared(launcher)
    first, *_, last = launcher.tried
    assert first.row_tile * first.loop_tile > 1024 == last.row_tile * last.loop_tile and last.stages == 1


def test_given_tiles_do_not_shrink(gpu):
    plan = planned([torch.empty(3, 400, 64, dtype=torch.float16) for _ in range(3)])
    with pytest.raises(LaunchError, match="shared memory"):
        prepared(Pretended(plan, TritonConfig(128, 64, 4, 2)))


def test_what_is_mixed_up_is_not_launched(gpu):
    plan = planned([torch.empty(3, 400, 64, dtype=torch.float16) for _ in range(3)])
    text = DESCRIPTORS.format(version="8.7", first=WIDE, base="%rd9", second=NARROW)
    with pytest.raises(NotPlannable, match="mixes up"):
        prepared(Pretended(plan, ptx=lambda config: text))


def test_where_they_are_mixed_up_other_tiles_are_tried(gpu):
    """Tiles that spilled were halved once, met two matrices of different patterns, and the region was given up."""
    plan = planned([torch.empty(3, 400, 64, dtype=torch.float16) for _ in range(3)])
    text = DESCRIPTORS.format(version="8.7", first=WIDE, base="%rd9", second=NARROW)
    launcher = Pretended(plan, ptx=lambda config: text if config.row_tile > config.loop_tile else "")
    prepared(launcher)
    assert (
        any(c.row_tile > c.loop_tile for c in launcher.tried)
        and launcher.tried[-1].row_tile == launcher.tried[-1].loop_tile
    )
