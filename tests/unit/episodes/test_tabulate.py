"""Rows become tables: nothing is guessed, what cannot be judged is left out and named."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cascade.engine import rank
from cascade.episodes.schema import BASE_ONLY, COLUMNS, LAST_ONLY, Dropped, identity, question_id
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.types import Candidate, Decision, Step
from unit.evaluation.plain import batches, row, rows_of, table_of

Row = dict[str, Any]


def guide(episode: str = "q", step: int = 1, candidate: int | None = 1, **columns: Any) -> Row:
    return row(episode, step, candidate, **({"source": "guide", "cost_nano_usd": 100} | columns))


def one_table(*rows: Row) -> EpisodeTable:
    (table,) = tables_from_rows(rows)
    return table


def same_answers(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two numberings of answers say the same."""
    there = one >= 0
    pairs = set(zip(one[there].tolist(), other[there].tolist(), strict=True))
    return np.array_equal(there, other >= 0) and len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs})


def test_the_rows_of_a_log_give_its_table_in_any_order() -> None:
    rng = np.random.default_rng(0)
    checks = 0
    for questions, horizon, width in batches(seed=1, per_shape=8):
        rows = rows_of(questions, horizon, width)
        wanted = table_of(questions, horizon, width)
        for shuffled in (rows, [rows[k] for k in rng.permutation(len(rows))]):
            got = one_table(*shuffled)
            order = [got.ids.index(name) for name in wanted.ids]
            got = got.take(np.array(order))
            reach, places = got.arrays.horizon, got.arrays.answer.shape[2]
            assert reach == max(len(one.steps) if one.complete else horizon for one in questions)
            assert got.arrays.steps.tolist() == wanted.arrays.steps.tolist()
            assert got.arrays.complete.tolist() == wanted.arrays.complete.tolist()
            assert got.arrays.cost.tolist() == wanted.arrays.cost[:, :reach].tolist()
            cut = (slice(None), slice(0, reach), slice(0, places))
            assert got.arrays.correct.tolist() == wanted.arrays.correct[cut].tolist()
            assert np.array_equal(got.confidence, wanted.confidence[cut], equal_nan=True)
            assert all(same_answers(a, b) for a, b in zip(got.arrays.answer, wanted.arrays.answer[cut], strict=True))
            for name, values in got.signals.items():
                assert np.array_equal(values, wanted.signals[name][:, :reach], equal_nan=True)
            checks += len(questions)
    assert checks == 2 * 12 * 8 * 8


def test_answers_are_the_same_as_the_engine_compares_them() -> None:
    table = one_table(row(answer="The Danube."), guide(answer="danube"), row(step=2, answer="Rhine", correct=False))
    assert table.arrays.answer.tolist() == [[[0, 0], [1, -1]]]


def test_where_no_texts_are_kept_what_is_wrong_differs_and_what_is_right_agrees() -> None:
    rows = [row(step=t, candidate=0, answer=None, correct=right) for t, right in ((1, True), (2, False), (3, False))]
    table = one_table(*rows, row(step=4, answer=None, correct=True))
    assert table.arrays.answer[0, :, 0].tolist() == [0, 1, 2, 0]


@pytest.mark.parametrize(("kept", "known"), [("all", True), ("right", False), ("wrong", False), ("none", False)])
def test_texts_that_are_kept_by_what_is_right_compare_nothing(kept: str, known: bool) -> None:
    """Answers of the kind without texts would agree never, or always: which of the two tells the truth."""
    wanted = {"all": {True, False}, "right": {True}, "wrong": {False}, "none": set()}[kept]
    rows = [
        row(str(q), step, answer="Rhine" if right in wanted else None, correct=right)
        for q in range(4)
        for step, right in ((1, False), (2, q > 0), (3, False))
    ]
    assert one_table(*rows).texts_known.tolist() == [known] * 4


def test_an_answer_that_could_not_be_read_is_like_no_other() -> None:
    rows = [row("1", 1, answer=None, correct=False), row("1", 2, answer="Rhine", correct=False)]
    table = one_table(*rows, row("1", 3, answer=None, correct=False), *[row("2", s, correct=False) for s in (1, 2, 3)])
    assert table.texts_known.tolist() == [True, True]
    assert table.arrays.answer[:, :, 0].tolist() == [[0, 1, 2], [0, 0, 0]]


def test_each_data_set_is_a_table_in_the_order_of_its_first_row() -> None:
    rows = [row("1", dataset="b"), row("1", dataset="a"), row("2", dataset="b"), row("3")]
    assert [(t.dataset, t.ids) for t in tables_from_rows(rows)] == [("b", ("1", "2")), ("a", ("1",)), ("log", ("3",))]


def test_a_question_is_its_own_group_where_the_log_has_none() -> None:
    assert one_table(row("1", group="g"), row("2"), row("3", group="g")).groups == ("g", "2", "g")


def test_signals_are_numbers_and_unknown_ones_are_nan() -> None:
    table = one_table(
        row("1", signals={"p_yes": 0.25, "odd": None, "replay": {"purpose": "answer"}, "whole": 2}),
        guide("1", signals={"p_yes": 0.75, "late": 1.0}),
        row("2", signals=None),
    )
    assert sorted(table.signals) == ["late", "p_yes", "whole"]
    assert table.signals["p_yes"][0, 0] == 0.25
    assert table.signals["late"][0, 0] == 1.0
    assert np.isnan(table.signals["p_yes"][1, 0])


# --- places ---


def test_each_source_has_one_place_also_where_the_base_gave_no_answer() -> None:
    """The guide answers alone after a base without an answer: it is no base for that."""
    whole = [row("1", horizon=1), guide("1", correct=False, horizon=1)]
    table = one_table(*whole, row("2", candidate=None, horizon=1), guide("2", candidate=0, horizon=1))
    assert table.sources == ("base", "guide")
    assert table.arrays.present[:, 0].tolist() == [[True, True], [False, True]]


def test_places_that_a_ladder_shares_are_called_answer() -> None:
    table = one_table(*(row("1", t, source=name) for t, name in ((1, "small"), (2, "large"))))
    assert table.sources == ("answer",)


def test_a_source_that_fills_several_places_keeps_them() -> None:
    table = one_table(*(row("1", 1, k, answer=f"a{k}") for k in range(3)), row("2", candidate=0))
    assert table.arrays.present[:, 0].sum(axis=1).tolist() == [3, 1]
    assert table.sources == ("base", "base", "base")


# --- what is not known ---


def test_an_unknown_cost_leaves_all_costs_unknown() -> None:
    assert one_table(row("1"), row("2")).cost_known
    assert not one_table(row("1"), row("2", cost_nano_usd=None)).cost_known
    assert not one_table(row("1"), guide("1", cost_nano_usd=None)).cost_known
    assert not one_table(row("1"), row("1", walk="z", kept=True, cost_nano_usd=None)).cost_known


def test_a_question_is_complete_with_all_steps_that_it_could_take() -> None:
    rows = [row("1", 1, horizon=2), row("1", 2, horizon=2), row("2", 1, horizon=2), row("3", 1, horizon=1)]
    table = one_table(*rows)
    assert table.arrays.complete.tolist() == [True, False, True]
    assert table.arrays.horizon == 2


def test_where_the_log_does_not_say_how_many_steps_there_could_have_been_the_longest_question_does() -> None:
    table = one_table(row("1", 1), row("1", 2), row("2", 1))
    assert table.arrays.complete.tolist() == [True, False]


def test_steps_that_no_row_has_are_incomplete_even_at_the_end() -> None:
    table = one_table(row("1", 1, horizon=3), row("2", 1, horizon=3), row("2", 2, horizon=3))
    assert (table.arrays.horizon, table.arrays.complete.tolist()) == (3, [False, False])


def test_what_cannot_be_judged_is_left_out_and_named() -> None:
    dropped = Dropped()
    rows = [
        row("good"),
        row("gap", 1),
        row("gap", 3),
        row("truth", correct=None),
        row("walk alone", walk="guide only", kept=True),
        row("late", 2),
    ]
    (table,) = tables_from_rows(rows, dropped)
    assert table.ids == ("good",)
    assert dict(dropped.rows) == {
        "an episode with a step missing in the middle": 2,
        "an episode with an answer of which it is unknown whether it is right": 1,
        "an episode without a step": 1,
    }
    assert "gap: an episode with a step missing" in dropped.describe()


def test_a_log_without_an_episode_is_refused_with_the_reasons() -> None:
    with pytest.raises(UsageError, match=r"no episode to judge in this log\. 1 row dropped: .*unknown whether"):
        tables_from_rows([row(correct=None)])
    for gold, advice in ((["the Rhine"], r"judges them by the accepted answers"), (None, r"Add the accepted answers")):
        with pytest.raises(UsageError, match=advice):
            tables_from_rows([row(correct=None, gold=gold)])
    with pytest.raises(UsageError, match=r"no episode to judge in this log\.$"):
        tables_from_rows([])


# --- walks ---


def test_base_only_is_the_first_answer_at_the_cost_of_the_bases_own_calls() -> None:
    table = one_table(row("1", correct=False), guide("1"), row("1", candidate=None, cost_nano_usd=5))
    base = table.walks[BASE_ONLY]
    assert (base.known[0], base.right[0], base.covered[0], base.cost[0]) == (True, False, False, 15)
    assert (base.length[0], base.leaves[0], base.distinct[0]) == (1, 1, 1)
    assert table.arrays.cost.tolist() == [[115]]


def test_a_base_that_replied_without_an_answer_is_wrong_and_paid() -> None:
    table = one_table(row("1"), guide("1"), row("2", candidate=None), guide("2", candidate=0))
    base = table.walks[BASE_ONLY]
    assert (base.known.tolist(), base.right.tolist(), base.cost.tolist()) == ([True] * 2, [True, False], [10, 10])
    assert base.leaves.tolist() == [1, 0]


def test_a_base_without_recorded_answers_is_unknown() -> None:
    silent = row("2", candidate=None, text=None)
    base = one_table(row("1"), guide("1"), silent, guide("2")).walks[BASE_ONLY]
    assert base.known.tolist() == [True, False]


def test_base_only_as_logged_is_taken_as_logged() -> None:
    table = one_table(row("1", correct=False), row("1", walk=BASE_ONLY, kept=True, cost_nano_usd=3), row("2"))
    base = table.walks[BASE_ONLY]
    assert (base.known.tolist(), base.right[0], base.cost[0]) == ([True, False], True, 3)


def test_a_ladders_last_model_alone_is_a_walk_where_the_guide_alone_was_not_logged() -> None:
    rungs = [
        row("1", 1, source="small", correct=False, cost_nano_usd=1),
        row("1", 2, source="large", cost_nano_usd=50),
        row("2", 1, source="small", cost_nano_usd=1),
        row("2", 2, None, source="large", cost_nano_usd=60),
    ]
    last = one_table(*rungs).walks[LAST_ONLY]
    assert (last.right.tolist(), last.cost.tolist(), last.known.tolist()) == ([True, False], [50, 60], [True, True])
    with_guide = one_table(*rungs, row("1", walk="guide only", kept=True))
    assert LAST_ONLY not in with_guide.walks
    assert LAST_ONLY not in one_table(row("1"), guide("1")).walks
    assert LAST_ONLY not in one_table(row("1"), row("2")).walks  # one model alone is base only


def test_a_ladder_that_was_not_climbed_to_its_end_does_not_know_its_last_model() -> None:
    rungs = [row("1", 1, horizon=2), row("1", 2, source="large", horizon=2), row("2", 1, horizon=2)]
    assert one_table(*rungs).walks[LAST_ONLY].known.tolist() == [True, False]


def test_an_answer_that_several_calls_made_is_kept_once() -> None:
    """A model that is asked for its answer and then for its decision has two rows for one candidate."""
    asked = row("1", 1, walk="LLM-exit, base", kept=True)
    rows = [row("1"), asked, asked | {"text": "EXIT", "cost_nano_usd": 2}]
    walk = one_table(*rows).walks["LLM-exit, base"]
    assert (walk.leaves[0], walk.distinct[0], walk.cost[0], walk.length[0]) == (1, 1, 12, 1)


def test_a_walk_keeps_what_it_kept_and_pays_for_all() -> None:
    rows = [
        row("1"),
        row("1", 1, walk="z", kept=False, correct=True, answer="right", cost_nano_usd=1),
        row("1", 2, walk="z", kept=True, correct=False, answer="wrong", cost_nano_usd=2),
        row("1", 3, None, walk="z", cost_nano_usd=4),
    ]
    walk = one_table(*rows).walks["z"]
    assert (walk.covered[0], walk.right[0], walk.cost[0], walk.length[0], walk.leaves[0]) == (False, False, 7, 3, 1)


def test_a_walk_whose_kept_answer_is_not_judged_is_not_known() -> None:
    rows = [row("1"), row("2"), row("1", walk="z", kept=True, correct=None), row("2", walk="z", kept=True)]
    assert one_table(*rows).walks["z"].known.tolist() == [False, True]


def test_a_walk_serves_what_the_engine_would_serve() -> None:
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(1_500):
        steps, rows = [], [row("1")]
        for number in range(1, int(rng.integers(1, 4)) + 1):
            made = []
            for index in range(int(rng.integers(1, 4))):
                sure = None if rng.random() < 0.4 else round(float(rng.random()), 1)
                made.append(Candidate(f"answer {rng.integers(3)}", f"s{index}", "m", sure))
            keep = tuple(k for k in range(len(made)) if rng.random() < 0.6)
            steps.append(Step(number, tuple(made), {}, decision=Decision(keep, False, (), 0.0, 0.0)))
            for index, one in enumerate(made):
                right = one.text == "answer 1"
                columns = {"answer": one.text, "confidence": one.confidence, "kept": index in keep, "correct": right}
                rows.append(row("1", number, index, walk="z", source=one.source, **columns))
        walk = one_table(*rows).walks["z"]
        wrong += bool(walk.right[0]) != (rank(steps, at_any_cost=True)[0] == "answer 1")
        wrong += int(walk.distinct[0]) != len(rank(steps))
    assert wrong == 0


def test_chosen_questions_take_their_rows_groups_and_walks_along() -> None:
    table = one_table(*(row(f"{k}", group=f"g{k % 2}", signals={"p_yes": k / 10}) for k in range(5)))
    some = table.take(np.array([3, 1]))
    assert (some.ids, some.groups) == (("3", "1"), ("g1", "g1"))
    assert some.signals["p_yes"].tolist() == [[0.3], [0.1]]
    assert table.take(np.array([True, False, True, False, False])).ids == ("0", "2")
    assert some.walks[BASE_ONLY].known.shape == (2,)
    assert math.isnan(some.confidence[0, 0, 0])


def bare(**columns: Any) -> Row:
    """Return a row that a user writes: only the columns given, all others null."""
    return dict.fromkeys(COLUMNS) | {"episode_id": "q", "step": 1, "cost_nano_usd": 10} | columns


GUIDE = {"walk": "guide only", "candidate": 0, "correct": True, "answer": "Danube"}


def test_the_lone_answer_of_a_walk_was_served_where_kept_is_null() -> None:
    """0.5.0 read a null `kept` as "the guide is wrong": fit then certified regret 5 % where 16 to 33 % was true."""
    walk = one_table(row(correct=False), bare(**GUIDE)).walks["guide only"]
    assert (walk.known.tolist(), walk.right.tolist(), walk.covered.tolist()) == ([True], [True], [True])
    refused = one_table(row(correct=False), bare(**GUIDE, kept=False)).walks["guide only"]
    assert (refused.known.tolist(), refused.right.tolist(), refused.leaves.tolist()) == ([True], [True], [0])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([GUIDE, GUIDE | {"candidate": 1, "kept": True}], "it has several answers, and kept is null for one of them"),
        ([GUIDE, GUIDE | {"candidate": None}], "it has several answers, one of them with a null candidate"),
        ([{"walk": "guide only"}], "neither an answer nor a reply is recorded"),
        ([GUIDE | {"correct": None}], "it is unknown whether its answer is right"),
    ],
)
def test_a_walk_of_which_it_is_unknown_what_was_served_is_left_out_and_counted(rows: list[Row], why: str) -> None:
    """0.5.0 counted the first three as a wrong guide, and said nothing of the fourth."""
    dropped = Dropped()
    whole = bare(**GUIDE | {"episode_id": "r"})
    (table,) = tables_from_rows([row(), row("r"), whole, *(bare(**one) for one in rows)], dropped)
    assert table.walks["guide only"].known.tolist() == [False, True]
    assert dict(dropped.notes) == {f"a walk 'guide only' is left out of its episode: {why}": 1}


def test_the_lone_answer_of_a_step_needs_no_candidate() -> None:
    """0.5.0 read a null `candidate` as a model that gave no answer, and so was wrong."""
    table = one_table(bare(answer="Inn", correct=False), bare(step=2, answer="Danube", correct=True))
    assert table.arrays.correct[0, :, 0].tolist() == [False, True]
    assert table.arrays.present[0, :, 0].tolist() == [True, True]
    walk = one_table(row(), bare(**GUIDE | {"candidate": None})).walks["guide only"]
    assert (walk.known.tolist(), walk.right.tolist()) == ([True], [True])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            [bare(answer="Inn", correct=False), bare(answer="Danube", correct=True)],
            "an episode with a step of several answers, one of them with a null candidate",
        ),
        ([bare(), bare(step=2, candidate=0, correct=True)], "an episode with a step without a recorded answer"),
    ],
)
def test_an_episode_of_which_an_answer_is_unknown_is_left_out_and_counted(rows: list[Row], why: str) -> None:
    dropped = Dropped()
    (table,) = tables_from_rows([*rows, row("r")], dropped)
    assert table.ids == ("r",)
    assert [reason[: len(why)] for reason in dropped.rows] == [why]


def test_an_unrecorded_source_is_the_model_or_else_unknown() -> None:
    """0.5.0 took a null source for one called "", so that no strategy could serve what was fitted."""
    ladder = [row(source=None, model="small"), row(step=2, source=None, model="large")]
    table = one_table(*ladder)
    assert (table.sources, table.models) == (("answer",), {"small": ("small",), "large": ("large",)})
    assert one_table(row(source=None), row(step=2, source=None)).sources == ("answer",)


def test_the_first_row_of_an_episode_that_tells_its_group_and_question_decides() -> None:
    """0.5.0 looked at an episode's first row only: a group in its second row was lost, and splits cut through it."""
    rows = [row(question=None), row(step=2, question="Which?", group="user 1")]
    table = one_table(*rows)
    assert (table.groups, table.questions) == (("user 1",), (identity("Which?", None),))


def test_a_ladder_called_base_and_guide_is_the_ladder_of_its_models() -> None:
    """0.5.0: `fit --config` refused such a log as one of another cascade, and without it the certificate never held."""
    named = [row(source="base", model="small"), row(step=2, source="guide", model="large")]
    plain = [row(source="small", model="small"), row(step=2, source="large", model="large")]
    one, other = one_table(*named), one_table(*plain)
    assert one.models == other.models == {"small": ("small",), "large": ("large",)}
    assert (one.sources, one.step_models) == (other.sources, other.step_models) == (("answer",), ("small", "large"))


def test_an_unknown_cost_is_that_of_its_own_question() -> None:
    rows = [row("a"), row("b", cost_nano_usd=None), row("c"), row("a", walk="other", cost_nano_usd=None)]
    table = one_table(*rows, row("d"))
    assert not table.cost_known
    known = dict(zip(table.ids, table.priced.tolist(), strict=True))
    assert known == {"a": False, "b": False, "c": True, "d": True}
    assert table.take(table.priced).costed().cost_known


def test_two_answers_in_one_place_are_refused_where_no_id_tells_runs_apart() -> None:
    """The costs of both were added up, and the second answer was dropped in silence."""
    twice = [row(question_id("Who?", None), question="Who?") for _ in range(2)]
    dropped = Dropped()
    tables_from_rows([*twice, row("b", question="What?")], dropped)
    assert dropped.count == 1
    assert "give each run its own episode_id" in dropped.describe()
    with pytest.raises(UsageError, match="answered twice in one step") as error:
        tables_from_rows(twice)
    assert "gold" not in str(error.value)


def tree(episode: str, *parents: list[int] | None) -> list[Row]:
    return [row(episode, step, 0, parents=needed) for step, needed in enumerate(parents, 1)]


def test_steps_keep_what_they_depend_on_and_a_log_without_it_is_a_chain() -> None:
    assert one_table(*tree("a", None, None, None)).parents is None
    assert one_table(*tree("a", [], [1], [2])).parents == ((), (1,), (2,))
    table = one_table(*tree("a", [], [], [1, 2]), *tree("b", [], []))
    assert table.parents == ((), (), (1, 2))
    assert table.arrays.parents is None  # walked in the order in which the steps are listed
    assert table.graph.parents == table.take(np.array([1])).graph.parents == table.parents
    assert table.only([1, 2]).parents == ((), ())
    with pytest.raises(UsageError, match="step 3 depends on step 1"):
        table.only([2, 3])


def test_an_episode_whose_steps_depend_on_others_than_elsewhere_is_left_out() -> None:
    dropped = Dropped()
    (table,) = tables_from_rows([*tree("a", [], [], [1]), *tree("b", [], [1], [1]), *tree("c", [], [], [3])], dropped)
    assert table.ids == ("a",)
    assert dict(dropped.rows) == {
        "an episode with a step that depends on other steps than in other episodes": 1,
        "an episode with a step that depends on itself or on a later step": 1,
    }
