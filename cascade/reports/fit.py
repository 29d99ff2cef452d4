"""The report of a fit: what is promised, what it saves and how sure that is, on how many requests, what to do next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from cascade.episodes.opening import DEMO_LADDER, DEMO_REQUESTS
from cascade.fitting.attempts import FIRST
from cascade.fitting.certificates import covered
from cascade.fitting.fit import AUTO, OWN, Fit
from cascade.fitting.menu import MemberResult, cost_share
from cascade.policies.signals import about_live, not_live
from cascade.reports.report import Report, Table, promise_document, promise_line, share, tenths
from cascade.text import counted, percent


def of_fit(done: Fit, output: str | None = None) -> Report:
    """Return the report of a fit; `output` is the policy directory that was written, if any."""
    head = promise_line(done.promise), _saving_line(done), _requests_line(done)
    lines = *head, *_levels(done), *_doubts(done), _next(done, output)
    return Report(lines, tuple(_fit_tables(done)), fit_document(done))


def _saving_line(done: Fit) -> str:
    cost, interval = done.saving.cost_share, done.saving.interval
    if cost is None:
        return "Saves: unknown, because no request has all its costs on record, or the reference costs 0."
    if not done.certified or done.default not in {"", *done.certified}:
        return "Saves: nothing is proven to cost less than the reference, so the reference alone is asked."
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
    if done.level is None or done.level == first:
        return f"{sentence}."
    return f"{sentence}, tested at {done.level:.2g}; a first fit of new requests is tested at {first:.2g}."


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
        shares = [float(proven.losses) / proven.n for proven in done.certified.values()]
        of_all = sum(float(proven.losses) for proven in done.certified.values()) / done.log.n
        yield (
            f"Lost on the requests that prove it: {tenths(sum(shares) / len(shares))} in a mean segment, "
            f"{tenths(max(shares))} in the worst, {tenths(of_all)} of all requests."
        )
    if done.requests > done.log.n:
        share = "" if done.lost is None else f" Of all {done.requests:,} requests here {tenths(done.lost)} are lost."
        yield f"Note: the promise speaks of a random request of a random group, not of a random request.{share}"
    if done.repeated:
        repeated = counted(done.repeated, "repeated request")
        yield f"Note: {repeated}, but for case and punctuation, counted once: the promise speaks of distinct requests."
    if done.unknown:
        yield (
            f"Note: {counted(done.unknown, 'request')} without the reference's answer are left out: the promise does "
            "not speak of such requests."
        )
    if 0 < done.saving.requests < done.requests:
        unpriced = counted(done.requests - done.saving.requests, "request")
        yield f"Note: {unpriced} without all costs are left out of what is saved, not of the promise."
    if (done.attempt.number or 1) > 1 and done.promise.confidence is None:
        yield "Note: a promise on average is not corrected for the choice among several fits; promise a confidence."
    if done.settings.by_segment and len(done.certified) > 1:
        yield "Note: each certificate holds by itself with that confidence; that any of them is broken is likelier."
    if done.too_small:
        listed = ", ".join(f"{name} ({repeated})" for name, repeated in done.too_small.items())
        yield f"Note: nothing is proven for these segments, whose requests the guide answers: {listed}."


def _next(done: Fit, output: str | None) -> str:
    if ":" in done.promise.kind or done.policy.kind not in OWN.names:
        sort, name = ("promise", done.promise.kind) if ":" in done.promise.kind else ("policy", done.policy.kind)
        return (
            f"Next: bring the {sort} {name} in a package (docs/write-a-{sort}.md), since a policy directory imports no "
            "code that it names, and fit by its name on new requests: a further fit of these is tested at less."
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
        local = ": cascade init --local" if done.log.name in {DEMO_LADDER, DEMO_REQUESTS} else ""
        return f"Next: put policy: {output} into a cascade.yaml with {models}{local}."
    least = math.ceil(math.log(done.level) / math.log1p(-done.promise.tested_risk)) if done.level else 0
    if done.log.n < least:
        risk = percent(done.promise.risk)
        return (
            f"Next: log more requests: {least:,} prove a risk of {risk} if none is lost, and here are {done.log.n:,}."
        )
    return "Next: log more requests, or a signal of doubt (log-probs, a judge), or allow a higher risk."


def _fit_tables(done: Fit) -> Iterator[Table]:
    rows = tuple([_tested_row(tested, done) for tested in done.tested])
    yield Table("What was tested", ("policy", "level", "requests", "lost", "cost / reference", "served"), rows)
    if done.settings.by_segment or done.default:
        logs = {name: covered(done.log, "segment", name) for name in done.certified if done.settings.by_segment}
        cost = {name: cost_share(done.policy.walks(log), done.kappa_of(name), log) for name, log in logs.items()}
        listed = [
            (name, f"{proven.n:,}", f"{float(proven.losses):g}", f"{proven.kappa:.4g}", share(cost.get(name)))
            for name, proven in done.certified.items()
        ]
        yield Table("Certificates", ("name", "requests", "lost", "threshold", "cost / reference"), tuple(listed))


def _tested_row(tested: MemberResult, done: Fit) -> tuple[str, ...]:
    return (
        tested.name,
        f"{tested.level:.3g}",
        f"{tested.n:,}",
        "–" if tested.certified is None else f"{float(tested.certified.losses):g}",
        share(tested.cost),
        "yes" if tested.policy == done.policy and done.certified else "",
    )


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
        "level": done.level,
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
