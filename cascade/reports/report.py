"""What a verb reports: a few lines first, tables for those who want them, and the same as JSON.

A report holds every figure once; the terminal and a notebook show its text, a program reads its `document`. The
`Result` of each function of the package is made of reports.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from cascade.conformal.promise import Promise
from cascade.errors import CascadeError, logger
from cascade.text import aligned, percent, printable

Tell: TypeAlias = Callable[[str], None]
"""A callback that takes a notice of one sentence. The command line prints it on stderr."""
Show: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: the name of the task, the number of parts done, and the number of parts."""


def warn(text: str) -> None:
    """Log a notice as a warning of the logger `cascade`; the default `tell` of the package's functions."""
    logger.warning("%s", text)


class Table(NamedTuple):
    """A table of a report: its title, the names of its columns, and its rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self, width: int | None = None) -> Iterator[str]:
        """Yield the lines of the table, with aligned columns (`text.aligned`)."""
        yield from ([self.title] if self.title else [])
        yield from aligned([self.columns, *self.rows], width)


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb reports.

    Attributes:
        lines: what a reader with ten seconds needs, in one sentence each.
        tables: the details.
        document: the same figures as plain JSON values; money in USD.
        title: the name of the log that it is about.
        shown: how many of the tables are shown by default.
    """

    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    document: Any = field(default_factory=dict)
    title: str = ""
    shown: int = 0

    def text(self, *, details: bool = False, width: int | None = None) -> str:
        """Return the text for a terminal: the lines, unwrapped, and the `shown` tables, or with `details` all."""
        tables = [line for table in self.tables[: None if details else self.shown] for line in ("", *table.text(width))]
        return "\n".join([*self.lines, *tables[not self.lines :]])


@dataclass(frozen=True, repr=False, kw_only=True)
class Result:
    """The result of a function of the package. `print(result)` and a notebook show what the command line prints.

    Attributes:
        reports: its reports: one, or one for each data set.
        error: the error that the command ends with although there is a result; None if all is well.
        detailed: whether the tables are shown by default.
        listed_as: the name of the list in `to_dict` if the result has a report for each data set.
    """

    reports: tuple[Report, ...]
    error: CascadeError | None = None
    detailed: bool = False
    listed_as: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the document that the command prints with `--json`. Costs are in USD; unknown is None."""
        documents = [dict(report.document) for report in self.reports]
        return documents[0] if self.listed_as is None else {self.listed_as: documents}

    def text(self, *, details: bool | None = None, width: int | None = None) -> str:
        """Return what the command line prints: a few lines, and with `details` the tables too."""
        details, several = self.detailed if details is None else details, len(self.reports) > 1
        titles = [f"{report.title}\n" * (several and bool(report.title)) for report in self.reports]
        texts = [report.text(details=details, width=width) for report in self.reports]
        return printable("\n\n".join(map("".join, zip(titles, texts, strict=True))))

    def __repr__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return the text for a notebook, every character of it escaped."""
        return f'<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{html.escape(str(self))}</pre>'


def promise_line(promise: Promise) -> str:
    """Return a promise as a sentence.

    >>> promise_line(Promise("regret", 0.05, 0.9))
    'Promised: the answer served is wrong, and the reference alone is right, on at most 5 % of requests, with \
confidence 90 %.'
    """
    sure = "on average" if promise.confidence is None else f"with confidence {percent(promise.confidence)}"
    rules, risk = promise.rules, percent(promise.risk)
    if rules.graded:
        return f"Promised: a mean loss of at most {risk} per request, {sure}: 0 where {rules.kept_when}, else more."
    return f"Promised: {rules.lost_when}, on at most {risk} of requests, {sure}."


def loss_line(promise: Promise, lost: float, whose: str) -> str:
    """Return the beginning of a sentence about losses: the share of requests lost, or the mean loss."""
    return f"Mean loss over {whose}: {tenths(lost)}" if promise.rules.graded else f"Lost: {tenths(lost)} of {whose}"


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
