"""Who may read and write shared memory: what is known to be over, by whom, and behind which fences."""

import numpy as np
import pytest

from onepass.proofs.kernels import numbers as exact
from onepass.proofs.kernels.memory import KernelFault
from onepass.proofs.warps.shared_memory import InFlight, SharedBuffer, SharedMemory, Warps


def tile(value=1.0, shape=(4, 4)):
    return exact.of_floats(np.full(shape, value))


@pytest.fixture
def there():
    memory = SharedMemory()
    return SharedBuffer(memory, "tiles", (2, 4, 4)).whole, Warps("one"), Warps("other")


def test_views_are_the_same_memory(there):
    tiles, one, _ = there
    tiles.index(1).write(exact.of_floats(np.arange(16.0).reshape(4, 4)), one, "a store")
    read = lambda view: view.read(one, "a load")[0].shadow.tolist()
    assert read(tiles.index(1).permute((1, 0)).slice(2, 1, 0)) == [[2, 6, 10, 14]]
    assert read(tiles.slice(1, 1).reshape((16,)).slice(14, 2)) == [14, 15]
    for wrong in (lambda: tiles.index(2), lambda: tiles.index(-1), lambda: tiles.slice(1, 2, 0)):
        with pytest.raises(KernelFault):
            wrong()


def test_what_another_wrote_is_read_by_who_knows_it(there):
    tiles, one, other = there
    with pytest.raises(KernelFault, match="nobody wrote"):
        tiles.index(0).read(one, "a load")
    tiles.index(0).write(tile(), one, "a store")
    with pytest.raises(KernelFault, match="a load of tiles by other while a store to tiles by one may be under way"):
        tiles.index(0).read(other, "a load")
    other.learn(one.known, one.fenced)
    tiles.index(0).read(other, "a load")
    with pytest.raises(KernelFault, match="a store to tiles by one while a load of tiles by other"):
        tiles.index(0).write(tile(), one, "a store")
    one.learn(other.known, other.fenced)
    tiles.index(0).write(tile(), one, "a store")


def test_parts_of_a_tile_are_apart(there):
    tiles, one, other = there
    for start, warps in ((0, one), (2, other)):
        tiles.index(0).slice(start, 2, 0).write(tile(shape=(2, 4)), warps, "a store")
    with pytest.raises(KernelFault, match="while a store to tiles by other"):
        tiles.index(0).read(one, "a load")


def test_copies_count_when_they_are_waited_for_and_need_a_fence_behind_stores(there):
    tiles, one, _ = there
    tiles.index(0).write(tile(), one, "a store")
    with pytest.raises(KernelFault, match="a copy of tiles by one while a store"):
        tiles.index(0).read(one, "a copy", asynchronous=True)
    one.fence()
    _, number = tiles.index(0).read(one, "a copy", asynchronous=True)
    one.copies.append(number)
    with pytest.raises(KernelFault, match="while a copy of tiles by one"):
        tiles.index(0).write(tile(), one, "a store")
    with pytest.raises(KernelFault, match="ends while a copy"):
        one.leave()
    one.await_copies(1)
    assert one.copies
    one.await_copies(0)
    tiles.index(0).write(tile(), one, "a store")
    one.leave()


def test_a_product_in_vain_may_read_what_is_being_written(there):
    tiles, one, other = there
    tiles.index(0).write(tile(), one, "a store")
    one.fence()
    products = []
    for _ in range(2):
        number = tiles.buffer.memory.access("a product by one")
        products.append(InFlight(tile(), number))
        tiles.buffer.memory.products[number] = products[-1]
        one.products.append(products[-1])
        tiles.buffer.note(tiles.index(0).places, number, writes=False)
    with pytest.raises(KernelFault, match="before it was waited for"):
        products[0].use()
    one.await_products(1)
    assert products[0].use() is products[0].value and not products[1].over
    other.learn(one.known & ~(1 << products[1].number), 0)
    tiles.index(0).write(tile(), other, "a store")  # nobody has used the second product
    one.await_products(0)
    with pytest.raises(KernelFault, match="a store to tiles by other while a product by one"):
        products[1].use()
    one.leave()


def test_a_product_whose_value_was_used_may_not_be_overtaken(there):
    tiles, one, other = there
    tiles.index(0).write(tile(), one, "a store")
    other.learn(one.known, one.known)
    number = tiles.buffer.memory.access("a product by one")
    product = tiles.buffer.memory.products[number] = InFlight(tile(), number, over=True)
    tiles.buffer.note(tiles.index(0).places, number, writes=False)
    product.use()
    with pytest.raises(KernelFault, match="while a product by one"):
        tiles.index(0).write(tile(), other, "a store")


def test_what_is_written_has_the_shape_and_the_kind_of_the_memory(there):
    tiles, one, _ = there
    tiles.index(0).write(tile(), one, "a store")
    with pytest.raises(KernelFault, match="is written to"):
        tiles.index(0).write(tile(shape=(4, 2)), one, "a store")
    with pytest.raises(KernelFault, match="numbers and integers"):
        tiles.index(0).write(np.zeros((4, 4), np.int32), one, "a store")
