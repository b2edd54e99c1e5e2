"""The gradients of a layer with its cross entropy hung on a Hopper GPU, as one kernel of both factors.

Their values are the columns that the scores are of, so nothing of a tile comes late. The consumers waited for the
barrier of what comes late, and no copy completes it.
"""

import re

import pytest
import torch
import torch.nn.functional as F

from onepass.compiler import compiled_region
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.training.plans import training
from tests.support.gluon_ahead_of_time import backward_plan_of, joined_source_of


def of_a_layer(width):
    x, w = (torch.empty(n, width, dtype=torch.bfloat16, device="meta") for n in (2048, 1024))
    labels = torch.empty(2048, dtype=torch.int64, device="meta")
    program = program_of(lambda x, w, y: F.cross_entropy(F.linear(x, w).float(), y), x, w, labels)
    found = compiled_region.make(program, Options(), (), {})
    return training(found.text, [True, True, False]).every.region.plan


PLANS = {f"a layer of {width}": (lambda width=width: of_a_layer(width)) for width in (64, 128, 256)}
PLANS |= {
    f"{kind}, {width}": (lambda kind=kind, width=width: backward_plan_of(kind, width))
    for kind in ("full", "shared", "dense")
    for width in (64, 256)
}


@pytest.mark.parametrize("name", PLANS)
def test_each_barrier_that_is_waited_for_is_completed(name):
    _, _, source = joined_source_of(PLANS[name]())
    waited = {*re.findall(r"mbarrier\.wait\((\w+)\.index", source.text)}
    completed = {*re.findall(r"mbarrier\.(?:expect|arrive)\((\w+)\.index", source.text)}
    assert waited and waited <= completed
