"""Opens logs for all functions that read one; judgements by people, if there are any, become the labels.

Reports the rows that were left out, and collects all problems of a call (`Problems`) into one error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from cascade.api.output import Tell, warn
from cascade.calibration.samples import unseen
from cascade.calibration.scores import about_gaps, about_parents, about_questions, about_reference, mispriced
from cascade.episodes.schema import UNJUDGED, Dropped
from cascade.episodes.table import EpisodeTable
from cascade.errors import CascadeError, ConfigError, UsageError
from cascade.evaluation import logs
from cascade.evaluation.logs import Log
from cascade.guarantees.base import get, is_known
from cascade.money import Price
from cascade.policies.artifact import PolicyArtifact
from cascade.text import capital, counted

Where: TypeAlias = Mapping[str, str] | Iterable[str] | None
"""The rows to read: values by column, or COLUMN=VALUE pairs."""
Models: TypeAlias = str | Sequence[str] | None
"""Models by name, the cheapest first, as a list or joined by commas."""
LogGiven: TypeAlias = str | PathLike[str] | Log
"""A log by its name or its file, or one that `open_log` has read."""


class LogAsked(NamedTuple):
    """The name of a log, and the options of `open_log` for it."""

    source: LogGiven
    where: Where = None
    matcher: str | None = None
    reference: str | None = None
    models: Models = None

    @property
    def named(self) -> tuple[str, ...]:
        """The requested models, in their order."""
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
    reviews: Files = None,
    label_rate: float | None = None,
    tell: Tell = warn,
) -> Log:
    """Read a log once, to pass it to several functions.

    Args:
        source: a file (.jsonl, .parquet), a store's URL, "demo", "demo-ladder" or "demo-requests".
        where: only rows that have these values in these columns are read.
        matcher: judges every answer again that can be compared with gold answers or with the reference's output.
        reference: the model whose output counts as right, whatever the labels say: "guide", or a ladder's model. A log
            without labels is always read so.
        models: use only these models of the log, the cheapest first; the last is the reference.
        reviews: files of reviews (`cascade review`): they decide what is right, and only the requests that were drawn
            for review are read.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        tell: is called with a sentence about rows that were left out.

    Raises:
        UsageError: there is no such log, column or matcher, or no episode is left.

    >>> open_log("demo").tables[0].n
    244
    """
    asked = LogAsked(source, where, matcher, reference, models)
    return read_judged(asked, ReviewOptions.of(reviews, label_rate), None, tell)


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
        judged = sum(table.n for table in log.tables)
        tell(
            f"Only {judged:,} of {judged + dropped.rows[UNJUDGED]:,} questions have all their answers judged. Whatever "
            "needs labels uses these alone, and a certificate from them covers the others only if the judged ones were "
            "drawn at random. Agreement needs no labels and uses all"
        )
    if log.unlabelled:
        for table in log.tables:
            tell(unlabelled_said(table, unjudged=log.unjudged))
    return log


def unlabelled_said(table: EpisodeTable, *, unjudged: bool = False) -> str:
    """Return the notice for a log without labels: it can only get a promise of agreement.

    Accepted answers are not judged by a default matcher: one that is too strict finds both models wrong, and a promise
    of regret then holds without meaning anything.
    """
    assert table.truth is not None  # noqa: S101 - such a log is compared with its reference
    reference, comparator = table.truth.reference, table.truth.comparator
    cautions = "".join(f" {said}" for said in table.truth.cautions)
    has = "has accepted answers (gold), and" if unjudged else "does not say which answers are right, so"
    matcher = " no matcher was named to judge by them (--matcher exact, label, json, …), so" if unjudged else ""
    return (
        f"The log {table.dataset} {has}{matcher} the guarantee offered is agreement with "
        f"{reference}: that the answer served is the same as what {reference} gives, by the comparator {comparator}. "
        f"No label is needed.{cautions}"
    )


def tables_for(log: Log, kind: str | None, held: PolicyArtifact | None = None) -> tuple[EpisodeTable, ...]:
    """Return a log's tables with the extra columns that a kind of guarantee reads.

    It says whether each answer equals the reference's. The comparator is that of the
    directory's certificates.

    Raises:
        UsageError: the log's "right" is not what the kind is about.
    """
    kind = kind if kind is not None and is_known(kind) else None
    if kind is not None and get(kind).compares:
        log = log.compared(held.certificates[0].comparator if held is not None and held.certificates else None)
    tables = log.tables
    for table in tables if kind is not None else ():
        get(kind).check_truth(table)
    return tables


def tell_questions(tables: Sequence[EpisodeTable], tell: Tell, *, reference: bool = False) -> None:
    """Report to `tell` how many questions were merged; with `reference`, also which model is the reference."""
    said = [*about_questions(tables), *about_gaps(tables), *about_parents(tables)]
    said += [*(one for table in tables[:1] if reference for one in about_reference(table))]
    for one in said:
        tell(capital(one))


def tell_pooled(tables: Sequence[EpisodeTable], tell: Tell) -> None:
    """Report to `tell` which data sets are pooled, if there are several."""
    if len(tables) > 1:
        listed = ", ".join(f"{table.dataset} ({table.n})" for table in tables)
        tell(f"{len(tables)} data sets are used as one: {listed}; --where dataset=NAME chooses one")


def other_prices(log: Log, prices: Mapping[str, Price | None]) -> list[str]:
    """Return a sentence for each model whose logged costs differ from these prices."""
    return [one.describe() for one in mispriced(log.rows(), prices)]


CONFIGURED = "the configuration", "collect a new log, or set the prices of this one in the configuration"
"""Whose prices those of a configuration are, and what to do where a log has others."""


def refuse_other_prices(log: Log, prices: Mapping[str, Price | None], whose: str, advice: str) -> None:
    """Refuse a log whose costs were computed at other prices, by model, than those of `whose`. Raises UsageError."""
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


_T = TypeVar("_T")
_WRONG_CALL = UsageError.exit_code


class Problems:
    """The problems of a call found so far; `refuse` ends the check."""

    def __init__(self) -> None:
        self._found: dict[str, CascadeError] = {}

    def add(self, said: str) -> None:
        """Note a problem, a sentence."""
        self._found.setdefault(said, UsageError(said))

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error of the call instead of raising it; other errors, such as `NotCertifiedError`, are raised."""
        try:
            yield
        except CascadeError as error:
            self._note(error)

    def of(self, make: Callable[[], _T]) -> _T | None:
        """Call `make` and return its result; if it raises, note the error and return None."""
        try:
            return make()
        except CascadeError as error:
            self._note(error)
        return None

    def _note(self, error: CascadeError) -> None:
        if error.exit_code != _WRONG_CALL:
            raise error
        self._found.setdefault(str(error), error)

    def refuse(self) -> None:
        """Raise the noted problems, if any: one as it is, several as a list."""
        found = list(self._found.values())
        if len(found) == 1:
            raise found[0]
        if found:
            raise UsageError(f"{len(found)} problems:" + "".join(f"\n  - {_set_in(one)}" for one in found))


def _set_in(error: CascadeError) -> str:
    """Return an error's message as an item of a list; a nested list is indented, one with a single entry is inlined."""
    if isinstance(error, ConfigError) and len(error.problems) == 1 and str(error) == str(ConfigError(error.problems)):
        return error.problems[0]
    return str(error).replace("\n", "\n  ")


def checked_log(problems: Problems, asked: LogAsked, tell: Tell) -> Log | None:
    """Return a log; if it cannot be read, note the problems and return None."""
    log, matcher = problems.of(lambda: read_log(asked, tell)), asked.matcher
    if log is None and any(asked[1:]):
        problems.of(lambda: read_log(LogAsked(asked.source), tell))
        if matcher is not None:
            from cascade.matching import get_matcher

            problems.of(lambda: get_matcher(matcher))
    return log


Files: TypeAlias = str | Path | Iterable[str | Path] | None
"""One file of reviews, several, or none."""


class ReviewOptions(NamedTuple):
    """The reviews that serve as labels, and the drawing rate up to which reviews count; None: all count."""

    files: Sequence[Path] = ()
    rate: float | None = None

    @property
    def options(self) -> list[tuple[str, str]]:
        """The same options, as written on the command line."""
        rate = [] if self.rate is None else [("--label-rate", f"{self.rate:g}")]
        return [*(("--reviews", str(path)) for path in self.files), *rate]

    @classmethod
    def of(cls, files: Files, rate: float | None) -> ReviewOptions:
        """Return the options.

        Raises:
            UsageError: a rate is given without reviews.
        """
        listed = () if files is None else (files,) if isinstance(files, str | Path) else files
        found = cls(tuple(map(Path, listed)), rate)
        if not found.files and rate is not None:
            raise UsageError("--label-rate goes with --reviews FILE.")
        return found


def read_reviewed(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Log:
    """Read a log; if there are reviews, they are its labels.

    Args:
        asked: the log.
        reviews: the judgements.
        kind: the kind of guarantee; None: the kind that the reviews asked about.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log or the reviews cannot be read, or do not suit the kind.
    """
    if not reviews.files:
        return read_log(asked, tell)
    from cascade.review.labels import labelled_by_reviews
    from cascade.review.pairs import compare
    from cascade.review.reviews import read_reviews

    held = [read_reviews(path) for path in reviews.files]
    log = read_log(compared(asked), tell)
    found, said = compare(log.rows, asked.matcher or held[0].terms.matcher), kind or held[0].terms.ask
    tables = labelled_by_reviews(found, held, said, reviews.rate)
    for table in tables:
        missing = 0 if table.labels is None else int((table.labels.drawn & table.labels.unsaid).sum())
        if missing:
            lack = f"{counted(missing, 'question')} drawn for review lack a judgement, which counts as a loss"
            tell(f"{table.dataset}: {lack}")
    return replace(log, tables=tuple(tables))


def read_judged(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Log:
    """Read a log as `read_reviewed`; with reviews only the drawn questions, since the loss of the others is unknown.

    Raises:
        UsageError: as there; or none was drawn.
    """
    log = read_reviewed(asked, reviews, kind, tell)
    drawn = [one if one.labels is None else one.take(one.labels.drawn) for one in log.tables]
    if not all(one.n for one in drawn):
        raise UsageError("No question of this log was drawn for review: review more of them, at a higher --label-rate.")
    return replace(log, tables=tuple(drawn))


def compared(asked: LogAsked) -> LogAsked:
    """Return the options that read a log without its labels: an output is right if it equals the reference's."""
    if isinstance(asked.source, Log) or asked.reference is not None:
        return asked
    from cascade.episodes.truth import GUIDE

    return asked._replace(reference=asked.named[-1] if asked.named else GUIDE)


def without_training(log: Log, held: PolicyArtifact | None, tell: Tell) -> Log:
    """Return a log without the questions from which a policy was made, and report how many were left out."""
    if held is None:
        return log
    left = tuple([unseen(table, held) for table in log.tables])
    gone = sum(table.n for table in log.tables) - sum(table.n for table in left)
    if gone:
        tell(
            f"{counted(gone, 'question')} of the log, used to make the policy, "
            f"{'is' if gone == 1 else 'are'} left out; the others certify"
        )
    return replace(log, tables=left)
