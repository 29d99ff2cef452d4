"""The demonstration counts what was really made, paid and right."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cascade.demo import (
    FITTED,
    PAIR,
    PROMISE,
    DemoQuestion,
    Outcome,
    break_even_of,
    demo_config,
    demo_questions,
    fit_ladder,
    ladder_config,
    regrets,
    run_demo,
    sample,
    serve_fitted,
    table,
)
from cascade.evaluation.breakeven import BreakEven
from cascade.money import Price
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.types import Question, Request


def asked(number: int, right: str, kind: str = "fact") -> DemoQuestion:
    return DemoQuestion(f"q{number}", "live", kind, Question(f"question {number}"), (right,))


def script(request: Request) -> Any:
    """q1: the base is right. q2: it is wrong and the guide corrects it. q3: both are wrong."""
    number = request.question.text[-1]
    if request.role == "guide":
        return {"1": reply("Yes", p_yes=0.95), "2": reply("No, Danube", p_yes=0.05), "3": reply("Yes", p_yes=0.9)}.get(
            number
        )
    if request.role == "base":
        return reply({"1": "Answer: Inn", "2": "Answer: Rhine", "3": "Answer: Oder"}[number], output_tokens=10)
    return reply(
        {"1": "Answer: Inn", "2": "Answer: Danube", "3": "Answer: Weser"}[number], input_tokens=20, output_tokens=20
    )


QUESTIONS = [asked(1, "Inn"), asked(2, "Danube"), asked(3, "Elbe")]


@pytest.fixture
def outcomes() -> list[Outcome]:
    return list(run_demo(demo_config("small", "large"), FakeProvider(script), QUESTIONS))


def test_the_demo_set_is_whole() -> None:
    every = demo_questions()
    assert len({one.question_id for one in every}) == len(every) >= 100
    assert {one.split for one in every} == {"log", "live"}
    assert len(demo_questions("live")) + len(demo_questions("log")) == len(every)
    assert all(one.answers and one.question.text for one in every)


@pytest.mark.parametrize("count", [1, 8, 24])
def test_a_sample_is_of_that_size_without_doubles_and_the_same_for_the_same_seed(count: int) -> None:
    live = demo_questions("live")
    drawn = sample(live, count, 3)
    assert len({one.question_id for one in drawn}) == count
    assert drawn == sample(live, count, 3)
    assert count == 1 or drawn != sample(live, count, 4)


def test_a_sample_keeps_the_proportion_of_kinds() -> None:
    every = [asked(n, "x", "fact" if n % 4 else "sum") for n in range(40)]
    drawn = sample(every, 20, 0)
    assert sum(one.kind == "sum" for one in drawn) == 5


def test_each_question_is_walked_and_asked_of_the_guide_outright(outcomes: list[Outcome]) -> None:
    assert [outcome.walked.text for outcome in outcomes] == ["Inn", "Danube", "Oder"]
    assert [outcome.outright.text for outcome in outcomes] == ["Inn", "Danube", "Weser"]
    assert [outcome.base_answer for outcome in outcomes] == ["Inn", "Rhine", "Oder"]
    assert [len(outcome.base_calls) for outcome in outcomes] == [1, 1, 1]


def test_the_table_counts_what_was_right(outcomes: list[Outcome]) -> None:
    rows = {row.policy.split(",")[0]: row for row in table(outcomes)}
    assert rows["base only"].accuracy == pytest.approx(1 / 3)
    assert rows["guide only"].accuracy == pytest.approx(2 / 3)
    assert rows["threshold"].accuracy == rows["threshold"].coverage == pytest.approx(2 / 3)
    assert rows["both"].coverage == pytest.approx(2 / 3)
    assert rows["both"].answers == pytest.approx(4 / 3)
    assert {row.rounds for row in rows.values()} == {1.0}


def test_the_table_counts_what_was_paid(outcomes: list[Outcome]) -> None:
    rows = {row.policy.split(",")[0]: row for row in table(outcomes)}
    base = Decimal(20 * 100 + 10 * 400) / 10**9
    assert rows["base only"].cost_usd == base
    assert rows["guide only"].cost_usd == Decimal(20 * 1_000 + 20 * 4_000) / 10**9
    assert rows["threshold"].cost_usd == rows["both"].cost_usd
    assert (rows["both"].cost_usd or 0) > base


def test_a_fitted_ladder_is_asked_the_same_and_has_its_row(outcomes: list[Outcome]) -> None:
    config = demo_config("small", "large")
    climbing = ladder_config(config, "base", "guide")
    provider = FakeProvider(script)
    with Orchestrator.from_config(climbing, providers={"local": provider}) as ladder:
        answers = [ladder.ask(one.asked.question) for one in outcomes]
    row = table(outcomes, answers)[-1]
    assert (row.policy, row.rounds, len(table(outcomes))) == (FITTED, 2.0, 5)
    assert row.accuracy == row.coverage == pytest.approx(2 / 3)
    assert row.cost_usd == sum((answer.cost or Decimal(0) for answer in answers), Decimal(0)) / 3


def test_a_regret_is_a_wrong_answer_where_the_guide_is_right(outcomes: list[Outcome]) -> None:
    right, wrong, silent = (replace(outcomes[0].walked, text=text, answers=()) for text in ("Danube", "Rhine", None))
    assert regrets(outcomes, [wrong, right, wrong]) == 1  # the third question the guide has wrong too
    assert regrets(outcomes, [silent, wrong, right]) == 2
    assert regrets(outcomes, [one.outright for one in outcomes]) == 0


def test_the_fitted_ladder_is_served_with_its_certificate_and_its_directory_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    config, provider = demo_config(*PAIR), FakeProvider(lambda _: reply("Answer: Inn"))
    drawn = list(run_demo(config, provider, QUESTIONS))
    fitted = fit_ladder(config)
    answers = serve_fitted(config, fitted, provider, drawn)
    assert [answer.certificate for answer in answers] == list(fitted.artifact.certificates) * 3
    assert not any(answer.warnings for answer in answers)
    assert list(tmp_path.iterdir()) == []
    assert fitted.artifact.certificates[0].kind == PROMISE.kind


def test_no_answer_is_never_right(outcomes: list[Outcome]) -> None:
    assert not outcomes[0].right(None)


def test_break_even_is_where_the_guides_own_answer_costs_as_much(outcomes: list[Outcome]) -> None:
    found = break_even_of(outcomes, Price.per_million(input=1, output=4))
    assert found is not None
    assert found.guide_tokens == 20
    checked = found.base_usd + found.judging_usd
    longer = found.outright_usd + Decimal(found.guide_tokens_needed - 20) * Decimal("0.000004")
    assert longer == pytest.approx(checked)


@pytest.mark.parametrize(("outright", "says"), [("0.1", "costs MORE"), ("0.9", "costs less")])
def test_break_even_in_words(outright: str, says: str) -> None:
    assert says in BreakEven(Decimal("0.1"), Decimal("0.2"), Decimal(outright), 20.0, 50.0).says()


def test_without_prices_there_is_no_break_even(outcomes: list[Outcome]) -> None:
    assert break_even_of([], Price.per_million(input=1, output=4)) is None
    free = break_even_of(outcomes, Price.per_million(input=1, output=0))
    assert free is not None
    assert free.guide_tokens_needed is None
