"""What a table knows of its questions and models, and that taking rows takes all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cascade.conformal.arrays import StepArrays
from cascade.episodes.schema import COLUMNS, identity, question_id
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from unit.evaluation.plain import draw, table_of


def row(episode: str, step: int = 1, **more: Any) -> dict[str, Any]:
    known = {"episode_id": episode, "step": step, "candidate": 0, "source": "base", "answer": "x", "correct": True}
    return dict.fromkeys(COLUMNS) | known | {"signals": {}} | more


def test_a_question_is_its_text_and_context() -> None:
    (table,) = tables_from_rows(
        [
            row("a", question="Which river?", context=None),
            row("b", question="Which river?", context="Vienna"),
            row("c", question="Which river?", context=None),
            row("d"),
        ]
    )
    river = identity("Which river?")
    assert table.ids == ("a", "b", "c", "d")
    assert table.questions == (river, identity("Which river?", "Vienna"), river, "d")
    spelled = question_id("Which river?", None)
    assert table.spelled == (spelled, question_id("Which river?", "Vienna"), spelled, "d")


def test_the_models_are_those_that_were_asked() -> None:
    (table,) = tables_from_rows(
        [
            row("a", model="small"),
            row(
                "a", source="guide", candidate=None, answer=None, correct=None, model="large"
            ),  # a verdict holds no answer
            row("b", model="tiny"),
            row("b", step=2),
            row("b", walk="LLM-exit", source="other", model="third"),
            row("c", correct=None, model="dropped"),
        ]
    )
    assert table.models == {"base": ("small", "tiny"), "guide": ("large",)}


def test_a_log_without_models_names_none() -> None:
    (table,) = tables_from_rows([row("a")])
    assert table.models == {}


def test_without_questions_the_episodes_are_the_questions() -> None:
    arrays = StepArrays(
        np.zeros((1, 1, 1), np.int64),
        np.ones((1, 1, 1), bool),
        np.ones((1, 1), np.int64),
        np.ones(1, int),
        np.ones(1, bool),
    )
    table = EpisodeTable("one", ("a",), ("a",), ("answer",), arrays, np.zeros((1, 1, 1)), {}, {})
    assert table.questions == ("a",)


def test_taking_rows_takes_every_field() -> None:
    table = table_of([draw(np.random.default_rng(seed), 3, 2) for seed in range(6)], 3, 2)
    table = replace(
        table,
        cost_known=False,
        questions=tuple("uvwxyz"),
        models={"base": ("small",)},
    )
    rows = np.array([4, 1, 1])
    some = table.take(rows)
    assert some.questions == ("y", "v", "v")
    assert some.ids == tuple(table.ids[r] for r in rows)
    assert some.models == table.models
    assert some.cost_known is False
    mask = np.arange(6) % 2 == 0
    assert table.take(mask).questions == ("u", "w", "y")


def test_how_sure_a_reply_is_counts_where_nothing_judges() -> None:
    said = {"reply_mean_logprob": float(np.log(0.25))}
    rows = [
        row("a", signals=said),
        row("a", 2, confidence=0.9, signals=said),
        row("b", signals={}),
        row("c", signals=said),
        row("c", candidate=1, source="guide", signals=said),
    ]
    (ladder,) = tables_from_rows(rows)
    np.testing.assert_allclose(ladder.sure[0, :, 0], [0.25, 0.9])
    assert np.isnan(ladder.sure[1]).all()  # not on record
    assert np.isnan(ladder.sure[2]).all()  # two answers: the reply of which?
    (judged,) = tables_from_rows([*rows, row("d", signals={"p_yes": 0.5})])
    np.testing.assert_array_equal(judged.sure, judged.confidence)
