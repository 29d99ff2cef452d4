"""Opens a log for all functions that read one, and tells what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any, NamedTuple, TypeAlias

from cascade.api.output import Tell, warn
from cascade.calibration.remarks import about_questions, about_reference, mispriced
from cascade.episodes.lines import Dropped
from cascade.episodes.schema import UNJUDGED
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation import logs
from cascade.evaluation.logs import Log
from cascade.guarantees.base import get
from cascade.money import Price
from cascade.policies.artifact import PolicyArtifact
from cascade.policies.base import Policy
from cascade.text import capital

Where: TypeAlias = Mapping[str, str] | Iterable[str] | None
"""The rows to read: values by column, or COLUMN=VALUE pairs."""
Models: TypeAlias = str | Sequence[str] | None
"""Models by name, the cheapest first, as a list or joined by commas."""
LogGiven: TypeAlias = str | PathLike[str] | Log
"""A log by its name or its file, or one that `open_log` has read."""


class LogAsked(NamedTuple):
    """The name of a log, and the options of `open_log`."""

    source: LogGiven
    where: Where = None
    matcher: str | None = None
    reference: str | None = None
    models: Models = None

    @property
    def named(self) -> tuple[str, ...]:
        """The models asked for, in their order."""
        listed = self.models.split(",") if isinstance(self.models, str) else self.models or ()
        return tuple([name.strip() for name in listed if name.strip()])

    @property
    def options(self) -> list[tuple[str, str]]:
        """The same options, as written on the command line."""
        named = {"--matcher": self.matcher, "--reference": self.reference, "--models": ",".join(self.named)}
        where = [("--where", f"{column}={value}") for column, value in parse_where(self.where or ()).items()]
        return [*where, *((option, one) for option, one in named.items() if one)]


def open_log(
    source: str,
    *,
    where: Where = None,
    matcher: str | None = None,
    reference: str | None = None,
    models: Models = None,
    tell: Tell = warn,
) -> Log:
    """Read a log once, to pass it to several functions.

    Args:
        source: a file (.jsonl, .parquet), a store's URL, "demo", "demo-ladder", or "simulated:" and a world's name.
        where: only rows that have these values in these columns are read.
        matcher: judges anew every answer that has gold answers, or the reference's output, to compare with.
        reference: the model whose output counts as right, whatever the labels say: "guide", or a ladder's model. A log
            without labels is always read so.
        models: use only these models of the log, the cheapest first; the last is the reference.
        tell: is called with a sentence about rows that were left out.

    Raises:
        UsageError: there is no such log, column or matcher, or no episode is left.

    >>> open_log("simulated:mmlu/llama-2-7b,50").tables[0].n
    50
    """
    return read_log(LogAsked(source, where, matcher, reference, models), tell)


def read_log(asked: LogAsked, tell: Tell) -> Log:
    """Read a log, or return one that was read already. Raises as `open_log`."""
    if isinstance(asked.source, Log):
        if any(asked[1:]):
            raise UsageError("This log has been read already: pass where, matcher and the other options to open_log.")
        return asked.source
    dropped, where = Dropped(), parse_where(asked.where or ())
    how: dict[str, Any] = {"reference": asked.reference, "models": asked.named}
    log = logs.open_log(fspath(asked.source), where, asked.matcher, dropped, **how)
    if dropped.describe():
        tell(dropped.describe())
    if dropped.rows[UNJUDGED]:
        tell(_partly_judged(dropped.rows[UNJUDGED], sum(table.n for table in log.tables)))
    if log.unlabelled:
        for table in log.tables:
            tell(unlabelled_said(table, unjudged=log.unjudged))
    return log


def _partly_judged(unjudged: int, judged: int) -> str:
    return (
        f"Only {judged:,} of {judged + unjudged:,} questions have all their answers judged. What needs labels uses "
        "these alone, and a certificate from them covers the others only if chance chose which were judged. Agreement "
        "needs no label and uses all"
    )


def unlabelled_said(table: EpisodeTable, *, unjudged: bool = False) -> str:
    """Return the notice that a log without labels gets a promise of agreement.

    Accepted answers are not judged by a default matcher: one that is too strict finds both models wrong, and a promise
    of regret then holds without meaning anything.
    """
    assert table.truth is not None  # noqa: S101 - such a log is compared with its reference
    reference, comparator = table.truth.reference, table.truth.comparator
    cautions = "".join(f" {said}" for said in table.truth.cautions)
    has = "has accepted answers (gold), and" if unjudged else "does not say which answers are right, so"
    matcher = " no matcher was named to judge by them (--matcher exact, label, json, …), so" if unjudged else ""
    return (
        f"The log {table.dataset} {has}{matcher} what is offered is agreement with "
        f"{reference}: that the answer served is the same as what {reference} gives, by the comparator {comparator}. "
        f"No label is needed.{cautions}"
    )


def tables_for(
    log: Log, kind: str | None, policy: Policy | None = None, held: PolicyArtifact | None = None
) -> tuple[EpisodeTable, ...]:
    """Return a log's tables with the extra columns that a kind of guarantee and a policy read.

    These are the quality of each answer, whether it equals the reference's, and each question's sentence embedding. The
    comparator is that of the directory's certificates.

    Raises:
        UsageError: the log does not say how good any answer is, or its "right" is not what the kind is about.
    """
    if kind is not None and get(kind).compares:
        log = log.compared(held.certificates[0].comparator if held is not None and held.certificates else None)
    tables = log.tables
    for table in tables if kind is not None else ():
        get(kind).check_truth(table)
    if kind is not None and get(kind).needs_quality:
        from cascade.episodes.quality import qualities

        graded = zip(tables, qualities(log.rows(), tables), strict=True)
        tables = tuple([replace(table, quality=quality) for table, quality in graded])
    looks = None if policy is None else policy.embedded
    if looks is not None:
        from cascade.episodes.embeddings import embedded, vectors_of

        vectors = vectors_of(log.rows(), looks.embedder)
        tables = tuple([embedded(table, vectors, looks.directions) for table in tables])
    return tables


def tell_questions(tables: Sequence[EpisodeTable], tell: Tell, *, reference: bool = False) -> None:
    """Tell how many questions were merged; with `reference` also which model is the reference."""
    said = [*about_questions(tables), *(one for table in tables[:1] if reference for one in about_reference(table))]
    for one in said:
        tell(capital(one))


def tell_pooled(tables: Sequence[EpisodeTable], tell: Tell) -> None:
    """Tell which data sets are pooled, if there are several."""
    if len(tables) > 1:
        listed = ", ".join(f"{table.dataset} ({table.n})" for table in tables)
        tell(f"{len(tables)} data sets are taken as one: {listed}; --where dataset=NAME chooses one")


def other_prices(log: Log, prices: Mapping[str, Price | None]) -> list[str]:
    """Return a sentence for each model whose logged costs differ from these prices."""
    return [one.describe() for one in mispriced(log.rows(), prices)]


def refuse_other_prices(log: Log, prices: Mapping[str, Price | None], whose: str, advice: str) -> None:
    """Refuse a log whose costs were computed at other prices than a certificate's.

    Args:
        log: what was read.
        prices: by model; None for an unknown price.
        whose: whose prices they are, in words.
        advice: what to do about it.

    Raises:
        UsageError: the prices differ.
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
