"""`cascade prove` and `cascade compare`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cascade.api import study
from cascade.api.logs import LogOptions, read_judged
from cascade.api.output import plain
from cascade.cli import options as opt
from cascade.cli.main import Shown, notes, print_result, say
from cascade.conformal.promise import KINDS, Promise, kind_of
from cascade.episodes.reading import Reading
from cascade.errors import UsageError
from cascade.policies.networks import NetworkSettings
from cascade.studies.study import default_promise

Kind = Annotated[str | None, typer.Option("--promise", help=f"What is promised: {', '.join(KINDS.built_in)}.")]


def prove(
    log: opt.LogName,
    promise: Kind = None,
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
    options = LogOptions(log, where, matcher, reference, models, reviews, label_rate)
    reading, goal = _read(options, promise, risk, confidence, report)
    with Shown() as bar:
        result = study.prove(reading, goal, splits=splits, seed=seed, show=bar.tell, tell=say)
    _print(result, details=details, as_json=as_json, report=report)


def compare(
    log: opt.LogName,
    promise: Kind = None,
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
    options = LogOptions(log, where, matcher, reference, models, reviews, label_rate)
    reading, goal = _read(options, promise, risk, confidence, report)
    with Shown() as bar:
        how: dict[str, Any] = {"splits": splits, "seed": seed, "networks": trained, "show": bar.tell}
        result = study.compare(reading, goal, **how, tell=say)
    _print(result, details=True, as_json=as_json, report=report)


def _read(
    options: LogOptions, kind: str | None, risk: float | None, confidence: float | None, report: Path | None
) -> tuple[Reading, Promise | None]:
    """Return the log, and what is promised; None where each data set has its own default.

    Before anything is computed it refuses a report that cannot be written.
    """
    if report is not None:
        folder = report.parent
        target = report if report.exists() else folder
        if report.is_dir() or not folder.is_dir() or not os.access(target, os.W_OK):
            raise UsageError(
                f"--report {report} cannot be written: name a file in a folder where files can be written."
            )
    if kind is not None and kind_of(kind) is None:
        Promise(kind)  # says what there is
    reading = read_judged(options, kind, say)
    if kind is None and risk is None and confidence is None:
        return reading, None
    return reading, default_promise(reading.reads[0], kind, risk, confidence)


def _print(result: study.StudyResult, *, details: bool, as_json: bool, report: Path | None) -> None:
    print_result(result, as_json=as_json, details=details)
    if report is not None:
        report.write_text(result.markdown(), "utf-8")
        notes().print(f"written: {plain(str(report))}", soft_wrap=True)
