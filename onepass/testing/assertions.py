"""Assertions for tests: a rule holds, two functions are equivalent. Public as `onepass.testing`.

Hypothesis draws hostile values and shrinks a failure to a minimal counterexample. A seed fixes all draws, so a test
gives the same result in every run. A rule that never fires and functions that were never compared are failures.
Example: `assert_equivalent(f, g, ["i d", "j d"])`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, prod
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..egraph.rewrite.pattern_rule import PatternRule
from ..egraph.rewrite.rule import Rule
from ..egraph.sampling.compare_sides import difference
from ..errors import InputError

if TYPE_CHECKING:
    import torch

    from .compare import Tolerance

ENTRIES = 'an entry is dims as text, such as "b i d", a shape, or a tensor'
MIN_EXAMPLES_OF_A_READING = 10
MAX_ELEMENTS_OF_ONE_THREAD = 2**14  # for larger tensors, torch uses more threads
SWEPT_PER_DRAWN = 8  # at most so many arguments in the sweep for each drawn one


class Refuted(AssertionError):
    """A rule or an equivalence that does not hold; the message has a minimal counterexample.

    arguments: the arguments of the two functions, as a tuple of tensors; None for a rule.

    >>> import torch
    >>> from onepass.testing import Refuted, assert_equivalent
    >>> try:
    ...     assert_equivalent(lambda x: x.relu(), lambda x: x.abs(), ["i"])
    ... except Refuted as found:
    ...     x, = found.arguments
    >>> bool((x.relu() == x.abs()).all())
    False
    """

    arguments: tuple | None = None


def assert_rule(
    rule: Rule | PatternRule, examples: int = 100, *, shrink: bool = True, seed: int = 0, **unknown: Any
) -> None:
    """Raises Refuted with a minimal counterexample if the two sides of a rule differ, or if it never fires.

    Where the left side is not NaN, the right side must equal it. For a rule of both directions the converse must hold
    where the right side is finite. A bitwise rule, and one under a named assumption, must be NaN on both sides or on
    none. After the draws, arrays of each hostile kind are tried with every seed; one is -∞ alone. A pattern rule
    is tested reading by reading; a rule of code is tested on random readings. All is computed in float64. Raises
    InputError, a TypeError, for what is no rule, and for an argument that it does not have, such as a dtype.

    >>> import onepass
    >>> @onepass.rule
    ... def doubled(x):
    ...     "x + x = 2 · x"
    ...     return x + x, 2.0 * x
    >>> onepass.testing.assert_rule(doubled, examples=20)
    """
    if unknown:
        other = "a law is tested in float64; assert_equivalent(f, g, inputs, dtype=...) compares functions in a dtype"
        raise InputError(f"assert_rule has no {next(iter(unknown))!r}: it has examples, shrink and seed; {other}")
    _refuse_numbers(examples, seed)
    needs_hypothesis()
    if isinstance(rule, PatternRule) and rule.rules is not None:
        for reading in rule.rules:
            assert_rule(reading, max(MIN_EXAMPLES_OF_A_READING, examples // len(rule.rules)), shrink=shrink, seed=seed)
        return
    if not isinstance(rule, Rule | PatternRule):
        raise InputError(f"{rule} cannot be tested as a rule: decorate a law with @onepass.rule")
    from .strategies import instances, swept_instances

    fired = [0]

    def body(instance):
        fired[0] += 1
        wrong = difference(instance)
        if wrong:
            again = f"float64, seed {seed}: the same call finds this again"
            raise Refuted(f"rule {rule} is refuted\nlaw: {rule.law}\n{wrong}\n{again}")

    _search(instances(rule), body, examples, shrink, seed)
    for instance in swept_instances(rule, seed):
        body(instance)
    if not fired[0]:
        raise Refuted(f"rule {rule} never fired: no drawn instance matched its left side under its guards")


def assert_equivalent(
    f: Callable,
    g: Callable,
    inputs: Any,
    examples: int = 200,
    *,
    dtype: torch.dtype | None = None,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    seed: int = 0,
    finite: bool = False,
    largest: float = inf,
    empty: bool = False,
    sums_may_overflow: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> None:
    """Raises Refuted with a minimal counterexample if two PyTorch functions differ by more than rounding.

    Raises InputError for inputs that a function does not accept or at which both raise, and ValueError if nothing could
    be compared.

    inputs: a sequence with one entry for each argument: dims as text, such as "b i d", a shape, or a tensor that is
    used unchanged; or a Hypothesis strategy of argument tuples. Equal letters are equal sizes, of which 1 to 4 are
    drawn; a number in a text is that size: "i 64" for functions that differ at large sizes only. sizes: those of which
    a letter's are drawn, as {"i": [1, 64, 300], "d": 16}, each of which the hostile values are tried with in turn.
    examples: how many arguments are drawn. Before that, up to eight times as many hostile values are tried.
    dtype: of all floating arguments; float64 by default. seed: fixes the draws.
    finite: draws no -∞ (a masked score), ∞ or NaN. largest: draws no larger number. empty: draws sizes of 0, too.
    rtol, atol: the tolerance for rounding; by default a few roundings of the dtype. A difference is also rounding if
    the function that changes less changes as much when every operation has an error of this size.
    sums_may_overflow: skips inputs at which a sum, a product or a quotient of finite numbers leaves the range of the
    dtype, because another order of the same sum may stay in it. Overflow of functions (exp, squares, casts) counts.

    >>> import torch
    >>> from onepass.testing import assert_equivalent
    >>> assert_equivalent(lambda x, y: x @ y.mT, lambda x, y: (y @ x.mT).mT, ["i d", "j d"], 20, sizes={"i": [1, 70]})
    """
    import torch

    from . import compare

    _refuse_inputs((f, g), inputs)
    _refuse_numbers(examples, seed, largest=largest, rtol=rtol, atol=atol)
    known = _sizes(sizes, inputs)
    dtype = torch.float64 if dtype is None else dtype
    compared = _Comparison((f, g), dtype, compare.tolerance_of(dtype, rtol, atol), sums_may_overflow, empty, seed)
    if not hasattr(inputs, "example"):
        compared.texts = tuple(text for text in inputs if isinstance(text, str))
    if not hasattr(inputs, "example") and all(isinstance(a, torch.Tensor) for a in inputs):
        compared.seed = None
        compared(tuple(inputs))
    else:
        needs_hypothesis()
        from .draws import Draws, Values

        draws = Draws((f, g), inputs, dtype, Values(finite, largest, empty), known)
        with _few_threads(torch, draws.inputs):
            _sweep_and_search(draws, compared, examples, seed)
    if not compared.count:
        raise ValueError(_never_compared(compare.names(f, g), compared.skipped))


def _refuse_numbers(examples: Any, seed: Any, **limits: Any) -> None:
    """Raises InputError for a count that is no whole number above 0, a seed that is none, or a negative limit."""
    whole = lambda x: isinstance(x, int) and not isinstance(x, bool)
    if not whole(examples) or examples < 1:
        raise InputError(f"examples is how many arguments are drawn, a whole number above 0, not {examples!r}")
    if not whole(seed):
        raise InputError(f"seed is a whole number, not {seed!r}")
    for name, limit in limits.items():
        number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if limit is not None and not (number and limit >= 0):
            raise InputError(f"{name} is a number that is not negative, not {limit!r}")


def _sizes(given: Any, inputs: Any) -> dict[str, tuple[int, ...]]:
    """The sizes of each letter. Raises InputError for what is none, and for a letter that no text of the inputs has."""
    meant = 'sizes is a dict of sizes for letters of inputs, such as {"i": [1, 64, 300], "d": 16}'
    if not isinstance(given, Mapping | None):
        raise InputError(f"{meant}, not {given!r}")
    letters, found = _letters(inputs), {}
    for letter, sizes in (given or {}).items():
        if letter not in letters:
            raise InputError(f"sizes names {letter!r}, and inputs has {', '.join(sorted(letters)) or 'no letters'}")
        found[letter] = tuple(sizes) if isinstance(sizes, list | tuple | range) else (sizes,)
        if not (found[letter] and all(type(size) is int and size >= 0 for size in found[letter])):
            raise InputError(f"{meant}; of {letter!r} it has {sizes!r}")
    return found


def _letters(inputs: Any) -> set[str]:
    """The names of dims in the texts of inputs."""
    texts = () if hasattr(inputs, "example") else [text for text in inputs if isinstance(text, str)]
    return {word for text in texts for word in text.split() if not word.isdigit()}


def _refuse_inputs(functions: tuple[Callable, Callable], inputs: Any) -> None:
    """Raises InputError for a text in place of a list, and for more or fewer entries than a function has arguments."""
    if isinstance(inputs, str):
        raise InputError(f"inputs has one entry for each argument: write [{inputs!r}, ...], not {inputs!r}")
    for function in functions:
        if not callable(function):
            raise InputError(f"assert_equivalent compares two functions, and {function!r} is none")
    if hasattr(inputs, "example"):  # a strategy of Hypothesis
        return
    if not isinstance(inputs, Sequence):
        raise InputError(f"inputs has one entry for each argument, in their order: a list, not {inputs!r}")
    for number, entry in enumerate(inputs):
        if why := _unreadable(entry):
            raise InputError(f"inputs[{number}] is {entry!r}, {why}: {ENTRIES}")
    many = f"{len(inputs)} entr{'y' if len(inputs) == 1 else 'ies'}"
    for function in functions:
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of C: its own error says it
            continue
        try:
            signature.bind(*inputs)
        except TypeError as error:
            called = f"{getattr(function, '__name__', type(function).__name__)}({', '.join(signature.parameters)})"
            raise InputError(f"inputs has one entry for each argument, here {many}; of {called}: {error}") from error


def _unreadable(entry: Any) -> str:
    """Why an entry of inputs is no tensor, no text of dims and no shape; empty if it is one of these."""
    if isinstance(entry, str):
        wrong = [word for word in entry.split() if not (word.isidentifier() or word.isdecimal())]
        return f"in which {wrong[0]!r} is no name of a dim and no size" if wrong else ""
    if isinstance(entry, tuple | list):
        wrong = [size for size in entry if not isinstance(size, int) or size < 0]
        return f"in which {wrong[0]!r} is no size" if wrong else ""
    return "" if hasattr(entry, "shape") else f"of type {type(entry).__name__}"


@dataclass
class _Comparison:
    """Compares two functions on arguments. Raises Refuted if they differ; counts compared and skipped arguments."""

    functions: tuple[Callable, Callable]
    dtype: torch.dtype
    tolerance: Tolerance
    sums_may_overflow: bool
    empty: bool
    seed: int | None
    texts: tuple[str, ...] = ()
    count: int = 0
    skipped: int = 0

    def __call__(self, drawn: tuple) -> None:
        from . import compare

        arguments = tuple(compare.cast(a, self.dtype) for a in drawn)
        try:
            why = compare.difference(self.functions, arguments, self.tolerance, self.sums_may_overflow)
        except compare.OutOfRange:
            self.skipped += 1
            return
        except Exception as error:
            if self.empty and compare.has_no_elements(arguments):
                return  # both refuse it
            raise InputError(self._both_raise(error, arguments)) from error
        self.count += 1
        if why:
            raise self._refuted(why, arguments)

    def _both_raise(self, error: Exception, arguments: tuple) -> str:
        from . import compare

        one, other = compare.names(*self.functions)
        shapes = ", ".join(str(tuple(a.shape)) if hasattr(a, "shape") else repr(a) for a in arguments)
        given = f" for inputs {', '.join(map(repr, self.texts))}" if self.texts else ""
        return f"{one} and {other} both raise at arguments of shape {shapes}{given}: {type(error).__name__}: {error}"

    def _refuted(self, why: str, arguments: tuple) -> Refuted:
        from . import compare

        one, other = compare.names(*self.functions)
        lines = [f"argument {n}: {compare.shown(a)}" for n, a in enumerate(arguments)]
        drawn = "" if self.seed is None else f", seed {self.seed}: the same call finds this again"
        lines.append(f"{self.dtype}{drawn}; `arguments` of this error are the tensors")
        error = Refuted("\n".join([f"{one} and {other} differ: {why}", *lines]))
        error.arguments = arguments
        return error


def _sweep_and_search(draws, body: Callable, examples: int, seed: int) -> None:
    """Runs the body on swept arguments, then on drawn ones. A failure in the sweep is shrunk by draws near it."""
    for arguments in draws.sweep(SWEPT_PER_DRAWN * examples):
        try:
            body(arguments)
        except Refuted as found:
            _search(draws.near(arguments), body, examples, True, seed)
            raise found.with_traceback(None) from None
    _search(draws.strategy(), body, examples, True, seed)


@contextmanager
def _few_threads(torch, inputs):
    """Uses one thread if all tensors are small, because threads then wait for each other ten times as long."""
    count = torch.get_num_threads()
    sizes = [a.numel() if isinstance(a, torch.Tensor) else prod(a) for a in inputs if not isinstance(a, str)]
    torch.set_num_threads(1 if max(sizes, default=0) <= MAX_ELEMENTS_OF_ONE_THREAD else count)
    try:
        yield
    finally:
        torch.set_num_threads(count)


def _never_compared(names, skipped: int) -> str:
    names = " and ".join(names)
    if not skipped:
        return f"{names} were never compared: no arguments were drawn at which both give a result"
    left = f"{names} were never compared: at all arguments a sum or a product leaves the range of the dtype"
    return f"{left}; draw smaller numbers (largest=...), or count it as a difference (sums_may_overflow=False)"


# Running -------------------------------------------------------------------------------------------------------------


def needs_hypothesis() -> ModuleType:
    """The module hypothesis. Raises ImportError that says how to install it."""
    try:
        import hypothesis
    except ImportError as error:
        how = "pip install 'onepass[test]', in a clone pip install -e '.[test]'"
        raise ImportError(f"onepass.testing needs hypothesis: {how}") from error
    return hypothesis


def _search(strategy, body: Callable, examples: int, shrink: bool, seed: int) -> None:
    """Runs the body on drawn values. Raises a Refuted without Hypothesis's traceback for the smallest failure."""
    h = needs_hypothesis()
    phases = [h.Phase.generate, *([h.Phase.shrink] if shrink else [])]

    @h.seed(seed)
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
        clean = Refuted(*found.args)
        clean.arguments = found.arguments
        raise clean from None
    except h.errors.Flaky as error:
        raise ValueError("the same arguments gave different results when they were tried again") from error
    except h.errors.Unsatisfiable:
        pass
