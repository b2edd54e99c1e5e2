"""onepass: attention written in plain PyTorch becomes fused kernels.

Everything a user needs is a name of this module. A name is loaded from its module on first use, so that
`import onepass` is quick, does not import torch, and changes nothing in the process.
"""

from importlib import import_module as _import_module
from pathlib import Path as _Path

__version__ = "0.1.0"

_HOME = {  # public name: the module that holds it; a module that is public itself is its own home
    "GraphPass": "api.graph_pass",
    "Report": "report.records",
    "Rule": "egraph",
    "State": "states",
    "check": "compiler.rule_admission",
    "errors": "errors",
    "explain": "api.explain",
    "independent": "egraph",
    "merge": "states",
    "merge_over": "states",
    "onepass_backend": "api.backend",
    "positive": "egraph",
    "reports": "report.records",
    "rule": "egraph",
    "state": "states",
    "state_of": "states",
    "testing": "testing",
}

__all__ = ["__version__", *_HOME]

# An installed onepass contains its parts, such as `onepass.rules`. In a checkout they are folders beside this one, and
# Python at the root of a checkout imports this folder as onepass. This line makes it find the parts there.
_root = _Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").is_file() and (_root / "rules" / "__init__.py").is_file():
    __path__.append(str(_root))


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(f".{home}", __name__)
    value = module if home == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
