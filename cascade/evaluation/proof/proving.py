"""Estimate what a cascade would save on a log, out of sample: repeat the whole fit on many splits.

Each split gives a part of the groups to a fit, which divides it again into training and calibration questions, and the
rest to the test, on which the certified policy is played. Savings are measured against a reference that needs no
policy: the guide alone, a ladder's last model, or every step. A split in which nothing is certified saves nothing: the
user keeps paying for the reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median_high, median_low
from typing import NamedTuple, TypeAlias

import numpy as np

from cascade.calibration.samples import PER_RUNG, once, tied
from cascade.calibration.scores import unpriced_said
from cascade.conformal.arrays import hopeless
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.evaluation.baselines import (
    GUIDE,
    Clairvoyant,
    first_step,
    other_baselines,
    per_rung_along,
    reference_of,
    rung_thresholds,
    walked,
)
from cascade.evaluation.proof.diagnosis import SignalUse, signal_uses, unknowns
from cascade.evaluation.proof.split_results import (
    POLICY,
    Coin,
    Figures,
    Measuring,
    Way,
    coin_of,
    mean_of,
    way_of,
    write_down,
)
from cascade.evaluation.segments import SegmentFigures, Segments
from cascade.evaluation.splits import OverSplits, splits
from cascade.guarantees.base import Guarantee, Kind, kinds_that
from cascade.guarantees.questions import Truth, at_every_depth, check_identity
from cascade.policies.base import Policy
from cascade.text import counted
from cascade.training.portfolio import REFERENCE
from cascade.training.simple import LEVELS

# --- One threshold per rung in a proof: its saving at the level that breaks the promise as often as the policy does ---

_KAPPAS = np.linspace(len(LEVELS), -1.0, 20 * (len(LEVELS) + 1) + 1).tolist()
"""The levels that are tried: from stopping at once on every question to never stopping, twenty between two vectors."""


def per_rung_as_broken(training: EpisodeTable, test: Measuring, policy: Figures) -> Figures | None:
    """Return the cheapest level of a ladder's thresholds that breaks the promise no more often than a policy.

    The thresholds are tuned on the questions that the policy was made from. Their level is set on the test questions
    themselves, so that they lose as much as the policy does: costs are compared at the same loss, and nothing is
    certified. If every level breaks the promise more often, the level that breaks it least is taken. Return None if the
    log is not of a ladder of three models or more, or its signals are of no known kind.
    """
    thresholds = rung_thresholds(training, test.guarantee.rules, test.guarantee.alpha or 0.0)
    if thresholds is None:
        return None
    every = [test.of_way(way) for way in per_rung_along(test.table, thresholds, _KAPPAS)]
    least = min(mean_of(one.broken) for one in every)
    allowed = max(mean_of(policy.broken), least) + 1e-12
    return min((one for one in every if mean_of(one.broken) <= allowed), key=lambda one: mean_of(one.cost))


# --- proving ---


def provable(kind: Kind) -> bool:
    """Whether `prove` can use a kind of guarantee: the kind must define for each question whether it is missed."""
    return kind.monitored


class Fit(NamedTuple):
    """The result of a fit: a policy that serves at its certified thresholds, and its name."""

    policy: Policy
    name: str


Fitter: TypeAlias = Callable[[EpisodeTable, Guarantee, int], Fit]
"""Makes a certified policy from questions, a guarantee and a seed. It may raise NotCertifiedError."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a proof: the number and seed of the splits, and the reference of savings (`reference_of`)."""

    splits: int = 20
    seed: int = 0
    against: str | None = None


@dataclass(frozen=True, slots=True)
class Proof:
    """The result of a proof for one cascade and one guarantee.

    Attributes:
        dataset: the name of the questions.
        guarantee: the promise.
        n: questions, each counted once.
        repeated: episodes left out because another episode has the same question.
        left_out: questions left out because the log lacks the reference. If right means equal to the reference's
            output, none is left out: every answer but the reference's own counts as lost there.
        groups: their groups.
        horizon: steps.
        splits, seed: the number of splits, and their seed.
        sizes: how many questions a split gave to the fit, and to the test.
        fitted: the names of the fitted policies, with the number of splits.
        refused: splits in which nothing was certified.
        needed_n: about how many logged questions would have been enough, the median over the refused splits for which
            it is known; None if it is known for at most half of them: then mostly no number would have been enough.
        chance: the probability that so many are enough, also the median; None without such a number.
        why_refused: the reason given in the first refused split, without a number of questions.
        exceeded: certified splits in which more than alpha of the test questions broke the promise.
        policy: the certified policies; a split without one counts as the reference.
        reference: the baseline of the savings.
        others: the other baselines; for a ladder of three models or more also one threshold per rung, tuned on each
            split's questions and so lax that it breaks the promise as often as the policy (`as_broken`).
        coin: the cheapest coin between two of them and the reference that breaks the promise as often as the policies;
            None if costs are unknown, or there is none.
        clairvoyant_usd: the clairvoyant bound on the cost of the promise; None if costs are unknown, or not even a
            clairvoyant policy could keep the promise.
        impossible: whether not even a clairvoyant policy could keep it; then nothing was fitted.
        lost: the share of questions that count against the promise under every policy.
        unsolvable: the share of questions that no step answers rightly.
        first_right: the share of questions that stopping at the first step answers rightly.
        signals: the AUROC of the first step's signals; empty if the first step answers all questions rightly, or none.
        unknown: what the log does not record, in words.
        segments: the certified policies' figures on each segment, the worst first; a split without a policy counts as
            the reference.
        truth: what a right answer is compared with; None if labels say what is right.
    """

    dataset: str
    guarantee: Guarantee
    n: int
    repeated: int
    left_out: int
    groups: int
    horizon: int
    splits: int
    seed: int
    sizes: tuple[int, int]
    fitted: Mapping[str, int]
    refused: int
    needed_n: int | None
    chance: float | None
    why_refused: str | None
    exceeded: int
    policy: Way
    reference: Way
    others: tuple[Way, ...]
    coin: Coin | None
    clairvoyant_usd: float | None
    impossible: bool
    lost: float
    unsolvable: float
    first_right: float
    signals: tuple[SignalUse, ...]
    unknown: tuple[str, ...]
    segments: tuple[SegmentFigures, ...] = ()
    truth: Truth | None = None

    @property
    def verdict(self) -> str:
        """One word: refused, unknown, unsure, costs, blind (a coin saves as much) or saves."""
        if self.impossible or 2 * self.refused >= self.splits:
            return "refused"
        saving = self.policy.saving
        if saving is None:
            return "unknown"
        if not saving.excludes_zero:
            return "unsure"
        if saving.mean < 0:
            return "costs"
        return "blind" if self.coin is not None and not (self.coin.ahead.low or 0.0) > 0 else "saves"


def prove(
    table: EpisodeTable,
    guarantee: Guarantee,
    fit: Fitter,
    plan: Plan,
    tell: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005 - names are the interface
) -> Proof:
    """Estimate what a fit's certified policies save on questions that they have not seen.

    Args:
        table: one data set's episodes; a question counts once.
        guarantee: the promise to make.
        fit: fits and certifies a policy on the questions that it is given.
        plan: how the questions are split, and the baseline of the savings.
        tell: called with (splits done, splits in all).

    Guarantee: none; this is an estimate. Its intervals are those of `splits.corrected_interval`, over the splits.

    Raises:
        UsageError: no saving can be shown for this kind of guarantee, the questions are too few to be split, or they
            lack what the guarantee or the reference needs.
    """
    _check(guarantee, plan)
    whole = tied(table).take(once(table))
    rows = whole.costed()
    reference = reference_of(rows, plan.against)
    promised = reference_of(rows, GUIDE) if guarantee.rules.needs_reference else reference
    both = reference.known & promised.known
    lost = np.count_nonzero(~both) if rows.truth is not None else 0
    both |= rows.truth is not None  # the reference's output is unknown there, so every other answer counts
    known, reference, promised = rows.take(both), reference.take(both), promised.take(both)
    if guarantee.single:
        check_identity(at_every_depth(known))
    measuring = Measuring(known, guarantee, reference, promised)
    figures = {one.name: measuring.of_way(one) for one in (reference, *other_baselines(known, reference))}
    results = {name: OverSplits() for name in (*figures, PER_RUNG, POLICY)}
    bound, tally = measuring.bound(), _Tally()
    segments = Segments(known.segments)
    for number, split in enumerate(splits(known.groups, plan.splits, plan.seed, tell=tell), 1):
        fitting = np.sort(np.concatenate([split.train, split.calibration]))
        tally.sizes = fitting.size, split.test.size
        log = None if bound.cost_nano_usd is None else known.take(fitting)  # None: no policy can keep it
        found = _fitted(fit, log, guarantee, plan.seed + number, tally)
        paid, test = figures[reference.name].take(split.test), measuring.take(split.test)
        did = paid if found is None else test.of_policy(found.policy)
        if found is not None:
            tally.exceeded += mean_of(did.broken) > (guarantee.alpha or 0.0)
        for name, column in figures.items():
            write_down(results[name], column.take(split.test), paid)
        write_down(results[POLICY], did, paid)
        segments.add(split.test, did.broken, did.cost, paid.cost)
        own = None if log is None else per_rung_as_broken(log, test, did)
        if own is not None:
            write_down(results[PER_RUNG], own, paid)
    said = (*unpriced_said(whole), *_without_reference(int(lost)))
    left_out = _LeftOut(table.n - whole.n, rows.n - known.n, said)
    proof = _proof(measuring, bound, left_out, plan, tally, results)
    if tally.refused == plan.splits:
        return proof
    return replace(proof, segments=segments.found(cost_known=known.cost_known))


def _without_reference(many: int) -> Iterator[str]:
    """Yield a sentence on how many questions count although the log lacks the reference's output."""
    if many:
        yield (
            f"The reference has no recorded output for {counted(many, 'question')}: every answer served there counts "
            "as lost, and savings there are not counted."
        )


def _check(guarantee: Guarantee, plan: Plan) -> None:
    if not guarantee.rules.monitored or guarantee.by_segment or guarantee.abstain:
        raise UsageError(
            f"`prove` shows a saving for {kinds_that(provable)}: one promise for all questions, each of them answered."
        )
    if plan.splits < 2:
        raise UsageError("An interval takes at least 2 splits; 20 or more are advised.")


@dataclass(slots=True)
class _Tally:
    """Counts over the splits: which policies were fitted, and how many fits were refused."""

    sizes: tuple[int, int] = (0, 0)
    fitted: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    needed: list[tuple[int, float]] = field(default_factory=list)
    why: str | None = None
    exceeded: int = 0


def _fitted(fit: Fitter, table: EpisodeTable | None, guarantee: Guarantee, seed: int, tally: _Tally) -> Fit | None:
    """Fit on a split's questions. Return None, and count it, if `table` is None or nothing is certified that saves."""
    if table is None:
        tally.refused += 1
        return None
    try:
        found = fit(table, guarantee, seed)
    except NotCertifiedError as error:
        tally.refused += 1
        tally.why = tally.why or error.why or str(error)
        if error.needed_n is not None:
            tally.needed.append((error.needed_n, 1.0 if error.chance is None else error.chance))
        return None
    if found.name == REFERENCE:  # it keeps the promise and saves nothing
        tally.refused += 1
        tally.why = tally.why or "nothing that costs less than the reference alone is certified"
        return None
    tally.fitted[found.name] += 1
    return found


class _LeftOut(NamedTuple):
    """The number of episodes with a repeated question, and of questions without a reference.

    `said` says in words how many questions lack a cost, or count as lost because the reference's output is missing.
    """

    repeated: int
    unknown: int
    said: tuple[str, ...]


def _proof(
    measuring: Measuring,
    bound: Clairvoyant,
    left_out: _LeftOut,
    plan: Plan,
    tally: _Tally,
    results: Mapping[str, OverSplits],
) -> Proof:
    table, guarantee = measuring.table, measuring.guarantee
    known = {name: one for name, one in results.items() if one.values}
    made = [way_of(name, one, tally.sizes, paired=name != measuring.reference.name) for name, one in known.items()]
    forecast = 2 * len(tally.needed) > tally.refused
    needed = median_high(number for number, _ in tally.needed) if forecast else 0
    certified = table.cost_known and tally.refused < plan.splits
    cost, lost = bound
    judged = table if table.labels is None else table.take(table.labels.drawn)
    if not table.cost_known:
        made = [one._replace(cost_usd=None, saving=None) for one in made]
    return Proof(
        dataset=table.dataset,
        guarantee=guarantee,
        n=table.n,
        repeated=left_out.repeated,
        left_out=left_out.unknown,
        groups=len(set(table.groups)),
        horizon=table.arrays.horizon,
        splits=plan.splits,
        seed=plan.seed,
        sizes=tally.sizes,
        fitted=dict(tally.fitted.most_common()),
        refused=tally.refused,
        needed_n=math.ceil(needed * table.n / tally.sizes[0]) if forecast else None,  # of it a part is fitted on
        chance=median_low(chance for _, chance in tally.needed) if forecast else None,
        why_refused=tally.why,
        exceeded=tally.exceeded,
        policy=made[-1],
        reference=made[0],
        others=tuple(made[1:-1]),
        coin=coin_of(results, tally.sizes) if certified else None,
        clairvoyant_usd=None if cost is None or not table.cost_known else cost / 1e9,
        impossible=cost is None,
        lost=lost,
        unsolvable=float(hopeless(judged.arrays).mean()),
        first_right=float(first_step(judged).right.mean()),
        signals=tuple(signal_uses(judged)),
        unknown=(*left_out.said, *unknowns(table)),
        truth=table.truth,
    )


_JUDGED = {"base", "guide"}


def holds_both(table: EpisodeTable) -> bool:
    """Return whether a log of rounds also has the guide's own answers, so that it can be read as a ladder too."""
    judged = "base" in table.sources and _JUDGED.issuperset(table.sources) and "p_yes" in table.signals
    return judged and walked(table, GUIDE_ONLY) is not None
