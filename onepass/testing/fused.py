"""The assertion that a function is fused. Public as `onepass.testing.assert_fused`; needs no extra.

Example: `assert_fused(attention, q, k, v)`. Nothing is replaced, and the function runs once, as `explain` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..api.explain import explain
from ..errors import NotFused
from ..report.records import Report


def assert_fused(
    function: Callable, *inputs: object, options: Mapping[str, object] | None = None, **keywords: Any
) -> Report:
    """The report of function(*inputs, **keywords), if every region found in it is fused, and at least one is.

    Raises AssertionError with each reason, place and way out; and whatever explain raises.

    >>> import onepass, torch
    >>> def attend(q, k, v):
    ...     return torch.softmax(q @ k.mT, -1) @ v
    >>> report = onepass.testing.assert_fused(attend, *(torch.randn(2, 300, 64) for _ in range(3)))
    """
    try:
        return explain(function, *inputs, options={**(options or {}), "require": "all"}, **keywords)
    except NotFused as error:
        raise AssertionError(str(error)) from None
