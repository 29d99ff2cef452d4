"""What is said of a log before a promise is made from it."""

from __future__ import annotations

from typing import Any

from cascade.calibration.scores import about_gaps, about_parents, about_questions, about_reference
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from unit.evaluation.plain import row


def ladder(question: str, episode: str, *, small: int | None = 10, large: int | None = 100) -> list[dict[str, Any]]:
    """Return the rows of a question that a small model answers wrongly and a large one rightly."""
    same = {"question": question, "horizon": 2}
    first = row(episode, 1, 0, **same, source="small", model="small", cost_nano_usd=small, correct=False)
    return [first, row(episode, 2, 0, **same, source="large", model="large", cost_nano_usd=large)]


def logged(*episodes: list[dict[str, Any]]) -> EpisodeTable:
    (table,) = tables_from_rows([one for rows in episodes for one in rows])
    return table


def test_near_duplicates_are_said_and_counted_as_one() -> None:
    spelled = ["Who wrote Hamlet?", "who wrote  HAMLET", "Who wrote Hamlet\u00a0?", "Who wrote Faust?"]
    table = logged(*(ladder(one, f"e{k}") for k, one in enumerate(spelled)))
    (said,) = about_questions([table])
    assert "3 questions are near-duplicates" in said
    assert "count as 1 question" in said
    assert "column group" in said
    assert not list(about_questions([logged(ladder("Who?", "a"), ladder("Who?", "b"), ladder("What?", "c"))]))


def test_questions_that_a_model_was_not_asked_are_counted() -> None:
    """A fit on such a log said only how many more questions it would take."""
    asked = [ladder("Who?", "a"), ladder("What?", "b")]
    assert not list(about_gaps([logged(*asked)]))
    (said,) = about_gaps([logged(*asked, ladder("Where?", "c")[1:])])
    assert said.startswith("1 of 3 questions have no logged call of small: if a policy asks small on")


def test_the_reference_is_named_with_the_reason() -> None:
    (said,) = about_reference(logged(ladder("Who?", "a")))
    assert said == "the reference is large, the last model of the ladder, because the log has no walk of a guide alone"


def offered(*parents: list[int] | None, second: str = "small") -> EpisodeTable:
    """Return a log of two tries and a guide, each with the steps that it reads."""
    asked = [("first", "small"), ("again", second), ("last", "large")]
    steps = zip(asked, parents, strict=True)
    made = [
        row("e1", at, 0, question="Who?", horizon=3, source=source, model=model, parents=reads)
        for at, ((source, model), reads) in enumerate(steps, 1)
    ]
    (table,) = tables_from_rows(made)
    return table


def test_a_log_of_offers_that_does_not_say_what_they_read_is_named() -> None:
    """0.6: a log of offers whose column parents was null was fitted as a ladder without a word."""
    (said,) = about_parents([offered(None, None, None)])
    assert "the steps first, again, last were taken for calls that do not read each other" in said
    assert "parents, as in [1]" in said
    assert not list(about_parents([offered([], [1], [])]))
    assert not list(about_parents([offered(None, None, None, second="other")]))  # two opinions are a ladder
    assert not list(about_parents([logged(ladder("Who?", "a"))]))


def test_parents_that_are_given_are_kept_where_they_are_a_chain() -> None:
    """A chain that a log gives was taken for calls that read nothing, so that a policy could leave one of them out."""
    assert offered([], [1], [2]).parents == ((), (1,), (2,))
    assert offered([], [1], [2]).step_names == ("first", "again", "last")
    assert offered(None, None, None).parents is None
