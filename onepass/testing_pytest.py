"""The door of the pytest plugin: an installed onepass names it, and `pytest_plugins = "onepass.testing_pytest"` may.

The plugin is in testing/pytest_plugin.py.
"""

from .testing.pytest_plugin import pytest_configure, pytest_generate_tests

__all__ = ["pytest_configure", "pytest_generate_tests"]
