"""Every promise, in 20,000 simulated calibrations on populations of which the risks are known."""

from __future__ import annotations

import math
import sys
from functools import cache
from pathlib import Path

import pytest

from cascade.conformal import certify
from cascade.conformal.path import UNITS

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import validity
from validity import CALIBRATIONS, DELTA, SIZES, Case, measure

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
NAMES = (
    "coverage, on average",
    "coverage",
    "error",
    "regret, a pair",
    "regret, a ladder",
    "agreement",
    "preference, half judged",
    "regret, fit",
    "regret, a level",
    "regret, no safe last node",
    "regret, a segment",
    "regret, conversations",
    "regret, just above the promise",
    "naive: regret as seen",
    "naive: every turn certifies",
)
HARDEST = NAMES[-3]


@cache
def cases() -> tuple[Case, ...]:
    return tuple(validity.cases())


def test_every_row_is_measured():
    assert {case.name for case in cases()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_promise_holds_and_a_naive_rule_does_not(name):
    for case in cases():
        if case.name == name:
            row = measure(case, CALIBRATIONS)
            assert row.holds, row
            assert row.certified > 0.5, row
            if name == HARDEST:
                law = certify.spent(case.n, case.promise, DELTA)
                assert abs(row.measured - law) <= 3 * row.error + 0.002  # its risk is above the promise by 1 of 10,000


@pytest.mark.parametrize("size", SIZES)
def test_a_loss_too_many_would_show(size, monkeypatch):
    right = certify.most_units
    monkeypatch.setattr(certify, "most_units", lambda *given: right(*given) + UNITS)
    (case,) = [case for case in cases() if case.name == HARDEST and (case.n, case.promise.risk) == size]
    assert not measure(case, 5_000).holds


def test_what_is_not_a_certificate_breaks_nothing():
    case = cases()[1]
    row = measure(case._replace(n=5), 50)
    assert row.certified == 0
    assert row.measured == 0
    assert math.isfinite(row.excess)
