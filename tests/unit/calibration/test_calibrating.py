"""A policy, a log and a guarantee become a certified policy; or it is refused with the reason and the number needed."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.calibration.samples import data_sha256, once, places, selected
from cascade.calibration.scores import reference_cost, sample_of
from cascade.config import policy_section
from cascade.conformal.arrays import rollout
from cascade.conformal.ltt import chance_said
from cascade.conformal.served import PathPoint, single
from cascade.conformal.split import calibrate
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PolicyArtifact, Seen, write
from cascade.policies.base import Observation, Policy, Scores
from cascade.policies.fixed import FixedPolicy
from cascade.policies.reading import read
from cascade.policies.threshold import ThresholdPolicy
from unit.calibration.logs import POLICY, SECTION, config, log, some

TODAY = date(2026, 11, 21)
ORDERED = {"kind": "error", "alpha": 0.45, "abstain": True, "share": 0.3, "seed": 0}


def certify(*tables: EpisodeTable, kind: str = "coverage", alpha: float = 0.1, **more: Any) -> Calibrated:
    names = {"delta", "by_segment", "abstain"}
    asked = Guarantee(kind, alpha, **{name: value for name, value in more.items() if name in names})
    rest = {name: value for name, value in more.items() if name not in names}
    return calibrate_policy(tables, POLICY, SECTION, asked, today=TODAY, **rest)


def test_coverage_is_calibrated_by_the_rank_of_critical_values() -> None:
    table = log(200)
    done = certify(table)
    one = done.artifact.certificates[0]
    expected = calibrate(sample_of(table, POLICY).critical(), 0.1)
    assert (one.kappa, one.n, one.k, one.alpha, one.delta) == (expected.kappa, 200, 20, 0.1, None)
    assert one.data_sha256 == data_sha256(table)
    assert one.policy_sha256 == done.artifact.policy_sha256
    assert one.created == "2026-11-21"
    assert done.artifact.questions == tuple(sorted(table.questions))
    assert done.segments[0].found.misses == expected.misses <= 19
    assert done.realised.coverage == 1 - expected.misses / 200


def test_the_figures_beside_a_certificate_are_those_of_the_rollout() -> None:
    table = log(150)
    done = certify(table, alpha=0.2)
    sample, kappa = sample_of(table, POLICY), done.artifact.certificates[0].kappa
    played = rollout(table.arrays, sample.levels, kappa)
    served = single(table.arrays, sample.levels, table.confidence, kappa)
    assert done.realised == done.segments[0].realised
    assert done.realised.cost_nano_usd == played.cost.mean()
    assert done.realised.length == played.length.mean()
    assert done.realised.set_size == played.distinct.mean()
    assert done.realised.in_set == played.in_set.mean()
    assert done.realised.error == pytest.approx(1 - served.right.mean())
    assert done.everything.cost_nano_usd == table.arrays.cost.sum(axis=1).mean()
    assert done.everything.coverage == 1.0
    assert done.reference_cost_nano_usd == table.walks["guide only"].cost.mean()


def test_with_delta_fewer_may_be_missed() -> None:
    done = certify(log(200), delta=0.1)
    assert done.artifact.certificates[0].k == 15
    assert done.artifact.certificates[0].delta == 0.1


def test_a_record_that_ends_early_covers_no_more_than_the_whole_one() -> None:
    class Sparing(ThresholdPolicy):
        """Goes on to the end, and keeps an answer for its confidence."""

        def scores(self, observation: Observation) -> Scores:
            step = observation.step
            return Scores(tuple(c.confidence or 0.0 for c in step.candidates), 2.0)

    whole = log(400)
    steps = np.ones(whole.n, dtype=np.int64)
    beyond = np.arange(whole.arrays.horizon)[None, :] >= 1
    answer = np.where(beyond[:, :, None], -1, whole.arrays.answer)
    cut = replace(
        whole.arrays,
        answer=answer,
        correct=whole.arrays.correct & ~beyond[:, :, None],
        cost=np.where(beyond, 0, whole.arrays.cost),
        steps=steps,
        complete=np.zeros(whole.n, dtype=np.bool_),
    )
    policy = Sparing(0.0, "both")
    before, after = (sample_of(one, policy).critical() for one in (whole, replace(whole, arrays=cut)))
    assert (after <= before).all()
    assert (after[cut.solvable] > -np.inf).any()


def test_segments_have_thresholds_of_their_own_and_small_ones_are_not_certified() -> None:
    names = [("a", "b", "c", "d")[min(3, row // 60)] for row in range(185)]  # 60, 60, 60 and 4 of d
    names[184] = "e"
    table = log(185, segments=names)
    done = certify(table, by_segment=True)
    found = {one.segment: one for one in done.artifact.certificates}
    assert [(name, one.n, one.keeps_everything) for name, one in found.items()] == [
        ("a", 60, False),
        ("b", 60, False),
        ("c", 60, False),
    ]
    assert [(one.segment, one.n, one.needed_n) for one in done.too_small] == [("d", 4, 9), ("e", 1, 9)]
    (note,) = [one for one in done.notes if "not certified" in one]
    assert "fewer than 9 calibration questions" in note
    assert note.endswith("d (4), e (1)")
    assert places([one.segment for one in done.artifact.certificates], table).tolist()[178:] == [2] * 2 + [-1] * 5
    assert [one.rows for one in done.segments] == [60, 60, 60]
    assert (done.n, done.realised.n, done.everything.n) == (185, 180, 180)
    assert done.reference_cost_nano_usd == reference_cost(table.take(np.arange(180)))
    policy = done.artifact.calibrated(POLICY)
    assert policy.for_segment("d").keeps_everything
    assert policy.for_segment(None).keeps_everything
    assert policy.for_segment("b").kappa == found["b"].kappa
    assert len({one.kappa for one in found.values()}) == 3


@pytest.mark.parametrize("delta", [None, 0.1])
@pytest.mark.parametrize("everything", [False, True])
def test_nothing_is_certified_where_no_segment_is_large_enough(delta: float | None, everything: bool) -> None:
    table = log(12, segments=["b"] * 8 + ["c"] * 2 + [None] * 2)
    with pytest.raises(NotCertifiedError, match=r"calibration questions: b \(8\), c \(2\)\.") as error:
        certify(table, by_segment=True, delta=delta, allow_everything=everything)
    assert error.value.needed_n == (9 if delta is None else 22)
    with pytest.raises(NotCertifiedError, match="no calibration question names its segment"):
        certify(log(60), by_segment=True, delta=delta, allow_everything=everything)


def test_no_group_is_cut_that_an_episode_ties_to_another_though_it_counts_for_nothing() -> None:
    """A question that stands in two groups counts once; the two stand on one side all the same."""
    table = log(200, groups=[f"g{row // 2}" for row in range(200)])
    again = list(range(0, 80, 4))
    repeated = replace(
        some(table, *range(200), *again),
        ids=tuple([f"e{row}" for row in range(220)]),
        groups=(*table.groups, *[f"g{row // 2 + 1}" for row in again]),
        questions=(*table.questions, *[table.questions[row] for row in again]),
    )
    done = certify(repeated, kind="error", alpha=0.6, delta=0.1)
    assert done.repeated == 20
    aside = set(done.artifact.seen.selection)
    for row in again:
        assert len({table.questions[other] in aside for other in range(row, row + 4)}) == 1
    assert any("groups" in said for said in done.artifact.certificates[0].assumptions)


def test_questions_without_a_segment_are_not_certified() -> None:
    done = certify(log(80, segments=["a"] * 60 + [None] * 20), by_segment=True)
    assert [(one.segment, one.n) for one in done.artifact.certificates] == [("a", 60)]
    assert (done.realised.n, done.too_small) == (60, ())


# --- the single answer


def test_the_path_is_ordered_on_questions_that_are_then_left_out() -> None:
    table = log(600)
    done = certify(table, kind="error", alpha=0.45, delta=0.1, abstain=True, seed=5)
    chosen = selected(table, 0.3, 5)
    assert done.selection == int(chosen.sum()) == 180
    assert set(done.artifact.seen.selection) == set(np.array(table.questions)[chosen])
    assert set(done.artifact.questions) == set(np.array(table.questions)[~chosen])
    assert done.artifact.path is not None
    assert done.artifact.ordered_for is not None
    assert done.artifact.ordered_for["seed"] == 5
    one = done.artifact.certificates[0]
    assert one.n == 420
    assert one.k is None
    assert PathPoint(one.kappa, -math.inf if one.abstain_below is None else one.abstain_below) in done.artifact.path


def test_a_path_that_was_ordered_before_is_used_on_every_question() -> None:
    path = (PathPoint(math.inf, 0.9), PathPoint(math.inf))
    before = PolicyArtifact({}, path=path, ordered_for=ORDERED)
    done = certify(log(300), kind="error", alpha=0.45, delta=0.1, abstain=True, held=before)
    assert done.artifact.path == path
    assert done.artifact.ordered_for == ORDERED
    assert done.selection == 0
    assert done.notes == ()
    assert done.n == 300
    assert done.artifact.certificates[0].kappa == math.inf


ANOTHER = [
    {"kind": "regret", "alpha": 0.3},
    {"kind": "error", "alpha": 0.4},
]


@pytest.mark.parametrize("another", ANOTHER)
def test_a_path_for_another_promise_is_ordered_anew_on_the_same_questions(another: dict[str, Any]) -> None:
    table = log(900)
    first = certify(table, kind="error", alpha=0.45, delta=0.2)
    done = certify(table, delta=0.2, held=first.artifact, **another)
    afresh = certify(table, delta=0.2, **another)
    assert done.artifact.path == afresh.artifact.path
    assert done.artifact.ordered_for == afresh.artifact.ordered_for != first.artifact.ordered_for
    assert done.artifact.seen == first.artifact.seen
    assert done.artifact.certificates == afresh.artifact.certificates
    assert "order them again" in done.notes[0]


@pytest.mark.parametrize("another", ANOTHER[:2])
def test_a_path_for_another_promise_is_said_where_it_cannot_be_ordered_anew(another: dict[str, Any]) -> None:
    first = certify(log(900), kind="error", alpha=0.45, delta=0.2)
    done = certify(log(900, 1), delta=0.2, held=first.artifact, **another)
    assert done.n == 900
    assert (done.artifact.path, done.artifact.ordered_for) == (first.artifact.path, first.artifact.ordered_for)
    assert "for another promise" in done.notes[0]


def test_a_path_for_another_promise_is_said_where_nothing_passes() -> None:
    first = certify(log(900), kind="error", alpha=0.45, delta=0.2)
    with pytest.raises(NotCertifiedError, match=r"no point passes: .* The thresholds were ordered for another promise"):
        certify(log(900, 1), kind="error", alpha=0.05, delta=0.2, held=first.artifact)


@pytest.mark.parametrize("another", [{"abstain": True}])
def test_a_path_that_cannot_serve_a_promise_is_replaced(another: dict[str, Any]) -> None:
    first = certify(log(900), kind="error", alpha=0.5, delta=0.2)
    newer = log(900, 1)
    done = certify(newer, kind="error", alpha=0.5, delta=0.2, held=first.artifact, **another)
    afresh = certify(newer, kind="error", alpha=0.5, delta=0.2, **another)
    assert done.artifact.path == afresh.artifact.path
    assert done.artifact.seen == Seen(first.artifact.seen.selection, afresh.artifact.seen.selection)
    assert done.notes == ()


def test_the_same_promise_on_the_same_log_is_the_same_certificate() -> None:
    asked: dict[str, Any] = {"kind": "error", "alpha": 0.45, "delta": 0.1}
    first = certify(log(400), **asked)
    again = certify(log(400), held=first.artifact, **asked)
    assert again.artifact == first.artifact
    assert again.notes == ()
    with pytest.raises(UsageError, match="120 of 400 questions"):
        certify(log(400), held=first.artifact)  # a promise on the set has no use for them


def test_questions_that_ordered_the_path_alone_certify_nothing() -> None:
    first = certify(log(400), kind="error", alpha=0.45, delta=0.1)
    only = log(400).take(np.isin(np.array(log(400).questions), first.artifact.seen.selection))
    with pytest.raises(UsageError, match="All 120 questions ordered the thresholds"):
        certify(only, kind="error", alpha=0.45, delta=0.1, held=first.artifact)


def test_regret_is_held_against_the_guide_where_it_is_on_record() -> None:
    table = log(900)
    known = np.arange(900) % 3 > 0
    walk = replace(table.walks["guide only"], known=known)
    done = certify(replace(table, walks={"guide only": walk}), kind="regret", alpha=0.25, delta=0.1)
    assert done.n + done.selection == 600
    kappa = done.artifact.certificates[0].kappa
    mine = table.take(np.isin(np.array(table.questions), done.artifact.questions))
    served = single(mine.arrays, sample_of(mine, POLICY).levels, mine.confidence, kappa)
    losses = int((~served.right & mine.walks["guide only"].right).sum())
    assert done.segments[0].found.misses == losses


def test_regret_without_a_reference_is_refused() -> None:
    with pytest.raises(UsageError, match="guide only"):
        certify(replace(log(100), walks={}), kind="regret", delta=0.1)


# --- means


def test_unknown_costs_allow_no_figure() -> None:
    table = replace(log(100), cost_known=False, priced=np.zeros(100, dtype=np.bool_))
    done = certify(table)
    assert done.realised.cost_nano_usd is None
    assert done.reference_cost_nano_usd is None


# --- what is refused


def test_too_few_questions_are_refused_with_the_number_needed() -> None:
    with pytest.raises(
        NotCertifiedError, match=r"coverage, alpha 0.1\).*8 calibration questions.*9 would be enough"
    ) as error:
        certify(log(8))
    assert error.value.needed_n == 9
    assert error.value.exit_code == 3
    done = certify(log(8), allow_everything=True)
    assert done.artifact.certificates[0].keeps_everything
    assert done.realised.coverage == 1.0
    assert certify(log(9)).artifact.certificates[0].k == 1


def test_a_threshold_that_promises_nothing_is_no_threshold() -> None:
    asked = Guarantee("coverage", 0.1)
    stops = FixedPolicy(keep="base", depth=1)  # what the guide would have brought has the score −∞
    with pytest.raises(NotCertifiedError, match="missed at every threshold"):
        calibrate_policy([log(200)], stops, {"kind": "fixed"}, asked, allow_everything=True)
    with pytest.raises(NotCertifiedError, match=r": segment a: \d+ of 100 .*; segment b: \d+ of 100 "):
        calibrate_policy(
            [log(200, segments=["a", "b"] * 100)], stops, {"kind": "fixed"}, replace(asked, by_segment=True)
        )


def test_a_path_on_which_nothing_passes_is_refused() -> None:
    with pytest.raises(
        NotCertifiedError,
        match=r"More questions hardly help: \d+ of \d+ questions are lost at the safest threshold; .* below 5 %",
    ):
        certify(log(300), kind="error", alpha=0.05, delta=0.1)


def test_how_many_questions_would_do_counts_those_that_order_the_thresholds() -> None:
    with pytest.raises(
        NotCertifiedError,
        match=r"would be enough with a probability of .*, not counting those that order the thresholds",
    ) as error:
        certify(log(40), kind="error", alpha=0.3, delta=0.1)
    needed, left = error.value.needed_n, 28  # of 40, 30 % order the path
    assert needed is not None
    assert needed > left
    assert error.value.chance is not None
    told = f"{needed} would be enough with a probability of {chance_said(error.value.chance)}"
    assert told in str(error.value)
    assert f"a log of about {math.ceil(needed * 40 / left)}, if its questions are like these" in str(error.value)


def test_a_path_that_only_passes_silent_is_refused() -> None:
    path = (PathPoint(math.inf, math.inf), PathPoint(math.inf))
    with pytest.raises(NotCertifiedError, match="only answering nothing"):
        before = PolicyArtifact({}, path=path, ordered_for=ORDERED | {"alpha": 0.05})
        certify(log(300), kind="error", alpha=0.05, delta=0.1, abstain=True, held=before)


def test_questions_that_made_the_policy_are_refused_and_named() -> None:
    table = log(40)
    seen = Seen(training=table.questions[:7], selection=table.questions[6:8])
    with pytest.raises(UsageError, match="8 of 40 questions") as error:
        certify(table, held=PolicyArtifact({}, seen))
    assert table.questions[0] in str(error.value)
    assert "and 3 more" in str(error.value)
    rest = table.take(np.arange(8, 40))
    assert certify(rest, alpha=0.2, held=PolicyArtifact({}, seen)).artifact.seen == seen


def test_a_repeated_question_counts_once() -> None:
    table = log(50)
    twice = some(table, *range(50), *range(20))
    twice = replace(twice, ids=tuple(f"e{row}" for row in range(70)))
    done = certify(twice)
    assert done.repeated == 20
    assert done.artifact.certificates[0].n == 50
    assert done.n == len(once(twice))


def test_scores_that_depend_on_the_threshold_cannot_be_calibrated() -> None:
    judged = policy_section({"kind": "threshold", "keep": "judged"})
    with pytest.raises(UsageError, match="keep: both"):
        calibrate_policy([log(50)], policy_of(judged), judged, Guarantee("coverage"))


def test_a_log_without_the_signal_is_refused() -> None:
    policy = ThresholdPolicy(keep="both", when="p_yes")
    with pytest.raises(UsageError, match="no such signal"):
        calibrate_policy([replace(log(50), signals={})], policy, {"kind": "threshold"}, Guarantee("coverage"))


def test_a_log_of_another_cascade_is_refused() -> None:
    with pytest.raises(UsageError, match="base is other; the log was made for small") as error:
        certify(log(50), config=config(models={"base": "other", "guide": "large"}))
    assert "certificate" not in str(error.value)


def test_what_a_certificate_is_for_is_the_configuration_where_there_is_one() -> None:
    bare, full = certify(log(50)), certify(log(50), config=config())
    assert bare.artifact.certificates[0].made_for["prices"] is None
    assert any("would go unseen" in said for said in bare.artifact.certificates[0].assumptions)
    assert full.artifact.certificates[0].made_for["prices"]["small"]["input"] == 1_000_000
    assert not any("would go unseen" in said for said in full.artifact.certificates[0].assumptions)


# --- what comes out


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"delta": 0.1},
        {"kind": "error", "alpha": 0.5, "delta": 0.1, "abstain": True},
    ],
)
def test_the_same_data_seed_and_day_give_the_same_bytes(tmp_path: Path, asked: dict[str, Any]) -> None:
    table = log(400)
    for name, rows in (("one", np.arange(400)), ("two", np.random.default_rng(1).permutation(400))):
        write(tmp_path / name, certify(table.take(rows), config=config(), expires_days=30, **asked).artifact)
    for file in ("policy.json", "certificate.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert read(tmp_path / "one").certificates[0].expires == "2026-12-21"


def test_another_day_is_another_certificate() -> None:
    table, asked = log(100), Guarantee("coverage")
    days = [date(2026, 11, 21), date(2026, 11, 22)]
    first, second = (calibrate_policy([table], POLICY, SECTION, asked, today=day).artifact for day in days)
    assert first.certificates[0].calibration_id != second.certificates[0].calibration_id
    assert first.policy_sha256 == second.policy_sha256


def test_any_policy_that_scores_can_be_calibrated() -> None:
    class Mine(Policy):
        kappa = 0.0

        def scores(self, observation: Observation) -> Scores:
            return Scores((0.5,) * len(observation.step.candidates), 1.0 / observation.step.number)

    done = calibrate_policy([log(100)], Mine(), {"kind": "mine"}, Guarantee("coverage"), today=TODAY)
    assert done.artifact.policy == {"kind": "mine"}
    assert done.artifact.certificates[0].k == 10
