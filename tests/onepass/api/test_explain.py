"""explain, reports and the command line: everything is said, nothing is replaced."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import onepass
from onepass.api.backend import onepass_backend
from onepass.cli import commands as command
from onepass.egraph.derivation.certificate import Derivation
from onepass.errors import InputError
from onepass.report import records
from onepass.runtime.runner import ExecutorError

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.usefixtures("fresh")


def causal(q, k, v):
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~keep, -math.inf), dim=-1) @ v


def weights_too(q, k, v):
    weights = (q @ k.mT) * 0.5
    return weights @ v, weights


def inputs(size=300):
    return [torch.randn(1, 2, size, 16) for _ in range(3)]


def test_explain_says_everything(tmp_path):
    found = onepass.explain(causal, *inputs())
    (region,) = found.regions
    assert found.refusals == () and found.failures == ()
    assert found.passes == (3, 1)
    assert region.places[0].startswith(__file__)
    before, after = found.bytes
    assert before > 4 * 2 * 300 * 300 > after > 4 * 4 * 2 * 300 * 16 // 2
    assert found.kernels[0].loops and all(step.law for step in found.derivation)
    assert any(step.rule == "rescale_weighted_sum" for step in found.derivation)
    assert found.assumptions
    assert found.statistics[0]
    text = found.text(verbose=True)
    for word in ("captured", "extracted", "rescale_weighted_sum", "3 -> 1", "kernel", "search", "backward", "cache"):
        assert word in text
    assert json.loads(found.json())["regions"][0]["key"] == region.key
    page = found.save(tmp_path / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "rescale_weighted_sum" in page


def test_the_kernels_source_can_be_read():
    (kernel,) = onepass.explain(causal, *inputs()).kernels
    source = Path(kernel.source).read_text()
    assert "def " in source and "rescale_weighted_sum" in source


def test_explain_replaces_nothing_and_keeps_no_report():
    seen = []

    def watched(q, k, v):
        result = causal(q, k, v)
        seen.append(1)
        return result

    onepass.explain(watched, *inputs())
    assert seen == [1] and records.reports() == ()


@pytest.mark.slow
def test_explain_may_be_asked_again_and_again():
    arguments = inputs(40)
    for _ in range(12):
        assert len(onepass.explain(causal, *arguments).regions) == 1


def test_explain_takes_modules_and_compiled_functions():
    class Module(torch.nn.Module):
        def forward(self, q, k, v):
            return causal(q, k, v)

    for function in (Module(), torch.compile(Module()), torch.compile(causal)):
        assert len(onepass.explain(function, *inputs()).regions) == 1


def test_a_refusal_names_the_users_line():
    found = onepass.explain(weights_too, *inputs(40))
    assert found.refusals, str(found)
    line = weights_too.__code__.co_firstlineno
    refused = found.refusals[0]
    assert refused.file == __file__ and line < refused.line <= line + 2
    assert f"{__file__}:{refused.line}" in str(found)


def sorted_scores(q, k, v):
    scores = q @ k.mT
    scores = scores.sort(-1)[0]
    return torch.softmax(scores, dim=-1) @ v


def test_an_unknown_operation_is_named_with_its_line():
    found = onepass.explain(sorted_scores, *inputs(40))
    (refused,) = found.refusals
    assert "sort" in refused.reason and "nothing to fuse" not in str(found)
    assert refused.where == f"{__file__}:{sorted_scores.__code__.co_firstlineno + 2}"


def test_nothing_is_said_of_layers():
    wide = torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 16)
    layers = torch.nn.Sequential(torch.nn.LayerNorm(16), *wide)
    assert "nothing to fuse" in str(onepass.explain(layers, torch.randn(2, 8, 16)))


def test_nothing_to_fuse_is_said():
    assert "nothing to fuse" in str(onepass.explain(lambda x: x + 1, torch.ones(3)))


def test_json_has_the_derivation_as_text_and_as_data():
    found = onepass.explain(causal, *inputs())
    (written,) = json.loads(found.json())["regions"]
    assert written["proof"] == str(found.derivation) and "rescale_weighted_sum" in written["proof"]
    assert Derivation.from_json(written["certificates"][0]["derivation"]).goal.dims


def test_an_unknown_option_of_explain_is_refused():
    with pytest.raises(onepass.errors.OnepassError, match="colour"):
        onepass.explain(causal, *inputs(40), options={"colour": "red"})


@pytest.mark.parametrize("flag", ["gradients", "tangents"])
def test_a_flag_that_is_no_bool_is_refused(flag):
    with pytest.raises(onepass.errors.OptionError, match=f"{flag} is True or False, not 'yes'"):
        onepass.explain(causal, *inputs(40), **{flag: "yes"})


def unmasked(q, k, v):
    return torch.softmax(q @ k.mT, dim=-1) @ v


def biased(q, k, v, bias):
    return torch.softmax(q @ k.mT + bias, dim=-1) @ v


def test_an_assumption_on_masks_is_said_of_masked_attention_only():
    said = "masked values are finite"
    assert said in onepass.explain(causal, *inputs(40)).assumptions
    assert said in onepass.explain(biased, *inputs(40), torch.zeros(40, 40)).assumptions  # a bias may hold -∞
    assert said not in str(onepass.explain(unmasked, *inputs(40)))


def test_explain_takes_keyword_inputs():
    q, k, v = inputs(40)
    assert len(onepass.explain(causal, q, v=v, k=k).regions) == 1


def test_statistics_are_short_in_print_and_whole_in_json():
    found = onepass.explain(causal, *inputs(40))
    (line,) = (line for line in found.text(verbose=True).splitlines() if line.startswith("  search  "))
    assert "{" not in line and "matches " in line and " rules" in line
    assert json.loads(found.json())["regions"][0]["statistics"]["matches"]["rescale_sum"] >= 1


SCRIPT = """
import torch
def attention(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v
def other(q, k, v):
    return q + k + v
other.example_inputs = lambda: [torch.ones(2)] * 3
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "users.py"
    path.write_text(SCRIPT)
    return path


def test_command_explain(script, capsys, tmp_path):
    assert command.main(["explain", f"{script}:attention", "--html", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    assert "Yes: 1 region" in said and f"{script}:4" in said
    assert (tmp_path / "page.html").exists()


def test_command_explain_uses_the_companion_and_json(script, capsys):
    assert command.main(["explain", f"{script}:other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regions"] == []


def explained(tmp_path, capsys, text: str, name: str) -> tuple[int, str]:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    status = command.main(["explain", f"{path}:{name}"])
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return status, err


@pytest.mark.parametrize(
    "text, said",
    [
        ("import torch\ndef f(:\n", "does not import: line 2: SyntaxError: "),
        ("import torch\n\nx = undefined\n", "does not import: line 3: NameError: name 'undefined'"),
        ("import no_such_package\n", "does not import: line 1: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "does not import: line 1: SystemExit"),
        ("f = 3\n", "cannot be called: it is int"),
        ("import torch\nclass f(torch.nn.Module):\n    pass\n", "is a class: write `model = f(...)` there"),
        ("def f(q, k, v, mask):\n    return q\n", "takes q, k, v, mask, and only 3 tensors are guessed"),
        ("def f(q, *, scale):\n    return q\n", "takes q, scale, and only 3"),
        ("def f(q):\n    return q\ndef example_inputs():\n    return 1 / 0\n", "line 4: ZeroDivisionError"),
        ("def f(q):\n    return q @ q\n", "assumed q: a float32 tensor of shape (1, 4, 128, 64); to give others"),
        ("def f(q):\n    raise ValueError('no')\ndef example_inputs():\n    return (1,)\n", "line 2: ValueError: no"),
        ("def g():\n    pass\n", "has no function f; it has g"),
    ],
)
def test_command_explain_tells_errors_of_the_users_file(text, said, tmp_path, capsys):
    status, err = explained(tmp_path, capsys, text, "f")
    assert status == 2 and said in err


def test_command_explain_takes_keyword_inputs(tmp_path, capsys):
    path = tmp_path / "keyword.py"
    inputs = "def example_inputs():\n    return {n: torch.ones(1, 2, 8, 4) for n in ('q', 'k', 'v', 'bias')}\n"
    body = "def f(q, k, v, *, bias):\n    return torch.softmax(q @ k.mT, -1) @ v + bias\n"
    path.write_text(f"import torch\n{body}{inputs}")
    assert command.main(["explain", f"{path}:f"]) == 0
    assert "Yes: 1 region" in capsys.readouterr().out


@pytest.mark.parametrize("target", ["users.py", "nothing.py:f", "{script}:missing", "{script}:not a name"])
def test_command_explain_says_what_is_wrong_with_its_target(target, script, capsys):
    assert command.main(["explain", target.format(script=script)]) == 2
    assert "onepass explain:" in capsys.readouterr().err


def test_command_rules(capsys):
    assert command.main(["rules"]) == 0
    said = capsys.readouterr().out
    from onepass.rules import ALL

    for law in ALL:
        assert law.name in said and law.law in said


def test_command_doctor(capsys):
    assert command.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert torch.__version__ in said and "works" in said


def test_a_wrong_command_exits_with_two():
    with pytest.raises(SystemExit) as stopped:
        command.main(["fuse"])
    assert stopped.value.code == 2


def test_the_module_runs_as_a_command():
    done = subprocess.run([sys.executable, "-m", "onepass", "rules"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "laws" in done.stdout


def test_no_command_prints_the_help(capsys):
    assert command.main([]) == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--certificate"])
def test_a_page_that_cannot_be_written_is_one_line(tmp_path, capsys, option):
    script = tmp_path / "script.py"
    script.write_text("import torch\ndef f(q, k, v): return torch.softmax(q @ k.mT, -1) @ v\n")
    place = tmp_path / "nowhere" / "page"
    assert command.main(["explain", f"{script}:f", option, str(place)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert f"onepass explain: cannot write {place}: No such file or directory" in said


def centred(q, k, v):
    scores = q @ k.mT
    return (scores - scores.mean(-1, keepdim=True)).relu() @ v


def test_passes_that_are_no_loops_are_said():
    """40 columns fit in a tile: they are passed over twice and looped over never."""
    short, long = onepass.explain(centred, *inputs(40)), onepass.explain(centred, *inputs())
    assert [k.loops for k in short.kernels] == [()]
    assert "passes      2 -> 2, in no loops: what is passed over fits in a tile\n" in str(short)
    assert "passes      3 -> 1\n" in str(onepass.explain(unmasked, *inputs()))
    assert short.passes == (2, 2) and long.kernels


@pytest.mark.sampled(1)
@pytest.mark.parametrize("executor", ["triton", "gluon"])
def test_kernels_asked_for_without_a_gpu(executor, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    options = {"executor": executor, "inner": "eager"}
    sentence = f"executor {executor} needs a GPU, and the tensors are on cpu"
    arguments = inputs(40)
    result = torch.compile(unmasked, backend=onepass_backend, options=options)(*arguments)
    torch.testing.assert_close(result, unmasked(*arguments))
    (region,) = records.reports()[-1].regions
    assert region.ran == "tiled" and [n for n in region.notes if n.startswith(sentence)]
    torch._dynamo.reset()
    with pytest.raises(ExecutorError, match=sentence):
        torch.compile(unmasked, backend=onepass_backend, options={**options, "strict": True})(*arguments)


@pytest.mark.slow
def test_gradients_and_tangents_are_explained_in_full(tmp_path):
    found = onepass.explain(causal, *inputs(), gradients=True, tangents=True)
    (region,) = found.regions
    assert [len(derived.forms) for derived in (region.gradients, region.tangents)] == [3, 1]
    assert sum(len(kernel.products) for kernel in region.gradients.kernels) == 7
    assert all(Path(kernel.source).exists() for kernel in region.gradients.kernels if kernel.loops)
    text = str(found)
    said = ("gradients   of q, ", "row         exp(x): g · exp(x)", "saves       log float32[b, h, i], 2.3 KiB")
    for line in said:
        assert f"  {line}" in text
    assert "  products    4 for each tile: " in text and "  tangents    of output" in text
    (written,) = json.loads(found.json())["regions"]
    assert written["gradients"]["rows"] and written["tangents"]["certificates"]


def test_without_the_question_nothing_is_said_of_derivatives():
    (region,) = onepass.explain(causal, *inputs()).regions
    assert region.gradients is None and region.tangents is None and "\n  gradients " not in str(region)


def test_only_inputs_that_want_gradients_have_them():
    q, k, v = inputs()
    with torch.no_grad():
        (region,) = onepass.explain(causal, q, k, v.requires_grad_(), gradients=True).regions
    assert [name for name, _ in region.gradients.forms] == ["v"]
    assert not q.requires_grad and not k.requires_grad


def nested(tensors, *, v):
    return unmasked(*tensors, v)


def test_inputs_inside_of_lists_and_keywords_get_gradients():
    q, k, v = inputs()
    (region,) = onepass.explain(nested, [q, k], v=v, gradients=True).regions
    assert len(region.gradients.forms) == 3 and not v.requires_grad


def sinks_beside_sums(q, k, v, sink):
    score = q @ k.mT
    score = score.masked_fill(torch.ones(score.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    column = sink.reshape(1, -1, 1, 1).expand(*score.shape[:3], 1)
    return torch.cat([score, column], -1).softmax(-1)[..., :-1] @ v, torch.logsumexp(score, -1)


@pytest.mark.slow
def test_why_gradients_are_not_derived_is_said():
    arguments = [*inputs(40), torch.randn(2)]
    (refused,) = onepass.explain(sinks_beside_sums, *arguments, gradients=True).refusals
    assert refused.kind == "training" and "an exponential could overflow" in refused.reason
    (region,) = onepass.explain(sinks_beside_sums, *arguments, gradients=True, options={"inner": "eager"}).regions
    assert "an exponential could overflow" in region.gradients.why_not
    assert "gradients   not derived, the original calls compute them: an exponential could overflow" in str(region)


def test_command_explain_gradients(script, capsys):
    assert command.main(["explain", f"{script}:attention", "--gradients"]) == 0
    assert "  gradients   of " in capsys.readouterr().out


def test_a_failure_in_a_report_of_derivatives_is_noted(monkeypatch):
    from onepass.graph_passes import region_gradients

    def broken(made, hints):
        raise RuntimeError("no report")

    monkeypatch.setattr(region_gradients, "gradients_report", broken)
    found = onepass.explain(causal, *inputs(), gradients=True)
    assert found.regions[0].gradients is None and found.failures[0].startswith("RuntimeError: no report")


def test_a_numpy_array_is_named():
    q, k, v = inputs()
    with pytest.raises(InputError, match=r"input 1 is a NumPy array.*torch\.from_numpy"):
        onepass.explain(causal, q, k.numpy(), v)
    with pytest.raises(InputError, match="v is a NumPy array"):
        onepass.explain(causal, q, k, v=v.numpy())


def test_a_second_call_takes_less_than_a_second():
    """Dynamo captures, the search runs again: about 0.15 s of a CPU, without what a first call imports."""
    onepass.explain(causal, *inputs())
    began = time.process_time()
    report = onepass.explain(lambda q, k, v: causal(q, k, v) + 1, *inputs())
    assert time.process_time() - began < 1 and report.fused
