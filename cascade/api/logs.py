"""Open logs for all functions that read one; judgements by people, if there are any, become the labels.

Rows that were left out are reported, and all problems of a call are collected into one error (`Problems`).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

import numpy as np

from cascade.conformal.promise import Kind, kind_of
from cascade.episodes import opening
from cascade.episodes.reading import GUIDE, Reading, reviewed
from cascade.episodes.rows import Dataset
from cascade.errors import CascadeError, ConfigError, UsageError
from cascade.logs.schema import UNJUDGED, Dropped
from cascade.records.address import located, parse
from cascade.reports.notices import about_truth
from cascade.reports.report import Tell, warn
from cascade.text import counted

if TYPE_CHECKING:
    from cascade.config import CascadeConfig

Where: TypeAlias = Mapping[str, str] | Iterable[str] | None
"""The rows to read: values by column, or COLUMN=VALUE pairs."""
Models: TypeAlias = str | Sequence[str] | None
"""Models by name, the cheapest first, as a list or joined by commas."""
Files: TypeAlias = str | Path | Iterable[str | Path] | None
"""One file of reviews, or a store's URL, several, or none."""


class LogOptions(NamedTuple):
    """A log to read, by its name, with the options of `open_log`; or a log that was read, without options.

    >>> LogOptions("demo", where=["split=test"]).command
    'demo --where split=test'
    """

    log: str | PathLike[str] | Reading
    where: Where = None
    matcher: str | None = None
    reference: str | None = None
    models: Models = None
    reviews: Files = None
    label_rate: float | None = None

    @classmethod
    def of(cls, log: Log) -> LogOptions:
        """Return a log with its options, of which it may have none."""
        return log if isinstance(log, LogOptions) else cls(log)

    @property
    def path(self) -> str:
        """The path or the name of the log. Raises UsageError if it is neither, such as a table in memory."""
        if isinstance(self.log, str | PathLike):
            return str(located(fspath(self.log)))
        kind = type(self.log).__name__
        raise UsageError(f"A log is a path, a name or an opened log, not a {kind}: save a table, as to_parquet does.")

    @property
    def ordered(self) -> tuple[str, ...]:
        """The names of the models, in their order."""
        names = self.models.split(",") if isinstance(self.models, str) else self.models or ()
        return tuple([name.strip() for name in names if name.strip()])

    @property
    def files(self) -> tuple[Path | str, ...]:
        """The files of reviews, and the stores that hold some."""
        listed = (self.reviews,) if isinstance(self.reviews, str | Path) else self.reviews or ()
        return tuple(map(located, listed))

    @property
    def command(self) -> str:
        """The log and the options, as a command line has them."""
        named = {"--matcher": self.matcher, "--reference": self.reference, "--models": ",".join(self.ordered)}
        where = [("--where", f"{column}={value}") for column, value in parse_where(self.where or ()).items()]
        reviews = [("--reviews", str(file) if isinstance(file, Path) else parse(file).shown) for file in self.files]
        rate = [] if self.label_rate is None else [("--label-rate", f"{self.label_rate:g}")]
        options = [*where, *((option, value) for option, value in named.items() if value), *reviews, *rate]
        return " ".join([shlex.quote(str(self.log)), *(f"{option} {shlex.quote(value)}" for option, value in options)])

    @property
    def against_reference(self) -> LogOptions:
        """The options without the log's labels: an output is right if it equals the reference's."""
        if isinstance(self.log, Reading) or self.reference is not None:
            return self
        return self._replace(reference=self.ordered[-1] if self.ordered else GUIDE)


Log: TypeAlias = str | PathLike[str] | Reading | LogOptions
"""A log by its name or its file, with options or without; or one that `open_log` has read."""


def open_log(
    log: str | PathLike[str],
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
        log: a file (.jsonl, .parquet), a store's URL, "demo", "demo-ladder" or "demo-requests".
        where: only rows that have these values in these columns are read.
        matcher: judges every answer again that can be compared with gold answers or with the reference's output.
        reference: the model whose output counts as right, whatever the labels say: "guide", or a ladder's model. A log
            without labels is always read so.
        models: use only these models of the log, the cheapest first; the last is the reference.
        reviews: files or stores of reviews (`cascade review`): they decide what is right, and only the requests that
            were drawn for review are read.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        tell: is called with a sentence about rows that were left out.

    Raises:
        UsageError: there is no such log, column or matcher, or no episode is left.

    >>> open_log("demo").datasets[0].log.n
    244
    """
    return read_judged(LogOptions(log, where, matcher, reference, models, reviews, label_rate), None, tell)


def read_judged(options: LogOptions, kind: str | None, tell: Tell) -> Reading:
    """Read a log as `read_log` does; with reviews only the drawn questions, since the loss of others is unknown.

    Raises:
        UsageError: as in `read_log`, or no question was drawn.
    """
    reading = read_log(options, kind, tell)
    logs = [data.log if data.log.drawn is None else data.log.take(data.log.drawn) for data in reading.datasets]
    if not all(log.n for log in logs):
        raise UsageError("No question of this log was drawn for review: review more of them, at a higher --label-rate.")
    return reading._replace(
        datasets=tuple([data._replace(log=log) for data, log in zip(reading.datasets, logs, strict=True)])
    )


def read_log(options: LogOptions, kind: str | None, tell: Tell) -> Reading:
    """Read a log, or return one that was read; if there are reviews, they are its labels.

    Args:
        options: the log.
        kind: the kind of promise; None: the kind that the reviews asked about.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log or the reviews cannot be read, or do not suit the kind.
    """
    if options.files:
        return _reviewed(options, kind, tell)
    if options.label_rate is not None:
        raise UsageError("--label-rate goes with --reviews FILE.")
    if isinstance(options.log, Reading):
        if any(options[1:]):
            raise UsageError("This log has been read already: pass where, matcher and the other options to open_log.")
        return options.log
    dropped, where = Dropped(), parse_where(options.where or ())
    reading = opening.open_log(
        options.path,
        where,
        dropped,
        matcher=options.matcher,
        reference=options.reference,
        models=options.ordered,
    )
    unjudged = dropped.rows.pop(UNJUDGED, 0)  # the notice below says where these are left out
    if dropped.describe():
        tell(dropped.describe())
    if unjudged:
        judged = sum(data.log.n for data in reading.datasets)
        tell(
            f"Only {judged:,} of {judged + unjudged:,} questions have all their answers judged. Whatever needs labels "
            "uses only these, and a certificate from them covers the others only if the judged ones were drawn at "
            "random. Agreement needs no labels and uses all"
        )
    for data in reading.datasets if reading.unlabelled else ():
        tell(about_truth(data, unjudged=reading.unjudged))
    return reading._replace(command=options.command, file=opening.file_of(options.path))


def _reviewed(options: LogOptions, kind: str | None, tell: Tell) -> Reading:
    from cascade.review.labels import judgements
    from cascade.review.pairs import compare
    from cascade.review.reviews import read_reviews

    reviews = [read_reviews(path) for path in options.files]
    unreviewed = options._replace(reviews=None, label_rate=None)
    reading = read_log(unreviewed.against_reference, kind, tell)
    outputs = compare(reading.rows, options.matcher or reviews[0].terms.matcher)
    judged = judgements(outputs, reviews, kind or reviews[0].terms.ask, options.label_rate)
    datasets = reviewed(outputs.labelled, judged, Dropped())
    for log in [data.log for data in datasets]:
        unjudged = (log.answers & np.isnan(log.right)).any(axis=1)
        missing = 0 if log.drawn is None else int(np.count_nonzero(unjudged & log.drawn))
        if missing:
            lack = f"{counted(missing, 'question')} drawn for review lack a judgement, which counts as a loss"
            tell(f"{log.name}: {lack}")
    return reading._replace(datasets=tuple(datasets), command=options.command)


def datasets_for(reading: Reading, kind: str | None, comparator: str | None = None) -> tuple[Dataset, ...]:
    """Return a log's data sets; for a kind of promise that compares, an answer is right if it equals the reference's.

    Args:
        reading: the log.
        kind: the kind of promise; None: any.
        comparator: the matcher that decides whether two outputs are the same; None: the log's own.

    Raises:
        UsageError: the log's "right" is not what the kind is about.
    """
    rules = None if kind is None else kind_of(kind)
    if rules is None:
        return reading.datasets
    datasets = reading.compared(comparator).datasets if rules.compares else reading.datasets
    for data in datasets:
        _check_truth(rules, data, reading)
    return datasets


def _check_truth(rules: Kind, data: Dataset, log: Reading) -> None:
    """Raise UsageError if "right" in a data set of a log does not mean what a kind of promise is about."""
    truth, name = data.facts.truth, data.log.name
    if "judgements" in rules.needs and (truth is None or truth.kind is None):
        raise UsageError(f"{rules.name} needs people's judgements of the outputs: cascade review, then --reviews FILE.")
    if truth is not None and truth.kind not in {None, rules.name}:
        raise UsageError(f"In {name} people judged the outputs for {truth.kind}, not for {rules.name}.")
    if truth is not None and truth.kind is None and not rules.compares:
        labels = "read it without --reference" if not log.unlabelled else "label it (column correct)"
        labels = "name what judges by its accepted answers: --matcher exact" if log.unjudged else labels
        raise UsageError(
            f"{rules.name} needs labels, and in {name} right means equal to what {truth.reference} gives: {labels}, or "
            "--promise agreement, or have outputs judged (cascade review, then --reviews FILE: regret, preference)."
        )


def parse_where(where: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return COLUMN=VALUE pairs as a mapping; a mapping is returned as it is.

    >>> parse_where(["split=test"])
    {'split': 'test'}
    """
    return dict(where) if isinstance(where, Mapping) else parse_pairs("--where", "COLUMN=VALUE, as split=test", where)


def parse_pairs(option: str, example: str, texts: Iterable[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping. Raises UsageError for other texts, and for a name with two values."""
    given = [*dict.fromkeys(texts or ())]
    pairs = [text.partition("=")[::2] for text in given]
    if bad := [text for text, (name, value) in zip(given, pairs, strict=True) if not name or not value]:
        raise UsageError(f"{option} takes {example}; not {', '.join(bad)}.")
    if len(dict(pairs)) < len(pairs):
        raise UsageError(f"{option} takes one value for each name, and not several: {', '.join(given)}.")
    return dict(pairs)


_T = TypeVar("_T")


class Problems:
    """The problems of a call so far; `refuse` ends the check."""

    def __init__(self) -> None:
        self._errors: dict[str, CascadeError] = {}

    def catch(self, make: Callable[[], _T]) -> _T | None:
        """Call `make` and return its result; record a mistake of the user and return None. Other errors are raised."""
        try:
            return make()
        except CascadeError as error:
            if error.exit_code != UsageError.exit_code:
                raise
            self._errors.setdefault(str(error), error)
        return None

    def refuse(self) -> None:
        """Raise the recorded problems, if any: a single error as it is, several as a list."""
        errors = list(self._errors.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise UsageError(f"{len(errors)} problems:" + "".join(f"\n  - {_as_item(error)}" for error in errors))


def _as_item(error: CascadeError) -> str:
    """Return an error's message as an item of a list; a nested list is indented, one with a single entry is inlined."""
    if isinstance(error, ConfigError) and len(error.problems) == 1 and str(error) == str(ConfigError(error.problems)):
        return error.problems[0]
    return str(error).replace("\n", "\n  ")


def config_here(reading: Reading, datasets: Iterable[Dataset]) -> tuple[CascadeConfig | None, str | None]:
    """Return this folder's configuration if it has the models of a user's own log, and a notice of whether it does."""
    path = Path("cascade.yaml")
    if path.is_file() and reading.command not in opening.SHIPPED:
        from cascade.config import load  # with strategies, which a fit elsewhere does not need

        with suppress(ConfigError):
            config = load(path)
            known = {name for key, entry in config.models.items() for name in (key, entry.id, entry.model)}
            if others := sorted({node.model or node.name for data in datasets for node in data.log.nodes} - known):
                return None, f"{path} has no model {', '.join(others)}: it is not used"
            return config, f"{path} is used"
    return None, None
