"""Where reviews are kept: what was acknowledged is there, and what was fixed before anybody looked stays."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from cases import each
from patience import at_once
from stores import postgres_url

from cascade.errors import UsageError
from cascade.records.database import Database
from cascade.records.database import reviews as rows
from cascade.review.pairs import PairId
from cascade.review.reviews import Judgement, Location, ReviewStore, Terms, read_reviews, reviews_at

TERMS = Terms("preference", "auto", 0.5)
ONE = Judgement("q", "a", "b", "output", "reference", None, None, "ann", "now \ud800 \x00")


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: Any, tmp_path: Path) -> Iterator[Location]:
    """Yield where reviews are kept."""
    if request.param == "sqlite":
        yield tmp_path / "reviews.db"
        return
    with postgres_url() as url:
        yield url


def test_what_was_added_is_read_and_the_last_word_counts(place: Location) -> None:
    assert reviews_at(place) is None
    with ReviewStore(place, TERMS) as store:
        for one in (ONE, ONE._replace(question="p"), ONE._replace(verdict="equal"), ONE._replace(reviewer="bob")):
            store.add(one)
    found = reviews_at(place)
    assert found is not None
    assert {one: said.verdict for one, said in found.by("ann").items()} == {
        PairId("p", "a", "b"): "reference",
        PairId("q", "a", "b"): "equal",
    }
    assert found.reviewers == ("ann", "bob")
    assert found.judgements[0].at == ONE.at
    assert found.losses("preference")[ONE.pair] is True  # where reviewers differ it is a loss


def test_a_review_keeps_its_key_and_refuses_other_terms(place: Location) -> None:
    with ReviewStore(place, TERMS) as store, ReviewStore(place, TERMS) as other:
        key = store.reviews.terms.key
        assert other.reviews.terms.key == key
    assert len(key) == 32
    with pytest.raises(UsageError) as refused:
        ReviewStore(place, Terms("regret", "json", 1.0, "mine"))
    assert all(word in str(refused.value) for word in ("ask", "matcher", "rate", "key"))


def test_no_judgement_is_lost_between_reviewers(place: Location) -> None:
    with ReviewStore(place, TERMS):
        pass

    def write(reviewer: str) -> None:
        with ReviewStore(place, TERMS) as store:
            for number in range(10):
                store.add(ONE._replace(question=str(number), reviewer=reviewer))

    at_once(*(partial(write, name) for name in ("ann", "bob", "cy")))
    found = reviews_at(place)
    assert found is not None
    assert len(found.judgements) == 30


GOOD = {"ask": "regret", "matcher": "auto", "rate": 1, "key": "k"}


@each(
    "lines",
    [
        [{**GOOD, "ask": "taste"}],
        [{**GOOD, "rate": 0}],
        [{"ask": "regret"}],
        [GOOD, {"verdict": "good"}],
        [GOOD, {**ONE._asdict(), "mood": "good"}],
    ],
)
def test_what_is_no_review_is_refused(lines: list[dict[str, object]], tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path / 'r.db'}")) as database, database.transaction() as connection:
        connection.execute(sa.delete(rows))
        for number, line in enumerate(lines):
            connection.execute(sa.insert(rows), {"number": number, "line": json.dumps(line)})
    with pytest.raises(UsageError):
        read_reviews(tmp_path / "r.db")


def test_what_is_no_file_of_reviews_is_refused(tmp_path: Path) -> None:
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
