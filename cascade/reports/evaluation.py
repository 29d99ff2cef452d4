"""One policy on a log: what it costs, loses and serves, beside the reference alone and the first model alone.

And its certificates on audits: requests that were run to their last step, so that the loss of what was served is known.
Each certificate has a betting test of its own, which may be read after every audit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.certificate import Certificate
from cascade.conformal.monitor import Monitor
from cascade.conformal.promise import Promise
from cascade.episodes.reading import AUDIT
from cascade.errors import UsageError
from cascade.fitting.divide import drawn, unseen, usable
from cascade.fitting.fit import LEAST_GROUPS
from cascade.logs.values import instant
from cascade.policies.directory import PolicyDirectory, Requests
from cascade.policies.live import STRICTEST
from cascade.policies.policy import Depth, Policy, ReferenceOnly, drawn_number
from cascade.reports.report import Report, Table, promise_line
from cascade.studies.methods import Played, Served
from cascade.table import Bools, Floats, Log
from cascade.text import counted

REPLICATES = 1_000
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_FIGURES = {"cost_usd": "cost, USD per 1,000", "cost_share": "cost / reference", "loss": "lost", "right": "right"}
_FIGURES |= {"length": "calls", "size": "kept"}


def served(read: PolicyDirectory, log: Log) -> dict[str, Served]:
    """Return how a directory serves requests, by level; without levels under the name "policy".

    Raises:
        UsageError: the log is of another plan.
    """
    read.refuse_other_plan(log)
    certificates = read.certificates
    if any(certificate.covers == "level" for certificate in certificates.values()):
        at_once = read.promise is not None and read.promise.rules.reference_keeps_it  # as in service
        return {
            f"level {name}": Served(ReferenceOnly() if at_once and kappa == STRICTEST else read.policy, kappa)
            for name, kappa in ((name, certificate.kappa) for name, certificate in certificates.items())
        }
    kappas = {name: certificate.kappa for name, certificate in certificates.items() if certificate.covers == "segment"}
    return {"policy": Served(read.policy, certificates[""].kappa if "" in certificates else STRICTEST, kappas)}


def evaluation(log: Log, promise: Promise, methods: Mapping[str, Served], requests: Requests, seed: int = 0) -> Report:
    """Play methods on a log, at fixed thresholds.

    Intervals are 95 % percentiles of a bootstrap over the groups, the same draws for all methods: how means would vary
    with other requests of the same kind. There is none with fewer than `LEAST_GROUPS` groups. Repeated requests count
    once, and requests do not count if the log lacks a call that is made for them.

    Args:
        log: the log.
        promise: decides which requests are lost.
        methods: by name; the first is the policy that is evaluated.
        requests: those that made and proved the policy, which does better on them than on others.
        seed: the seed of the bootstrap.

    Raises:
        UsageError: the log lacks a signal that a policy reads, or every request lacks a call that it makes.
    """
    for method in methods.values():
        method.policy.refuse_lacking(log)
    distinct = usable(log, promise).log
    lengths = np.stack([method.play(distinct, promise).length for method in methods.values()])
    logged: Bools = np.asarray(np.isfinite(lengths).all(axis=0), dtype=np.bool_)
    if not logged.any():
        raise UsageError(f"{log.name} lacks a call that the policy makes on every request: log each model's answer.")
    test = distinct.take(logged)
    baselines = {} if test.reference is None else {"reference alone": Served(ReferenceOnly())}
    if np.count_nonzero(test.steps == test.steps[0]) == 1:
        baselines[f"{test.nodes[0].name} alone"] = Served(Depth((0,)))
    played = {name: method.play(test, promise) for name, method in {**methods, **baselines}.items()}
    figures = _figures(played, test.groups, seed)
    first, size, groups = next(iter(figures.values())), test.n, len(set(test.groups))
    fresh = unseen(test, requests.fitted, requests.chose, requests.certified)
    method = next(iter(methods.values()))
    lost, served_at = method.play(fresh, promise).loss, test.take(method.covers(test))
    seen = served_at.n - unseen(served_at, requests.fitted, requests.chose, requests.certified).n
    fresh_lost = float(np.nanmean(lost)) if (~np.isnan(lost)).any() else None
    hand = f"Nothing is certified. A request is lost where {promise.rules.lost_when}."
    lines = [promise_line(promise) if requests.certified else hand]
    names = _FIGURES | ({"right": "same"} if promise.rules.compares else {})  # as in a study
    names |= {"loss": "mean loss"} if promise.rules.graded else {}
    whose = f"{counted(size, 'request')} of {counted(groups, 'group')}"
    lines.append(f"Replayed on {whose}: {names['loss']} {_cell('loss', first)}.")
    notes = {f"fewer than {LEAST_GROUPS} groups are too few for an interval": groups < LEAST_GROUPS}
    notes[f"for {distinct.n - size:,} more requests the log lacks a call that the policy makes"] = distinct.n > size
    loses = "" if fresh_lost is None else f"; it loses {fresh_lost:.3f} of the {fresh.n:,} others"
    notes[f"{seen:,} requests were used to fit or certify the policy, and flatter it{loses}"] = seen > 0
    lines += [f"Note: {text}." for text, so in notes.items() if so]
    rows = [(text, *(_cell(key, shares) for shares in figures.values())) for key, text in names.items()]
    document = {"log": log.name, "promise": asdict(promise), "requests": size, "groups": groups, "figures": figures}
    document |= {"lacking": distinct.n - size, "seen": seen, "fresh_loss": fresh_lost}
    table = Table("Means, 95 % intervals", ("", *figures), tuple(rows))
    return Report(tuple(lines), (table,), document, log.name)


def _ratios(played: Played, alone: Played | None) -> dict[str, tuple[Floats, Floats]]:
    """Return each figure by name: its mean is the sum of the first column divided by that of the second."""
    columns = played._asdict() | {"cost_usd": played.cost / 1e9}
    ratios = {
        name: (np.nan_to_num(columns[name]), 1.0 - np.isnan(columns[name])) for name in _FIGURES if name in columns
    }
    priced = (
        np.zeros(played.cost.size, dtype=np.bool_) if alone is None else ~np.isnan(played.cost) & ~np.isnan(alone.cost)
    )
    costs = [np.where(priced, method.cost, 0.0) for method in (played, played if alone is None else alone)]
    return ratios | {"cost_share": (costs[0], costs[1])}


def _figures(
    methods: Mapping[str, Played], groups: tuple[str, ...], seed: int
) -> dict[str, dict[str, tuple[float | None, float | None, float | None]]]:
    """Return mean, low and high by method and figure, None where unknown: percentiles of a bootstrap over groups."""
    sums = {name: _ratios(played, methods.get("reference alone")) for name, played in methods.items()}
    columns = np.stack([column for values in sums.values() for pair in values.values() for column in pair], axis=1)
    member = np.unique(np.array(groups), return_inverse=True)[1]
    size, chance = int(member.max()) + 1, np.random.default_rng(seed % 2**63)
    total = np.zeros((size, columns.shape[1]))
    np.add.at(total, member, columns)
    draws = [np.bincount(chance.integers(0, size, size), minlength=size) @ total for _ in range(REPLICATES)]
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.array([total.sum(axis=0), *draws])[:, ::2] / np.array([total.sum(axis=0), *draws])[:, 1::2]
    ends = np.full((2, values.shape[1]), np.nan)
    if size >= LEAST_GROUPS:
        ends = np.percentile(values[1:], [2.5, 97.5], axis=0)
        ends[:, ends[0] == ends[1]] = np.nan  # a figure without variation in these requests says nothing about others
    cells = iter([[x if np.isfinite(x) else None for x in row] for row in np.vstack([values[:1], ends]).T.tolist()])
    return {method: {name: (*next(cells),) for name in ratios} for method, ratios in sums.items()}  # type: ignore[misc]  # of three


def _cell(name: str, figures: Mapping[str, tuple[float | None, float | None, float | None]]) -> str:
    (mean, low, high), by = figures[name], 1_000 if name == "cost_usd" else 1
    between = "" if low is None or high is None else f" ({by * low:.3f} to {by * high:.3f})"
    return "–" if mean is None else f"{by * mean:.3f}{between}"


# --- audits ---


class Audits(NamedTuple):
    """The rows of a log's audits, in the order they were asked; how many have no date, and how many are no audits.

    If no row is marked as an audit, all requests are (`others` is None). Those without a date come first.
    """

    rows: list[Mapping[str, Any]]
    undated: int
    others: int | None


def audits_of(rows: Iterable[Mapping[str, Any]]) -> Audits:
    """Return the audits of a log, as one data set."""
    requests = dict[tuple[str, str], list[Mapping[str, Any]]]()
    for row in rows:
        requests.setdefault((row["dataset"] or "log", row["episode_id"]), []).append(row)
    marked = [audit_rows for audit_rows in requests.values() if any(row["split"] == AUDIT for row in audit_rows)]
    audits = marked or list(requests.values())
    dates = [
        min(filter(None, (instant(row["created_at"] or "") for row in audit_rows)), default=None)
        for audit_rows in audits
    ]
    order = sorted(range(len(audits)), key=lambda at: dates[at] or _LONG_AGO)
    in_order: list[Mapping[str, Any]] = [
        {**row, "dataset": "audits", "episode_id": f"{row['dataset']} {row['episode_id']}"}
        for at in order
        for row in audits[at]
    ]
    return Audits(in_order, sum(date is None for date in dates), len(requests) - len(audits) if marked else None)


def watch(read: PolicyDirectory, log: Log, audits: Audits, level: float = 0.05) -> Report:
    """Weigh audits, in the order of the log, as evidence that the certificates of a policy no longer hold.

    Of each group one audit counts: of marked ones the first, as in service, else one drawn at random. An audit of a
    segment without a certificate does not count. If the log lacks a call, its loss is unknown: no count.

    Guarantee: while audits are independent draws like the requests that certified, one of these is ever alarmed, also
    while a log of marked audits grows, with probability `level` + δ at most (on average: + `monitor.UNLUCKY`).

    Raises:
        UsageError: the log lacks what the promise or the policy needs.
    """
    assert read.promise is not None  # noqa: S101 - it has certificates
    read.refuse_other_plan(log)
    read.policy.refuse_lacking(log)
    certificates = read.certificates.values()
    by_segment = any(certificate.covers == "segment" for certificate in certificates)
    counted = drawn(usable(log, read.promise).log, 0 if audits.others is None else None, by_segment=by_segment)
    rows = [_watched(read.policy, certificate, counted, level / len(certificates)) for certificate in certificates]
    alarmed = sum(row["alarm_after"] is not None for row in rows)
    used = log.n - unseen(log, read.requests.fitted, read.requests.chose, read.requests.certified).n
    lines = [f"Audits: {f'{alarmed} of {len(rows)} certificates no longer hold' if alarmed else 'no alarm'}."]
    notes = {"are no audits, and left out": audits.others, "have no date, and count first": audits.undated}
    notes["were used to fit or certify the policy, and support it even if the traffic has changed"] = used
    lines += [f"Note: {number:,} requests {text}." for text, number in notes.items() if number]
    texts = [
        tuple(["–" if raw is None else f"{raw:.3g}" if isinstance(raw, float) else str(raw) for raw in row.values()])
        for row in rows
    ]
    table = Table("Certificates", tuple([name.replace("_", " ") for name in rows[0]]), tuple(texts))
    document = {"alarmed": alarmed > 0, "not_audited": audits.others or 0, "undated": audits.undated, "seen": used}
    return Report(tuple(lines), (table,), document | {"certificates": rows})


def _watched(policy: Policy, certificate: Certificate, log: Log, level: float) -> dict[str, Any]:
    """Return the evidence against one certificate."""
    promise = certificate.promise
    audited = log.take(np.array([certificate.segment in {None, segment} for segment in log.segments], dtype=np.bool_))
    loss, ended = Served(policy, certificate.kappa).play(audited, promise).loss, audited.complete
    loss = np.where(ended, loss, np.nan) if promise.rules.reads_all else loss
    risk = promise.risk if log.drawn is None else promise.tested_risk
    monitor = Monitor.start(risk=risk, n=certificate.n, k=promise.rank(certificate.n), level=level)
    for row in np.flatnonzero(~np.isnan(loss)).tolist():  # a part of a loss counts as one with that probability
        monitor = monitor.update(drawn_number(f"audit|{audited.ids[row]}") < loss[row])
    return {
        "certificate": certificate.name or "all", "audits": monitor.audits, "lost": float(np.nansum(loss)),
        "unknown": int(np.isnan(loss).sum()), "bound": monitor.risk, "evidence": monitor.e_value,
        "alarm_at": 1 / monitor.level, "alarm_after": monitor.alarmed_after,
    }  # fmt: skip
