"""Certificates of derivatives as files: each variant's is accepted, and no forgery of one is."""

import copy
import json
import random
import subprocess
import sys

import pytest

from onepass.cli import commands as command
from onepass.compiler.certificate_files import CertificateFileError, derivatives_certificate, verify
from onepass.egraph.derivation.certificate import NOT_RULES, CertificateError
from onepass.errors import OnepassError, Refusal
from onepass.graph.trace import program_of
from onepass.rules import ALL
from onepass.training.derive_backward import certified_gradients
from onepass.training.derive_tangents import certified_tangents
from onepass.training.not_derived import NotDerived
from onepass.translate.translate import translate
from tests import variants

RECORDS = {variant.name: variant for variant in variants.every()}
NOT_COMMUTATIVE = ("sub", "div", "lt", "le", "pow", "where", "load")


def of_variant(name, mode):
    """The written certificate of a variant's derivatives, by all floating inputs; None where none are derived."""
    record = RECORDS[name]
    try:
        program = program_of(record.function, *record.inputs())
        captured = translate(program)
        every = [tensor.dtype.startswith(("float", "bfloat")) for tensor in captured.inputs]
        if mode == "gradients":
            return certified_gradients(program, captured, every, [True] * len(captured.results))
        return certified_tangents(program, captured, every)
    except (NotDerived, Refusal):
        return None


def terms_of(data, path=()):
    """Where the terms of written data are, as paths to their lists of nodes."""
    if isinstance(data, dict) and "nodes" in data:
        yield (*path, "nodes")
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from terms_of(value, (*path, key))


def steps_of(data, path=()):
    """Where the steps of chains are."""
    if isinstance(data, dict) and "steps" in data:
        yield from ((*path, "steps", n) for n in range(len(data["steps"])))
    elif isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from steps_of(value, (*path, key))


def at(data, path):
    for part in path:
        data = data[part]
    return data


def change_sign(data, draw):
    """A term becomes its negative: of a chain, a step, an equation, a saved value or a derivative."""
    path = draw.choice(list(terms_of(data)))
    at(data, path).append(["neg", [len(at(data, path)) - 1], []])
    return path


def swap_operands(data, draw):
    """The operands of one operation of a term change places."""
    places = [
        (path, n)
        for path in terms_of(data)
        for n, (op, args, _) in enumerate(at(data, path))
        if op in NOT_COMMUTATIVE and len({*args}) > 1
    ]
    path, n = draw.choice(places)
    args = at(data, path)[n][1]
    k = draw.choice([k for k in range(len(args) - 1) if args[k] != args[k + 1]])
    args[k], args[k + 1] = args[k + 1], args[k]
    return path


def replace_rule(data, draw):
    """A step says that it is by another rule; some variants need no step."""
    if not [*steps_of(data)]:
        return change_sign(data, draw)
    path = draw.choice(list(steps_of(data)))
    known = [rule.name for rule in ALL] + [premise["name"] for premise in data["premises"]] + [*NOT_RULES]
    at(data, path)[0] = draw.choice([name for name in known if name != at(data, path)[0]])
    return path


def drop_step(data, draw):
    """A chain lacks one of its steps."""
    if not [*steps_of(data)]:
        return change_sign(data, draw)
    path = draw.choice(list(steps_of(data)))
    del at(data, path[:-1])[path[-1]]
    return path


def weaken_premise(data, draw):
    """An equation about a saved value gets a factor, on either side; some variants have none."""
    if not data["premises"]:
        return change_sign(data, draw)
    n = draw.randrange(len(data["premises"]))
    nodes = data["premises"][n][draw.choice(["left", "right"])]["nodes"]
    last = len(nodes) - 1
    nodes += [["const", [], [{"float": "2.0"}]], ["mul", [last, last + 1], []]]
    return ("premises", n)


FORGERIES = (change_sign, swap_operands, replace_rule, drop_step, weaken_premise)


def written(data, path):
    region = {"at": ["here:1"], "derivatives": data}
    path.write_text(json.dumps({"onepass certificate": 1, "regions": [region]}))
    return path


def hold_forgeries(data, path, draw, forgeries, unproved=()):
    """Asserts that each forgery is refused, with a reason; but for what nothing is said to show."""
    for forge in forgeries:
        changed = copy.deepcopy(data)
        place = forge(changed, draw)
        if changed == data or (set(place[:1]) <= {"named", "premises"} and unproved):
            continue
        with pytest.raises((CertificateError, CertificateFileError)) as refused:
            verify(written(changed, path))
            pytest.fail(f"{forge.__name__} at {place} was accepted")
        assert len(str(refused.value)) > 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", RECORDS)
def test_each_variants_gradients_hold_and_forgeries_are_refused(name, tmp_path):
    found = of_variant(name, "gradients")
    if found is None:
        pytest.skip("its gradients are not derived")
    assert found.unproved == (), "an equation about a saved value is not shown"
    data = json.loads(json.dumps(found.to_json()))
    (checked,) = verify(written(data, tmp_path / "c.json"))
    assert checked.found == found and "not shown" not in str(checked)
    draw = random.Random(name)
    hold_forgeries(data, tmp_path / "c.json", draw, draw.sample(FORGERIES, 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["full", "causal", "attention sink", "softcap", "differential", "ALiBi, slopes given"])
def test_tangents_hold_and_forgeries_are_refused(name, tmp_path):
    found = of_variant(name, "tangents")
    data = json.loads(json.dumps(found.to_json()))
    (checked,) = verify(written(data, tmp_path / "c.json"))
    assert checked.found == found
    hold_forgeries(data, tmp_path / "c.json", random.Random(name), FORGERIES * 2, found.unproved)


@pytest.mark.slow
def test_every_sign_and_every_rule_of_one_certificate_counts(tmp_path):
    class Every:
        """Draws the n-th choice of the first draw, and the first of those behind it."""

        def __init__(self, n):
            self.n = n

        def choice(self, choices):
            n, self.n = self.n, 0
            return choices[n]

    data = json.loads(json.dumps(of_variant("full", "gradients").to_json()))
    for forge, many in ((change_sign, len([*terms_of(data)])), (replace_rule, len([*steps_of(data)]))):
        for n in range(many):
            hold_forgeries(data, tmp_path / "c.json", Every(n), [forge])


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    script = tmp_path / "users.py"
    script.write_text("import torch\ndef attention(q, k, v):\n    return torch.softmax(q @ k.mT / 8, -1) @ v\n")
    path = tmp_path / "certificate.json"
    asked = ["--gradients", "--tangents", "--certificate", str(path)]
    assert command.main(["explain", f"{script}:attention", *asked]) == 0
    return path


WITHOUT = """
import sys
from onepass.cli.commands import main
status = main(["verify", sys.argv[1]])
loaded = [name for name in ("torch", "egglog", "egglog.bindings", "triton", "hypothesis", "z3") if name in sys.modules]
print("loaded", loaded, "status", status)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("fresh")
def test_the_command_writes_and_verifies_derivatives(file, capsys):
    done = subprocess.run([sys.executable, "-c", WITHOUT, str(file)], capture_output=True, text=True, check=True)
    assert "loaded [] status 0" in done.stdout
    for said in (
        ": gradients of q, ",  # then k.mT, by the name that Dynamo gives it
        ": tangents of output",
        "row  exp(x): g · exp(x) (1 times)",
        "premise  saved_log: Σ_j exp(",
        "(shown, for rows that keep an element)",
        ": log\n",
        ": tangent_output\n",
    ):
        assert said in done.stdout, said
    capsys.readouterr()
    data = json.loads(file.read_text())
    (region,) = (r["derivatives"] for r in data["regions"] if r.get("derivatives", {}).get("mode") == "gradients")
    region["chains"][0]["steps"][0][0] = "multiply_by_one"
    file.write_text(json.dumps(data))
    assert command.main(["verify", str(file)]) == 1
    assert "proves nothing: chain 1, step 1: multiply_by_one: " in capsys.readouterr().err


NO_ENTRY = "of a result that no other entry here is about: output"


@pytest.mark.usefixtures("fresh")
def test_derivatives_are_held_to_the_results_of_their_file(file, capsys):
    """A file cannot show that nothing was taken out of it; that derivatives are alone in it is said."""
    assert not any(getattr(one, "alone", ()) for one in verify(file))
    data = json.loads(file.read_text())
    whole = data["regions"]
    for regions in (
        [r for r in whole if "derivatives" in r],
        [r if "derivatives" in r else {**r, "derivation": trivial(r["derivation"])} for r in whole],
    ):
        file.write_text(json.dumps({**data, "regions": regions}))
        capsys.readouterr()
        assert command.main(["verify", str(file)]) == 0
        assert capsys.readouterr().out.count(NO_ENTRY) == 2  # of gradients and of tangents
    file.write_text(json.dumps({**data, "regions": []}))
    assert command.main(["verify", str(file)]) == 1
    assert "holds no region, so it proves nothing" in capsys.readouterr().err


def trivial(derivation):
    """The chain without its steps: what it leads to is what it starts from."""
    return {**derivation, "start": derivation["goal"], "steps": []}


def test_an_equation_that_nothing_shows_is_said(tmp_path):
    data = of_variant("causal", "gradients").to_json()
    data["proofs"][0] = None
    (checked,) = verify(written(data, tmp_path / "c.json"))
    assert "exp(log[b, h, i]) (not shown, relied on)" in str(checked)


@pytest.mark.parametrize("change", [{"mode": "hessians"}, {"forms": 1}, {"proofs": [[]]}, {"shown": [{}]}])
def test_what_is_no_certificate_of_derivatives_is_said_to_be_none(change, tmp_path):
    data = of_variant("causal", "gradients").to_json() | change
    with pytest.raises(CertificateFileError, match="no certificate of onepass"):
        verify(written(data, tmp_path / "c.json"))


def test_what_is_written_is_what_a_region_of_a_file_has():
    found = of_variant("causal", "gradients")
    assert derivatives_certificate(found) == {"derivatives": found.to_json()}
    assert issubclass(CertificateFileError, OnepassError)
