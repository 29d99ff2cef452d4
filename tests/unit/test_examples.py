"""Every example runs as it stands, offline."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
ELSEWHERE = {"local_pair.py", "loop.py"}
"""The first needs models' weights; the second takes minutes, and its parts are in `unit/server/test_modes.py`."""
OFFLINE = sorted(path.name for path in FOLDER.glob("*.py") if path.name not in ELSEWHERE)


def test_there_are_examples() -> None:
    assert len(OFFLINE) > 5


@pytest.mark.parametrize("name", OFFLINE)
def test_it_runs_and_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert capsys.readouterr().out.strip()
