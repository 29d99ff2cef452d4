"""The choice: candidates are compared on questions that they have not seen, all at the same loss.

Each question is scored by a model that was fitted without it and without its group (cross-fitting). A candidate's
figure is its cost at exactly the allowed loss, matched within each fold, because one model scores a fold and one model
will be served. One threshold on the scores of five models would penalise learned candidates, whose scores differ in
scale between folds, but not candidates that learn nothing. Single answers are matched on all folds at once, since no
threshold may reach the allowed loss in a small fold.

The differences to the best are bootstrapped over groups, all candidates under the same weights. The rule chooses the
simplest candidate that is neither significantly worse than the best nor costs more than it by a small margin
(`design/fitting.md`).
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from cascade.calibration.scores import Sample, sample_of, taken
from cascade.conformal.arrays import Floats, Ints, ScoreArrays, levels, rollout
from cascade.episodes.table import EpisodeTable
from cascade.errors import CascadeError, UsageError
from cascade.guarantees.questions import check_identity
from cascade.policies.base import Policy
from cascade.policies.learned import LearnedPolicy
from cascade.training.objective import (
    CostLossCurve,
    Objective,
    Unit,
    Units,
    Weights,
    allowed_of,
    bootstrap,
    cost_at_loss,
    curve_of,
    draws,
    units,
)

# --- Cross-fitting: the scores of each question by a policy that was made without it and without its group ---
# The order is fold by fold, and candidate by candidate within a fold: candidates share the preparation of a table.


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to make a policy from training questions.

    Attributes:
        name: its name in the table.
        method: its method in `policies.learned`.
        complexity: the rank in simplicity: of equally good candidates the one with the lowest complexity is chosen.
        fit: makes the policy, as far as the choice needs it; the same questions give the same policy.
        finish: makes the complete policy, if `fit` leaves out a part; None: `fit` makes all of it.
        most_rows: the most questions of each fold that the choice fits it on; None = all. The winner is fitted on all.
    """

    name: str
    method: str
    complexity: int
    fit: Callable[[EpisodeTable], LearnedPolicy]
    most_rows: int | None = None
    finish: Callable[[EpisodeTable], LearnedPolicy] | None = None

    def whole(self, table: EpisodeTable) -> LearnedPolicy:
        """Make the policy that is served."""
        return (self.fit if self.finish is None else self.finish)(table)


class CrossFitted(NamedTuple):
    """A candidate scored out of fold.

    Attributes:
        sample: the questions with the candidate's scores.
        coverage: the share of questions covered at the candidate's own threshold.
        seconds: the time to fit it on all folds.
    """

    sample: Sample
    coverage: float
    seconds: float


def cross_fitted(
    table: EpisodeTable, candidates: Sequence[Candidate], fold: Ints
) -> tuple[dict[str, CrossFitted], dict[str, str]]:
    """Return each candidate's scores. The model that scores a question was fitted without that question's fold.

    Also return, by name, why a candidate could not be fitted.
    """
    blanks, failed = {one.name: _Blank(table) for one in candidates}, dict[str, str]()
    for number in range(int(fold.max()) + 1):
        some = _Fold(table, fold, number)
        for one in candidates:
            if one.name not in failed:
                try:
                    blanks[one.name].fill(one, some)
                except CascadeError as error:
                    failed[one.name] = str(error)
    return {name: blank.held() for name, blank in blanks.items() if name not in failed}, failed


def out_of_fold(table: EpisodeTable, candidate: Candidate | None, fold: Ints) -> Sample | None:
    """Return one candidate's scores as `cross_fitted` makes them; None if it cannot be fitted, or if there is none."""
    if candidate is None:
        return None
    held, failed = cross_fitted(table, [candidate], fold)
    return None if failed else held[candidate.name].sample


def cost_of(sample: Sample | None, objective: Objective, alpha: float, *, coin: float = 1.0) -> float:
    """Return the mean cost at a mean loss of alpha; +∞ if no threshold reaches it, or no question is scored."""
    if sample is None:
        return math.inf
    walk = curve_of(sample, objective.guarantee, objective.prices)
    return cost_at_loss(walk, allowed_of(sample.table, objective.guarantee, alpha), coin=coin)


class _Fold:
    """The questions of a fold to score, int64 rows, and those to fit on: the same tables for all candidates."""

    def __init__(self, table: EpisodeTable, fold: Ints, number: int) -> None:
        self.rows = np.flatnonzero(fold == number)
        self.part = table.take(self.rows)
        self._whole, self._seen = table, np.flatnonzero(fold != number)
        self._tables: dict[int | None, EpisodeTable] = {}

    def to_fit(self, most: int | None) -> EpisodeTable:
        """Return at most `most` of the questions to fit on."""
        if most is not None and self._seen.size <= most:
            most = None
        if most not in self._tables:
            few = self._seen if most is None else _fewer(self._whole, self._seen, most)
            self._tables[most] = self._whole.take(few)
        return self._tables[most]


class _Blank:
    """A candidate's scores out of fold, filled in fold by fold."""

    def __init__(self, table: EpisodeTable) -> None:
        self._whole = table
        self._table: EpisodeTable | None = None
        self._covered, self._seconds = 0, 0.0

    def _room(self, policy: Policy) -> EpisodeTable:
        """Return the steps that the policy takes, with room for their scores, made at the first fold."""
        if self._table is None:
            self._table = taken(policy, self._whole)
            self._confidence = self._table.confidence.copy()
            self._scores = ScoreArrays(np.empty_like(self._confidence), np.empty_like(self._table.paid))
            self._bought = np.ones(self._table.paid.shape, dtype=np.bool_)
        return self._table

    def fill(self, candidate: Candidate, some: _Fold) -> None:
        """Fit, and score the questions of a fold."""
        started = time.perf_counter()
        policy = candidate.fit(some.to_fit(candidate.most_rows))
        part, rows = sample_of(some.part, policy), some.rows
        self._room(policy)
        self._confidence[rows] = part.table.confidence
        self._scores.candidates[rows], self._scores.next[rows] = part.scores
        if part.table.bought is not None:
            self._bought[rows] = part.table.bought
        self._covered += int(np.count_nonzero(rollout(part.table.arrays, part.levels, policy.kappa).covered))
        self._seconds += time.perf_counter() - started

    def held(self) -> CrossFitted:
        """Return the candidate's scores on all folds."""
        assert self._table is not None  # noqa: S101 - every fold was filled
        bare = self._table if self._bought.all() else self._table.as_bought(self._bought)
        found = replace(bare, confidence=self._confidence)
        sample = Sample(found, self._scores, levels(found.arrays, self._scores))
        return CrossFitted(sample, self._covered / found.n, self._seconds)


def _fewer(table: EpisodeTable, rows: Ints, most: int) -> Ints:
    """Return at most `most` rows, in complete groups; if every group is larger than that, return one group.

    Groups are taken in the order of a hash of their names. A group that is too large for the room left is skipped.
    """
    if rows.size <= most:
        return rows
    size = Counter([table.groups[row] for row in rows.tolist()])
    order = sorted(size, key=lambda name: hashlib.sha256(f"fewer|{name}".encode("utf-8", "replace")).digest())
    kept, left = set[str](), most
    for group in order:
        if size[group] <= left:
            kept.add(group)
            left -= size[group]
    chosen = kept or {order[0]}
    return rows[np.fromiter((table.groups[row] in chosen for row in rows.tolist()), dtype=np.bool_, count=rows.size)]


# --- choosing ---


class Rule(NamedTuple):
    """The rule that says when a candidate is as good as the best.

    A candidate is rejected if it is worse than the best in at least a share 1 − `level` of the bootstrap replicates. A
    simpler candidate may cost more than the best by a share of at most `margin`.
    """

    level: float = 0.05
    margin: float = 0.01


RULE = Rule()
_COIN = 0.05
"""The share of a fold's questions up to which a coin may choose between two thresholds. A served policy has one
threshold: if more questions have the same score, as with a fixed depth or a yes-or-no signal, the coin would be cheaper
than any policy that can be served."""


class Difference(NamedTuple):
    """The 90 % interval of a paired difference to the best, in the unit of the choice."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The figures of one candidate.

    Attributes:
        name, method, complexity: those of the candidate.
        matched: its cost at the point that keeps the promise: in the unit of
            the choice; None if it could not be fitted, or no threshold keeps it.
        difference: the interval of its difference to the best; None for the best itself, without a figure, and if too
            many replicates have none.
        coverage: its coverage out of fold at its own threshold, before any calibration; None if not fitted.
        fit_seconds: the time to fit it for the choice, all folds.
        chosen: whether it is the chosen one.
        why: the reason, in words.
    """

    name: str
    method: str
    complexity: int
    matched: float | None
    difference: Difference | None
    coverage: float | None
    fit_seconds: float
    chosen: bool
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen candidate, all candidates that were compared, and the reasons.

    Attributes:
        judged: all candidates, in their order.
        chosen: the candidate to be fitted on all training questions.
        objective: the figure that compared them.
        folds: the number of folds; 0 if nothing was compared.
        n, groups: the numbers of questions and groups that they were compared on.
        sample: the questions with the chosen candidate's scores, out of fold if there are folds.
    """

    judged: tuple[Judged, ...]
    chosen: Candidate
    objective: Objective
    folds: int
    n: int
    groups: int
    sample: Sample

    @property
    def unit(self) -> Unit:
        """The unit of `cost_at_loss`: nano-USD a question, or steps a question."""
        return self.objective.unit

    @property
    def alpha(self) -> float:
        """The loss at which they were compared."""
        return self.objective.alpha

    def of(self, name: str) -> Judged:
        """Return the figures of a candidate."""
        return next(one for one in self.judged if one.name == name)

    @property
    def winner(self) -> Judged:
        """The figures of the chosen candidate."""
        return self.of(self.chosen.name)

    def figures(self, training: int, calibration: int) -> Mapping[str, Any]:
        """Return how the policy was chosen, as plain JSON values, without durations: the same log gives the same bytes.

        `training` and `calibration` are numbers of questions.
        """
        return {
            "chosen": self.chosen.name,
            "unit": self.unit,
            "alpha": self.alpha,
            "folds": self.folds,
            "training": training,
            "calibration": calibration,
            "candidates": [
                {
                    "name": one.name,
                    "method": one.method,
                    "matched": one.matched,
                    "difference": None if one.difference is None else list(one.difference),
                    "why": one.why,
                }
                for one in self.judged
            ],
        }


def choose(
    table: EpisodeTable,
    candidates: Sequence[Candidate],
    objective: Objective,
    fold: Ints,
    *,
    seed: int = 0,
    rule: Rule = RULE,
) -> Choice:
    """Choose the simplest candidate within noise of the best.

    `table` has each training question once, and none of them will calibrate; `fold` is the fold of each
    (`calibration.samples.folds`), and `seed` draws the bootstrap.
    """
    held, failed = cross_fitted(table, candidates, fold)
    if objective.guarantee.single:
        failed |= _untold(held, abstain=objective.guarantee.abstain)
    there = [one for one in candidates if one.name not in failed]
    if not there:
        raise UsageError(_none_fitted(failed))
    bouts = _bouts({one.name: held[one.name].sample for one in there}, objective, fold)
    figures = {name: bout.figure() for name, bout in bouts.items()}
    best = min(there, key=lambda one: (figures[one.name], one.complexity))
    gaps = _gaps(bouts, best.name, table, seed)
    able = [one for one in there if _as_good(figures[one.name], figures[best.name], gaps[one.name], rule)]
    chosen = min(able, key=lambda one: (one.complexity, figures[one.name]))
    findings = _Findings(figures, gaps, failed, best, chosen, rule)
    return Choice(
        judged=tuple([_judged(one, held.get(one.name), findings) for one in candidates]),
        chosen=chosen,
        objective=objective,
        folds=int(fold.max()) + 1,
        n=table.n,
        groups=len(set(table.groups)),
        sample=held[chosen.name].sample,
    )


def _untold(held: Mapping[str, CrossFitted], *, abstain: bool) -> dict[str, str]:
    """Return, for some candidates, why their served answers are unknown: votes decide, and the log has no texts.

    A candidate whose highest confidence always belongs to one answer needs no votes.
    """
    failed: dict[str, str] = {}
    for name, found in held.items():
        try:
            check_identity(found.sample, abstain=abstain)
        except UsageError as error:
            failed[name] = str(error)
    return failed


def _none_fitted(failed: Mapping[str, str]) -> str:
    """Return why there is no policy to choose; a reason that all candidates share is given once."""
    one = len(set(failed.values())) == 1
    reasons = set(failed.values()) if one else [f"{name}: {said}" for name, said in failed.items()]
    return "No policy can be fitted: " + "; ".join(reasons)


def unchosen(table: EpisodeTable, taken: Candidate, candidates: Sequence[Candidate], objective: Objective) -> Choice:
    """Return the choice of a candidate that was not compared: it is the only one, or the questions are too few.

    The scores come from the policy fitted on all of the questions.
    """
    said = "there is no other" if len(candidates) == 1 else f"{table.n} questions are too few to choose by"
    judged = [
        Judged(one.name, one.method, one.complexity, None, None, None, 0.0, chosen=one is taken, why=said)
        for one in candidates
    ]
    sample = sample_of(table, taken.whole(table))
    return Choice(tuple(judged), taken, objective, 0, table.n, len(set(table.groups)), sample)


class _CandidateCurve(NamedTuple):
    """Some questions (int64 rows), the candidate's cost-loss curve on them, and the mean loss allowed."""

    rows: Ints
    walk: CostLossCurve
    allowed: float


@dataclass(frozen=True, slots=True)
class _Bout:
    """A candidate's questions in parts; each part is matched separately."""

    parts: tuple[_CandidateCurve, ...]

    def figure(self) -> float:
        """Return the matched value, over the parts."""
        total = sum(part.rows.size * cost_at_loss(part.walk, part.allowed, coin=_COIN) for part in self.parts)
        return float(total / sum(part.rows.size for part in self.parts))

    def replicates(self, drawn: Units, weights: Weights) -> Floats:
        """Return the matched value in each replicate, float64 (replicates,)."""
        total = np.zeros(len(weights))
        for part in self.parts:
            names, of = np.unique(drawn.of[part.rows], return_inverse=True)
            found = bootstrap(part.walk, part.allowed, Units(of, names.size), weights[:, names], coin=_COIN)
            total += part.rows.size * found
        return total / sum(part.rows.size for part in self.parts)


def _bouts(samples: Mapping[str, Sample], objective: Objective, fold: Ints) -> dict[str, _Bout]:
    """Return each candidate's questions: a part for each fold, or one part if a fold may not keep the promise."""
    whole = {name: _bout(sample, objective, [np.arange(fold.size)]) for name, sample in samples.items()}
    if objective.guarantee.single:
        return whole
    rows = [np.flatnonzero(fold == number) for number in range(int(fold.max()) + 1)]
    split = {name: _bout(sample, objective, rows) for name, sample in samples.items()}
    lost = any(math.isinf(split[name].figure()) and math.isfinite(bout.figure()) for name, bout in whole.items())
    return whole if lost else split


def _bout(sample: Sample, objective: Objective, rows: Sequence[Ints]) -> _Bout:
    guarantee, alpha, prices = objective
    each = [(some, sample.take(some)) for some in rows]
    parts = [
        _CandidateCurve(of, curve_of(one, guarantee, prices), allowed_of(one.table, guarantee, alpha))
        for of, one in each
    ]
    return _Bout(tuple(parts))


def _gaps(bouts: dict[str, _Bout], best: str, table: EpisodeTable, seed: int) -> dict[str, Floats]:
    """Return each candidate's difference to the best in every replicate, float64 (replicates,)."""
    drawn = units(table.groups)
    weights = draws(drawn.many, seed)
    first = bouts[best].replicates(drawn, weights)
    return {name: _minus(bout.replicates(drawn, weights), first) for name, bout in bouts.items()}


def _minus(one: Floats, other: Floats) -> Floats:
    """Return `one` minus `other`; 0 if both are +∞, because then neither keeps the promise."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(np.isinf(one) & np.isinf(other), 0.0, one - other), dtype=np.float64)


def _as_good(figure: float, best: float, gaps: Floats, rule: Rule) -> bool:
    """Whether a candidate is within the margin of the best, and not rejected by the bootstrap (`Rule`)."""
    if figure <= best:
        return True
    return figure <= best + rule.margin * abs(best) and float((gaps <= 0).mean()) > rule.level


class _Findings(NamedTuple):
    """The figures of all candidates."""

    figures: Mapping[str, float]
    gaps: Mapping[str, Floats]
    failed: Mapping[str, str]
    best: Candidate
    chosen: Candidate
    rule: Rule


def _judged(one: Candidate, held: CrossFitted | None, found: _Findings) -> Judged:
    bare = Judged(one.name, one.method, one.complexity, None, None, None, 0.0, chosen=False, why="")
    if held is None or one.name in found.failed:
        return replace(bare, why=f"not fitted: {found.failed[one.name]}")
    figure = found.figures[one.name]
    known = replace(bare, coverage=held.coverage, fit_seconds=held.seconds, chosen=one is found.chosen)
    if math.isinf(figure):
        return replace(known, why="keeps the promise at no threshold")
    known = replace(known, matched=figure, why=_why(one, found))
    if one is found.best:
        return known
    # No interpolation between replicates: in some a candidate keeps the promise at no threshold, and costs +∞.
    low, high = np.quantile(found.gaps[one.name], (0.05, 0.95), method="nearest").tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        return known
    return replace(known, difference=Difference(low, high))


def _more(share: float) -> str:
    """Return a relative difference as text, with two digits.

    >>> _more(0.0312), _more(1.24), _more(22.4)
    ('3.1 % more', '120 % more', '2,200 % more')
    """
    percents = float(f"{100 * share:.2g}")
    return f"{percents:,.0f} % more" if percents >= 10 else f"{percents:g} % more"


def _why(one: Candidate, found: _Findings) -> str:
    """Return the reason why a candidate was chosen, or not."""
    best, chosen = found.best, found.chosen
    if one is chosen:
        return "the least" if one is best else f"as good as {best.name} within noise, and simpler"
    if one is best:
        return f"the least, but no more than chance ahead of {chosen.name}, which is simpler"
    least, figure = found.figures[best.name], found.figures[one.name]
    more = _more(figure / least - 1) if least > 0 else "more"
    sure = float((found.gaps[one.name] <= 0).mean()) <= found.rule.level
    if not sure and one.complexity >= chosen.complexity and figure <= least * (1 + found.rule.margin):
        return f"as good within noise, and not as simple as {chosen.name}"
    return f"{more}, {'more than chance' if sure else 'which may be chance'}"
