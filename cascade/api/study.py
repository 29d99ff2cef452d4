"""`prove` and `compare`: what a cascade would save on a log, beside every other way to answer. No model is asked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import fspath
from typing import Any, TypeAlias

from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import LogAsked, LogGiven, read_log, reads_for
from cascade.api.notices import tell_requests
from cascade.api.output import Result, Tell, shown, warn
from cascade.conformal.promise import Promise, kind_of
from cascade.episodes.reading import Reading
from cascade.episodes.rows import Read
from cascade.identity import identity
from cascade.logs.schema import GUIDE_ONLY, LAST_ONLY
from cascade.policies.networks import NetworkSettings
from cascade.reports.report import Report
from cascade.reports.study import of_study
from cascade.studies.study import Study, study
from cascade.studies.ways import ways

RISK, SET_RISK, CONFIDENCE = 0.05, 0.1, 0.9
"""The promise that is looked at where none is asked for: of one answer served, and of a set of answers."""
_SHOWN = 34
"""Characters of a text in a table."""
Differences: TypeAlias = tuple[tuple[str, str, str], ...]
Show: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: the name of the task, the number of parts done, and the number of parts."""


@dataclass(frozen=True, slots=True)
class StudyResult(Result):
    """What a cascade would save on a log, and what every other way costs.

    Attributes:
        studies: one for each data set of the log.
        log: the log and the options that choose and judge its rows, as a command line has them.
        differences: for each study some requests whose first answer is not the reference's, with both answers.
        compares: whether the ways are shown without being asked for.
    """

    studies: tuple[Study, ...]
    log: str
    differences: tuple[Differences, ...]
    compares: bool = False

    @property
    def reports(self) -> tuple[Report, ...]:
        """A report for each study."""
        pairs = zip(self.studies, self.differences, strict=True)
        return tuple([of_study(each, self._fits(each), differ) for each, differ in pairs])

    def _fits(self, found: Study) -> str:
        chosen = [f"--where {shlex.quote(f'dataset={found.log}')}"] if len(self.studies) > 1 else []
        return " ".join(["cascade fit", self.log, *chosen, *promise_options(found.promise), "-o policy"])

    def text(self, *, details: bool = False) -> str:
        """Return it for a terminal: five lines for each data set, with `details` the tables too."""
        several = len(self.studies) > 1
        texts = [report.text(details=details or self.compares) for report in self.reports]
        named = zip(self.studies, texts, strict=True)
        return shown("\n\n".join(f"{each.log}\n{text}" if several else text for each, text in named))

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - a table is not cut
        """Yield the printed result."""
        yield Text(self.text(), no_wrap=True, overflow="ignore")

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `--json`: a study for each data set."""
        return {"studies": [dict(report.document) for report in self.reports]}

    def markdown(self) -> str:
        """Return it as a page."""
        pages = zip(self.studies, self.reports, strict=True)
        return shown("\n".join(f"# {each.log}\n\n{report.markdown()}" for each, report in pages))


def prove(
    log: LogGiven,
    promise: Promise | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    show: Show = lambda _name, _done, _total: None,
    tell: Tell = warn,
) -> StudyResult:
    """Estimate what a cascade would save on a log, at which promise, how sure that is, and what to do next.

    `cascade fit` is repeated on random splits, and played on the requests left out. No key is needed.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        promise: what is promised. By default `default_promise`.
        splits: how many random splits.
        seed: of the random draws.
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log allows no answer.

    >>> found = prove("demo-ladder", Promise("regret", 0.1, 0.9), splits=2)
    >>> found.studies[0].requests
    244
    """
    return _studied(log, promise, None, splits, seed, show, tell)


def compare(
    log: LogGiven,
    promise: Promise | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    networks: NetworkSettings | None = None,
    show: Show = lambda _name, _done, _total: None,
    tell: Tell = warn,
) -> StudyResult:
    """Compare every way to answer on the same random splits of a log.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        promise: what is promised. By default `default_promise`.
        splits: how many random splits.
        seed: of the random draws.
        networks: also train policy networks like this on each split; by far the slowest. Needs the extra train.
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log allows no answer.

    >>> found = compare("demo", Promise("coverage", 0.1), splits=2)
    >>> found.studies[0].rows[0].name
    'reference alone'
    """
    found = _studied(log, promise, networks, splits, seed, show, tell)
    return replace(found, compares=True)


def _studied(
    log: LogGiven,
    promise: Promise | None,
    networks: NetworkSettings | None,
    splits: int,
    seed: int,
    show: Show,
    tell: Tell,
) -> StudyResult:
    opened = read_log(LogAsked(log), tell)
    reads = reads_for(opened, None if promise is None else promise.kind)
    tell_requests(reads, tell, reference=True)
    found = []
    for read in reads:
        wanted = promise or default_promise(read)
        others = None if networks is None else ways(read.log, wanted, networks)
        found.append(study(read.log, wanted, others, splits=splits, seed=seed, show=show))
        if "base" in read.facts.sources and read.facts.reference == GUIDE_ONLY:
            tell(f"{read.log.name} can also be read as a ladder, without judging: put ladder: before the log's name")
    differences = tuple([_differences(opened, each.why.differ) for each in found])
    return StudyResult(tuple(found), "LOG" if isinstance(log, Reading) else shlex.quote(fspath(log)), differences)


def _differences(log: Reading, names: Sequence[str]) -> Differences:
    """Return requests with their first answer and the reference's; of rounds the base's and the guide's at once."""
    texts: dict[str, tuple[str, list[tuple[bool, int, str]]]] = {name: ("", []) for name in names}
    for row in log.rows() if names else ():
        name = row["episode_id"] if row["question"] is None else identity(row["question"], row["context"])
        if name in texts and row["answer"] is not None and row["walk"] in {None, GUIDE_ONLY, LAST_ONLY}:
            answers = [*texts[name][1], (row["walk"] is not None, row["step"], row["answer"])]
            texts[name] = row["question"] or name, answers
    found = []
    for question, answers in texts.values():
        if len(answers) > 1:
            first, at_once = min(answers, key=_place), [each for each in answers if each[:2] == (False, 1)]
            pair = _fields(first[2], (at_once[1] if len(at_once) > 1 else max(answers, key=_place))[2])
            found.append((_short(question), _short(pair[0]), _short(pair[1])))
    return tuple(found)


def _place(answer: tuple[bool, int, str]) -> tuple[bool, int]:
    return answer[:2]


def _fields(first: str, other: str) -> tuple[str, str]:
    """Return two answers; of two JSON objects the fields that differ.

    >>> _fields('{"team": "a", "id": 1}', '{"team": "b", "id": 1}')
    ('team: a', 'team: b')
    """
    try:
        one, two = json.loads(first), json.loads(other)
    except ValueError:
        return first, other
    if not isinstance(one, dict) or not isinstance(two, dict):
        return first, other
    names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    said = [", ".join(f"{name}: {each.get(name)}" for name in names) for each in (one, two)]
    return said[0], said[1]


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[: _SHOWN - 1]}…"


def default_promise(
    read: Read, kind: str | None = None, risk: float | None = None, confidence: float | None = None
) -> Promise:
    """Return a promise, with what is not given as follows.

    Its kind is agreement where the reference's output is the truth, or what people were asked; regret where the log has
    the reference's answers; else coverage. Of one answer served it is broken on 5 % of requests at most, with
    confidence 90 %; a set lacks a right answer on 10 % on average.
    """
    truth = read.facts.truth
    if kind is None and truth is not None:
        kind = truth.kind or "agreement"
    kind = kind or ("coverage" if read.log.reference is None else "regret")
    known = kind_of(kind)
    of_set = known is not None and known.of_set
    risk = (SET_RISK if of_set else RISK) if risk is None else risk
    return Promise(kind, risk, CONFIDENCE if confidence is None and not of_set else confidence)


def promise_options(promise: Promise) -> list[str]:
    """Return a promise as options of a command line."""
    sure = [] if promise.confidence is None else [f"--confidence {promise.confidence:g}"]
    return [f"--promise {promise.kind}", f"--risk {promise.risk:g}", *sure]
