"""What differs between the languages of kernels: names of functions, and how matrices and loops meet memory.

Texts of this folder are written through a dialect: they never name `tl` or `gl` themselves.
Example: `call("sum", "x", axis=1)` is `tl.sum(x, axis=1)` in Triton and `gl.sum(x, axis=1)` in Gluon.
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_NAMES = {"bool": "int1", "float": "float32", "float8_e4m3fn": "float8e4nv", "float8_e5m2": "float8e5"}


@dataclass(frozen=True)
class Dialect:
    """One language of kernels.

    module: the name in a kernel's text of the module with the language's functions. jit: the decorator of functions.
    pads_matrices: matrices that share memory get one extent (matching_extents in tile_extents.py).
    folds_serially: a fold may be a loop inside the expression of a tile (tile_writer.py).
    """

    module: str
    jit: str
    pads_matrices: bool
    folds_serially: bool

    def call(self, function: str, *arguments: object, **options: object) -> str:
        """The text of a call of one of the language's functions."""
        texts = [*map(str, arguments), *(f"{name}={value}" for name, value in options.items())]
        return f"{self.module}.{function}({', '.join(texts)})"

    def fill(self, template: str, *texts: str, **named: object) -> str:
        """A template with its operands; `{lang}` in it becomes the language's module."""
        return template.format(*texts, lang=self.module, **named)

    def type_name(self, dtype: str) -> str:
        """A dtype as the language names it: "bool" is `tl.int1` in Triton."""
        return f"{self.module}.{TYPE_NAMES.get(dtype, dtype)}"


# Triton gives matrices their memory, and loops inside of a tile's expression their registers.
TRITON = Dialect("tl", "triton.jit", pads_matrices=True, folds_serially=True)
# In a Gluon kernel no two matrices share memory, and a warpgroup computes a tile in one piece.
GLUON = Dialect("gl", "gluon.jit", pads_matrices=False, folds_serially=False)
