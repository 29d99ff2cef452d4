"""Reviews: where they are kept, what a session of one asks, which pairs there are, and judgements as a log's truth."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy  # its parts are imported where they are used: that takes long
import sqlalchemy as sa
from cases import each
from patience import at_once
from stores import postgres_url

from cascade.api.logs import LogOptions
from cascade.api.reviews import ReviewOptions
from cascade.conformal.monitor import is_drawn
from cascade.conformal.promise import Promise
from cascade.episodes.reading import reviewed
from cascade.episodes.rows import joined
from cascade.errors import UsageError
from cascade.fitting.attempts import FIRST
from cascade.fitting.fit import Fit, FitSettings, fit
from cascade.identity import identity
from cascade.logs.columns import Row
from cascade.logs.schema import Dropped
from cascade.policies.policy import Threshold
from cascade.records.database import Database
from cascade.records.database import reviews as rows
from cascade.review.labels import judgements
from cascade.review.pairs import Compared, Output, Pair, PairId, compare
from cascade.review.reviews import Ask, Judgement, Location, Reviews, ReviewStore, Terms, read_reviews, reviews_at
from cascade.review.session import BETTER, Session
from cascade.table import Log
from unit.review.booking import call, episode, write

TERMS = Terms("preference", "auto", 0.5)
VOTE = Judgement("q", "a", "b", "output", "reference", None, None, "ann", "now \ud800 \x00")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: Any, tmp_path: Path) -> Iterator[Location]:
    """Yield where reviews are kept."""
    if request.param == "sqlite":
        yield tmp_path / "reviews.db"
        return
    with postgres_url() as url:
        yield url


def test_what_was_added_is_read_and_the_last_word_counts(place):
    assert reviews_at(place) is None
    with ReviewStore(place, TERMS) as store:
        for vote in (VOTE, VOTE._replace(question="p"), VOTE._replace(verdict="equal"), VOTE._replace(reviewer="bob")):
            store.add(vote)
    stored = reviews_at(place)
    assert {pair: judgement.verdict for pair, judgement in stored.by("ann").items()} == {
        PairId("p", "a", "b"): "reference",
        PairId("q", "a", "b"): "equal",
    }
    assert stored.judgements[0].at == VOTE.at
    assert True in [each.loses("preference") for each in stored.judgements if each.pair == VOTE.pair]


def test_a_review_keeps_its_key_and_refuses_other_terms(place):
    with ReviewStore(place, TERMS) as store, ReviewStore(place, TERMS) as other:
        key = store.reviews.terms.key
        assert other.reviews.terms.key == key
    assert len(key) == 32
    with pytest.raises(UsageError) as refused:
        ReviewStore(place, Terms("regret", "json", 1.0, "mine"))
    assert all(word in str(refused.value) for word in ("ask", "matcher", "rate", "key"))


def test_no_judgement_is_lost_between_reviewers(place):
    with ReviewStore(place, TERMS):
        pass

    def write(reviewer: str) -> None:
        with ReviewStore(place, TERMS) as store:
            for number in range(10):
                store.add(VOTE._replace(question=str(number), reviewer=reviewer))

    at_once(*(partial(write, name) for name in ("ann", "bob", "cy")))
    stored = reviews_at(place)
    assert len(stored.judgements) == 30


GOOD = {"ask": "regret", "matcher": "auto", "rate": 1, "key": "k"}


@each(
    "lines",
    [
        [{**GOOD, "ask": "taste"}],
        [{**GOOD, "rate": 0}],
        [{"ask": "regret"}],
        [GOOD, {"verdict": "good"}],
        [GOOD, {**VOTE._asdict(), "mood": "good"}],
    ],
)
def test_what_is_no_review_is_refused(lines, tmp_path):
    with closing(Database(f"sqlite:///{tmp_path / 'r.db'}")) as database, database.transaction() as connection:
        connection.execute(sa.delete(rows))
        for number, line in enumerate(lines):
            connection.execute(sa.insert(rows), {"number": number, "line": json.dumps(line)})
    with pytest.raises(UsageError):
        read_reviews(tmp_path / "r.db")


def test_what_is_no_file_of_reviews_is_refused(tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n" * 500)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: read_reviews(tmp_path / "log.jsonl"),
        lambda: ReviewStore(tmp_path / "log.jsonl", TERMS),
        lambda: read_reviews(tmp_path / "nowhere.db"),
    )
    for attempt in attempts:
        with pytest.raises(UsageError):
            attempt()
    assert (tmp_path / "log.jsonl").read_text() == "{}\n" * 500


ROWS = [row for number in range(12) for row in episode(number, call(number + 50), call(number))]
PAIRS = list(compare(lambda: ROWS).pairs)


def session(
    ask: Ask = "preference", reviewer: str = "ann", judged: Mapping[PairId, Judgement] | None = None
) -> Session:
    return Session(PAIRS, Terms(ask, "text", 1.0, "key"), reviewer, judged or {})


def judged(keys: str, ask: Ask = "preference") -> list[Judgement]:
    """Return what is written while these keys are pressed."""
    sitting = session(ask)
    pressed = [sitting.press(key) for key in keys]
    return [press.written for press in pressed if press.written is not None]


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
def test_verdicts_are_written_by_whose_output_it_is(keys, better, rights):
    sitting = session("regret")
    for _ in PAIRS:
        first, pair = sitting.current.first, sitting.current.pair
        assert sitting.current.outputs == (
            (pair.output, pair.reference) if first == "output" else (pair.reference, pair.output)
        )
        written = [press.written for press in map(sitting.press, keys)][-1]
        assert written is not None
        second = "reference" if first == "output" else "output"
        assert written.verdict == {"first": first, "second": second}.get(better, better)
        right = {first: rights[0], second: rights[1]}
        assert (written.output_right, written.reference_right) == (right["output"], right["reference"])
        assert written.loses("regret") == (right["reference"] and not right["output"])
        assert written.pair == pair.id
    assert sitting.current is None


def test_preference_needs_one_key():
    written = judged("12=0")
    assert len(written) == 4
    assert {vote.output_right for vote in written} == {None}
    assert [vote.loses("preference") for vote in written] == [vote.verdict == "reference" for vote in written]


def test_each_output_is_shown_first_about_as_often():
    shown = [session(reviewer=f"reviewer {number}").current for number in range(1_000)]
    assert abs([sides.first for sides in shown if sides].count("output") - 500) < 4 * 250**0.5


def test_the_order_is_a_reviewers_own_and_stays():
    orders = [[pair.id for pair in session(reviewer=name).drawn] for name in ("ann", "bob", "ann")]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_what_was_skipped_loses_nothing_and_does_not_come_again():
    sitting = session()
    first = sitting.current
    written = sitting.press("s").written
    assert written.loses("preference") is None
    assert sitting.current != first


def test_back_shows_the_pair_before_and_the_new_judgement_replaces_the_old():
    sitting = session()
    first = sitting.current
    sitting.press("1")
    second = sitting.current
    assert sitting.press("b").meant
    assert sitting.current == first
    sitting.press("=")
    assert sitting.current == second
    assert sitting.judged[first.pair.id].verdict == "equal"
    assert len(sitting.judged) == 1


def test_back_within_a_pair_begins_it_again():
    sitting = session("regret")
    shown = sitting.current
    assert not sitting.press("b").meant
    sitting.press("1")
    sitting.press("r")
    assert sitting.press("b").meant
    assert (sitting.current, sitting.stage) == (shown, BETTER)
    assert sitting.judged == {}


def test_a_key_that_means_nothing_changes_nothing():
    sitting = session()
    shown = sitting.current
    assert [sitting.press(key).meant for key in ("r", "3", "", "é")] == [False] * 4
    assert (sitting.current, sitting.judged) == (shown, {})


def test_who_comes_back_goes_on_and_can_go_back():
    sitting = session()
    for key in "12=":
        sitting.press(key)
    left = sitting.current
    again = session(judged=sitting.judged)
    assert again.current == left
    again.press("b")
    assert again.current.pair == again.drawn[2]


def compared(rows: list[Row], matcher: str | None = None) -> Compared:
    return compare(lambda: rows, matcher)


def texts(rows: list[Row], matcher: str | None = None) -> list[tuple[str, str]]:
    return [(pair.output.text, pair.reference.text) for pair in compared(rows, matcher).pairs]


def test_an_output_that_is_spelled_otherwise_is_no_pair():
    same = episode(1, call(1, spelled='{"room":1.0}'), call(1))
    other = episode(2, call(7), call(2))
    assert len(texts([*same, *other])) == 1


def test_each_distinct_output_stands_in_one_pair():
    rows = episode(1, call(7), call(1))
    again = {**rows[0], "step": 2, "answer": '[{"name": "book", "arguments": {"room": 7.0}}]'}
    third = {**rows[0], "step": 3, "answer": json.dumps([{"name": "book", "arguments": {"room": 9}}])}
    comparison = compared([rows[0], again, third, *rows[1:]])
    assert [len(pair.equal) for pair in comparison.pairs] == [2, 1]
    (only,) = comparison.differing.values()
    assert len(only) == 3


def test_a_question_that_stands_twice_in_a_log_is_asked_once():
    rows = episode(1, call(7), call(1))
    twice = [*rows, *({**row, "episode_id": "again"} for row in rows)]
    assert len(compared(twice).differing) == 2
    assert len(texts(twice)) == 1


def test_the_comparator_decides():
    rows = [
        {**row, "answer": answer}
        for row, answer in zip(episode(1, call(1), call(1)), ("5 km", "5 m", "5 m"), strict=True)
    ]
    assert len(texts(rows, "exact")) == 1
    assert texts(rows, "number") == []


def test_where_the_reference_gave_nothing_there_is_no_pair():
    comparison = compared([*episode(1, call(7), call(1))[:1], *episode(2, call(7), call(2))])
    assert len(comparison.pairs) == 1
    assert comparison.without_reference == 1


def test_of_a_ladder_the_last_model_is_the_reference():
    pairs = compared([row for row in episode(1, call(7), call(1)) if row["walk"] is None]).pairs
    assert [pair.reference.message for pair in pairs] == [json.dumps(call(1))]


def test_a_log_without_a_reference_is_refused():
    with pytest.raises(UsageError, match="has no reference"):
        compared([{**row, "horizon": 1} for row in episode(1, call(7), call(1))[:1]])


def test_hashes_in_the_place_of_texts_are_refused():
    rows = [{**row, "answer": "sha256:" + "a" * 64} for row in episode(1, call(7), call(1))]
    with pytest.raises(UsageError, match="hashes"):
        compared(rows)


def test_a_request_without_the_references_output_is_told_of(tmp_path):
    log = write(tmp_path / "log.jsonl", [*episode(1, call(7), call(1))[:1], *episode(2, call(7), call(2))])
    messages: list[str] = []
    ReviewOptions(LogOptions(str(log))).read(messages.append)
    assert messages[-1] == "1 request without an output of the reference: not shown"


N, LEVEL = 400, FIRST * 0.1
POLICY = Threshold("doubt", 1.0, tie=None)
_draw = random.Random(4)
DOUBT = [(number + 0.5) / N for number in _draw.sample(range(N), N)]  # no two so near that a threshold parts them not
DIFFERS = [_draw.random() < 0.5 * doubt**2 for doubt in DOUBT]
HARMS = [_draw.random() < 0.5 for _ in range(N)]
BOOKED: list[dict[str, Any]] = []
for _number in range(N):
    for _row in episode(_number, call(_number + 5_000 if DIFFERS[_number] else _number), call(_number)):
        BOOKED.append({**_row, "signals": {**_row["signals"], "doubt": DOUBT[_number]}})
COMPARED: Compared = compare(lambda: BOOKED)
POSITION = {identity(row["question"], row["context"]): at // 3 for at, row in enumerate(BOOKED)}
NUMBER = {pair.id: POSITION[pair.question] for pair in COMPARED.pairs}


def verdict_on(pair: PairId, ask: str = "regret", reviewer: str = "ann") -> Judgement:
    """Return what a reviewer says who sees whether the cheap model's output harms."""
    harms = HARMS[NUMBER[pair]]
    rights = (None, None) if ask == "preference" else (not harms, True)
    return Judgement(*pair, "output", "reference" if harms else "equal", *rights, reviewer, "")


def reviews(pairs: list[PairId], rate: float = 1.0, ask: Any = "regret", key: str = "key") -> Reviews:
    return Reviews(Terms(ask, COMPARED.comparator, rate, key), tuple([verdict_on(pair, ask) for pair in pairs]))


def read(given: Reviews, kind: str = "regret") -> Log:
    return joined(reviewed(COMPARED.labelled, judgements(COMPARED, [given], kind), Dropped())).log


def fitted(given: Reviews, kind: str, risk: float = 0.05) -> Fit:
    promise = Promise(kind, risk, 0.9, given.terms.rate)
    return fit(read(given, kind), promise, FitSettings(policy=POLICY))


def served(done: Fit) -> int:
    """Return how many requests the cheap model answers at the proven threshold."""
    walks = done.policy.walks(done.log)
    return int(np.count_nonzero(walks.stop(done.certified[""].kappa) == 0)) if done.certified else 0


def by_hand(risk: float, rate: float, *, labelled: set[int]) -> int:
    """Return the same by a plain loop over thresholds."""
    most = max(k for k in range(N) if scipy.stats.binom.cdf(k, N, risk * rate) <= LEVEL)
    name = {number: name for name, number in POSITION.items()}
    answered = lost = 0
    for number in sorted(range(N), key=DOUBT.__getitem__):
        drawn = is_drawn("key", rate, name[number])
        lost += DIFFERS[number] and drawn and (HARMS[number] or number not in labelled)
        if lost > most:
            break
        answered += 1
    return answered


@each("kind, rate", [(kind, rate) for kind in ("regret", "preference") for rate in (1.0, 0.5)])
def test_what_is_proven_is_what_a_plain_loop_proves_with_all_judgements_or_half(kind, rate):
    full = fitted(reviews(list(NUMBER), rate), kind)
    assert served(full) == by_hand(0.05, rate, labelled=set(range(N)))
    odd = {number for number in range(N) if number % 2}
    half = fitted(reviews([pair for pair in NUMBER if NUMBER[pair] in odd], rate), kind)
    assert served(half) == by_hand(0.05, rate, labelled=odd)


def test_an_output_that_nobody_judged_is_unknown():
    log = read(reviews([pair for pair in NUMBER if NUMBER[pair] % 2], 0.5))
    number = np.array([POSITION[name] for name in log.ids])
    differs, harms = np.array(DIFFERS)[number], np.array(HARMS)[number]
    expected = np.where(~differs, 1.0, np.where(number % 2, 1.0 - harms, np.nan))
    np.testing.assert_array_equal(log.right[:, 0], expected)
    assert (log.right[:, 1] == 1).all()
    assert log.drawn.tolist() == [is_drawn("key", 0.5, name) for name in log.ids]


def test_too_few_requests_at_a_rate_prove_nothing():
    assert not fitted(reviews(list(NUMBER), 0.01), "regret").certified


@each(
    "given, kind",
    [
        ([reviews([], ask="preference")], "regret"),
        ([Reviews(Terms("regret", "json", 1.0, "key"), ())], "regret"),
        ([reviews([])], "coverage"),
        ([reviews([], 0.5), reviews([], 0.5, key="other")], "regret"),
    ],
)
def test_reviews_that_do_not_say_it_are_refused(given, kind):
    with pytest.raises(UsageError):
        judgements(COMPARED, given, kind)


def test_where_reviewers_differ_it_is_a_loss_and_equal_outputs_share_a_judgement():
    pair = next(pair for pair in NUMBER if HARMS[NUMBER[pair]])
    kinder = verdict_on(pair)._replace(verdict="equal", output_right=True, reviewer="bob")
    other = reviews([pair])._replace(judgements=(verdict_on(pair), kinder))
    row = next(row for row in COMPARED.labelled.rows(Dropped()) if COMPARED.pair_of(row) is not None)
    assert judgements(COMPARED, [other], "regret").loses({**row, "correct": True})
    twin = Pair("q", "?", None, False, Output("a", None), Output("b", None), ("x", "y"))
    assert twin.lost({PairId("q", "y", twin.reference.digest): True})
    assert twin.lost({}) is None
