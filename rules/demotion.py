"""The law of what kernels store for one another: a stored value is the value.

Read from right to left it stores: a part gets a kernel of its own. Read from left to right it demotes: the part is
computed where it is read. No search uses it, since both sides are one class of an e-graph; cost decides what is stored,
and each plan is read back by the law (lowering/readback).
"""

from ..egraph import rule
from ..egraph.terms.ops import stored


@rule(exact="bitwise")
def read_of_stored(x, t: "name"):
    """stored(x) = x: what a kernel reads in a tensor that another kernel stored is what was stored"""
    return stored(x, t), x


DEMOTION = (read_of_stored,)
