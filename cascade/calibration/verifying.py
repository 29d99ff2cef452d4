"""Check a certificate without trusting it, by computing its contents again from a log.

The calibration questions show whether the same data give the same thresholds. All other questions that the policy has
not seen test whether the promise holds on them (`guarantees.laws`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cascade.calibration.calibrating import certifiable, looked_at, ordering
from cascade.calibration.fingerprint import differences, made_for, models_said, unknown
from cascade.calibration.samples import absent, among, data_sha256, joined, once, one_a_group, places, tied
from cascade.calibration.scores import Sample, check_fits, sample_of
from cascade.config import CascadeConfig
from cascade.conformal.arrays import Bools, hopeless
from cascade.episodes.table import EpisodeTable
from cascade.errors import CascadeError, ConfigError
from cascade.factory import HeldPolicy, read_policy
from cascade.guarantees.base import Guarantee, get
from cascade.guarantees.certificate import expired
from cascade.guarantees.laws import Told, whom
from cascade.guarantees.questions import Found
from cascade.policies.artifact import PolicyArtifact
from cascade.policies.base import Policy
from cascade.types import Certificate


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and a sentence about the finding."""

    name: str
    ok: bool
    said: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The results of all checks."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return all(check.ok for check in self.checks)


def verify(
    directory: str | Path,
    tables: Sequence[EpisodeTable],
    today: date | None = None,
    config: CascadeConfig | None = None,
) -> Verdict:
    """Check a policy directory's certificates on a log.

    Args:
        directory: the policy directory.
        tables: the log: the calibration questions, fresh ones, or both.
        today: the date for the check of the expiry; by default today, UTC.
        config: the cascade that serves; it is compared with the cascade of the certificates.

    Returns:
        The checks, in order: file, expiry, cascade, seen, threshold, fresh. If the file is damaged, it is the only one.

    Guarantee: that of `on_fresh` for each promise. All other checks are exact.

    Raises:
        UsageError: the log has data sets of different cascades, or lacks what the policy reads.
    """
    try:
        held = read_policy(directory)
    except ConfigError as error:
        return not_whole(error)
    return verify_held(held, tables, today, config)


def not_whole(error: ConfigError) -> Verdict:
    """Return the verdict on a policy directory that cannot be read."""
    where = "" if error.source is None else f"{error.source}: "
    return Verdict((Check("file", ok=False, said=where + "; ".join(error.problems)),))


def verify_held(
    held: HeldPolicy, tables: Sequence[EpisodeTable], today: date | None = None, config: CascadeConfig | None = None
) -> Verdict:
    """Check a policy directory that has been read, as `verify` does."""
    artifact, policy = held.artifact, held.policy
    if not artifact.certificates:
        return Verdict((Check("file", ok=False, said="there is no certificate in this directory"),))
    table = joined(tables)
    check_fits(policy, table)
    day = today or datetime.now(UTC).date()
    first = [_file(artifact), _expiry(artifact, day), _cascade(artifact, table, config), _seen(artifact, table)]
    found = tuple(_on_data(artifact, policy, table))
    if table.bought is not None and not all(check.ok for check in found):
        # A fit reads each question up to its first missing step; a calibration of a policy that buys reads all steps.
        listed = tuple(_on_data(artifact, policy, joined([one.as_listed() for one in tables])))
        found = listed if all(check.ok for check in listed) else found
    return Verdict((*first, *found))


def on_fresh(certificates: Sequence[Certificate], sample: Sample) -> Iterator[Told]:
    """Test each promise on the fresh questions that it applies to, and yield the results.

    Args:
        certificates: the certificates of one calibration.
        sample: questions that neither the policy nor the calibration has seen, one of each group.

    Guarantee: if the fresh questions are like those of the calibration, each kept promise is refuted with probability
    at most 5 %; a promise with delta with at most delta more.
    """
    place = places([one.segment for one in certificates], sample.table)
    for number, one in enumerate(certificates):
        rows = np.flatnonzero(place == number)
        if rows.size:
            yield from get(one.kind).verify(one, sample.take(rows))


_NONE_SEEN = "no question of this log was used to choose or fit the policy"
_OTHER = "answers, costs, signals or judgements"


def _file(artifact: PolicyArtifact) -> Check:
    many, first = len(artifact.certificates), artifact.certificates[0]
    said = f"{many} certificates" if many > 1 else f"certificate {first.calibration_id}"
    return Check("file", ok=True, said=f"{said}, made on {first.created}; all hashes match")


def _expiry(artifact: PolicyArtifact, today: date) -> Check:
    past = sorted({one.expires for one in artifact.certificates if one.expires and expired(one, today)})
    if past:
        return Check("expiry", ok=False, said=f"expired on {past[0]}; today is {today.isoformat()}")
    last = min((one.expires for one in artifact.certificates if one.expires), default=None)
    return Check("expiry", ok=True, said="holds without end" if last is None else f"holds until {last}")


def _cascade(artifact: PolicyArtifact, table: EpisodeTable, config: CascadeConfig | None) -> Check:
    then = artifact.certificates[0].made_for
    logged = made_for(table)
    changed = [f"in the log, {said}" for said in differences(then, logged)]
    if config is not None:
        # The log may have facts that the certificate does not record.
        now = made_for(config)
        said_of_log = [said.replace("the certificate", "the log") for said in differences(logged, now)]
        changed += [f"as configured, {said}" for said in differences(then, now) or said_of_log]
    if changed:
        return Check("cascade", ok=False, said="; ".join(changed))
    models = models_said(then)
    unseen = unknown(then)
    rest = f"; not recorded, and not checked: {', '.join(unseen)}" if unseen else ""
    if config is None and models and logged["models"] is None:
        rest = f"; not compared, since the log does not say which models made it{rest}"
    return Check("cascade", ok=True, said=f"made for {models or 'unknown models'}{rest}")


def _seen(artifact: PolicyArtifact, table: EpisodeTable) -> Check:
    both = len(artifact.seen.all.intersection(artifact.questions))
    if both:
        return Check("seen", ok=False, said=f"{both} calibration questions were also used to choose or fit the policy")
    aside = len(set(table.take(among(table, artifact.seen.all)).questions))
    said = f"{aside} questions that made the policy are set aside" if aside else _NONE_SEEN
    return Check("seen", ok=True, said=said)


def _on_data(artifact: PolicyArtifact, policy: Policy, table: EpisodeTable) -> Iterator[Check]:
    wanted = artifact.asked
    if wanted is None:
        yield Check("threshold", ok=False, said="the file does not name the requested guarantee: calibrate again")
        return
    table = looked_at(tied(table), wanted)
    held = frozenset(artifact.questions)
    mine, seen = among(table, held), among(table, artifact.seen.all)
    again = _once(table, mine & ~seen, wanted)
    # A question is not fresh if another question of its group made or certified the policy.
    known = {group for group, one in zip(table.groups, mine | seen, strict=True) if one}
    unknown = np.array([group not in known for group in table.groups], dtype=np.bool_)
    fresh = one_a_group(_once(table, unknown, wanted), separate=wanted.by_segment)
    there = len(set(again.questions))
    if there == len(held) and there:
        yield _recalibrated(artifact, wanted, policy, again)
        if artifact.path is not None:
            yield _path_again(artifact, policy, _once(table, seen, wanted))
    elif there or not fresh.n:
        said = f"{there} of {len(held)} calibration questions are in this log: the threshold cannot be computed again"
        yield Check("threshold", ok=fresh.n > 0, said=said)
    if fresh.n:
        yield from (Check("fresh", *told) for told in on_fresh(artifact.certificates, sample_of(fresh, policy)))


def _once(table: EpisodeTable, rows: Bools, wanted: Guarantee) -> EpisodeTable:
    some = table.take(rows)
    return some.take(once(some, separate=wanted.by_segment))


def _recalibrated(artifact: PolicyArtifact, wanted: Guarantee, policy: Policy, table: EpisodeTable) -> Check:
    if data_sha256(table, separate=wanted.by_segment) != artifact.certificates[0].data_sha256:
        other = "answers, costs, signals, judgements or segments" if wanted.by_segment else _OTHER
        said = f"the log holds all calibration questions, but their {other} have changed"
        return Check("threshold", ok=False, said=said)
    try:
        found, _ = certifiable(wanted.rules.calibrate(sample_of(table, policy), wanted, artifact.path), wanted)
    except CascadeError as error:
        return Check("threshold", ok=False, said=f"it cannot be computed again: {error}")
    wrong = [*_deviations(artifact.certificates, found), *_unanswered(artifact, table)]
    said = f"the {table.n} questions that set it give the same thresholds again: {_listed(artifact.certificates)}"
    return Check("threshold", ok=not wrong, said="; ".join(wrong) or said)


def _listed(certificates: Sequence[Certificate]) -> str:
    first, rest = certificates[0], len(certificates) - 1
    return f"kappa {first.kappa:.6g}" + (f" and {rest} more" if rest else "")


def _deviations(certificates: Sequence[Certificate], found: Sequence[Found]) -> Iterator[str]:
    mine = {one.segment: one for one in found}
    if set(mine) != {one.segment for one in certificates}:
        yield "the data give certificates for other segments"
        return
    for one in certificates:
        now = mine[one.segment]
        if now.refused is not None:
            yield f"{whom(one)}the data certify nothing: {now.refused}"
            continue
        for name in ("n", "k", "kappa", "abstain_below", "keeps_everything"):
            then, again = getattr(one, name), getattr(now, name)
            if not _same(then, again):
                yield f"{whom(one)}{name} is {then} in the certificate, but the data give {again}"


def _same(one: float | None, other: float | None) -> bool:
    """Whether two figures are equal, up to the last bits, which depend on the processor."""
    return one == other or (one is not None and other is not None and math.isclose(one, other, rel_tol=1e-12))


def _unanswered(artifact: PolicyArtifact, table: EpisodeTable) -> Iterator[str]:
    """Yield a deviation if the number of questions that no step answers rightly has changed."""
    now = int(np.count_nonzero(hopeless(table.arrays)))
    if artifact.unanswered not in {None, now}:
        yield f"no step answers {artifact.unanswered} questions rightly according to the file, but {now} in the data"


def _path_again(artifact: PolicyArtifact, policy: Policy, table: EpisodeTable) -> Check:
    missing = len(absent(table, artifact.seen.selection))
    picked = table.take(among(table, frozenset(artifact.seen.selection)))
    if missing or not picked.n or artifact.ordered_for is None:
        which = f"{missing} of its questions are not in this log" if missing else "it was set with the policy"
        said = f"the policy names the order in which thresholds are tried, and this order is not recomputed: {which}"
        return Check("path", ok=True, said=said)
    try:
        asked = ordering(artifact.ordered_for)
        made = [value for point in asked.rules.order(sample_of(picked, policy), asked) for value in point]
    except (CascadeError, KeyError, TypeError, ValueError) as error:
        return Check("path", ok=False, said=f"it cannot be ordered again: {error}")
    held = [value for point in artifact.path or () for value in point]
    same = len(made) == len(held) and all(map(_same, made, held))
    said = f"{picked.n} other questions order the same {len(artifact.path or ())} points"
    return Check("path", ok=same, said=said if same else "the questions that ordered the path give another one")
