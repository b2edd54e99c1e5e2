"""`forget` empties the stores that are registered, all of them or those of the kinds that are named."""

import pytest

from onepass import process_state


def test_forget_drops_the_kinds_that_are_named(monkeypatch):
    monkeypatch.setattr(process_state, "_STORES", [])
    one, two = (process_state.registered({1: 2}, kind) for kind in ("reports", "verdicts"))
    process_state.forget("reports")
    assert (one, two) == ({}, {1: 2})
    process_state.forget()
    assert two == {}
    for wrong in (lambda: process_state.forget("rules"), lambda: process_state.registered([], "rules")):
        with pytest.raises(ValueError, match="the kinds are reports"):
            wrong()
