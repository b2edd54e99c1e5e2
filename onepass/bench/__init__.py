"""Suites that measure onepass against others on this machine."""
