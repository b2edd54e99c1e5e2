"""A mesh of one process."""

from tests.onepass.distributed.conftest import mesh  # noqa: F401  a fixture
