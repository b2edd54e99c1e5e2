"""Tests that a user writes in one line: a rule holds, two functions are equivalent. Public: `onepass.testing`.

Values are drawn by Hypothesis and meet the float64 evaluator (rules) or PyTorch in float64 (functions); a failure is
shrunk to a minimal counterexample. A rule that never fires is a failure. Needs the extra `test` (hypothesis).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .egraph.agreement import RTOL, difference
from .egraph.mutation import mutants
from .egraph.pattern_rule import PatternRule
from .egraph.rule import Rule

STRATEGIES = ("Instance", "hostile_arrays", "instances", "named_shapes")  # of testing_strategies, loaded on first use
__all__ = ["Refuted", "assert_equivalent", "assert_rule", "mutants", *STRATEGIES]


def __getattr__(name: str):
    if name not in STRATEGIES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _hypothesis()
    from . import testing_strategies

    return getattr(testing_strategies, name)


LEAST_EXAMPLES = 10


class Refuted(AssertionError):
    """A claim that does not hold; the message is a minimal counterexample."""


def assert_rule(rule: Rule | PatternRule, examples: int = 100, *, shrink: bool = True) -> None:
    """Raises Refuted with a minimal counterexample if the two sides of a rule differ, or if it never fires.

    Where the left side is not NaN, the right side equals it. A rule of both directions holds from right to left, too,
    where its right side is finite; a bitwise rule, and one under a named assumption, is NaN on both sides or on none.
    A pattern rule is tested reading by reading, one of code on random readings. Raises TypeError for what is no rule.
    """
    _hypothesis()
    if isinstance(rule, PatternRule) and rule.rules is not None:
        for reading in rule.rules:
            assert_rule(reading, max(LEAST_EXAMPLES, examples // len(rule.rules)), shrink=shrink)
        return
    if not isinstance(rule, Rule | PatternRule):
        raise TypeError(f"{rule} cannot be tested as a rule: decorate a law with @onepass.rule")
    from .testing_strategies import instances

    fired = [0]

    def body(instance):
        fired[0] += 1
        wrong = difference(instance)
        if wrong:
            raise Refuted(f"rule {rule} is refuted\nlaw: {rule.law}\n{wrong}")

    _search(instances(rule), body, examples, shrink)
    if not fired[0]:
        raise Refuted(f"rule {rule} never fired: no drawn instance matched its left side under its guards")


def assert_equivalent(
    f: Callable, g: Callable, inputs, examples: int = 50, *, rtol: float = RTOL, finite: bool = False
) -> None:
    """Raises Refuted with a minimal counterexample if two PyTorch functions differ in float64.

    inputs: a sequence with one entry per argument: a text of dims such as "b i d" (sizes are drawn, 1 included; equal
    letters are equal sizes), a shape, or a tensor that is used as it is; or a Hypothesis strategy of argument tuples.
    finite: draws no -∞, which stands for what is masked.
    """
    import torch

    def body(arguments):
        arguments = tuple(_as_double(torch, a) for a in arguments)
        left, right = (_outputs(torch, h(*(_copy(torch, a) for a in arguments))) for h in (f, g))
        why = _outputs_differ(left, right, rtol)
        if why:
            shown = "\n".join(f"argument {n}: {_shown(a)}" for n, a in enumerate(arguments))
            raise Refuted(f"{_name(f)} and {_name(g)} differ: {why}\n{shown}")

    fixed = not hasattr(inputs, "example") and all(isinstance(a, torch.Tensor) for a in inputs)
    body(tuple(inputs)) if fixed else _search(_arguments(torch, inputs, finite), body, examples, True)


# Running -------------------------------------------------------------------------------------------------------------


def _hypothesis():
    try:
        import hypothesis
    except ImportError as error:
        raise ImportError("onepass.testing needs hypothesis: pip install 'onepass[test]'") from error
    return hypothesis


def _search(strategy, body: Callable, examples: int, shrink: bool) -> None:
    """Runs the body on drawn values; lets out a clean Refuted for the smallest that fails."""
    h = _hypothesis()
    phases = [h.Phase.generate, *([h.Phase.shrink] if shrink else [])]

    @h.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=phases,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=h.Verbosity.quiet,
        suppress_health_check=list(h.HealthCheck),
    )
    @h.given(strategy)
    def run(drawn):
        body(drawn)

    try:
        run()
    except Refuted as found:
        raise Refuted(*found.args) from None
    except h.errors.Unsatisfiable:
        pass


# Functions -----------------------------------------------------------------------------------------------------------


def _arguments(torch, inputs, finite: bool):
    """A strategy of argument tuples."""
    h = _hypothesis()
    from .testing_strategies import hostile_arrays, named_shapes

    st = h.strategies
    if isinstance(inputs, st.SearchStrategy):
        return inputs.map(lambda drawn: drawn if isinstance(drawn, tuple) else (drawn,))
    texts = tuple(a for a in inputs if isinstance(a, str))

    @st.composite
    def draw_all(draw):
        shapes = iter(draw(named_shapes(texts)))
        drawn = [a if isinstance(a, torch.Tensor) else next(shapes) if isinstance(a, str) else tuple(a) for a in inputs]
        array = lambda shape: torch.from_numpy(draw(hostile_arrays(shape, finite)))
        return tuple(a if isinstance(a, torch.Tensor) else array(a) for a in drawn)

    return draw_all()


def _as_double(torch, value):
    return value.detach().double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _copy(torch, value):
    return value.clone() if isinstance(value, torch.Tensor) else value


READABLE = 64  # elements of an array that is printed whole


def _outputs(torch, result) -> list[np.ndarray]:
    """Every tensor of a result, in order, as arrays."""
    flat = torch.utils._pytree.tree_leaves(result)
    return [x.detach().cpu().numpy() if isinstance(x, torch.Tensor) else np.asarray(x) for x in flat]


def _outputs_differ(left: Sequence[np.ndarray], right: Sequence[np.ndarray], rtol: float) -> str:
    if len(left) != len(right):
        return f"{len(left)} outputs against {len(right)}"
    for number, (a, b) in enumerate(zip(left, right)):
        if a.shape != b.shape:
            return f"output {number} has shape {a.shape} against {b.shape}"
        if not np.allclose(a, b, rtol=rtol, atol=rtol * _magnitude(a, b), equal_nan=True):
            return f"output {number} {_how(a, b)}"
    return ""


def _how(a: np.ndarray, b: np.ndarray) -> str:
    """Two arrays that differ: whole if they can be read, else the place where they differ most."""
    if a.size <= READABLE:
        return f"is\n{a.tolist()} against\n{b.tolist()}"
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b) if a.dtype != bool else (a != b)
    apart = np.where(np.isnan(apart) & (np.isnan(a) != np.isnan(b)), np.inf, np.nan_to_num(apart, nan=0.0))
    place = tuple(map(int, np.unravel_index(apart.argmax(), a.shape)))
    return f"of shape {a.shape} differs most at {place}: {a[place]} against {b[place]}"


def _magnitude(a: np.ndarray, b: np.ndarray) -> float:
    """The largest finite value: sums over terms of this size round relative to it."""
    finite = [np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in (a, b)]
    return float(max(finite))


def _shown(value) -> str:
    if not hasattr(value, "tolist"):
        return repr(value)
    values = np.asarray(value.tolist())
    whole = f" = {value.tolist()}" if values.size <= READABLE else f", {values.min()} to {values.max()}"
    return f"shape {tuple(value.shape)}{whole}"


def _name(function: Callable) -> str:
    return getattr(function, "__name__", repr(function))
