"""`prove`: estimates from logs what a cascade would save. It makes no model calls."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import RenderableType

from cascade.api.logs import (
    Files,
    LogAsked,
    LogGiven,
    Models,
    Problems,
    ReviewOptions,
    Where,
    checked_log,
    read_reviewed,
    tell_questions,
)
from cascade.api.output import Result, Tell, markdown, rendered, warn
from cascade.api.prove_page import Cascade, cascade_document, page
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import ALL, GUIDE
from cascade.evaluation.logs import Log, ladder_of
from cascade.evaluation.proof import proving
from cascade.evaluation.proof.diagnosis import default_kind
from cascade.evaluation.proof.proving import Fit, Plan, Proof, holds_both, provable
from cascade.guarantees.base import DEFAULT, Guarantee, get, kinds_that
from cascade.policies.learned import CERTIFIABLE
from cascade.training.fitting import fit_policy
from cascade.training.networks.trainer import require_torch
from cascade.training.portfolio import AUTO, check_method

_SINGLE_ALPHA, _SET_ALPHA, _DELTA = 0.05, 0.1, 0.1
_REPORT_WIDTH = 130
FAST, MANY = "net_benefit", 2_000
"""With more questions than this only one method is fitted: all of them, on all splits, would take minutes."""
_OPEN = "the log"
"""The name, on a page, of a log that was passed as an object."""

Show: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: the name of the task, the number of parts done, and the number of parts."""


@dataclass(frozen=True, slots=True)
class ProofResult(Result):
    """What a cascade would save on logs.

    Attributes:
        splits: how many random splits.
        seed: the seed of the splits.
        cascades: a result for each data set of each log.
    """

    splits: int
    seed: int
    cascades: tuple[Cascade, ...]

    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        for one in self.cascades:
            yield rendered(page(one, width))

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `prove --json`. Costs in USD per question."""
        found = [cascade_document(one) for one in self.cascades]
        return {"splits": self.splits, "seed": self.seed, "cascades": found}

    def markdown(self) -> str:
        """Return the same as Markdown."""
        head = "# What a cascade would save\n\nMade by `cascade prove`: no model was asked.\n\n"
        return head + "\n".join(markdown(page(one, _REPORT_WIDTH)) for one in self.cascades)


def prove(
    logs: LogGiven | Sequence[LogGiven],
    *,
    guarantee: str | None = None,
    alpha: float | Sequence[float] | None = None,
    delta: float | None = None,
    against: str | None = None,
    splits: int = 20,
    policy: str | None = None,
    where: Where = None,
    matcher: str | None = None,
    reference: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seed: int = 0,
    report: str | Path | None = None,
    show: Show = lambda _name, _done, _total: None,
    tell: Tell = warn,
) -> ProofResult:
    """Estimate what a cascade would save on your logs, at which guarantee, how certain that is, and why.

    No key is needed and no model is asked. Everything is fitted and certified anew on random splits of the questions,
    and tested on the questions left out.

    Args:
        logs: logs (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        guarantee: the kind of guarantee: coverage, regret, error, agreement, … By default the
            kind that the reviews asked about. Without reviews: regret if the log has the guide's own answers (and the
            answers' texts where votes decide), else coverage.
        alpha: the share of questions that may break the promise. By default 0.05 for regret and error, else 0.1.
            Repeatable: the first is the headline.
        delta: the guarantee holds with probability 1 - delta over calibrations. By default 0.1 for regret and error.
        against: what you pay today: guide (a ladder's last model), or all steps. By default guide if the log has it.
        splits: number of random splits.
        policy: the kind of policy; by default all that `fit` tries, up to 2,000 questions.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        reference: guide, or a ladder's model: an answer is right if it equals this model's output. Labels are ignored.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. An output that differs from the
            reference's and that nobody judged counts as a loss. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seed: seed of the random draws.
        report: also write the report as Markdown.
        show: is called with the progress.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: lists every problem with the call, or says why no log allows an answer.

    >>> found = prove("demo", alpha=0.2, splits=2, policy="threshold")
    >>> found.to_dict()["cascades"][0]["proofs"][0]["questions"]
    244
    """
    several = [logs] if isinstance(logs, str | PathLike | Log) else list(logs)
    alphas = () if alpha is None else (alpha,) if isinstance(alpha, (int, float)) else tuple(alpha)
    wanted = _Wanted(guarantee, alphas, delta, policy, Plan(splits, seed, against))
    asked = [LogAsked(one, where, matcher, reference, models) for one in several]
    said = ReviewOptions.of(reviews, label_rate)
    opened = _checked(asked, wanted, said, None if report is None else Path(report), tell)
    for log in opened:
        tell_questions(log.tables, tell, reference=True)
    _tell_ladders(asked, opened, tell)
    written = [_written(one, said) for one in asked]
    found = [one for given, log in zip(written, opened, strict=True) for one in _proved(given, log, wanted, show)]
    if all(one.failed for one in found):
        raise UsageError("; ".join(dict.fromkeys(f"{one.dataset}: {one.failed}" for one in found)))
    result = ProofResult(splits, seed, tuple(found))
    if report is not None:
        _write(Path(report), result.markdown())
    return result


def _written(asked: LogAsked, said: ReviewOptions) -> tuple[str, ...]:
    """Return a log and the options that filter it as a command line has them, quoted for a shell."""
    name = _OPEN if isinstance(asked.source, Log) else shlex.quote(fspath(asked.source))
    return (name, *(f"{option} {shlex.quote(one)}" for option, one in (*asked.options, *said.options)))


def _tell_ladders(asked: Sequence[LogAsked], opened: Sequence[Log], tell: Tell) -> None:
    """Say which logs of rounds can also be proved as a ladder without judging."""
    names = {fspath(one.source): log for one, log in zip(asked, opened, strict=True) if not isinstance(one.source, Log)}
    for name, log in names.items():
        for table in log.tables if ladder_of(name) not in names else ():
            if holds_both(table):
                tell(
                    f"{table.dataset} has the guide's own answers beside its rounds: what a ladder of the two models, "
                    f"without judging, would save shows cascade prove {shlex.quote(ladder_of(name))}"
                )


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The checked options of `prove`."""

    kind: str | None
    alphas: tuple[float, ...]
    delta: float | None
    method: str | None
    plan: Plan

    def check(self, problems: Problems) -> None:
        """Note the problems that do not depend on a log."""
        if self.method is not None:
            with problems.noted():
                _check_provable(self.method)
        if self.kind is not None:
            with problems.noted():
                if not provable(get(self.kind)):
                    raise UsageError(f"A saving is shown at {kinds_that(provable)}, not at {self.kind}.")
        for alpha in dict.fromkeys(self.alphas):
            with problems.noted():
                Guarantee(DEFAULT, alpha)
        if self.delta is not None:
            with problems.noted():
                Guarantee(DEFAULT, delta=self.delta)
        if self.plan.against not in {None, GUIDE, ALL}:
            problems.add(f"--against is {GUIDE} or {ALL}, not {self.plan.against}.")

    def guarantees(self, kind: str) -> list[Guarantee]:
        """Return the promises to look at, the headline's first."""
        single = get(kind).needs_delta
        alphas = self.alphas or (_SINGLE_ALPHA if single else _SET_ALPHA,)
        delta = _DELTA if single and self.delta is None else self.delta
        return [Guarantee(kind, one, delta) for one in dict.fromkeys(alphas)]

    def tried(self, table: EpisodeTable) -> str:
        """Return the methods to fit on a log of this size."""
        return self.method or (AUTO if table.n <= MANY else FAST)


def _check_provable(method: str) -> None:
    """Refuse a method that is unknown, that promises nothing, or that cannot be fitted here."""
    check_method(method)
    if method in CERTIFIABLE:
        require_torch()


def _checked(
    asked: Sequence[LogAsked], wanted: _Wanted, said: ReviewOptions, report: Path | None, tell: Tell
) -> list[Log]:
    """Return the logs; before anything is fitted, raise one error that lists every problem."""
    problems = Problems()
    wanted.check(problems)
    if report is not None:
        with problems.noted():
            _check_report(report)

    opened = [
        problems.of(partial(read_reviewed, one, said, wanted.kind, tell))
        if said.files
        else checked_log(problems, one, tell)
        for one in asked
    ]
    problems.refuse()
    compares = wanted.kind is not None and get(wanted.kind).compares
    return [one.compared() if compares else one for one in opened if one is not None]


def _check_report(path: Path) -> None:
    """Refuse a report that cannot be written."""
    try:
        where = path if path.exists() else path.parent
    except OSError as error:  # a name of 300 characters
        raise UsageError(f"--report {path} cannot be written: {error.strerror or error}.") from None
    if path.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        why = "it is a folder" if path.is_dir() else "no such folder" if not where.exists() else "permission denied"
        raise UsageError(f"--report {path} cannot be written: {why}.")


def _proved(given: tuple[str, ...], log: Log, wanted: _Wanted, show: Show) -> Iterator[Cascade]:
    for table in log.tables:
        chosen = () if len(log.tables) == 1 else (f"--where {shlex.quote(f'dataset={table.dataset}')}",)
        said = (*given, *chosen)
        try:
            method = None if wanted.tried(table) == AUTO else wanted.tried(table)
            yield Cascade(said, table.dataset, tuple(_proofs(table, wanted, show)), method=method)
        except UsageError as error:
            yield Cascade(said, table.dataset, failed=str(error))


def _proofs(table: EpisodeTable, wanted: _Wanted, show: Show) -> Iterator[Proof]:
    kind = wanted.kind or default_kind(table, wanted.plan.against)
    for guarantee in wanted.guarantees(kind):
        told = partial(show, f"{table.dataset}, {kind}, alpha {guarantee.alpha:g}")
        yield proving.prove(table, guarantee, partial(fit_for, wanted.tried(table)), wanted.plan, told)


def fit_for(method: str, table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
    """Fit and certify as `cascade fit` does."""
    found = fit_policy([table], guarantee, method=method, seed=seed)
    if found.refused is not None:
        raise found.refused
    return Fit(found.artifact.calibrated(found.policy), found.choice.chosen.name)


def _write(path: Path, text: str) -> None:
    """Write the report."""
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None
