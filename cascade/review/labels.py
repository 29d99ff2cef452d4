"""People's judgements as a log's truth, and which of them a certificate depends on.

An output is right if it equals the reference's, or if it was judged and found to lose nothing. An output that nobody
judged is unknown: it counts as lost, unless its request was not drawn. A known share of the requests is drawn, by a
hash that depends on no outcome, and the drawn losses are tested at the risk times this share.

A policy's thresholds are tested from the strictest, an order that depends on no outcome. At each one only the requests
count on which an output is served that differs from the reference's. Judgements are asked for until the threshold
passes whatever the missing ones are, or fails. A missing one never helps, so they may depend on earlier ones, and the
certificate is the same as with all of them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from cascade.conformal.binomial import upper_bound
from cascade.conformal.certify import most_units
from cascade.conformal.monitor import is_drawn
from cascade.conformal.path import Jumps, Walks, strict_to_lenient
from cascade.conformal.promise import Promise, kind_of
from cascade.episodes.episode import Row
from cascade.episodes.reading import Judgements, reviewed
from cascade.episodes.rows import joined, reads_of
from cascade.errors import UsageError
from cascade.fitting.divide import drawn, usable
from cascade.logs.schema import Dropped
from cascade.policies.policy import Policy
from cascade.review.pairs import Compared, Pair, PairId, place_of
from cascade.review.reviews import ASKS, Reviews, Terms
from cascade.table import Floats, Ints, Log


def judgements(
    compared: Compared,
    reviews: Sequence[Reviews],
    kind: str,
    rate: float | None = None,
    harmless: Container[str] = (),
) -> Judgements:
    """Return what people judged, to read a log by it (`reading.reviewed`).

    Args:
        compared: the log.
        reviews: the judgements, all drawn with the same key. If reviewers differ, the output is a loss.
        kind: the kind of loss, "preference" or "regret".
        rate: the share of the requests whose judgements count; by default all that were drawn.
        harmless: episodes of which feedback says that the answer that differs loses nothing. Where several differ, it
            is unknown which one it means.

    Raises:
        UsageError: the reviews have another comparator or another draw, or did not ask for this kind of loss.
    """
    terms = _terms(compared, reviews, kind)
    share = terms.rate if rate is None else rate
    losses = dict[PairId, bool]()
    for file in reviews:
        for pair_id, lost in file.losses(kind).items():
            losses[pair_id] = losses.get(pair_id, False) or lost

    def loses(row: Row) -> bool | None:
        pair = compared.pair_of(row)
        if pair is None:  # without the reference's output nobody can judge
            return True
        lost, (_, episode) = pair.lost(losses), place_of(row)
        if lost is None and episode in harmless and len(set(compared.differing[place_of(row)].values())) == 1:
            return False
        return lost

    return Judgements(kind, share, lambda name: is_drawn(terms.key, share, name), loses)


def _terms(compared: Compared, reviews: Sequence[Reviews], kind: str) -> Terms:
    """Return the terms of the reviews; refuse reviews that do not fit the request."""
    terms, every = reviews[0].terms, [file.terms for file in reviews]
    problems = []
    if any(begun.rate != terms.rate or (begun.key != terms.key and terms.rate < 1) for begun in every):
        problems.append("the files of reviews have different draws; give files of one draw")
    if any(begun.matcher != compared.comparator for begun in every):
        problems.append(f"the reviews compare outputs by {terms.matcher}, the log by {compared.comparator}: --matcher")
    rules = kind_of(kind)
    if rules is not None and "labels" in rules.needs and any(begun.ask == "preference" for begun in every):
        problems.append(f"{kind} needs right or wrong for both outputs, and the reviews asked only which is better")
    if kind not in ASKS:
        problems.append(f"reviews do not determine {kind}; ask for --promise {' or '.join(ASKS)}")
    if problems:
        raise UsageError(f"These reviews cannot be used: {'; '.join(problems)}.")
    return terms


# --- the judgements that a certificate depends on ---


def to_judge(compared: Compared, terms: Terms) -> Log:
    """Return a log before anybody judged: an output that differs is unknown.

    Its signal `PAIR` has for each such output the number of its pair among those of `compared`.
    """
    nobody = Judgements(terms.ask, terms.rate, lambda name: is_drawn(terms.key, terms.rate, name), lambda _: None)
    log = joined(reviewed(compared.labelled, nobody, Dropped())).log
    number = {pair.id: float(index) for index, pair in enumerate(compared.pairs)}

    def numbered() -> Iterable[Row]:
        """Yield the rows with the number of the pair as their confidence, which stands at the output's own node."""
        for row in compared.labelled.rows(Dropped()):
            pair = compared.pair_of(row)
            yield {**row, "confidence": None if pair is None else number[pair.id]}

    pairs = joined(reads_of(numbered(), drawn=nobody.drawn)).log.confidence
    return replace(log, signals={**log.signals, PAIR: pairs})


PAIR = "pair to judge"
"""The signal of `to_judge`."""


def certifying(log: Log, promise: Promise) -> Log:
    """Return the requests that can certify: one of each group."""
    return drawn(usable(log, promise).log, 0)


@dataclass(frozen=True)
class Along:
    """The path of a policy's thresholds, on the requests that certify.

    Attributes:
        walks: the policy's walks over the requests, of which no differing output was judged.
        pair: int64 (n, T), the number of the pair of each output; −1: it needs no judgement, or none can be made.
        pairs: the pairs of the log.
        promise: what is to be certified.
        level: the probability, over calibrations, at which it will be tested.
    """

    walks: Walks = field(repr=False)
    pair: Ints = field(repr=False)
    pairs: Sequence[Pair] = field(repr=False)
    promise: Promise
    level: float

    @classmethod
    def of(cls, log: Log, policy: Policy, pairs: Sequence[Pair], promise: Promise, level: float) -> Along:
        """Return the path of a policy.

        Args:
            log: a log `to_judge`, of which the requests that made the policy were left out.
            policy: the policy.
            pairs: the pairs of the log.
            promise: what is to be certified, with the share drawn as its rate.
            level: the probability at which it will be tested.

        Raises:
            UsageError: its thresholds are put in order by requests that would need judgements of their own.
        """
        certifies = certifying(log, promise)
        if not promise.rules.safe_last(certifies):
            raise UsageError(
                "The thresholds of this policy are ordered on questions, which also need judgements. Review without "
                "--policy: every differing output is then shown."
            )
        number = np.nan_to_num(certifies.signals[PAIR], nan=-1.0).astype(np.int64)
        assert certifies.drawn is not None  # noqa: S101 - the log is read so
        return cls(policy.walks(certifies), np.where(certifies.drawn[:, None], number, -1), pairs, promise, level)

    def wanted(self, losses: Mapping[PairId, bool], passed: frozenset[PairId] = frozenset()) -> list[Pair]:
        """Return the pairs that decide the next threshold; none if no judgement changes the certificate.

        Args:
            losses: the judgements.
            passed: pairs that will not be judged and count as lost.
        """
        counted = {**losses, **dict.fromkeys(passed, True)}
        verdicts = [pair.lost(counted) for pair in self.pairs]
        right = np.array([np.nan if lost is None else 1.0 - lost for lost in verdicts] or [np.nan])[self.pair]
        right = np.where(self.pair >= 0, right, self.walks.log.right)
        worst, best = self._jumps(right), self._jumps(np.where((self.pair >= 0) & np.isnan(right), 1.0, right))
        path, most = strict_to_lenient(self.walks, worst), most_units(self.walks.log.n, self.promise, self.level)
        fails = np.flatnonzero(path.loss > most)
        if not fails.size:
            return []
        kappa = path.points[fails[0]].kappa
        if int(best.at(kappa).sum()) > most:
            return []
        waits = np.flatnonzero(worst.at(kappa) != best.at(kappa))
        node = self.walks.serve[waits, self.walks.stop(kappa)[waits]]
        return [self.pairs[number] for number in self.pair[waits, node].tolist()]

    def _jumps(self, right: Floats) -> Jumps:
        return self.promise.rules.jumps(replace(self.walks, log=replace(self.walks.log, right=right)))


# --- what the judgements show ---


class LossBound(NamedTuple):
    """A bound on the share of requests that lose something, from the judgements so far.

    Attributes:
        requests: the number of requests that can certify.
        drawn: the number of drawn requests with a differing output.
        lost: drawn requests with an output that is a loss.
        unjudged: drawn requests without a loss but with an unjudged output; they count as lost.
        bound: the share is at most this, with the confidence.
        confidence: the probability that the bound is not too low.
    """

    requests: int
    drawn: int
    lost: int
    unjudged: int
    bound: float
    confidence: float


def shown(pairs: Sequence[Pair], requests: int, reviews: Reviews, promise: Promise) -> LossBound:
    """Return the bound from reviews on the loss of serving the differing outputs instead of the reference's.

    The losses of the drawn requests, with those that lack a judgement, are counted among all that can certify. An
    upper confidence bound on that rate, divided by the rate of drawing, bounds the share of requests that lose.

    Args:
        pairs: the pairs of the drawn requests.
        requests: the number of requests that can certify.
        reviews: the judgements.
        promise: what is promised; its confidence is that of the bound.
    """
    assert promise.delta is not None  # noqa: S101 - what people judge is promised with a confidence
    losses, lost_of = reviews.losses(reviews.terms.ask), dict[str, list[bool | None]]()
    for pair in pairs:
        lost_of.setdefault(pair.question, []).append(pair.lost(losses))
    lost = sum(any(verdicts) for verdicts in lost_of.values())
    unjudged = sum(not any(verdicts) and None in verdicts for verdicts in lost_of.values())
    n = max(requests, len(lost_of), 1)
    bound = upper_bound(min(n, lost + unjudged), n, promise.delta) / reviews.terms.rate
    return LossBound(n, len(lost_of), lost, unjudged, min(1.0, bound), 1 - promise.delta)
