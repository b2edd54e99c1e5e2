"""The sources of the tree, read and parsed once for all laws."""

import pytest

from tests.house.tree import Source, sources_of


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    return sources_of()
