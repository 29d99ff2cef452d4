"""Learning curves in a file, and what is told while a network is trained."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from cascade.errors import ConfigError
from cascade.training.networks.problem import Row, start
from cascade.training.networks.progress import FIELDS, Following, Progress, columns_of, csv_of, rows_of
from cascade.training.networks.training import train

from .made import random_walks, setting


def row(step: int, **other: float | str) -> Row:
    plain = {name: 0.1 * place + step for place, name in enumerate(FIELDS)}
    return Row(**{**plain, "step": step, "case": "dual", **other})  # type: ignore[arg-type]


def test_every_field_of_a_step_is_a_column() -> None:
    assert Row._fields == FIELDS


def test_the_same_numbers_are_read_again_to_the_bit() -> None:
    odd = [row(1, cost=0.1 + 0.2, kl=5e-324), row(2, violation=math.inf, slack=-0.0), row(3, kappa=1 / 3)]
    assert rows_of(csv_of(odd)) == odd
    assert csv_of(rows_of(csv_of(odd))) == csv_of(odd)
    assert math.copysign(1.0, rows_of(csv_of(odd))[1].slack) == -1.0
    unknown = rows_of(csv_of([row(1, multiplier=math.nan)]))
    assert math.isnan(unknown[0].multiplier)


def test_a_real_run_is_read_again_and_a_longer_one_begins_with_it() -> None:
    rows = train(setting(random_walks(30, 3, 2))).rows
    data = csv_of(rows)
    assert csv_of(rows_of(data)) == data
    assert data.startswith(csv_of(rows[:4]))
    assert columns_of(data)["step"] == list(range(1, len(rows) + 1))
    assert set(columns_of(data)["case"]) == {"dual"}


def test_no_steps_are_a_table_too() -> None:
    assert rows_of(csv_of([])) == []
    assert columns_of(csv_of([])) == {name: [] for name in FIELDS}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"step,cost\n1,2\n",
        csv_of([row(1)]).replace(b"coverage", b"covered"),
        csv_of([row(1)]) + b"2,3\n",
        csv_of([row(1)]).replace(b"\n1,", b"\none,"),
        csv_of([row(1)]) + b"\xff",
        b"more," + csv_of([row(1)]).replace(b"\n1", b"\n0,1", 1),
    ],
)
def test_what_is_no_such_table_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match=r"table of learning curves|of another release"):
        rows_of(data)


def test_means_over_the_last_hundred_steps_are_told() -> None:
    told: list[Progress] = []
    following = Following("ccpo", 300, told.append)
    state = start(setting(random_walks(20, 2, 1)))
    for step in range(1, 201):
        following(state, row(step, coverage=float(step), cost=2.0 * step, kappa=0.5 / step))
    assert told[0] == Progress("ccpo", 1, 300, 1.0, 2.0, 0.5)
    assert told[-1] == Progress("ccpo", 200, 300, 150.5, 301.0, 0.0025)  # means of 101 to 200
