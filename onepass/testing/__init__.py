"""Tests of rules and functions: `assert_rule`, `assert_equivalent`, `assert_fused`, strategies of hostile values.

A name is loaded from its module on first use, so that pytest can load the plugin in this folder without the rest.
All but `assert_fused` need the extra `test` (hypothesis).
"""

from importlib import import_module as _import_module

TYPE_CHECKING = False
if TYPE_CHECKING:  # what __getattr__ gives, for type checkers and editors
    from ..egraph.sampling.compare_sides import RTOL as RTOL
    from ..egraph.sampling.mutants import mutants as mutants
    from .assertions import Refuted as Refuted
    from .assertions import assert_equivalent as assert_equivalent
    from .assertions import assert_rule as assert_rule
    from .fused import assert_fused as assert_fused
    from .strategies import Instance as Instance
    from .strategies import hostile_arrays as hostile_arrays
    from .strategies import instances as instances
    from .strategies import named_shapes as named_shapes

_HOME = {  # public name: the module that holds it
    "Instance": ".strategies",
    "RTOL": "..egraph.sampling.compare_sides",
    "Refuted": ".assertions",
    "assert_equivalent": ".assertions",
    "assert_fused": ".fused",
    "assert_rule": ".assertions",
    "hostile_arrays": ".strategies",
    "instances": ".strategies",
    "mutants": "..egraph.sampling.mutants",
    "named_shapes": ".strategies",
}
__all__ = sorted(_HOME)


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> object:
        if name not in _HOME:
            from difflib import get_close_matches

            near = get_close_matches(name, _HOME, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{meant}")
        if _HOME[name] == ".strategies":
            _import_module(".assertions", __name__).needs_hypothesis()
        value = globals()[name] = getattr(_import_module(_HOME[name], __name__), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
