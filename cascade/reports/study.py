"""The report of a study: what `fit` would save on a log, beside every other method, and why."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from cascade.fitting.fit import LOG_COSTS
from cascade.policies.policy import LENGTH
from cascade.reports.report import Report, Table, loss_line, promise_document, promise_line, share, tenths
from cascade.studies.diagnosis import Signal
from cascade.studies.methods import NO_SIGNAL
from cascade.studies.study import SERVED, Interval, Row, Study
from cascade.text import percent

TOO_GOOD = 0.99
"""An AUROC above this is questioned: no number that a call brings is that good on real requests."""


def study_report(study: Study, command: str | None = None, addable: Sequence[Signal] = ()) -> Report:
    """Return the report of a study; `command` fits the same on the whole log, `addable` are signals it could get."""
    row = study.row(SERVED)
    lines = [promise_line(study.promise), _study_saving(study, row), _tried(study), _lost_line(study, row)]
    next_line = f"Next: {_advice(study, command)}"
    signals = (*(study.why.signals if any(other.name == NO_SIGNAL for other in study.rows) else ()), *addable)
    document = {**study_document(study), "signals": [_signal(study, signal) for signal in signals]}
    first = (_signals_table(study, signals),) if signals else ()
    tables = (*first, _ways_table(study), _why_table(study))
    return Report((*lines, next_line), tables, document, study.log, shown=len(first))


def _signals_table(study: Study, signals: Sequence[Signal]) -> Table:
    """Return a table of what `fit` costs without a signal, with each and with all, and what each signal costs."""
    rows = {row.name: row for row in study.rows}
    columns = ("signal", "cost of fit", "USD per 1,000", "break-even", "to add, USD")
    without = rows.get(NO_SIGNAL, rows[SERVED]).cost_share
    lines = [("none", share(without.mean), "–", share(study.why.asked_again), "–")] if without else []
    for signal in map(partial(_signal, study), signals):
        price, adds = signal["usd_per_1000"], signal["adds_usd"]
        figures = share(signal["cost_share"]), "–" if price is None else f"{price:.3g}", share(signal["break_even"])
        lines.append((signal["name"], *figures, "–" if adds is None else f"{adds:.3g}"))
    if len(study.why.signals) > 1:
        served = rows[SERVED].cost_share
        lines.append(("all", share(served and served.mean), "–", "–", "–"))
    return Table("cost: a share of the reference's; break-even: answers to keep so that it pays", columns, tuple(lines))


def _signal(study: Study, signal: Signal) -> dict[str, Any]:
    """Return the figures of a signal: the cost of `fit` with it alone, its own cost, and the cost of adding it."""
    alone = SERVED if len(study.why.signals) == 1 else f"fit, {signal.name}"
    row = next((row for row in study.rows if row.name == alone and signal.is_held), None)
    interval = None if row is None else row.cost_share
    price = None if signal.cost_nano_usd is None else signal.cost_nano_usd / 1e6
    return {
        "name": signal.name,
        "is_held": signal.is_held,
        "cost_share": None if interval is None else interval.mean,
        "usd_per_1000": price,
        "break_even": signal.break_even,
        "adds_usd": None if signal.is_held or price is None else price * (study.requests + study.repeated) / 1_000,
    }


def _study_saving(study: Study, row: Row) -> str:
    if row.saving is None:
        return "Saves: unknown, because the log lacks costs."
    if study.verdict == "refused":
        return f"Saves: no saving is shown, since nothing is proven in {row.refused} of {study.splits} splits."
    if set(row.curve) == {1.0}:
        return "Saves: nothing is proven to cost less than the reference, so only the reference is asked."
    mean, low, high = row.saving
    if low is None or high is None:
        return f"Saves: {tenths(mean)} of the reference's cost, on too few groups or splits for an interval."
    sure = f"95 % interval: {tenths(low)} to {tenths(high)}"
    if not row.saving.sure:
        return f"Saves: no saving is shown ({sure} of the reference's cost)."
    return f"Saves: {tenths(mean)} of the reference's cost ({sure})."


def _tried(study: Study) -> str:
    unit = "requests" if study.groups == study.requests else f"requests of {study.groups:,} groups"
    out = f", {study.repeated:,} repeated left out" * bool(study.repeated)
    out += f", {study.left_out:,} without the reference's answer left out" * bool(study.left_out)
    out += f", {study.unpriced:,} that lack a cost left out of the savings" * bool(study.unpriced)
    return (
        f"Tried on {study.requests:,} {unit}{out}: {study.splits} splits, fitted on {study.fitted_on:,}, tested on "
        f"{study.tested_on:,} others."
    )


def _lost_line(study: Study, row: Row) -> str:
    tried, risk = study.splits - row.refused, percent(study.promise.risk)
    if not tried:
        return "Lost: nothing, since the reference answered."
    theirs = ", the reference's where nothing was proven" * bool(row.refused)
    lost = f"{loss_line(study.promise, row.risk, 'the test requests')} on average{theirs}"
    why = "chance alone can do this" if study.groups == study.requests else "the promise counts each group once"
    return f"{lost}; more than {risk} in {row.broken} of {tried} splits ({why})."


def _advice(study: Study, command: str | None) -> str:
    """Return what to do next: the command, the number of requests, or the signal that is missing and its price."""
    diagnosis, verdict = study.why, study.verdict
    if (alone := study.as_right) is not None:
        figures = f"{tenths(alone.right)} of the test requests, the reference on {tenths(study.rows[0].right)}"
        return f"ask {alone.name}: it is right on {figures}, and costs {tenths(float(np.mean(alone.curve)))} as much."
    if verdict == "saves":
        return command or "fit it on all requests."
    if verdict == "unknown":
        return LOG_COSTS
    if diagnosis.signal in {None, LENGTH}:
        share_of_first = diagnosis.asked_again
        price = "" if share_of_first is None else f", for {tenths(share_of_first)} of the reference's cost"
        return (
            "add a signal of doubt; there is no log-prob, verdict or self-check. Add a judge (cascade collect LOG "
            f"--judge NAME -o NEW), or ask {diagnosis.first} once more with log-probs, if it gives any{price} (the "
            f"same with --only {shlex.quote(diagnosis.first)})."
        )
    if diagnosis.proves is None:
        nothing = f"at this risk {diagnosis.signal} saves nothing here"
        return f"another signal, another first model, or a higher risk: {nothing}."
    return _more_requests(study, diagnosis.proves, command)


def _more_requests(study: Study, proves: int, command: str | None) -> str:
    """Return whether more requests would help, where about `proves` of them prove something cheaper."""
    half, groups = study.why.saves_half, study.groups
    needed = [f"about {proves:,} prove something cheaper"] if proves > groups else []
    if half is None or half > groups:
        size = "more than a million" if half is None else f"about {half:,}"
        needed.append(f"{size} save half of what {study.why.signal} could")
    if study.fitted_on < proves <= groups:
        enough = f"about {proves:,} prove something cheaper, and a split fits on {study.fitted_on:,} of {groups:,}"
        return f"fit on all requests, since {enough}: {command or 'cascade fit LOG'}"
    if needed:
        return f"log more requests, or allow a higher risk: {', and '.join(needed)}; this log has {groups:,}."
    return f"another signal, or a higher risk: {groups:,} requests are enough for what {study.why.signal} can save."


def _ways_table(study: Study) -> Table:
    rows, refused = study.rows, any(row.refused for row in study.rows)
    right = "same" if study.promise.rules.compares else "right"  # then right means the same as the reference
    columns = ("method", "cost", "saves, 95 %", "lost", right, "calls", "kept", *["refused"] * refused)
    figures = [(*_method(row, full=row.requests == rows[0].requests), *[str(row.refused)] * refused) for row in rows]
    title = "cost: a share of the reference's; kept: different answers; refused: splits in which nothing was proven"
    return Table(title if refused else title.partition("; refused")[0], columns, tuple(figures))


def _method(row: Row, *, full: bool) -> tuple[str, ...]:
    return (
        row.name if full else f"{row.name} (on {row.requests:.0f})",
        share(None if row.cost_share is None else row.cost_share.mean),
        _ends(row.saving),
        *(share(value) for value in (row.risk, row.right)),
        *(f"{value:.2f}" for value in (row.calls, row.answers)),
    )


def _ends(interval: Interval | None) -> str:
    if interval is None or interval.low is None or interval.high is None:
        return "–"
    return f"{100 * interval.low:.1f} to {100 * interval.high:.1f} %".replace("-", "−")


def _why_table(study: Study) -> Table:
    diagnosis = study.why
    compares = study.promise.rules.compares
    shares = {
        f"{diagnosis.first} is right": None if compares else diagnosis.first_right,
        "the reference is right": None if compares else diagnosis.reference_right,
        f"the first answer equals that of {diagnosis.agrees_with}": diagnosis.agree,
    }
    rows = [(name, tenths(value)) for name, value in shares.items() if value is not None]
    rows.append(("signal of doubt", diagnosis.signal or "none"))
    if diagnosis.auroc is not None:
        rows.append((f"{diagnosis.signal} tells right from wrong (AUROC; 0.5 is chance)", f"{diagnosis.auroc:.3f}"))
    if diagnosis.auroc is not None and diagnosis.auroc > TOO_GOOD:
        rows.append(("… which is too good: is it a grade that no call gives?", ""))
    if diagnosis.asked_again is not None:
        rows.append((f"{diagnosis.first} costs, as a share of the reference", tenths(diagnosis.asked_again)))
    if study.bound is not None:
        rows.append(("no policy on these calls can save more than", tenths(1 - study.bound)))
    needed = {"something cheaper": diagnosis.proves, "half of what the signal could save": diagnosis.saves_half}
    for name, number in needed.items():
        rows.append((f"requests needed to prove {name}, about", "–" if number is None else f"{number:,}"))
    return Table("Why", ("", "figure"), tuple(rows))


def study_document(study: Study) -> dict[str, Any]:
    """Return a study's figures as plain JSON values; costs are shares of the reference's."""
    names = (
        "verdict",
        "requests",
        "groups",
        "repeated",
        "left_out",
        "fitted_on",
        "tested_on",
        "splits",
        "seed",
        "bound",
    )
    figures = [name for name in Row.__slots__ if name != "curve"]
    return {
        "log": study.log,
        "promise": promise_document(study.promise),
        **{name: getattr(study, name) for name in names},
        "why": {name: value for name, value in study.why._asdict().items() if name != "signals"},
        "methods": [{name: _plain(getattr(row, name)) for name in figures} for row in study.rows],
    }


def _plain(value: object) -> object:
    """Return a figure as a JSON value, with NaN (unknown) as null."""
    if isinstance(value, Interval):
        return {**value._asdict(), "more_than_chance": value.sure}
    return None if isinstance(value, float) and math.isnan(value) else value
