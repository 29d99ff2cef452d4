"""How often a reference differs from itself: which runs count, the exact interval, and where it is said."""

from __future__ import annotations

import pytest
from scipy.stats import beta

from cascade.chat import ChatRequest
from cascade.episodes.own_difference import OwnDifference, OwnRun, own_difference, pooled
from cascade.episodes.truth import labelled_by_reference
from unit.episodes.test_truth import pair


def equal(one: str, other: str, request: ChatRequest | None) -> bool:
    del request
    return one == other


def test_a_request_counts_once_by_its_first_two_outputs() -> None:
    runs = [
        OwnRun(*one) for one in (("a", "x"), ("b", "x"), ("a", "y"), ("c", "x"), ("b", "x"), ("b", "z"), ("a", "x"))
    ]
    assert own_difference("large", runs, equal) == OwnDifference("large", 1, 2)


def test_without_a_second_output_nothing_is_known() -> None:
    assert own_difference("large", [OwnRun("a", "x"), OwnRun("b", "x")], equal) is None
    assert own_difference("large", [], equal) is None
    assert pooled([None, None]) is None


@pytest.mark.parametrize(("differ", "n"), [(0, 1), (0, 30), (3, 60), (60, 60)])
def test_the_interval_is_that_of_clopper_and_pearson(differ: int, n: int) -> None:
    low, high = OwnDifference("large", differ, n).interval
    assert low == pytest.approx(beta.ppf(0.025, differ, n - differ + 1) if differ else 0.0, abs=1e-6)
    assert high == pytest.approx(beta.ppf(0.975, differ + 1, n - differ) if differ < n else 1.0, abs=1e-6)


def test_data_sets_are_added_up() -> None:
    assert pooled([OwnDifference("large", 1, 10), None, OwnDifference("large", 2, 20)]) == OwnDifference("large", 3, 30)


def test_of_a_log_the_episodes_of_one_request_are_its_runs_under_the_comparator() -> None:
    def asked(episode: str, question: str, dear: str | None) -> list[dict[str, object]]:
        return pair(episode, "x", dear, question=question)

    rows = [
        *asked("a", "A?", '{"n": 1}'),
        *asked("a#2", "A?", '{"n": 1.0}'),  # the same by the comparator
        *asked("b", "B?", '{"n": 1}'),
        *asked("b#2", "B?", '{"n": 2}'),
        *asked("c", "C?", "no JSON"),
        *asked("c#2", "C?", "none either"),  # what the comparator cannot tell counts as different
        *asked("d", "D?", '{"n": 1}'),
        *asked("d#2", "D?", None),  # it failed: no output
        *asked("e", "E?", '{"n": 1}'),
    ]
    assert labelled_by_reference(lambda: rows, "json").own == {"log": OwnDifference("large", 2, 3)}
    once = [row for row in rows if "#" not in str(row["episode_id"])]
    assert labelled_by_reference(lambda: once, "json").own == {"log": None}
