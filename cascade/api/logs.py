"""How every act that reads a log opens it, and tells what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from cascade.api.telling import Tell, warn
from cascade.calibration.remarks import about_questions, about_reference
from cascade.calibration.repricing import mispriced
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

Where: TypeAlias = Mapping[str, str] | Iterable[str] | None
"""Which rows are read: values by column, or COLUMN=VALUE pairs."""


class LogAsked(NamedTuple):
    """A log as it is named, which rows of it are read, and the matcher that judges its answers anew."""

    source: str | Log
    where: Where = None
    matcher: str | None = None


def open_log(source: str, *, where: Where = None, matcher: str | None = None, tell: Tell = warn) -> Log:
    """Read a log once, for several acts.

    Args:
        source: a file (.jsonl, .parquet), a store's URL, "demo", "demo-ladder", or "simulated:" and a world's name.
        where: only rows that have these values in these columns are read.
        matcher: judges every answer anew that has gold answers beside it.
        tell: takes what was left out of the log, in words.

    Raises:
        UsageError: there is no such log, column or matcher, or no episode is left.

    >>> open_log("simulated:mmlu/llama-2-7b,50").tables[0].n
    50
    """
    return read_log(source, where, matcher, tell)


def read_log(source: str | Log, where: Where, matcher: str | None, tell: Tell) -> Log:
    """Read a log, or return the one that is given. Raises as `open_log`."""
    if isinstance(source, Log):
        if where or matcher is not None:
            raise UsageError("A log that is open was read already: give where and matcher to open_log.")
        return source
    dropped = Dropped()
    log = logs.open_log(str(source), parse_where(where or ()), matcher, dropped)
    if dropped.describe():
        tell(dropped.describe())
    return log


def open_rows(source: str, where: Where, tell: Tell) -> Iterator[Mapping[str, Any]]:
    """Yield a log's rows as they are, and tell at their end what was left out. Raises as `open_log` does."""
    dropped = Dropped()
    yield from logs.rows_of(source, parse_where(where or ()), dropped)
    if dropped.describe():
        tell(dropped.describe())


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


def tell_questions(tables: Sequence[EpisodeTable], tell: Tell, *, reference: bool = False) -> None:
    """Tell which questions count as one; with `reference` also which model is the reference."""
    said = [*about_questions(tables), *(one for table in tables[:1] if reference for one in about_reference(table))]
    for one in said:
        tell(capital(one))


def tell_pooled(tables: Sequence[EpisodeTable], tell: Tell) -> None:
    """Tell which data sets are taken as one, where there are several."""
    if len(tables) > 1:
        listed = ", ".join(f"{table.dataset} ({table.n})" for table in tables)
        tell(f"{len(tables)} data sets are taken as one: {listed}; --where dataset=NAME chooses one")


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


def parse_where(where: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return COLUMN=VALUE pairs as a mapping; a mapping is returned as it is.

    >>> parse_where(["split=test"])
    {'split': 'test'}
    """
    if isinstance(where, Mapping):
        return dict(where)
    pairs = [one.partition("=") for one in where]
    bad = [column for column, equals, _ in pairs if not equals or not column]
    if bad:
        raise UsageError(f"--where takes COLUMN=VALUE, as in --where split=test; not {', '.join(bad)}.")
    counts = Counter(column for column, _, _ in pairs)
    twice = [column for column, times in counts.items() if times > 1]
    if twice:
        raise UsageError(f"--where takes one value a column; {', '.join(twice)} has several, which no row can have.")
    return {column: value for column, _, value in pairs}
