"""A file with a function, its inputs, and a trusted rule that is wrong: what bisect and minify are given."""

import textwrap
from pathlib import Path

WRONG = """
    import torch
    import onepass
    from onepass.egraph.ops import tanh


    @onepass.rule(trust=True)
    def tanh_is_nothing(x):
        \"\"\"tanh(x) = x\"\"\"
        def right(x):
            return x
        return tanh(x), right


    def attention(q, k, v):
        return (torch.softmax(torch.tanh(q @ k.mT), -1) @ v).cos() + 1


    def example_inputs():
        return [torch.randn(1, 2, 40, 16) for _ in range(3)]
"""


def written(folder: Path) -> Path:
    """The file in this folder."""
    path = folder / "wrong.py"
    path.write_text(textwrap.dedent(WRONG))
    return path
