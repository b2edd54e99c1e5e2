"""Derived kernels compile for GPUs that are not here: sm_80, sm_90, sm_100, gfx942; registers and memory are read off.

Two processes without Triton's interpreter compile everything, because functions defined under it cannot be compiled.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.lowering.launch.triton_compat import RELEASE
from onepass.lowering.plan.device import DEVICES
from tests.support.gluon_ahead_of_time import without_interpreter

ROOT = Path(__file__).resolve().parents[3]
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
CASES = [(t, kind, width, "bfloat16") for t in TARGETS for width in (64, 128) for kind in ("full", "causal")]
CASES += [(t, kind, 64, "bfloat16") for t in TARGETS for kind in ("window", "alibi", "softcap", "groups")]
CASES += [("sm_90", kind, width, "bfloat16") for width in (16, 80, 96, 256) for kind in ("full", "causal")]
CASES += [("sm_90", kind, width, "bfloat16") for kind in ("prefix", "globals", "documents") for width in (64, 128)]
CASES += [("sm_90", "window", 128, "bfloat16")]
CASES += [("sm_90", kind, width, "float32") for width in (64, 128) for kind in ("full", "causal")]
CASES += [("sm_90", "causal", 64, "float16")]
CASES += [("sm_90", kind, 64, "bfloat16") for kind in ("states", "mixed")]
CASES += [("sm_90", "weights", width, kind) for width in (64, 128) for kind in ("bfloat16", "float32")]
CASES += [(t, "dropout", width, "bfloat16") for t in TARGETS for width in (64, 128)]
CASES += [(t, "positions", width, "bfloat16") for t in TARGETS for width in (64, 128)]
CASES += [("sm_90", "positions", 64, "float32")]
CASES += [("sm_90", "ragged", width, "bfloat16") for width in (64, 128, 256)] + [("sm_90", "latents", 512, "bfloat16")]
WHOLE = ("full", "causal", "ragged", "latents")  # one chain of products, none of which may wait for the one before
SPILLED = {"mixed": 384, "latents": 384}  # bytes, where accumulators take half of the registers; none elsewhere
if RELEASE < (3, 9):
    SPILLED["ragged"] = 96  # Triton 3.6 spills 72 at width 256


@pytest.fixture(scope="module")
def results(request):
    """What compilers say of the cases of this run: with --quick they are a few of many."""
    here = [item for item in request.session.items if item.path == request.path]
    cases = sorted({item.callspec.params["case"] for item in here}, key=CASES.index)
    environment = without_interpreter()
    command = [sys.executable, str(ROOT / "tests" / "support" / "ahead_of_time.py")]
    halves = (cases[::2], cases[1::2])
    runs = [
        subprocess.Popen(
            [*command, json.dumps(half)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for half in halves
    ]
    outputs = [run.communicate() for run in runs]
    lines = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("[")]
    assert len(lines) == len(cases), [error[-1000:] for _, error in outputs]
    return {tuple(case): said for case, said in lines}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_compiles(case, results):
    said = results[case]
    assert "error" not in said, said
    assert said["shared"] <= DEVICES[case[0]].shared_bytes
    if case[0] == "sm_90":
        assert said["spilled"] <= SPILLED.get(case[1], 8 if case[3] == "float32" else 0), said
        assert said["wgmma"] > 0 or case[1] == "mixed" or case[3] == "float32", said
        assert not said["serialised"] or case[1] not in WHOLE or case[3] == "float32", said
