"""What `fit`, `prove` and `compare` say: a few lines first, tables for those who want them, and the same as JSON.

A report holds every figure once, and each renderer prints it: the terminal (`text`), a page (`markdown`), a program
(`document`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.conformal.promise import Promise
from cascade.house.fit import Fit
from cascade.house.menu import Tested
from cascade.house.study import Row, Study
from cascade.text import counted, percent


class Table(NamedTuple):
    """A table of a report: its title, the names of its columns, and its rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb found.

    Attributes:
        lines: what a reader with ten seconds needs, a sentence each.
        tables: the details.
        document: the same figures as plain JSON values; money in USD.
    """

    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)

    def text(self, *, details: bool = False) -> str:
        """Return it for a terminal: the lines; with `details` the tables too."""
        return "\n".join([*self.lines, *(line for table in self.tables if details for line in ("", *_plain(table)))])

    def markdown(self) -> str:
        """Return it as a page, tables included."""
        return "\n".join(["\n\n".join(self.lines), *(line for table in self.tables for line in _page(table))]) + "\n"


def _plain(table: Table) -> Iterator[str]:
    """Yield a table in columns: the first to the left, the others to the right."""
    every = [table.columns, *table.rows]
    widths = [max(len(row[at]) for row in every) for at in range(len(table.columns))]
    yield table.title
    for row in every:
        first, *others = zip(row, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


def _page(table: Table) -> Iterator[str]:
    yield from ("", f"## {table.title}", "", f"| {' | '.join(table.columns)} |")
    yield "|" + "---|" * len(table.columns)
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows)


# --- fit ---


def promise_line(promise: Promise) -> str:
    """Return a promise in a sentence.

    >>> promise_line(Promise("regret", 0.05, 0.9))
    'Promised: the answer served is wrong, and the reference alone is right, on at most 5 % of requests, with \
confidence 90 %.'
    """
    sure = "on average" if promise.confidence is None else f"with confidence {percent(promise.confidence)}"
    return f"Promised: {promise.rules.lost}, on at most {percent(promise.risk)} of requests, {sure}."


def of_fit(done: Fit, output: str | None = None) -> Report:
    """Return the report of a fit; `output` is the policy directory that was written, if any."""
    lines = [promise_line(done.promise), _saving_line(done), _requests_line(done), *_doubts(done), _next(done, output)]
    return Report(tuple(lines), tuple(_fit_tables(done)), fit_document(done))


def _saving_line(done: Fit) -> str:
    cost, low, high, _ = done.saving
    if not done.certified:
        return "Saves: nothing is proven to cost less than the reference, so the reference alone is asked."
    if cost is None or low is None or high is None:
        return "Saves: unknown, because the log does not say what the reference costs."
    word = "saves" if cost < 1 else "costs"
    amount = f"{_percent(1 - cost)} of the reference's cost" if cost < 1 else f"{cost:.2f} × the reference"
    return f"Saves: it {word} {amount} (90 % interval: {_percent(1 - high)} to {_percent(1 - low)})."


def _requests_line(done: Fit) -> str:
    unit = "groups, one request of each" if len(set(done.log.groups)) < done.log.n else "requests"
    said = f"Proven on {done.log.n:,} {unit}"
    if done.learned_from:
        said += f"; {counted(done.learned_from, 'other request')} ordered the thresholds"
    if done.attempt.number is None:
        return f"{said}; how often they were used before is unknown: {done.attempt.why}."
    return f"{said}: fit {done.attempt.number} on these."


def _doubts(done: Fit) -> Iterator[str]:
    """Yield what weakens the promise, if anything does."""
    trends = {"losses": done.losses_drift, "doubt": done.doubt_drift}
    named = [name for name, trend in trends.items() if trend is not None and trend.notable]
    if named:
        yield (
            f"Note: the {' and the '.join(named)} of the requests change over the log; a promise speaks of requests "
            "like those that proved it: --newest 0.5 certifies on the newer half."
        )
    if done.too_small:
        listed = ", ".join(f"{name} ({many})" for name, many in done.too_small.items())
        yield f"Note: nothing is proven for these segments, whose requests the guide answers: {listed}."


def _next(done: Fit, output: str | None) -> str:
    if not done.saves and done.certified:
        return "Next: nothing to gain here; log a signal of doubt (log-probs, a judge), or allow a higher risk."
    if not done.certified:
        return "Next: log more requests, or a signal of doubt (log-probs, a judge), or allow a higher risk."
    return f"Next: policy: {output}" if output else "Next: write it with -o DIRECTORY, and serve that."


def _fit_tables(done: Fit) -> Iterator[Table]:
    rows = tuple([_tested_row(tested, done) for tested in done.tested])
    yield Table("What was tested", ("policy", "level", "requests", "lost", "cost / reference", "served"), rows)


def _tested_row(tested: Tested, done: Fit) -> tuple[str, ...]:
    lost = "–" if tested.certified is None else f"{float(tested.certified.losses):g}"
    served = "yes" if tested.policy == done.policy and done.certified else ""
    return tested.name, f"{tested.level:.3g}", f"{tested.n:,}", lost, _share(tested.cost), served


def fit_document(done: Fit) -> dict[str, Any]:
    """Return a fit's figures as plain JSON values."""
    return {
        "promise": _promise(done.promise),
        "policy": done.policy.kind,
        "saves": done.saves,
        "cost_share": done.saving.cost_share,
        "cost_share_interval": [done.saving.low, done.saving.high],
        "requests": done.log.n,
        "learned_from": done.learned_from,
        "repeated": done.repeated,
        "left_out": done.unknown,
        "attempt": done.attempt.number,
        "level": done.level,
        "certificates": {
            name: {"kappa": str(proven.point.kappa), "n": proven.n, "losses": float(proven.losses)}
            for name, proven in done.certified.items()
        },
        "too_small": dict(done.too_small),
        "tested": [
            {"name": each.name, "level": each.level, "requests": each.n, "cost_share": each.cost}
            for each in done.tested
        ],
    }


def _promise(promise: Promise) -> dict[str, Any]:
    return {"kind": promise.kind, "risk": promise.risk, "confidence": promise.confidence}


# --- study ---


def of_study(found: Study, served: str = "cascade fit") -> Report:
    """Return the report of a study: what `served` would save, beside every other way."""
    row = found.row(served)
    where = (
        f"Tried on {found.splits} splits: fitted on {found.fitted_on:,} groups, tested on {found.tested_on:,} others."
    )
    lines = [promise_line(found.promise), _study_saving(row), where, _kept(found, row)]
    if found.bound is not None:
        lines.append(f"No policy on these calls can cost less than {found.bound:.3f} × the reference.")
    return Report(tuple(lines), (_study_table(found.rows),), study_document(found))


def _study_saving(row: Row) -> str:
    if row.saving is None:
        return "Saves: unknown, because the log lacks costs."
    mean, low, high = row.saving
    if low is None or high is None:
        return f"Saves: {_percent(mean)} of the reference's cost, on too few groups for an interval."
    sure = f"95 % interval: {_percent(low)} to {_percent(high)}"
    return (
        f"Saves: {_percent(mean)} of the reference's cost ({sure})."
        if row.saving.sure
        else f"Saves: not shown ({sure})."
    )


def _kept(found: Study, row: Row) -> str:
    tried = found.splits - row.refused
    if not tried:
        return f"Nothing was proven on any of {found.splits} splits, so the reference answered."
    most = percent(found.promise.risk)
    return f"Lost on the tests: {_percent(row.risk)} on average; above {most} in {row.broken} of {tried}."


def _study_table(rows: Sequence[Row]) -> Table:
    columns = ("way", "cost / reference", "± 95 %", "lost", "right", "calls", "answers kept", "refused")
    return Table("Ways", columns, tuple([_study_row(row) for row in rows]))


def _study_row(row: Row) -> tuple[str, ...]:
    share = row.cost_share
    half = "–" if share is None or share.high is None else f"{share.high - share.mean:.3f}"
    figures = (f"{row.risk:.3f}", f"{row.right:.3f}", f"{row.length:.2f}", f"{row.size:.2f}", str(row.refused))
    return row.name, "–" if share is None else f"{share.mean:.3f}", half, *figures


def study_document(found: Study) -> dict[str, Any]:
    """Return a study's figures as plain JSON values."""
    return {
        "log": found.log,
        "promise": _promise(found.promise),
        "requests": found.requests,
        "groups": found.groups,
        "splits": found.splits,
        "seed": found.seed,
        "bound": found.bound,
        "ways": [
            {
                "name": row.name,
                "cost_share": row.cost_share,
                "saving": row.saving,
                "risk": row.risk,
                "broken": row.broken,
                "refused": row.refused,
                "right": row.right,
                "calls": row.length,
                "answers": row.size,
                "silent": row.silent,
            }
            for row in found.rows
        ],
    }


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
