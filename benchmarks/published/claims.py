"""What the printed tables say, held against the simulated ones by rules: it agrees, it does not, or noise decides.

No verdict is written by hand. A ratio is "the same" where its 95 % interval (Student's t over the splits) lies within
3 %, which is what printed costs of one and the same round vary by; "less" or "more" where all of it lies on that side
of 1; else undecided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from cascade.house.student import student_quantile
from published.marginals import MONEY_TOLERANCE

from .contest import LIMIT, OSC, SAMPLED, THRESHOLD, Figures
from .printed import (
    BASE_POLICY,
    CCPO,
    CHARGED,
    CPO,
    CPO_BATCH,
    CPO_ONLINE,
    EXIT_BASE,
    GUIDE_POLICY,
    IMPOSSIBLE,
    QUESTIONS,
    RANDOM,
    UALA,
    Row,
    Table,
)

AGREES, DIFFERS, UNDECIDED, OURS = "agrees", "does not", "undecided", "ours alone"
LESS, SAME, MORE = "less", "the same", "more"
_APART = 2.0
"""Standard deviations by which a printed figure is off."""


class Mean(NamedTuple):
    """A mean over so many splits, its standard error and the spread of one split; NaN of a single one."""

    mean: float
    error: float
    sd: float
    many: int

    @property
    def noise(self) -> float:
        """Half the length of the mean's 95 % interval; infinite of a single split."""
        return math.inf if self.many < 2 else _quantile(self.many - 1) * self.error


@cache
def _quantile(df: int) -> float:
    return student_quantile(0.975, df)


class Claim(NamedTuple):
    """A sentence that a table stands for.

    Attributes:
        kind: what it speaks of, the same in every table.
        says: the sentence.
        printed, ours: what it rests on.
        verdict: one of `AGREES`, `DIFFERS`, `UNDECIDED`, `OURS`.
        why: where the two part, what they differ in.
    """

    kind: str
    says: str
    printed: str
    ours: str
    verdict: str
    why: str = ""


Rows = Mapping[str, Sequence[Figures]]
"""Of one table: each row's figures, one a split."""


def mean_of(values: Sequence[float]) -> Mean:
    """Return the mean over splits.

    >>> mean_of([1.0, 3.0])
    Mean(mean=2.0, error=1.0, sd=1.4142135623730951, many=2)
    """
    many = len(values)
    sd = float(np.std(values, ddof=1)) if many > 1 else math.nan
    return Mean(float(np.mean(values)), sd / math.sqrt(many), sd, many)


def column(rows: Rows, name: str, figure: str) -> Mean | None:
    """Return a figure of a row; None where the row was not played or has no such figure."""
    values = [getattr(one, figure) for one in rows.get(name, ())]
    return mean_of(values) if values and None not in values else None


def ratio(rows: Rows, name: str, other: str, figure: str) -> Mean | None:
    """Return a row's figure over another's, paired over the splits; None where either is unknown."""
    pairs = [
        (getattr(one, figure), getattr(two, figure))
        for one, two in zip(rows.get(name, ()), rows.get(other, ()), strict=False)
    ]
    if not pairs or any(None in pair for pair in pairs):
        return None
    unit = float(np.mean([two for _, two in pairs]))
    return mean_of([1.0 + (one - two) / unit for one, two in pairs])


def side(found: Mean) -> str:
    """Return what a ratio says.

    >>> side(Mean(0.9, 0.01, 0.04, 20)), side(Mean(1.0, 0.005, 0.02, 20)), side(Mean(0.98, 0.02, 0.08, 20))
    ('less', 'the same', 'undecided')
    """
    if abs(found.mean - 1.0) + found.noise <= MONEY_TOLERANCE:
        return SAME
    if found.mean + found.noise < 1.0:
        return LESS
    return MORE if found.mean - found.noise > 1.0 else UNDECIDED


def printed_side(value: float) -> str:
    """Return what a printed ratio says."""
    return SAME if abs(value - 1.0) <= MONEY_TOLERANCE else LESS if value < 1.0 else MORE


def verdict(printed: str, ours: str) -> str:
    """Return whether two sides agree."""
    return UNDECIDED if UNDECIDED in {printed, ours} else AGREES if printed == ours else DIFFERS


def claims(table: Table, rows: Rows) -> list[Claim]:
    """Return every sentence of a table with its verdict."""
    found = [
        *_reaching(table, rows),
        _pointwise(table, rows),
        *(_compared(table, rows, *pair, "cents") for pair in AS_PLAYED),
        _compared(table, rows, CHARGED, CCPO, "leaves"),
        _compared(table, rows, CCPO, CPO_BATCH, "matched"),
        *(_alone(rows, *pair) for pair in PAIRS if pair != (CCPO, CPO_BATCH)),
    ]
    return [one for one in found if one is not None]


AS_PLAYED = ((CCPO, CPO_BATCH), (CCPO, CPO_ONLINE), (CCPO, UALA), (CHARGED, CCPO))
"""Compared in cost as the tables do, each at the coverage that it happens to reach."""
PAIRS = (
    (CCPO, CPO_BATCH),
    (CCPO, THRESHOLD),
    (SAMPLED, CCPO),
    (OSC, CCPO),
    (CCPO, LIMIT),
    (OSC, LIMIT),
)
"""Compared at matched coverage, which the printed tables cannot be."""


def _reaching(table: Table, rows: Rows) -> Iterator[Claim | None]:
    """Yield whether those who promise 1 − alpha cover it, and whether the one who promises nothing does."""
    wanted = 1.0 - table.alpha
    spread = math.sqrt(table.alpha * wanted * (1 / (QUESTIONS + 2) + 1 / QUESTIONS))
    for name in (CPO_BATCH, CPO_ONLINE, CCPO):
        ours, printed = column(rows, name, "coverage"), table.rows[name].coverage
        if ours is None:
            continue
        here, there = _at_least(ours, wanted), printed >= wanted - spread
        says = f"{name} covers {wanted:g}"
        why = "" if name != CPO_ONLINE else "it promises nothing; its threshold follows the training questions"
        yield Claim(
            f"{name} covers 1 − α",
            says,
            f"{printed:.3f}",
            told(ours, 3),
            _same(there, here),
            "" if here == there else why,
        )


def _at_least(found: Mean, wanted: float) -> bool | None:
    """Return whether a mean is at least so much, as far as noise can tell; None of a single split that is not."""
    if found.many < 2 and found.mean < wanted:
        return None
    return found.mean >= wanted - (found.noise if found.many > 1 else 0.0)


def _same(printed: bool, ours: bool | None) -> str:
    return UNDECIDED if ours is None else AGREES if printed == ours else DIFFERS


def _pointwise(table: Table, rows: Rows) -> Claim | None:
    """Return whether one action a step stays below the desired coverage."""
    ours, printed, wanted = column(rows, CPO, "coverage"), table.rows[CPO].coverage, 1.0 - table.alpha
    if ours is None:
        return None
    here = LESS if ours.mean + ours.noise < wanted else MORE if ours.mean - ours.noise >= wanted else UNDECIDED
    there = LESS if printed < wanted else MORE
    says = f"CPO, one action a step, covers {there} than {wanted:g}"
    found = verdict(there, here)
    return Claim("CPO beside 1 − α", says, f"{printed:.3f}", told(ours, 3), found, _rounds(table, rows, CPO))


_WORDS = {
    "cents": {LESS: "costs less than", SAME: "costs the same as", MORE: "costs more than"},
    "matched": {
        LESS: "costs less at 1 − α than",
        SAME: "costs the same at 1 − α as",
        MORE: "costs more at 1 − α than",
    },
    "leaves": {LESS: "keeps fewer answers than", SAME: "keeps as many answers as", MORE: "keeps more answers than"},
}

_KINDS = {"cents": "cents as played", "matched": "cents at 1 − α", "leaves": "leaves"}


def printed_ratio(table: Table, name: str, other: str, figure: str) -> float:
    """Return a printed row's figure over another's."""
    return float(getattr(table.rows[name], figure) / getattr(table.rows[other], figure))


def _compared(table: Table, rows: Rows, name: str, other: str, figure: str) -> Claim | None:
    """Return what one row's figure is beside another's, printed and ours."""
    ours = ratio(rows, name, other, figure)
    if ours is None:
        return None
    value = printed_ratio(table, name, other, "cents" if figure == "matched" else figure)
    here, there = side(ours), printed_side(value)
    found = verdict(there, here)
    why = "" if found == AGREES else _parted(table, rows, name, other)
    says = f"{name} {_WORDS[figure][there]} {other}"
    kind = f"{name} beside {other}, {_KINDS[figure]}"
    return Claim(kind, says, f"× {value:.3f}", f"× {told(ours, 3)}: {here}", found, why)


def _parted(table: Table, rows: Rows, *names: str) -> str:
    """Return where printed and simulated rows part."""
    said = [f"printed {name}: {IMPOSSIBLE[table.number, name]}" for name in names if (table.number, name) in IMPOSSIBLE]
    least = column(rows, THRESHOLD, "reached")
    if least is not None and least.mean > 1.0 - table.alpha + 1e-6:
        said.append(f"one round with both answers covers {least.mean:.3f} here: nothing is left to be saved")
    return "; ".join([*said, *(_rounds(table, rows, name) for name in names)])


def _rounds(table: Table, rows: Rows, name: str) -> str:
    """Return a row's rounds and coverage, printed and ours."""
    printed, length, coverage = table.rows[name], column(rows, name, "length"), column(rows, name, "coverage")
    leaves = column(rows, name, "leaves")
    if length is None or coverage is None or leaves is None:
        return ""
    there = f"{printed.length:.2f} rounds, {printed.leaves:.2f} leaves, {printed.coverage:.3f} covered"
    return f"{name}: {there} as printed, {length.mean:.2f}, {leaves.mean:.2f}, {coverage.mean:.3f} here"


def _alone(rows: Rows, name: str, other: str) -> Claim | None:
    ours = ratio(rows, name, other, "matched")
    if ours is None:
        return None
    said = _WORDS["cents"].get(side(ours), "beside")
    return Claim(f"{name} ÷ {other}", f"at matched coverage {name} {said} {other}", "", f"× {told(ours, 3)}", OURS)


def told(found: Mean | None, digits: int = 2) -> str:
    """Return a mean with its standard error.

    >>> told(Mean(1.234, 0.056, 0.1, 3)), told(Mean(1.2, math.nan, math.nan, 1)), told(None)
    ('1.23 ± 0.06', '1.20', '–')
    """
    if found is None:
        return "–"
    error = "" if found.many < 2 else f" ± {found.error:.{digits}f}"
    return f"{found.mean:.{digits}f}{error}"


class Gap(NamedTuple):
    """A printed figure that the simulated one does not match, and what they differ in."""

    row: str
    figure: str
    printed: float
    ours: Mean
    why: str


_LEAST: Mapping[str, Callable[[float], float]] = {
    "cents": lambda value: MONEY_TOLERANCE * value,
    "coverage": lambda value: math.sqrt(value * (1.0 - value) / QUESTIONS),
    "length": lambda _: 0.79 / math.sqrt(QUESTIONS),
    "leaves": lambda _: 0.79 / math.sqrt(QUESTIONS),
}
"""One standard error of a printed figure: prices vary by 3 %, coverage and counts as 200 questions do, the latter as
Random's length (`published.marginals`)."""


def gaps(table: Table, rows: Rows) -> list[Gap]:
    """Return the printed figures that lie further off than two standard deviations of one split and their own error."""
    return [found for name, printed in table.rows.items() for found in _row_gaps(table, rows, name, printed)]


def _row_gaps(table: Table, rows: Rows, name: str, printed: Row) -> Iterator[Gap]:
    for figure, least in _LEAST.items():
        ours, value = column(rows, name, figure), getattr(printed, figure)
        if ours is None:
            continue
        sd = 0.0 if ours.many < 2 else ours.sd
        if abs(ours.mean - value) > _APART * math.hypot(sd, least(value)):
            yield Gap(name, figure, value, ours, _reason(table, rows, name, figure))


def _reason(table: Table, rows: Rows, name: str, figure: str) -> str:
    """Return why a figure differs, decided by the others of its row."""
    if (table.number, name) in IMPOSSIBLE:
        return IMPOSSIBLE[table.number, name]
    if name == EXIT_BASE:
        return "in the first reading of the tables (`design/paper.md`) the base is this weak"
    if name == RANDOM and figure != "coverage":
        return "it takes 40/27 = 1.48 rounds of four in every world; the printed row is one draw of 200 questions"
    if name == GUIDE_POLICY:
        return "printed: GPT-4o is paid for each decision; here: its verdict decides, at no extra cost"
    printed, length = table.rows[name], column(rows, name, "length")
    cents = column(rows, name, "cents")
    if figure == "cents" and length is not None and cents is not None:
        there, here = printed.cents / printed.length, cents.mean / length.mean
        if abs(here / there - 1.0) > 2 * MONEY_TOLERANCE:
            return f"a round costs {there:.2f} there, {here:.2f} here"
    return _rounds(table, rows, name)


NOT_PLAYED: Mapping[str, str] = {
    BASE_POLICY: "not played, since a small model's verdicts are not simulated",
}
