"""What a user is told who calls onepass wrongly: where it was written, and what to write instead."""

import functools

import pytest
import torch

import onepass
from onepass.cli import commands as command
from onepass.errors import InputError, OptionError

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.randn(1, 2, 20, 16)


def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v


# Options ------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inner": "eager", "inner_options": {"max_autotune": True}}, "inner='eager' leaves Inductor out"),
        ({"inner_options": {"max_autotoon": True}}, "'max_autotoon', which Inductor does not have"),
        ({"inner_options": 3}, "inner_options is a dict of Inductor's options, not 3"),
        ({"max_autotune": True}, "write 'inner_options': {'max_autotune': ...}"),
        ({"executor": "cuda"}, "executor is one of auto, tiled, triton, gluon, not 'cuda'"),
        ({"rules": [lambda s: (s, s)]}, "rules holds a lambda ("),
        ({"rules": attend}, "not the function attend ("),
        ("strict", "options is a dict of names and values, not 'strict'"),
    ],
)
def test_a_bad_option_raises_where_it_is_written(options, said):
    looked = lambda options: onepass.explain(attend, X, X, X, options=options)
    for make in (lambda: onepass.onepass_backend(options=options), lambda: looked(options)):
        with pytest.raises(OptionError) as raised:
            make()
        assert said in str(raised.value)
    with pytest.raises(Exception, match="OptionError"):  # Dynamo's error holds the message
        torch.compile(attend, backend=onepass.onepass_backend, options=options)(X, X, X)


def test_a_mode_without_inductor_is_refused():
    with pytest.raises(OptionError, match="Unrecognized mode=fast"):
        onepass.onepass_backend(mode="fast")
    with pytest.raises(OptionError, match="mode is Inductor's"):
        onepass.onepass_backend(mode="max-autotune", options={"inner": "eager"})


def test_a_backend_with_options_computes_and_keeps_them():
    backend = onepass.onepass_backend(options={"inner": "eager", "executor": "tiled"})
    torch.testing.assert_close(torch.compile(attend, backend=backend)(X, X, X), attend(X, X, X))
    (report,) = onepass.reports()
    assert report.regions[0].executor == "tiled"
    assert backend == onepass.onepass_backend(options={"inner": "eager", "executor": "tiled"})
    with pytest.raises(Exception, match="options given twice"):
        torch.compile(attend, backend=backend, options={"strict": True})(X, X, X)


def test_options_of_inductor_reach_it():
    seen = []

    def looked(graph):
        seen.append(graph)

    backend = onepass.onepass_backend(options={"inner_options": {"post_grad_custom_pre_pass": looked}})
    with torch._inductor.config.patch(force_disable_caches=True):
        torch.compile(attend, backend=backend)(X, X, X)
    assert seen


def test_rules_that_are_given_twice_are_refused():
    with pytest.raises(OptionError, match="rules are given twice"):
        onepass.explain(attend, X, X, X, rules=[3], options={"rules": []})


@pytest.mark.parametrize("given", [attend, torch.nn.Linear(2, 2)])
def test_the_backend_is_not_called_with_a_model(given):
    with pytest.raises(InputError, match=r"torch.compile\((attend|Linear), backend=onepass.onepass_backend\)"):
        onepass.onepass_backend(given)


# explain ------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: onepass.explain(attend), r"calls attend\(q, k, v\) with 0 inputs: missing a required argument: 'q'"),
        (lambda: onepass.explain(attend, (X, X, X)), r"a tuple of inputs is given as explain\(attend, \*inputs\)"),
        (lambda: onepass.explain(attend, X, X, X, executor="triton"), r"options=\{'executor': 'triton'\}"),
        (lambda: onepass.explain(attend, X, X, X, scale=3), "got an unexpected keyword argument 'scale'$"),
        (lambda: onepass.explain(3), "takes a function or a module first, and this is of type int"),
        (lambda: onepass.explain(attend(X, X, X)), "and this is of type Tensor"),
        (lambda: onepass.explain(torch.nn.Linear, X), r"Linear is a class: explain\(Linear\(...\), \*inputs\)"),
        (lambda: onepass.explain(torch.nn.Linear(16, 16)), r"calls Linear\(input\) with 0 inputs"),
    ],
)
def test_a_call_of_explain_that_the_function_does_not_take(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_explain_takes_whatever_the_function_takes():
    def scaled(q, k, v, *, executor=1.0):
        return attend(q * executor, k, v)

    @functools.wraps(scaled)
    def doubled(q, *rest):
        return scaled(q, q, q, executor=2.0)

    first = functools.partial(attend, X, X)
    hooked = torch.nn.Linear(16, 16)
    hooked.register_forward_pre_hook(lambda module, given: given[:1])
    for function, inputs, keywords in (
        (scaled, (X, X, X), {"executor": 2.0}),
        (doubled, (X,), {}),
        (first, (X,), {}),
        (torch.no_grad()(attend), (X, X, X), {}),
        (hooked, (X, X), {}),
        (torch.compile(attend), (X, X, X), {}),
    ):
        assert onepass.explain(function, *inputs, **keywords).graphs == 1


# Rules ------------------------------------------------------------


@pytest.mark.parametrize("given", [3, "law", functools.partial(attend, X)])
def test_what_is_no_function_is_no_rule(given):
    with pytest.raises(onepass.egraph.RuleError, match="cannot be a rule: write a function with a name, and the law"):
        onepass.rule(given)


def test_a_lambda_is_named_by_its_place():
    law = lambda s: (s + 0.0, s)
    place = f"({__file__}:{law.__code__.co_firstlineno})"
    for call in (lambda: onepass.check(law), lambda: onepass.GraphPass([law]), lambda: onepass.rule(law)):
        with pytest.raises((TypeError, OptionError)) as raised:
            call()
        assert place in str(raised.value) and "lambda" in str(raised.value) and "0x" not in str(raised.value)


def several(*xs):
    """x + y = y + x"""
    return xs[0] + xs[1], xs[1] + xs[0]


def defaulted(a, c=2.0):
    """a · c / c = a"""
    return a * c / c, a


def annotated(a: torch.Tensor):
    """a + 0 = a"""
    return a + 0.0, a


def plain(a):
    """a + 0 = a"""
    return a + 0.0, a


@pytest.mark.parametrize(
    ("function", "keywords", "said"),
    [
        (several, {}, "parameter *xs stands for several"),
        (defaulted, {}, "parameter c has a default: a pattern variable is whatever it matches"),
        (annotated, {}, "the annotation of a is \"<class 'torch.Tensor'>\"; it names dims"),
        (plain, {"trust": "no"}, "trust is True or False, not 'no'"),
        (plain, {"both": 1}, "both is True or False, not 1"),
        (plain, {"when": True}, "`when` is a function of the rule's variables that gives a guard, not True"),
        (plain, {"exakt": "bitwise"}, "a rule has no keyword 'exakt'; it has when, both, exact, trust, device"),
    ],
)
def test_a_rule_says_what_its_parameters_may_be(function, keywords, said):
    with pytest.raises(onepass.egraph.RuleError) as raised:
        onepass.rule(function, **keywords)
    place = f"rule {function.__name__} ({__file__}:{function.__code__.co_firstlineno}): "
    assert str(raised.value).startswith(place + said)
    with pytest.raises(onepass.egraph.RuleError, match="^rule " + function.__name__):
        onepass.rule(**keywords)(function)


# The command line ------------------------------------------------------------

FILE = """
import torch
def attend(q, k, v):
    return torch.softmax(q @ k.mT, -1) @ v
class Own(torch.nn.Module):
    def forward(self, x):
        return attend(x, x, x)
model = torch.nn.Sequential(Own())
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize(
    ("name", "assumed"), [("attend", "q, k, v: float32 tensors"), ("model", "input: a float32 tensor")]
)
def test_assumed_inputs_are_said(name, assumed, mine, capsys):
    assert command.main(["explain", f"{mine}:{name}"]) == 0
    said = capsys.readouterr()
    assert f"assumed {assumed} of shape (1, 4, 128, 64); to give others, give --shape, or write `def" in said.err
    assert "Yes: 1 region" in said.out and f"{mine}:4" in said.out


def test_given_inputs_are_not_said(mine, capsys):
    mine.write_text(FILE + "def example_inputs():\n    return [torch.ones(1, 2, 8, 4)] * 3\n")
    assert command.main(["explain", f"{mine}:attend"]) == 0
    assert "assumed " not in capsys.readouterr().err


def test_modules_of_the_file_are_listed(mine, capsys):
    assert command.main(["explain", f"{mine}:other"]) == 2
    assert "has no function other; it has Own, attend, model" in capsys.readouterr().err


def test_verify_of_python_says_what_it_checks(mine, capsys):
    assert command.main(["verify", str(mine)]) == 2
    said = capsys.readouterr().err
    assert "is Python, and no certificate" in said and "--certificate PATH" in said and "onepass.check(rule)" in said


@pytest.mark.parametrize("named", [True, False])
def test_doctor_names_the_remedy_for_a_backend_without_a_name(named, monkeypatch, capsys):
    monkeypatch.setattr(torch._dynamo, "list_backends", lambda: ["onepass"] if named else [])
    assert command.main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert ("backend   onepass, found by name" in said) == named
    assert ("pip install -e ." in said and "backend=onepass.onepass_backend" in said) == (not named)
