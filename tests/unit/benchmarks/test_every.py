"""Every benchmark imports what is there; the quickest ones run."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
MODULES = [".".join(path.relative_to(FOLDER).with_suffix("").parts) for path in sorted(FOLDER.rglob("*.py"))]
NEEDS = ("torch", "openai", "anthropic", "uvloop", "httpx", "mapie")

sys.path.append(str(FOLDER))


@pytest.mark.parametrize("name", MODULES)
def test_it_can_be_imported(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDS:
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize("name", ["needed_questions"])
def test_the_quickest_run(name: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / f"{name}.py")], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout
