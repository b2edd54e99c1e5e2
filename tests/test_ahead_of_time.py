"""Emitted kernels compile for GPUs that are not here: sm_80, sm_90, sm_100, gfx942; registers and memory are read off.

One process without Triton's interpreter compiles everything, because functions defined under it cannot be compiled.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.lowering.tuning import SHARED_MEMORY

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
CASES = [(t, width, c) for t in TARGETS for width in (64, 128) for c in (False, True)]
CASES += [("sm_90", width, c) for width in (80, 96, 256) for c in (False, True)]

COMPILE = """
import json, sys
sys.path.insert(0, {root!r}); sys.path.insert(0, {bench!r})
from h200 import attention_plan
from onepass.lowering.compat import TYPE_NAMES, compile_ahead, resources
from onepass.lowering.triton_emit import Facts, emit
from onepass.lowering.triton_launch import load, widest
from onepass.lowering.tuning import default_config

def compiled(target, width, causal):
    plan = attention_plan(4, 16, 4096, width, causal)
    (kernel,) = plan.kernels
    config = default_config(*widest(kernel), target)
    source = emit(kernel, plan, Facts(frozenset("ij")))
    types, divisible, constants = {{}}, [], {{name: getattr(config, role) for name, role in source.tiles}}
    tensors = {{t.name: t for t in (*kernel.inputs, kernel.output)}}
    for argument in source.arguments:
        if argument.axis == 3:
            constants[argument.name] = 1
            continue
        pointer = argument.axis is None and argument.size is None
        types[argument.name] = "*" + TYPE_NAMES[tensors[argument.tensor].dtype] if pointer else "i32"
        divisible += [argument.name] if argument.size is None else []
    options = {{"num_warps": config.warps, "num_stages": config.stages}}
    return compile_ahead(load(source.text, source.function), types, constants, tuple(divisible), target, options)

for case in {cases!r}:
    try:
        found = compiled(*case)
        said = {{"shared": found.metadata.shared}}
        if case[0] == "sm_90":
            said = resources(found) | {{"wgmma": found.asm["ptx"].count("wgmma.mma_async")}}
    except Exception as error:
        said = {{"error": f"{{type(error).__name__}}: {{error}}"[:400]}}
    print(json.dumps([case, said]), flush=True)
"""


@pytest.fixture(scope="module")
def results():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    script = COMPILE.format(root=str(ROOT), bench=str(ROOT / "bench"), cases=CASES)
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(CASES), run.stderr[-2000:]
    return {tuple(case): said for case, said in lines}


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1]}-{'causal' if c[2] else 'full'}")
def test_compiles(case, results):
    said = results[case]
    assert "error" not in said, said
    assert said["shared"] <= SHARED_MEMORY[case[0]]
    if case[0] == "sm_90":
        assert said["spilled"] == 0 and said["wgmma"] > 0, said
