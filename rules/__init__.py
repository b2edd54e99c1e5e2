"""The laws, grouped by modules; README.md says how to write one.

NORMAL rewrites terms from left to right. PHASES saturate the e-graph one after another. ADDED are the laws of NORMAL
that treat an added -∞ as an absent element. OPTIONAL are used only if a user gives them. No law mentions attention.
"""

from . import layout, mask, matmul, reductions, scalar, softmax, streaming

LAYOUT = layout.NORMAL
NORMAL = (*layout.NORMAL, *scalar.NORMAL, *mask.NORMAL, *reductions.NORMAL, *softmax.NORMAL)
ADDED = mask.ADDED
PHASES = {"algebra": (*matmul.ALGEBRA, *reductions.ALGEBRA, *scalar.ALGEBRA), "streaming": streaming.STREAMING}
OPTIONAL = softmax.OPTIONAL
ALL = tuple(dict.fromkeys((*NORMAL, *PHASES["algebra"], *PHASES["streaming"], *OPTIONAL)))
