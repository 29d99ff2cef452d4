"""What several tests of the server start from."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from .observed import Answers, observed


@pytest.fixture(scope="session")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what was observed, enough for a look."""
    folder = tmp_path_factory.mktemp("seen")
    asyncio.run(observed(folder, Answers(), 260))
    return folder


@pytest.fixture
def observing(seen: Path, tmp_path: Path) -> Path:
    """Return a folder of the test's own with what was observed."""
    return Path(shutil.copytree(seen, tmp_path / "own"))
