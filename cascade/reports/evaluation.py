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
from cascade.conformal.path import Point
from cascade.conformal.promise import Promise
from cascade.episodes.reading import AUDIT
from cascade.errors import UsageError
from cascade.fitting.divide import drawn, unseen, usable
from cascade.logs.rowcheck import instant
from cascade.policies.directory import PolicyDirectory, Requests
from cascade.policies.policy import Policy
from cascade.policies.simple import Alone, Depth, drawn_number
from cascade.reports.report import Report, Table, promise_line
from cascade.studies.study import LEAST_GROUPS
from cascade.studies.ways import STRICTEST, Played, play
from cascade.table import Bools, Floats, Log

REPLICATES = 1_000
_LONG_AGO = datetime.min.replace(tzinfo=UTC)
_FIGURES = {"cost_usd": "cost, USD per 1,000", "cost_share": "cost / reference", "loss": "lost", "right": "right"}
_FIGURES |= {"length": "calls", "size": "kept", "silent": "nothing served"}


class Served(NamedTuple):
    """A policy, and how it serves each segment; with no `points` every request is served at `point`."""

    policy: Policy
    point: Point = STRICTEST
    points: Mapping[str, Point] = {}

    def play(self, log: Log, promise: Promise) -> Played:
        """Return what it does on requests; NaN where the log lacks a call that it makes."""
        points = [self.points.get(segment or "", STRICTEST) if self.points else self.point for segment in log.segments]
        did, walked = play(self.policy, points, log, promise), self.policy.walks(log)
        stop = walked.stop(np.array([point.kappa for point in points]))
        known = (stop >= 0) & ~walked.log.open_end[np.arange(log.n), np.maximum(stop, 0)]
        return Played._make(np.where(known, column, np.nan) for column in did)


def served(read: PolicyDirectory, log: Log) -> dict[str, Served]:
    """Return how a directory serves requests, by level; without levels under the name "policy".

    Raises:
        UsageError: the log is of another plan.
    """
    read.refuse_other_plan(log)
    each = read.certificates
    if any(certificate.covers == "level" for certificate in each.values()):
        return {f"level {name}": Served(read.policy, certificate.point) for name, certificate in each.items()}
    points = {name: certificate.point for name, certificate in each.items() if certificate.covers == "segment"}
    return {"policy": Served(read.policy, each[""].point if "" in each else STRICTEST, points)}


def evaluation(log: Log, promise: Promise, ways: Mapping[str, Served], requests: Requests, seed: int = 0) -> Report:
    """Play ways to serve on a log, at fixed thresholds.

    Intervals are 95 % percentiles of a bootstrap over the groups, the same draws for all ways: how the means would vary
    with other requests of the same kind. There is none with fewer than `LEAST_GROUPS` groups. Repeated requests count
    once, and requests of which the log lacks a call that is made do not count.

    Args:
        log: the log.
        promise: what a request is lost by.
        ways: by name; the first is the policy that is evaluated.
        requests: those that made and proved the policy, which does better on them than on others.
        seed: of the bootstrap.

    Raises:
        UsageError: the log lacks a signal that a policy reads, or every request lacks a call that it makes.
    """
    _check_signals(log, *(way.policy for way in ways.values()))
    whole = usable(log, promise).log
    lengths = np.stack([way.play(whole, promise).length for way in ways.values()])
    known: Bools = np.asarray(np.isfinite(lengths).all(axis=0), dtype=np.bool_)
    if not known.any():
        raise UsageError(f"{log.name} lacks a call that the policy makes on every request: log each model's answer.")
    part = whole.take(known)
    beside = {} if part.reference is None else {"reference alone": Served(Alone())}
    if np.count_nonzero(part.steps == part.steps[0]) == 1:
        beside[f"{part.nodes[0].name} alone"] = Served(Depth((0,)))
    did = {name: way.play(part, promise) for name, way in {**ways, **beside}.items()}
    figures = _figures(did, part.groups, seed)
    first, many, groups = next(iter(figures.values())), part.n, len(set(part.groups))
    fresh = unseen(part, requests.fitted, requests.chose, requests.certified)
    lost = next(iter(ways.values())).play(fresh, promise).loss
    fresh_lost = float(np.nanmean(lost)) if (~np.isnan(lost)).any() else None
    hand = f"Nothing is certified. A request is lost where {promise.rules.lost}."
    lines = [promise_line(promise) if requests.certified else hand]
    lines.append(f"Played on {many:,} requests of {groups:,} groups: lost {_shown('loss', first)}.")
    notes = {f"fewer than {LEAST_GROUPS} groups are too few for an interval": groups < LEAST_GROUPS}
    notes[f"of {whole.n - many:,} more requests the log lacks a call that the policy makes"] = whole.n > many
    loses = "" if fresh_lost is None else f"; it loses {fresh_lost:.3f} of the {fresh.n:,} others"
    notes[f"{many - fresh.n:,} requests made or prove the policy, and flatter it{loses}"] = many > fresh.n
    lines += [f"Note: {text}." for text, so in notes.items() if so]
    rows = [(text, *(_shown(key, each) for each in figures.values())) for key, text in _FIGURES.items()]
    document = {"log": log.name, "promise": asdict(promise), "requests": many, "groups": groups, "figures": figures}
    document |= {"lacking": whole.n - many, "seen": many - fresh.n, "fresh_loss": fresh_lost}
    table = Table("Means, 95 % intervals", ("", *figures), tuple(rows))
    return Report(tuple(lines), (table,), document, log.name)


def _check_signals(log: Log, *policies: Policy) -> None:
    there = sorted(name for name, values in log.signals.items() if not np.isnan(values).all())
    lacks = sorted({name for policy in policies for name in policy.reads if name not in there})
    if lacks:
        has = ", ".join(there) or "none"
        raise UsageError(f"The policy reads {', '.join(lacks)}, which {log.name} has not; its signals are {has}.")


def _ratios(did: Played, alone: Played | None) -> dict[str, tuple[Floats, Floats]]:
    """Return each figure by name: its mean is the sum of the first column divided by that of the second."""
    columns = did._asdict() | {"cost_usd": did.cost / 1e9}
    known = {
        name: (np.nan_to_num(columns[name]), 1.0 - np.isnan(columns[name])) for name in _FIGURES if name in columns
    }
    both = np.zeros(did.cost.size, dtype=np.bool_) if alone is None else ~np.isnan(did.cost) & ~np.isnan(alone.cost)
    costs = [np.where(both, each.cost, 0.0) for each in (did, did if alone is None else alone)]
    return known | {"cost_share": (costs[0], costs[1])}


def _figures(
    ways: Mapping[str, Played], groups: tuple[str, ...], seed: int
) -> dict[str, dict[str, tuple[float | None, float | None, float | None]]]:
    """Return mean, low and high by way and figure, None where unknown: percentiles of a bootstrap over the groups."""
    sums = {name: _ratios(did, ways.get("reference alone")) for name, did in ways.items()}
    columns = np.stack([column for each in sums.values() for pair in each.values() for column in pair], axis=1)
    member = np.unique(np.array(groups), return_inverse=True)[1]
    many, chance = int(member.max()) + 1, np.random.default_rng(seed)
    total = np.zeros((many, columns.shape[1]))
    np.add.at(total, member, columns)
    draws = [np.bincount(chance.integers(0, many, many), minlength=many) @ total for _ in range(REPLICATES)]
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.array([total.sum(axis=0), *draws])[:, ::2] / np.array([total.sum(axis=0), *draws])[:, 1::2]
    ends = np.percentile(each[1:], [2.5, 97.5], axis=0) if many >= LEAST_GROUPS else np.full((2, each.shape[1]), np.nan)
    cells = iter([[x if np.isfinite(x) else None for x in row] for row in np.vstack([each[:1], ends]).T.tolist()])
    return {way: {name: (*next(cells),) for name in one} for way, one in sums.items()}  # type: ignore[misc]  # of three


def _shown(name: str, figures: Mapping[str, tuple[float | None, float | None, float | None]]) -> str:
    (mean, low, high), by = figures[name], 1_000 if name == "cost_usd" else 1
    between = "" if low is None or high is None else f" ({by * low:.3f} to {by * high:.3f})"
    return "–" if mean is None else f"{by * mean:.3f}{between}"


# --- audits ---


class Audits(NamedTuple):
    """The rows of a log's audits, in the order they were asked; how many have no date, and how many are no audits.

    If no row is marked as an audit, all requests are audits. One without a date comes first, in the order of the log.
    """

    rows: list[Mapping[str, Any]]
    undated: int
    others: int


def audits_of(rows: Iterable[Mapping[str, Any]]) -> Audits:
    """Return the audits of a log, as one data set."""
    requests = dict[tuple[str, str], list[Mapping[str, Any]]]()
    for row in rows:
        requests.setdefault((row["dataset"] or "log", row["episode_id"]), []).append(row)
    marked = [each for each in requests.values() if any(row["split"] == AUDIT for row in each)]
    audits = marked or list(requests.values())
    dates = [min(filter(None, (instant(row["created_at"] or "") for row in each)), default=None) for each in audits]
    order = sorted(range(len(audits)), key=lambda at: dates[at] or _LONG_AGO)
    in_order: list[Mapping[str, Any]] = [
        {**row, "dataset": "audits", "episode_id": f"{row['dataset']} {row['episode_id']}"}
        for at in order
        for row in audits[at]
    ]
    return Audits(in_order, sum(date is None for date in dates), len(requests) - len(audits))


def watch(read: PolicyDirectory, log: Log, audits: Audits, level: float = 0.05) -> Report:
    """Weigh audits, in the order of the log, as evidence that the certificates of a policy no longer hold.

    Of each group one audit counts. One of a segment without a certificate does not count, nor does one of which the log
    lacks a call: it is unknown whether it is lost.

    Guarantee: while audited requests are independent draws like those that certified, the probability that any
    certificate is ever alarmed is at most `level` + δ (on average: + `conformal.monitor.UNLUCKY`).

    Raises:
        UsageError: the log lacks what the promise or the policy needs.
    """
    assert read.promise is not None  # noqa: S101 - it has certificates
    _check_signals(log, *(way.policy for way in served(read, log).values()))
    each = read.certificates.values()
    counted = drawn(usable(log, read.promise).log, 0, by_segment=any(one.covers == "segment" for one in each))
    rows = [_watched(read.policy, one, counted, level / len(each)) for one in each]
    alarmed = sum(row["alarm_after"] is not None for row in rows)
    seen = log.n - unseen(log, read.requests.fitted, read.requests.chose, read.requests.certified).n
    lines = [f"Audits: {f'{alarmed} of {len(rows)} certificates no longer hold' if alarmed else 'no alarm'}."]
    notes = {"are no audits, and left out": audits.others, "have no date, and count first": audits.undated}
    notes["made or prove the policy, and support it even if the traffic has changed"] = seen
    lines += [f"Note: {many:,} requests {text}." for text, many in notes.items() if many]
    texts = [tuple([f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row.values()]) for row in rows]
    table = Table("Certificates", tuple([name.replace("_", " ") for name in rows[0]]), tuple(texts))
    document = {"alarmed": alarmed > 0, "not_audited": audits.others, "undated": audits.undated, "seen": seen}
    return Report(tuple(lines), (table,), document | {"certificates": rows})


def _watched(policy: Policy, certificate: Certificate, log: Log, level: float) -> dict[str, Any]:
    """Return the evidence against one certificate."""
    promise, rank = certificate.promise, round(certificate.losses) + 1
    part = log.take(np.array([certificate.segment in {None, segment} for segment in log.segments], dtype=np.bool_))
    loss = Served(policy, certificate.point).play(part, promise).loss
    monitor = Monitor.start(
        risk=promise.risk if log.drawn is None else promise.tested_risk,
        n=certificate.n,
        k=rank if promise.confidence is None else None,
        level=level,
    )
    for row in np.flatnonzero(~np.isnan(loss)).tolist():  # a part of a loss counts as one with that probability
        monitor = monitor.update(drawn_number(f"audit|{part.ids[row]}") < loss[row])
    return {
        "certificate": certificate.name or "all", "audits": monitor.audits, "lost": float(np.nansum(loss)),
        "unknown": int(np.isnan(loss).sum()), "bound": monitor.risk, "evidence": monitor.e_value,
        "alarm_at": 1 / monitor.level, "alarm_after": monitor.alarmed_after,
    }  # fmt: skip
