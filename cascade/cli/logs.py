"""How every command that reads a log opens it, and says what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cascade.calibration.remarks import about_questions, about_reference
from cascade.calibration.repricing import mispriced
from cascade.cli.output import notes, plain
from cascade.episodes.embeddings import embedded, vectors_of
from cascade.episodes.lines import Dropped
from cascade.episodes.quality import qualities
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation import logs
from cascade.evaluation.logs import Log
from cascade.guarantees.base import get
from cascade.money import Price
from cascade.policies.base import Policy
from cascade.text import capital


def open_log(given: str, where: Iterable[str] = (), matcher: str | None = None) -> Log:
    """Read a log and say on stderr what was left out of it. Raises as `evaluation.logs.open_log` does."""
    dropped = Dropped()
    log = logs.open_log(given, parse_where(where), matcher, dropped)
    if dropped.describe():
        notes().print(dropped.describe(), style="yellow", soft_wrap=True, markup=False)
    return log


def open_rows(given: str, where: Iterable[str] = ()) -> Iterator[Mapping[str, Any]]:
    """Yield a log's rows as they are, and say at their end what was left out. Raises as `open_log` does."""
    dropped = Dropped()
    yield from logs.rows_of(given, parse_where(where), dropped)
    if dropped.describe():
        notes().print(dropped.describe(), style="yellow", soft_wrap=True, markup=False)


def tables_for(log: Log, kind: str | None, policy: Policy | None = None) -> tuple[EpisodeTable, ...]:
    """Return a log's tables with what a kind of guarantee and a policy read beside.

    That is how good each answer is, and where each question's sentence embedding lies, where these matter.

    Raises:
        UsageError: of no answer it is known how good it is.
    """
    tables = log.tables
    if kind is not None and get(kind).needs_quality:
        graded = zip(tables, qualities(log.rows(), tables), strict=True)
        tables = tuple([replace(table, quality=quality) for table, quality in graded])
    looks = None if policy is None else policy.embedded
    if looks is not None:
        vectors = vectors_of(log.rows(), looks.embedder)
        tables = tuple([embedded(table, vectors, looks.directions) for table in tables])
    return tables


def say_questions(tables: Sequence[EpisodeTable], *, reference: bool = False) -> None:
    """Say on stderr which questions count as one; with `reference` also which model is the reference."""
    said = [*about_questions(tables), *(one for table in tables[:1] if reference for one in about_reference(table))]
    for one in said:
        notes().print(plain(capital(one)), style="yellow", soft_wrap=True)


def say_pooled(tables: Sequence[EpisodeTable]) -> None:
    """Say on stderr which data sets are taken as one, where there are several."""
    if len(tables) > 1:
        listed = ", ".join(f"{table.dataset} ({table.n})" for table in tables)
        notes().print(
            plain(f"{len(tables)} data sets are taken as one: {listed}; --where dataset=NAME chooses one"),
            style="yellow",
            soft_wrap=True,
        )


def other_prices(log: Log, prices: Mapping[str, Price | None]) -> list[str]:
    """Return which models' calls the log costs otherwise than these prices do, a sentence each."""
    return [one.describe() for one in mispriced(log.rows(), prices)]


def refuse_other_prices(log: Log, prices: Mapping[str, Price | None], whose: str, advice: str) -> None:
    """Refuse a log that was costed at other prices than those that a certificate will be made for.

    Args:
        log: what was read.
        prices: by model; None where a price is not known.
        whose: whose prices they are, in words.
        advice: what to do about it.

    Raises:
        UsageError: it was.
    """
    found = other_prices(log, prices)
    if found:
        raise UsageError(f"the log was costed at other prices than {whose}: {'; '.join(found)}; {advice}")


def parse_where(where: Iterable[str]) -> dict[str, str]:
    """Return COLUMN=VALUE pairs as a mapping.

    >>> parse_where(["split=test"])
    {'split': 'test'}
    """
    pairs = [one.partition("=") for one in where]
    bad = [column for column, equals, _ in pairs if not equals or not column]
    if bad:
        raise UsageError(f"--where takes COLUMN=VALUE, as in --where split=test; not {', '.join(bad)}.")
    counts = Counter(column for column, _, _ in pairs)
    twice = [column for column, times in counts.items() if times > 1]
    if twice:
        raise UsageError(f"--where takes one value a column; {', '.join(twice)} has several, which no row can have.")
    return {column: value for column, _, value in pairs}
