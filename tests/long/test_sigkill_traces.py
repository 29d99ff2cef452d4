"""F52: two hundred kills at random moments while traces are written."""

from __future__ import annotations

from pathlib import Path

import pytest
from sigkill import kill_some
from stores import postgres_url

KILLS = 200


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_f52_two_hundred_kills_lose_nothing_that_was_acknowledged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = kill_some(KILLS, tmp_path, seed=20261121)
    with capsys.disabled():
        print(  # noqa: T201 - the numbers are the point
            f"\n{tally.kills} kills, {tally.acknowledged} acknowledged, at most {tally.found} rows in a file"
        )
    assert (tally.missing, tally.torn, tally.damaged) == ([], [], [])
    assert tally.kills == KILLS
    assert tally.acknowledged > KILLS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_f52_nor_do_thirty_on_postgresql(tmp_path: Path) -> None:
    with postgres_url() as url:
        tally = kill_some(30, tmp_path, seed=7, url=url)
    assert (tally.missing, tally.torn, tally.damaged) == ([], [], [])
    assert tally.acknowledged > 30
