"""The demonstration counts what was really made, paid and right."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cascade.demo.questions import (
    BASE_ALONE,
    FITTED,
    GUIDE_ALONE,
    HAND_SET,
    JUDGED,
    PAIR,
    PROMISE,
    DemoQuestion,
    Outcome,
    demo_config,
    demo_questions,
    fit_ladder,
    is_right,
    ladder_config,
    on_the_log,
    regrets,
    run_demo,
    sample,
    table,
    ways,
)
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.memo import Memo
from cascade.training.fitting import Fitted
from cascade.types import Answer, Question, Request


def asked(number: int, right: str, kind: str = "fact") -> DemoQuestion:
    return DemoQuestion(f"q{number}", "live", kind, Question(f"question {number}"), (right,))


def script(request: Request) -> Any:
    """q1: the base is right and sure. q2: it is wrong and unsure. q3: it is wrong and sure, and the guide is right."""
    number = request.question.text[-1]
    if request.model == PAIR[0]:
        said = {"1": "Inn", "2": "Rhine", "3": "Oder"}[number]
        return reply(f"Answer: {said}", output_tokens=10, logprobs=[-1.0 if number == "2" else -0.01])
    said = {"1": "Inn", "2": "Danube", "3": "Elbe"}[number]
    return reply(f"Answer: {said}", input_tokens=20, output_tokens=20, logprobs=[-0.1])


QUESTIONS = [asked(1, "Inn"), asked(2, "Danube"), asked(3, "Elbe")]
CONFIG = demo_config(*PAIR)


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    return fit_ladder(CONFIG)


@pytest.fixture
def outcomes() -> list[Outcome]:
    with ways(CONFIG, None, FakeProvider(script)) as asking:
        return list(run_demo(asking, QUESTIONS))


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


def test_each_question_is_asked_in_every_way(outcomes: list[Outcome]) -> None:
    texts = [{way: answer.text for way, answer in one.answers.items()} for one in outcomes]
    assert texts == [
        {HAND_SET: "Inn", BASE_ALONE: "Inn", GUIDE_ALONE: "Inn"},
        {HAND_SET: "Danube", BASE_ALONE: "Rhine", GUIDE_ALONE: "Danube"},
        {HAND_SET: "Oder", BASE_ALONE: "Oder", GUIDE_ALONE: "Elbe"},
    ]


def test_the_table_counts_what_was_right_and_paid(outcomes: list[Outcome]) -> None:
    rows = {row.way: row for row in table(outcomes)}
    base, guide = Decimal(20 * 100 + 10 * 400) / 10**9, Decimal(20 * 1_000 + 20 * 4_000) / 10**9
    assert {way: row.right for way, row in rows.items()} == pytest.approx(
        {HAND_SET: 2 / 3, BASE_ALONE: 1 / 3, GUIDE_ALONE: 1}
    )
    assert rows[BASE_ALONE].cost_usd == base
    assert rows[GUIDE_ALONE].cost_usd == guide
    assert rows[HAND_SET].cost_usd == (3 * base + guide) / 3
    assert (rows[HAND_SET].steps, rows[GUIDE_ALONE].steps) == (pytest.approx(4 / 3), 1.0)
    assert table([]) == []


def test_a_regret_is_a_wrong_answer_where_the_guide_is_right(outcomes: list[Outcome]) -> None:
    led = [replace(one, answers={FITTED: one.answers[HAND_SET], **one.answers}) for one in outcomes]
    assert regrets(led) == 1  # the third: the base was sure, and wrong
    silent = replace(led[0].answers[FITTED], text=None, answers=())
    assert regrets([replace(led[0], answers={**led[0].answers, FITTED: silent}), *led[1:]]) == 2
    assert not is_right(led[0].asked, silent)


def test_the_fitted_ladder_leads_with_its_certificate_makes_no_call_twice_and_its_directory_is_gone(
    fitted: Fitted, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """0.5.0: rounds of base and guide led, and the fitted ladder was the last row."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    provider, told = FakeProvider(script), list[tuple[DemoQuestion, Answer, int]]()
    with ways(CONFIG, fitted, Memo(provider)) as asking:
        assert next(iter(asking)) == FITTED
        outcomes = list(
            run_demo(asking, QUESTIONS, lambda one, answer: told.append((one, answer, len(provider.requests))))
        )
    assert [one for one, _, _ in told] == QUESTIONS
    assert [answer for _, answer, _ in told] == [one.answers[FITTED] for one in outcomes]
    assert told[0][2] <= 2  # the leading answer is told before any other way is asked
    assert len(provider.requests) == 6  # each model once a question, though four ways were asked
    answers = [one.answers[FITTED] for one in outcomes]
    assert [answer.certificate for answer in answers] == list(fitted.artifact.certificates) * 3
    assert not any(answer.warnings for answer in answers)
    assert list(tmp_path.iterdir()) == []
    assert fitted.artifact.certificates[0].kind == PROMISE.kind


def test_the_figures_of_the_log_are_those_of_the_questions_that_it_was_not_fitted_on(fitted: Fitted) -> None:
    rows = {row.way: row for row in on_the_log(fitted)}
    assert list(rows) == [FITTED, BASE_ALONE, GUIDE_ALONE, JUDGED]
    realised = fitted.calibrated.realised
    assert {row.n for row in rows.values()} == {realised.n}
    assert rows[FITTED].right == pytest.approx(1 - realised.error)
    assert float(rows[FITTED].cost_usd or 0) * 1e9 == pytest.approx(realised.cost_nano_usd)
    assert float(rows[GUIDE_ALONE].cost_usd or 0) * 1e9 == pytest.approx(fitted.calibrated.reference_cost_nano_usd)


def test_the_demo_serves_a_ladder_and_the_log_was_made_by_rounds() -> None:
    assert (CONFIG.strategy.kind, ladder_config(CONFIG).strategy.kind) == ("base_guide", "ladder")
