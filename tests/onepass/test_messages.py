"""Every refusal is provoked by a program; its report names its code, its sentence, its way out and its section.

The programs are those that docs/refusals.md shows: tests/docs/refusals.py.
"""

import ast
import math
import pickle
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._inductor.virtualized import V as graph_state
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.two_tensor import TwoTensor

import onepass
from onepass import messages
from onepass.api.wrappers import left_as_written
from onepass.compiler import disk_cache
from onepass.distributed.shared_attention import Sides, proved, proved_heads
from onepass.errors import NotFused, Refusal
from onepass.graph.trace import aten_graph, program_of
from onepass.regions.region import Region
from onepass.runtime import executors
from onepass.translate.translate import translate
from onepass.wording.text import way_out
from tests.docs.refusals import PROGRAMS, Program

pytestmark = pytest.mark.usefixtures("fresh")
NAMES = {"torch": torch, "F": F, "math": math, "flex_attention": flex_attention}


@torch.library.custom_op("onepass_tests::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(lambda x: torch.empty_like(x))


def given(name: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if name == "i":
        return torch.randint(0, 2, (8, 16), generator=generator)
    x = torch.randn((8, 16) if name in "xm" else (1, 2, 8, 16), generator=generator)
    return x > 0 if name == "m" else x


def function_of(program: Program):
    """The program as a function."""
    names = dict(NAMES)
    if program.text.startswith("def "):
        exec(program.text, names)
        return names["f"]
    return eval(f"lambda {', '.join(program.inputs.split())}: {program.text}", names)


def found_by(program: Program) -> list:
    """The refusals of the program."""
    function, inputs = function_of(program), [given(name) for name in program.inputs.split()]
    if program.by == "explain":
        report = onepass.explain(function, *inputs, gradients=program.gradients)
        return [*report.refusals, *report.breaks]
    if program.by == "ranks":
        return raised(proved, function, inputs, Sides({0: 2}, {1: 2, 2: 2}))
    if program.by == "heads":
        return raised(proved_heads, function, inputs, Sides({0: 2}, {1: 2, 2: 2}), ["q", "k", "v"], 2, 0)
    return raised(lambda: translate(program_of(function, *inputs)))


def codes_of(program: Program) -> list[str]:
    return [found.code for found in found_by(program)]


# By hand --------------------------------------------------------------------------------------------------------------

Q, K, V = (given(name) for name in "qkv")
OPTIONS = {"inner": "eager"}


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


def left(function, *inputs, **asked) -> list:
    """What is left as written in a compiled call."""
    torch.compile(function, backend=onepass.onepass_backend, options=OPTIONS, **asked)(*inputs)
    return list(onepass.reports()[-1].refusals)


def raised(function, *arguments) -> list:
    with pytest.raises(Refusal) as found:
        function(*arguments)
    return [found.value]


def under_autocast():
    with torch.autocast("cpu"):
        return raised(program_of, attend, Q, K, V)


def subclass():
    return onepass.explain(attend, *(TwoTensor(x, x) for x in (Q, K, V))).refusals


def no_aten_operation():
    return raised(program_of, lambda x: twice(x) @ x.mT, Q)


def fast_path():
    with torch.no_grad():
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
        return onepass.explain(layer, Q[0]).refusals


def nothing_known():
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(torch.softmax, (x, -1))
    return raised(Region((node,), (x,), (node,), node, frozenset((node,))).program)


def reads_without_gradients():
    def mixed(q, k, v):
        scores = q @ k.mT / 4
        log = torch.logsumexp(scores, -1).sin()
        with torch.enable_grad():
            return torch.softmax(scores, -1) @ v, log

    with torch.no_grad():
        return left(mixed, *(x.clone().requires_grad_() for x in (Q, K, V)))


def first_use_without_gradients():
    def mixed(q, k, v, q2, k2):
        with torch.no_grad():
            other = q2 @ k2.mT
            log = torch.logsumexp(other, -1, keepdim=True).sin()
        between = q.sin()
        with torch.no_grad():
            scores = q @ k.mT
            taught = torch.softmax(other, -1) @ (torch.softmax(scores, -1) @ v)
        return log, between, taught, torch.softmax(scores, -1) @ v.sin()

    return left(mixed, *(x.clone().requires_grad_() for x in (Q, K, V, Q, K)))


def unknown_axes():
    def blocks(q, k, v):
        scores = (q @ k.mT).reshape(-1, k.shape[2] // 2)
        return torch.softmax(scores, -1).reshape(*q.shape[:3], k.shape[2]) @ v

    return left(blocks, Q, K, V, dynamic=True)


def may_share_memory():
    def written_between(q, k, v, cache):
        scores = q @ k.mT
        cache[:, :, :4] = 0.5
        return torch.softmax(scores, -1) @ (v + cache.mean())

    def backend(module, inputs):
        onepass.GraphPass()(module.graph)
        return module.forward

    with torch.no_grad():
        torch.compile(written_between, backend=backend)(Q, K, V, K.clone())
    return onepass.reports()[-1].refusals


def other_number_at_each_call():
    shifted = lambda q, k, v, n: torch.softmax(F.pad(q @ k.mT, (0, n)), -1) @ F.pad(v, (0, 0, 0, n))
    return left(shifted, Q, K, V, 3, dynamic=True)


def float_at_run_time():
    raised_to = lambda q, k, v, c: torch.softmax((q.abs() @ k.abs().mT) ** c, -1) @ v
    return left(raised_to, Q, K, V, 1.5, dynamic=True)


def without_a_kernel():
    def mixed(q, k, v, matrix):  # scores that are too many to be stored
        return torch.einsum("hg,bgij->bhij", matrix, q @ k.mT).softmax(-1) @ v

    long = [torch.randn(1, 8, 2048, 16) for _ in range(3)]
    return onepass.explain(mixed, *long, torch.randn(8, 8), options={"executor": "triton"}).refusals


def measured_before():
    """The choice of an earlier run on a GPU: here it is written down by hand."""
    run = torch.compile(attend, backend="onepass")
    run(Q, K, V)
    (region,) = onepass.reports()[-1].regions
    disk_cache.update(region.key, choices={"cpu": (executors.COMPILED, 0.39)})
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(attend, backend="onepass")(Q, K, V), attend(Q, K, V))
    return onepass.reports()[-1].refusals


def invariant_in_training():
    with pytest.raises(NotFused, match=messages.INVARIANT_IN_TRAINING.link):
        onepass.explain(attend, Q, K, V, gradients=True, options={"invariant": True})
    return [Refusal(messages.INVARIANT_IN_TRAINING)]


def joint_graph():
    graph = torch.fx.Graph()
    graph.output((graph.placeholder("tangents_1"),))
    onepass.GraphPass()(graph)
    return onepass.reports()[-1].refusals


def packaged():
    with graph_state.set_aot_compilation(True):
        return left_as_written({}).refusals


def on_two_devices():
    found = program_of(attend, Q, K, V)
    other = replace(found.inputs[0], meta=replace(found.inputs[0].meta, device="cuda"))
    return raised(translate, replace(found, inputs=(other, *found.inputs[1:])))


BY_HAND = {
    messages.AUTOCAST: under_autocast,
    messages.NO_INPUTS: lambda: raised(aten_graph, lambda: torch.ones(3), []),
    messages.SUBCLASS: subclass,
    messages.NOT_ATEN: no_aten_operation,
    messages.NO_METADATA: nothing_known,
    messages.FAST_PATH: fast_path,
    messages.READ_WITHOUT_GRADIENTS: reads_without_gradients,
    messages.FIRST_USE_WITHOUT_GRADIENTS: first_use_without_gradients,
    messages.MAY_SHARE_MEMORY: may_share_memory,
    messages.RESHAPE: unknown_axes,
    messages.SYMBOLIC_ARGUMENT: other_number_at_each_call,
    messages.FLOAT_AT_RUN_TIME: float_at_run_time,
    messages.NO_PLAN: without_a_kernel,
    messages.MEASURED_SLOWER: measured_before,
    messages.INVARIANT_IN_TRAINING: invariant_in_training,
    messages.DEVICES: on_two_devices,
    messages.JOINT_GRAPH: joint_graph,
    messages.PACKAGED: packaged,
    messages.WRAPPED: lambda: left_as_written({"cpp_wrapper": True}).refusals,
}

# Tests ----------------------------------------------------------------------------------------------------------------


def test_each_is_provoked_once():
    assert sorted(m.code for m in (*PROGRAMS, *BY_HAND)) == sorted(messages.ALL)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("message", [*PROGRAMS, *BY_HAND], ids=lambda message: message.code)
def test_it_is_said(message):
    refused = found_by(PROGRAMS[message]) if message in PROGRAMS else BY_HAND[message]()
    (found,) = [one for one in refused if one.code == message.code][:1]
    said = re.escape(message.sentence)
    assert re.fullmatch(re.sub(r"\\{.*?\\}", ".+", said), found.reason, re.DOTALL) and found.kind == message.kind
    assert way_out(found) == f"{message.way_out} ({messages.PAGE}#{message.code.lower()})"
    if isinstance(found, Refusal):
        assert str(found).endswith(f"[{message.code}]")
        assert str(pickle.loads(pickle.dumps(found))) == str(found)


def test_codes_are_apart_and_every_message_is_used():
    names = {name for name, value in vars(messages).items() if isinstance(value, messages.Message)}
    assert len(names) == len(messages.ALL) and all(re.fullmatch(r"OP\d{3}", code) for code in messages.ALL)
    folder = Path(messages.__file__).parent
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in folder.rglob("*.py")]
    used = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert names <= used


def test_every_refusal_is_one_of_the_records():
    """A Refusal, or what a report says of one, is made from a record, never from a sentence in place."""
    for path in Path(messages.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = getattr(node.func, "id", getattr(node.func, "attr", "")) if isinstance(node, ast.Call) else ""
            made = name in ("Refusal", "Refused")
            assert not (made and node.args and isinstance(node.args[0], ast.Constant | ast.JoinedStr)), path


def test_a_code_that_is_unknown_has_a_way_out():
    assert "explain" in messages.way_out("")
