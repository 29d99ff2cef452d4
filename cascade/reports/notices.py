"""Notices about a log: what "right" means in it, what counts as one request, and which calls it lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from cascade.conformal.certificate import Certificate
from cascade.conformal.scope import LENGTHS, UNRECORDED, UNSAID, RequestKind, unlike
from cascade.episodes.rows import Dataset
from cascade.identity import identity
from cascade.money import exact_dollars
from cascade.policies.policy import Policy
from cascade.policies.signals import OF_OFFERS, about_live, not_live
from cascade.text import counted
from cascade.types import LAST_ONLY

GUIDE = "the guide"
_LEAST_JUDGED = 20
_OF_ROUNDS = frozenset({"base", "guide"})
"""The roles of the models in rounds of base and guide."""


def about_requests(datasets: Sequence[Dataset], *, reference: bool = False) -> list[str]:
    """Return notices of requests that count as one, of missing calls, and with `reference` of the reference."""
    unsaid = [UNRECORDED] if any(UNSAID in data.log.kinds for data in datasets) else []
    foreign = not_live(name for data in datasets for name in data.log.signals)
    unsaid += [f"{about_live(foreign)}: a policy that reads such a signal is for studies"] if foreign else []
    blank = sum(data.log.ids.count(identity("")) for data in datasets)
    advice = "so they count as one question: fill it in, or leave it null and give each question an episode_id"
    once = [f"the column question is empty in {blank:,} episodes, {advice}"] * (blank > 1)
    notices = [*once, *(notice for data in datasets for notice in _about_calls(data)), *unsaid]
    compared = _about_reference(datasets[0]) if reference and datasets else ()
    return [f"{notice[0].upper()}{notice[1:]}" for notice in (*notices, *compared)]


def about_data_sets(datasets: Sequence[Dataset]) -> list[str]:
    """Return a notice of the data sets that are used as one, if there are several."""
    listed = ", ".join(f"{data.log.name} ({data.log.n})" for data in datasets)
    notice = f"{len(datasets)} data sets are used as one: {listed}; --where dataset=NAME chooses one"
    return [notice] if len(datasets) > 1 else []


def about_truth(data: Dataset, *, unjudged: bool = False) -> str:
    """Return the notice for a log without labels: it can only get a promise of agreement.

    Answers are not judged by a default matcher: if it is too strict, it finds both models wrong, and a promise of
    regret then holds but means nothing.
    """
    truth = data.facts.truth
    assert truth is not None  # noqa: S101 - such a log is compared with its reference
    has = "has accepted answers (gold), and" if unjudged else "does not say which answers are right, so"
    matcher = " no matcher was named to judge by them (--matcher exact, label, json, …), so" if unjudged else ""
    return (
        f"The log {data.log.name} {has}{matcher} the promise offered is agreement with {truth.reference}: that the "
        f"answer served is the same as what {truth.reference} gives, by the comparator {truth.comparator}. No label is "
        f"needed.{''.join(f' {caution}' for caution in truth.cautions)}"
    )


def _about_calls(data: Dataset) -> Iterator[str]:
    """Yield notes on nodes with missing calls, on nodes that are never right, and on a log that lacks `parents`."""
    log, facts = data.log, data.facts
    later = np.logical_or.accumulate(log.bought[:, ::-1], axis=1)[:, ::-1]
    lacking = np.count_nonzero(later & ~log.bought, axis=0).tolist()
    same = "right" if facts.truth is None else f"the same as that of {facts.truth.reference}"
    for node, missing, right in zip(log.nodes, lacking, log.right.T, strict=True):
        if missing:
            yield (
                f"{missing:,} of {log.n:,} questions have no logged call of {node.name}: if a policy asks {node.name} "
                "on such a question, the question counts against the promise. Log every model's answer, or leave these "
                "questions out"
            )
        if np.count_nonzero(~np.isnan(right)) >= _LEAST_JUDGED and not np.nansum(right):
            yield (
                f"no answer of {node.name} is {same}, so a promise may mean nothing: check that the answers hold only "
                "what was said, and that the labels, or --matcher, fit them"
            )
    callers = [caller for caller in facts.callers if caller is not None]
    if facts.parents is not None or len(facts.sources) > 1 or any(caller.role in _OF_ROUNDS for caller in callers):
        return
    models = [caller.model for caller in callers]
    recorded = {name for name, values in log.signals.items() if not np.isnan(values).all()}
    if models and log.width > 1 and (len({*models}) < len(models) or recorded & OF_OFFERS):
        yield (
            f"the log {log.name} does not say what its calls read (column parents): the steps "
            f"{', '.join(node.name for node in log.nodes)} were taken for calls that do not read each other, as in a "
            "ladder. If a call reads others, as a judge does, write the numbers of their steps into parents, as in "
            "[1], and [] for a call that reads none"
        )


def reference_of(data: Dataset) -> str:
    """Return the reference's name."""
    log, facts = data.log, data.facts
    if facts.truth is not None:
        return facts.truth.reference
    if facts.step_models and log.reference is not None and log.reference.is_last:
        return facts.step_models[-1] or GUIDE
    names = facts.models.get("guide", ())
    return names[0] if len(names) == 1 else GUIDE


def _about_reference(data: Dataset) -> Iterator[str]:
    """Yield a notice of which model is the reference of savings and of a promise of regret."""
    log, facts = data.log, data.facts
    if log.reference is None:
        return
    name, is_last = reference_of(data), facts.reference == LAST_ONLY
    description = "the last model" if is_last else f"the guide, asked alone (the walk {facts.reference!r} of the log)"
    answered = description if name == GUIDE else f"{name}, {description}"
    yield f"the reference, which answers and costs are compared with, is {answered}"


def outside(data: Dataset, certificates: Mapping[str, Certificate]) -> Iterator[str]:
    """Yield a sentence on how many requests of a log no certificate covers, and on their cost, if there are any.

    Their segment has no certificate, or none of the requests that certify is of their kind.
    """
    log, first = data.log, next(iter(certificates.values()), None)
    if first is None:
        return

    kinds = {id(kind): kind for kind in log.kinds}  # equal kinds are one object

    def is_outside(kind: RequestKind | None, segment: str) -> bool:
        certificate = certificates.get(segment) if first.covers == "segment" else first
        return certificate is None or (kind is not None and any(unlike(kind, certificate.made_for.get("requests"))))

    pairs = [*zip(map(id, log.kinds), log.segments, strict=True)]
    away = {(kind, segment) for kind, segment in {*pairs} if is_outside(kinds[kind], segment or "")}
    rows = [row for row, pair in enumerate(pairs) if pair in away]
    costs = np.empty(0) if log.reference is None else log.reference.cost_nano_usd[rows]
    recorded = costs[costs >= 0]
    cost = exact_dollars(round(float(recorded.mean()) * len(rows))) if recorded.size else "an unknown amount"
    share = f"{100 * len(rows) / log.n:.1f} % of the log"
    requests = f"{counted(len(rows), 'question')} ({share}) lie outside the certificate"
    if rows:
        yield f"{requests}: the guide answers such requests, at a cost of {cost} for these"


def about_columns(policy: Policy, certificates: Mapping[str, Certificate]) -> Iterator[str]:
    """Yield a notice of the signals that an answer needs for a certificate if a policy does not say what it reads."""
    steps = [step for each in certificates.values() for step in each.made_for.get("shown") or ()]
    always = {
        name
        for step in steps
        for kind in step.values()
        for name in kind["signals"]
        if kind["signals"][name] == kind["of"]
    }
    names = sorted(always.difference(policy.reads, LENGTHS))
    if names and policy.columns is None:
        line = ", ".join(f'"{name}"' for name in policy.reads or names)
        yield (
            f"The policy {policy.kind} does not say what it reads, so an answer is certified only with all that every "
            f"logged request has: {', '.join(names)}. Where a server does not give these, name in the class those that "
            f"it reads: columns = frozenset({{{line}}})"
        )
