"""Forged certificates: false arithmetic, junk at any place, too deep, too large. None is accepted, none crashes."""

import json
import math
import random
import time
from math import inf

import pytest
import torch

from onepass import rules
from onepass.cli import commands as command
from onepass.compiler.certificate_files import verify
from onepass.egraph import Dim, TermError
from onepass.egraph.derivation.certificate import FOLDING, INDICES, NOT_RULES, CertificateError, Derivation, check
from onepass.egraph.rewrite.serialization import rule_to_json, to_json
from onepass.egraph.terms.ops import cast, const, eq, exp, iota, le, load, lt, make, power, scale, scaled, sum_over
from onepass.egraph.terms.term import Tensor

pytestmark = pytest.mark.usefixtures("fresh")

# Arithmetic is decided again -----------------------------------------------------------------------------------------

I, J = Dim("i", 5), Dim("j", 7)


def one_step(start, name: str, new) -> Derivation:
    return Derivation.from_json(
        {"start": to_json(start), "goal": to_json(new), "steps": [[name, "forward", [], [], to_json(new), True]]}
    )


TRUE = [
    (const(1.0) / const(4.0), FOLDING, const(0.25)),
    (iota(I) + iota(J) - iota(I), INDICES, iota(J)),
    ((iota(I) * 7 + iota(J)) // 7, INDICES, (iota(J) + iota(I) * 7) // 7),
    (le(iota(I) + 1, iota(J) + 2), INDICES, le(iota(I), iota(J) + 1)),
    (le(iota(I), const(4)), INDICES, const(True)),
    (cast(const(0.25), "bfloat16"), FOLDING, const(0.25)),
    (cast(const(70000.0), "float16"), FOLDING, const(inf)),
    (cast(const(1 << 24), "float32"), FOLDING, const(2.0**24)),
    (cast(const(-1), "bool"), FOLDING, const(True)),
    (const(7) // const(-2), FOLDING, const(-4)),
    (const(7) % const(-2), FOLDING, const(-1)),
    (const(0.0) / const(0.0), FOLDING, const(float("nan"))),
]
FALSE = [
    (const(1.0) / const(4.0), FOLDING, const(0.5)),
    (const(1.0) / const(4.0), INDICES, const(0.25)),
    (const(2) * const(2), FOLDING, const(4.0)),
    (exp(load(Tensor("x", "float32", ()))), FOLDING, const(1.0)),
    (iota(I) + iota(J), FOLDING, iota(J) + iota(I)),
    (iota(I) + iota(J), INDICES, iota(J)),
    (iota(I) // 7, INDICES, iota(I) // 6),
    (le(iota(I), iota(J)), INDICES, le(iota(J), iota(I))),
    (le(iota(I), const(3)), INDICES, const(True)),
    (le(iota(I), const(4)), INDICES, const(False)),
    (cast(const(0.1), "bfloat16"), FOLDING, const(0.1)),  # rounds to 0.10009765625
    (cast(const(1e-9), "float16"), FOLDING, const(1e-9)),  # is 0 there
    (cast(const(65519.0), "float16"), FOLDING, const(inf)),
    (cast(const(300), "uint8"), FOLDING, const(44)),  # of another dtype
    (cast(const(3), "float32"), FOLDING, const(3)),
    (cast(const(2.5), "int64"), FOLDING, const(3)),
    (cast(const(True), "int64"), FOLDING, const(True)),
    (const(5) // const(0), FOLDING, const(0)),
    (const(5) % const(0), FOLDING, const(0)),
    (power(const(2), const(-1)), FOLDING, const(0)),
    (const(1 << 62) + const(1 << 62), FOLDING, const(1 << 62)),
    (sum_over(Dim("n", "N"), const(1.0)), FOLDING, const(5.0)),
    (sum_over(J, const(1.0)), FOLDING, const(7.0)),  # no operation of literals
    (lt(const(1.0), const(2.0)), FOLDING, const(1.0)),
    (scale(scaled(const(-inf), const(2.0))), FOLDING, const(0.0)),
    (iota(I) // const(0), INDICES, const(0)),
    (le(iota(I) // const(0), const(7)), INDICES, const(True)),
    (lt(iota(I), const(4)), INDICES, const(True)),
    (eq(iota(I), iota(J)), INDICES, const(True)),
    (iota(I) * iota(J), INDICES, iota(I) * iota(I)),
    (iota(I) % const(5), INDICES, iota(I)),  # true, and a law's to say
]


@pytest.mark.parametrize("start, name, new", TRUE, ids=str)
def test_true_arithmetic_is_accepted(start, name, new):
    check(one_step(start, name, new), ())


@pytest.mark.parametrize("start, name, new", FALSE, ids=str)
def test_false_arithmetic_is_refused(start, name, new):
    with pytest.raises(CertificateError, match=r"is not|cannot be decided"):
        check(one_step(start, name, new), ())


LITERALS = [0, 1, 2, 3, 7, 300, -1, -5, 1 << 40, True, False, 0.0, -0.0, 0.1, 0.5, 1.0, 2.5, -3.0, 1e-9, 7e4, inf, -inf]
TORCH = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "maximum": torch.maximum}
TORCH |= {"floordiv": torch.floor_divide, "mod": torch.remainder, "lt": torch.lt, "le": torch.le, "eq": torch.eq}
CASTS = ("float64", "float32", "float16", "bfloat16", "int64", "bool")


@pytest.mark.parametrize("seed", range(5))
def test_a_folding_that_is_accepted_is_what_torch_computes(seed):
    """Random operations of literals, and casts of them, against random results: no false one passes, true ones do."""
    draw, accepted = random.Random(seed), 0
    for _ in range(400):
        a, b = draw.choice(LITERALS), draw.choice(LITERALS)
        x, y = (torch.tensor(v, dtype=torch.float64 if isinstance(v, float) else None) for v in (a, b))
        try:
            if draw.random() < 0.5:
                op, dtype = "cast", draw.choice(CASTS)
                start, true = cast(const(a), dtype), x.to(getattr(torch, dtype)).double().item()
            else:
                op = draw.choice(list(TORCH))
                start, true = make(op, (const(a), const(b))), TORCH[op](x, y).item()
        except (TermError, RuntimeError, ZeroDivisionError):
            continue
        kind = {"int64": int, "bool": bool}.get(start.dtype, float)
        said = const(draw.choice([kind(true) if math.isfinite(true) else true, draw.choice(LITERALS)]))
        try:
            check(one_step(start, FOLDING, said), ())
        except CertificateError:
            continue
        accepted += 1
        value = said.attrs[0]
        assert type(value) is kind and (value == true or (math.isnan(value) and math.isnan(true)))
    assert accepted > 50


def test_the_names_of_arithmetic_are_no_names_of_rules():
    assert not set(NOT_RULES) & {law.name for law in rules.ALL}
    assert not any(name.isidentifier() for name in NOT_RULES)


# Files ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    script = tmp_path / "users.py"
    script.write_text("import torch\ndef attention(q, k, v):\n    return torch.softmax(q @ k.mT / 8, -1) @ v\n")
    path = tmp_path / "certificate.json"
    assert command.main(["explain", f"{script}:attention", "--certificate", str(path)]) == 0
    return path


def put(data, path, value) -> None:
    for part in path[:-1]:
        data = data[part]
    data[path[-1]] = value


def told(derivation):
    """What a derivation says: a subterm that stands at several places may be reached by each."""
    return derivation.start, derivation.goal, [(step.rule, step.old, step.after) for step in derivation.steps]


JUNK = [None, True, -1, 10**400, 1.5, "", "x", "9" * 5000, [], [[]], {}, {"nodes": []}, {"term": {"nodes": 3}}]


def places(data, path=()):
    """Every place of written data, as paths."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, key)
        yield from places(value, (*path, key))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_verify_answers_whatever_a_file_holds(seed, file, capsys):
    """One place of a true certificate, that brings a rule, is junk: never a traceback, nothing false accepted."""
    whole = json.loads(file.read_text())
    whole["regions"][0]["rules"] = [rule_to_json(rules.ALL[0])]
    every, draw = list(places(whole)), random.Random(seed)
    true = Derivation.from_json(whole["regions"][0]["derivation"])
    for path in draw.sample(every, 80):
        data = json.loads(json.dumps(whole))
        put(data, path, draw.choice(JUNK))
        file.write_text(json.dumps(data))
        status = command.main(["verify", str(file)])
        said = capsys.readouterr()
        assert status in (0, 1, 2) and (status == 0) == (not said.err)
        if status == 0:  # "" and [] are the same empty list: what is accepted is what was written
            found = verify(file)
            assert not found or told(found[0].derivation) == told(true)


def nested_json(levels: int) -> str:
    return '{"term": {"nodes": [["const", [], [' * levels + "1" + "]]]}}" * levels


def chain(nodes: int) -> str:
    written = [["const", [], [{"float": "1.0"}]], *(["exp", [n], []] for n in range(nodes))]
    return json.dumps({"nodes": written})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "term", [chain(5_000), chain(200_000), nested_json(200), nested_json(100_000), "[" * 200_000], ids=lambda t: t[:12]
)
def test_deep_and_huge_files_are_refused_in_bounded_time(term, file, capsys):
    text = file.read_text()
    begin = time.perf_counter()
    start = text.index('"start": ') + len('"start": ')
    file.write_text(text[:start] + term + text[text.index(', "goal"', start) :])
    assert command.main(["verify", str(file)]) == 2
    assert time.perf_counter() - begin < 20
    assert "is no certificate of onepass" in capsys.readouterr().err


def test_a_certificate_that_doubles_at_every_step_is_refused_in_bounded_time():
    """Each whole term has one node more, and twice the text."""
    terms = [load(Tensor("x", "float32", ()))]
    for _ in range(300):
        terms.append(terms[-1] + terms[-1])
    steps = [[FOLDING, "forward", [], [], to_json(t), True] for t in terms[1:]]
    begin = time.perf_counter()
    with pytest.raises(TermError):
        derivation = Derivation.from_json({"start": to_json(terms[0]), "goal": to_json(terms[-1]), "steps": steps})
        check(derivation, rules.ALL)
    assert time.perf_counter() - begin < 20
