"""onepass: attention written in plain PyTorch becomes fused kernels.

Everything a user needs is a name of this module. A name is loaded from its module on first use, so that
`import onepass` is quick, does not import torch, and changes nothing in the process.
"""

import sys as _sys
from collections.abc import Sequence as _Sequence
from importlib import import_module as _import_module
from importlib.machinery import ModuleSpec as _ModuleSpec
from importlib.util import spec_from_file_location as _spec_from_file_location
from pathlib import Path as _Path
from types import ModuleType as _ModuleType

from .garbage import rare_collections as _rare_collections

TYPE_CHECKING = False
if TYPE_CHECKING:  # what __getattr__ gives, for type checkers and editors
    from . import errors as errors
    from . import testing as testing
    from .api.backend import onepass_backend as onepass_backend
    from .api.compile import compile as compile
    from .api.explain import explain as explain
    from .api.graph_pass import GraphPass as GraphPass
    from .api.plan import plan as plan
    from .compiler.rule_admission import check as check
    from .distributed.context_parallel import context_parallel as context_parallel
    from .egraph import Rule as Rule
    from .egraph import independent as independent
    from .egraph import positive as positive
    from .egraph import rule as rule
    from .report.records import Report as Report
    from .report.records import reports as reports
    from .states import State as State
    from .states import merge as merge
    from .states import merge_over as merge_over
    from .states import state as state
    from .states import state_of as state_of

__version__ = "0.2.0"

_HOME = {  # public name: the module that holds it; a module that is public itself is its own home
    "GraphPass": "api.graph_pass",
    "Report": "report.records",
    "Rule": "egraph",
    "State": "states",
    "check": "compiler.rule_admission",
    "compile": "api.compile",
    "context_parallel": "distributed.context_parallel",
    "errors": "errors",
    "explain": "api.explain",
    "independent": "egraph",
    "merge": "states",
    "merge_over": "states",
    "onepass_backend": "api.backend",
    "plan": "api.plan",
    "positive": "egraph",
    "reports": "report.records",
    "rule": "egraph",
    "state": "states",
    "state_of": "states",
    "testing": "testing",
}

__all__ = ["__version__", *_HOME]

_PARTS = ("egraph", "lowering", "proofs", "rules")
_ROOT = _Path(__file__).resolve().parent.parent


class _PartsOfCheckout:
    """Finds the parts of a checkout, such as onepass.rules: they are folders beside this one.

    An installed onepass contains its parts, and needs no such finder. It goes before others: a virtual environment that
    has one checkout installed would else find the parts of that one for another.
    """

    def find_spec(
        self, name: str, path: _Sequence[str] | None = None, target: _ModuleType | None = None, /
    ) -> _ModuleSpec | None:
        package, _, part = name.rpartition(".")
        if package != __name__ or part not in _PARTS:
            return None
        folder = _ROOT / part
        places = [str(folder)]
        return _spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=places)


if (_ROOT / "pyproject.toml").is_file() and all((_ROOT / part / "__init__.py").is_file() for part in _PARTS):
    _sys.meta_path.insert(0, _PartsOfCheckout())


if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> object:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{_meant(name)}")
        with _rare_collections():
            module = _import_module(f".{home}", __name__)
        value = module if home == name else getattr(module, name)
        globals()[name] = value
        return value


def _meant(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, _HOME, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
