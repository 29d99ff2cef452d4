"""What keys mean: verdicts in the words of who was shown first, rights, skipping and going back."""

from __future__ import annotations

from collections.abc import Mapping

from cases import each

from cascade.review.pairs import PairId, compare
from cascade.review.reviews import Ask, Judgement, Terms
from cascade.review.session import BETTER, Session
from unit.review.booking import call, episode

ROWS = [row for number in range(12) for row in episode(number, call(number + 50), call(number))]
PAIRS = list(compare(lambda: ROWS).pairs)


def session(
    ask: Ask = "preference", reviewer: str = "ann", judged: Mapping[PairId, Judgement] | None = None
) -> Session:
    return Session(PAIRS, Terms(ask, "text", 1.0, "key"), reviewer, judged or {})


def judged(keys: str, ask: Ask = "preference") -> list[Judgement]:
    """Return what is written while these keys are pressed."""
    one = session(ask)
    pressed = [one.press(key) for key in keys]
    return [found.written for found in pressed if found.written is not None]


@each(
    "keys, better, rights",
    [
        ("1rw", "first", (True, False)),
        ("2wr", "second", (False, True)),
        ("=r", "equal", (True, True)),
        ("=w", "equal", (False, False)),
        ("0", "both_bad", (False, False)),
    ],
)
def test_verdicts_are_written_by_whose_output_it_is(keys: str, better: str, rights: tuple[bool, bool]) -> None:
    one = session("regret")
    for _ in PAIRS:
        assert one.current is not None
        first, pair = one.current.first, one.current.pair
        assert one.current.outputs == (
            (pair.output, pair.reference) if first == "output" else (pair.reference, pair.output)
        )
        written = [found.written for found in map(one.press, keys)][-1]
        assert written is not None
        second = "reference" if first == "output" else "output"
        assert written.verdict == {"first": first, "second": second}.get(better, better)
        said = {first: rights[0], second: rights[1]}
        assert (written.output_right, written.reference_right) == (said["output"], said["reference"])
        assert written.loses("regret") == (said["reference"] and not said["output"])
        assert written.pair == pair.id
    assert one.current is None


def test_preference_needs_one_key() -> None:
    found = judged("12=0")
    assert len(found) == 4
    assert {one.output_right for one in found} == {None}
    assert [one.loses("preference") for one in found] == [one.verdict == "reference" for one in found]


def test_each_output_is_shown_first_about_as_often() -> None:
    shown = [session(reviewer=f"reviewer {number}").current for number in range(1_000)]
    assert abs([sides.first for sides in shown if sides].count("output") - 500) < 4 * 250**0.5


def test_the_order_is_a_reviewers_own_and_stays() -> None:
    orders = [[pair.id for pair in session(reviewer=name).drawn] for name in ("ann", "bob", "ann")]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_what_was_skipped_loses_nothing_and_does_not_come_again() -> None:
    one = session()
    first = one.current
    written = one.press("s").written
    assert written is not None
    assert written.loses("preference") is None
    assert one.current != first


def test_back_shows_the_pair_before_and_the_new_judgement_replaces_the_old() -> None:
    one = session()
    first = one.current
    one.press("1")
    second = one.current
    assert one.press("b").meant
    assert one.current == first
    one.press("=")
    assert one.current == second
    assert first is not None
    assert one.judged[first.pair.id].verdict == "equal"
    assert len(one.judged) == 1


def test_back_within_a_pair_begins_it_again() -> None:
    one = session("regret")
    shown = one.current
    assert not one.press("b").meant
    one.press("1")
    one.press("r")
    assert one.press("b").meant
    assert (one.current, one.stage) == (shown, BETTER)
    assert one.judged == {}


def test_a_key_that_means_nothing_changes_nothing() -> None:
    one = session()
    shown = one.current
    assert [one.press(key).meant for key in ("r", "3", "", "é")] == [False] * 4
    assert (one.current, one.judged) == (shown, {})


def test_who_comes_back_goes_on_and_can_go_back() -> None:
    one = session()
    for key in "12=":
        one.press(key)
    left = one.current
    again = session(judged=one.judged)
    assert again.current == left
    again.press("b")
    assert again.current is not None
    assert again.current.pair == again.drawn[2]
