"""The laws. Modules are groups; NORMAL rewrites from left to right, PHASES saturate the e-graph one after another.
ADDED of NORMAL take an added -∞ for absence.

Nothing but laws and these lists: machinery is in egraph/. No law mentions attention.
"""

from . import layout, mask, matmul, reductions, scalar, softmax, streaming

LAYOUT = layout.NORMAL
NORMAL = (*layout.NORMAL, *scalar.NORMAL, *mask.NORMAL, *reductions.NORMAL, *softmax.NORMAL)
ADDED = mask.ADDED
PHASES = {"algebra": (*matmul.ALGEBRA, *reductions.ALGEBRA, *scalar.ALGEBRA), "streaming": streaming.STREAMING}
OPTIONAL = softmax.OPTIONAL
ALL = tuple(dict.fromkeys((*NORMAL, *PHASES["algebra"], *PHASES["streaming"], *OPTIONAL)))
