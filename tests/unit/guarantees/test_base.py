"""What may be asked for, and that everything that is wrong with it is said at once."""

from __future__ import annotations

from typing import Any

import pytest
from cases import each

from cascade.errors import UsageError
from cascade.guarantees.base import KINDS, Guarantee, get


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "coverage"},
        {"kind": "coverage", "alpha": 0.05, "delta": 0.1, "by_segment": True},
        {"kind": "error", "delta": 0.1, "abstain": True},
    ],
)
def test_what_there_is_may_be_asked_for(fields: dict[str, Any]) -> None:
    asked = Guarantee(**fields)
    assert asked.single == (fields["kind"] in {"error", "regret"})


@each(
    "fields, said",
    [
        ({"kind": "coverag"}, ["coverage"]),
        ({"kind": "coverage", "alpha": 0.0}, ["alpha is 0.0"]),
        ({"kind": "coverage", "alpha": 1.0}, ["alpha is 1.0"]),
        ({"kind": "coverage", "alpha": None}, ["alpha is None"]),
        ({"kind": "coverage", "alpha": float("nan")}, ["alpha is nan"]),
        ({"kind": "coverage", "delta": 1.0}, ["delta is 1.0"]),
        ({"kind": "error"}, ["error needs delta"]),
        ({"kind": "regret", "alpha": 2, "by_segment": True}, ["alpha is 2", "regret needs delta", "Segments go with"]),
    ],
)
def test_all_that_is_wrong_is_said_at_once(fields: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        Guarantee(**fields)
    assert all(one in str(error.value) for one in said), str(error.value)


def test_every_kind_can_be_asked_for() -> None:
    more: dict[str, dict[str, Any]] = {kind: {"delta": 0.1} for kind in ("error", "regret", "agreement", "preference")}
    assert [Guarantee(kind, **more.get(kind, {})).kind for kind in KINDS.names] == list(KINDS.names)


def test_what_is_counted_question_by_question_can_be_watched() -> None:
    assert [one.name for one in map(get, KINDS.names) if one.monitored] == [
        *("coverage", "regret", "error", "agreement", "preference")
    ]
    assert [one.name for one in map(get, KINDS.names) if one.needs_delta] == [
        "regret",
        "error",
        "agreement",
        "preference",
    ]
