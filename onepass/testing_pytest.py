"""The public path of the pytest plugin, which is in testing/pytest_plugin.py.

The entry point of an installed onepass names it, and so does `pytest_plugins = "onepass.testing_pytest"`.
"""

from .testing.pytest_plugin import pytest_configure, pytest_generate_tests

__all__ = ["pytest_configure", "pytest_generate_tests"]
