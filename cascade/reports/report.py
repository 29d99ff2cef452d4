"""What a verb reports: a few lines first, tables for those who want them, and the same as JSON.

A report holds every figure once, and each renderer prints it: the terminal (`text`), a page (`markdown`), a notebook,
a program (`document`). A `Result` of the package's functions is made of reports.
"""

from __future__ import annotations

import html
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from cascade.conformal.promise import Promise
from cascade.errors import CascadeError
from cascade.text import aligned, percent, shown

Tell: TypeAlias = Callable[[str], None]
"""A callback that takes a notice of one sentence. The command line prints it on stderr."""
Show: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: the name of the task, the number of parts done, and the number of parts."""


def warn(text: str) -> None:
    """Log a notice as a warning of the logger `cascade`; the default `tell` of the package's functions."""
    logging.getLogger("cascade").warning("%s", text)


class Table(NamedTuple):
    """A table of a report: its title, the names of its columns, and its rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, width: int | None = None) -> Iterator[str]:
        """Yield it in columns (`text.aligned`)."""
        yield from ([self.title] if self.title else [])
        yield from aligned([self.columns, *self.rows], width)


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb reports.

    Attributes:
        lines: what a reader with ten seconds needs, a sentence each.
        tables: the details.
        document: the same figures as plain JSON values; money in USD.
        title: what it is about: the name of a log.
    """

    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    document: Any = field(default_factory=dict)
    title: str = ""

    def text(self, *, details: bool = False, width: int | None = None) -> str:
        """Return it for a terminal: the lines, unbroken so that a command can be copied; with `details` the tables."""
        tables = [line for table in self.tables if details for line in ("", *table.text(width))]
        return "\n".join([*self.lines, *tables[not self.lines :]])

    def markdown(self) -> str:
        """Return it as a page, tables included."""
        head = [f"# {self.title}\n"] if self.title else []
        tables = [line for table in self.tables for line in _page(table)]
        return "\n".join([*head, "\n\n".join(self.lines), *tables]) + "\n"


class Result(ABC):
    """The result of a function of the package. `print(result)` and a notebook show what the command line prints.

    `to_dict` returns the document that the command prints with `--json`; `docs/schemas` has its JSON Schema.
    """

    listed_as: ClassVar[str | None] = None
    """The name of the list in `to_dict`, of a result with a report for each data set."""

    @property
    @abstractmethod
    def reports(self) -> tuple[Report, ...]:
        """Its reports: one, or one for each data set."""

    @property
    def detailed(self) -> bool:
        """Whether the tables are shown unasked."""
        return False

    @property
    def error(self) -> CascadeError | None:
        """The error with which the command ends although there is a result; None if all is well."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values. Costs are in USD; unknown is None."""
        documents = [dict(report.document) for report in self.reports]
        return documents[0] if self.listed_as is None else {self.listed_as: documents}

    def text(self, *, details: bool | None = None, width: int | None = None) -> str:
        """Return what the command line prints: a few lines, and with `details` the tables too."""
        details, several = self.detailed if details is None else details, len(self.reports) > 1
        titles = [f"{report.title}\n" * (several and bool(report.title)) for report in self.reports]
        texts = [report.text(details=details, width=width) for report in self.reports]
        return shown("\n\n".join(map("".join, zip(titles, texts, strict=True))))

    def markdown(self) -> str:
        """Return it as a page, tables included."""
        return shown("\n".join(report.markdown() for report in self.reports))

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return the text for a notebook, every character of it escaped."""
        return f'<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{html.escape(str(self))}</pre>'


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
