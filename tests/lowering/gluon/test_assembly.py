"""The functions of a warp-specialised kernel: which of them the consumers share."""

import pytest

from onepass.lowering.launch.triton_compat import gluon_missing
from tests.support.gluon_ahead_of_time import plan_of, source_of


@pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
@pytest.mark.parametrize("width, constant", [(64, False), (512, True)])
def test_the_number_of_a_warpgroup_is_a_constant_where_it_chooses_text(width, constant):
    """Triton reads a function once for each constant: for four consumers of one function it took 0.2 s more."""
    _, config, source = source_of(plan_of("full", width))
    assert bool(config.value_warpgroups) == constant == ("W: gl.constexpr" in source.text)
    calls = [line for line in source.text.splitlines() if line.startswith("    consumer(")]
    assert len(calls) == config.warpgroups and all(("gl.to_tensor(" in call) != constant for call in calls)
