"""What several tests of the server start from."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from .observed import Answers, observed
from .served import WAIT_S


@pytest.fixture(scope="package", autouse=True)
def _a_busy_machine_is_waited_for_and_no_round_comes_between() -> Iterator[None]:
    """Give probes, scrapes and feedback as long as a test waits, and let tests alone begin what a server does by itself."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("app._PROBES_S", "metrics._STORE_S", "feedback._FLUSH_S", "modes._EVERY_S", "budgets._EVERY_S"):
            patch.setattr(f"cascade.server.{name}", WAIT_S)
        yield


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
