"""Calibrations repeated on parts of a log: sound promises hold, and one that certifies too much is found out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cascade import Guarantee, open_log
from cascade.calibration.repeating import Repeated, repeat_calibration
from cascade.config import policy_section
from cascade.factory import policy_of
from cascade.guarantees.base import get

SETTINGS = policy_section({"kind": "threshold", "threshold": 0.3, "keep": "both"})


def repeated(guarantee: Guarantee) -> Repeated:
    log = open_log("simulated:mmlu/llama-2-7b,2000")
    return repeat_calibration(log.tables, policy_of(SETTINGS), SETTINGS, guarantee, questions=150, repeats=30)


@pytest.mark.parametrize("guarantee", [Guarantee("coverage", 0.05), Guarantee("error", 0.4, delta=0.1)])
def test_a_sound_promise_holds(guarantee: Guarantee) -> None:
    found = repeated(guarantee)
    assert found.holds
    assert len(found.risks) > 20
    assert 0 < max(found.risks) < 1


@pytest.mark.parametrize("guarantee", [Guarantee("coverage", 0.05), Guarantee("error", 0.3, delta=0.1)])
def test_one_that_certifies_twice_as_much_is_found_out(guarantee: Guarantee, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = type(get(guarantee.kind))
    honest = rules.calibrate

    def lax(self: Any, sample: Any, wanted: Guarantee, path: Any) -> Any:
        return honest(self, sample, replace(wanted, alpha=2 * wanted.alpha), path)

    monkeypatch.setattr(rules, "calibrate", lax)
    found = repeated(guarantee)
    assert not found.holds


def test_calibrations_that_certify_nothing_break_nothing() -> None:
    found = Repeated(0.1, 0.1, 20, ())
    assert (found.broken, found.holds) == (0, True)
