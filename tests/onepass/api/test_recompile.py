"""A graph whose region is left to Inductor is compiled once more, without that region; where that fails, it runs on."""

import pytest
import torch

import onepass
from onepass.api import backend, recompile
from onepass.graph_passes import replace
from onepass.runtime import executors, library_choice, operator

pytestmark = pytest.mark.usefixtures("fresh")


def two(q, k, v):
    """One attention of which the calls win, and one that stays fused."""
    return torch.softmax(torch.tanh(q @ k.mT), -1) @ v, torch.softmax(q.sin() @ k.mT - 1, -1) @ v[..., :8]


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Graphs may be compiled once more, and the calls of eight columns win a comparison that each first call makes."""
    monkeypatch.setattr(backend, "may_recompile", lambda inputs: True)
    monkeypatch.setattr(library_choice, "rivals", lambda *_: {executors.COMPILED: executors.compiled})
    monkeypatch.setattr(library_choice, "LONG_RUN", 0.0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    narrow = lambda tensors: any(t.shape[-1] == 8 for t in tensors)

    def fastest(own, others, tensors, *_):
        return (executors.COMPILED, 0.5) if narrow(own(tensors)) else ("", 1.0)

    monkeypatch.setattr(library_choice, "fastest", fastest)


def inputs():
    return [torch.randn(2, 2, n, 16) for n in (40, 30, 30)]


def calls_of_onepass(call):
    """The regions that a call runs through onepass."""
    with operator.recorded() as seen:
        call()
    return len(seen)


def test_calls_that_won_are_part_of_the_graph_from_the_next_call_on(on_a_gpu):
    given = inputs()
    compiled, exact = torch.compile(two, backend="onepass"), two(*(x.double() for x in given))
    with torch.no_grad():
        for _ in range(4):
            for result, truth in zip(compiled(*given), exact, strict=True):
                torch.testing.assert_close(result.double(), truth, rtol=1e-4, atol=1e-5)
        assert calls_of_onepass(lambda: compiled(*given)) == 1
    first, last = onepass.reports()
    assert (first.fused, last.fused) == (2, 1)
    assert [refused.code for refused in last.refusals] == ["OP502"]


def test_a_graph_of_which_nothing_is_left_to_inductor_is_compiled_once(on_a_gpu, monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: ("", 1.0))
    compiled, given = torch.compile(two, backend="onepass"), inputs()
    with torch.no_grad():
        for _ in range(3):
            compiled(*given)
    assert len(onepass.reports()) == 1


def test_where_the_second_compilation_fails_the_first_code_runs(on_a_gpu, caplog):
    def fails(args):
        raise RuntimeError("no compiler")

    run = recompile.Recompiled(lambda x: x + 1, ["a"], fails)
    library_choice.LEFT_TO_INDUCTOR.append("b")
    assert run(1) == 2 and not caplog.records
    library_choice.LEFT_TO_INDUCTOR.append("a")
    assert run(1) == 2 and "no compiler" in caplog.text
    caplog.clear()
    assert run(1) == 2 and not caplog.records


@pytest.mark.parametrize("capturing", [True, False])
def test_a_capture_compiles_nothing(capturing, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    run = recompile.Recompiled(lambda: "first", ["a"], lambda args: lambda: "second")
    library_choice.LEFT_TO_INDUCTOR.append("a")
    assert run() == ("first" if capturing else "second")


def test_graphs_with_symbols_or_without_tensors_are_compiled_once():
    assert recompile.may_recompile([torch.randn(2)])
    assert not recompile.may_recompile([])
    seen = []
    backend = lambda graph, inputs: seen.append(recompile.may_recompile(inputs)) or graph
    torch.compile(lambda x: x + 1, backend=backend, dynamic=True)(torch.randn(5))
    assert seen == [False]


def test_on_a_cpu_calls_that_inductor_compiles_better_are_left_to_it(monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: (executors.COMPILED, 0.5))
    compiled, given = torch.compile(two, backend="onepass"), inputs()
    with torch.no_grad():
        for _ in range(4):
            results, exact = compiled(*given), two(*(x.double() for x in given))
            torch.testing.assert_close([x.double() for x in results], [*exact], rtol=1e-4, atol=1e-5)
        assert calls_of_onepass(lambda: compiled(*given)) == 0
    first, last = onepass.reports()
    assert (first.fused, last.fused) == (2, 0)
    assert {refused.code for refused in last.refusals} == {"OP502"}


def test_where_inductor_fails_on_calls_that_were_left_to_it_they_are_fused(monkeypatch, caplog):
    """As torch 2.13 does on a CPU, for the gradients of some attention."""
    monkeypatch.setattr(replace, "share_of_compiled", lambda found: 0.5 if library_choice.LEAVES.get() else None)
    inductor = backend._inductor

    def fails(gm, *given):
        if not any("onepass" in str(node.target) for node in gm.graph.nodes):
            raise IndexError("list index out of range")
        return inductor(gm, *given)

    monkeypatch.setattr(backend, "_inductor", fails)
    given = inputs()
    with torch.no_grad():
        results = torch.compile(two, backend="onepass")(*given)
    torch.testing.assert_close([*results], [*two(*given)], rtol=1e-4, atol=1e-5)
    assert onepass.reports()[-1].fused == 2 and "list index out of range" in caplog.text
    assert library_choice.LEAVES.get()


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_runs_the_same_code_again(reentrant, monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: (executors.ORIGINAL, 0.5))
    monkeypatch.setattr(library_choice, "share_of_step", lambda *_: 0.5)
    compiled = torch.compile(lambda *x: two(*x)[0], backend="onepass")
    given = [x.requires_grad_() for x in inputs()]
    for _ in range(5):
        result = torch.utils.checkpoint.checkpoint(compiled, *given, use_reentrant=reentrant)
        for x in given:
            x.grad = None
        result.sum().backward()
        found = [x.grad for x in given]
        right = torch.autograd.grad(two(*given)[0].sum(), given)
        torch.testing.assert_close(found, [*right], rtol=1e-4, atol=1e-4)


def test_while_several_threads_call_nothing_is_compiled_once_more(monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: (executors.COMPILED, 0.5))
    run = recompile.Recompiled(lambda: "first", ["a"], lambda args: lambda: "second")
    library_choice.LEFT_TO_INDUCTOR.append("a")
    monkeypatch.setattr(recompile, "CALLERS", {1})
    assert run() == "first"
    monkeypatch.setattr(recompile, "CALLERS", set())
    assert run() == "second"


def test_a_graph_that_has_to_be_fused_stays_so(monkeypatch):
    monkeypatch.setattr(library_choice, "fastest", lambda *_: (executors.COMPILED, 0.5))
    compiled, given = torch.compile(two, backend="onepass", options={"require": "all"}), inputs()
    with torch.no_grad():
        for _ in range(4):
            compiled(*given)
        assert calls_of_onepass(lambda: compiled(*given)) == 2
    assert len(onepass.reports()) == 1


def written_in_place(q, k, v):
    return torch.softmax((q @ k.mT).mul_(0.5), -1) @ v


def written_between(q, k, v, cache):
    scores = q @ k.mT
    cache[:, :, :4] = 0.5  # a later call may give the keys' memory: that one takes the original graph
    return torch.softmax(scores, -1) @ (v + cache.mean())


def copied(monkeypatch, function, *given):
    """How often the graph is copied before it is changed, and the compiled function."""
    seen, copy = [], backend.deepcopy
    monkeypatch.setattr(backend, "deepcopy", lambda graph: seen.append(str(graph)) or copy(graph))
    compiled = torch.compile(function, backend="onepass")
    with torch.no_grad():
        compiled(*given)
    return [graph for graph in seen if "onepass" not in graph], compiled


@pytest.mark.parametrize("function", [written_in_place, two])
def test_a_graph_is_copied_once(on_a_gpu, monkeypatch, function):
    before, _ = copied(monkeypatch, function, *inputs())
    assert len(before) == 1


@pytest.mark.parametrize("again", [True, False])
def test_a_graph_whose_arguments_share_memory_runs_as_written(on_a_gpu, monkeypatch, again):
    monkeypatch.setattr(backend, "may_recompile", lambda inputs: again)
    q, k, v = inputs()
    before, compiled = copied(monkeypatch, written_between, q, k, v, k.clone())
    assert len(before) == 1 + again
    ours, theirs = k.clone(), k.clone()
    with torch.no_grad():
        result, exact = (f(q, x, v, x.view(x.shape)) for f, x in ((compiled, ours), (written_between, theirs)))
    torch.testing.assert_close(result, exact, atol=2e-6, rtol=2e-6)
    torch.testing.assert_close(ours, theirs)
