"""`fit_policy` as a whole: what it promises, that it is the same each time, and what it says of odd logs."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import rollout
from cascade.conformal.split import covered_at
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import read_policy
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import MODEL_FILE, write
from cascade.policies.learned import METHODS
from cascade.policies.reading import read
from cascade.training.dividing import LEAST_TRAINING
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import config, log

COVERAGE = Guarantee("coverage", 0.1)
DAY = date(2026, 11, 21)
QUICK = "threshold"


def fit(table: EpisodeTable, guarantee: Guarantee = COVERAGE, **more: Any) -> Fitted:
    return fit_policy([table], guarantee, **{"method": QUICK, "today": DAY} | more)


def written(found: Fitted, folder: Path) -> dict[str, bytes]:
    write(folder, found.artifact)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# --- what it gives


def test_a_policy_is_fitted_chosen_and_certified(tmp_path: Path) -> None:
    found = fit(log(600), method="auto")
    assert (found.sizes.questions, found.sizes.training + found.sizes.calibration) == (600, 600)
    assert found.choice.winner.chosen
    assert found.policy.method == found.choice.winner.method
    (certificate,) = found.artifact.certificates
    assert (certificate.kind, certificate.alpha, certificate.n) == ("coverage", 0.1, found.sizes.calibration)
    held = read_policy(str((write(tmp_path, found.artifact), tmp_path)[1]))
    assert held.artifact.certificates == found.artifact.certificates
    fresh = log(300, 9)
    assert np.array_equal(sample_of(fresh, held.policy).scores.next, sample_of(fresh, found.policy).scores.next)


def test_the_certifying_questions_are_seen_by_nothing_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Truth, signals and costs of the certifying questions may be anything: the policy stays the same to the bit."""
    table = log(400)
    found = fit(table, method="auto")
    certifying = np.isin(np.array(table.questions), np.array(found.artifact.questions))
    assert certifying.sum() == found.sizes.calibration
    assert not set(found.artifact.questions) & set(found.artifact.seen.all)
    arrays = replace(
        table.arrays,
        correct=np.where(certifying[:, None, None], ~table.arrays.correct, table.arrays.correct),
        cost=np.where(certifying[:, None], 3 * table.arrays.cost, table.arrays.cost),
    )
    signals = {name: np.where(certifying[:, None], -values, values) for name, values in table.signals.items()}
    paid = np.where(certifying[:, None], 3 * table.paid, table.paid)
    other = fit(replace(table, arrays=arrays, signals=signals, paid=paid), method="auto", allow_everything=True)
    assert other.artifact.files == found.artifact.files
    assert other.artifact.policy == found.artifact.policy


def test_the_same_log_and_seed_give_the_same_bytes_in_any_order(tmp_path: Path) -> None:
    table = log(200, groups=[f"g{row // 2}" for row in range(200)])
    order = np.random.default_rng(3).permutation(200)
    first = written(fit(table, method="auto"), tmp_path / "one")
    assert written(fit(table.take(order), method="auto"), tmp_path / "two") == first
    assert written(fit(table, method="auto", seed=1), tmp_path / "three") != first


def test_it_covers_what_it_promises_on_fresh_questions() -> None:
    fresh = log(5_000, 99)
    shares = []
    for seed in range(8):
        found = fit(log(400, seed), seed=seed)
        kappa = found.artifact.certificates[0].kappa
        shares.append(covered_at(sample_of(fresh, found.policy).critical(), kappa).mean())
    assert np.mean(shares) >= 0.9 - 3 * 0.027 / 8**0.5  # 0.027: Beta's standard deviation with 120 questions


@pytest.mark.parametrize(
    "guarantee",
    [
        Guarantee("coverage", 0.2, 0.1),
        Guarantee("error", 0.45, 0.1),
        Guarantee("error", 0.2, 0.1, abstain=True),
        Guarantee("regret", 0.3, 0.1),
        Guarantee("coverage", 0.2, by_segment=True),
    ],
    ids=lambda one: f"{one.kind}{'-delta' if one.delta else ''}{'-segments' if one.by_segment else ''}",
)
def test_every_promise_can_be_fitted_for(guarantee: Guarantee, tmp_path: Path) -> None:
    segments = tuple([f"g{row % 3}" if guarantee.by_segment else None for row in range(500)])
    found = fit(replace(log(500), segments=segments), guarantee)
    assert found.artifact.asked == guarantee
    write(tmp_path, found.artifact)
    again = read(tmp_path)
    assert again == found.artifact
    assert (again.path is not None) == guarantee.single
    assert set(again.seen.training) | set(again.questions) == set(log(500).questions)
    if guarantee.by_segment:
        assert {one.segment for one in again.certificates} == {"g0", "g1", "g2"}


def test_a_fitted_policy_is_calibrated_again_along_its_path() -> None:
    asked = Guarantee("error", 0.45, 0.1)
    found = fit(log(500), asked)
    fresh = replace(log(300, 5), questions=tuple([f"q{row}" for row in range(300)]))
    again = calibrate_policy([fresh], found.policy, found.artifact.policy, asked, held=found.artifact, today=DAY)
    assert again.artifact.path == found.artifact.path
    assert again.artifact.policy_sha256 == found.artifact.policy_sha256
    assert again.n == 300
    many = len(found.artifact.questions)
    with pytest.raises(UsageError, match=f"were used to make this policy.*; {many} of this log certify it already"):
        calibrate_policy([log(500)], found.policy, found.artifact.policy, asked, held=found.artifact)


def test_a_method_can_be_asked_for() -> None:
    assert fit(log(200), method="depth").choice.chosen.name == "fixed depth"
    found = fit(log(200), method="threshold")
    assert {one.method for one in found.choice.judged} == {"threshold"}
    with pytest.raises(UsageError, match="did you mean"):
        fit(log(200), method="tresholds")
    assert set(METHODS) >= {one.method for one in fit(log(200), method="auto").choice.judged}


def test_the_configuration_is_what_it_is_made_for() -> None:
    found = fit(log(200), config=config())
    assert found.artifact.certificates[0].made_for["models"]["base"]["name"] == "small"
    other = {"base": {"model": "tiny", "price": {"input": 1, "output": 1}}, "guide": config().models["guide"]}
    with pytest.raises(UsageError, match="made by another cascade"):
        fit(log(200), config=config(models=other))


# --- odd logs


def test_too_few_questions_are_told_with_how_many_are_missing() -> None:
    with pytest.raises(NotCertifiedError, match="About 29 logged questions would be enough") as caught:
        fit(log(7))
    assert caught.value.needed_n == 29
    assert str(caught.value).endswith(
        "if they are like these. Or keep every answer of every step: allow_everything=True."
    )
    assert caught.value.why is not None
    assert "allow" not in caught.value.why  # prove says why, and has no such argument
    found = fit(log(7), allow_everything=True)
    assert found.artifact.certificates[0].keeps_everything
    assert any("a threshold needs 9" in note for note in found.notes)


def test_few_questions_are_certified_but_nothing_is_learned() -> None:
    found = fit(log(9 + LEAST_TRAINING - 1), method="auto", calibration_share=0.1)
    assert found.choice.chosen.name == "fixed depth"
    assert found.choice.folds == 0
    assert any("too few to choose by" in note for note in found.notes)
    assert not found.artifact.certificates[0].keeps_everything


def test_all_questions_may_be_needed_to_certify() -> None:
    found = fit(log(9), method="auto")
    assert found.sizes == (9, 0, 9)
    assert found.artifact.seen.training == ()


def test_questions_of_one_group_cannot_be_divided() -> None:
    with pytest.raises(NotCertifiedError, match="1 calibration questions, one of each group, are too few"):
        fit(log(60, groups=["one"] * 60), method="auto")
    found = fit(log(60, groups=["one"] * 60), method="auto", allow_everything=True)
    assert found.sizes == (60, 0, 1)
    assert found.choice.chosen.name == "fixed depth"


def test_two_groups_are_one_to_learn_from_and_one_to_certify() -> None:
    found = fit(log(80, groups=["a", "b"] * 40), method="auto", allow_everything=True)
    assert (found.sizes.training, found.sizes.calibration) in {(40, 1), (0, 2)}
    assert found.choice.chosen.name == "fixed depth"


def test_without_costs_policies_are_compared_by_their_steps() -> None:
    without = replace(log(400), cost_known=False, priced=np.zeros(400, np.bool_), paid=np.full((400, 4), np.nan))
    found = fit(without, method="auto")
    assert found.choice.unit == "steps"
    assert any("compared by their number of steps" in note for note in found.notes)


def test_one_unknown_cost_hides_no_other() -> None:
    """It was enough to remove every figure in money from a fit; and an unknown cost is never taken for 0."""
    whole = log(400)
    cost, priced = whole.arrays.cost.copy(), np.arange(400) != 7
    cost[7] = 0  # as a table holds what is unknown
    lacking = replace(whole, arrays=replace(whole.arrays, cost=cost), cost_known=False, priced=priced)
    found = fit(lacking, method="auto")
    assert found.choice.unit == "nano_usd"
    assert found.calibrated.realised.cost_nano_usd is not None
    assert any("1 question lacks a cost in the log" in note for note in (*found.notes, *found.calibrated.notes))
    assert lacking.costed().n == 399
    mostly = replace(lacking, priced=np.arange(400) < 200)
    assert mostly.costed().n == 400
    assert not mostly.shows_cost


def odd(**changes: Any) -> EpisodeTable:
    table = log(300)
    return replace(table, arrays=replace(table.arrays, **changes))


def test_where_the_first_step_is_always_right_the_first_step_is_taken() -> None:
    found = fit(odd(correct=np.ones((300, 4, 2), dtype=np.bool_)), method="auto")
    assert found.choice.chosen.name == "fixed depth"
    assert found.calibrated.realised.length == 1
    assert found.calibrated.realised.coverage == 1


def test_where_nothing_is_ever_right_the_first_step_is_taken_and_it_is_said() -> None:
    never = odd(correct=np.zeros((300, 4, 2), dtype=np.bool_))
    found = fit(never, method="auto")
    assert found.choice.chosen.name == "fixed depth"
    assert found.calibrated.realised.length == 1
    assert any("nothing to learn from" in note for note in found.notes)
    with pytest.raises(NotCertifiedError):
        fit(never, Guarantee("error", 0.1, 0.1))


def test_one_step_leaves_nothing_to_decide() -> None:
    table = log(200)
    first = replace(
        table,
        arrays=replace(
            table.arrays,
            answer=table.arrays.answer[:, :1],
            correct=table.arrays.correct[:, :1],
            cost=table.arrays.cost[:, :1],
            steps=np.ones(200, dtype=np.int64),
        ),
        confidence=table.confidence[:, :1],
        signals={name: values[:, :1] for name, values in table.signals.items()},
        paid=table.paid[:, :1],
        tokens=table.tokens[:, :1],
    )
    found = fit(first, method="auto")
    assert found.choice.chosen.name == "fixed depth"
    assert (found.calibrated.realised.length, found.calibrated.realised.coverage) == (1, 1)
    assert any("there is one step" in note for note in found.notes)


def test_signals_that_are_never_known_are_no_thresholds() -> None:
    table = log(300)
    blind = replace(
        table,
        signals={name: np.full_like(values, np.nan) for name, values in table.signals.items()},
        confidence=np.full_like(table.confidence, np.nan),
    )
    found = fit(blind, method="auto")
    assert not any(one.method == "threshold" for one in found.choice.judged)
    with pytest.raises(UsageError, match="no signal that a policy of the method threshold can use"):
        fit(blind, method="threshold")


def test_signals_that_are_known_here_and_there_do_no_harm() -> None:
    table, chance = log(400), np.random.default_rng(0)
    holes = {name: np.where(chance.random((400, 4)) < 0.5, np.nan, v) for name, v in table.signals.items()}
    found = fit(replace(table, signals=holes), method="auto")
    assert found.calibrated.realised.coverage > 0.85


def test_records_that_end_early_count_on_the_safe_side() -> None:
    table = log(400)
    steps = np.where(np.arange(400) % 10 == 0, 2, 4)
    cut = np.arange(4) >= steps[:, None]
    arrays = replace(
        table.arrays,
        steps=steps,
        complete=steps == 4,
        answer=np.where(cut[:, :, None], -1, table.arrays.answer),
        correct=table.arrays.correct & ~cut[:, :, None],
        cost=np.where(cut, 0, table.arrays.cost),
    )
    found = fit(replace(table, arrays=arrays), Guarantee("coverage", 0.2), method="auto")
    fresh = log(5_000, 50)
    kappa = found.artifact.certificates[0].kappa
    assert rollout(fresh.arrays, sample_of(fresh, found.policy).levels, kappa).covered.mean() > 0.78


def test_everything_that_is_wrong_is_said_at_once() -> None:
    table = log(100)
    with pytest.raises(UsageError, match="There is no episode"):
        fit_policy([], COVERAGE)
    with pytest.raises(UsageError, match="between 0 and 1"):
        fit(table, calibration_share=1.5)


def test_the_files_hold_no_time_and_no_path(tmp_path: Path) -> None:
    files = written(fit(log(200)), tmp_path)
    assert set(files) == {"policy.json", "certificate.json", MODEL_FILE}
    assert b"seconds" not in files["policy.json"]
    assert str(tmp_path).encode() not in b"".join(files.values())
