"""Certificates from capture to kernel: they start at the captured term, survive a file, and no corruption passes."""

import dataclasses
import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import onepass
from onepass import process_state, rules
from onepass.cli import commands as command
from onepass.compiler import certificate_files
from onepass.compiler.certificate_files import CertificateFileError, certificate, verify
from onepass.compiler.optimize import certify, optimize
from onepass.egraph import Dim, TermError, rule
from onepass.egraph.derivation.certificate import FOLDING, INDICES, NOT_RULES, CertificateError, Derivation, check
from onepass.egraph.derivation.derive import derive, replay
from onepass.egraph.derivation.normalize import Normaliser
from onepass.egraph.rewrite.serialization import rule_to_json, to_json
from onepass.egraph.terms.evaluate import evaluate
from onepass.egraph.terms.ops import const, exp, iota, le, load, sum_over
from onepass.egraph.terms.term import Tensor
from onepass.egraph.terms.traversal import subterms, tensors
from onepass.graph.trace import program_of
from onepass.translate.translate import translate
from tests.support.strategies import index_terms

pytestmark = pytest.mark.usefixtures("fresh")
SHAPE = (1, 2, 6, 4)


def plain(q, k, v):
    return torch.softmax(q @ k.mT / 8, dim=-1) @ v


def causal(q, k, v):
    keep = torch.tril(torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool))
    return torch.softmax((q @ k.mT / 2).masked_fill(~keep, -math.inf), dim=-1) @ v


def windowed(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = (q @ k.mT * 2).masked_fill(j > i, -math.inf).masked_fill(i - j > 3, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def halved(q, k, v):
    return causal(q.half(), k.half(), v.half())


def flattened(q, k, v):
    q, k, v = (x.reshape(-1, *SHAPE[2:]) for x in (q, k, v))
    return (torch.softmax(q @ k.mT, dim=-1) @ v).view(SHAPE)


SPELLINGS = (plain, causal, windowed, halved, flattened)


def captured(function):
    return translate(program_of(function, *(torch.randn(SHAPE) for _ in range(3))))


@pytest.fixture(scope="module")
def found() -> dict[str, Derivation]:
    return {f.__name__: optimize((c := captured(f)).term, c.output, c.order).derivation for f in SPELLINGS}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_the_chain_leads_from_the_captured_to_the_extracted_term(function):
    region = captured(function)
    best = optimize(region.term, region.output, region.order)
    assert best.derivation.start is region.term
    assert best.derivation.goal is best.term
    check(best.derivation, rules.ALL)


def test_the_steps_of_the_normaliser_are_among_them(found):
    names = {step.rule for derivation in found.values() for step in derivation.steps}
    assert {"divide_by_constant", FOLDING, "mask_of_masked", "cast_there_and_back", "rescale_sum"} <= names


@pytest.mark.parametrize("function", SPELLINGS, ids=lambda f: f.__name__)
def test_every_whole_term_on_the_way_has_one_value(function, found):
    generator = np.random.default_rng(0)
    start = found[function.__name__].start
    arrays = {t.name: generator.standard_normal(t.shape) for t in tensors(start)}
    dims = sorted(start.dims)
    expected = evaluate(start, arrays, dims)
    for step in found[function.__name__].steps:
        np.testing.assert_allclose(evaluate(step.after, arrays, dims), expected, rtol=1e-9)


@pytest.mark.parametrize("function", [plain, halved], ids=lambda f: f.__name__)
def test_a_certificate_takes_at_most_50_milliseconds(function, capsys):
    region = captured(function)
    normaliser = Normaliser(rules.NORMAL)
    normaliser.normal(region.term)
    best = optimize(region.term, region.output, region.order)

    def seconds():
        begin = time.perf_counter()
        certify(region.term, normaliser, best.term, best.fired, rules.ALL)
        return time.perf_counter() - begin

    least = min(seconds() for _ in range(5))
    with capsys.disabled():
        print(f"[certificate of {function.__name__}: {1e3 * least:.1f} ms] ", end="")
    assert least < 0.05


# Arithmetic is decided again -----------------------------------------------------------------------------------------

J = Dim("j", 7)


def test_index_arithmetic_is_replayed():
    names = set()

    @settings(max_examples=60)
    @given(index_terms, index_terms)
    def replayed(a, b):
        normaliser = Normaliser(rules.NORMAL)
        start = le(a, b)
        goal = normaliser.normal(start)
        derivation = replay(start, normaliser)
        check(derivation, rules.ALL)
        assert derivation.goal is goal
        names.update(step.rule for step in derivation.steps)

    replayed()
    assert {INDICES, FOLDING, "remainder_of_small", "quotient_of_multiple_and_rest"} <= names


def test_a_shared_subterm_changes_everywhere_in_one_step():
    s = load(Tensor("x", "float32", (7,)), iota(J)) / 8.0
    normaliser = Normaliser(rules.NORMAL)
    start = exp(s) * s
    goal = normaliser.normal(start)
    derivation = replay(start, normaliser)
    assert derivation.goal is goal
    assert [step.rule for step in derivation.steps].count("divide_by_constant") == 1


# Corruption ----------------------------------------------------------------------------------------------------------


def test_every_dropped_or_swapped_step_is_refused(found):
    for derivation in found.values():
        count = len(derivation.steps)
        for n in range(count):
            kept = derivation.steps[:n] + derivation.steps[n + 1 :]
            swapped = list(derivation.steps)
            swapped[n], swapped[n - 1] = swapped[n - 1], swapped[n]
            for steps in (kept, tuple(swapped)):
                with pytest.raises(CertificateError):
                    check(dataclasses.replace(derivation, steps=steps), rules.ALL)


def numbers(data, path=()):
    """Where the literals of a written certificate are, as paths."""
    if isinstance(data, dict) and "nodes" in data:
        for n, (op, _, attrs) in enumerate(data["nodes"]):
            if op == "const":
                yield (*path, "nodes", n, 2, 0), attrs[0]
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from numbers(value, (*path, key))


def put(data, path, value) -> None:
    for part in path[:-1]:
        data = data[part]
    data[path[-1]] = value


def other_number(value):
    if isinstance(value, dict):
        number = float(value["float"])
        return {"float": repr(0.0 if math.isinf(number) else number + 0.5)}
    return not value if isinstance(value, bool) else value + 1


def corrupt(draw, data: dict) -> str:
    """Changes one thing of a written derivation in place; says what."""
    steps = data["steps"]
    n = draw(st.integers(0, len(steps) - 1))
    rule_name, _, position, binding, _, _ = steps[n]
    what = draw(st.sampled_from(["number", "rule", "direction", "position", "binding", "result", "drop", "start"]))
    if what == "number":
        path, value = draw(st.sampled_from(list(numbers(data))))
        put(data, path, other_number(value))
    elif what == "rule":
        others = [law.name for law in rules.ALL if law.name != rule_name] + list(set(NOT_RULES) - {rule_name})
        steps[n][0] = draw(st.sampled_from(others))
    elif what == "direction":
        steps[n][1] = "backward" if steps[n][1] == "forward" else "forward"
    elif what == "position":
        steps[n][2] = draw(st.lists(st.integers(0, 2), max_size=6).filter(lambda p: p != position))
    elif what == "binding":
        steps[n][3] = [[name, f"{text} + 1"] for name, text in binding] or [["x", "1"]]
    elif what == "result":
        steps[n][4] = to_json(draw(st.sampled_from([const(0.375), exp(load(Tensor("q", "float32", ())))])))
    elif what == "drop":
        del steps[n]
    else:
        data["start"] = data["goal"]
    return what


@pytest.mark.slow
@settings(max_examples=300)
@given(data=st.data())
def test_no_corruption_passes(data):
    """Where another path leads to the very same subterm, the step is the same one, and may be accepted."""
    original = WRITTEN[data.draw(st.sampled_from(sorted(WRITTEN)))]
    changed = json.loads(json.dumps(original))
    what = corrupt(data.draw, changed)
    try:
        derivation = Derivation.from_json(changed)
        check(derivation, rules.ALL)
    except TermError:
        return
    same = Derivation.from_json(original)
    assert what == "position" and [(s.old, s.after) for s in derivation.steps] == [(s.old, s.after) for s in same.steps]


WRITTEN: dict[str, dict] = {}


@pytest.fixture(scope="module", autouse=True)
def written(found):
    WRITTEN.update((name, json.loads(json.dumps(d.to_json()))) for name, d in found.items())


def test_a_step_under_a_weakened_guard_is_refused():
    law = next(r for r in rules.ALL if r.name == "divisor_out_of_sum")
    a, c = (load(Tensor(n, "float32", (7,)), iota(J)) for n in "ac")
    wrong = derive(sum_over(J, a / c), sum_over(J, a) / c, [dataclasses.replace(law, guards=())])
    assert wrong is not None
    with pytest.raises(CertificateError, match="guard «c does not depend on j» does not hold"):
        check(wrong, rules.ALL)


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    script = tmp_path / "users.py"
    script.write_text("import torch\ndef attention(q, k, v):\n    return torch.softmax(q @ k.mT / 8, -1) @ v\n")
    path = tmp_path / "certificate.json"
    assert command.main(["explain", f"{script}:attention", "--certificate", str(path)]) == 0
    return path


WITHOUT = """
import sys
from onepass.cli.commands import main
status = main(["verify", sys.argv[1]])
loaded = [name for name in ("torch", "egglog", "egglog.bindings", "triton", "hypothesis", "z3") if name in sys.modules]
print("loaded", loaded, "status", status)
"""


def test_verify_needs_neither_torch_nor_the_search(file):
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(file)], capture_output=True, text=True, check=True)
    assert "loaded [] status 0" in done.stdout
    assert "rescale_weighted_sum: Σ_j exp(s - max_j s) · w" in done.stdout and "checked  6 steps" in done.stdout


def test_a_report_carries_its_certificate_through_the_cache_and_prints_it(tmp_path):
    inputs = [torch.randn(SHAPE) for _ in range(3)]
    first = onepass.explain(plain, *inputs)
    process_state.forget("runners", "regions")
    again = onepass.explain(plain, *inputs)
    assert "found on disk" in again.regions[0].cache
    (checked,) = verify(certificate_files.write(again, tmp_path / "c.json"))
    assert checked.derivation == Derivation.from_json(first.regions[0].certificates[0]["derivation"])
    text = str(again.derivation)
    assert "constant folding" in text and "everywhere:  1 / 8  =>  0.125" in text
    assert text == str(first.derivation)


def beside(q, k, v):
    """Two kernels: the states of the loop are stored for the one that computes the weights."""
    weights = torch.softmax(q @ k.mT, dim=-1)
    return weights @ v, weights


@pytest.fixture(scope="module")
def file_of_stored(tmp_path_factory):
    inputs = [torch.randn(1, 2, 600, 16) for _ in range(3)]
    return certificate_files.write(onepass.explain(beside, *inputs), tmp_path_factory.mktemp("c") / "stored.json")


def test_what_a_plan_stores_is_taken_out_step_by_step(file_of_stored):
    *chains, of_plan = verify(file_of_stored)
    assert [chain.of for chain in chains] == ["", ""] and of_plan.of == "output1 as the plan computes it"
    assert of_plan.derivation.rules == ("read_of_stored",) and len(of_plan.derivation.steps) == 2
    assert "as part0" in str(of_plan) and not any(node.op == "stored" for node in subterms(of_plan.derivation.goal))


@pytest.mark.parametrize("what", ["another part", "a number", "an input"])
def test_a_step_that_takes_out_something_else_is_refused(what, file_of_stored, tmp_path):
    """Each puts something else where a part was read."""
    data = json.loads(file_of_stored.read_text())
    first, second = data["regions"][-1]["derivation"]["steps"]
    reading = to_json(load(Tensor("q", "float32", ())))
    first[4] = {"another part": second[4], "a number": to_json(const(1.0)), "an input": reading}[what]
    file = tmp_path / "forged.json"
    file.write_text(json.dumps(data))
    with pytest.raises(CertificateError, match="step 1"):
        verify(file)


def changed_file(file, change):
    data = json.loads(file.read_text())
    change(data)
    file.write_text(json.dumps(data))
    return file


def test_verify_says_which_step_is_wrong(file, capsys):
    def change(data):
        data["regions"][0]["derivation"]["steps"][3][0] = "factor_out_of_sum"

    assert command.main(["verify", str(changed_file(file, change))]) == 1
    assert "proves nothing: step 4: factor_out_of_sum: " in capsys.readouterr().err


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.clear(),
        lambda data: data.update({"onepass certificate": 99}),
        lambda data: data["regions"][0].update(derivation=[]),
        lambda data: data["regions"][0].update(rules=[{"name": "x"}]),
    ],
)
def test_what_is_no_certificate_is_said_to_be_none(change, file, capsys):
    assert command.main(["verify", str(changed_file(file, change))]) == 2
    assert str(file) in capsys.readouterr().err


def test_a_missing_file_is_said(tmp_path, capsys):
    assert command.main(["verify", str(tmp_path / "none.json")]) == 2
    missing = tmp_path / "none.json"
    assert capsys.readouterr().err == f"onepass verify: cannot read {missing}: No such file or directory\n"


def test_a_law_without_its_guard_may_not_take_its_name(file):
    law = next(r for r in rules.ALL if r.name == "divisor_out_of_sum")
    weaker = rule_to_json(dataclasses.replace(law, guards=()))
    with pytest.raises(CertificateFileError, match="brings a rule 'divisor_out_of_sum' that is not the law"):
        verify(changed_file(file, lambda data: data["regions"][0].update(rules=[weaker])))


def test_a_foreign_law_is_named(tmp_path):
    @rule
    def doubled(a):
        """a + a = a · 2"""
        return a + a, a * 2.0

    x = load(Tensor("x", "float32", (7,)), iota(J))
    derivation = derive(x + x, x * 2.0, [doubled])
    region = {"at": ["here:1"], **certificate(derivation, derivation.to_json(), (doubled,))}
    path = tmp_path / "foreign.json"
    path.write_text(json.dumps({"onepass certificate": 1, "regions": [region]}))
    (checked,) = verify(path)
    assert checked.foreign == (doubled,)
    assert "relies on a law that is not onepass's: doubled: a + a = a · 2" in str(checked)
