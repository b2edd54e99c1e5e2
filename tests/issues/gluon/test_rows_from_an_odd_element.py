"""Rows that begin within rows of a tensor, x[..., 1:65], stopped a Hopper GPU (an illegal instruction, after which the
process can use it no more): a tensor map copies from multiples of 16 bytes of a row. Such tensors run as plain Triton
now, and the check of texts knows the rule.
"""

import pytest
import torch

from onepass.compiler.verified_kernels import checks
from onepass.lowering.gluon.launch import GluonLauncher
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.triton.launch_texts import launch_texts
from onepass.proofs.texts.check import differences
from tests.proofs.texts.test_check import plan_of
from tests.support.on_hopper import hold, hopper_texts, pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")


def attention(first, heads=False):
    """Of parts of rows. With heads, these lie beside each other in a row: head h begins at element 20 h, or 24 h."""

    def run(q, k, v):
        if heads:
            q, k, v = (x.unflatten(-1, (2, -1)).transpose(1, 2)[..., :16] for x in (q, k, v))
        q, k, v = (x[..., first : first + 16] for x in (q, k, v))
        return ((q @ k.mT) / 4).softmax(-1) @ v

    return run


def given(*sizes):
    torch.manual_seed(0)
    return [torch.randn(sizes).bfloat16() for _ in range(3)]


@pytest.mark.parametrize("first", [1, 2, 4, 9])
def test_no_tensor_map_describes_rows_that_begin_within_16_bytes(monkeypatch, first):
    pretend_hopper(monkeypatch)
    plan, tensors = plan_of(attention(first), given(1, 2, 128, 32))
    launcher = GluonLauncher(plan)
    launch_texts(launcher, tensors, {})
    assert any("multiples of 16 bytes" in reason for reason in launcher.refusals.values()), launcher.refusals


@pytest.mark.parametrize("first", [0, 8, 16])
def test_rows_at_multiples_of_16_bytes_are_copied_and_right(monkeypatch, first):
    pretend_hopper(monkeypatch)
    hold(hopper_texts(*plan_of(attention(first), given(1, 2, 128, 32))))


@pytest.mark.parametrize("width, suited", [(20, False), (24, True)])
def test_heads_beside_each_other(monkeypatch, width, suited):
    pretend_hopper(monkeypatch)
    plan, tensors = plan_of(attention(0, heads=True), given(1, 128, 2 * width))
    launcher = GluonLauncher(plan)
    launch_texts(launcher, tensors, {})
    assert bool(launcher.refusals) != suited, launcher.refusals


def test_the_check_of_texts_finds_such_a_copy(monkeypatch):
    pretend_hopper(monkeypatch)
    monkeypatch.setattr("onepass.lowering.gluon.launch._unsuited", lambda operand, tensor: None)
    texts = hopper_texts(*plan_of(attention(1), given(1, 2, 128, 32)))
    found = [str(said) for _, checked in checks(texts, 2**60, 1.0) for said in differences(checked)]
    assert any("multiple of 16 bytes" in said for said in found), found
