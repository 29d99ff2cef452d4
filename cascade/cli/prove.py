"""`cascade prove`: what a log says a cascade would save, before anybody asks a model anything."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from cascade.cli.logs import parse_where, say_questions
from cascade.cli.options import METHODS, AsJson, Matched, Seed, Where, method_named, method_written
from cascade.cli.output import console, notes, plain, print_json
from cascade.cli.page import markdown, rendered
from cascade.cli.problems import Problems, check_method, checked_log
from cascade.cli.progress import Shown
from cascade.cli.prove_page import AsLadder, Cascade, cascade_document, page
from cascade.episodes.ladders import ladder_dataset
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import ALL, GUIDE
from cascade.evaluation.logs import SIMULATED, Log, ladder_of, open_log
from cascade.evaluation.proof.diagnosis import default_kind
from cascade.evaluation.proof.proving import Fit, Plan, Proof, provable, prove
from cascade.evaluation.proof.strategies import Rivals, holds_both
from cascade.guarantees.base import DEFAULT, Guarantee, get, kinds_that
from cascade.training.choice.portfolio import AUTO
from cascade.training.fitting import fit_policy
from cascade.training.networks.trainer import BARE, CERTIFIABLE, require_torch

_SINGLE_ALPHA, _SET_ALPHA, _DELTA = 0.05, 0.1, 0.1
_REPORT_WIDTH = 130
_METHODS_SAID = ", ".join(method_written(one) for one in METHODS if one not in BARE)
_FAST, _MANY = "net_benefit", 2_000
"""Beyond so many questions one method stands for all: boosted trees, which start there, would take minutes."""

Logs = Annotated[
    list[str], typer.Argument(help="Logs (.jsonl, .parquet, a store's URL), demo, demo-ladder, or simulated:NAME.")
]
Kinds = Annotated[
    str | None,
    typer.Option(
        "--guarantee",
        help="What is promised: coverage, solvable, regret, error, or an installed one that single questions break. By "
        "default regret where the guide alone is on record, and the texts wherever votes decide; else coverage.",
    ),
]
Alphas = Annotated[
    list[float] | None,
    typer.Option(
        "--alpha",
        help="The share of questions that may break the promise. By default 0.05 for regret and error, else 0.1. "
        "Repeatable: the first is the headline.",
    ),
]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="For all but this share of calibrations. By default 0.1 for regret and error."),
]
Tried = Annotated[
    str | None,
    typer.Option(
        "--policy",
        callback=method_named,
        help=f"What to fit: {_METHODS_SAID}. By default {AUTO}, all but networks, up to {_MANY:,} questions; beyond, "
        f"{_FAST}.",
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help=f"What you pay today: {GUIDE} (a ladder's last model), or {ALL} steps. By default the guide where on "
        "record.",
    ),
]


def prove_logs(
    logs: Logs,
    guarantee: Kinds = None,
    alpha: Alphas = None,
    delta: Delta = None,
    against: Against = None,
    splits: Annotated[int, typer.Option("--splits", min=2, help="How many random splits.")] = 20,
    policy: Tried = None,
    where: Where = None,
    matcher: Matched = None,
    seed: Seed = 0,
    report: Annotated[Path | None, typer.Option("--report", help="Write the same as Markdown.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a cascade would save on logs that exist: at which promise, how sure that is, and why.

    No key is needed and no model is asked. Everything is fitted and certified anew on random splits of the questions,
    and judged on those left out.

    Example: cascade prove episodes.parquet --alpha 0.02 --alpha 0.05
    """
    wanted = _Wanted(guarantee, tuple(alpha or ()), delta, policy, Plan(splits, seed, against))
    opened = _checked(logs, where or (), matcher, wanted, report)
    for log in opened:
        say_questions(log.tables, reference=True)
    found: list[Cascade] = []
    with Shown() as shown:
        for name, log in zip(logs, opened, strict=True):
            chosen = [("--where", one) for one in where or ()] + ([] if matcher is None else [("--matcher", matcher)])
            options = tuple(f"{option} {shlex.quote(one)}" for option, one in chosen)
            asked = _Asked(name, options, lambda other: open_log(other, parse_where(where or ()), matcher))
            found += _proved(asked, log, wanted, shown)
    if all(one.failed for one in found):
        raise UsageError("; ".join(dict.fromkeys(f"{one.dataset}: {one.failed}" for one in found)))
    if report is not None:
        _write(report, found)
    if as_json:
        documents = [cascade_document(one) for one in found]
        print_json({"splits": splits, "seed": seed, "cascades": documents})
        return
    out = console()
    for one in found:
        out.print(rendered(page(one, out.width)), crop=False)  # a command that is cut could not be run


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be proved, as given, and how."""

    kind: str | None
    alphas: tuple[float, ...]
    delta: float | None
    method: str | None
    plan: Plan

    def check(self, problems: Problems) -> None:
        """Note what can be asked of no log."""
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
        """Return what is fitted on a log of so many questions."""
        return self.method or (AUTO if table.n <= _MANY else _FAST)


def _check_provable(method: str) -> None:
    """Refuse a method that there is none of, or that promises nothing, or cannot be fitted here."""
    check_method(method)
    if method in BARE:
        raise UsageError(
            f"A saving is shown of what is certified, and --policy {method_written(method)} carries no certificate; "
            "cpo-batch calibrates the same network."
        )
    if method in CERTIFIABLE:
        require_torch()


def _checked(
    logs: Sequence[str], where: Sequence[str], matcher: str | None, wanted: _Wanted, report: Path | None
) -> list[Log]:
    """Return the logs, or refuse, with everything that is wrong, before anything is fitted."""
    problems = Problems()
    wanted.check(problems)
    if report is not None:
        with problems.noted():
            _check_report(report)
    opened = [checked_log(problems, name, where, matcher) for name in logs]
    problems.refuse()
    return [one for one in opened if one is not None]


def _check_report(path: Path) -> None:
    """Refuse a place where no report can be written."""
    try:
        where = path if path.exists() else path.parent
    except OSError as error:  # a name of 300 characters
        raise UsageError(f"--report {path} cannot be written: {error.strerror or error}.") from None
    if path.is_dir() or not where.exists() or not os.access(where, os.W_OK):
        why = "it is a folder" if path.is_dir() else "no such folder" if not where.exists() else "permission denied"
        raise UsageError(f"--report {path} cannot be written: {why}.")


class _Asked(NamedTuple):
    """A log as it was named, the options that chose of it, and how another name of it is opened with the same ones."""

    name: str
    options: tuple[str, ...]
    open: Callable[[str], Log]


def _proved(asked: _Asked, log: Log, wanted: _Wanted, shown: Shown) -> Iterator[Cascade]:
    judging = log.break_evens()
    for table in log.tables:
        chosen = () if len(log.tables) == 1 else (f"--where {shlex.quote(f'dataset={table.dataset}')}",)
        options = (*asked.options, *chosen)
        said = (shlex.quote(asked.name), *options)
        try:
            proofs = tuple(_proofs(table, wanted, shown))
            method = None if wanted.tried(table) == AUTO else wanted.tried(table)
            ladder = _as_ladder(asked, table, proofs[0], options, wanted, shown)
            judged = judging.get(table.dataset)
            yield Cascade(said, table.dataset, proofs, judged, method=method, as_ladder=ladder)
        except UsageError as error:
            yield Cascade(said, table.dataset, failed=str(error))


def _as_ladder(
    asked: _Asked, table: EpisodeTable, rounds: Proof, options: tuple[str, ...], wanted: _Wanted, shown: Shown
) -> AsLadder | None:
    """Return what the same questions bring as a ladder, at the same promise; None where the log cannot be read so."""
    if asked.name.startswith(SIMULATED) or not holds_both(table) or rounds.reference.name != GUIDE_ONLY:
        return None
    name = ladder_of(asked.name)
    ladder = next(one for one in asked.open(name).tables if one.dataset == ladder_dataset(table.dataset))
    told = partial(shown.tell, f"{ladder.dataset}, {rounds.guarantee.kind}, alpha {rounds.guarantee.alpha:g}")
    proof = prove(ladder, rounds.guarantee, partial(fit_for, wanted.tried(ladder)), wanted.plan, told)
    return AsLadder((shlex.quote(name), *options), Rivals(rounds, proof))


def _proofs(table: EpisodeTable, wanted: _Wanted, shown: Shown) -> Iterator[Proof]:
    kind = wanted.kind or default_kind(table, wanted.plan.against)
    for guarantee in wanted.guarantees(kind):
        told = partial(shown.tell, f"{table.dataset}, {kind}, alpha {guarantee.alpha:g}")
        yield prove(table, guarantee, partial(fit_for, wanted.tried(table)), wanted.plan, told)


def fit_for(method: str, table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
    """Fit and certify as `cascade fit` does."""
    found = fit_policy([table], guarantee, method=method, seed=seed)
    if found.refused is not None:
        raise found.refused
    return Fit(found.artifact.calibrated(found.policy), found.choice.chosen.name)


def _write(path: Path, found: Sequence[Cascade]) -> None:
    """Write the report."""
    head = "# What a cascade would save\n\nMade by `cascade prove`: no model was asked.\n\n"
    text = head + "\n".join(markdown(page(one, _REPORT_WIDTH)) for one in found)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None
    notes().print(f"written: {plain(str(path))}", soft_wrap=True)
