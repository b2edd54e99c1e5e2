"""Reads FILE:FUNC of the command line as a function with inputs.

Inputs come from the shapes that the command line gives, or from `example_inputs` beside the function, which returns a
tuple or a dict of keyword inputs. Otherwise at most three tensors are guessed. An error of the user's file is one
sentence with its line, without a traceback. Example: `model.py:attention`.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from ..api.explain import refuse_call
from ..errors import InputError, OptionError
from .inputs import InputChoice, TargetError, TargetFunction, made, needed, placed, tensors
from .values import GivenShape

GUESSED_SHAPE, MAX_GUESSED_TENSORS = (1, 4, 128, 64), 3
AS_IT_COMES = InputChoice()
HINT = "give --shape, or write `def example_inputs():` beside it, which returns a tuple or a dict of inputs"


def target(text: str, choice: InputChoice = AS_IT_COMES) -> TargetFunction:
    """Reads FILE:FUNC. Raises TargetError."""
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise TargetError(f"{text!r} is not FILE:FUNC, a file and the name of a function or a module in it")
    path = Path(file).resolve()
    if not path.is_file():
        raise TargetError(f"there is no file {file}")
    module = _module(path, file)
    function = getattr(module, name, None)
    if function is None:
        known = sorted(n for n, v in vars(module).items() if _can_be_explained(v, path.stem))
        raise TargetError(f"{file} has no function {name}" + (f"; it has {', '.join(known)}" if known else ""))
    if inspect.isclass(function):
        raise TargetError(f"{name} of {file} is a class: write `model = {name}(...)` there, and explain {file}:model")
    if not callable(function):
        raise TargetError(f"{name} of {file} cannot be called: it is {type(function).__name__}")
    if choice.shapes:
        return placed(made(function, f"{name} of {file}", choice), choice)
    return placed(_with_inputs(function, name, module, file), choice)


def rules_of(file: str) -> list:
    """The rules of a Python file, in its order. Raises TargetError."""
    from ..egraph.rewrite.pattern_rule import PatternRule
    from ..egraph.rewrite.rule import Rule

    path = Path(file).resolve()
    if not path.is_file():
        raise TargetError(f"there is no file {file}")
    found = [value for value in vars(_module(path, file)).values() if isinstance(value, Rule | PatternRule)]
    if not found:
        raise TargetError(f"{file} has no rule: decorate a law with @onepass.rule")
    return list(dict.fromkeys(found))


def options_of(chosen: Namespace) -> dict[str, object]:
    """The options of the backend that the command line gives. Raises OptionError and TargetError."""
    options = dict(map(_named_option, chosen.option))
    if "without" in options:
        options["without"] = str(options["without"]).split(",")
    rules = [rule for file in chosen.rules for rule in rules_of(file)]
    return options | ({"rules": rules} if rules else {})


def _named_option(text: str) -> tuple[str, object]:
    """NAME=VALUE as an option of the backend; true and false are truth values. Raises OptionError."""
    name, given, value = text.partition("=")
    if not given:
        raise OptionError(f"{text!r} is not NAME=VALUE")
    return name, {"true": True, "false": False}.get(value.lower(), value)


def _can_be_explained(value, home: str) -> bool:
    """Whether the value is a function of the file, or a torch module."""
    from torch.nn import Module

    return isinstance(value, Module) or (callable(value) and getattr(value, "__module__", "") == home)


def _module(path: Path, file: str):
    """The user's file as a module. An error in it is reported with the last line of the file that ran."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        if sys.modules.get(path.stem) is module:
            del sys.modules[path.stem]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TargetError(f"{file} does not import: {error_line(error, path)}") from error
    return module


def error_line(error: BaseException, path: Path) -> str:
    """An exception in one line, with the number of the last line of the file in its traceback."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {type(error).__name__}: {error.msg}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).resolve() == path]
    text = " ".join(str(error).split())[:300]
    return f"{f'line {lines[-1]}: ' if lines else ''}{type(error).__name__}: {text}"


def _with_inputs(function, name: str, module, file: str) -> TargetFunction:
    companion = getattr(function, "example_inputs", None) or getattr(module, "example_inputs", None)
    if companion is None:
        return _guess(function, name, file)
    try:
        given = companion()
        keywords = given if isinstance(given, Mapping) else {}
        inputs = () if keywords is given else tuple(given)
    except Exception as error:
        raise TargetError(f"example_inputs of {file} fails: {error_line(error, Path(file).resolve())}") from error
    try:
        refuse_call(function, inputs, keywords)
    except InputError as error:
        own = f"give --shape, or write `{name}.example_inputs = ...`, a function for {name} alone"
        raise TargetError(f"example_inputs of {file} does not fit {name}: {error}; {own}") from error
    return TargetFunction(function, inputs, keywords)


def _guess(function, name: str, file: str) -> TargetFunction:
    """Guesses tensors in the shape of q, k and v, for a function with at most three parameters."""
    wanted = needed(function)
    if len(wanted) > MAX_GUESSED_TENSORS or any(p.kind is p.KEYWORD_ONLY for p in wanted):
        names = ", ".join(p.name for p in wanted)
        raise TargetError(f"{name} of {file} takes {names}, and only {MAX_GUESSED_TENSORS} tensors are guessed: {HINT}")
    inputs = tuple(tensors([GivenShape(GUESSED_SHAPE)] * len(wanted)))
    kind = "a float32 tensor" if len(inputs) == 1 else "float32 tensors"
    guessed = f"{', '.join(p.name for p in wanted)}: {kind} of shape {GUESSED_SHAPE}" if inputs else ""
    return TargetFunction(function, inputs, guessed=guessed)
