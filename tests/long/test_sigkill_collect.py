"""SIGKILL at 200 random moments of collections over HTTP: no recorded call is lost, and none is paid again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from faults.test_collect_kill import judge, kill_often

KILLS = 200
QUESTIONS = 12


@pytest.mark.long
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_two_hundred_kills(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    figures = kill_often(tmp_path, KILLS, QUESTIONS, seed=20_260_101)
    for name, value in asdict(figures).items():
        record_property(name, value)
    sys.stdout.write(f"{figures}\n")  # shown by pytest -s
    judge(figures, KILLS)
