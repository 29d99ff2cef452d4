"""The file of reviews: what was acknowledged is there, and what was fixed before anybody looked stays."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from cases import each
from patience import at_once
from stores import postgres_url

from cascade.errors import UsageError
from cascade.review.pairs import PairId
from cascade.review.reviews import (
    Judgement,
    ReviewFile,
    ReviewTable,
    Terms,
    opened,
    place_for,
    read_reviews,
    reviews_at,
)

TERMS = Terms("preference", "auto", 0.5)
ONE = Judgement("q", "a", "b", "output", "reference", None, None, "ann", "2026-11-23T00:00:00+00:00")


def test_what_was_added_is_read_and_the_last_word_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ReviewFile(path, TERMS) as file:
        for one in (ONE, ONE._replace(question="p"), ONE._replace(verdict="equal"), ONE._replace(reviewer="bob")):
            file.add(one)
    found = read_reviews(path)
    assert len(path.read_text().splitlines()) == 5
    assert {one: said.verdict for one, said in found.by("ann").items()} == {
        PairId("p", "a", "b"): "reference",
        PairId("q", "a", "b"): "equal",
    }
    assert found.reviewers == ("ann", "bob")
    assert found.losses("preference")[ONE.pair] is True  # where reviewers differ it is a loss


def test_a_torn_last_line_was_never_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ReviewFile(path, TERMS) as file:
        file.add(ONE)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"question": "to')
    assert len(read_reviews(path).judgements) == 1
    with ReviewFile(path, TERMS) as file:
        file.add(ONE._replace(question="p"))
    assert path.read_bytes().startswith(whole)
    assert len(read_reviews(path).judgements) == 2


def test_a_file_keeps_its_key_and_refuses_other_terms(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with ReviewFile(path, TERMS) as file:
        key = file.reviews.terms.key
    assert len(key) == 32
    with ReviewFile(path, TERMS) as file:
        assert file.reviews.terms.key == key
    with pytest.raises(UsageError) as refused:
        ReviewFile(path, Terms("regret", "json", 1.0, "mine"))
    assert all(word in str(refused.value) for word in ("ask", "matcher", "rate", "key"))


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with ReviewFile(tmp_path / "r.jsonl", TERMS), pytest.raises(UsageError, match="Another process"):
        ReviewFile(tmp_path / "r.jsonl", TERMS)


@each(
    "lines, said",
    [
        ([], "empty"),
        ([{"review": 2}], "review"),
        ([{"review": 1, "ask": "taste", "matcher": "auto", "rate": 1, "key": "k"}], "taste"),
        ([{"review": 1, "ask": "regret", "matcher": "auto", "rate": 0, "key": "k"}], "label_rate"),
        ([{"review": 1, "ask": "regret", "matcher": "auto", "rate": 1, "key": "k"}, {"verdict": "good"}], "line 2"),
    ],
)
def test_what_is_no_file_of_reviews_is_refused(lines: list[dict[str, object]], said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UsageError, match=said):
        read_reviews(path)


# --- in PostgreSQL: what one replica writes every other one reads ---

BAD = Terms("regret", "json")


def bad(number: int, reviewer: str = "ann") -> Judgement:
    return Judgement(f"q{number}", "a", "b", "output", "both_bad", False, False, reviewer, "now \ud800 \x00")


def test_replicas_share_judgements_and_the_key(tmp_path: Path) -> None:
    with postgres_url() as url:
        assert place_for(url, ".reviews.jsonl") == url
        assert reviews_at(url) is None
        with opened(url, BAD) as first, opened(url, BAD) as other:
            assert isinstance(other, ReviewTable)
            assert first.reviews.terms == other.reviews.terms
            assert first.reviews.terms.key
            first.add(bad(1))
            other.add(bad(1)._replace(verdict="skipped"))
        held = reviews_at(url)
        assert held is not None
        assert [each.verdict for each in held.judgements] == ["skipped"]  # the later one of the same reviewer
        assert held.judgements[0].at == bad(1).at
        with pytest.raises(UsageError, match="begun with ask regret, not preference"):
            opened(url, Terms("preference", "json"))
    path = tmp_path / "reviews.jsonl"
    assert reviews_at(path) is None
    with opened(path, BAD) as file:
        assert isinstance(file, ReviewFile)
    assert reviews_at(path) is not None


def test_no_judgement_is_lost_between_replicas() -> None:
    with postgres_url() as url:
        with opened(url, BAD):
            pass

        def write(reviewer: str) -> None:
            with opened(url, BAD) as held:
                for number in range(10):
                    held.add(bad(number, reviewer))

        at_once(*(partial(write, name) for name in ("ann", "bob", "cy")))
        found = reviews_at(url)
        assert found is not None
        assert len(found.judgements) == 30
