"""`cascade fit` on logs where a promise is kept but nothing is saved, or nothing can be learned: the last line says so."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cascade.episodes.files import write_rows
from unit.cli.certified import Row, hard_rows

Cli = Callable[..., Any]
Write = Callable[..., str]


@pytest.fixture
def written(tmp_path: Path) -> Write:
    def write(rows: Sequence[Row]) -> str:
        write_rows(tmp_path / "log.jsonl", rows)
        return str(tmp_path / "log.jsonl")

    return write


def test_the_document_has_it_too(cli: Cli, written: Write) -> None:
    log = written(hard_rows(20, range(10, 20)))
    ran = cli("fit", log, "-o", "policy", "--json")
    assert json.loads(ran.out)["worth"] == {
        "keeps_everything": True,
        "times_reference": 1.5,
        "is_reference": False,
    }
