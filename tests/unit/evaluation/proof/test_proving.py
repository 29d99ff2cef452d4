"""What a proof says of logs on which every figure is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade.calibration.calibrating import calibrate_policy
from cascade.config import policy_section
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import NotCertifiedError, UsageError
from cascade.evaluation.evaluate import play_policy
from cascade.evaluation.proof.proving import Fit, Plan, Proof, prove
from cascade.evaluation.proof.reasons import reasons
from cascade.evaluation.proof.split_results import Figures, way_of
from cascade.evaluation.splits import Interval, OverSplits, corrected_interval, splits
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.training.simple import one_threshold
from unit.cli.certified import hard_rows
from unit.evaluation.plain import row
from unit.scaled import ladder

SECTION = policy_section({"kind": "threshold", "keep": "both", "when": "p_yes"})


def threshold(table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
    """Certify a threshold on all the questions: a fit that has nothing to learn."""
    policy = policy_of(SECTION)
    done = calibrate_policy([table], policy, SECTION, guarantee, seed=seed)
    return Fit(done.artifact.calibrated(policy), "threshold")


def shared(table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
    """Fit one threshold on the log-prob for all models, and certify it on the same questions."""
    policy = one_threshold(table, "reply_mean_logprob", guarantee.rules)
    done = calibrate_policy([table], policy, SECTION, guarantee, seed=seed)
    return Fit(done.artifact.calibrated(policy), "threshold")


def made(n: int, hard: range, **columns: Any) -> EpisodeTable:
    (table,) = tables_from_rows(hard_rows(n, hard, **columns))
    return table


def words(found: Proof) -> dict[str, str]:
    return {one.kind: one.said for one in reasons(found)}


def test_every_figure_is_that_of_the_splits() -> None:
    table, asked = made(200, range(0, 100, 2)), Guarantee("coverage", 0.1)
    found = prove(table, asked, threshold, Plan(splits=6, seed=3))
    savings, costs, right = [], [], []
    for number, split in enumerate(splits(table.groups, 6, 3), 1):
        fitting = np.sort(np.concatenate([split.train, split.calibration]))
        test = table.take(split.test)
        did = play_policy(test, threshold(table.take(fitting), asked, 3 + number).policy)
        costs.append(did.cost.mean() / 1e9)
        right.append(did.right.mean())
        savings.append(1 - did.cost.mean() / 2_000_000)  # the last model alone costs 0.002 USD
    wanted = corrected_interval(savings, n_train=160, n_test=40)
    assert found.policy.saving == pytest.approx(wanted)
    assert found.policy.cost_usd == pytest.approx(np.mean(costs))
    assert found.policy.accuracy == pytest.approx(np.mean(right))
    assert found.sizes == (160, 40)
    assert found.fitted == {"threshold": 6}
    assert (found.n, found.repeated, found.left_out) == (200, 0, 0)


def test_an_interval_of_few_splits_ends_where_a_saving_can() -> None:
    """0.6: 12.2 % to 106.3 % of what the guide costs, and the advice to log more questions."""
    found = prove(made(200, range(0, 100, 2)), Guarantee("coverage", 0.1), threshold, Plan(splits=2, seed=3))
    savings = [0.9, 0.3]
    over = OverSplits({"saving": savings, "gap": [0.9, -0.9], **{name: [0.0, 0.0] for name in Figures._fields}})
    way = way_of("policy", over, (160, 40), paired=True)
    whole = corrected_interval(savings, n_train=160, n_test=40)
    assert whole.high is not None
    assert whole.high > 1
    assert way.saving == Interval(whole.mean, whole.low, 1.0)
    assert way.accuracy_gap is not None
    assert (way.accuracy_gap.low, way.accuracy_gap.high) == (-1.0, 1.0)
    unsure = replace(found, refused=0, policy=found.policy._replace(saving=way.saving))
    assert unsure.verdict == "unsure"
    assert words(unsure)["few splits"].startswith("With 2 splits of 200 questions, the saving lies between −")
    assert "and 100.0 %" in words(unsure)["few splits"]
    assert "four times as many" in words(replace(unsure, splits=20))["few questions"]


def test_a_saving_that_is_there_is_said() -> None:
    # Half of the questions are answered by a step of 0.001, where doubt is low; the last model alone costs 0.01.
    rows = hard_rows(300, range(150, 300))
    for one in rows:
        one["cost_nano_usd"] = 1_000_000 if one["step"] == 1 else 10_000_000
        one["signals"] = {"p_yes": 0.9 if int(one["episode_id"][1:]) < 150 else 0.1}
    (table,) = tables_from_rows(rows)
    found = prove(table, Guarantee("regret", 0.05, 0.1), threshold, Plan(splits=8))
    assert found.verdict == "saves"
    assert found.policy.saving is not None
    assert found.policy.saving.mean == pytest.approx(0.4, abs=0.1)
    assert found.reference.broken == 0
    assert words(found)["signals"].startswith("The signal p_yes tells")
    assert "bound" in words(found)


def test_what_costs_more_than_the_reference_is_said() -> None:
    # The first step tells nothing, and the second costs 0.001: 0.001 more than asking it alone.
    table = made(200, range(0, 200, 2), signals={"p_yes": 0.2}, cost_nano_usd=1_000_000)
    found = prove(table, Guarantee("regret", 0.05, 0.1), threshold, Plan(splits=5))
    assert found.verdict == "costs"
    assert found.policy.saving is not None
    assert found.policy.saving.mean == pytest.approx(-1)
    assert "no signal" in words(found)


def test_a_signal_that_tells_nothing_saves_no_more_than_a_coin() -> None:
    # A third of the first answers is wrong whatever the signal says; alpha leaves room to take some of them unseen.
    rows = hard_rows(400, [])
    for one in rows:
        number = int(one["episode_id"][1:])
        one["signals"] = {"p_yes": (number * 7919 % 400) / 400}
        one["cost_nano_usd"] = 1_000_000 if one["step"] == 1 else 10_000_000
        if one["step"] == 1 and number % 3 == 0:
            one.update(correct=False, answer="nothing")
    (table,) = tables_from_rows(rows)
    found = prove(table, Guarantee("regret", 0.2, 0.1), threshold, Plan(splits=20))
    assert found.policy.saving is not None
    assert found.policy.saving.mean > 0.05
    assert found.verdict in {"blind", "unsure"}
    assert found.coin is not None
    assert found.coin.ahead.mean == pytest.approx(found.policy.saving.mean - found.coin.saving)
    # by hand: the base alone breaks it on a third and saves nine tenths, the last model on none and nothing
    base = next(one for one in found.others if one.name == "base only")
    assert base.saving is not None
    assert found.coin.saving == pytest.approx(base.saving.mean * found.policy.broken / base.broken)
    assert "the learned policy adds" in words(found)["coin"] or found.verdict == "unsure"


def test_a_way_that_breaks_the_promise_less_often_needs_no_coin() -> None:
    found = prove(made(150, range(0)), Guarantee("regret", 0.05, 0.1), threshold, Plan(splits=3))
    assert found.coin is not None
    assert found.coin.saving == pytest.approx(0.5)  # the base alone, which is never wrong
    assert words(found)["no policy needed"].startswith("The base alone breaks the promise on 0.0 % of the questions")


def test_a_certificate_that_is_refused_saves_nothing() -> None:
    def never(table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
        raise NotCertifiedError("too few. 9 would do.", needed_n=300 + seed, why="too few.")

    found = prove(made(60, range(0, 20, 2)), Guarantee("regret", 0.05, 0.1), never, Plan(splits=4))
    needed = math.ceil(303 * 60 / found.sizes[0])  # so many that 303 of them are in the part that is fitted on
    assert (found.verdict, found.refused, found.needed_n, found.fitted) == ("refused", 4, needed, {})
    assert found.why_refused == "too few."
    assert found.policy.saving is not None
    assert found.policy.saving.mean == 0
    assert found.policy.cost_usd == found.reference.cost_usd
    assert "every split" in words(found)["refused"]


def test_a_split_without_a_certificate_counts_as_the_reference() -> None:
    def sometimes(table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
        if seed == 1:
            raise NotCertifiedError("not this time")
        return threshold(table, guarantee, seed)

    table, asked = made(200, range(0, 100, 2)), Guarantee("coverage", 0.1)
    some, all_ = (prove(table, asked, fit, Plan(splits=5)) for fit in (sometimes, threshold))
    assert (some.refused, some.needed_n, some.verdict) == (
        1,
        None,
        "saves" if all_.verdict == "saves" else some.verdict,
    )
    assert some.policy.saving is not None
    assert all_.policy.saving is not None
    first = next(iter(splits(table.groups, 1, 0)))
    fitting = np.sort(np.concatenate([first.train, first.calibration]))
    did = play_policy(table.take(first.test), threshold(table.take(fitting), asked, 1).policy)
    gone = (1 - did.cost.mean() / 2_000_000) / 5
    assert some.policy.saving.mean == pytest.approx(all_.policy.saving.mean - gone)
    assert "1 of 5 splits" in words(some)["refused"]


def test_a_promise_that_no_step_can_keep_is_said() -> None:
    rows = hard_rows(100, range(100))
    for one in rows:  # the second step is wrong too, for a third of the questions
        if int(one["episode_id"][1:]) % 3 == 0:
            one.update(correct=False, answer="nothing")
    (table,) = tables_from_rows(rows)
    found = prove(table, Guarantee("error", 0.1, 0.1), threshold, Plan(splits=3))
    assert found.impossible
    assert found.clairvoyant_usd is None
    assert found.verdict == "refused"
    assert found.lost == pytest.approx(0.34)
    assert "no step answers 34.0 % of the questions rightly" in words(found)["impossible"]


def test_a_base_that_is_as_good_is_named() -> None:
    found = prove(made(150, range(0)), Guarantee("regret", 0.05, 0.1), threshold, Plan(splits=3))
    said = words(found)
    assert "The base alone is right as often" in said["no better"]
    assert "no policy needed" in said
    assert found.others[0].saving is not None
    assert found.others[0].saving.mean == pytest.approx(0.5)


def test_without_costs_no_saving_is_shown() -> None:
    rows = hard_rows(150, range(0, 60, 2))
    (table,) = tables_from_rows([one | {"cost_nano_usd": None} for one in rows])
    found = prove(table, Guarantee("coverage", 0.1), threshold, Plan(splits=3))
    assert found.verdict == "unknown"
    assert found.policy.saving is found.policy.cost_usd is found.clairvoyant_usd is None
    assert "unknown" in words(found)


def test_a_question_that_lacks_a_cost_is_left_out_and_said() -> None:
    rows = hard_rows(150, range(0, 60, 2))
    rows[0]["cost_nano_usd"] = None
    (table,) = tables_from_rows(rows)
    found = prove(table, Guarantee("coverage", 0.1), threshold, Plan(splits=3))
    assert found.policy.cost_usd is not None
    assert found.n == 149
    assert any("1 question lacks a cost in the log: all figures here leave" in said for said in found.unknown)


def test_a_question_counts_once_and_without_a_reference_not_at_all() -> None:
    rows = hard_rows(60, range(0, 20, 2))
    again = [one | {"episode_id": f"again {one['episode_id']}"} for one in rows[:20]]
    (table,) = tables_from_rows([*rows, *again])
    found = prove(table, Guarantee("coverage", 0.2), threshold, Plan(splits=3))
    assert (found.n, found.repeated) == (60, 10)
    walks = dict(table.walks)
    known = np.arange(table.n) % 10 > 0
    walks["last model only"] = replace(walks["last model only"], known=known)
    found = prove(replace(table, walks=walks), Guarantee("coverage", 0.2), threshold, Plan(splits=3))
    assert found.left_out == 6
    assert "6 more questions have no record" in words(found)["left out"]


def test_whole_groups_are_tested() -> None:
    rows = [one | {"group": f"g{int(one['episode_id'][1:]) // 10}"} for one in hard_rows(200, range(0, 100, 2))]
    (table,) = tables_from_rows(rows)
    seen = []

    def looking(one: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
        seen.append(set(one.groups))
        return threshold(one, guarantee, seed)

    found = prove(table, Guarantee("coverage", 0.2), looking, Plan(splits=4))
    assert found.groups == 20
    assert all(len(groups) == 16 for groups in seen)
    assert found.sizes == (160, 40)


def test_the_same_seed_gives_the_same_proof_and_another_another() -> None:
    table, asked = made(120, range(0, 60, 2)), Guarantee("regret", 0.2, 0.1)
    one, two, other = (prove(table, asked, threshold, Plan(splits=3, seed=seed)) for seed in (0, 0, 1))
    assert one == two
    assert one != other


@pytest.mark.parametrize(
    "asked",
    [
        Guarantee("error", 0.1, 0.1, abstain=True),
        Guarantee("coverage", 0.1, by_segment=True),
    ],
)
def test_other_promises_are_refused(asked: Guarantee) -> None:
    with pytest.raises(UsageError, match="coverage, regret, error, agreement and preference"):
        prove(made(30, range(3)), asked, threshold, Plan())


def test_one_split_is_none() -> None:
    with pytest.raises(UsageError, match="at least 2 splits"):
        prove(made(30, range(3)), Guarantee("coverage", 0.1), threshold, Plan(splits=1))


def test_progress_is_told() -> None:
    told = []
    prove(made(60, range(3)), Guarantee("coverage", 0.2), threshold, Plan(splits=3), lambda *one: told.append(one))
    assert told == [(1, 3), (2, 3), (3, 3)]


# --- what is not on record, and what hangs together


def test_without_texts_no_saving_is_shown_at_a_promise_that_votes_would_decide() -> None:
    table = made(100, range(0, 50, 2))
    deep = replace(table, texts_known=np.zeros(100, dtype=np.bool_))
    assert (
        prove(deep, Guarantee("error", 0.5, 0.1), threshold, Plan(2)).splits == 2
    )  # two answers: the latest is served
    (wide,) = tables_from_rows([row(str(q), t, answer=None, confidence=None) for q in range(60) for t in (1, 2, 3)])
    with pytest.raises(UsageError, match="Votes decide which answer is served on 60 of 60 questions"):
        prove(wide, Guarantee("error", 0.5, 0.1), threshold, Plan(2))


def test_groups_that_an_episode_ties_together_are_on_one_side_of_a_split() -> None:
    table = made(100, range(0, 50, 2))
    both = table.take(np.array([*range(100), 0]))
    tied = replace(
        both,
        ids=tuple([f"e{number}" for number in range(101)]),
        groups=(*[f"g{number // 2}" for number in range(100)], "g40"),
        questions=(*table.questions, table.questions[0]),
    )
    fitted: list[set[str]] = []

    def notes(table: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
        fitted.append(set(table.questions))
        return threshold(table, guarantee, seed)

    found = prove(tied, Guarantee("coverage", 0.1), notes, Plan(12))
    assert (found.n, found.groups, found.repeated) == (100, 49, 1)
    for seen in fitted:
        assert len({table.questions[number] in seen for number in (0, 1, 80, 81)}) == 1
    assert len({table.questions[0] in seen for seen in fitted}) == 2


def test_a_regret_is_held_against_the_guide_whatever_savings_are_held_against() -> None:
    table, asked = made(240, range(0, 120, 2)), Guarantee("regret", 0.2, 0.1)
    guide, every = (prove(table, asked, threshold, Plan(6, 1, against)) for against in ("guide", "all"))
    assert (guide.policy.broken, guide.exceeded, guide.lost) == (every.policy.broken, every.exceeded, every.lost)
    assert guide.policy.cost_usd == every.policy.cost_usd
    assert guide.reference.name != every.reference.name


def test_a_ladder_is_held_against_one_threshold_per_rung_that_breaks_the_promise_as_often() -> None:
    """0.5.0 showed one shared threshold's gain over the last model as if nothing simpler than learning brought more."""
    table = ladder(400, 3)
    found = prove(table, Guarantee("regret", 0.1, 0.1), shared, Plan(splits=4))
    own = next(one for one in found.others if one.name == "one threshold per rung")
    assert own.broken <= found.policy.broken + 1e-9
    assert own.saving is not None
    assert found.policy.saving is not None
    assert own.saving.mean > found.policy.saving.mean
    assert found.coin is not None
    assert "one threshold per rung" not in {found.coin.one, found.coin.other}
    pair = prove(ladder(400, 2), Guarantee("regret", 0.1, 0.1), shared, Plan(splits=2))
    assert "one threshold per rung" not in [one.name for one in pair.others]
