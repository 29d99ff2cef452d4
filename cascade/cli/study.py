"""`cascade prove` and `cascade compare`."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cascade.api.logs import LogAsked, ReviewOptions, read_judged
from cascade.api.output import plain
from cascade.api.study import StudyResult, default_promise
from cascade.api.study import compare as compare_ways
from cascade.api.study import prove as prove_log
from cascade.cli import options as opt
from cascade.cli.main import Shown, notes, print_json, say
from cascade.conformal.promise import Promise, kind_of
from cascade.episodes.reading import Reading
from cascade.errors import UsageError
from cascade.policies.networks import NetworkSettings


def prove(
    log: opt.LogName,
    promise: opt.Kind = None,
    risk: opt.Risk = None,
    confidence: opt.Confidence = None,
    splits: opt.Splits = 20,
    seed: opt.Seed = 0,
    details: opt.Details = False,
    as_json: opt.AsJson = False,
    report: opt.Page = None,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    reference: opt.Reference = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
) -> None:
    """Estimate what a cascade would save on a log, at which promise, how sure that is, and what to do next.

    cascade fit is repeated on random splits, and played on the requests left out. No model is asked.

    Example: cascade prove episodes.parquet --promise regret --risk 0.05 --confidence 0.9
    """
    asked = LogAsked(log, where, matcher, reference, models), ReviewOptions.of(reviews, label_rate)
    opened, wanted = _opened(*asked, promise, risk, confidence, report)
    with Shown() as bar:
        found = prove_log(opened, wanted, splits=splits, seed=seed, show=bar.tell, tell=say)
    _print(found, *asked, details=details, as_json=as_json, report=report)


def compare(
    log: opt.LogName,
    promise: opt.Kind = None,
    risk: opt.Risk = None,
    confidence: opt.Confidence = None,
    splits: opt.Splits = 20,
    seed: opt.Seed = 0,
    networks: Annotated[bool, typer.Option("--networks", help="Also train CPO and CCPO; slow. Extra: train.")] = False,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates of each network; fewer are quicker.")] = None,
    as_json: opt.AsJson = False,
    report: opt.Page = None,
    where: opt.Columns = None,
    matcher: opt.Matcher = None,
    reference: opt.Reference = None,
    models: opt.Models = None,
    reviews: opt.Reviews = None,
    label_rate: opt.LabelRate = None,
) -> None:
    """Compare every way to answer on the same random splits of a log. No model is asked.

    Example: cascade compare episodes.parquet --promise coverage --risk 0.1
    """
    if steps is not None and not networks:
        raise UsageError("--steps says how long networks are trained; give --networks too.")
    trained = (NetworkSettings() if steps is None else NetworkSettings(steps=steps)) if networks else None
    asked = LogAsked(log, where, matcher, reference, models), ReviewOptions.of(reviews, label_rate)
    opened, wanted = _opened(*asked, promise, risk, confidence, report)
    with Shown() as bar:
        options: dict[str, Any] = {"splits": splits, "seed": seed, "networks": trained}
        found = compare_ways(opened, wanted, **options, show=bar.tell, tell=say)
    _print(found, *asked, details=True, as_json=as_json, report=report)


def _opened(
    log: LogAsked,
    reviews: ReviewOptions,
    kind: str | None,
    risk: float | None,
    confidence: float | None,
    report: Path | None,
) -> tuple[Reading, Promise | None]:
    """Return the log, and what is promised; None where each data set has its own default.

    Before anything is computed it refuses a report that cannot be written.
    """
    if report is not None:
        there, folder = report.is_dir(), report.parent
        if there or not folder.is_dir() or not os.access(report if report.exists() else folder, os.W_OK):
            raise UsageError(
                f"--report {report} cannot be written: name a file in a folder where files can be written."
            )
    if kind is not None and kind_of(kind) is None:
        Promise(kind)  # says what there is
    opened = read_judged(log, reviews, kind, say)
    if kind is None and risk is None and confidence is None:
        return opened, None
    return opened, default_promise(opened.reads[0], kind, risk, confidence)


def _print(
    found: StudyResult, log: LogAsked, reviews: ReviewOptions, *, details: bool, as_json: bool, report: Path | None
) -> None:
    written = [f"{option} {shlex.quote(value)}" for option, value in (*log.options, *reviews.options)]
    named = replace(found, log=" ".join([shlex.quote(str(log.source)), *written]))
    if as_json:
        print_json(named.to_dict())
    else:
        typer.echo(named.text(details=details))
    if report is not None:
        report.write_text(named.markdown(), "utf-8")
        notes().print(f"written: {plain(str(report))}", soft_wrap=True)
