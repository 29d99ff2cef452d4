"""What counts as missed: the same on one answer as on a log of many, and the worse where something is unknown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import strategies as st

from cascade.guarantees.base import Audit, Judge
from cascade.guarantees.kept_answers import Coverage
from cascade.guarantees.served_answer import Error
from cascade.serving.monitors import judge
from cascade.types import Answer, Decision, Step
from unit.made import RIVER, candidate


def answered(*steps: Step, text: str | None = "Rhine", stopped: str = "policy", **fields: Any) -> Answer:
    return Answer(RIVER, text, () if text is None else (text,), steps, stopped, 0.1, audited=True, **fields)


def step(number: int, *texts: str, keep: tuple[int, ...] = (), **fields: Any) -> Step:
    decision = Decision(keep, False, (0.0,) * len(texts), 0.0, 0.0)
    return Step(number, tuple([candidate(text) for text in texts]), {}, decision=decision, **fields)


def missed_in_set(answer: Answer, right: Judge, *, complete: bool) -> bool | None:
    return Coverage().audited(answer, Audit(right, complete))


def is_danube(text: str) -> bool:
    return text == "Danube"


@pytest.mark.parametrize(
    ("steps", "complete", "missed"),
    [
        ([step(1, "Danube", keep=(0,))], False, False),
        ([step(1, "Rhine", "Danube", keep=(0, 1))], True, False),
        ([step(1, "Rhine", keep=(0,)), step(2, "Danube")], True, True),
        ([step(1, "Rhine", "Danube", keep=(0,))], True, True),
        ([step(1, "Rhine", keep=(0,)), step(2, "Mur")], True, False),
        ([step(1, "Rhine", keep=(0,))], False, True),
        ([step(1)], True, False),
    ],
)
def test_a_question_is_missed_where_a_right_answer_could_have_been_kept(
    steps: list[Step], complete: bool, missed: bool
) -> None:
    assert missed_in_set(answered(*steps), is_danube, complete=complete) is missed


def test_what_cannot_be_judged_may_have_been_right() -> None:
    answer = answered(step(1, "Rhine", keep=(0,)), step(2, "Mur"))
    for unknown in ("Rhine", "Mur"):
        assert missed_in_set(answer, lambda text, u=unknown: None if text == u else False, complete=True) is True
    kept = answered(step(1, "Danube", "Mur", keep=(0,)))
    assert missed_in_set(kept, lambda text: True if text == "Danube" else None, complete=True) is False


@pytest.mark.parametrize(
    ("text", "stopped", "wrong"),
    [("Danube", "policy", False), ("Rhine", "policy", True), (None, "abstained", False), (None, "policy", True)],
)
def test_what_is_served_is_wrong_or_missing_unless_nothing_was_meant_to_be(
    text: str | None, stopped: str, wrong: bool
) -> None:
    assert (
        Error().audited(answered(step(1, "Rhine"), text=text, stopped=stopped), Audit(is_danube, complete=True))
        is wrong
    )
    assert Error().audited(answered(step(1, "Rhine")), Audit(lambda _: None, complete=True))


def test_a_truth_is_a_rule_or_the_accepted_answers() -> None:
    assert judge(is_danube, "exact") is is_danube
    assert judge("the Danube", "exact")("Danube") is True
    assert judge(["Danube", "Donau"], "exact")("donau.") is True
    assert judge("3.14", "number:rel=0.01")("3.15") is True
    assert judge("Danube", "exact")("Rhine") is False


# --- critical values ---


@st.composite
def audits(draw: st.DrawFn) -> tuple[list[list[tuple[str, float]]], list[float], bool]:
    score = st.sampled_from([-math.inf, 0.0, 0.1, 0.1, 0.5, 0.9, math.inf])
    made = st.lists(st.tuples(st.sampled_from(["Danube", "Rhine", "Mur"]), score), max_size=3)
    steps = draw(st.lists(made, min_size=1, max_size=4))
    return steps, [draw(score) for _ in steps], draw(st.booleans())
