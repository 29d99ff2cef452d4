"""Test a certificate on logged audits: count the missed ones in the order they were asked, and weigh the evidence.

An audit is a question that was run to its last step and judged. Whether it was missed is decided at the threshold of
its segment's certificate, as the policy serves it; each certificate has its own monitor. The questions of a group are
not independent, so one of them counts, drawn by its name. Audits of segments without a certificate are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from cascade.calibration.fingerprint import differences, made_for, odd, outside
from cascade.calibration.samples import among, joined, places, tied
from cascade.calibration.scores import Sample, check_fits, sample_of
from cascade.calibration.scores import taken as walked_by
from cascade.conformal.arrays import Bools, Ints, hopeless
from cascade.conformal.binomial import lower_bound, upper_bound
from cascade.conformal.monitor import Monitor
from cascade.conformal.scope import Scope
from cascade.conformal.split import one_of_each
from cascade.episodes.rowcheck import instant
from cascade.episodes.schema import has_failed
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import get
from cascade.policies.artifact import UNCERTIFIED, PolicyArtifact
from cascade.policies.base import Policy
from cascade.types import Certificate

AUDIT = "audit"
"""The value of the column `split` for an audited question."""
_LONG_AGO = datetime.min.replace(tzinfo=UTC)


class Watched(NamedTuple):
    """The result of the audits of one certificate's questions.

    Attributes:
        certificate: the certificate.
        audits: the number of audits that count.
        misses: how many of them were missed.
        monitor: the evidence against the promise.
    """

    certificate: Certificate
    audits: int
    misses: int
    monitor: Monitor


class Watch(NamedTuple):
    """The results of all logged audits.

    Attributes:
        watched: one entry per certificate.
        audits: the number of episodes that are audits.
        others: the number of episodes that are not, if the log marks audits.
        undated: audits without a date; they come first, in the order of the log.
        calibrated: audits of questions that the certificates were made from.
        trained: audits of other questions that the policy was made with.
        unanswered: audits that no step answers rightly.
        unanswered_before: the same for the calibration questions, and their number; None if not recorded.
        uncounted: audits of questions that the promise does not cover (`guarantees.base.Kind.counted`).
        again: audits of a group of which another one counts.
        missing: audits without a result: a call failed, or a step was of a kind that no calibration question had.
        uncovered: audits of segments without a certificate.
        odd: audits with a step that lacks an answer or a signal as some calibration questions did (`policies.scope`).
        odd_before: an upper bound on the same for the calibration questions, and their number; (0, 0) if not recorded.
        changed: differences between the audited cascade and that of the certificates, a sentence each.
    """

    watched: tuple[Watched, ...]
    audits: int
    others: int
    undated: int
    calibrated: int
    trained: int
    unanswered: int
    unanswered_before: tuple[int, int] | None
    uncounted: int
    again: int
    changed: tuple[str, ...]
    missing: int = 0
    uncovered: int = 0
    odd: int = 0
    odd_before: tuple[int, int] = (0, 0)

    @property
    def more_odd(self) -> bool:
        """Whether a larger share of audits than of calibration questions lacks an answer or signal (bounds at 95 %)."""
        return self._more(self.odd, self.odd_before)

    @property
    def more_unanswered(self) -> bool:
        """Whether a larger share of audits than of calibration questions has no right answer (bounds at 95 %)."""
        return self.unanswered_before is not None and self._more(self.unanswered, self.unanswered_before)

    def _more(self, now: int, before: tuple[int, int]) -> bool:
        """Whether the share `now` of the audits is above the share of calibration questions (how many, of how many)."""
        many, n = before
        return bool(n and self.audits) and lower_bound(now, self.audits, 0.05) > upper_bound(many, n, 0.05)

    @property
    def alarmed(self) -> tuple[Watched, ...]:
        """The results with an alarm."""
        return tuple([one for one in self.watched if one.monitor.alarmed])


class Logged(NamedTuple):
    """Facts about an episode that a table does not hold: its date, its split, and whether one of its calls failed."""

    created_at: datetime | None
    split: str | None
    failed: bool = False


def logged(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Logged]:
    """Return date, split and failure of each episode, by its data set and id: the earliest date of its rows."""
    found: dict[tuple[str, str], Logged] = {}
    for row in rows:
        key = row["dataset"] or "log", row["episode_id"]
        held, when = found.get(key), instant(row["created_at"] or "")
        if held is None:
            found[key] = Logged(when, row["split"], has_failed(row))
            continue
        dates = [one for one in (held.created_at, when) if one is not None]
        failed = held.failed or has_failed(row)
        found[key] = Logged(min(dates, default=None), held.split or row["split"], failed)
    return found


def watch(
    artifact: PolicyArtifact,
    policy: Policy,
    tables: Iterable[EpisodeTable],
    about: Mapping[tuple[str, str], Logged],
    level: float = 0.05,
) -> Watch:
    """Test a policy's certificates on logged audits.

    `policy` is made by `factory.policy_of` from the directory's settings; `about` has the date and the split of each
    episode (`logged`). The monitors share `level` evenly.

    Guarantee: that of `conformal.monitor.Monitor` at `level`, for all monitors together (Bonferroni), if the log has
    every audit, the draw of audits did not depend on the questions, and no question was left out because it lacked a
    label. It does not matter when a label arrived: audits count in the order of their questions.

    Raises:
        UsageError: there is no certificate, audits cannot test its promise, or the log does not fit.
    """
    _check(artifact.certificates)
    audits = _audits_of(list(tables), about)
    table = audits.table
    check_fits(policy, table)
    sample = sample_of(table, policy)
    scope = Scope.of(
        artifact.certificates[0].made_for,
        policy.reads,
        withholds=artifact.certificates[0].abstain_below is not None,
    )
    walked = walked_by(policy, table)
    beyond = outside(walked, scope)
    counted = get(artifact.certificates[0].kind).counted(table) & ~beyond
    place = places([one.segment for one in artifact.certificates], table)
    missed = _missed(sample, artifact.certificates, place)
    share, held = level / len(artifact.certificates), frozenset(artifact.questions)
    before = None if artifact.unanswered is None else (artifact.unanswered, max(len(held), artifact.unanswered))
    drawn = _drawn_of_groups(table, place, counted)
    watched = [
        _watched(one, share, missed[drawn & (place == number)]) for number, one in enumerate(artifact.certificates)
    ]
    return Watch(
        watched=tuple(watched),
        audits=table.n,
        others=audits.others,
        undated=audits.undated,
        calibrated=int(np.count_nonzero(among(table, held))),
        trained=int(np.count_nonzero(among(table, artifact.seen.all - held))),
        unanswered=int(np.count_nonzero(hopeless(table.arrays))),
        unanswered_before=before,
        uncounted=int(np.count_nonzero(~counted & ~beyond)),
        again=int(np.count_nonzero(counted & ~drawn)),
        changed=tuple(differences(artifact.certificates[0].made_for, made_for(table))),
        missing=audits.failed + int(np.count_nonzero(beyond)),
        uncovered=int(np.count_nonzero(place < 0)),
        odd=int(np.count_nonzero(odd(walked, scope))),
        odd_before=scope.calibrated,
    )


class _Audits(NamedTuple):
    """The audited questions in the order they were asked, and the numbers of non-audits, undated and failed ones."""

    table: EpisodeTable
    others: int
    undated: int
    failed: int


def _audits_of(tables: Sequence[EpisodeTable], about: Mapping[tuple[str, str], Logged]) -> _Audits:
    """Return the audits of a log: the questions marked in its column `split`, or all if none is marked."""
    known = [about.get((table.dataset, name), Logged(None, None)) for table in tables for name in table.ids]
    marked = any(one.split == AUDIT for one in known)
    by_date = sorted(range(len(known)), key=lambda row: known[row].created_at or _LONG_AGO)
    order = [row for row in by_date if not marked or known[row].split == AUDIT]
    whole = [row for row in order if not known[row].failed]
    return _Audits(
        table=tied(joined(tables).take(np.array(whole, dtype=np.int64))),
        others=len(known) - len(order),
        undated=sum(known[row].created_at is None for row in order),
        failed=sum(one.failed and (one.split == AUDIT or not marked) for one in about.values()),
    )


def _drawn_of_groups(table: EpisodeTable, place: Ints, counted: Bools) -> Bools:
    """Return which rows count: bool (n,), one of each group for each certificate, drawn by its name as in calibration.

    A certificate on groups speaks of a random question of each; the first one may be harder than the others.
    """
    rows, drawn = np.flatnonzero(counted), np.zeros(table.n, dtype=np.bool_)
    keys = [(table.groups[row], int(place[row])) for row in rows.tolist()]
    drawn[rows[one_of_each(keys, labels=[table.ids[row] for row in rows.tolist()])]] = True
    return drawn


def _check(certificates: Sequence[Certificate]) -> None:
    if not certificates:
        raise UsageError(UNCERTIFIED)
    kind = certificates[0].kind
    if not get(kind).monitored:
        raise UsageError(f"Audits count misses, and {kind} is not a promise about misses: audits cannot monitor it.")


def _missed(sample: Sample, certificates: Sequence[Certificate], place: Ints) -> Bools:
    """Return which questions were missed as served, bool (n,); `place` gives the certificate that covers each."""
    missed = np.zeros(sample.table.n, dtype=np.bool_)
    for number, one in enumerate(certificates):
        rows = np.flatnonzero(place == number)
        if rows.size:
            missed[rows] = get(one.kind).misses(one, sample.take(rows)).missed
    return missed


def _watched(certificate: Certificate, level: float, missed: Bools) -> Watched:
    misses = int(np.count_nonzero(missed))
    assert certificate.alpha is not None  # noqa: S101 - all kinds that are monitored have one
    monitor = Monitor.start(
        alpha=certificate.alpha,
        n=certificate.n,
        k=certificate.k,
        delta=certificate.delta,
        level=level,
    )
    for one in missed.tolist():
        monitor = monitor.update(one)
    return Watched(certificate, missed.size, misses, monitor)
