"""The code gives the thresholds, costs and decisions of the record, bit for bit.

Of promises by segment only the segments that are certified alone are compared: in the record the smaller ones share a
threshold, and now they have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from record import numbers
from record.outcomes import outcomes
from record.worlds import WORLDS, world

HERE = Path(__file__).parent
EVERY = 10
"""Of so many worlds one is compared in each run of the suite; `make long` compares all."""
DRIFTED = "numpy's generator draws other numbers than when the record was made"


def alone(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is recorded of a log, without the thresholds that small segments shared, which name no segment."""
    own = {
        name: {**each, "found": [one for one in each["found"] if one[0] is not None]}
        for name, each in told.items()
        if " segments" in name and "found" in each
    }
    return {**told, **own}


@cache
def recorded() -> Mapping[int, tuple[str, Mapping[str, Any]]]:
    lines = (HERE / "worlds.jsonl").read_text("utf-8").splitlines()
    return {seed: (digest, alone(found)) for seed, digest, found in map(json.loads, lines)}


def compare(seed: int) -> None:
    made = world(seed)
    digest, found = recorded()[seed]
    assert made.digest == digest, DRIFTED
    assert json.loads(json.dumps(outcomes(made))) == found, f"world {seed}"


@pytest.mark.parametrize("start", range(0, WORLDS, 10 * EVERY))
def test_random_logs_are_certified_and_served_as_recorded(start: int) -> None:
    for seed in range(start, start + 10 * EVERY, EVERY):
        compare(seed + start // (10 * EVERY))  # so that every strategy and every kind of score has its turn


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_random_logs_are_certified_and_served_as_recorded() -> None:
    assert sorted(recorded()) == list(range(WORLDS))
    for seed in range(WORLDS):
        compare(seed)


def test_ranks_and_alarms_are_the_recorded_ones() -> None:
    assert json.loads(json.dumps(numbers.exact())) == json.loads((HERE / "numbers.json").read_text("utf-8"))["exact"]


def test_tails_and_evidence_are_the_recorded_ones() -> None:
    found, wanted = numbers.near(), json.loads((HERE / "numbers.json").read_text("utf-8"))["near"]
    assert sorted(found) == sorted(wanted)
    for name, values in found.items():
        assert values == pytest.approx(wanted[name], rel=1e-8, abs=1e-280), name
