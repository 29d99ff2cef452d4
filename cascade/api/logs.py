"""Opens logs for all functions that read one; judgements by people, if there are any, become the labels.

Reports the rows that were left out, and collects all problems of a call (`Problems`) into one error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from cascade.api.notices import about_truth
from cascade.api.output import Tell, warn
from cascade.conformal.promise import Kind, kind_of
from cascade.episodes import opening
from cascade.episodes.reading import GUIDE, Reading, mispriced, reviewed
from cascade.episodes.rows import Read
from cascade.errors import CascadeError, ConfigError, UsageError
from cascade.logs.schema import UNJUDGED, Dropped
from cascade.money import Price
from cascade.text import counted

Where: TypeAlias = Mapping[str, str] | Iterable[str] | None
"""The rows to read: values by column, or COLUMN=VALUE pairs."""
Models: TypeAlias = str | Sequence[str] | None
"""Models by name, the cheapest first, as a list or joined by commas."""
LogGiven: TypeAlias = str | PathLike[str] | Reading
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
) -> Reading:
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

    >>> open_log("demo").reads[0].log.n
    244
    """
    asked = LogAsked(source, where, matcher, reference, models)
    return read_judged(asked, ReviewOptions.of(reviews, label_rate), None, tell)


def read_log(asked: LogAsked, tell: Tell) -> Reading:
    """Read a log, or return one that was read already. Raises as `open_log`."""
    if isinstance(asked.source, Reading):
        if any(asked[1:]):
            raise UsageError("This log has been read already: pass where, matcher and the other options to open_log.")
        return asked.source
    dropped, where = Dropped(), parse_where(asked.where or ())
    how: dict[str, Any] = {"matcher": asked.matcher, "reference": asked.reference, "models": asked.named}
    reading = opening.open_log(fspath(asked.source), where, dropped, **how)
    if dropped.describe():
        tell(dropped.describe())
    if many := dropped.rows[UNJUDGED]:
        judged = sum(read.log.n for read in reading.reads)
        tell(
            f"Only {judged:,} of {judged + many:,} questions have all their answers judged. Whatever needs labels uses "
            "these alone, and a certificate from them covers the others only if the judged ones were drawn at random. "
            "Agreement needs no labels and uses all"
        )
    for read in reading.reads if reading.unlabelled else ():
        tell(about_truth(read, unjudged=reading.unjudged))
    return reading


def reads_for(reading: Reading, kind: str | None, comparator: str | None = None) -> tuple[Read, ...]:
    """Return a log's data sets; for a kind of promise that compares, an answer is right if it equals the reference's.

    Args:
        reading: the log.
        kind: the kind of promise; None: any.
        comparator: what says that two outputs are the same; None: the log's own.

    Raises:
        UsageError: the log's "right" is not what the kind is about.
    """
    rules = None if kind is None else kind_of(kind)
    if rules is None:
        return reading.reads
    reads = reading.compared(comparator).reads if rules.compares else reading.reads
    for read in reads:
        _check_truth(rules, read)
    return reads


def _check_truth(rules: Kind, read: Read) -> None:
    """Raise UsageError if "right" in a log does not mean what a kind of promise is about."""
    truth, where = read.facts.truth, read.log.name
    if "judgements" in rules.needs and (truth is None or truth.kind is None):
        raise UsageError(f"{rules.name} needs people's judgements of the outputs: cascade review, then --reviews FILE.")
    if truth is not None and truth.kind not in {None, rules.name}:
        raise UsageError(f"In {where} people judged the outputs for {truth.kind}, not for {rules.name}.")
    if truth is not None and truth.kind is None and not rules.compares:
        raise UsageError(
            f"{rules.name} needs labels, but in {where} right means equal to what {truth.reference} gives: ask for "
            "--promise agreement, or read a log with labels without --reference, or name the matcher that judges by "
            "the accepted answers where the log has them (column gold): --matcher exact, or have the outputs that "
            "differ judged: cascade review, then --reviews FILE (regret, preference)."
        )


def refuse_other_prices(reading: Reading, prices: Mapping[str, Price | None], whose: str, advice: str) -> None:
    """Refuse a log whose costs were computed at other prices, by model, than those of `whose`. Raises UsageError."""
    differing = [each.describe() for each in mispriced(reading.rows(), prices)]
    if differing:
        raise UsageError(f"the log was costed at other prices than {whose}: {'; '.join(differing)}; {advice}")


CONFIGURED = "the configuration", "collect a new log, or set the prices of this one in the configuration"
"""Whose prices those of a configuration are, and what to do where a log has others."""


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


def read_reviewed(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Reading:
    """Read a log; if there are reviews, they are its labels.

    Args:
        asked: the log.
        reviews: the judgements.
        kind: the kind of promise; None: the kind that the reviews asked about.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log or the reviews cannot be read, or do not suit the kind.
    """
    if not reviews.files:
        return read_log(asked, tell)
    from cascade.review.labels import judgements
    from cascade.review.pairs import compare
    from cascade.review.reviews import read_reviews

    files = [read_reviews(path) for path in reviews.files]
    reading = read_log(compared(asked), tell)
    pairs = compare(reading.rows, asked.matcher or files[0].terms.matcher)
    judged = judgements(pairs, files, kind or files[0].terms.ask, reviews.rate)
    reads = reviewed(pairs.labelled, judged, Dropped())
    for read in reads:
        log = read.log
        missing = (
            0 if log.drawn is None else np.count_nonzero((log.answers & np.isnan(log.right)).any(axis=1) & log.drawn)
        )
        if missing:
            lack = f"{counted(int(missing), 'question')} drawn for review lack a judgement, which counts as a loss"
            tell(f"{log.name}: {lack}")
    return reading._replace(reads=tuple(reads))


def read_judged(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Reading:
    """Read a log as `read_reviewed`; with reviews only the drawn questions, since the loss of the others is unknown.

    Raises:
        UsageError: as there; or none was drawn.
    """
    reading = read_reviewed(asked, reviews, kind, tell)
    drawn = [
        read if read.log.drawn is None else read._replace(log=read.log.take(read.log.drawn)) for read in reading.reads
    ]
    if not all(read.log.n for read in drawn):
        raise UsageError("No question of this log was drawn for review: review more of them, at a higher --label-rate.")
    return reading._replace(reads=tuple(drawn))


def compared(asked: LogAsked) -> LogAsked:
    """Return the options that read a log without its labels: an output is right if it equals the reference's."""
    if isinstance(asked.source, Reading) or asked.reference is not None:
        return asked
    return asked._replace(reference=asked.named[-1] if asked.named else GUIDE)
