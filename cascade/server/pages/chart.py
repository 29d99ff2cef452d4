"""Positions of the lines and bars of a page, in percent of a drawing that scales to any width."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from cascade.server.pages.traffic import Day

_ALARM_Y, _NOTHING_Y = 20.0, 60.0
"""The distance of the alarm's level and of "no evidence" (1) from the top; fixed, since labels stand beside them."""
_MOST_POINTS = 400


class Line(NamedTuple):
    """The evidence against a promise, audit by audit.

    Attributes:
        points: the points of an SVG polyline, x and y in percent.
        audits: how many it covers.
        last: the evidence now.
        alarm_at: the evidence at which the alarm is raised.
    """

    points: str
    audits: int
    last: float
    alarm_at: float


def evidence(values: Sequence[float], level: float) -> Line:
    """Return the line of a monitor's evidence, on a logarithmic scale.

    Args:
        values: the evidence before the first audit and after each one, in the order in which they were counted.
        level: the probability of a false alarm: the alarm is at 1 / level.
    """
    return Line(_polyline(values, 1 / level), len(values) - 1, values[-1], 1 / level)


def _polyline(values: Sequence[float], alarm_at: float) -> str:
    step = max(1, math.ceil(len(values) / _MOST_POINTS))
    places = sorted({*range(0, len(values), step), len(values) - 1})
    wide = max(1, len(values) - 1)
    points = [(100 * place / wide, _height(values[place], alarm_at)) for place in places]
    if len(points) == 1:  # no audit yet: the line is at its start
        points.append((100.0, points[0][1]))
    return " ".join(f"{x:.2f},{y:.2f}" for x, y in points)


def _height(value: float, alarm_at: float) -> float:
    """Return the distance of a value from the top.

    >>> _height(1.0, 20.0), _height(20.0, 20.0), _height(0.0, 20.0)
    (60.0, 20.0, 98.0)
    """
    if value <= 0:
        return 98.0
    y = _NOTHING_Y - (_NOTHING_Y - _ALARM_Y) * math.log(value) / math.log(alarm_at)
    return min(98.0, max(2.0, y))


class Bar(NamedTuple):
    """One day: the start and the height of its bars, in percent."""

    day: Day
    x: float
    width: float
    alone: float
    spent: float


def bars(days: Sequence[Day]) -> list[Bar]:
    """Return the bars of days, the highest filling the height."""
    most = max((max(one.alone, one.spent) for one in days), default=0) or 1
    wide = 100 / max(len(days), 1)
    return [
        Bar(one, place * wide + wide * 0.12, wide * 0.76, 100 * one.alone / most, 100 * one.spent / most)
        for place, one in enumerate(days)
    ]
