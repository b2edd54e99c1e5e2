"""What results read along rows and values: it comes in by the shared memory that they leave by, where there is such."""

import math

import pytest
import torch

from onepass.compiler.optimize import optimize_all
from onepass.graph.trace import program_of
from onepass.lowering.gluon.kernel import emit
from onepass.lowering.gluon.launch import SuitedTensors, fitting, prepare
from onepass.lowering.hopper.kernel_form import bind, entered, sent
from onepass.translate.translate import translate


def attend(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def gate(q, k, v, x):
    return torch.sigmoid(x) * attend(q, k, v)


def gate_and_add(q, k, v, x, y):
    return torch.sigmoid(x) * attend(q, k, v) + y


def wider_gate(q, k, v, x):
    return (torch.sigmoid(x) * attend(q, k, v)).to(q.dtype)


def mapped(q, k, v, w):
    return attend(q, k, v) @ w


def planned(function, *more, width=64):
    tensors = [torch.randn(2, 3, 256, width, dtype=torch.bfloat16) for _ in range(3)]
    return optimize_all(translate(program_of(function, *tensors, *more)).results).plan


def like(width=64, dtype=torch.bfloat16):
    return torch.randn(2, 3, 256, width, dtype=dtype)


def text_of(plan, **changes):
    binding = bind(plan.kernels[0])
    schedule = fitting(binding, {}).__class__(**(vars(fitting(binding, {})) | changes))
    exits = sent(binding) if schedule.send else ()
    tensors = SuitedTensors(binding.overlays, exits)
    return emit(binding, plan, schedule, prepare(binding, schedule, {}, tensors).shape).text


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", (64, 96, 128))
def test_a_gate_is_copied_and_no_thread_has_its_addresses(width):
    text = text_of(planned(gate, like(width), width=width))
    assert text.count("mbarrier.wait(x_full.index(W), turn & 1)") == 1 and "x_stride" not in text
    asked, read = text.index("mbarrier.expect(x_full"), text.index("mbarrier.wait(x_full")
    assert text.rindex("tma.store_wait(0)", 0, asked) < asked < text.index("for t in range(1", asked) < read


def test_one_tensor_for_one_way_out():
    binding = bind(planned(gate_and_add, like(), like()).kernels[0])
    assert len(binding.entries) == 2 and len(entered(binding, sent(binding), 256)) == 1


def test_other_types_and_results_in_parts_are_read_by_addresses():
    assert "x_stride" in text_of(planned(wider_gate, like(dtype=torch.float32)))
    assert "x_stride" in text_of(planned(gate, like(128), width=128), send=64)
    assert "x_stride" in text_of(planned(gate, like()), send=0)


def test_a_map_of_finished_values_does_not_bind():
    found = bind(planned(mapped, torch.randn(64, 64, dtype=torch.bfloat16)).kernels[0])
    assert found.startswith("a state has dim ") and found.endswith("which is summed behind the loop")
