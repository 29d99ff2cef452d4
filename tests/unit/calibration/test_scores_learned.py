"""A log scored whole: the same numbers as one observation at a time, and logs that do not fit a learned policy."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.scores import check_fits, history_of, scored, table_scores
from cascade.conformal.arrays import StepArrays
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.policies.artifact import CalibratedPolicy, Threshold
from cascade.policies.estimators import Constant, Signal
from cascade.policies.features import FeatureSet
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.policies.threshold import ThresholdPolicy
from unit.policies import learned_made as made

NAMES = (
    "p_yes",
    "p_yes.change",
    "reply_mean_logprob",
    "reply_tokens.most",
    "votes",
    "repeats[base]",
    "confidence[guide]",
)


def log(seed: int = 0, n: int = 60, sources: tuple[str, ...] = made.PAIR) -> EpisodeTable:
    """Return random walks as a table; right answers by chance."""
    rng = np.random.default_rng(seed)
    held = made.walks(rng, n, sources).history
    arrays = StepArrays(
        held.answer,
        (held.answer == 1) & (rng.random(held.answer.shape) < 0.9),
        np.where(np.isnan(held.cost), 0, held.cost).astype(np.int64),
        held.steps,
        held.complete,
    )
    names = tuple([f"q{row}" for row in range(n)])
    return EpisodeTable(
        "log", names, names, sources, arrays, held.confidence, held.signals, {}, texts_known=held.texts_known
    )


def policy(seed: int = 0, *, judges: bool = True) -> LearnedPolicy:
    """Return a policy that looks at nothing that a table lacks when it is shown step by step."""
    rng = np.random.default_rng(seed)
    rules = []
    for number in range(1, 5):
        features = FeatureSet(NAMES[: 5 if number == 1 else 7], made.PAIR)
        d = len(features.names)
        shared = made.design(rng, d)
        sure = (made.logistic(rng, shared), made.logistic(rng, shared)) if judges else (None, None)
        onward = made.linear(rng, shared) if number < 4 else None
        incumbent = made.logistic(rng, shared) if judges and number > 1 else None
        rules.append(StepRule(features, onward, (None, made.trees(rng, d)), sure, incumbent))
    return LearnedPolicy("net_benefit", tuple(rules))


@pytest.mark.parametrize("seed", range(5))
def test_a_log_scored_whole_is_a_log_scored_step_by_step(seed: int) -> None:
    table, one = log(seed), policy(seed)
    judged, scores = scored(one, table)
    slow = table_scores(one, table)
    assert np.array_equal(scores.candidates, slow.candidates)
    assert np.array_equal(scores.next, slow.next)
    batch = one.batch(history_of(table))
    assert np.array_equal(judged.confidence, batch.confidence, equal_nan=True)  # type: ignore[arg-type]
    assert not np.array_equal(judged.confidence, table.confidence, equal_nan=True)
    assert (np.isnan(judged.confidence) | table.arrays.present).all()


def test_without_confidences_of_its_own_the_table_is_as_it_was() -> None:
    table = log()
    assert scored(policy(judges=False), table)[0] is table
    assert scored(ThresholdPolicy(keep="both"), table)[0] is table


def test_a_policy_that_sees_one_step_at_a_time_is_shown_one_at_a_time() -> None:
    table, hand_set = log(), ThresholdPolicy(keep="both")
    slow = table_scores(hand_set, table)
    for one in (hand_set, CalibratedPolicy(hand_set, Threshold(0.5))):
        found = scored(one, table)[1]
        assert np.array_equal(found.next, slow.next)
        assert np.array_equal(found.candidates, slow.candidates)
    assert hand_set.batch(history_of(table)) is None
    assert CalibratedPolicy(hand_set, Threshold(0.5)).batch(history_of(table)) is None


@pytest.mark.parametrize("everything", [False, True])
def test_a_calibrated_policy_hands_on_what_the_policy_says(everything: bool) -> None:
    table, inner = log(), policy()
    one = CalibratedPolicy(inner, Threshold(0.25, keeps_everything=everything))
    judged, scores = scored(one, table)
    mine, own = scored(inner, table)
    assert np.array_equal(judged.confidence, mine.confidence, equal_nan=True)
    if everything:
        assert np.array_equal(scores.candidates == math.inf, table.arrays.present)
        there = np.arange(4) < table.arrays.steps[:, None]
        assert np.array_equal(scores.next == math.inf, there)
        assert np.isinf(scores.next).all()
    else:
        assert np.array_equal(scores.next, own.next)
    slow = table_scores(one, table)
    assert np.array_equal(scores.candidates, slow.candidates)
    assert np.array_equal(scores.next, slow.next)
    seen = made.walks(np.random.default_rng(3), 1)
    found, bare = one.scores(seen.observation(0, 1)), inner.scores(seen.observation(0, 1))
    assert found.confidences == bare.confidences
    assert found.next == (math.inf if everything else bare.next)
    assert (one.reads, one.needs) == (inner.reads, inner.needs)


def _second(table: EpisodeTable) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.broadcast_to(np.arange(2) == 1, table.arrays.present.shape)[table.arrays.present]


# --- logs that do not fit


def test_a_log_lacks_a_signal_that_the_policy_cannot_do_without() -> None:
    table = log()
    features = FeatureSet(("p_yes", "reply_tokens"), made.PAIR)
    rule = StepRule(features, Signal(1), (None, None), (None, None))
    one = LearnedPolicy("threshold", (rule, rule, rule, replace(rule, next=None)))
    assert (one.reads, one.needs) == (("p_yes", "reply_tokens"), ("reply_tokens",))
    check_fits(one, table)
    without_p_yes = {name: values for name, values in table.signals.items() if name != "p_yes"}
    check_fits(one, replace(table, signals=without_p_yes))  # nothing is scored by it
    unknown = table.signals | {"reply_tokens": np.full((table.n, 4), np.nan)}
    with pytest.raises(
        UsageError, match="The policy reads reply_tokens, but log has no such signal; it has: p_yes, reply_mean"
    ):
        check_fits(CalibratedPolicy(one, Threshold(0.0)), replace(table, signals=unknown))


def test_a_log_that_is_deeper_than_the_policy_does_not_fit() -> None:
    shallow = replace(policy(), rules=policy().rules[:3])
    with pytest.raises(UsageError, match="was fitted on 3 steps; log was logged to 4"):
        check_fits(shallow, log())


def test_a_log_of_rounds_does_not_fit_what_was_fitted_on_a_ladder() -> None:
    rule = StepRule(FeatureSet(("p_yes",), made.LADDER), None, (None,), (None,))
    said = r"logged to 4\. It is for single calls, .* ladder:LOG, or call by call, offers:LOG; .*, take demo-ladder\.$"
    with pytest.raises(UsageError, match=said):
        check_fits(LearnedPolicy("threshold", (rule, rule)), log())


def test_a_log_of_other_sources_does_not_fit() -> None:
    with pytest.raises(UsageError, match="was fitted on answers of base and guide; log has answers of answer"):
        check_fits(policy(), log(sources=made.LADDER))


def test_beyond_the_last_rule_everything_is_kept() -> None:
    shallow, seen = replace(policy(), rules=policy().rules[:1]), made.walks(np.random.default_rng(1), 30)
    scores, confidence = shallow.batch(seen.history)[:2]
    later = (np.arange(4) >= 1) & (np.arange(4) < seen.history.steps[:, None])
    assert (scores.next[later] == math.inf).all()
    assert (scores.candidates[later][seen.history.answer[later] >= 0] == math.inf).all()
    assert confidence is not None
    assert np.array_equal(confidence[later], seen.history.confidence[later], equal_nan=True)
    row = int(np.argmax(seen.history.steps))
    found = shallow.scores(seen.observation(row, 2))
    assert found.next == math.inf
    assert found.confidences == tuple(one.confidence for one in seen.steps[row][1].candidates)


def test_rules_that_do_not_fit_each_other_make_no_policy() -> None:
    pair, ladder = FeatureSet(("p_yes",), made.PAIR), FeatureSet(("p_yes",), made.LADDER)
    one, other = StepRule(pair, Constant(0.0), (None, None), (None, None)), StepRule(ladder, None, (None,), (None,))
    for rules in ((), (one, other), (replace(one, include=(None,)),), (one, replace(one, confidence=(None,) * 3))):
        with pytest.raises(UsageError, match="a rule for each step, all of the same sources"):
            LearnedPolicy("depth", rules)
