"""Joined kernels as text: what is emitted, what ptxas says of it, and how items are ordered. Nothing needs a GPU."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from onepass.lowering.joined.config import JoinedConfig
from onepass.lowering.joined.form import bind_joined
from onepass.lowering.joined.join import join
from onepass.lowering.joined.launch import config_of, prepare_joined
from onepass.lowering.joined.memory import shared_bytes
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.lowering.plan.device import H200
from tests.support.gluon_ahead_of_time import backward_plan_of, joined_source_of, without_interpreter, without_memory

ROOT = Path(__file__).resolve().parents[3]
KINDS = "full causal window shifted alibi softcap vector documents narrow sigmoid slanted".split()
COMPILED = [["full", 128], ["causal", 128], ["window", 64], ["alibi", 64], ["causal", 256]]
MOST_SPILLED = 1024  # bytes: registers of items' first and last instructions, a few of the loop's


@pytest.fixture(scope="module")
def plans():
    found = {}

    def plan(kind, width=64, length=4096):
        if (kind, width, length) not in found:
            found[kind, width, length] = backward_plan_of(kind, width, rows=length, columns=length, batch=1, heads=2)
        return found[kind, width, length]

    return plan


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_text(kind, width, plans):
    binding, config, source = joined_source_of(plans(kind, width, 512))
    names = [node.name for node in ast.parse(source.text).body if isinstance(node, ast.FunctionDef)]
    assert {"producer", "consumer", "consumer0", "consumer1", source.function} <= set(names)
    assert shared_bytes(binding, binding.overlays, config) <= H200.shared_bytes - H200.barrier_bytes
    assert source.text.count("add_in_order(") == 2  # under the next products, and behind the last tile


def test_a_weight_that_another_one_contains_is_computed_once(plans):
    _, _, source = joined_source_of(plans("causal"))
    assert source.text.count("gl.exp2(") == 1
    assert source.text.count("!= 0.0") == 1  # where the first weight is absent, the second one is


def test_nothing_is_masked_where_all_tiles_are_whole(plans):
    _, _, source = joined_source_of(plans("full"))
    assert "if (tile" not in source.text
    _, _, ragged = joined_source_of(plans("full", 64, 4100))
    assert "if (tile >=" in ragged.text and "> j_size)" in ragged.text


def test_tiles_of_vectors_that_begin_anywhere_are_not_copied(plans):
    for length, copied in ((4096, 2), (4097, 0)):
        binding = bind_joined(join(plans("full", 64, length)).main)
        values = without_memory(binding.kernel)
        call = prepare_joined(binding, config_of(binding), values, {}, 132)
        assert len(call.shape.vectors) == copied


def test_persistent_programs_are_as_many_as_multiprocessors(plans):
    binding = bind_joined(join(plans("full", 64, 4096)).main)
    values = without_memory(binding.kernel)
    for persistent, programs in ((True, 20), (False, 64)):
        call = prepare_joined(binding, JoinedConfig(64, persistent=persistent), values, {}, 20)
        assert (call.programs, call.total) == (programs, 64)


def test_programs_with_one_item_each_begin_the_longest_first(plans):
    binding = bind_joined(join(plans("causal", 128, 4096)).main)
    values = without_memory(binding.kernel)
    call = prepare_joined(binding, JoinedConfig(64, persistent=False), values, {}, 132)
    assert call.table.tolist() == [point * 32 + rows for rows in range(32) for point in range(2)]


@pytest.mark.slow
def test_settings_depend_on_columns_products_and_work(plans):
    settings = lambda kind, width: config_of(bind_joined(join(plans(kind, width, 512)).main))
    assert settings("full", 64).loop_tile == 128
    assert settings("softcap", 64).loop_tile == 64
    assert settings("full", 128).persistent and not settings("causal", 128).persistent
    assert settings("full", 256).by_products


def test_a_group_of_heads_is_one_loop(plans):
    _, _, source = joined_source_of(backward_plan_of("groups", 64, rows=512, columns=512, batch=1, heads=8))
    assert "point = t // tiles" in source.text
    assert source.text.count("warpgroup_mma(") == 7  # S twice, the last sum over the rows, and five


def test_lists_of_tiles_say_which_need_the_guard(plans):
    _, _, source = joined_source_of(plans("longformer", 64, 2048))
    assert "entry >> W & 1" in source.text and "tile = entry >> 2" in source.text


def test_dense_tensors_over_rows_and_loop_are_copied(plans):
    binding, config, source = joined_source_of(plans("bias", 64, 512))
    assert [o.tensor.name for o in binding.overlays] == ["more"]
    assert ".load(SCORE)" in source.text and config.loop_tile == 64


@pytest.fixture(scope="module")
def compiled():
    if gluon_missing():
        pytest.skip(gluon_missing())
    cases = [[*case, "backward"] for case in COMPILED]
    command = [sys.executable, str(ROOT / "tests" / "support" / "gluon_ahead_of_time.py"), json.dumps(cases)]
    run = subprocess.run(command, capture_output=True, text=True, env=without_interpreter())
    assert run.returncode == 0, run.stderr
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("[[")]
    return {tuple(case): said for case, said in lines}


@pytest.mark.slow
@pytest.mark.parametrize("case", COMPILED)
def test_ptxas_serialises_nothing(case, compiled):
    said = compiled[(*case, "backward")]
    assert "error" not in said, said
    assert said["shared"] <= H200.shared_bytes and said["wgmma"] > 0
    assert said["spilled"] <= MOST_SPILLED and not said["serialised"], said
    assert not said["over_barriers"]
