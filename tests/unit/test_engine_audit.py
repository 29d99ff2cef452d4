"""Audits run a question on after the decision to stop; abstention serves nothing that is not sure enough."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from cascade.budget.charges import Budget
from cascade.engine import run
from cascade.errors import BudgetExceededError, ProviderError, ProviderUnavailableError
from cascade.plans.base import ModelUse
from cascade.plans.presets import ladder as ladder_of
from cascade.types import Answer, Completion, Request, Step
from unit.certified import certificate
from unit.made import PRICES, RIVER, base_guide, caller, drive, yes_no
from unit.scripted import FixedPolicy, ThresholdPolicy

SMALL, LARGE = ModelUse("small", 64), ModelUse("large", 64)
THREE = base_guide(SMALL, LARGE, rounds=3)
RHINE, DANUBE, MUR = "Answer: Rhine", "Answer: Danube", "Answer: Mur"
DOWN = ProviderUnavailableError("down")
CERTIFICATE = certificate()
ALL_STEPS = (RHINE, yes_no(0.97), DANUBE, yes_no(0.9), MUR, yes_no(0.2, "No, Danube"))
Said = str | Completion | BaseException


def asked(*said: Said, **settings: Any) -> Answer:
    given: dict[str, Any] = {"strategy": THREE, "policy": ThresholdPolicy(), "prices": PRICES}
    return drive(run(RIVER, **(given | settings)), caller(said))


def served(answer: Answer) -> Any:
    """Return what a caller acts on."""
    kept = [step.decision.keep for step in answer.steps if step.decision and step.decision.keep]
    return answer.text, answer.answers, answer.stopped, kept, answer.certificate


# --- audits ---


def test_an_audit_runs_all_steps_and_serves_the_same() -> None:
    plain = asked(*ALL_STEPS[:2], certificate=CERTIFICATE)
    audited = asked(*ALL_STEPS, certificate=CERTIFICATE, audit=True)
    assert served(plain) == served(audited) == ("Rhine", ("Rhine",), "policy", [(0,)], CERTIFICATE)
    assert (plain.audited, audited.audited) == (False, True)
    assert [step.audited for step in audited.steps] == [False, True, True]
    assert [step.number for step in audited.steps] == [1, 2, 3]
    assert audited.warnings == ()


def test_audited_steps_keep_nothing_and_show_what_the_policy_would_have_said() -> None:
    answer = asked(*ALL_STEPS, audit=True)
    decisions = [step.decision for step in answer.steps]
    assert [made.keep for made in decisions if made] == [(0,), (), ()]
    assert [made.proceed for made in decisions if made] == [False, True, False]
    assert decisions[1] is not None
    assert decisions[1].next_score == pytest.approx(-math.log(0.9))
    assert answer.steps[1].reason == "run for an audit: nothing is kept"
    assert "step 2: base: 'Danube', guide: 'Danube' -> run for an audit" in answer.explain()


def test_an_audit_is_paid_for() -> None:
    plain, audited = asked(*ALL_STEPS[:2]), asked(*ALL_STEPS, audit=True)
    assert plain.cost_nano_usd is not None
    assert audited.cost_nano_usd is not None
    assert len(audited.calls) == 6
    assert audited.cost_nano_usd > 2 * plain.cost_nano_usd


def test_a_walk_that_reaches_the_horizon_is_an_audit_by_itself() -> None:
    settings: dict[str, Any] = {"policy": ThresholdPolicy(0.0, "both"), "strategy": THREE}
    plain, audited = asked(*ALL_STEPS, **settings), asked(*ALL_STEPS, audit=True, **settings)
    assert served(plain) == served(audited)
    assert audited.audited
    assert not any(step.audited for step in audited.steps)


@pytest.mark.parametrize("said", [(*ALL_STEPS[:2], DOWN, DOWN), (*ALL_STEPS[:3], DOWN, DOWN, DOWN, DOWN, DOWN)])
def test_a_provider_that_fails_in_an_audit_costs_the_answer_nothing(said: tuple[Said, ...]) -> None:
    answer = asked(*said, audit=True, certificate=CERTIFICATE)
    assert (answer.text, answer.stopped, answer.certificate) == ("Rhine", "policy", CERTIFICATE)
    assert answer.audited
    assert answer.warnings[-1].startswith("the audit was cut short: ProviderUnavailableError") or answer.steps[-1].notes


def test_a_ladder_whose_last_model_fails_in_an_audit_has_no_step_more() -> None:
    ladder = ladder_of((SMALL, LARGE))
    answer = asked(RHINE, DOWN, strategy=ladder, policy=FixedPolicy("both", 1), audit=True)
    assert (answer.text, answer.stopped, len(answer.steps)) == ("Rhine", "policy", 2)
    assert answer.steps[1].candidates == ()
    assert answer.steps[1].audited


@pytest.mark.parametrize("on_exhausted", ["serve_best", "refuse"])
def test_the_cap_holds_in_an_audit_and_cuts_it_short(on_exhausted: str) -> None:
    steps_of: set[int] = set()
    for cap in range(120_000, 1_500_000, 60_000):
        try:
            answer = asked(*ALL_STEPS, budget=Budget(cap), on_exhausted=on_exhausted, audit=True)
        except BudgetExceededError:
            continue  # what is served did not fit itself
        assert (answer.text, answer.audited) == ("Rhine", True)
        assert answer.cost_nano_usd is not None
        assert answer.cost_nano_usd <= cap
        if answer.stopped == "policy":
            steps_of.add(len(answer.steps))
            cut = any("the audit was cut short: BudgetExceededError" in said for said in answer.warnings)
            assert cut == (len(answer.steps) < 3)
    assert steps_of == {1, 2, 3}


def test_a_step_that_is_final_ends_an_audit() -> None:
    answer = asked(DOWN, DANUBE, audit=True)
    assert (len(answer.steps), answer.audited, answer.stopped) == (1, True, "horizon")


def test_an_audit_of_a_walk_that_was_broken_off_runs_no_further() -> None:
    def script() -> Iterable[Said]:
        return (RHINE, yes_no(0.5), DOWN, DOWN)

    ladder = ladder_of((SMALL, LARGE, ModelUse("third", 64)))
    broken = asked(RHINE, DOWN, MUR, strategy=ladder, policy=FixedPolicy("both", 3), audit=True)
    assert broken.stopped == "horizon"
    answer = asked(*script(), audit=True)
    assert answer.text is not None
    assert not any(step.audited for step in answer.steps)


def test_audited_steps_are_shown_as_they_are_made() -> None:
    walk, call = run(RIVER, strategy=THREE, policy=ThresholdPolicy(), prices=PRICES, audit=True), caller(ALL_STEPS)
    seen: list[Step] = []
    item = next(walk)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(item, Step):
                seen.append(item)
            item = walk.send(call(item) if isinstance(item, Request) else None)
    assert [step.audited for step in seen] == [False, True, True]


# --- certificates ---


def test_no_certificate_speaks_of_a_walk_that_was_broken_off() -> None:
    broken = asked(RHINE, yes_no(0.5), budget=Budget(500_000), on_exhausted="serve_best", certificate=CERTIFICATE)
    assert (broken.stopped, broken.certificate) == ("budget", None)
    assert any(said.startswith("no certificate") for said in broken.warnings)
    assert not any("certificate" in said for said in asked(*ALL_STEPS[:2]).warnings)


def test_warnings_begin_with_those_that_are_given() -> None:
    assert asked(*ALL_STEPS[:2], warnings=["the certificate has expired"]).warnings == ("the certificate has expired",)


# --- abstention ---


@pytest.mark.parametrize(
    ("abstain_below", "text"),
    [(None, "Rhine"), (-math.inf, "Rhine"), (0.9, "Rhine"), (0.97, "Rhine"), (0.98, None), (math.inf, None)],
)
def test_an_answer_below_the_bound_is_not_served(abstain_below: float | None, text: str | None) -> None:
    answer = asked(*ALL_STEPS[:2], abstain_below=abstain_below, certificate=CERTIFICATE)
    assert answer.text == text
    assert answer.answers == (() if text is None else ("Rhine",))
    assert answer.stopped == ("policy" if text else "abstained")
    assert answer.certificate is CERTIFICATE
    assert answer.steps[0].decision is not None
    assert answer.steps[0].decision.keep == (0,)


@pytest.mark.parametrize(("abstain_below", "text"), [(None, "Rhine"), (-math.inf, "Rhine"), (-5.0, None), (0.0, None)])
def test_an_unknown_confidence_is_below_every_bound_there_is(abstain_below: float | None, text: str | None) -> None:
    ladder = ladder_of((SMALL,))
    answer = asked(RHINE, strategy=ladder, policy=FixedPolicy(), abstain_below=abstain_below)
    assert answer.steps[0].candidates[0].confidence is None
    assert answer.text == text


def test_the_best_answers_confidence_is_the_highest_that_any_step_had_in_it() -> None:
    said = (RHINE, yes_no(0.6), "Answer: the Rhine", yes_no(0.8), DANUBE, yes_no(0.7))
    policy = ThresholdPolicy(0.0, "both")
    assert asked(*said, policy=policy, abstain_below=0.8).text == "the Rhine"  # the surest text of the answer
    assert asked(*said, policy=policy, abstain_below=0.81).text is None


def test_an_abstention_is_audited_like_any_answer() -> None:
    answer = asked(*ALL_STEPS, abstain_below=0.99, audit=True)
    assert (answer.text, answer.stopped, len(answer.steps)) == (None, "abstained", 3)


def test_what_fails_before_there_is_a_candidate_raises_in_an_audit_too() -> None:
    with pytest.raises(ProviderError):
        asked(DOWN, DOWN, audit=True)
