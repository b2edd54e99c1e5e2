"""What stands in front of a region: computed by its kernel or not, the answer is the same, and the report says why."""

import os
import pickle
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler.optimize import optimize_all
from onepass.compiler.options import Options
from onepass.errors import OptionError
from onepass.fusion import compare_plans, estimates, producers
from onepass.graph.trace import program_of
from onepass.lowering.triton.launch import Launcher
from onepass.translate.translate import translate
from tests.end_to_end.test_variants import left_outside, tuples
from tests.support.spellings import attend
from tests.variants import every, heads
from tests.variants.beyond import qk_norm, rope

MODES = ("auto", "always", "never")
PREPARED = (
    *("cosine, learned temperature", "QK-norm", "RoPE, halves", "RoPE, interleaved"),
    *("gate after the sum", "linear map after the sum"),
)
BY_NAME = {v.name: v for v in every()}


@pytest.fixture(autouse=True)
def own_state(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path))
    torch.manual_seed(0)
    torch._dynamo.reset()
    process_state.forget("reports")


def compiled(function, mode):
    """The compiled function, and a list that gets what each graph keeps outside of kernels."""
    left = []

    def backend(module, inputs):
        made = onepass_backend(module, inputs, options={"inner": "eager", "fuse_loads": mode, "executor": "tiled"})
        left.append(left_outside(module.graph))
        return made

    return torch.compile(function, backend=backend), left


def regions():
    return [region for r in onepass.reports() for region in r.regions]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PREPARED)
def test_every_mode_is_right(name, mode):
    inputs = BY_NAME[name].inputs()
    fast, left = compiled(BY_NAME[name].function, mode)
    with torch.no_grad():
        result = fast(*inputs)
    wanted = BY_NAME[name].function(*(x.double() for x in inputs))
    torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-5)
    (region,) = regions()
    assert len(region.kernels) == 1 and region.passes[1] == 1
    assert bool(region.around) == (mode != "never")
    assert mode != "always" or left == [()]


def test_the_report_says_which_side_and_why():
    fast, _ = compiled(rope, "auto")
    fast(*heads(2), torch.randn(300, 16), torch.randn(300, 16))
    (region,) = regions()
    assert [("tiles of 128 rows" in s, "computed in the kernel" in s) for s in region.around] in (
        [(True, False), (False, True)],
        [(False, True), (True, False)],
    )
    assert any(line in str(region) for line in region.around)


def test_a_few_rows_compute_what_the_loop_reads():
    """One tile of rows computes nothing twice."""
    q, k, v = heads(2, rows=1)
    cos, sin = torch.randn(300, 16), torch.randn(300, 16)
    step = lambda q, k, v: attend(q * cos[-1], k * cos + k.flip(-1) * sin, v)
    fast, _ = compiled(step, "auto")
    torch.testing.assert_close(fast(q, k, v), step(q, k, v), rtol=1e-4, atol=1e-5)
    assert all("outside" not in line for line in regions()[0].around)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
def test_rotated_keys_that_are_returned(mode):
    def step(q, k, v, cos, sin):
        k = k * cos + k.flip(-1) * sin
        return attend(q * cos, k, v), k

    inputs = (*heads(2), torch.randn(300, 16), torch.randn(300, 16))
    fast, _ = compiled(step, mode)
    for result, wanted in zip(fast(*inputs), step(*inputs), strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    if mode == "auto":
        assert any("also used by" in line for line in regions()[0].around)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_what_is_in_front(mode):
    inputs = [x.requires_grad_() for x in (*heads(2, rows=20, columns=24), torch.rand(16), torch.rand(16))]
    fast, _ = compiled(qk_norm, mode)
    weight = torch.randn(20, 16)
    found = torch.autograd.grad((fast(*inputs) * weight).sum(), inputs)
    for gradient, wanted in zip(found, torch.autograd.grad((qk_norm(*inputs) * weight).sum(), inputs), strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", MODES)
def test_casts_around_a_norm(mode):
    """Halves normalised in float32 and rounded again, as models do."""

    def step(q, k, v, a):
        norm = lambda x: a * F.rms_norm(x.float(), (16,), eps=1e-5).to(x.dtype)
        return attend(norm(q), norm(k), v)

    inputs = [x.to(torch.bfloat16) for x in (*heads(2), torch.rand(16))]
    fast, _ = compiled(step, mode)
    wanted = step(*(x.double() for x in inputs))
    own = (step(*inputs).double() - wanted).abs().max()
    assert (fast(*inputs).double() - wanted).abs().max() <= 2 * own


def test_lengths_stay_symbols():
    fast, left = compiled(rope, "always")
    for length in (20, 33, 47):
        inputs = [*heads(2, rows=length, columns=length), torch.randn(length, 16), torch.randn(length, 16)]
        for x in inputs:
            torch._dynamo.mark_dynamic(x, x.dim() - 2)
        torch.testing.assert_close(fast(*inputs), rope(*inputs), rtol=1e-4, atol=1e-5)
    assert left == [()]


def test_a_write_in_between_is_seen():
    def step(q, k, v, scale):
        rotated = q * scale
        scale.zero_()
        return attend(rotated, k, v)

    fast, _ = compiled(step, "always")
    inputs = (*heads(2, rows=20, columns=20), torch.rand(16))
    copies = [x.clone() for x in inputs]
    torch.testing.assert_close(tuples(fast(*inputs)), tuples(step(*copies)), rtol=1e-4, atol=1e-5)
    assert torch.equal(inputs[3], copies[3])


def test_what_one_region_took_no_other_takes():
    """The product between two attentions is the first one's tail."""

    def step(q, k, v, gate):
        inner = attend(q, k, v) * gate.sigmoid()
        return attend(inner, k, v) + gate

    inputs = (*heads(2, rows=40, columns=40), torch.randn(40, 16))
    fast, _ = compiled(step, "always")
    torch.testing.assert_close(fast(*inputs), step(*inputs), rtol=1e-4, atol=1e-5)
    assert [len(r.kernels) for r in regions()] == [1, 1]
    assert ["behind the result" in " ".join(r.around) for r in regions()] == [True, True]


def test_a_wide_map_of_values_stays_outside():
    """A tile does not hold what comes out of it."""
    step = lambda q, k, v, w: torch.einsum("bhid,hde->bhie", attend(q, k, v), w)
    inputs = (*heads(2, rows=40, columns=40), torch.randn(2, 16, 300))
    fast, left = compiled(step, "auto")
    torch.testing.assert_close(fast(*inputs), step(*inputs), rtol=1e-4, atol=1e-5)
    assert left == [("einsum",)]


@pytest.mark.sampled(1)
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="without a GPU it needs Triton's interpreter")
@pytest.mark.parametrize("name", PREPARED)
def test_emitted_kernels_compute_what_is_around(name):
    inputs = [x[..., :40, :] if x.dim() > 1 and x.shape[-2] > 40 else x for x in BY_NAME[name].inputs()]
    program = program_of(BY_NAME[name].function, *inputs)
    plan = optimize_all(translate(program).results).plan
    named = {entry.name: x for entry, x in zip(program.inputs, inputs, strict=True)}
    (result,) = Launcher(plan).results(named, {})
    torch.testing.assert_close(result, BY_NAME[name].function(*inputs), rtol=1e-4, atol=1e-5)


def test_layers_ask_once_how_often_an_input_is_read(monkeypatch):
    """Equal regions share the estimate, as they share the plan."""
    asked = []
    found = producers._read_counts
    monkeypatch.setattr(producers, "_read_counts", lambda *given: asked.append(given) or found(*given))

    def layers(q, k, v):
        for _ in range(3):
            q = attend((q * 2 + q.flip(-1)).softmax(-1) + 1, k.tanh(), v)
        return q

    inputs = heads(2, rows=40, columns=40)
    fast, _ = compiled(layers, "auto")
    torch.testing.assert_close(fast(*inputs), layers(*inputs), rtol=1e-4, atol=1e-5)
    assert sum(region.count for region in regions()) == 3 > len(asked) >= 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("libraries", (True, False))
def test_a_form_of_torchs_own_is_not_lost(libraries):
    inputs = (*heads(2), torch.randn(300, 16), torch.randn(300, 16))
    (region,) = onepass.explain(rope, *inputs, options={"libraries": libraries}).regions
    assert any("of torch's" in line for line in region.around) == libraries
    assert any("computed in the kernel" in line for line in region.around) != libraries


def from_a_cache(q, k, v, scale):
    return torch.softmax(q @ (k.to(q.dtype) * scale).mT / 4, -1) @ (v.to(q.dtype) * scale)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("queries, inside", [(1, True), (64, False)])
def test_on_a_gpu_a_quantised_cache_is_read_as_it_is(monkeypatch, queries, inside):
    """With one query, a copy of the cache takes most of the time; with more, the products do."""
    monkeypatch.setattr(compare_plans, "_has_kernels", lambda region: True)
    cache = [torch.randint(-100, 100, (1, 2, 2048, 16), dtype=torch.int8) for _ in range(2)]
    inputs = (torch.randn(1, 2, queries, 16), *cache, torch.rand(1, 2, 2048, 1) / 50)
    (region,) = onepass.explain(from_a_cache, *inputs).regions
    assert any("computed in the kernel" in line for line in region.around) == inside
    assert any("of torch's" in line for line in region.around) != inside


def from_packed_numbers(q, k, v, scale):
    numbers = torch.stack([k & 15, k >> 4], -1).flatten(-2)
    return torch.softmax(q @ ((numbers.to(q.dtype) - 8) * scale).mT / 4, -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("gpu", [True, False])
def test_packed_numbers_are_decided_by_cost_on_a_gpu(gpu):
    """On a CPU the report names the option that puts them inside."""
    packed = torch.randint(0, 255, (1, 2, 2048, 32), dtype=torch.uint8)
    inputs = (torch.randn(1, 2, 1, 64), packed, torch.randn(1, 2, 2048, 64), torch.rand(1, 2, 2048, 1))
    with estimates.estimated_for((9, 0)) if gpu else nullcontext():
        (region,) = onepass.explain(from_packed_numbers, *inputs).regions
    assert any("computed in the kernel" in line for line in region.around) == gpu
    assert any('"fuse_loads": "always"' in line for line in region.around) != gpu


def test_on_a_cpu_torchs_own_form_reads_a_copy_of_the_cache():
    """Tiles of torch operations are slower than its kernel."""
    cache = [torch.randint(-100, 100, (1, 2, 2048, 16), dtype=torch.int8) for _ in range(2)]
    inputs = (torch.randn(1, 2, 1, 16), *cache, torch.rand(1, 2, 2048, 1) / 50)
    (region,) = onepass.explain(from_a_cache, *inputs).regions
    assert any("of torch's" in line for line in region.around)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("width, inside", [(64, True), (300, False)])
def test_on_hopper_a_gate_is_worth_more_than_a_form_of_torchs_own(monkeypatch, width, inside):
    """Where the kernel has the form there, which it has up to 256 columns."""
    monkeypatch.setattr(estimates, "is_hopper", lambda device: True)

    def gated(q, k, v, gate):
        return torch.sigmoid(gate) * (torch.softmax(q @ k.mT / 4, -1) @ v)

    inputs = [torch.randn(1, 2, 128, width, dtype=torch.bfloat16) for _ in range(4)]
    (region,) = onepass.explain(gated, *inputs, options={"libraries": True}).regions
    assert any("behind the result" in line and "computed in the kernel" in line for line in region.around) == inside


def windows(q, k, v, table, index):
    """A bias by a table, with a position for each element, as Swin's windows have it."""
    bias = table[index.view(-1)].view(*index.shape, -1).permute(2, 0, 1)
    return torch.softmax(q @ k.mT / 4 + bias, -1) @ v


@pytest.mark.sampled(1)
@pytest.mark.parametrize("count, inside", [(1, True), (512, False)])
def test_lookups_of_single_elements_are_not_done_again_for_each_window(count, inside):
    inputs = [torch.randn(count, 4, 49, 16) for _ in range(3)]
    inputs += [torch.randn(169, 4), torch.randint(169, (49, 49))]
    (region,) = onepass.explain(windows, *inputs).regions
    said = [line for line in region.around if "gather" in line]
    assert ["computed in the kernel" in line for line in said] == [inside], region.around
    result, exact = torch.compile(windows, backend="onepass")(*inputs), windows(*inputs)
    torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-5)


def test_lookups_at_computed_positions_and_of_rows_cost_nothing():
    """T5's buckets are computed from coordinates; a page has a position for thousands of elements."""

    def buckets(q, k, v, table):
        far = torch.arange(64)[:, None] - torch.arange(64)
        return torch.softmax(q @ k.mT / 4 + table[far.clamp(-8, 7) + 8].permute(2, 0, 1), -1) @ v

    def pages(q, kc, vc, places):
        k, v = (c[places].flatten(1, 2).transpose(1, 2) for c in (kc, vc))
        return torch.softmax(q @ k.mT / 4, -1) @ v

    of_buckets = [*(torch.randn(256, 4, 64, 16) for _ in range(3)), torch.randn(16, 4)]
    caches = [torch.randn(40, 16, 2, 16) for _ in range(2)]
    of_pages = [torch.randn(8, 2, 1, 16), *caches, torch.randint(40, (8, 5))]
    for function, inputs in ((buckets, of_buckets), (pages, of_pages)):
        (region,) = onepass.explain(function, *inputs, options={"libraries": False}).regions
        assert not any("computed again" in line for line in region.around), region.around


def test_the_pass_carries_the_mode():
    made = pickle.loads(pickle.dumps(onepass.GraphPass(fuse_loads="never")))
    assert made.options.fuse_loads == "never" and made.uuid() != onepass.GraphPass().uuid()


def test_unknown_modes_are_refused():
    with pytest.raises(OptionError, match="fuse_loads is one of auto, always, never"):
        Options.read({"fuse_loads": "sometimes"})
