"""What a verb reports: a few lines first, tables for those who want them, and the same as JSON.

A report holds every figure once, and each renderer prints it: the terminal (`text`), a page (`markdown`), a program
(`document`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.conformal.promise import Promise
from cascade.text import percent


class Table(NamedTuple):
    """A table of a report: its title, the names of its columns, and its rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def plain(self) -> Iterator[str]:
        """Yield it in columns: the first to the left, the others to the right."""
        every = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in every) for at in range(len(self.columns))]
        yield self.title
        for row in every:
            first, *figures = zip(row, widths, strict=True)
            yield "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in figures)]).rstrip()


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb found.

    Attributes:
        lines: what a reader with ten seconds needs, a sentence each.
        tables: the details.
        document: the same figures as plain JSON values; money in USD.
        title: what it is about: the name of a log.
    """

    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    def text(self, *, details: bool = False) -> str:
        """Return it for a terminal: the lines; with `details` the tables too."""
        return "\n".join([*self.lines, *(line for table in self.tables if details for line in ("", *table.plain()))])

    def markdown(self) -> str:
        """Return it as a page, tables included."""
        head = [f"# {self.title}\n"] if self.title else []
        tables = [line for table in self.tables for line in _page(table)]
        return "\n".join([*head, "\n\n".join(self.lines), *tables]) + "\n"


def _page(table: Table) -> Iterator[str]:
    yield from ("", f"## {table.title}", "", f"| {' | '.join(table.columns)} |")
    yield "|" + "---|" * len(table.columns)
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows)


def promise_line(promise: Promise) -> str:
    """Return a promise in a sentence.

    >>> promise_line(Promise("regret", 0.05, 0.9))
    'Promised: the answer served is wrong, and the reference alone is right, on at most 5 % of requests, with \
confidence 90 %.'
    """
    sure = "on average" if promise.confidence is None else f"with confidence {percent(promise.confidence)}"
    return f"Promised: {promise.rules.lost}, on at most {percent(promise.risk)} of requests, {sure}."


def promise_options(promise: Promise) -> list[str]:
    """Return a promise as options of a command line."""
    sure = [] if promise.confidence is None else [f"--confidence {promise.confidence:g}"]
    return [f"--promise {promise.kind}", f"--risk {promise.risk:g}", *sure]


def promise_document(promise: Promise) -> dict[str, Any]:
    """Return a promise as plain JSON values."""
    return {"kind": promise.kind, "risk": promise.risk, "confidence": promise.confidence}


def tenths(value: float) -> str:
    """Return a share as a percentage with one decimal."""
    return f"{100 * value:.1f} %"


def share(value: float | None) -> str:
    """Return a share with three decimals, or a dash if it is unknown."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"
