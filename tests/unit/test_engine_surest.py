"""Of the texts that count as one answer, the surest is the one that is served."""

from __future__ import annotations

from cascade.types import Candidate, Decision, Step
from unit.test_engine_records import rank


def step(number: int, text: str, sure: float | None) -> Step:
    decision = Decision((0,), proceed=True, scores=(0.0,), next_score=0.0, kappa=0.0, confidences=(sure,))
    return Step(number, (Candidate(text, "m", "m"),), {}, decision=decision)


def test_the_surest_text_of_an_answer_is_served_and_the_first_where_none_is_surer() -> None:
    """0.5.0 served the first: the base's "The Danube", where the guide's "Danube" was the certified one."""
    assert rank([step(1, "The Danube", 0.5), step(2, "Danube", 1.0)]) == ("Danube",)
    assert rank([step(1, "The Danube", None), step(2, "Danube", None)]) == ("The Danube",)
    assert rank([step(1, "The Danube", 1.0), step(2, "Danube", 0.5)]) == ("The Danube",)
