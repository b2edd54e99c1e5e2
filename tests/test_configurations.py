"""The script that measures configurations, with made-up times: every row is there, and it goes on where it ended."""

import csv
import subprocess
import sys
from collections import Counter
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent / "bench" / "configurations.py"


def run(out: Path, *more: str) -> list[dict]:
    options = ("--pretend", "--out", str(out), "--workers", "2", "--executors", "triton")
    command = [sys.executable, str(SCRIPT), *options, *more]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    with out.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_table_is_measured_in_two_runs(tmp_path):
    out = tmp_path / "table.csv"
    first = run(out, "--variants", "window", "--most", "40")
    rows = run(out, "--variants", "window")
    assert len(first) == 40 and rows[:40] == first, "what was measured stays"
    key = lambda r: tuple(list(r.values())[:12])
    assert len({key(r) for r in rows}) == len(rows) == 84
    found = Counter(r["status"] for r in rows)
    assert found["ok"] and found["crash"] and found["wrong"] and found["out of resource"]
    assert all(bool(r["ms"]) == (r["status"] in ("ok", "spill")) for r in rows)
    assert run(out, "--variants", "window") == rows, "nothing is measured twice"
