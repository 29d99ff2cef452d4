"""The report of a study: what `fit` would save on a log, beside every other way to answer, and why."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from cascade.episodes.reading import Reading
from cascade.identity import identity
from cascade.logs.schema import GUIDE_ONLY, LAST_ONLY
from cascade.policies.simple import LENGTH
from cascade.reports.report import Report, Table, promise_document, promise_line, share, tenths
from cascade.studies.study import SERVED, Interval, Row, Study
from cascade.text import percent

_SHOWN = 34
"""Characters of a text in a table."""
_Placed: TypeAlias = tuple[tuple[bool, int], str]
"""An answer, and where it was given: whether in a recorded walk, and the step."""
TOO_GOOD = 0.99
"""An AUROC above it is doubted: no number that a call brings is so good on real requests."""


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
    return Report((*lines, next_line), tuple(tables), study_document(found), found.log)


def _study_saving(found: Study, row: Row) -> str:
    if found.verdict == "refused":
        return f"Saves: nothing is shown, since nothing is proven in {row.refused} of {found.splits} splits."
    if row.saving is None:
        return "Saves: unknown, because the log lacks costs."
    if set(row.curve) == {1.0}:
        return "Saves: nothing is proven to cost less than the reference, so the reference alone is asked."
    mean, low, high = row.saving
    if low is None or high is None:
        return f"Saves: {tenths(mean)} of the reference's cost, on too few groups or splits for an interval."
    sure = f"95 % interval: {tenths(low)} to {tenths(high)}"
    if not row.saving.sure:
        return f"Saves: nothing is shown ({sure} of the reference's cost)."
    return f"Saves: {tenths(mean)} of the reference's cost ({sure})."


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
        f"Lost: {tenths(row.risk)} of the test requests on average; more than {most} in {row.broken} of {tried} "
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
        price = "" if why.asked_again is None else f", for {tenths(why.asked_again)} of the reference's cost"
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
        share(None if row.cost_share is None else row.cost_share.mean),
        _ends(row.saving),
        *(share(each) for each in (row.risk, row.right)),
        *(f"{each:.2f}" for each in (row.length, row.size)),
    )


def _ends(found: Interval | None) -> str:
    if found is None or found.low is None or found.high is None:
        return "–"
    return f"{100 * found.low:.1f} to {100 * found.high:.1f} %".replace("-", "−")


def _why_table(found: Study) -> Table:
    why = found.why
    right = [(f"{why.first} is right", why.first_right), ("the reference is right", why.reference_right)]
    shares = [*right, ("the first answer is the reference's", why.agree)]
    rows = [(name, tenths(value)) for name, value in shares if value is not None]
    rows.append(("signal of doubt", why.signal or "none"))
    if why.auroc is not None:
        rows.append((f"{why.signal} tells right from wrong (AUROC; 0.5 is chance)", f"{why.auroc:.3f}"))
    if why.auroc is not None and why.auroc > TOO_GOOD:
        rows.append(("… which is too good: is it a grade that no call brings?", ""))
    if why.asked_again is not None:
        rows.append((f"{why.first} costs, of the reference", tenths(why.asked_again)))
    if found.bound is not None:
        rows.append(("no policy on these calls can save more than", tenths(1 - found.bound)))
    for name, many in (("something cheaper", why.proves), ("half of what the signal could save", why.saves_half)):
        rows.append((f"requests that prove {name}, about", "–" if many is None else f"{many:,}"))
    return Table("Why", ("", "figure"), tuple(rows))


def study_document(found: Study) -> dict[str, Any]:
    """Return a study's figures as plain JSON values; costs are shares of the reference's."""
    return {
        "log": found.log,
        "promise": promise_document(found.promise),
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


# --- requests on which answers differ ---


def answers_of(log: Reading, requests: Sequence[str]) -> tuple[tuple[str, str, str], ...]:
    """Return requests with their first answer and the reference's; of rounds the base's and the guide's at once."""
    questions, answers = dict[str, str](), {request: list[_Placed]() for request in requests}
    for row in log.rows() if requests else ():
        request = row["episode_id"] if row["question"] is None else identity(row["question"], row["context"])
        if request in answers and row["answer"] is not None and row["walk"] in {None, GUIDE_ONLY, LAST_ONLY}:
            questions[request] = row["question"] or request
            answers[request].append(((row["walk"] is not None, row["step"]), row["answer"]))
    listed = list[tuple[str, str, str]]()
    for request, texts in answers.items():
        if len(texts) > 1:
            at_once = [text for place, text in texts if place == (False, 1)]
            last = at_once[1] if len(at_once) > 1 else max(texts, key=_step)[1]
            first, other = _differing(min(texts, key=_step)[1], last)
            listed.append((_short(questions[request]), _short(first), _short(other)))
    return tuple(listed)


def _step(answer: _Placed) -> tuple[bool, int]:
    return answer[0]


def _differing(first: str, second: str) -> tuple[str, str]:
    """Return two answers; of two JSON objects the fields that differ.

    >>> _differing('{"team": "a", "id": 1}', '{"team": "b", "id": 1}')
    ('team: a', 'team: b')
    """
    try:
        objects = json.loads(first), json.loads(second)
    except ValueError:
        return first, second
    if not all(isinstance(each, dict) for each in objects):
        return first, second
    names = [name for name in {**objects[0], **objects[1]} if objects[0].get(name) != objects[1].get(name)]
    left, right = (", ".join(f"{name}: {each.get(name)}" for name in names) for each in objects)
    return left, right


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[: _SHOWN - 1]}…"
