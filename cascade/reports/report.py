"""What `fit`, `prove` and `compare` say: a few lines first, tables for those who want them, and the same as JSON.

A report holds every figure once, and each renderer prints it: the terminal (`text`), a page (`markdown`), a program
(`document`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cascade.conformal.promise import Promise
from cascade.fitting.fit import Fit, cost_by_segment
from cascade.fitting.menu import Tested
from cascade.policies.simple import LENGTH
from cascade.studies.study import SERVED, Interval, Row, Study
from cascade.text import counted, percent

TOO_GOOD = 0.99
"""An AUROC above it is doubted: no number that a call brings is so good on real requests."""


class Table(NamedTuple):
    """A table of a report: its title, the names of its columns, and its rows of texts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def plain(self) -> Iterator[str]:
        """Yield it in columns: the first to the left, the others to the right."""
        every = [self.columns, *self.rows]
        widths = [max(len(row[at]) for row in every) for at in range(len(self.columns))]
        yield self.title
        for row in every:
            first, *others = zip(row, widths, strict=True)
            yield "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]).rstrip()


@dataclass(frozen=True, slots=True)
class Report:
    """What a verb found.

    Attributes:
        lines: what a reader with ten seconds needs, a sentence each.
        tables: the details.
        document: the same figures as plain JSON values; money in USD.
    """

    lines: tuple[str, ...]
    tables: tuple[Table, ...] = ()
    document: Mapping[str, Any] = field(default_factory=dict)

    def text(self, *, details: bool = False) -> str:
        """Return it for a terminal: the lines; with `details` the tables too."""
        return "\n".join([*self.lines, *(line for table in self.tables if details for line in ("", *table.plain()))])

    def markdown(self) -> str:
        """Return it as a page, tables included."""
        return "\n".join(["\n\n".join(self.lines), *(line for table in self.tables for line in _page(table))]) + "\n"


def _page(table: Table) -> Iterator[str]:
    yield from ("", f"## {table.title}", "", f"| {' | '.join(table.columns)} |")
    yield "|" + "---|" * len(table.columns)
    yield from (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in table.rows)


# --- fit ---


def promise_line(promise: Promise) -> str:
    """Return a promise in a sentence.

    >>> promise_line(Promise("regret", 0.05, 0.9))
    'Promised: the answer served is wrong, and the reference alone is right, on at most 5 % of requests, with \
confidence 90 %.'
    """
    sure = "on average" if promise.confidence is None else f"with confidence {percent(promise.confidence)}"
    return f"Promised: {promise.rules.lost}, on at most {percent(promise.risk)} of requests, {sure}."


def of_fit(done: Fit, output: str | None = None) -> Report:
    """Return the report of a fit; `output` is the policy directory that was written, if any."""
    head = promise_line(done.promise), _saving_line(done), _requests_line(done)
    lines = *head, *_levels(done), *_doubts(done), _next(done, output)
    return Report(lines, tuple(_fit_tables(done)), fit_document(done))


def _saving_line(done: Fit) -> str:
    cost, low, high, _ = done.saving
    if not done.certified:
        return "Saves: nothing is proven to cost less than the reference, so the reference alone is asked."
    if cost is None or low is None or high is None:
        return "Saves: unknown, because the log does not say what the reference costs."
    amount = (
        f"Saves: {_percent(1 - cost)} of the reference's cost" if cost < 1 else f"Costs: {cost:.2f} × the reference"
    )
    return f"{amount} (90 % interval of what is saved: {_percent(1 - high)} to {_percent(1 - low)})."


def _requests_line(done: Fit) -> str:
    unit = "requests" if done.requests == done.log.n else f"groups, one request of each of {done.requests:,}"
    proven = [certified.n for certified in done.certified.values()] if done.settings.by_segment else []
    said = f"{'Proven' if done.certified else 'Tried'} on {sum(proven) or done.log.n:,} {unit}"
    for others, what in ((done.fitted, "taught the policy"), (done.chose, "ordered the thresholds")):
        said += f"; {counted(len(others), 'other request')} {what}" if others else ""
    if done.attempt.number is None:
        return f"{said}; how often they were used before is unknown: {done.attempt.why}."
    return f"{said}: fit {done.attempt.number} on these."


def _levels(done: Fit) -> Iterator[str]:
    """Yield what each level promises, and at which nothing is proven."""
    risks = done.settings.risks
    if risks:
        listed = ", ".join(f"{name} {percent(risk)}" for name, risk in risks.items())
        yield f"Levels by risk: {listed}; a request that names none is served at {done.default}."
    if unproven := ", ".join(name for name in risks if name not in done.certified):
        yield f"Note: nothing is proven at {unproven}; one policy serves all levels, and is chosen for {done.default}."


def _doubts(done: Fit) -> Iterator[str]:
    """Yield what a reader must know of segments and levels, and what weakens the promise."""
    if done.settings.by_segment and done.certified:
        each = [float(proven.losses) / proven.n for proven in done.certified.values()]
        of_all = sum(float(proven.losses) for proven in done.certified.values()) / done.log.n
        yield (
            f"Lost on the requests that prove it: {_percent(sum(each) / len(each))} in a mean segment, "
            f"{_percent(max(each))} in the worst, {_percent(of_all)} of all requests."
        )
    if done.requests > done.log.n:
        share = "" if done.lost is None else f" Of all {done.requests:,} requests here {_percent(done.lost)} are lost."
        yield f"Note: the promise speaks of a random request of a random group, not of a random request.{share}"
    if done.repeated:
        many = counted(done.repeated, "repeated request")
        yield f"Note: {many} counted once: the promise speaks of distinct requests."
    if done.unknown:
        yield (
            f"Note: {counted(done.unknown, 'request')} without the reference's answer are left out: the promise does "
            "not speak of such requests."
        )
    if (done.attempt.number or 1) > 1 and done.promise.confidence is None:
        yield "Note: a promise on average is not corrected for the choice among several fits; promise a confidence."
    if done.settings.by_segment and len(done.certified) > 1:
        yield "Note: each certificate holds by itself with that confidence; that any of them is broken is likelier."
    trends = {"losses": done.losses_drift, "doubt": done.doubt_drift}
    named = [name for name, trend in trends.items() if trend is not None and trend.notable]
    if named:
        yield (
            f"Note: the {' and the '.join(named)} of the requests change over the log; a promise speaks of requests "
            "like those that proved it: --newest 0.5 certifies on the newer half."
        )
    if done.too_small:
        listed = ", ".join(f"{name} ({many})" for name, many in done.too_small.items())
        yield f"Note: nothing is proven for these segments, whose requests the guide answers: {listed}."


def _next(done: Fit, output: str | None) -> str:
    if done.certified and (done.saves or done.saving.cost_share is None):
        return f"Next: put policy: {output} into cascade.yaml." if output else "Next: write it with -o DIRECTORY."
    return "Next: log more requests, or a signal of doubt (log-probs, a judge), or allow a higher risk."


def _fit_tables(done: Fit) -> Iterator[Table]:
    rows = tuple([_tested_row(tested, done) for tested in done.tested])
    yield Table("What was tested", ("policy", "level", "requests", "lost", "cost / reference", "served"), rows)
    if done.settings.by_segment or done.default:
        cost = cost_by_segment(done) if done.settings.by_segment else dict[str, float | None]()
        listed = [
            (name, f"{proven.n:,}", f"{float(proven.losses):g}", f"{proven.point.kappa:.4g}", _share(cost.get(name)))
            for name, proven in done.certified.items()
        ]
        yield Table("Certificates", ("name", "requests", "lost", "threshold", "cost / reference"), tuple(listed))


def _tested_row(tested: Tested, done: Fit) -> tuple[str, ...]:
    return (
        tested.name,
        f"{tested.level:.3g}",
        f"{tested.n:,}",
        "–" if tested.certified is None else f"{float(tested.certified.losses):g}",
        _share(tested.cost),
        "yes" if tested.policy == done.policy and done.certified else "",
    )


def fit_document(done: Fit) -> dict[str, Any]:
    """Return a fit's figures as plain JSON values."""
    return {
        "promise": _promise(done.promise),
        "policy": done.policy.kind,
        "saves": done.saves,
        "cost_share": done.saving.cost_share,
        "cost_share_interval": [done.saving.low, done.saving.high],
        "requests": done.log.n,
        "learned_from": done.learned_from,
        "repeated": done.repeated,
        "left_out": done.unknown,
        "attempt": done.attempt.number,
        "level": done.level,
        "default": done.default or None,
        "certificates": {
            name: {"kappa": str(proven.point.kappa), "n": proven.n, "losses": float(proven.losses)}
            for name, proven in done.certified.items()
        },
        "too_small": dict(done.too_small),
        "tested": [
            {"name": each.name, "level": each.level, "requests": each.n, "cost_share": each.cost}
            for each in done.tested
        ],
    }


def _promise(promise: Promise) -> dict[str, Any]:
    return {"kind": promise.kind, "risk": promise.risk, "confidence": promise.confidence}


# --- study ---


def of_study(found: Study, command: str | None = None, differences: Sequence[tuple[str, str, str]] = ()) -> Report:
    """Return the report of a study: what `fit` would save, beside every other way.

    Args:
        found: the study.
        command: fits the same on the whole log.
        differences: some requests whose first answer is not the reference's: the request and both answers.
    """
    row = found.row(SERVED)
    lines = [promise_line(found.promise), _study_saving(found, row), _tried(found), _kept(found, row)]
    next_line = f"Next: {_advice(found, command)}"
    tables = [_ways_table(found.rows), _why_table(found)]
    if differences:
        tables.append(Table("Where they differ", ("request", "first answer", "reference's"), tuple(differences)))
    return Report((*lines, next_line), tuple(tables), study_document(found))


def _study_saving(found: Study, row: Row) -> str:
    if found.verdict == "refused":
        return f"Saves: nothing is shown, since nothing is proven in {row.refused} of {found.splits} splits."
    if row.saving is None:
        return "Saves: unknown, because the log lacks costs."
    if set(row.curve) == {1.0}:
        return "Saves: nothing is proven to cost less than the reference, so the reference alone is asked."
    mean, low, high = row.saving
    if low is None or high is None:
        return f"Saves: {_percent(mean)} of the reference's cost, on too few groups or splits for an interval."
    sure = f"95 % interval: {_percent(low)} to {_percent(high)}"
    if not row.saving.sure:
        return f"Saves: nothing is shown ({sure} of the reference's cost)."
    return f"Saves: {_percent(mean)} of the reference's cost ({sure})."


def _tried(found: Study) -> str:
    unit = "requests" if found.groups == found.requests else f"requests of {found.groups:,} groups"
    out = f", {found.repeated:,} repeated left out" * bool(found.repeated)
    out += f", {found.left_out:,} without the reference's answer left out" * bool(found.left_out)
    return (
        f"Tried on {found.requests:,} {unit}{out}: {found.splits} splits, fitted on {found.fitted_on:,}, tested on "
        f"{found.tested_on:,} others."
    )


def _kept(found: Study, row: Row) -> str:
    tried, most = found.splits - row.refused, percent(found.promise.risk)
    if not tried:
        return "Lost: nothing, since the reference answered."
    return (
        f"Lost: {_percent(row.risk)} of the test requests on average; more than {most} in {row.broken} of {tried} "
        "splits (chance alone can do this)."
    )


def _advice(found: Study, command: str | None) -> str:
    """Return what to do next: the command, the number of requests, or the signal that is missing and its price."""
    why, verdict = found.why, found.verdict
    if verdict == "saves":
        return command or "fit it on all requests."
    if verdict == "unknown":
        return "log what calls cost (cost_nano_usd; in a wide table NAME_cost)."
    if why.signal in {None, LENGTH}:
        price = "" if why.asked_again is None else f", for {_percent(why.asked_again)} of the reference's cost"
        return (
            "log a signal of doubt; there is no log-prob, verdict or self-check. Ask "
            f"{why.first} alone once more with log-probs{price} (cascade collect REQUESTS -o NEW, with provider: "
            "replay:LOG for all, and one of its own for this model), or let a judge decide."
        )
    if why.proves is None:
        return f"another signal, another first model, or a higher risk: at this risk {why.signal} saves nothing here."
    half = "more than a million" if why.saves_half is None else f"about {why.saves_half:,}"
    return (
        f"log more requests, or allow a higher risk: about {why.proves:,} prove something cheaper, and {half} save "
        f"half of what {why.signal} could; a study tests on part of its {found.groups:,}."
    )


def _ways_table(rows: Sequence[Row]) -> Table:
    refused = any(row.refused for row in rows)
    columns = ("way", "cost", "saves, 95 %", "lost", "right", "calls", "kept", *["refused"] * refused)
    figures = [(*_way(row, full=row.requests == rows[0].requests), *[str(row.refused)] * refused) for row in rows]
    title = "cost: a share of the reference's; kept: different answers; refused: splits in which nothing was proven"
    return Table(title if refused else title.partition("; refused")[0], columns, tuple(figures))


def _way(row: Row, *, full: bool) -> tuple[str, ...]:
    name = row.name if full else f"{row.name} (on {row.requests:.0f})"
    return (
        name,
        _share(None if row.cost_share is None else row.cost_share.mean),
        _between(row.saving),
        *(_share(each) for each in (row.risk, row.right)),
        *(f"{each:.2f}" for each in (row.length, row.size)),
    )


def _between(found: Interval | None) -> str:
    if found is None or found.low is None or found.high is None:
        return "–"
    return f"{100 * found.low:.1f} to {100 * found.high:.1f} %".replace("-", "−")


def _why_table(found: Study) -> Table:
    why = found.why
    right = [(f"{why.first} is right", why.first_right), ("the reference is right", why.reference_right)]
    shares = [*right, ("the first answer is the reference's", why.agree)]
    rows = [(name, _percent(value)) for name, value in shares if value is not None]
    rows.append(("signal of doubt", why.signal or "none"))
    if why.auroc is not None:
        rows.append((f"{why.signal} tells right from wrong (AUROC; 0.5 is chance)", f"{why.auroc:.3f}"))
    if why.auroc is not None and why.auroc > TOO_GOOD:
        rows.append(("… which is too good: is it a grade that no call brings?", ""))
    if why.asked_again is not None:
        rows.append((f"{why.first} costs, of the reference", _percent(why.asked_again)))
    if found.bound is not None:
        rows.append(("no policy on these calls can save more than", _percent(1 - found.bound)))
    for name, many in (("something cheaper", why.proves), ("half of what the signal could save", why.saves_half)):
        rows.append((f"requests that prove {name}, about", "–" if many is None else f"{many:,}"))
    return Table("Why", ("", "figure"), tuple(rows))


def study_document(found: Study) -> dict[str, Any]:
    """Return a study's figures as plain JSON values; costs are shares of the reference's."""
    return {
        "log": found.log,
        "promise": _promise(found.promise),
        "verdict": found.verdict,
        "requests": found.requests,
        "groups": found.groups,
        "repeated": found.repeated,
        "left_out": found.left_out,
        "fitted_on": found.fitted_on,
        "tested_on": found.tested_on,
        "splits": found.splits,
        "seed": found.seed,
        "bound": found.bound,
        "why": {**found.why._asdict(), "differ": list(found.why.differ)},
        "ways": [
            {
                "name": row.name,
                "cost_share": _interval(row.cost_share),
                "saving": _interval(row.saving),
                "right_gap": _interval(row.right_gap),
                "broken": row.broken,
                "refused": row.refused,
                **{name: _known(getattr(row, name)) for name in ("risk", "right", "silent", "requests")},
                "calls": _known(row.length),
                "answers": _known(row.size),
            }
            for row in found.rows
        ],
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    return None if found is None else {**found._asdict(), "more_than_chance": found.sure}


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _share(value: float | None) -> str:
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"
