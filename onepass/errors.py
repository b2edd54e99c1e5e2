"""The errors of onepass. Everything that onepass raises on purpose is an OnepassError.

A Refusal is no failure: it says why a region stays as the user wrote it, by a record of messages.py. Example:
OptionError for an unknown option.
"""

from __future__ import annotations

from functools import partial

from .messages import Message


class OnepassError(Exception):
    """Anything that onepass raises on purpose.

    >>> import onepass
    >>> try:
    ...     onepass.compile(3)
    ... except onepass.errors.OnepassError as error:
    ...     print(error)
    compile(function) takes a function or a module, and this is of type int
    """


class OptionError(OnepassError, ValueError):
    """An unknown option, or a value that an option does not accept.

    >>> import onepass
    >>> onepass.GraphPass(strikt=True)
    Traceback (most recent call last):
    onepass.errors.OptionError: onepass has no option 'strikt'; did you mean 'strict'?
    """


class InputError(OnepassError, TypeError):
    """A call of explain without a function, inputs that a function does not accept, or what an integration refuses.

    >>> import onepass
    >>> onepass.explain(len)
    Traceback (most recent call last):
    onepass.errors.InputError: explain calls len(obj) with 0 inputs: missing a required argument: 'obj'
    """


class RuleRefuted(OptionError):
    """A rule that a call passed and that is no law. It is an error of that call, not of the model.

    >>> import onepass
    >>> @onepass.rule
    ... def square_of_a_sum(a, b):
    ...     "(a + b)² = a² + b²"
    ...     return (a + b) * (a + b), a * a + b * b
    >>> try:
    ...     onepass.GraphPass([square_of_a_sum])
    ... except onepass.errors.RuleRefuted as error:
    ...     print(error.rule)
    square_of_a_sum
    """

    def __init__(self, rule: str, source: str, verdict: str):
        super().__init__(f"rule {rule} ({source}) is no law, and nothing was compiled with it\n{verdict}")
        self.rule, self.source, self.verdict = rule, source, verdict

    def __reduce__(self):
        return type(self), (self.rule, self.source, self.verdict)


class RuleUnproved(OptionError):
    """A rule that a call passed, without trust=True, and that is neither proved nor refuted.

    >>> import onepass
    >>> from onepass.egraph.ops import exp
    >>> @onepass.rule
    ... def doubled_by_code(x):
    ...     "x + x = 2 · x"
    ...     return x + x, lambda x: 2.0 * x
    >>> try:
    ...     onepass.GraphPass([doubled_by_code])
    ... except onepass.errors.RuleUnproved as error:
    ...     print(error.rule)
    doubled_by_code
    """

    def __init__(self, rule: str, source: str, verdict: str):
        advice = "decorate it with @onepass.rule(trust=True) to use it on your word: every report then names it"
        super().__init__(f"rule {rule} ({source}) is neither proved nor refuted; {advice}\n{verdict}")
        self.rule, self.source, self.verdict = rule, source, verdict

    def __reduce__(self):
        return type(self), (self.rule, self.source, self.verdict)


class NotFused(OnepassError):
    """The option require="all" does not hold: what was found and is left as written, each with its reason and place.

    >>> import onepass, torch
    >>> try:
    ...     onepass.explain(torch.relu, torch.ones(2), options={"require": "all"})
    ... except onepass.errors.NotFused as error:
    ...     print("not fused")
    not fused
    """


class NotPrepared(OnepassError):
    """A call of a serving plan that would compile, compare, time or fall back; or a plan that cannot be prepared.

    >>> import onepass, torch
    >>> width = 8
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT / width, -1) @ v
    >>> q, k, v = (torch.randn(2, 4, 32, 64) for _ in range(3))
    >>> prepared = onepass.plan(attend, q, k, v, inner="eager", libraries=False)
    >>> width = 4  # what was planned is another function
    >>> try:
    ...     prepared(q, k, v)
    ... except onepass.errors.NotPrepared as error:
    ...     print("not prepared")
    not prepared
    """


class ProgramError(OnepassError):
    """A stored program that cannot be read or run: bad JSON, an operation that is not of ATen, wrong inputs.

    >>> from onepass.graph.program import Program
    >>> Program.from_json("[]")
    Traceback (most recent call last):
    onepass.errors.ProgramError: not a program: list indices must be integers or slices, not str
    """


class Refusal(OnepassError):
    """A region that cannot be fused: a message with what it names, and where, as a file:line or "".

    >>> from onepass import messages
    >>> from onepass.errors import Refusal
    >>> refusal = Refusal(messages.COMPLEX, "model.py:7")
    >>> refusal.code, refusal.where
    ('OP105', 'model.py:7')
    """

    def __init__(self, message: Message, where: str = "", **named: object):
        self.message, self.where, self.named = message, where, named
        self.reason = message.sentence.format(**named)
        place = f" ({where})" if where else ""
        super().__init__(f"{self.reason}{place} [{message.code}]")
        self.add_note(f"way out: {message.way_out} ({message.link})")  # a traceback shows it

    def __reduce__(self):
        return partial(Refusal, self.message, self.where, **self.named), ()

    @property
    def kind(self) -> str:
        """What sort of refusal it is, for programs."""
        return self.message.kind

    @property
    def code(self) -> str:
        """The code of its message, as OP101."""
        return self.message.code


def no_rule(value: object) -> str:
    """Describes a value that is no rule, with its place, and says what to write instead."""
    code = getattr(value, "__code__", None)
    if code is None:
        return f"{value!r}, which is no rule: decorate a law with @onepass.rule"
    where = f"{code.co_filename}:{code.co_firstlineno}"
    if code.co_name == "<lambda>":
        instead = "write a function under @onepass.rule, with a name, and the law as its docstring"
        return f"a lambda ({where}), which is no rule: {instead}"
    return f"the function {code.co_name} ({where}), which is no rule: decorate it with @onepass.rule"
