"""Wrong texts of kernels whose warps wait for one another are found, or are the same by a model, which decides.

Of waits and arrivals: in every order of the groups of warps each read sees the write that it saw before. Of the rest:
the plain form is the same, or the integers of every item and what counts of every tile are, at many sizes.
"""

import re
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from onepass.compiler.verified_kernels import checks, factors
from onepass.lowering.launch.triton_compat import gluon_missing
from onepass.proofs.texts.check import FAULTS, KernelCheck, Reference, differences
from onepass.proofs.texts.mutants import mutants
from onepass.proofs.texts.warp_mutants import EDITS_OF_WARPS
from onepass.proofs.warps.interleavings import Orders
from tests.proofs.texts.free_choices import otherwise, without_choices
from tests.proofs.texts.scalar_bounds import of_items
from tests.proofs.texts.tile_masks import count_the_same, of_tiles
from tests.proofs.warps.test_gluon_interpreter import backward, forward
from tests.support.on_hopper import pretend_hopper

pytestmark = pytest.mark.skipif(gluon_missing() is not None, reason="needs Gluon")
MOST_ROUNDS = 200
MOST_STATES = 400_000
SYNCHRONISATION = (
    r"mbarrier|sync\(|arrive\(|fence_|store_wait|_mma_wait|take_turn|give_turn|together|copy_|a slot fewer|if W =="
)
CASES = {  # sizes at which a text is the same: multiprocessors, which of the factors (None: 0), and the rest
    "forward": [
        (1, 1, {"rows": 200, "columns": 200, "heads": 1}),
        (3, 0, {"rows": 193, "columns": 193, "heads": 2, "batch": 2}),
        (2, 0, {"rows": 330, "columns": 129, "heads": 1}),
        (1, 0, {"rows": 200, "columns": 330, "heads": 1}),
        (1, 2, {"rows": 456, "columns": 456, "heads": 1}),
        (1, None, {"rows": 200, "columns": 200, "heads": 1}),
    ],
    "backward": [
        (1, 0, {"length": 200, "heads": 1}),
        (1, 0, {"length": 200, "heads": 2}),
        (3, 0, {"length": 232, "heads": 2}),
        (2, 0, {"length": 248, "heads": 2, "batch": 2}),
        (1, 0, {"length": (248, 184), "heads": 2}),
        (1, 0, {"length": (184, 232), "heads": 2}),
    ],
}
SIZES = {  # of rows and of columns, and at which the text is the same
    "forward": ("i_size", "j_size", ((193, 200, 255, 321, 330, 383, 449), (129, 140, 192, 193, 200, 257, 330, 456))),
    "backward": ("j_size", "i_0_size", ((184, 200, 208, 224, 232, 248),) * 2),
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
        times = 0.0 if factor is None else factors(texts)[factor]
        (checked,) = (c for one, c in checks(texts, 2**60, times) if any(k.maps for k in one.calls))
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


@pytest.mark.slow
def test_a_race_of_one_order_is_found(monkeypatch):
    """A wait that is dropped where a consumer hands back a tile unread: the other consumer may be a tile behind."""
    (first,) = held("forward", monkeypatch, 1)
    tried = [m for m in of_warps(first.text)[True] if m.what.startswith(UNREAD)]
    assert any(not first.differs(m.text, Orders(0)) and first.differs(m.text, Orders(20_000)) for m in tried)


@pytest.mark.slow
@pytest.mark.parametrize("name, same", [("forward", 77), ("backward", 15)])
def test_mutants_of_waits_and_arrivals_are_found_or_the_same_in_every_order(name, same, monkeypatch):
    launches = held(name, monkeypatch)
    assert len(survivors(launches, of_warps(launches[0].text)[True], MOST_STATES)) <= same


# Indices, masks, strides, initial values and bounds


def undecided(name, launches, tried):
    """The mutants that are not found, and do something else with an item, or count something else of a tile."""
    sizes, text = SIZES[name], launches[0].text
    plain, free, tiles = of_items(text, *sizes), of_items(without_choices(text), *sizes), of_tiles(text, *sizes)
    found = []
    for mutant in tried:
        with suppress(*FAULTS):
            if of_items(mutant.text, *sizes) == plain:
                continue
            counts = count_the_same(tiles, of_tiles(mutant.text, *sizes))
            if counts and of_items(without_choices(mutant.text), *sizes) == free:
                continue
        found.append(mutant)
    return [mutant.what for mutant in survivors(launches, found, 0)]


@pytest.mark.parametrize("name, several", [("forward", 4), pytest.param("backward", 4, marks=pytest.mark.slow)])
def test_choices_are_free(name, several, monkeypatch):
    """Made otherwise, a text computes the same where scores are moderate: when totals are rescaled, and what counts
    beyond the last row."""
    launches = [each for each, (_, factor, _) in zip(held(name, monkeypatch), CASES[name]) if not factor]
    texts = list(otherwise(launches[0].text))
    assert len(texts) == several and launches[0].text not in texts
    assert not any(each.differs(text, Orders(0)) for text in texts for each in launches)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_masks_are_read_at_all_sizes(name, monkeypatch):
    """Each row of a first tile has a key, so no scale is -inf; a mask that lets through more counts otherwise."""
    text = held(name, monkeypatch, 1)[0].text
    tiles = of_tiles(text, *SIZES[name])
    assert len(tiles) == {"forward": 2, "backward": 8}[name] and count_the_same(tiles, tiles)
    if name == "forward":
        assert all(visit.counts[visit.running].any(-1).all() for visit in tiles)
    wrong = re.sub(r"(le_\w+ = .*) <= ", r"\1 < ", text)
    assert wrong != text and not count_the_same(tiles, of_tiles(wrong, *SIZES[name]))


@pytest.mark.parametrize("name, sizes", [("forward", 1), pytest.param("backward", None, marks=pytest.mark.slow)])
def test_some_mutants_of_each_kind(name, sizes, monkeypatch):
    """A mutant of an index over batches, as the backward has one here, is found at a size with several."""
    launches = held(name, monkeypatch, sizes)
    tried, waits = (of_warps(launches[0].text)[kind] for kind in (False, True))
    assert len(tried) > 400 and undecided(name, launches, tried[::106]) == []
    assert len(waits) > 200 and len(survivors(launches, waits[::164], MOST_STATES)) <= len(waits[::164]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("name, part", [(name, part) for name in CASES for part in range(4)])
def test_mutants_of_indices_and_masks_are_found_or_the_same(name, part, monkeypatch):
    launches = held(name, monkeypatch)
    assert undecided(name, launches, of_warps(launches[0].text)[False][part::4]) == []
