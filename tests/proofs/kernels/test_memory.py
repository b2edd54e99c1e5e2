"""Memory: what is beyond a tensor, between its elements or written twice is a fault."""

import numpy as np
import pytest

from onepass.proofs.kernels import numbers as exact
from onepass.proofs.kernels.memory import Buffer, KernelFault, Pointer, WrittenTensor

VALUES = np.arange(6.0).reshape(2, 3)


def test_a_tensor_with_gaps_is_read_and_nothing_beside_it():
    buffer = Buffer.of("x", VALUES, (5, 1))
    at = Pointer(buffer, np.array([[0, 2, 5, 7]]))
    assert at.load(np.array(True), None).shadow.tolist() == [[0, 2, 3, 5]]
    with pytest.raises(KernelFault, match="between"):
        Pointer(buffer, np.array([[3]])).load(np.array(True), None)
    with pytest.raises(KernelFault, match="beyond"):
        Pointer(buffer, np.array([[8]])).load(np.array(True), None)
    masked = Pointer(buffer, np.array([[8, 1]])).load(np.array([[False, True]]), 0)
    assert masked.shadow.tolist() == [[0, 1]]


def test_integers_stay_integers_and_what_is_not_read_is_no_value():
    buffer = Buffer.of("n", np.arange(4, dtype=np.int32), (1,))
    found = Pointer(buffer, np.array([[1, 9]])).load(np.array([[True, False]]), None)
    assert found.dtype == np.int32 and found[0, 0] == 1 and found[0, 1] not in range(4)


def test_an_element_is_written_once():
    buffer = Buffer.made(WrittenTensor("out", "float32", (4,), (1,)), exact.LEVELS)
    one = Pointer(buffer, np.array([[0, 1], [1, 2]]))
    with pytest.raises(KernelFault, match="twice"):
        one.store(np.array(True), exact.literal(1.0))
    one.store(np.array([[True, True], [False, True]]), exact.literal(0.5))
    values, written = buffer.values((4,), (1,))
    assert written.tolist() == [True, True, True, False] and values.shadow[:3].tolist() == [0.5] * 3
    with pytest.raises(KernelFault, match="twice"):
        Pointer(buffer, np.array([[2]])).store(np.array(True), exact.literal(1.0))


def test_memory_starts_as_zeros_or_as_nothing():
    for zero in (True, False):
        buffer = Buffer.made(WrittenTensor("out", "bfloat16", (2,), (1,), zero), 2)
        assert np.isnan(buffer.read(np.arange(2)).shadow).all() != zero
    assert Buffer.made(WrittenTensor("n", "int64", (2,), (1,), True), 2).read(np.arange(2)).tolist() == [0, 0]
