"""A barrier that is initialised stays a barrier to the device, so nothing else may lie in its memory.

A joined backward with one item in each program initialised a barrier that it did not use. The compiler laid results
over it. Where processes shared the device, a switch between them overwrote eight bytes of gradients or of addresses.
tests/gpu/test_shared_device.py runs such processes.
"""

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from onepass.lowering.joined.config import JoinedConfig
from onepass.lowering.launch.triton_compat import gluon_missing
from tests.support.gluon_ahead_of_time import (
    backward_plan_of,
    compiled_source,
    data_over_barriers,
    joined_source_of,
    plan_of,
    source_of,
    tensors_of,
    without_interpreter,
)

FORMS = {
    "one item": JoinedConfig(64, persistent=False),
    "many items": JoinedConfig(64),
    "in order": JoinedConfig(64, in_order=True),
    "one item in order": JoinedConfig(64, persistent=False, in_order=True),
    "by products": JoinedConfig(64, turns=False, runs=False, persistent=False, by_products=True),
}


def initialised(text: str) -> list[str]:
    return re.findall(r"mbarrier\.init\((\w+)\.index", text)


@pytest.fixture(scope="module")
def plan():
    return backward_plan_of("causal", 64, rows=512, columns=512, batch=1, heads=2)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_joined_kernel_initialises_the_barriers_that_it_uses(form, plan):
    text = joined_source_of(plan, form)[2].text
    functions, launched = text.split("@gluon.jit(do_not_specialize")
    assert initialised(launched)
    assert all(re.search(rf"mbarrier\.\w+\({name}\.index", functions) for name in initialised(launched))
    assert ("held_empty" in text) == form.persistent
    assert ("turn_come" in text) == form.in_order


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["full", "causal", "evoformer"])
def test_a_forward_kernel_initialises_the_barriers_that_it_uses(kind):
    text = source_of(plan_of(kind, 64))[2].text
    functions, launched = text.split("@gluon.jit(do_not_specialize")
    assert initialised(launched)
    assert all(re.search(rf"\b{name}\b", functions) for name in initialised(launched))


def offsets_of_data_over_barriers():
    """With the barriers that are used, and with one more that is not."""
    plan = backward_plan_of("causal", 64, rows=512, columns=512, batch=1, heads=2)
    binding, _, source = joined_source_of(plan, FORMS["one item"])
    start = "    fence_async_shared()\n    gl.warp_specialize("
    unused = "    held_empty = gl.allocate_shared_memory(gl.int64, [1, 1], mbarrier.MBarrierLayout())\n"
    unused += f"    mbarrier.init(held_empty.index(0), count=2)\n{start}"
    assert source.text.count(start) == 1
    both = source, replace(source, text=source.text.replace(start, unused))
    compiled = [compiled_source(s, tensors_of(binding.kernel), {"num_warps": 4}) for s in both]
    return [data_over_barriers(c.asm["ptx"]) for c in compiled]


@pytest.mark.slow
def test_data_over_a_barrier_are_found():
    if gluon_missing():
        pytest.skip(gluon_missing())
    run = subprocess.run([sys.executable, __file__], capture_output=True, text=True, env=without_interpreter())
    assert run.returncode == 0, run.stderr[-1000:]
    used, with_one_more = json.loads(run.stdout.splitlines()[-1])
    assert not used and len(with_one_more) == 1


if __name__ == "__main__":
    print(json.dumps(offsets_of_data_over_barriers()))
