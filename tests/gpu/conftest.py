"""Tests share a GPU's memory with those of other processes: what a test has freed is given back after it."""

import pytest
import torch


@pytest.fixture(autouse=True)
def no_memory_is_kept():
    yield
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
