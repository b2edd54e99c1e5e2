"""The demo prints the time of what a user gets on this device, and says what each figure is."""

import pytest
from rich.console import Console

from onepass.cli import demo, measure

SECONDS = {"eager": 2.0, "fused": 4.2, "onepass": 0.5}


@pytest.fixture
def measured(monkeypatch):
    """What was asked of measure.py, by its arguments."""
    asked = []

    def in_process(what, forms, *rest):
        asked.append((what, forms))
        ran = f"who runs {forms}"
        return {form: SECONDS[form] for form in forms.split(",")} if what == "time" else {"bytes": 2**20, "ran": ran}

    monkeypatch.setattr(measure, "in_process", in_process)
    return asked


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_each_figure_is_of_what_runs_on_the_device(device, measured):
    console = Console(record=True, width=200)
    demo._print_time(console, 64, device)
    demo._print_memory(console, 64, device)
    text = console.export_text()
    assert "eager 2000.0 ms" in text and "onepass 500.0 ms (0.25 of eager's)" in text
    assert ("4200.0" in text) == ("onepass's own kernels" in text) == (device == "cuda")
    assert ("on a CPU no kernel runs" in text) == (device == "cpu")
    assert "onepass ran by who runs onepass" in text
    assert measured[0] == ("time", ",".join(demo.SHOWN[device]))


def test_every_form_has_a_name():
    shown = {form for forms in demo.SHOWN.values() for form in forms}
    assert shown == set(measure.FORMS) == {"eager", *demo.NAMES}


def test_a_failure_is_said(monkeypatch):
    def fails(*arguments):
        raise RuntimeError("no memory")

    monkeypatch.setattr(measure, "in_process", fails)
    console = Console(record=True, width=200)
    demo._print_time(console, 64, "cpu")
    demo._print_memory(console, 64, "cpu")
    assert "time: no memory" in (text := console.export_text()) and "memory: no memory" in text
