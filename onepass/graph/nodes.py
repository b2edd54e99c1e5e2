"""What is known of a node of an fx graph: its value, the user's line that made it, its sizes as numbers or formulas.

Nothing here changes a node. Example: `where_of(node)` is "model.py:12".
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._pytree import tree_map
from torch.utils._sympy.functions import FloorDiv, Mod

from ..egraph.terms.sizes import Size

TORCH_FOLDER = str(Path(torch.__file__).parent)
NOT_OF_A_PATH = ("L", "G", "_modules", "_orig_mod")
MAX_FORMULAS_KEPT = 4096
VALUE_META = ("val", "example_value")  # where the fake value of a node is kept
_STEP_OF_A_PATH = re.compile(r"\w+")
_VARIABLE = re.compile(r"^[LG]\['(args|self|fn)'\](\[\d+\])?")  # in which the outermost module is
_CALLS = re.compile(r"@\d+$")  # behind the path of a module that is called again
_FRAME = re.compile(r'File "(.+?)", line (\d+)')
_INSIDE_TORCH = re.compile(
    r"[/\\]torch[/\\](fx|nn|utils|_dynamo|_functorch|_inductor|_higher_order_ops|_tensor\.|functional\.)"
)


def where_of(node: fx.Node) -> str:
    """The user's file:line of a node; of a module of torch that no line of the user calls, the line of its forward."""
    trace = node.meta.get("stack_trace") or ""
    frames = _FRAME.findall(trace)
    outside = [f for f in frames if not _INSIDE_TORCH.search(f[0])]
    file, line = (outside or frames or [("", "")])[-1]
    return f"{file}:{line}" if file else _forward_of(node)


def _forward_of(node: fx.Node) -> str:
    """The file:line of the innermost module's forward: Dynamo notes no lines of torch's own modules."""
    for _, module in reversed((node.meta.get("nn_module_stack") or {}).values()):
        code = getattr(getattr(module, "forward", None), "__code__", None)
        if code is not None:
            return f"{code.co_filename}:{code.co_firstlineno}"
    return ""


def layer_of(node: fx.Node) -> str:
    """The path of the innermost module that a node is of, as "layers.0.attention"; empty where none is known."""
    for path, _ in reversed((node.meta.get("nn_module_stack") or {}).values()):
        if found := plain_path(path):
            return found
    return ""


def plain_path(path: str) -> str:
    """Dynamo's path of a module as users write it, without the variable of the outermost one where that is self."""
    names = _STEP_OF_A_PATH.findall(_VARIABLE.sub("", _CALLS.sub("", path)))
    return ".".join(name for name in names if name not in NOT_OF_A_PATH)


def value_of_node(node: fx.Node) -> Any:
    """The fake value of a node: ATen graphs keep it under "val", Dynamo's under "example_value".

    Under a function transform, Dynamo's is the transform's wrapper of a fake value, or a tuple of such wrappers.
    """
    found = node.meta.get("val")
    return unwrapped(node.meta.get("example_value") if found is None else found)


def unwrapped(value: Any) -> Any:
    """The value that wrappers of function transforms hold, also where they are members of a tuple."""
    if isinstance(value, tuple | list) and not isinstance(value, torch.Size):
        return tree_map(unwrapped, value)
    while type(value) is torch.Tensor and torch._C._functorch.is_functorch_wrapped_tensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def size_of(value: int | torch.SymInt) -> Size:
    """A size as a number, also where a guard has fixed its symbol, or as the text of its formula."""
    return value if isinstance(value, int) else _simplified(*_formula(value))[1]


def expression(value: int | torch.SymInt) -> int | sympy.Expr:
    """A size as a number or a formula of symbols."""
    return value if isinstance(value, int) else _simplified(*_formula(value))[0]


def _formula(value: torch.SymInt) -> tuple[sympy.Expr, frozenset[sympy.Expr]]:
    """A symbolic size as torch has it, and the remainders that are known to be zero, as far as they can matter."""
    found = value.node.expr
    return found, frozenset(value.node.shape_env.divisible) if found.has(FloorDiv) else frozenset()


@lru_cache(MAX_FORMULAS_KEPT)
def _simplified(formula: sympy.Expr, whole: Collection[sympy.Expr]) -> tuple[int | sympy.Expr, Size]:
    """The formula with its quotients simplified, or a number; and the same as a size. Graphs repeat few formulas."""
    found = formula.replace(FloorDiv, lambda a, b: _divided(a, b, whole))
    for quotient in found.atoms(FloorDiv):
        if Mod(*quotient.args) in whole:
            found = found.subs(quotient.args[1] * quotient, quotient.args[0])
    return (int(found), int(found)) if found.is_Integer else (found, str(found))


def _divided(a, b, whole: Collection[sympy.Expr]):
    """a // b, simplified: s**2 // s is s, as no size is zero. whole: remainders that are known to be zero."""
    if isinstance(b, FloorDiv) and b.args[0] == a and Mod(*b.args) in whole:
        return b.args[1]
    quotient = sympy.cancel(a / b)
    return quotient if quotient.is_polynomial() and quotient.is_integer else FloorDiv(a, b)
