"""bench/first_call.py in new processes: the stages account for the seconds, and a second process searches nothing."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "first_call.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("bench_first_call", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softcap", "causal_training"])
def test_the_second_process_searches_nothing(script, name, tmp_path):
    rows = []
    for _ in script.RUNS:
        process = script.started(name, "onepass", "cpu", str(tmp_path / "caches"), str(tmp_path / "bytecode"))
        rows.append(script.answer(process))
    for row in rows:
        assert "forward" in row, row["ran"]
        stages, total = row["stages"], row["forward"] + (row["backward"] or 0.0)
        assert sum(stages.values()) == pytest.approx(total) and stages["rest"] < 0.25 * total
        assert (row["backward"] is not None) == (name == "causal_training")
        assert "Inductor" not in stages and row["ran"] == "tiled"
    cold, warm = (row["stages"] for row in rows)
    assert "search" in cold and "search" not in warm and "certificates" in warm


def test_a_ratio_is_of_medians_and_a_failure_has_none(script):
    row = lambda name, who, caches, forward: {
        **{"program": name, "contestant": who, "caches": caches},
        **{"forward": forward, "backward": 1.0, "stages": {}, "ran": ""},
    }
    given = [row("a", "onepass", "cold", x) for x in (1.0, 3.0, 9.0)]
    given += [row("a", "inductor", "cold", 1.0), row("a", "onepass", "warm", 1.0)]
    given.append({"program": "a", "contestant": "inductor", "caches": "warm", "ran": "it failed"})
    found = {(r["contestant"], r["caches"]): r for r in script.summary(given, "here")}
    assert found["onepass", "cold"]["ratio"] == 2.0 and found["onepass", "cold"]["wanted"] == "ratio 1.3"
    assert "ratio" not in found["onepass", "warm"] and found["inductor", "warm"]["ran"] == "it failed"
