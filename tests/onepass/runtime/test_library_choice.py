"""Torch's own kernels and the original calls as rivals of the plan: found by term, right, measured, refusable."""

import pytest
import torch
from torch._inductor import config
from torch.nn.functional import scaled_dot_product_attention

import onepass
from onepass import process_state
from onepass.api.backend import onepass_backend
from onepass.compiler import compiled_region, disk_cache, library_kernels, traffic
from onepass.compiler.options import Options
from onepass.graph.trace import program_of
from onepass.report import records
from onepass.runtime import executors, library_choice, operator
from onepass.runtime.region_call import call_of

pytestmark = pytest.mark.usefixtures("fresh")
CPU_KERNEL = next(k for k in library_kernels.KERNELS if k.device == "cpu")


def causal(q, k, v):
    keep = torch.arange(k.shape[-2]) <= torch.arange(q.shape[-2])[:, None]
    return torch.softmax(torch.where(keep, q @ k.mT * 0.3, -torch.inf), -1) @ v


def grouped(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def inner_order(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return (torch.softmax(q @ k.mT / 4, -1) @ v).transpose(1, 2)


def plain(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


ONE = (2, 4, 24, 16)
FORMS = {
    "plain": (plain, ONE, ONE, False),
    "no batch": (plain, (24, 16), (20, 16), False),
    "one batch": (plain, (3, 24, 16), (3, 20, 16), False),
    "five axes": (plain, (2, 3, 4, 24, 16), (2, 3, 4, 20, 16), False),
    "scaled before": (lambda q, k, v: plain(q * 0.2, k, v), ONE, ONE, False),
    "causal": (causal, ONE, ONE, True),
    "sdpa": (lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True), ONE, ONE, True),
    "groups": (grouped, ONE, (2, 2, 24, 16), True),
    "one key head": (plain, ONE, (2, 1, 24, 16), False),
    "lengths before heads": (inner_order, (2, 24, 4, 16), (2, 20, 4, 16), False),
}
OTHERS = {
    "window": lambda q, k, v: torch.softmax(torch.triu(q @ k.mT, -2), -1) @ v,
    "capped": lambda q, k, v: torch.softmax(torch.tanh(q @ k.mT), -1) @ v,
    "a bias": lambda q, k, v: torch.softmax(q @ k.mT + torch.ones(24, 24), -1) @ v,
    "upper": lambda q, k, v: torch.softmax(torch.where(torch.ones(24, 24).triu() > 0, q @ k.mT, -torch.inf), -1) @ v,
    "no quotient": lambda q, k, v: torch.relu(q @ k.mT) @ v,
    "keys are values' roots": lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v.exp(),
}


def made(function, *inputs):
    return compiled_region.make(program_of(function, *inputs), Options())


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_form_is_found_and_its_kernel_computes_it(name, dtype):
    function, rows, columns, lower = FORMS[name]
    inputs = [torch.randn(n, dtype=dtype) for n in (rows, columns, columns)]
    found = made(function, *inputs)
    assert found.form is not None and found.form.lower is lower
    named = dict(zip((i.name for i in found.program.inputs), inputs, strict=True))
    given = [named[i.name] for i in found.program.inputs]
    call = library_kernels.prepare(found.form, CPU_KERNEL, found.names, {}, given)
    result, exact = call(given), function(*(x.double() for x in inputs))
    torch.testing.assert_close(result.double(), exact, rtol=2e-2, atol=2e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_no_form_where_it_means_something_else(name):
    assert made(OTHERS[name], *(torch.randn(2, 2, 24, 16) for _ in range(3))).form is None


def test_unequal_lengths_under_a_triangle_do_not_suit_it():
    given = [torch.randn(2, 4, n, 16) for n in (24, 30, 30)]
    found = made(causal, *given)
    with pytest.raises(library_kernels.Unsuitable):
        library_kernels.prepare(found.form, CPU_KERNEL, found.names, {}, given)


def timed(seconds: float, result=None):
    run = lambda given: 1 / 0 if result is None else [result]
    run.seconds = seconds
    return run


def test_the_fastest_that_is_right_is_taken(monkeypatch):
    monkeypatch.setattr(library_choice, "seconds", lambda run, tensors, **_: run.seconds)
    one = torch.ones(3)
    wrong = lambda name, results: None if results[0] is one else "different"
    own, others = timed(1.0, one), {"slower": timed(0.8, one), "wrong": timed(0.1, one + 1), "fails": timed(0.1)}
    assert library_choice.fastest(own, others, [one], wrong) == ("slower", 0.8)
    assert library_choice.fastest(own, others | {"best": timed(0.5, one)}, [one], wrong) == ("best", 0.5)
    assert library_choice.fastest(own, {"hardly": timed(0.95, one)}, [one], wrong) == ("", 1.0)
    assert library_choice.fastest(own, {}, [one], wrong) == ("", 1.0)


def test_a_rival_whose_bytes_take_too_long_is_not_tried(monkeypatch):
    monkeypatch.setattr(library_choice, "seconds", lambda run, tensors, **_: run.seconds)
    one = torch.ones(3)
    others, right = {"compiled": timed(0.5, one)}, lambda *_: None
    assert library_choice.fastest(timed(1.0, one), others, [one], right, {"compiled": 0.89}) == ("compiled", 0.5)
    tried = lambda given: pytest.fail("it was run")
    assert library_choice.fastest(timed(1.0, one), {"compiled": tried}, [one], right, {"compiled": 0.91}) == ("", 1.0)


@pytest.mark.parametrize(
    "calls, compiled, wanted",
    [
        (0.8, 0.6, (executors.COMPILED, 0.6)),
        (0.5, 0.6, (executors.ORIGINAL, 0.5)),
        (2.5, 0.6, (executors.COMPILED, 0.6)),
        (0.95, 0.95, ("", 1.0)),
        (3.5, None, ("", 1.0)),  # a third of that is more than the plan takes
    ],
)
def test_on_a_cpu_calls_are_compiled_only_where_they_may_win(calls, compiled, wanted, monkeypatch):
    monkeypatch.setattr(library_choice, "seconds", lambda run, tensors, **_: run.seconds)
    one, tried = torch.ones(3), []
    rival = lambda given: tried.append(given) or [one]
    rival.seconds = compiled
    others = {executors.ORIGINAL: timed(calls, one), executors.COMPILED: rival}
    assert library_choice.fastest(timed(1.0, one), others, [one], lambda *_: None) == wanted
    assert bool(tried) is (compiled is not None)


def test_tiles_are_compiled_only_for_long_runs_and_rounded_ones_first(monkeypatch):
    monkeypatch.setattr(library_choice, "seconds", lambda run, tensors, **_: run.seconds)
    one, right = torch.ones(3), lambda *_: None
    others = {executors.ROUNDING_TILES: timed(0.4, one), executors.COMPILED_TILES: timed(0.1, one)}
    assert library_choice.fastest(timed(1.0, one), others, [one], right) == (executors.ROUNDING_TILES, 0.4)
    differs = lambda name, results: "different" if name == executors.ROUNDING_TILES else None
    assert library_choice.fastest(timed(1.0, one), others, [one], differs) == (executors.COMPILED_TILES, 0.1)
    assert library_choice.fastest(timed(0.009, one), others, [one], right) == ("", 1.0)


@pytest.mark.parametrize(
    "function, dtype, rounds",
    [
        (lambda q, k, v: torch.tanh(q @ k.mT).softmax(-1) @ v, torch.bfloat16, True),
        (lambda q, k, v: torch.tanh(q.float() @ k.mT.float()).softmax(-1) @ v.float(), torch.bfloat16, False),
        (lambda q, k, v: torch.tanh(q @ k.mT).softmax(-1) @ v, torch.float32, False),
    ],
)
def test_products_are_rounded_only_where_the_program_rounds_them(function, dtype, rounds):
    inputs = [torch.randn(2, 2, 24, 16, dtype=dtype) for _ in range(3)]
    found = made(function, *inputs)
    call = type("Call", (), {"sizes": {}, "deterministic": False})
    known = library_choice.rivals(found, inputs, call)
    assert (executors.ROUNDING_TILES in known) is rounds and executors.COMPILED_TILES in known


@pytest.mark.parametrize("with_host, found", [(False, 0.001), (True, 0.002)])
def test_on_a_gpu_the_host_is_hidden_or_counts(monkeypatch, with_host, found):
    """The host takes 2 ms of a run and the device 1 ms, which shows once the device has waited for 2 ms."""
    waits = []

    def times(run, tensors, ahead):
        waits.append(ahead)
        return max(0.001, 0.002 - ahead), 0.002

    monkeypatch.setattr(library_choice, "_times", times)
    assert library_choice.seconds(None, [], with_host) == found
    assert waits[0] < 0.002 <= min(waits[1:])


def test_a_run_that_waits_for_the_device_is_measured_all_the_same(monkeypatch):
    monkeypatch.setattr(library_choice, "_times", lambda run, tensors, ahead: (0.2, 0.2 + ahead))
    assert library_choice.seconds(None, []) == 0.2


@pytest.mark.parametrize("free, wanted", [(2**20, True), (2**24, False)])
def test_a_step_takes_no_more_than_half_of_the_free_memory(monkeypatch, free, wanted):
    """Here about 1.5 MiB: three values and a view of 192 KiB each, with as many gradients."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 2**30))
    program = program_of(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *(torch.randn(3, 128, 128) for _ in range(3)))
    assert library_choice.takes_much_memory(program, torch.device("cuda"), {}) is wanted
    assert not library_choice.takes_much_memory(program, torch.device("cpu"), {})


def test_products_are_written_and_read_however_calls_are_joined():
    found = made(plain, *(torch.randn(2, 2, 24, 16) for _ in range(3)))
    ends, scores = 4 * (2 * 2 * 24 * 16) * 4, 2 * 2 * 24 * 24 * 4
    assert traffic.least_bytes(found.program, {}) == ends + 2 * scores

    def packed(x):
        return plain(*x.unbind(-1))

    made(packed, torch.randn(2, 24, 16, 3))
    assert traffic.least_bytes(program_of(packed, torch.randn(2, 24, 16, 3)), {}) > 0


def compiled_calls(monkeypatch, function, inputs, compile_fx):
    """The region's calls compiled by what stands for Inductor."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    found = made(function, *inputs)
    call = call_of(found, inputs, [])
    return executors.compiled(found, inputs, call)


@pytest.mark.parametrize("function", [plain, lambda q, k, v: plain(q[:, :, 1:], *(torch.stack([k, v]).unbind()))])
def test_compiled_calls_are_compiled_once_and_right(monkeypatch, function):
    graphs, inputs = [], [torch.randn(2, 2, 24, 16) for _ in range(3)]
    run = compiled_calls(monkeypatch, function, inputs, lambda graph, *_, **__: graphs.append(graph) or graph)
    assert not graphs, "it is compiled when it is run"
    for _ in range(2):
        inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
        torch.testing.assert_close(run(inputs)[0], function(*inputs), rtol=1e-5, atol=1e-5)
    assert len(graphs) == 1


@pytest.mark.slow
@pytest.mark.parametrize("hook", [None, "pre_grad_custom_pass", "joint_custom_pre_pass"])
def test_inductor_compiles_the_calls_of_a_region(hook):
    """Without passes of its hooks: onepass would find the region in its own calls again, and again."""
    called = {} if hook is None else {hook: lambda graph: pytest.fail("the pass was run")}
    inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
    found = made(causal, *inputs)
    with config.patch(called):
        results = executors.compiled(found, inputs, call_of(found, inputs, []))(inputs)
    torch.testing.assert_close(results[0], causal(*inputs), rtol=1e-5, atol=1e-5)


def test_calls_that_do_not_compile_are_no_rival(monkeypatch):
    def fails(graph, given, **_):
        raise NotImplementedError("an operation that the compiler lacks")

    inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
    others = {"compiled": compiled_calls(monkeypatch, plain, inputs, fails)}
    own = lambda given: [plain(*given)]
    assert library_choice.fastest(own, others, inputs, lambda *_: None) == ("", 1.0)



def run(*shapes, **options):
    """A compiled function called at lengths, with what ran after each call."""
    options = {"inner": "eager", **options}
    function = torch.compile(plain, backend=onepass_backend, dynamic=True, options=options)
    for length in shapes:
        inputs = [torch.randn(2, 2, length, 16) for _ in range(3)]
        torch.testing.assert_close(function(*inputs), plain(*inputs), rtol=1e-4, atol=1e-5)
        yield records.reports()[-1].regions[-1].ran


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["sdpa flash", "the original calls"])
def test_a_class_of_sizes_is_measured_once_at_its_second_call(name, monkeypatch):
    measured = []
    monkeypatch.setattr(library_choice, "fastest", lambda own, others, *_: measured.append(set(others)) or (name, 0.25))
    with torch.no_grad():
        who = list(run(40, 41, 42, 60, 70))
        assert who[:2] == ["tiled", "tiled"]
        assert all(said.startswith(f"{name}, measured at 0.25 of the plan's time") for said in who[2:4])
        assert all(("assuming" in said) is (name != "the original calls") for said in who[2:4])
        assert who[4] == "tiled", "another class"
        assert measured == [{"sdpa flash", "the original calls"}]
        (key,) = {runner.found.key for runner in operator._RUNNERS.values()}
        assert [choice[0] for choice in disk_cache.read(key)["choices"].values()] == [name]
        process_state.forget("runners", "regions")
        assert next(run(40)).startswith(name), "remembered on disk"


def test_none_is_asked_where_it_is_forbidden_or_an_executor_is_named(monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: pytest.fail("measured"))
    with torch.no_grad():
        assert list(run(40, 40, 40, libraries=False)) == ["tiled"] * 3
        assert list(run(40, 40, 40, executor="tiled")) == ["tiled"] * 3


def test_the_original_calls_are_no_rival_where_their_values_are_large(monkeypatch):
    found = made(plain, *(torch.randn(2, 2, 24, 16) for _ in range(3)))
    assert max(traffic.made_bytes(found.program, {})) == 2 * 2 * 24 * 24 * 4
    inputs = [torch.randn(2, 2, 24, 16)]
    call = type("Call", (), {"sizes": {}, "deterministic": False})
    calls = {executors.ORIGINAL, executors.COMPILED}
    assert set(library_choice.rivals(found, inputs, call)) == {"sdpa flash", *calls}
    monkeypatch.setitem(library_choice.MAX_BYTES_OF_A_VALUE, "cpu", 2 * 2 * 24 * 24 * 4 - 1)
    assert set(library_choice.rivals(found, inputs, call)) == {"sdpa flash"}


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("options, wanted", [({}, True), ({"inner": "eager"}, False), ({"libraries": False}, False)])
def test_compiled_calls_are_a_rival(options, wanted, kind):
    device = type("Device", (), {"type": kind})
    given = [type("Given", (), {"device": device})]
    call = type("Call", (), {"sizes": {}, "deterministic": False})
    inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
    found = compiled_region.make(program_of(plain, *inputs), Options(**options))
    assert ("the original calls, compiled" in library_choice.rivals(found, given, call)) is wanted


@pytest.mark.parametrize("stored", [3, {"cpu": 1}, [["a"]], {"cpu": ["x", "y"]}, {"cpu": ["nobody", 0.5]}])
def test_a_damaged_choice_is_no_choice(stored):
    inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
    found = made(plain, *inputs)
    disk_cache.update(found.key, choices=stored)
    torch.testing.assert_close(
        torch.ops.onepass.region(inputs, found.text, [])[0], plain(*inputs), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "options, choice, wanted",
    [
        ({}, ("the original calls, compiled", 0.4), 0.4),
        ({}, ("the original calls", 0.4), None),
        ({}, ("sdpa flash", 0.4), None),
        ({}, ("", 1.0), None),
        ({"libraries": False}, ("the original calls, compiled", 0.4), None),
        ({"executor": "tiled"}, ("the original calls, compiled", 0.4), None),
    ],
)
def test_calls_that_inductor_compiles_faster_are_known_to_the_next_graph(options, choice, wanted):
    inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
    found = compiled_region.make(program_of(plain, *inputs), Options(**options))
    assert library_choice.share_of_compiled(found) is None
    disk_cache.update(found.key, choices={"cpu": choice})
    assert library_choice.share_of_compiled(found) == wanted
    torch.use_deterministic_algorithms(True)
    try:
        assert library_choice.share_of_compiled(found) is None
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_region_whose_gradients_are_needed_stays_where_such_calls_were_faster():
    inputs = [torch.randn(2, 2, 24, 16, requires_grad=True) for _ in range(3)]
    compiled = torch.compile(plain, backend=onepass_backend, options={"inner": "eager"})

    def reports():
        torch._dynamo.reset()
        for recorded in (True, False):
            with torch.set_grad_enabled(recorded):
                compiled(*inputs)
        return records.reports()[-2:]

    for (region,) in (report.regions for report in reports()):
        disk_cache.update(region.key, choices={"cpu": ("the original calls, compiled", 0.4)})
    trained, not_trained = reports()
    assert trained.regions and not trained.refusals
    assert not not_trained.regions and [r.code for r in not_trained.refusals] == ["OP502"]


def planned(*inputs):
    return onepass.plan(plain, *inputs).report


def compiled_with(options):
    def run(*inputs):
        torch.compile(plain, backend=onepass_backend, options={"inner": "eager", **options})(*inputs)
        return records.reports()[-1]

    return run


@pytest.mark.parametrize("run", [planned, compiled_with({"require": "all"}), compiled_with({"invariant": True})])
def test_who_requires_that_it_is_fused_gets_the_same_whatever_was_measured(run):
    inputs = [torch.randn(2, 2, 24, 16) for _ in range(3)]
    (region,) = run(*inputs).regions
    disk_cache.update(region.key, choices={"cpu": ("the original calls, compiled", 0.4)})
    torch._dynamo.reset()
    assert run(*inputs).fused == 1
