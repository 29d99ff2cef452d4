"""`fit_levels`: each level as `fit_policy` would make it, certified by the same questions, or trained all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np
import pytest

from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.policies import model_file
from cascade.policies.learned import LearnedPolicy
from cascade.training.fitting import Fitted, fit_policy
from cascade.training.levels import fit_levels, level_notes, middle
from cascade.training.objective import Objective
from cascade.training.simple import fixed_depth
from unit.calibration.logs import config, log

ALPHAS = {"medium": 0.1, "high": 0.05, "low": 0.2}
COVERAGE = Guarantee("coverage")
DAY = date(2026, 11, 21)


def fit(table: EpisodeTable, guarantee: Guarantee = COVERAGE, **more: Any) -> dict[str, Fitted]:
    given = {"method": "threshold", "today": DAY} | more
    return fit_levels([table], guarantee, given.pop("alphas", ALPHAS), **given)


def test_each_level_is_certified_at_its_alpha_on_the_same_questions() -> None:
    found = fit(log(600))
    assert list(found) == ["low", "medium", "high"]
    assert [one.calibrated.guarantee.alpha for one in found.values()] == [0.2, 0.1, 0.05]
    assert len({one.artifact.questions for one in found.values()}) == 1
    ids = {one.artifact.certificates[0].calibration_id for one in found.values()}
    assert len(ids) == 3
    costs = [one.calibrated.realised.cost_nano_usd or 0 for one in found.values()]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]


def test_no_question_that_certifies_one_level_makes_another() -> None:
    found = fit(log(60), alphas={"low": 0.3, "high": 0.03})  # 32 questions certify 0.03; 18, the share, would 0.3
    certify = set[str]().union(*[one.artifact.questions for one in found.values()])
    assert found["high"].sizes.calibration >= 32
    assert not certify & set[str]().union(*[one.artifact.seen.all for one in found.values()])


def test_a_level_is_what_fit_policy_makes_of_the_same_questions() -> None:
    table = log(600)
    alone = fit_policy([table], Guarantee("coverage", 0.1), method="net_benefit", today=DAY)
    level = fit(table, method="net_benefit")["medium"]
    assert level.artifact == alone.artifact


def test_the_same_log_gives_the_same_bytes() -> None:
    first, again = fit(log(300)), fit(log(300))
    assert {name: one.artifact for name, one in first.items()} == {name: one.artifact for name, one in again.items()}


def test_a_level_that_cannot_be_certified_is_named() -> None:
    with pytest.raises(
        NotCertifiedError, match=r"Level 'high' \(alpha 0\.01\): .* logged questions would be enough"
    ) as error:
        fit(log(60), alphas={"low": 0.3, "high": 0.01})
    assert error.value.needed_n is not None
    assert error.value.needed_n >= 99
    found = fit(log(60), alphas={"low": 0.3, "high": 0.01}, allow_everything=True)
    assert found["high"].artifact.certificates[0].keeps_everything


@pytest.mark.parametrize(
    ("alphas", "guarantee", "said"),
    [
        ({"low": 0.2}, COVERAGE, "give two or more levels"),
        ({}, COVERAGE, "give two or more levels"),
        ({"low": 0.2, "high": 0.2}, COVERAGE, "two levels have the same alpha"),
        (
            {"low": 1.5, "high": float("nan")},
            COVERAGE,
            "the alpha of level low must lie between 0 and 1, not 1.5; the alpha",
        ),
        ({"Low": 0.2, "high": 0.1}, COVERAGE, "'Low' is not a name for a level"),
    ],
)
def test_what_are_no_levels_is_refused(alphas: dict[str, float], guarantee: Guarantee, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        fit(log(60), guarantee, alphas=alphas)
    assert said in str(refused.value)


# --- one policy for all levels ---


class Conditioned:
    """Trains one policy for all levels: here a fixed depth that only differs in nothing but its threshold."""

    def __init__(self) -> None:
        self.calls: list[tuple[EpisodeTable, Mapping[str, Objective]]] = []

    def __call__(self, table: EpisodeTable, objective: Mapping[str, Objective]) -> Mapping[str, LearnedPolicy]:
        self.calls.append((table, objective))
        return dict.fromkeys(objective, fixed_depth(table))


@pytest.mark.parametrize("kind", ["coverage", "error"])
def test_a_policy_for_all_levels_is_trained_once_and_certified_at_each(kind: str) -> None:
    make, table = Conditioned(), log(600)
    guarantee = Guarantee(kind, 0.1, None if kind == "coverage" else 0.1)
    found = fit(table, guarantee, alphas={"low": 0.9, "high": 0.8}, make=make)
    ((seen, objective),) = make.calls
    assert list(objective) == ["low", "high"]
    assert [one.guarantee.alpha for one in objective.values()] == [0.9, 0.8]
    assert objective["low"].alpha is not None
    assert objective["high"].alpha is not None
    assert objective["low"].alpha > objective["high"].alpha
    certify = {question for one in found.values() for question in one.artifact.questions}
    assert not certify & set(seen.questions)
    for one in found.values():
        assert model_file.dumps(one.policy) == model_file.dumps(fixed_depth(seen))
        assert (one.choice.folds, one.choice.winner.name) == (0, "depth")
        assert set(one.artifact.seen.training) == set(seen.questions)


def test_where_no_question_is_left_to_train_on_each_level_is_the_fixed_depth() -> None:
    """As `fit_policy` does with any method."""
    make = Conditioned()
    found = fit(log(5), make=make, method="ccpo", allow_everything=True)
    assert make.calls == []
    assert {(one.sizes.training, one.choice.chosen.name) for one in found.values()} == {(0, "fixed depth")}
    assert found["high"].artifact.certificates[0].keeps_everything


def one_step(table: EpisodeTable) -> EpisodeTable:
    """Return a log of which only the first step was run."""
    arrays = table.arrays
    first = {name: getattr(arrays, name)[:, :1] for name in ("answer", "correct", "cost")}
    return replace(
        table,
        arrays=replace(arrays, steps=np.ones(table.n, dtype=np.int64), **first),
        signals={name: values[:, :1] for name, values in table.signals.items()},
        **{name: getattr(table, name)[:, :1] for name in ("confidence", "paid", "tokens")},
    )


@pytest.mark.parametrize(
    ("table", "more", "said"),
    [
        (one_step(log(60)), {}, "no signal that a policy for all levels can use"),
        (log(60), {"config": config(strategy={"kind": "base_guide", "rounds": 2})}, "another cascade than the config"),
    ],
    ids=["nothing to see", "another cascade"],
)
def test_what_cannot_be_fitted_is_refused_before_anything_is_trained(
    table: EpisodeTable, more: dict[str, Any], said: str
) -> None:
    make = Conditioned()
    with pytest.raises(UsageError, match=said):
        fit(table, make=make, **more)
    assert make.calls == []


# --- what is said of them ---


def test_a_level_that_costs_more_than_a_stricter_one_is_said() -> None:
    found = fit(log(600))
    assert list(level_notes(found)) == []
    turned = {"low": found["high"], "high": found["low"]}
    (said,) = level_notes(turned)
    assert said.startswith("level low costs no less on the calibration questions than high, which promises more")


def test_a_level_of_regret_above_a_tenth_is_said_to_promise_little() -> None:
    """0.5.0: regret was certified at 30 % without a word."""
    found = fit(log(600), Guarantee("regret", delta=0.1), alphas={"low": 0.3, "high": 0.1})
    said = [one for one in level_notes(found) if "promises little" in one]
    assert len(said) == 1
    assert said[0].startswith("level low promises little: it may break the promise of regret on 30 % of the questions")
    assert not any("promises little" in one for one in level_notes(fit(log(60), alphas={"low": 0.3, "high": 0.1})))


@pytest.mark.parametrize(
    ("alphas", "name"),
    [(ALPHAS, "medium"), ({"a": 0.3, "b": 0.2, "c": 0.1}, "b"), ({"a": 0.1, "b": 0.2}, "a")],
)
def test_the_middle_level_serves_where_none_is_named(alphas: dict[str, float], name: str) -> None:
    assert middle(alphas) == name
