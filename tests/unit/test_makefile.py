"""`make` says what it installs and how long that takes before pip, which prints nothing, begins."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["demo", "test"])
def test_what_is_installed_is_said_before_pip_begins(target: str, tmp_path: Path) -> None:
    """0.5.0: pip was silent for 116 s, and nothing said why."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    ran = subprocess.run(
        ["make", "--dry-run", "--no-print-directory", target], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = ran.stdout.splitlines()
    (pip,) = [number for number, line in enumerate(lines) if "/pip " in line]
    said = lines[pip - 1]
    assert said.startswith("echo")
    assert "Installing cascade" in said
    assert "minutes" in said
    assert "MB" in said or "GB" in said
    if target == "test":  # the test suite needs more than the demo
        assert "torch" in said
