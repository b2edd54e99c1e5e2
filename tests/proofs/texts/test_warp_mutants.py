"""Wrong texts of kernels whose warps wait for one another are found, or are the same by a model, which decides.

Of waits and arrivals: in every order of the groups of warps each read sees the write that it saw before. Of the rest:
the plain form is the same, or the integers of every item are, at many sizes.
"""

import re
from dataclasses import dataclass, replace

import pytest

from onepass.compiler.verified_kernels import checks, factors
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.proofs.texts.check import FAULTS, KernelCheck, Reference, differences
from onepass.proofs.texts.mutants import mutants
from onepass.proofs.texts.warp_mutants import EDITS_OF_WARPS
from onepass.proofs.warps.interleavings import Orders
from tests.proofs.texts.scalar_bounds import of_items
from tests.proofs.warps.test_gluon_interpreter import backward, forward
from tests.support.on_hopper import pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
MOST_ROUNDS = 200
MOST_STATES = 400_000
SYNCHRONISATION = (
    r"mbarrier|sync\(|arrive\(|fence_|store_wait|_mma_wait|take_turn|give_turn|together|copy_|a slot fewer|if W =="
)
CASES = {  # sizes at which a text is the same: multiprocessors, which of the factors, and the rest
    "forward": [
        (1, 1, {"rows": 200, "columns": 200, "heads": 1}),
        (3, 0, {"rows": 193, "columns": 193, "heads": 2, "batch": 2}),
        (2, 0, {"rows": 330, "columns": 129, "heads": 1}),
        (1, 0, {"rows": 200, "columns": 330, "heads": 1}),
        (1, 2, {"rows": 456, "columns": 456, "heads": 1}),
    ],
    "backward": [
        (1, 0, {"length": 200, "heads": 1}),
        (1, 0, {"length": 200, "heads": 2}),
        (3, 0, {"length": 232, "heads": 2}),
        (2, 0, {"length": 248, "heads": 2, "batch": 2}),
    ],
}
SIZES = {  # of rows and of columns, and at which the text is the same
    "forward": ("i_size", "j_size", ((193, 200, 255, 321, 330, 383, 449), (129, 140, 192, 193, 200, 257, 330, 456))),
    "backward": ("j_size", "i_0_size", ((200, 208, 224, 232, 248),) * 2),
}
REASONS = {  # of a mutant's description; why it computes the same
    r"adds or not: .*gl\.zeros\(": "what is added is 0",
    r"number: (gl\.where\(new_scale|float\('-inf'\)).*; in: (shift|mantissa)": "each row of a causal mask has a key",
    r"rescaled0_0_scale \+ 8\.0": "totals may be rescaled at any growth of the scale: theory/Rescaling.v",
    r"; in: (if \(tile <|own_(full_begin|full_end|last_row) =)": "a full tile may run as a partial one, and what is "
    "beyond the last row or column meets a 0 or is not stored",
    r"(j_exists\[|i_0_exists\[|j_2 < j_size|i_0 < i_0_size)": "what is beyond meets a 0 or is not stored",
    r"weight != 0\.0": "a weight that is absent is 0, and its product is a finite number",
    r"done( & 1|\ \+ count - 1)": "all items have an even number of tiles",
}


@dataclass(frozen=True)
class Held:
    """A launch at some sizes, and what it is to compute."""

    checked: KernelCheck
    reference: Reference

    @property
    def at(self) -> int:
        """Which of the calls has warps that wait."""
        return next(n for n, call in enumerate(self.checked.calls) if call.maps)

    @property
    def text(self) -> str:
        """The text of that call."""
        return self.checked.calls[self.at].text

    def differs(self, text: str, orders: Orders) -> list[str]:
        """What another text does otherwise."""
        calls = [replace(c, text=text) if n == self.at else c for n, c in enumerate(self.checked.calls)]
        return differences(replace(self.checked, calls=tuple(calls)), self.reference, MOST_ROUNDS, orders)


def held(name, monkeypatch, most=None):
    """The launches of a text; the first one is small enough for every order."""
    found = []
    for multiprocessors, factor, sizes in CASES[name][:most]:
        pretend_hopper(monkeypatch, multiprocessors)
        texts = {"forward": forward, "backward": backward}[name]("causal", **sizes)
        (checked,) = (c for one, c in checks(texts, 2**60, factors(texts)[factor]) if any(k.maps for k in one.calls))
        found.append(Held(checked, Reference(checked)))
        assert not found[-1].differs(found[0].text, Orders(0)) and found[-1].text == found[0].text
    return found


def of_warps(text):
    """Mutants by whether they change in which order things happen, or what is copied. Layouts change no value."""
    both = {True: [], False: []}
    for mutant in mutants(text, EDITS_OF_WARPS):
        if "Layout" not in mutant.what:
            both[re.search(SYNCHRONISATION, mutant.what) is not None].append(mutant)
    return both


def survivors(launches, tried, most):
    """The mutants that are not found at any size, in the orders of a run, nor in any order at the first size."""
    found = []
    for mutant in tried:
        if any(each.differs(mutant.text, Orders(0)) for each in launches):
            continue
        orders = Orders(most)
        if not launches[0].differs(mutant.text, orders):
            assert orders.all or not most, f"not decided: {mutant.what}"
            found.append(mutant)
    return found


# Waits and arrivals

UNREAD = "dropped: mbarrier.wait(arg1_1_full.index(count & 1), count // 2 & 1)"


def test_a_race_of_one_order_is_found(monkeypatch):
    """A wait that is dropped where a consumer hands back a tile unread: the other consumer may be a tile behind."""
    (first,) = held("forward", monkeypatch, 1)
    tried = [m for m in of_warps(first.text)[True] if m.what.startswith(UNREAD)]
    assert any(not first.differs(m.text, Orders(0)) and first.differs(m.text, Orders(20_000)) for m in tried)


@pytest.mark.parametrize("name", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_some_mutants_of_waits_and_arrivals(name, monkeypatch):
    launches = held(name, monkeypatch, 1)
    tried = of_warps(launches[0].text)[True]
    assert len(tried) > 200 and len(survivors(launches, tried[::41], MOST_STATES)) <= len(tried[::41]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("name, same", [("forward", 80), ("backward", 20)])
def test_mutants_of_waits_and_arrivals_are_found_or_the_same_in_every_order(name, same, monkeypatch):
    launches = held(name, monkeypatch)
    assert len(survivors(launches, of_warps(launches[0].text)[True], MOST_STATES)) <= same


# Indices, masks, strides, initial values and bounds


def undecided(name, launches, tried):
    """The survivors that have no reason, and how many do something else with an item, and how many survive of these."""
    same = of_items(launches[0].text, *SIZES[name])
    others = [m for m in tried if items_or_fault(m.text, SIZES[name]) != same]
    found = survivors(launches, others, 0)
    return [m.what for m in found if not any(re.search(p, m.what) for p in REASONS)], len(others), len(found)


def items_or_fault(text, sizes):
    try:
        return of_items(text, *sizes)
    except FAULTS as fault:
        return str(fault)


@pytest.mark.parametrize("name", ["forward", pytest.param("backward", marks=pytest.mark.slow)])
def test_some_mutants_of_indices_and_masks(name, monkeypatch):
    launches = held(name, monkeypatch, 2)
    tried = of_warps(launches[0].text)[False]
    assert len(tried) > 400 and undecided(name, launches, tried[::53])[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("name, part", [(name, part) for name in CASES for part in range(4)])
def test_mutants_of_indices_and_masks_are_found_or_the_same(name, part, monkeypatch):
    launches = held(name, monkeypatch)
    assert undecided(name, launches, of_warps(launches[0].text)[False][part::4])[0] == []
