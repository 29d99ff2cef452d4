"""The contest as Markdown: each table's figures beside the printed ones, then what agrees, what does not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from fitted.report import table as markdown

from .claims import (
    AGREES,
    AS_PLAYED,
    DIFFERS,
    NOT_PLAYED,
    OURS,
    PAIRS,
    UNDECIDED,
    Rows,
    claims,
    column,
    gaps,
    printed_ratio,
    ratio,
    told,
)
from .contest import ROWS, charge_in_steps, draw
from .printed import TABLES, Table

_COLUMNS = (
    "row", "cents, printed", "cents", "coverage, printed", "coverage", "length, printed", "length", "leaves, printed",
    "leaves", "different", "cents at 1 − α",
)  # fmt: skip


def pages(found: Mapping[int, Rows], said: Sequence[str]) -> list[str]:
    """Return everything: how it was made, a summary, then table by table."""
    lines = [*said, "", *summary(found), ""]
    for number, rows in sorted(found.items()):
        lines += [*page(TABLES[number], rows), ""]
    return lines


def page(table: Table, rows: Rows) -> list[str]:
    """Return one table."""
    many = max((len(one) for one in rows.values()), default=0)
    title = f"## Table {table.number}: {table.world}, α = {table.alpha:g}"
    steps = charge_in_steps(table, draw(table, 0).train)
    sizes = f"{many} splits; {table.train:,} questions to train, 200 to calibrate, 200 to test"
    note = f"{sizes}; λ = {table.charge:g}, as USD for each answer kept: {steps:.2f} mean rounds."
    missing = [f"{name}: {why}." for name, why in NOT_PLAYED.items() if name in table.rows]
    shown = [line(table, rows, name) for name in ROWS if name in table.rows or name in rows]
    return [title, "", " ".join([note, *missing]), "", *markdown(_COLUMNS, shown), "", *_verdicts(table, rows)]


def line(table: Table, rows: Rows, name: str) -> list[str]:
    """Return a row's cells; "!" stands behind a figure that the printed one does not match."""
    printed = table.rows.get(name)
    off = {(one.row, one.figure) for one in gaps(table, rows)}
    cells = [name]
    for figure, digits in (("cents", 2), ("coverage", 3), ("length", 2), ("leaves", 2)):
        there = "" if printed is None else f"{getattr(printed, figure):.{digits}f}"
        mark = " !" if (name, figure) in off else ""
        cells += [there, told(column(rows, name, figure), digits) + mark]
    return [*cells, told(column(rows, name, "distinct")), _matched(table, rows, name)]


def _matched(table: Table, rows: Rows, name: str) -> str:
    cost, reached = column(rows, name, "matched"), column(rows, name, "reached")
    if cost is None or reached is None:
        return "–"
    floor = reached.mean > 1.0 - table.alpha + 1e-6
    return f"{told(cost)}{f' (covers {reached.mean:.3f})' if floor else ''}"


def _verdicts(table: Table, rows: Rows) -> list[str]:
    each = claims(table, rows)
    cells = [[one.verdict, one.says, one.printed, one.ours, one.why if one.verdict != AGREES else ""] for one in each]
    lines = markdown(("verdict", "the table says", "printed", "ours", "where they part"), cells)
    off = [
        f"* {one.row}, {one.figure}: {one.printed:g} printed, {told(one.ours, 3)} here: {one.why}."
        for one in gaps(table, rows)
    ]
    return [*lines, "", *(["Figures marked !:", "", *off] if off else ["No figure is marked !."])]


def summary(found: Mapping[int, Rows]) -> list[str]:
    """Return how many sentences agree, by what they speak of, and the ratios at matched coverage of every table."""
    kinds: dict[str, Counter[str]] = {}
    for number, rows in sorted(found.items()):
        for one in claims(TABLES[number], rows):
            if one.verdict != OURS:
                kinds.setdefault(one.kind, Counter())[one.verdict] += 1
    numbers = [f"Table {number}" for number in sorted(found)]
    order = (AGREES, DIFFERS, UNDECIDED)
    counted = [[kind, *(str(count[name]) for name in order)] for kind, count in kinds.items()]
    played = [cells for pair in AS_PLAYED for cells in _as_played(found, *pair)]
    ratios = [
        [f"{name} ÷ {other}", *(told(ratio(rows, name, other, "matched"), 3) for _, rows in sorted(found.items()))]
        for name, other in PAIRS
    ]
    return [
        "## All tables",
        "",
        "How many of the tables' claims hold here, by subject:",
        "",
        *markdown(("sentence", *order), counted),
        "",
        "Cost as played, as the ratio of two rows, each at its own coverage:",
        "",
        *markdown(("ratio", "", *numbers), played),
        "",
        "Cost at a coverage of exactly 1 − α on the same fresh questions, as the ratio of two rows:",
        "",
        *markdown(("ratio", *numbers), ratios),
    ]


def _as_played(found: Mapping[int, Rows], name: str, other: str) -> list[list[str]]:
    there = [f"{printed_ratio(TABLES[number], name, other, 'cents'):.3f}" for number in sorted(found)]
    here = [told(ratio(rows, name, other, "cents"), 3) for _, rows in sorted(found.items())]
    return [[f"{name} ÷ {other}", "printed", *there], ["", "here", *here]]
