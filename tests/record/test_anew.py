"""The path and its certifier decide as the record says: thresholds between scores, ties and the menu switched off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cascade.conformal.certify import points_of
from record import numbers
from record.anew import Case, cases, outcome
from record.worlds import WORLDS, world

HERE = Path(__file__).parent
EVERY = 10
"""Of so many worlds one is compared in each run of the suite; `make long` compares all."""


@cache
def recorded() -> Mapping[int, Mapping[str, Any]]:
    """Return what the code before decided on each world, by its seed."""
    lines = (HERE / "worlds.jsonl").read_text("utf-8").splitlines()
    return {seed: outcomes for seed, _, outcomes in map(json.loads, lines)}


def compare(seed: int) -> None:
    wanted = recorded()[seed]
    for case in cases(world(seed)):
        actual = json.loads(json.dumps(outcome(case, seed, lambda walks, case: points_of(walks, case.promise))))
        right = _recorded(wanted[case.name], case)
        lines = [line for line in actual["found"] if not case.by_segment or line[0] in {each[0] for each in right[0]}]
        assert (lines, actual.get("path"), actual.get("rows")) == right, (seed, case.name)


def _recorded(record: dict[str, Any], case: Case) -> tuple[Any, Any, Any]:
    """Return what is recorded, without ranks and pools; sets kept whole for want of requests are refused."""
    names = 1 if case.by_segment else 0
    lines = [line for line in record["found"] if not (names and line[0] is None)]
    plain = []
    for line in lines:
        if line[-1] in ("refused", "everything"):
            plain.append([*line[: names + 1], "refused"])
        else:
            plain.append([*line[: names + 2], *line[names + 3 :]])
    return plain, record.get("path"), record.get("rows")


@pytest.mark.parametrize("start", range(EVERY))
def test_random_logs_are_decided_as_recorded(start):
    for seed in range(start, WORLDS, 10 * EVERY):
        compare(seed)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_random_logs_are_decided_as_recorded():
    for seed in range(WORLDS):
        compare(seed)


def test_the_worlds_are_those_of_the_record():
    lines = (HERE / "worlds.jsonl").read_text("utf-8").splitlines()
    drawn = [(seed, digest) for seed, digest, _ in map(json.loads, lines)]
    assert all(world(seed).digest == digest for seed, digest in drawn[:: EVERY * EVERY]), "numpy draws other numbers"


def test_bounds_and_alarms_are_the_recorded_ones():
    wanted = json.loads((HERE / "numbers.json").read_text("utf-8"))
    assert json.loads(json.dumps(numbers.exact())) == wanted["exact"]
    for name, values in numbers.near().items():
        assert values == pytest.approx(wanted["near"][name], rel=1e-8, abs=1e-280), name
