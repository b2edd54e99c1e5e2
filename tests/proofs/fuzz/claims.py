"""Random claims: laws with one or two small changes, laws of random terms instead of variables, and random terms.

A claim is a Rule that is true or false; who draws it does not know. Example: log x + log y = log(x · y) with x for y on
the right side.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from onepass import rules
from onepass.egraph.rewrite.guard import Guard
from onepass.egraph.rewrite.rule import Rule, refuse_bad, variables_of
from onepass.egraph.terms.ops import OPS, cast, const, make, reduce, var
from onepass.egraph.terms.term import Dim, Term, TermError
from onepass.egraph.terms.traversal import substitute, subterms
from tests.proofs.false_laws import FALSE_LAWS
from tests.proofs.true_laws import TRUE_LAWS

REAL, LOGIC = ("any", "float"), ("bool",)
UNARY = ("neg", "exp", "log", "sqrt", "abs", "tanh", "sigmoid", "floor", "sin", "cos", "exp2", "log2", "log1p", "rsqrt")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum", "pow")
COMPARED = ("lt", "le", "eq")
NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, -2.0, 3.0, 37.5, float("-inf"), float("inf"))
MONOIDS = ("sum", "max", "min", "prod")
CASTS = ("float32", "float16", "int64", "int8")
MIXES = ("x", "y", "z")
KNOWN_GUARDS = ("independent", "constant", "positive", "nonzero", "float_dtype", "has_dtype", "depends", "not_constant")


def _is_usable(law: Rule) -> bool:
    """Whether the evaluator has a meaning for the law's parts: no attribute variables but dtypes, no loads."""
    kinds = {kind for _, kind in law.variables}
    nodes = [n for side in (law.left, law.right) for n in subterms(side)]
    known = all(guard.kind in KNOWN_GUARDS for guard in law.guards)
    return not kinds & {"monoid", "operator"} and known and not any(n.op in ("load", "iota", "uniform") for n in nodes)


LAWS = tuple(law for law in (*TRUE_LAWS, *FALSE_LAWS, *rules.ALL) if _is_usable(law))


def random_term(random: Random, depth: int, names=MIXES) -> Term:
    """A random term of reals."""
    if depth == 0 or random.random() < 0.15:
        return var(random.choice(names)) if random.random() < 0.7 else const(random.choice(NUMBERS))
    again = lambda: random_term(random, depth - 1, names)
    kind = random.random()
    if kind < 0.4:
        return make(random.choice(UNARY), (again(),))
    if kind < 0.85:
        return make(random.choice(BINARY), (again(), again()))
    if kind < 0.92:
        return make("where", (random_condition(random, again), again(), again()))
    return cast(again(), random.choice(CASTS)) if kind < 0.94 else again() + const(random.choice(NUMBERS))


def random_condition(random: Random, again) -> Term:
    kind = random.random()
    if kind < 0.3:
        return make("finite", (again(),)) if kind < 0.2 else cast(again(), "bool")
    return make(random.choice(COMPARED), (again(), again()))


def _places(root: Term) -> list[tuple[int, ...]]:
    """The paths to all occurrences of subterms."""
    return [(), *((n, *path) for n, a in enumerate(root.args) for path in _places(a))]


def _at(root: Term, path: tuple[int, ...]) -> Term:
    for step in path:
        root = root.args[step]
    return root


def _with(root: Term, path: tuple[int, ...], new: Term) -> Term:
    if not path:
        return new
    args = list(root.args)
    args[path[0]] = _with(args[path[0]], path[1:], new)
    return make(root.op, tuple(args), root.attrs)


def changed(root: Term, random: Random, variables: list[Term], dims: list[Dim]) -> Term:
    """The term with one place changed. Raises TermError if it is then ill-formed."""
    path = random.choice(_places(root))
    return _with(root, path, _changed_node(_at(root, path), random, variables, dims))


def _changed_node(node: Term, random: Random, variables: list[Term], dims: list[Dim]) -> Term:
    alike = [v for v in variables if v.dtype == node.dtype] or [node]
    made = [lambda: random.choice(alike)]
    if node.op == "const":
        made += [lambda: const(_near(node.attrs[0], random))] * 3
    if node.args and node.op not in ("reduce", "scaled"):
        made += [lambda: node.args[random.randrange(len(node.args))]]
        twins = [name for name, row in OPS.items() if row.arity == len(node.args) and row.dtype == OPS[node.op].dtype]
        made += [lambda: make(random.choice(twins), node.args, node.attrs)] * 2
    if len(node.args) > 1:
        made += [lambda: make(node.op, (*node.args[:-2], node.args[-1], node.args[-2]), node.attrs)]
    if node.op == "reduce" and node.attrs[0] in MONOIDS:
        made += [lambda: reduce(random.choice(MONOIDS), random.choice(dims), node.args[0]), lambda: node.args[0]]
    if node.dtype in REAL:
        made += [lambda: make(random.choice(UNARY), (node,))] * 2
        made += [lambda: make(random.choice(BINARY), (node, random.choice([*alike, const(random.choice(NUMBERS))])))]
        made += [lambda: cast(node, random.choice(CASTS[:2]))] if random.random() < 0.2 else []
    if node.dtype in LOGIC:
        made += [lambda: ~node]
    return random.choice(made)()


def _near(value, random: Random):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + random.choice((-1, 1))
    return random.choice((value + 1.0, value - 1.0, -value, value / 2, value * 2, *NUMBERS))


def _instantiated(law: Rule, random: Random) -> Rule:
    """The law with a random term for a variable of reals that no guard is about."""
    guarded = {o for g in law.guards for o in g.operands if isinstance(o, Term)}
    nodes = [n for n in subterms(law.left) if n.op == "var" and n.dtype == "any" and n not in guarded]
    if not nodes:
        return law
    node = random.choice(nodes)
    taken = [n.attrs[0] for n in nodes]
    mapping = {node: random_term(random, random.choice((1, 1, 2)), tuple(taken))}
    return replace(law, left=substitute(law.left, mapping), right=substitute(law.right, mapping))


def _random_claim(random: Random) -> Rule:
    """Two random terms; or one term, bare or reduced, and the same with changes."""
    left = random_term(random, random.choice((1, 2, 2, 3)))
    if random.random() < 0.3:
        left = reduce(random.choice(MONOIDS), "j", left)
    if random.random() < 0.2:
        right = random_term(random, 2)
    else:
        names = [var(name) for name in MIXES if name in variables_of(left)] or [const(1.0)]
        right = left + 0.0
        for _ in range(random.choice((1, 1, 2))):
            right = changed(right, random, names, [Dim("j")])
    exact = random.choice(("reassociates", "scores are finite", "masked values are finite"))
    guards = tuple(Guard("independent", (var(n), Dim("j"))) for n in ("y",) if random.random() < 0.5)
    guards = guards if "dim j" in variables_of(left) and "y" in variables_of(left) else ()
    return Rule("random", "a random claim", left, right, (), guards, False, exact)


def _changed_law(random: Random) -> Rule:
    law = random.choice(LAWS)
    if law.exact == "bitwise" and random.random() < 0.8:
        law = replace(law, exact="a zero has no sign")  # over the reals; equal bits are tested, which takes longer
    if random.random() < 0.5:
        law = _instantiated(law, random)
    dims = [a for n in subterms(law.left) if n.op == "reduce" for a in n.attrs if isinstance(a, Dim)] or [Dim("j")]
    for _ in range(random.choice((0, 1, 1, 1, 2))):
        variables = [n for n in subterms(law.left) if n.op == "var"]
        if law.guards and random.random() < 0.1:
            law = replace(law, guards=law.guards[:-1])
        elif random.random() < 0.2:
            law = replace(law, exact=random.choice(("reassociates", "scores are finite", "masked values are finite")))
        elif random.random() < 0.5:
            law = replace(law, left=changed(law.left, random, variables, dims))
        else:
            law = replace(law, right=changed(law.right, random, variables, dims))
    return law if random.random() < 0.8 else law.reversed()


def claims(seed: int) -> Iterator[Rule]:
    """Random claims without end, each well-formed."""
    random = Random(seed)
    while True:
        try:
            claim = _changed_law(random) if random.random() < 0.75 else _random_claim(random)
            names = sorted(variables_of(claim.left) | variables_of(claim.right))
            kinds = dict(claim.variables)
            claim = replace(claim, variables=tuple((n, kinds.get(n, "")) for n in names if not n.startswith("dim ")))
            refuse_bad(claim)
        except (TermError, OverflowError, ZeroDivisionError):
            continue
        yield claim
