"""Learned policies, for serving: one rule for each step maps the steps so far to scores and confidences.

`training` fits the rules, and this module applies them: it computes features, a score for going on, a score for each
answer, and the probability that each answer is right. One observation (`scores`) and a whole log (`batch`) give the
same bits, since a certified threshold is the score of a logged step.

Answers are served by the highest confidence that any step gave them (`engine.rank`). An earlier answer's confidence
may be out of date, because other models have answered since and may have contradicted it. So each step estimates again
how likely its own answers and the best answer so far (the incumbent) are right, and places the new confidences above
or below the incumbent's old one accordingly (`beside`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays
from cascade.errors import UsageError
from cascade.policies.base import BatchScores, FittedOn, History, Observation, Policy, Scores, Takes
from cascade.policies.design import GO_ON, Memo
from cascade.policies.estimators import Best, Scorer
from cascade.policies.features import Feature, FeatureSet, column, describe
from cascade.types import Step

if TYPE_CHECKING:
    from cascade.policies.network import Network


Confidences: TypeAlias = tuple[float | None, ...]
NETWORKS = ("cpo", "cpo_batch", "cpo_online", "ccpo")
"""The methods whose rules are policy networks (`network`)."""
CERTIFIABLE = ("cpo_batch", "ccpo")
"""The networks that can have a certificate, the simpler one first."""
BARE = ("cpo", "cpo_online")
"""The networks without a certificate: one serves its likeliest action, the other at the threshold from its training."""
METHODS = ("net_benefit", "purchases", "threshold", "depth", "reference", *NETWORKS)
_CHUNK = 2_048
"""Rows scored at a time: their columns stay in the cache, which is three times as fast as all at once."""


@dataclass(frozen=True, slots=True)
class StepRule:
    """The rule that decides after one step.

    Attributes:
        features: the features that it reads.
        next: the score of going on; None at the last step.
        include: the score of each source's answer; None if it is always kept.
        confidence: P(this source's answer is right | the steps so far); None to use the strategy's own.
        incumbent: P(the best answer of the earlier steps is right | the steps so far); None if not fitted, as at step
            1. It is the chance as of now, while that answer's own confidence is as of its step.
    """

    features: FeatureSet
    next: Scorer | None
    include: tuple[Scorer | None, ...]
    confidence: tuple[Scorer | None, ...]
    incumbent: Scorer | None = None

    def __post_init__(self) -> None:
        if not any(one.network for one in self.scorers):
            return
        from cascade.policies.network import action_problems

        problems = list(action_problems(self.next, self.include, (*self.confidence, self.incumbent)))
        if problems:
            raise UsageError(f"The actions of a step's rule do not fit it: {'; '.join(problems)}.")

    @property
    def network(self) -> Network | None:
        """The network of its actions; None if it has no actions."""
        found = (one.network for one in (self.next, *self.include) if one is not None)
        return next(filter(None, found), None)

    @property
    def signals(self) -> list[str | None]:
        """The signal that each feature reads (`signals_read`)."""
        return signals_read(self.features.names, self.features.sources)

    @property
    def scorers(self) -> tuple[Scorer, ...]:
        """All scorers of the rule."""
        every = (self.next, *self.include, *self.confidence, self.incumbent)
        return tuple([one for one in every if one is not None])


@dataclass(frozen=True, slots=True)
class LearnedPolicy(Policy):
    """A policy that was fitted on a log.

    If a feature is missing that was never missing in training, the scorer that needs it gives no score: the policy goes
    on, the answer is kept, the confidence is unknown. Beyond the last rule everything is kept.

    Args:
        method: how it was fitted, one of `METHODS`.
        rules: one for each step, all with the same sources.
        kappa: the threshold if none is certified.
        takes: the part of the strategy that it walks over, one rule for each step of it; None: all of it.
        states: for a policy that decides before each call, the numbers of the offers bought when each rule decides. The
            first set is empty, smaller sets come first, and the last set has only the last offer, the reference. Empty
            for a policy that has a rule for each step.
    """

    method: str
    rules: tuple[StepRule, ...]
    kappa: float = 0.0
    takes: Takes | None = None
    states: tuple[tuple[int, ...], ...] = ()
    judges: bool = field(init=False, repr=False, compare=False)
    """Whether it has confidences of its own."""
    _by_state: Mapping[tuple[int, ...], StepRule] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        judges = any(one is not None for rule in self.rules for one in rule.confidence)
        object.__setattr__(self, "judges", judges)  # computed once, since every decision needs it
        object.__setattr__(self, "_by_state", dict(zip(self.states, self.rules, strict=False)))
        if self.states:
            self._check_states()
        places = {(len(rule.features.sources), len(rule.include), len(rule.confidence)) for rule in self.rules}
        if len({rule.features.sources for rule in self.rules}) != 1 or {len(set(many)) for many in places} != {1}:
            raise UsageError(
                "A learned policy must have a rule for each step, all of the same sources, with two scorers each."
            )

    def _check_states(self) -> None:
        last, problems = self.horizon, list[str]()
        if len(self.states) != len(self.rules) or len(self._by_state) != len(self.rules):
            problems.append("there must be one rule for each set of offers bought")
        if self.states[0] or self.states[-1] != (last,) or sorted(self.states[:-1], key=len) != list(self.states[:-1]):
            problems.append("the first set must be empty, and the last must be the reference")
        for state, rule in zip(self.states[:-1], self.rules, strict=False):
            ahead = rule.next.offers.tolist() if isinstance(rule.next, Best) else []
            after = [(last,) if offer == last else (*state, offer) for offer in ahead]
            if not ahead or ahead[0] <= max(state, default=0) or not self._by_state.keys() >= {*after}:
                problems.append(f"no rule follows {list(state)}")
        if problems:
            raise UsageError(f"A policy that buys must have a rule for each set of offers: {'; '.join(problems)}.")

    @property
    def sources(self) -> tuple[str, ...]:
        """The places of a step's candidates, as in `History`."""
        return self.rules[0].features.sources

    @property
    def horizon(self) -> int:
        """The number of steps that it has rules for."""
        return self.states[-1][-1] if self.states else len(self.rules)

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it reads, sorted."""
        return tuple(sorted({name for rule in self.rules for name in rule.signals if name is not None}))

    @property
    def needs(self) -> tuple[str, ...]:
        """The signals without which some scorer gives no score, sorted."""
        found: set[str | None] = set()
        for rule in self.rules:
            wanted = np.zeros(len(rule.features.names), dtype=np.bool_)
            for one in rule.scorers:
                wanted |= one.needs(wanted.size)
            found |= {name for name, needed in zip(rule.signals, wanted.tolist(), strict=True) if needed}
        return tuple(sorted(name for name in found if name is not None))

    @property
    def fitted_on(self) -> FittedOn:
        """The steps that it has rules for, and their candidates."""
        return FittedOn(self.horizon, self.sources)

    # --- one observation ---

    def scores(self, observation: Observation) -> Scores:
        """Score the latest step. Pure; confidences of earlier steps come from their recorded decisions, if any."""
        step = observation.step
        if step.number > self.horizon:
            own = tuple([one.confidence for one in step.candidates]) if self.judges else None
            return Scores((GO_ON,) * len(step.candidates), GO_ON, own)
        rule = self._rule_of(observation) if self.states else self.rules[step.number - 1]
        raw = np.array(rule.features.live(observation), dtype=np.float64)
        memo, places = Memo(raw), self._places(step)
        include = [None if at is None else rule.include[at] for at in places]
        kept = tuple([GO_ON if scorer is None else scorer.value(raw, memo) for scorer in include])
        buy = None
        if isinstance(rule.next, Best):
            onward, buy = rule.next.pick(raw, memo)
        else:
            onward = -math.inf if rule.next is None else rule.next.value(raw, memo)
        return Scores(kept, onward, self._confidences(observation, rule, places, memo) if self.judges else None, buy)

    def _rule_of(self, observation: Observation) -> StepRule:
        """Return the rule for the offers that were bought. A step numbered 0 is no step yet."""
        bought = tuple([step.number for step in observation.steps if step.number])
        if bought and bought[-1] >= self.horizon:
            return self.rules[-1]
        rule = self._by_state.get(bought)
        if rule is None:
            raise UsageError(f"The policy has no rule for the offers {list(bought)}, so it did not buy them.")
        return rule

    def _confidences(
        self, observation: Observation, rule: StepRule, places: Sequence[int | None], memo: Memo
    ) -> Confidences:
        """Return how likely each answer of the latest step is right."""
        candidates, raw = observation.step.candidates, memo.raw
        scorers = [None if at is None else rule.confidence[at] for at in places]
        chances = np.array([math.nan if one is None else _known(one.value(raw, memo)) for one in scorers])
        incumbent = best = math.nan
        if rule.incumbent is not None and not np.isnan(chances).all():
            incumbent = _known(rule.incumbent.value(raw, memo))
            best = math.nan if math.isnan(incumbent) else self._best_earlier(observation)
        made = beside(chances[None], np.array([incumbent]), np.array([best]))[0].tolist()
        each = zip(candidates, scorers, made, strict=True)
        return tuple(
            [one.confidence if scorer is None else None if math.isnan(sure) else sure for one, scorer, sure in each]
        )

    def _best_earlier(self, observation: Observation) -> float:
        """Return the highest confidence of the steps before the latest: as recorded, or computed again.

        NaN if no step has one.
        """
        question, steps, horizon = observation
        best = math.nan
        for index in range(len(steps) - 1):
            decision = steps[index].decision
            held = None if decision is None else decision.confidences
            if held is None:
                held = self.scores(Observation(question, steps[: index + 1], horizon)).confidences
            for sure in held or ():
                if sure is not None and not sure <= best:
                    best = sure
        return best

    def _places(self, step: Step) -> Sequence[int | None]:
        if tuple([one.source for one in step.candidates]) == self.sources:  # as in most steps
            return range(len(step.candidates))
        fitted = self.fitted_on  # a candidate's place as features are read (`seen.in_places`)
        return [fitted.place(one.source, index) for index, one in enumerate(step.candidates)]

    # --- a log ---

    def batch(self, history: History) -> BatchScores:
        """Score every recorded step; −inf for absent steps and candidates."""
        if self.states:
            return self._batch_bought(history)
        present = history.answer >= 0
        scores = ScoreArrays(np.full(present.shape, -np.inf), np.full(present.shape[:2], -np.inf))
        confidence = np.where(present, history.confidence, np.nan) if self.judges else None
        places = [self.fitted_on.place(source, index) for index, source in enumerate(history.sources)]
        for t in range(history.horizon):
            rows = np.flatnonzero(history.steps > t)
            if t >= len(self.rules):
                scores.candidates[rows, t], scores.next[rows, t] = GO_ON, GO_ON
                continue
            raw = self.rules[t].features.table(history, t + 1)[rows]
            found = _found(self.rules[t], raw, places, present[rows, t])
            scores.candidates[rows, t], scores.next[rows, t] = found.include, found.next
            if confidence is not None:
                confidence[rows, t] = _placed(confidence, rows, t, found)
        scores.candidates[~present] = -np.inf
        return BatchScores(scores, confidence)

    def _batch_bought(self, history: History) -> BatchScores:
        """Walk over a log to its end, and buy as `scores` does; all other steps are skipped at every threshold."""
        present, horizon = history.answer >= 0, self.horizon
        scores = ScoreArrays(np.full(present.shape, -np.inf), np.full(present.shape[:2], np.inf))
        confidence, bought = np.full(present.shape, np.nan), np.zeros(present.shape[:2], dtype=np.bool_)
        waiting: dict[tuple[int, ...], Ints] = {(): np.arange(history.n)}
        for state, rule in self._by_state.items():
            rows = waiting.pop(state, np.zeros(0, dtype=np.int64))
            if not rows.size:
                continue
            part = history.take(rows)
            raw = rule.features.table(part.only(state) if state else part, max(1, len(state)))
            if state:
                at = state[-1] - 1
                bought[rows, at] = True
                scores.candidates[rows, at] = np.where(present[rows, at], GO_ON, -np.inf)
                confidence[rows, at] = _found(rule, raw, range(len(history.sources)), present[rows, at]).chance
            if not isinstance(rule.next, Best):
                if state:
                    scores.next[rows, at] = -np.inf
                continue
            worth, chosen = rule.next.picks(raw)
            if state:
                scores.next[rows, at] = worth
            for offer in rule.next.offers.tolist():
                some = rows[(chosen == offer) & part.has(offer)]
                after = (offer,) if offer == horizon else (*state, offer)
                waiting[after] = np.concatenate([waiting.get(after, some[:0]), some])
        if self.judges:
            confidence = np.clip(confidence, LEAST, 1.0 - LEAST)
        return BatchScores(scores, confidence if self.judges else None, bought)


class _RuleResults(NamedTuple):
    """A rule's results on n rows with m places.

    `next` and `incumbent` are (n,), the others (n, m). NaN is unknown; `own` marks the answers that keep the strategy's
    confidence.
    """

    next: Floats
    include: Floats
    chance: Floats
    own: Bools
    incumbent: Floats


def _found(rule: StepRule, raw: Floats, places: Sequence[int | None], present: Bools) -> _RuleResults:
    """Score the rows of one step, float64 (n, d), in chunks. An absent candidate has no chance."""
    starts = range(0, max(raw.shape[0], 1), _CHUNK)
    parts = [_chunk(rule, raw[start : start + _CHUNK], places) for start in starts]
    whole = _RuleResults(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return whole._replace(chance=np.where(present, whole.chance, np.nan))


def _chunk(rule: StepRule, raw: Floats, places: Sequence[int | None]) -> _RuleResults:
    memo = Memo(raw)

    def of(scorer: Scorer | None, otherwise: float) -> Floats:
        return np.full(raw.shape[0], otherwise) if scorer is None else scorer.values(raw, memo)

    made = np.empty((2, raw.shape[0], len(places)))
    for place, at in enumerate(places):
        made[0, :, place] = of(None if at is None else rule.include[at], GO_ON)
        made[1, :, place] = of(None if at is None else rule.confidence[at], np.nan)
    own = [at is None or rule.confidence[at] is None for at in places]
    chance, incumbent = made[1], of(rule.incumbent, np.nan)
    return _RuleResults(
        of(rule.next, -np.inf),
        made[0],
        np.where(chance == GO_ON, np.nan, chance),
        np.broadcast_to(np.array(own, dtype=np.bool_), chance.shape),
        np.where(incumbent == GO_ON, np.nan, incumbent),
    )


def _placed(confidence: Floats, rows: Ints, t: int, found: _RuleResults) -> Floats:
    """Return the confidences of step t + 1 beside those of the steps before, float64 (n, T, m) -> (rows, m)."""
    best = np.fmax.reduce(confidence[rows, :t], axis=(1, 2), initial=np.nan)  # of those known
    return np.where(found.own, confidence[rows, t], beside(found.chance, found.incumbent, best))


def signals_read(names: Sequence[str], sources: tuple[str, ...]) -> list[str | None]:
    """Return the signal that each feature reads; None if it reads something else.

    >>> signals_read(["p_yes.change", "votes", "confidence[base].at1"], ("base", "guide"))
    ['p_yes', None, None]
    """
    series = [getattr(column(name, sources), "series", None) for name in names]
    return [getattr(one, "name", None) for one in series]


def _known(value: float) -> float:
    return math.nan if value == GO_ON else value


LEAST = 1e-9
"""Confidences stay this far from 0 and 1, so that one can be moved past another."""


def beside(chances: Floats, incumbent: Floats, best: Floats) -> Floats:
    """Return confidences of new answers that are in order among themselves and relative to the incumbent.

    Args:
        chances: float64 (n, m), P(a new answer is right | all that is known now); NaN = unknown.
        incumbent: float64 (n,), the same of the best earlier answer; NaN = unknown.
        best: float64 (n,), the highest confidence of the earlier answers; NaN = none has any.

    Returns:
        float64 (n, m) in [0, 1]. A confidence is above `best` if the chance is above the incumbent's, below `best` if
        it is below, and `best` if the two are equal; it is as close to the chance as that allows. Chances on one side
        keep their order. If `best` is 0 or 1, the confidences beyond it equal it. If the incumbent is unknown, the
        confidence is the chance, at least `LEAST` from 0 and 1. NaN if the chance is NaN.
    """
    made = np.minimum(np.maximum(chances, LEAST), 1.0 - LEAST)
    apart = ~np.isnan(best) & ~np.isnan(incumbent)
    over = (chances > incumbent[:, None]) & apart[:, None]
    under = (chances < incumbent[:, None]) & apart[:, None]
    least, most = best, best
    more, fewer = _ahead(chances, over), _ahead(-chances, under)
    for place in range(chances.shape[1]):
        least, most = np.nextafter(least, np.inf), np.nextafter(most, -np.inf)
        made = np.where(over & (more == place), np.maximum(made, least[:, None]), made)
        made = np.where(under & (fewer == place), np.minimum(made, most[:, None]), made)
    same = (chances == incumbent[:, None]) & apart[:, None]
    return np.minimum(np.maximum(np.where(same, best[:, None], made), 0.0), 1.0)


def _ahead(chances: Floats, side: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """Return how many answers of the same side have a lower chance: float64 (n, m)."""
    return np.asarray(((chances[:, None, :] < chances[:, :, None]) & side[:, None, :]).sum(axis=2), dtype=np.float64)


# --- how much a policy's score depends on each of its features: one figure for readers, for every form of score ---
# For a policy network the figure is about the probabilities of its actions; after the last step these are the
# probabilities of keeping answers. Their logarithms, the scores, would mislead: a change from 1e-9 to 1e-20 decides
# nothing, but would make up most of the logarithms' variance.

_ROWS = 2_000
"""The most questions used: the figure has two digits."""


class Weighed(NamedTuple):
    """One feature of one step, and how much the score of going on, or a network's probabilities, depend on it.

    Attributes:
        step: the step after which the policy reads it; 0 before any call.
        feature: its description.
        weight: 0 if the score does not depend on the feature, 1 if it depends on nothing else. None if nothing is
            scored, or if the score does not vary. Features with the same information share a weight, divided as the fit
            divided it.
        known: the share of questions that have it; None if no question took the step.
    """

    step: int
    feature: Feature
    weight: float | None
    known: float | None


def weighed(policy: LearnedPolicy, history: History, seed: int = 0) -> list[Weighed]:
    """Return how much each feature moves the scores of going on, on some logged questions.

    A feature's values are permuted among the questions; its weight is √(E[(s − r)²] / (2 Var s)), for a score s that
    becomes r. For a linear score that is |weight| · sd(feature) / sd(score). For a network, s and r are the
    probabilities of its actions, and both means are summed over these. A question is left out if its score is +∞
    because it lacks a feature that was always there in training. About 2,000 questions, evenly spread, are used.

    Reference: Breiman, Random forests (2001), permutation importance, of the score instead of its error.
    """
    rows = np.arange(0, history.n, max(1, -(-history.n // _ROWS)))
    some, found = history.take(rows), []
    for step, rule, here in _rules(policy, some):
        raw = rule.features.table(here, max(1, min(step, here.horizon)))[here.steps >= min(step, here.horizon)]
        for place, name in enumerate(rule.features.names):
            known = float((~np.isnan(raw[:, place])).mean()) if len(raw) else None
            found.append(Weighed(step, describe(name), _weight(rule, raw, place, seed), known))
    return found


def _rules(policy: LearnedPolicy, history: History) -> Iterator[tuple[int, StepRule, History]]:
    """Yield the rules with the steps that they read; for a policy that buys, those with at most one offer bought."""
    if not policy.states:
        yield from ((step, rule, history) for step, rule in enumerate(policy.rules, 1))
    for state, rule in zip(policy.states[:-1], policy.rules, strict=False):
        if len(state) < 2:
            yield (state[0], rule, history.only(state)) if state else (0, rule, history)


def _weight(rule: StepRule, raw: Floats, place: int, seed: int) -> float | None:
    dealt = raw.copy()
    dealt[:, place] = np.random.default_rng([seed, place]).permutation(raw[:, place])
    one, other = _scored(rule, raw), _scored(rule, dealt)
    if one is None or other is None:
        return None
    both = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    spread = float(np.var(one[both], axis=0).sum()) if both.any() else 0.0
    if not spread > 0:
        return None
    moved = float(np.mean((one[both] - other[both]) ** 2, axis=0).sum())
    return min(1.0, math.sqrt(moved / (2 * spread)))


def _scored(rule: StepRule, raw: Floats) -> Floats | None:
    """Return a rule's scores, float64 (n, d) -> (n, j), +∞ for unknown ones; None if it scores nothing."""
    network = rule.network
    if network is not None and (rule.next is None or rule.next.network is not None):
        logs = network.log_probabilities(raw)[:, network.allowed]
        return np.where(logs == GO_ON, np.inf, np.exp(np.minimum(logs, 0.0)))
    return None if rule.next is None else rule.next.values(raw)[:, None]
