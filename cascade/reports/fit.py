"""The report of a fit: what is promised, what it saves and how sure that is, on how many requests, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from cascade.episodes.opening import DEMO_LADDER, DEMO_REQUESTS
from cascade.fitting.attempts import FIRST
from cascade.fitting.fit import AUTO, OWN, Fit
from cascade.policies.signals import about_live, not_live
from cascade.reports.report import Report, Table, loss_line, promise_document, promise_line, share, tenths
from cascade.text import counted, percent


def fit_report(done: Fit, output: str | None = None) -> Report:
    """Return the report of a fit; `output` is the policy directory that was written, if any."""
    head = promise_line(done.promise), _saving_line(done), _requests_line(done)
    return Report((*head, *_notes(done), _next(done, output)), tuple(_fit_tables(done)), fit_document(done))


def _saving_line(done: Fit) -> str:
    cost, interval = done.saving.cost_share, done.saving.interval
    if cost is None:
        return "Saves: unknown, because no request has all its costs on record, or the reference costs 0."
    if not done.certified or done.default not in {"", *done.certified}:
        return "Saves: nothing is proven to cost less than the reference, so only the reference is asked."
    amount = f"Saves: {tenths(1 - cost)} of the reference's cost" if cost < 1 else f"Costs: {cost:.2f} × the reference"
    if interval is None:
        return f"{amount}, on too few groups for an interval."
    low, high = interval
    return f"{amount} (90 % interval of what is saved: {tenths(1 - high)} to {tenths(1 - low)})."


def _requests_line(done: Fit) -> str:
    unit = "requests" if done.requests == done.log.n else f"groups, one request of each of {done.requests:,}"
    proven = [certified.n for certified in done.certified.values()] if done.settings.by_segment else []
    sentence = f"{'Proven' if done.certified else 'Tried'} on {sum(proven) or done.log.n:,} {unit}"
    for learned, purpose in ((done.fitted, "taught the policy"), (done.chose, "ordered the thresholds")):
        sentence += f"; {counted(len(learned), 'other request')} {purpose}" if learned else ""
    if done.attempt.number is None:
        return f"{sentence}; how often they were used before is unknown: {done.attempt.why}."
    sentence = f"{sentence}: fit {done.attempt.number} on these"
    first = FIRST * (done.promise.delta or 0)
    if done.attempt.level is None or done.attempt.level == first:
        return f"{sentence}."
    return f"{sentence}, tested at {done.attempt.level:.2g}; a first fit of new requests is tested at {first:.2g}."


def _notes(done: Fit) -> Iterator[str]:
    """Yield what a reader must know about levels and segments, and what weakens the promise."""
    risks, by_segment, points = done.settings.risks, done.settings.by_segment, done.certified.values()
    if risks:
        listed = ", ".join(f"{name} {percent(risk)}" for name, risk in risks.items())
        yield f"Levels by risk: {listed}; a request that names none is served at {done.default}."
    if by_segment and points:
        shares = [float(proven.losses) / proven.n for proven in points]
        of_all = sum(float(proven.losses) for proven in points) / done.log.n
        lost = loss_line(done.promise, of_all, "all requests that prove it")
        yield f"{lost}, {tenths(sum(shares) / len(shares))} in a mean segment, {tenths(max(shares))} in the worst."
    unproven = ", ".join(name for name in risks if name not in done.certified)
    unpriced = done.requests - done.saving.requests if done.saving.requests else 0
    chosen = (done.attempt.number or 1) > 1 and done.promise.confidence is None
    grouped, several = done.requests > done.log.n, by_segment and len(points) > 1
    here = (
        "" if done.lost is None else f" {loss_line(done.promise, done.lost, f'all {done.requests:,} requests here')}."
    )
    few = ", ".join(f"{name} ({repeated})" for name, repeated in done.too_small.items())
    notes: dict[str, object] = {
        f"nothing is proven at {unproven}; one policy serves all levels, and is chosen for {done.default}.": unproven,
        f"the promise is about a random request of a random group, not a random request.{here}": grouped,
        f"{counted(done.repeated, 'repeated request')}, but for case and punctuation, counted once: the promise is "
        "about distinct requests.": done.repeated,
        f"{counted(done.unknown, 'request')} without the reference's answer are left out: the promise does not cover "
        "such requests.": done.unknown,
        f"{counted(unpriced, 'request')} that lack a cost are left out of the savings, not of the promise.": unpriced,
        "a promise on average is not corrected for the choice among several fits; promise a confidence.": chosen,
        "each certificate by itself holds with that confidence; that all of them hold is less certain.": several,
        f"nothing is proven for these segments, whose requests the guide answers: {few}.": few,
    }
    yield from (f"Note: {text}" for text, so in notes.items() if so)


def _next(done: Fit, output: str | None) -> str:
    if ":" in done.promise.kind or done.policy.kind not in OWN.names:
        sort, name = ("promise", done.promise.kind) if ":" in done.promise.kind else ("policy", done.policy.kind)
        return (
            f"Next: bring the {sort} {name} in a package (docs/write-a-{sort}.md), as a policy directory imports no "
            "code that it names, and fit by its name on new requests: further fits of these have a smaller level."
        )
    if done.certified and (foreign := not_live(done.policy.reads)):
        other = "with --policy threshold" if done.settings.policy == AUTO else "without --policy"
        return (
            f"Next: {about_live(foreign)}: serve this policy under a strategy of your own that does "
            f"(docs/write-a-strategy.md), or log one of those, and fit again {other}."
        )
    if done.certified and (done.saves or done.saving.cost_share is None):
        if not output:
            return "Next: write it with -o DIRECTORY."
        models = " and ".join(dict.fromkeys(node.model or node.name for node in done.log.nodes))
        local = " (cascade init --local)" if done.log.name in {DEMO_LADDER, DEMO_REQUESTS} else ""
        return f"Next: set policy: {output} in a cascade.yaml with {models}{local}."
    least = math.ceil(math.log(done.attempt.level) / math.log1p(-done.promise.tested_risk)) if done.attempt.level else 0
    if done.log.n < least:
        proof = f"{least:,} prove a risk of {percent(done.promise.risk)} if nothing is lost"
        return f"Next: log more requests: {proof}, and this log has {done.log.n:,}."
    return "Next: log more requests, or a signal of doubt (log-probs, a judge), or allow a higher risk."


def _fit_tables(done: Fit) -> Iterator[Table]:
    rows = list[tuple[str, ...]]()
    for tested in done.tested:
        lost = "–" if tested.certified is None else f"{float(tested.certified.losses):g}"
        figures = f"{tested.level:.3g}", f"{tested.n:,}", lost, share(tested.cost)
        rows.append((tested.name, *figures, "yes" if tested.policy == done.policy and done.certified else ""))
    yield Table("What was tested", ("policy", "level", "requests", "lost", "cost / reference", "served"), tuple(rows))
    if done.settings.by_segment or done.default:
        listed = [
            (name, f"{proven.n:,}", f"{float(proven.losses):g}", f"{proven.kappa:.4g}", share(done.cost_shares[name]))
            for name, proven in done.certified.items()
        ]
        yield Table("Certificates", ("name", "requests", "lost", "threshold", "cost / reference"), tuple(listed))


def fit_document(done: Fit) -> dict[str, Any]:
    """Return a fit's figures as plain JSON values."""
    return {
        "promise": promise_document(done.promise),
        "policy": done.policy.kind,
        "not_live": not_live(done.policy.reads),
        "saves": done.saves,
        "cost_share": done.saving.cost_share,
        "cost_share_interval": list(done.saving.interval or (None, None)),
        "requests": done.log.n,
        "learned_from": done.learned_from,
        "repeated": done.repeated,
        "left_out": done.unknown,
        "attempt": done.attempt.number,
        "level": done.attempt.level,
        "default": done.default or None,
        "certificates": {
            name: {"kappa": str(proven.kappa), "n": proven.n, "losses": float(proven.losses)}
            for name, proven in done.certified.items()
        },
        "too_small": dict(done.too_small),
        "tested": [
            {"name": member.name, "level": member.level, "requests": member.n, "cost_share": member.cost}
            for member in done.tested
        ],
    }
